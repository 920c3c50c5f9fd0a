"""Position, fingerprint and ledger through the training loop: which instances updates consume, and what is refused."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from olmo_hydra.config.compose import compose
from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.tokenizers import KNOWN
from olmo_hydra.data.files.token_file import open_file
from olmo_hydra.data.fingerprint import fingerprint
from olmo_hydra.data.instances.kinds import Windows
from olmo_hydra.data.loader import Batches, Cut
from olmo_hydra.data.sampler import Sampler
from olmo_hydra.hardware import devices
from olmo_hydra.hardware.sharding import make_mesh, replicated
from olmo_hydra.tracking.checkpoints import Kind, write_manifest
from olmo_hydra.train import loop
from olmo_hydra.train.ahead import Update
from olmo_hydra.train.checkpoint import Checkpoints
from olmo_hydra.train.clock import Clock
from olmo_hydra.train.parts import Parts
from olmo_hydra.train.profile import Profile
from olmo_hydra.train.reading import Reading
from olmo_hydra.train.stop import StopRequest
from tests.train.tiny import TINY, saving
from tests.train.twice import ShardedTwice

STEPS, B, T = 8, 8, 32
QUIET = (
    "train.steps=8",
    "optim=adamw",
    "schedule.warmup_steps=1",
    "checkpoint.every=100",
    "eval.every=100",
    "tracking.log_every=1",
)
SIZES = {"web": 15 * T + 5, "code": 12 * T}  # 27 instances: three batches an epoch, so that 8 updates see three


def corpus(folder: Path, **changed: np.ndarray) -> None:
    """Two token files of random bytes."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for label, size in SIZES.items():
        tokens = rng.integers(0, 256, size)
        changed.get(label, tokens).astype("<u2").tofile(folder / f"{label}.npy")


def opened(folder: Path, config: Any, sampler: type[Sampler] = Sampler) -> Any:
    files = [open_file(folder / f"{label}.npy", np.dtype("<u2"), label=label, name=label) for label in SIZES]
    source, ids = Windows(files, T), KNOWN["bytes"]
    drawn = sampler(len(source), B, seed=config.data.seed, folder=folder / "order")
    batches = Batches(files, source, drawn, Cut(T, ids.vocab_size, ids.eos, ids.pad))
    found = json.loads(json.dumps(fingerprint(config.data, ids, files, len(source))))
    return SimpleNamespace(source=source, sampler=drawn, batches=batches, fingerprint=found)


