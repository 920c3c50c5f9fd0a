"""`train.profile`: which updates a trace holds, and that it changes no number."""

import jax
import pytest

from olmo_hydra.config.compose import compose
from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.identity import identity
from olmo_hydra.tracking.trace import programs, read
from tests.train.test_loop import SMALL, STEPS, History, Made, trained
from tests.train.tiny import TINY, program


@pytest.fixture(scope="module")
def made() -> Made:
    return Made.of(program(*SMALL)[1])


def held(folder, history: History) -> tuple[int, int, int]:
    """First and last update of the one trace, and how many executions of an update are in it, on one device."""
    (told,) = [fields for kind, fields in history.events if kind == "profiled"]
    ran = programs(read(folder / told["trace"]))
    assert {row["program"] for row in told["operations"]} >= {"jit_step"}
    assert sum(row["seconds"] for row in told["operations"]) > 0
    return told["first"], told["last"], sum(span.name == "jit_step" for span in ran)


@pytest.mark.traces
def test_the_trace_holds_the_updates_and_nothing_changes(made, tmp_path) -> None:
    done, plain = trained(made, tmp_path / "plain")
    done, history = trained(made, tmp_path / "traced", "train.profile=[3,6]")
    assert done == STEPS and held(tmp_path / "traced", history) == (3, 6, 4)
    assert history.rows == plain.rows
    for left, right in zip(jax.tree.leaves(history.state), jax.tree.leaves(plain.state), strict=True):
        assert left.tobytes() == right.tobytes()


@pytest.mark.traces
def test_a_run_that_resumes_inside_traces_the_rest(made, tmp_path) -> None:
    trained(made, tmp_path, "run.stop_at=4")
    _, history = trained(made, tmp_path, "train.profile=[3,6]", done=4)
    assert held(tmp_path, history) == (5, 6, 2) and not history.notes


def test_a_run_that_is_past_it_says_so_once(made, tmp_path) -> None:
    trained(made, tmp_path, "run.stop_at=4")
    _, history = trained(made, tmp_path, "train.profile=[3,4]", done=4)
    assert (
        history.notes == ["train.profile=[3, 4] is behind update 4, where the run stands: nothing is traced"]
        and not (tmp_path / "profile").exists()
    )


def test_a_run_that_pauses_before_it_says_so(made, tmp_path) -> None:
    _, history = trained(made, tmp_path, "train.profile=[5,9]", "run.stop_at=4")
    assert (
        history.notes == ["train.profile=[5, 9] is after update 4, where run.stop_at pauses: nothing is traced yet"]
        and not (tmp_path / "profile").exists()
    )


@pytest.mark.parametrize("fails", ["start_trace", "stop_trace"])
def test_a_trace_that_cannot_be_written_ends_no_run(made, tmp_path, monkeypatch, fails: str) -> None:
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(jax.profiler, "start_trace", lambda *args, **kwargs: None)
    monkeypatch.setattr(jax.profiler, fails, full)
    _, plain = trained(made, tmp_path / "plain")
    done, history = trained(made, tmp_path / "traced", "train.profile=[3,6]")
    assert done == STEPS and history.rows == plain.rows
    (failed,) = [fields for kind, fields in history.events if kind == "profile_failed"]
    assert failed == {"first": 3, "last": 6, "error": "OSError: [Errno 28] No space left on device"}
    assert history.notes == ["no trace of updates 3 to 6: OSError: [Errno 28] No space left on device"]


@pytest.mark.traces
def test_a_run_that_pauses_inside_keeps_what_there_is(made, tmp_path) -> None:
    _, history = trained(made, tmp_path, "train.profile=[5,9]", "run.stop_at=6")
    assert held(tmp_path, history) == (5, 6, 2)


@pytest.mark.parametrize(
    ("updates", "instead"),
    [
        *((wrong, "[2,5]") for wrong in ("[3,2]", "[3]", "[1,2,3]", "[]")),
        *(("[0,2]", "[1,2]"), ("[30,41]", "[30,40]"), ("[50,60]", "[40,40]")),
    ],
)
def test_what_is_refused(updates: str, instead: str) -> None:
    with pytest.raises(RequestError) as refused:
        compose([*TINY, f"train.profile={updates}"])
    assert (refused.value.key, refused.value.instead) == ("train.profile", f"train.profile={instead}")
    compose([*TINY, refused.value.instead])


def test_a_trace_holds_no_more_than_fits_in_memory() -> None:
    long = [*TINY, "train.steps=400"]
    assert compose([*long, "train.profile=[10,109]"]).train.profile == [10, 109]
    with pytest.raises(RequestError) as refused:
        compose([*long, "train.profile=[10,110]"])
    assert refused.value.instead == "train.profile=[10,109]"


def test_it_is_no_part_of_the_identity() -> None:
    plain, traced = compose([*TINY]), compose([*TINY, "train.profile=[2,3]"])
    assert identity(plain) == identity(traced) != identity(compose([*TINY, "train.seed=7"]))
