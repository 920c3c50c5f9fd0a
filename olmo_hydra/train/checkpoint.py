"""Checkpoints of a run: whole or absent, refused where they are damaged or do not belong.

What they are on disk, manifests and hashes: `olmo_hydra.tracking.checkpoints`.
"""

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.operations import CheckpointConfig, OnCorrupt
from olmo_hydra.tracking import checkpoints as on_disk
from olmo_hydra.tracking.checkpoints import Damage, Kind
from olmo_hydra.tracking.files import make_folder, sync_folder
from olmo_hydra.train.retention import superfluous
from olmo_hydra.train.space import failed_save, refuse_without_space
from olmo_hydra.train.state import State, by_path

Meta = dict[str, Any]
Record = dict[str, Any]  # of the data, see `Reading.record`
Event = Callable[..., None]

CHUNK = 1 << 26  # bytes of an array stored in one piece: to read a piece takes its size twice
# Orbax's limit for a save, hashes included. Its own, 20 minutes, ends a run whose disk is slow; a hang is noticed by
# other means.
LONGEST_SAVE = 24 * 3600  # seconds
# What is wanting is the machine's, or another process.
NO_FAULT_OF_FILES = re.compile(r"RESOURCE_EXHAUSTED|Out of memory|UNAVAILABLE|DEADLINE_EXCEEDED|Gloo")


@dataclass(frozen=True)
class Choice:
    """From which checkpoint a run goes on (None: from none), and the newer ones, which are damaged."""

    step: int | None
    damaged: tuple[Damage, ...]