class Ran:
    """The loop around an update that changes one number, up to `run.stop_at`, from the newest checkpoint on."""

    def __init__(
        self,
        folder: Path,
        *overrides: str,
        sampler: type[Sampler] = Sampler,
        unseen: Mapping[str, str] = MappingProxyType({"prose": "1e"}),
        **iterate: int,
    ) -> None:
        config = compose([*TINY, *QUIET, *overrides])
        mesh = make_mesh(config.hardware, devices.acquire(config.hardware, ""))
        data = opened(folder, config, sampler)
        self.rows: list[dict[str, Any]] = []
        self.consumed: list[list[int]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.warnings: list[str] = []
        self.order = data.sampler.order
        self.config, checkpoints = config, Checkpoints(folder / "checkpoints", saving())
        state = Number({}, jax.device_put(jnp.float32(0), replicated(mesh)))
        try:
            done = checkpoints.choose().step or 0
            reading = Reading(config, data, mesh, unseen)
            self.changed = None
            if done:
                record, accept_changed = checkpoints.record(done), config.checkpoint.accept_changed_data
                self.changed = reading.restore(record, checkpoints, done, accept_changed=accept_changed)
            batches = data.batches.iterate(done, **iterate)
            parts = Parts(
                config=config, mesh=mesh, update=lambda: Update(step, 0.0), schedule=lambda n: 1.0,
                batches=self._watched(batches),
                instances=lambda n: data.batches.instances(n, 1)[0], skipped=(),
                reading=reading, checkpoints=checkpoints, meta={}, tracker=self,
                has_heldout=False, evaluate=lambda *_: lambda: None,
                stop=StopRequest(), clock=(time := Clock(began=0.0)),
                profile=Profile(None, done, done, folder, time, self.event, print),
            )  # fmt: skip
            self.done = loop.run(parts, state, done)
            batches.close()
            self.record = checkpoints.record(self.done)
            self.words = np.asarray(checkpoints.words(self.done, reading.ledger.abstract))
        finally:
            checkpoints.close()

    def _watched(self, batches):
        for batch in batches:
            self.consumed.append(batch.instances_B.tolist())
            yield batch

    def metrics(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def throughput(self, row: dict[str, Any]) -> None:
        pass

    def event(self, kind: str, **fields: Any) -> None:
        self.events.append((kind, fields))

    def warning(self, text: str, kind: str, **fields: Any) -> None:
        self.warnings.append(text)
        self.event(kind, **fields)

    def sync(self) -> dict:
        pass


def flat(batches: list[list[int]]) -> list[int]:
    return [instance for batch in batches for instance in batch]


class Number(NamedTuple):
    """A state without parameters."""

    params: dict[str, jax.Array]
    number: jax.Array


@jax.jit
def step(state, inputs, lr):
    """A number that depends on every token and its place in the batch."""
    tokens = inputs.tokens.reshape(-1)
    number = (tokens * (jnp.arange(tokens.size) % 997)).sum().astype(jnp.float32)
    return Number({}, state.number + number), {"loss": number, "grad_norm": number, "skipped": jnp.int32(0)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    corpus(tmp_path / "corpus")
    return tmp_path / "corpus"


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Ran:
    """Eight updates without a pause."""
    folder = tmp_path_factory.mktemp("straight") / "corpus"
    corpus(folder)
    return Ran(folder, threads=2)


def test_epochs_read_every_instance_of_their_order_once(straight: Ran) -> None:
    epochs = [flat(straight.consumed[first : first + 3]) for first in (0, 3)]
    assert all(len(epoch) == len(set(epoch)) == 24 for epoch in epochs) and epochs[0] != epochs[1]
    assert [row["data/epoch"] for row in straight.rows] == [1, 1, 1, 2, 2, 2, 3, 3]
    assert [row["data/seen_fraction"] * 27 for row in straight.rows] == pytest.approx([8, 16, 24, 8, 16, 24, 8, 16])
    assert not any(row["data/repeated_fraction"] for row in straight.rows) and straight.warnings == []
    by_label = {label: straight.rows[-1][f"data/tokens/{label}"] for label in SIZES}
    read = flat(straight.consumed[:STEPS])
    assert by_label == {"web": T * sum(i < 15 for i in read), "code": T * sum(i >= 15 for i in read)}
    marked = np.flatnonzero(np.unpackbits(straight.words.view(np.uint8), bitorder="little"))
    assert sorted(flat(straight.consumed[6:STEPS])) == marked.tolist()


@pytest.mark.parametrize("before, after", [({"threads": 0}, {"threads": 4}), ({"threads": 1}, {"workers": 2})])
def test_five_updates_and_three_are_eight(folder: Path, straight: Ran, before, after) -> None:
    """Off by one, update 6 would train on batch 5 again: so it was in MaxText 0.2.5."""
    first = Ran(folder, "run.stop_at=5", **before)
    second = Ran(folder, **after)
    assert first.consumed[:5] + second.consumed[:3] == straight.consumed[:8]
    assert first.rows + second.rows == straight.rows
    assert second.record == straight.record and (second.words == straight.words).all()
    assert second.changed is None and second.done == STEPS


@pytest.mark.parametrize("processes", [2, 4])
def test_what_one_process_began_several_go_on_with(folder: Path, straight: Ran, processes: int) -> None:
    Ran(folder, "run.stop_at=5")
    config = compose([*TINY, *QUIET])
    mesh, data = make_mesh(config.hardware, devices.acquire(config.hardware, "")), opened(folder, config)
    checkpoints = Checkpoints(folder / "checkpoints", saving())
    read = []
    for process in range(processes):
        reading = Reading(config, data, mesh, {"prose": "1e"})
        assert reading.restore(checkpoints.record(5), checkpoints, 5, accept_changed=False) is None
        stream = data.batches.iterate(5, process, processes)
        read.append(list(islice(stream, STEPS - 5)))
        stream.close()
        assert reading.record(read[-1][-1])["position"] == straight.record["position"]
    checkpoints.close()
    together = [np.stack([batch.instances_B for batch in batches], axis=1) for batches in zip(*read, strict=True)]
    assert [batch.reshape(-1).tolist() for batch in together] == straight.consumed[5:STEPS]


def test_what_a_checkpoint_says_of_the_data(straight: Ran) -> None:
    seed = straight.config.data.seed
    order = straight.order.sha256(3)
    position = {"batches": 8, "epoch": 3, "row": 1, "seed": seed, "instances": 27, "order": order}
    assert straight.record["position"] == position
    ours = straight.record["olmo_core"]
    assert ours["dataset_fingerprint_version"] == "v2.0" and len(ours.pop("dataset_fingerprint")) == 64
    assert ours == {
        "dataset_fingerprint_version": "v2.0", "batches_processed": 2, "tokens_processed": 2 * B * T, "seed": seed,
        "epoch": 3, "dataset_type": "fsl", "sequence_length": T, "max_target_sequence_length": None,
    }  # fmt: skip


def refusal(folder: Path, *overrides: str, **changed: Any) -> str:
    with pytest.raises(RequestError) as refused:
        Ran(folder, *overrides, **changed)
    return str(refused.value)


def test_other_content_is_refused_unless_it_is_accepted(folder: Path) -> None:
    Ran(folder, "run.stop_at=5")
    corpus(folder, code=np.full(SIZES["code"], 7))
    message = refusal(folder)
    assert "code has other content" in message and "checkpoint.accept_changed_data=true" in message
    assert "web" not in message
    ran = Ran(folder, "checkpoint.accept_changed_data=true")
    assert ran.done == STEPS and ran.changed is not None
    assert ran.changed["ledger_begins_anew"] is False and ran.changed["begun"] == 2 and ran.changed["heldout"] == []
    assert "code has other content" in ran.changed["differences"][0]
    assert [row["data/seen_fraction"] * 27 for row in ran.rows] == pytest.approx([24, 8, 16]), "the ledger goes on"


def test_another_number_of_instances_begins_the_ledger_anew(folder: Path) -> None:
    Ran(folder, "run.stop_at=5")
    corpus(folder, web=np.zeros(31 * T))
    assert "27 instances then, 43 now" in refusal(folder)
    ran = Ran(folder, "checkpoint.accept_changed_data=true")
    assert ran.changed is not None and ran.changed["ledger_begins_anew"]
    assert ran.changed["begun"] is None, "5 batches of 8 are an epoch of 43, so that the next begins whole"
    assert ran.rows[0]["data/seen_fraction"] == 8 / 43


def test_other_held_out_text_is_refused_unless_it_is_accepted(folder: Path, straight: Ran) -> None:
    """Training goes on as if nothing had been exchanged."""
    Ran(folder, "run.stop_at=5")
    other = {"prose": "2d", "code": "3c"}
    message = refusal(folder, unseen=other)
    assert "text of code is held out now\n  the held-out text of prose is another" in message
    assert "no text of prose is held out any more" in refusal(folder, unseen={})
    ran = Ran(folder, "checkpoint.accept_changed_data=true", unseen=other)
    assert ran.changed is not None and len(ran.changed.pop("heldout")) == 2
    assert ran.changed == {"differences": [], "begun": None, "ledger_begins_anew": False}
    assert ran.rows == straight.rows[5:] and ran.record["heldout"] == other


@contextmanager
def rewritten(place: Path) -> Iterator[dict[str, Any]]:
    """What a checkpoint says of its data, changed and sealed again."""
    file = place / "data" / "metadata"
    record = json.loads(file.read_text())
    yield record
    file.write_text(json.dumps(record))
    write_manifest(place, int(place.name), Kind.permanent)


def test_a_checkpoint_that_says_less_of_its_data_is_of_another_version(folder: Path) -> None:
    Ran(folder, "run.stop_at=5")
    with rewritten(folder / "checkpoints" / "5") as record:
        del record["heldout"]
    assert "earlier version" in refusal(folder)


def test_another_seed_is_another_order(folder: Path) -> None:
    Ran(folder, "run.stop_at=5")
    assert "seed" in refusal(folder, "data.seed=99")
    assert "seed is" in refusal(folder, "data.seed=99", "checkpoint.accept_changed_data=true"), "of no use there"


@pytest.mark.parametrize("key, value", [("batches", 4), ("batches", 6), ("row", 0), ("epoch", 1), ("order", "0a")])
def test_a_position_beside_its_state_is_refused(folder: Path, key: str, value: int | str) -> None:
    Ran(folder, "run.stop_at=5")
    with rewritten(folder / "checkpoints" / "5") as record:
        record["position"][key] = value
    message = refusal(folder)
    assert "not that of update 5" in message and f"{key} is {value}, not" in message


def test_double_sharding_is_told(folder: Path) -> None:
    ran = Ran(folder, "run.stop_at=6", sampler=ShardedTwice)
    kinds = [fields for kind, fields in ran.events if kind == "data_repeated"]
    (first, *_) = kinds
    *before, there = ran.consumed[: first["step"]]
    assert set(first["examples"]) <= set(flat(before)) & set(there) and first["repeated"] >= 1
    assert len(kinds) <= 2, "once an epoch"
    assert f"update {first['step']} read {first['repeated']} instances" in ran.warnings[0]
    assert ran.rows[first["step"] - 1]["data/repeated_fraction"] == first["repeated"] / (8 * first["step"])
    assert ran.done == 6, "it goes on"
