"""Checkpoints of a run: whole or absent, and refused where they do not belong."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.operations import CheckpointConfig
from olmo_hydra.train.state import State, by_path

Meta = dict[str, Any]
Record = dict[str, Any]  # of the data, see `Reading.record`
Event = Callable[..., None]

CHUNK = 1 << 26  # bytes of an array stored in one piece: to read a piece takes its size twice


class Checkpoints:
    """The folder `checkpoints/` of a run: one folder a step, written in the background, renamed when whole.

    Arrays are stored under the path they have in the state, so that a checkpoint can be read without this code.
    """

    def __init__(self, folder: Path, cfg: CheckpointConfig):
        policy = ocp.checkpoint_managers.LatestN(cfg.keep)
        options = ocp.CheckpointManagerOptions(preservation_policy=policy, cleanup_tmp_directories=True, create=True)
        self._manager = ocp.CheckpointManager(folder.absolute(), options=options)
        self._being_written: int | None = None

    def latest(self) -> int | None:
        """The newest whole checkpoint's step."""
        return self._manager.latest_step()

    def save(self, step: int, state: State, meta: Meta, record: Record, words_W: jax.Array) -> None:
        """Starts saving what update `step` has left: the state, and of the data the record and the ledger's bits.

        It is on disk, all of it, once `wait` returns or `event` is told.
        """
        args = ocp.args.Composite(
            state=_save(by_path(state)),
            meta=ocp.args.JsonSave(meta),
            data=ocp.args.JsonSave(record),
            ledger=_save({"words": words_W}),
        )
        if not self._manager.save(step, args=args):
            raise RuntimeError(f"checkpoint {step} was not saved: {self.latest()} is there already")
        self._being_written = step

    def restore(self, step: int, abstract: State, shardings: State, meta: Meta) -> State:
        """The state after update `step`, laid out as `shardings` says, on any number of devices.

        Raises:
          RequestError: The checkpoint was written by another program than `meta` describes, or it is damaged.
        """
        with self._damaged(step):
            saved = self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore())).meta
            refuse_other(saved, meta, self.place(step))
            return self._arrays(step, abstract, shardings)

    def record(self, step: int) -> Record:
        """What the checkpoint says of the data. Raises RequestError if it is damaged."""
        with self._damaged(step):
            record: Record = self._manager.restore(step, args=ocp.args.Composite(data=ocp.args.JsonRestore())).data
            return record

    def words(self, step: int, abstract_W: jax.ShapeDtypeStruct) -> jax.Array:
        """The ledger's bits, laid out as `abstract_W` says. Raises RequestError if they are damaged."""
        with self._damaged(step):
            args = ocp.args.Composite(ledger=ocp.args.StandardRestore({"words": abstract_W}))
            words_W: jax.Array = self._manager.restore(step, args=args).ledger["words"]
            return words_W

    def place(self, step: int) -> Path:
        """Folder of a checkpoint."""
        return Path(self._manager.directory / str(step))

    @contextmanager
    def _damaged(self, step: int) -> Iterator[None]:
        """Errors of reading a checkpoint, as one that names it."""
        try:
            yield
        except RequestError:
            raise
        except Exception as error:  # of many types, by what is damaged
            raise RequestError(
                f"the checkpoint of update {step} is damaged: {type(error).__name__}",
                where=str(self.place(step)),
                instead="a copy of it; without that folder, the same command continues from the checkpoint before",
            ) from error

    def _arrays(self, step: int, abstract: State, shardings: State) -> State:
        template = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
            for (name, leaf), sharding in zip(by_path(abstract).items(), jax.tree.leaves(shardings), strict=True)
        }
        args = ocp.args.Composite(state=ocp.args.StandardRestore(template))
        leaves = self._manager.restore(step, args=args).state
        return jax.tree.unflatten(jax.tree.structure(abstract), [leaves[name] for name in template])

    def wait(self, event: Event) -> None:
        """Returns when the save that was started is on disk, and `event("checkpoint", step=n)` has been told."""
        self._manager.wait_until_finished()
        self.tell(event)

    def tell(self, event: Event) -> None:
        """Tells `event`, once, of a save that is on disk by now; raises the error of one that failed. Never waits."""
        if self._being_written is not None and not self._manager.is_saving_in_progress():
            self._manager.check_for_errors()
            event("checkpoint", step=self._being_written)
            self._being_written = None

    def close(self) -> None:
        """Waits, and ends the background threads."""
        self._manager.close()


def _save(leaves: dict[str, jax.Array]) -> ocp.args.StandardSave:
    if jax.default_backend() == "cpu":
        # Here an array and orbax's view of it share memory, which the next step, given the array, writes over.
        leaves = {name: jnp.copy(leaf) for name, leaf in leaves.items()}
    return ocp.args.StandardSave(leaves, {name: ocp.SaveArgs(chunk_byte_size=CHUNK) for name in leaves})


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
