"""Runs that start from other weights: every array is where it belongs, or the request is refused."""

import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml

from olmo_hydra.config.compose import compose
from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.identity import plain
from olmo_hydra.hardware import devices
from olmo_hydra.hardware.sharding import make_mesh
from olmo_hydra.interop.initial import Initial
from olmo_hydra.interop.places import fingerprint, refuse_another_origin
from olmo_hydra.model.params import named
from olmo_hydra.tracking.record import Record
from olmo_hydra.tracking.run_dir import RunDir
from olmo_hydra.train.checkpoint import Checkpoints
from olmo_hydra.train.state import Program, State, by_path, make_program
from tests.train.tiny import NOTHING_READ

TINY = (
    *("model.d_model=32", "model.head_dim=8", "model.n_kv_heads=2", "model.d_ff=48", "model.n_layers=4"),
    *("model.window=8", "data.seq_len=32", "train.global_batch=8", "train.steps=40"),
)


def program(*overrides: str) -> Program:
    config = compose([*TINY, *overrides])
    return make_program(config, make_mesh(config.hardware, devices.acquire(config.hardware, "")))


def random_state(program: Program) -> State:
    rng = np.random.default_rng()

    def draw(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        return (100 * rng.normal(size=leaf.shape)).astype(leaf.dtype)

    return jax.tree.map(draw, program.abstract)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> tuple[Path, State]:
    """A finished run `first-01234567` of plain AdamW, with random arrays at steps 3 and 7; those of step 7."""
    root = tmp_path_factory.mktemp("runs")
    run_dir = RunDir(root / "first-01234567")
    made = program("optim=adamw")
    run_dir.path.mkdir()
    run_dir.config.write_text(yaml.safe_dump(plain(made.config)))
    checkpoints = Checkpoints(run_dir.checkpoints, made.config.checkpoint)
    for step in (3, 7):
        state = random_state(made)
        checkpoints.save(step, jax.device_put(state, made.shardings), {}, *NOTHING_READ)
        checkpoints.wait(lambda *args, **fields: None)
    checkpoints.close()
    record = Record(run_dir)
    record.event("started", step=0)
    record.event("finished", step=made.config.train.steps)
    return root, state


def initial(root: Path, *overrides: str) -> tuple[Program, Initial]:
    made = program(*overrides)
    return made, Initial(made.config.init, made, root)


def assert_equal(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(np.asarray(found[name]), np.asarray(value), err_msg=name)


FROM = "init.from=run:first"
MOMENTS = "init.load=weights_and_moments"


@pytest.mark.parametrize("hardware", ["cpu", "cpu_sim"])
def test_weights_and_moments_are_taken_over_bit_by_bit(source, hardware) -> None:
    """From AdamW into AdamW with the skip rule, whose window is new; on one device and sharded over eight."""
    root, saved = source
    made, start = initial(root, FROM, MOMENTS, "optim=skip_step_adamw", f"hardware={hardware}")
    state = start.state()
    assert_equal(named(state.params), named(saved.params))
    theirs = {p.split("/1/")[1]: leaf for p, leaf in by_path(saved).items() if p.startswith("opt_state/inner/1/")}
    adam = {p.split("/1/")[1]: leaf for p, leaf in by_path(state).items() if p.startswith("opt_state/inner/1/")}
    assert_equal(adam, theirs)
    assert int(adam["steps"]) == int(theirs["steps"]) != 0
    around = {p: leaf for p, leaf in by_path(state).items() if p.startswith("opt_state/") and "/inner/" not in p}
    assert around and not any(np.asarray(leaf).any() for leaf in around.values()), "the window is the run's own"
    assert jax.tree.map(lambda leaf: leaf.sharding, state) == made.shardings
    assert start.description["from"].endswith("first-01234567@7") and start.description["differs"] == []


def test_weights_alone_leave_the_optimizer_new(source) -> None:
    root, saved = source
    _, start = initial(root, f"{FROM}@7", "init.load=weights")
    state = start.state()
    assert_equal(named(state.params), named(saved.params))
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(state.opt_state))


def test_an_earlier_step(source) -> None:
    root, saved = source
    _, start = initial(root, f"init.from=run:{root}/first-01234567@3")
    assert not np.array_equal(
        start.state().params["embedding"]["weight"][...], saved.params["embedding"]["weight"][...]
    )


def test_moments_keep_the_dtype_that_the_new_run_asks_for(source) -> None:
    root, saved = source
    _, start = initial(root, FROM, MOMENTS, "optim.mu_dtype=bfloat16")
    found = by_path(start.state())["opt_state/inner/1/mu/head/weight/value"]
    assert found.dtype == jax.numpy.bfloat16
    expected = by_path(saved)["opt_state/inner/1/mu/head/weight/value"].astype(jax.numpy.bfloat16)
    np.testing.assert_array_equal(np.asarray(found, np.float32), expected.astype(np.float32))
    assert start.description["differs"] == ["mu are float32 and bfloat16"], "no dtype changes silently"


@pytest.mark.parametrize("pattern", ["[full]", "[sliding,full]"])
def test_layers_are_dealt_out_again_under_another_window_pattern(source, pattern) -> None:
    root, saved = source
    made, start = initial(root, FROM, MOMENTS, f"model.window_pattern={pattern}")
    state, period = start.state(), len(made.config.model.window_pattern)
    for layer in range(4):
        for found, expected in (
            (named(state.params), named(saved.params)),
            (named(state.opt_state.inner[1].mu), named(saved.opt_state.inner[1].mu)),
        ):
            ours = found[f"blocks.{layer % period}.mlp.up.weight"][layer // period]
            np.testing.assert_array_equal(ours, expected[f"blocks.{layer}.mlp.up.weight"][0])
    assert start.description["differs"][0] == (
        "layer 0 is sliding and full" if pattern == "[full]" else "layer 1 is sliding and full"
    )


def test_tables_with_another_padding_keep_the_rows_of_every_id(source) -> None:
    root, saved = source
    for multiple, rows in ((1, 257), (128, 384)):
        _, start = initial(root, FROM, MOMENTS, f"model.vocab_multiple={multiple}")
        state = start.state()
        for found, expected in (
            (named(state.params), named(saved.params)),
            (named(state.opt_state.inner[1].nu), named(saved.opt_state.inner[1].nu)),
        ):
            table, head = np.asarray(found["embedding.weight"]), np.asarray(found["head.weight"])
            assert table.shape == (rows, 32) and head.shape == (32, rows)
            np.testing.assert_array_equal(table[:257], expected["embedding.weight"][:257])
            np.testing.assert_array_equal(head[:, :257], expected["head.weight"][:, :257])
            assert not table[257:].any() and not head[:, 257:].any()


def test_what_differs_without_a_change_of_shape_is_recorded(source) -> None:
    root, _ = source
    _, start = initial(root, FROM, "model.yarn_factor=8", "model.max_seq_len=2048", "model.window=16")
    assert start.description["differs"] == ["yarn_factor is null and 8.0", "window is 8 and 16"]


@pytest.mark.parametrize(
    "overrides, expected",
    [
        (["model.d_ff=64"], ["d_ff is 48 and 64"]),
        (["model.n_layers=8"], ["n_layers is 4 and 8"]),
        (["model.vocab_size=300"], ["vocab_size is 257 and 300"]),
        (["model.block_norm=pre"], ["block_norm is reordered and pre"]),
        (["model.norm_eps=1e-5"], ["norm_eps is 1e-06 and 1e-05"]),
        (["model.qk_norm=none"], ["qk_norm is projection and none"]),
        (["model.head_dim=16", "model.n_kv_heads=1"], ["head_dim is 8 and 16; n_heads is 4 and 2"]),
        (["init.from=run:second"], ["init.from=run:second", "holds no weights", "olmo-hydra runs"]),
        (["init.from=hf:second"], ["init.from=hf:second", "holds no weights", "init.from=hf:FOLDER"]),
        (["init.from=run:first@5"], ["no checkpoint 5", "3, 7"]),
        (["init.from=hf:first"], ["of the other kind", "init.from=run:first"]),
    ],
)
def test_what_does_not_fit_is_named(source, overrides, expected) -> None:
    root, _ = source
    with pytest.raises(RequestError) as refusal:
        initial(root, FROM, *overrides)
    message = str(refusal.value)
    for part in ["init.from=", *expected]:
        assert part in message


def test_moments_of_a_checkpoint_that_has_none(source, tmp_path) -> None:
    root, saved = source
    run_dir = RunDir(tmp_path / "bare-01234567")
    run_dir.path.mkdir()
    run_dir.config.write_text((root / "first-01234567/config.yaml").read_text())
    made = program("optim=adamw")
    checkpoints = Checkpoints(run_dir.checkpoints, made.config.checkpoint)
    checkpoints.save(0, State(saved.params, ()), {}, *NOTHING_READ)
    checkpoints.close()
    with pytest.raises(RequestError, match="no moments of this optimizer: mu, nu") as refusal:
        initial(tmp_path, "init.from=run:bare", MOMENTS)
    assert refusal.value.instead == "init.load=weights"
    initial(tmp_path, "init.from=run:bare")


def test_a_run_that_goes_on_has_to_be_named_with_its_step(source, tmp_path) -> None:
    root, _ = source
    events = root / "first-01234567/events.jsonl"
    before = events.read_text()
    try:
        events.write_text(before.splitlines(keepends=True)[0])
        with pytest.raises(RequestError, match="not finished") as refusal:
            initial(root, FROM)
        assert refusal.value.instead == "init.from=run:first@7"
        for settled in ("first@7", f"{root}/first-01234567@7", f"{root}/first-01234567/checkpoints/7"):
            initial(root, f"init.from=run:{settled}")
        (tmp_path / "me@host").symlink_to(root)
        with pytest.raises(RequestError, match="not finished"):
            initial(root, f"init.from=run:{tmp_path}/me@host/first-01234567")
    finally:
        events.write_text(before)


def begun(root: Path, folder: Path) -> RunDir:
    """A run that began from the run `first` of a root."""
    run_dir = RunDir(folder / "second-76543210")
    run_dir.path.mkdir()
    _, start = initial(root, FROM)
    Record(run_dir).event("started", step=0, init=start.description)
    return run_dir


def test_a_run_goes_on_only_from_what_it_began_from(source, tmp_path, monkeypatch) -> None:
    root, _ = source
    run_dir = begun(root, tmp_path)
    refuse_another_origin("run:first", root, run_dir)
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "first-01234567").symlink_to(root / "first-01234567")
    refuse_another_origin(f"run:{moved}/first-01234567@7", root, run_dir)  # the same, elsewhere
    refuse_another_origin("run:first", tmp_path / "gone", run_dir)  # the run has what it took
    other = tmp_path / "other"
    shutil.copytree(root / "first-01234567", other / "first-89abcdef")
    for name, where in (("first", other), ("first@3", root)):
        with pytest.raises(RequestError, match="this run began from first-01234567@7"):
            refuse_another_origin(f"run:{name}", where, run_dir)
    # A folder of that name beside the user is not the run of that name.
    shutil.copytree(root / "first-01234567", tmp_path / "first")
    monkeypatch.chdir(tmp_path)
    refuse_another_origin("run:first", root, run_dir)


def test_the_fingerprint_of_a_folder_is_its_content(tmp_path) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    weights = np.random.default_rng().normal(size=10**5)
    weights.tofile(folder / "model.safetensors")
    first = fingerprint(f"hf:{folder}", tmp_path)
    assert fingerprint(f"hf:{folder}/../hf", tmp_path) == first
    (weights * 1.5).tofile(folder / "model.safetensors")
    assert fingerprint(f"hf:{folder}", tmp_path) != first