class Checkpoints:
    """The folder `checkpoints/` of a run: one folder a step, written in the background, renamed when whole.

    Arrays are stored under the path they have in the state, so that a checkpoint can be read without this code.

    Args:
      folder: Made by the first save.
      cfg: Its cadences and what stays.
      writes: Whether this process writes what is not part of an array: one of a job does. All of them call `save`,
        `restore`, `record`, `words` and `wait` alike.
    """

    def __init__(self, folder: Path, cfg: CheckpointConfig, writes: bool = True):
        self.folder = folder.parent.resolve() / folder.name  # tensorstore refuses `..`
        self._cfg, self._writes = cfg, writes
        options = ocp.options.AsyncOptions(timeout_secs=LONGEST_SAVE, post_finalization_callback=self._seal)
        self._orbax = ocp.AsyncCheckpointer(_handler(), async_options=options)
        self._being_written: tuple[int, Kind] | None = None
        self._kinds: dict[int, Kind] | None = None  # of the whole ones, once they were asked for
        self._spared_before: int | None = None
        self._erasing = ThreadPoolExecutor(1, thread_name_prefix="erase")

    def choose(self) -> Choice:
        """The newest checkpoint that is what was written, every byte of it; changes nothing.

        Raises:
          RequestError: A newer one is damaged, and `checkpoint.on_corrupt` does not say to go back.
        """
        if os.path.lexists(self.folder) and not self.folder.is_dir():
            raise RequestError("is no folder, or a link to nothing", where=str(self.folder), instead="what it was")
        damaged, chosen = [], None
        for step in reversed(on_disk.steps(self.folder)):
            found = on_disk.damage(self.place(step))
            if found is None:
                chosen = step
                break
            damaged.append(found)
        if damaged and self._cfg.on_corrupt is OnCorrupt.refuse:
            after = "begins the run anew: no other is whole" if chosen is None else f"continues from update {chosen}"
            raise RequestError(
                "\n  ".join(map(str, damaged)),
                where=str(self.place(damaged[0].step) / damaged[0].file),
                instead=f"a copy of it; or checkpoint.on_corrupt=previous, which {after}",
            )
        return Choice(chosen, tuple(damaged))

    def set_aside(self, step: int, why: str = "damaged") -> Path:
        """Takes a checkpoint out of the run without deleting it: `<step>.<why>`. Returns where it is.

        Only for the process that writes.
        """
        if self._kinds is not None:
            self._kinds.pop(step, None)
        return on_disk.set_aside(self.place(step), why)

    def clean(self) -> None:
        """Removes what killed processes of this run left half written or half removed. Only while it is locked."""
        if self._writes:
            for path in on_disk.remains(self.folder):
                on_disk.erase(path)

    def make_permanent(self, step: int) -> None:
        """The checkpoint of this step, where the run was stopped, is now one that it shall end at."""
        if self._writes:
            on_disk.make_permanent(self.place(step))
            self._kinds = None

    def keep_before(self, step: int | None) -> None:
        """From now on the newest whole checkpoint before this step is not removed; None: as the config says."""
        self._spared_before = step

    def save(
        self, step: int, state: State, meta: Meta, record: Record, words_W: jax.Array, *, permanent: bool = True
    ) -> None:
        """Starts saving what update `step` has left: the state, and of the data the record and the ledger's bits.

        It is on disk, all of it, once `wait` returns or `event` is told.

        Args:
          step: Updates done.
          state: May be given away as soon as this returns.
          meta: Whose checkpoint it is.
          record: See `Reading.record`; and the `rows` that the run has, see `tracking.record.Record.kept`.
          words_W: See `Ledger`.
          permanent: Whether it stays when there is a newer one.

        Raises:
          RequestError: There is no space for it.
          RunFailed: It cannot be written.
        """
        arrays = {"state": by_path(state), "ledger": {"words": words_W}}
        if self._writes:
            make_folder(self.folder)
            size = sum(leaf.nbytes for leaves in arrays.values() for leaf in leaves.values())
            refuse_without_space(self.folder, step, size)
        kind = Kind.permanent if permanent else Kind.ephemeral
        self._being_written = step, Kind.landmark if step in self._cfg.fixed_steps else kind
        args = ocp.args.Composite(
            meta=ocp.args.JsonSave(meta),
            data=ocp.args.JsonSave(record),
            **{name: _save(leaves) for name, leaves in arrays.items()},
        )
        with self._whole_or_gone(step):
            self._orbax.save(self.place(step), args=args)

    def restore(self, step: int, abstract: State, shardings: State, meta: Meta) -> State:
        """The state after update `step`, laid out as `shardings` says, on any number of devices.

        Raises:
          RequestError: The checkpoint was written by another program than `meta` describes, or it cannot be restored.
        """
        saved = self._item(step, "meta", ocp.args.JsonRestore())
        refuse_other(saved, meta, self.place(step))
        template = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
            for (name, leaf), sharding in zip(by_path(abstract).items(), jax.tree.leaves(shardings), strict=True)
        }
        leaves = self._item(step, "state", _restore(template))
        return jax.tree.unflatten(jax.tree.structure(abstract), [leaves[name] for name in template])

    def record(self, step: int) -> Record:
        """What the checkpoint says of the data. Raises RequestError if it cannot be restored."""
        record: Record = self._item(step, "data", ocp.args.JsonRestore())
        return record

    def words(self, step: int, abstract_W: jax.ShapeDtypeStruct) -> jax.Array:
        """The ledger's bits, laid out as `abstract_W` says. Raises RequestError if they cannot be restored."""
        words_W: jax.Array = self._item(step, "ledger", _restore({"words": abstract_W}))["words"]
        return words_W

    def place(self, step: int) -> Path:
        """Folder of a checkpoint."""
        return self.folder / str(step)

    def wait(self, event: Event) -> None:
        """Returns when the save that was started is on disk, and `event("checkpoint", step=n)` has been told.

        Raises:
          RequestError: There was no space for it.
          RunFailed: It could not be written.
        """
        if self._being_written is not None:
            with self._whole_or_gone(self._being_written[0]):
                self._orbax.wait_until_finished()
            self._finished(event)

    def settle(self, event: Event) -> None:
        """As `wait`; and what does not stay is gone, also what a process that was killed after its last save left.

        A run that has finished is never started again, so that nothing may be left to do. Raises what `wait` does.
        """
        self.wait(event)
        if self._writes:
            self._remove_superfluous(event)
            self._erasing.submit(lambda: None).result()  # one thread: all that was to be erased before it

    def tell(self, event: Event) -> None:
        """As `wait`, of a save that has ended by now, well or badly. Never waits for one."""
        if self._being_written is not None:
            step, _ = self._being_written
            with self._whole_or_gone(step):
                self._orbax.check_for_errors()
            if self.place(step).is_dir():
                self._finished(event)

    def close(self) -> None:
        """Waits for a save, not for what is being removed, and ends the background threads."""
        self._erasing.shutdown(wait=False, cancel_futures=True)  # the next start removes what is left
        self._orbax.close()

    def _seal(self) -> None:
        """Called by orbax, in the writing process, when every array is on disk and the folder is yet to be renamed."""
        assert self._being_written is not None
        step, kind = self._being_written
        on_disk.write_manifest(self._temporary(step), step, kind)

    def _finished(self, event: Event) -> None:
        assert self._being_written is not None
        step, kind = self._being_written
        self._being_written = None
        if self._writes:
            sync_folder(self.folder)
            self._known()[step] = kind
        event("checkpoint", step=step)
        if self._writes:
            self._remove_superfluous(event)

    def _known(self) -> dict[int, Kind]:
        if self._kinds is None:
            self._kinds = {step: manifest.kind for step, manifest in on_disk.whole(self.folder).items()}
        return self._kinds

    def _remove_superfluous(self, event: Event) -> None:
        kinds = self._known()
        for step in superfluous(kinds, self._cfg.keep, self._cfg.fixed_steps, self._spared_before):
            del kinds[step]  # tried once in a start
            try:
                self._erasing.submit(on_disk.erase, on_disk.removed(self.place(step)))
            except FileNotFoundError:  # somebody was in need of space
                continue
            except OSError as error:
                event("checkpoint_not_removed", step=step, why=str(error.strerror))

    @contextmanager
    def _whole_or_gone(self, step: int) -> Iterator[None]:
        """Of a save that fails nothing stays: it would hold the space that is lacking."""
        try:
            yield
        except Exception as error:  # of many types: orbax passes on what its threads met
            self._being_written = None
            if self._writes:
                on_disk.erase(self._temporary(step))
            raise failed_save(self.folder, step, error) from error

    def _temporary(self, step: int) -> Path:
        return self.folder / f"{step}.orbax-checkpoint-tmp"

    def _item(self, step: int, name: str, args: ocp.args.CheckpointArgs) -> Any:
        """One item of a checkpoint. What its files say wrong becomes an error that names the checkpoint."""
        try:
            return self._orbax.restore(self.place(step), args=ocp.args.Composite(**{name: args}))[name]
        except Exception as error:  # of many types
            if isinstance(error, (MemoryError, jax.errors.JaxRuntimeError)) or NO_FAULT_OF_FILES.search(str(error)):
                raise
            why = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
            raise RequestError(
                f"the checkpoint of update {step} cannot be restored: {why}", where=str(self.place(step) / name)
            ) from error


def _handler() -> ocp.CompositeCheckpointHandler:
    """Arrays are not compressed: 7 % of weights and moments would go, for half of what a save costs."""
    arrays = {name: ocp.PyTreeCheckpointHandler(use_compression=False) for name in ("state", "ledger")}
    return ocp.CompositeCheckpointHandler(**arrays, **{name: ocp.JsonCheckpointHandler() for name in ("meta", "data")})


def _save(leaves: dict[str, jax.Array]) -> ocp.args.PyTreeSave:
    if jax.default_backend() == "cpu":
        # Here an array and orbax's view of it share memory, which the next step, given the array, writes over.
        leaves = {name: jnp.copy(leaf) for name, leaf in leaves.items()}
    return ocp.args.PyTreeSave(leaves, {name: ocp.SaveArgs(chunk_byte_size=CHUNK) for name in leaves})


def _restore(template: dict[str, jax.ShapeDtypeStruct]) -> ocp.args.PyTreeRestore:
    return ocp.args.PyTreeRestore(template, restore_args=ocp.checkpoint_utils.construct_restore_args(template))


def refuse_other(saved: Meta, wanted: Meta, where: Any) -> None:
    """Raises RequestError naming every value that differs between a checkpoint and the run that would continue it."""
    differences = [
        f"{key} was {saved.get(key)!r} and is {wanted.get(key)!r}"
        for key in sorted(saved.keys() | wanted.keys())
        if saved.get(key) != wanted.get(key)
    ]
    if differences:
        raise RequestError(
            "this run cannot continue from its checkpoint: " + "; ".join(differences),
            where=str(where),
            instead="run.tag=NAME for a run of its own, or restore what changed",
        )
