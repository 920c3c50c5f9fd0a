"""How a command ends: one message and one status for every kind of end."""

import errno
import os
import signal
import subprocess
import sys

import pytest
from absl import logging as absl_logging

from olmo_hydra.cli.guard import Refused, guarded, past_hydra
from olmo_hydra.cli.main import main
from olmo_hydra.config.compose import CONF
from olmo_hydra.config.errors import RequestError, RunFailed
from olmo_hydra.train.stop import Stopped


@pytest.fixture(autouse=True)
def hydra_full_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")


def ending(error: BaseException, *, in_hydra: bool = False) -> int:
    def command() -> None:
        if in_hydra:
            with past_hydra(is_cell=False):
                raise error
        raise error

    return guarded(command, [])


@pytest.mark.parametrize("in_hydra", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (RequestError("must be even", key="model.n", value=3), 2, "error: model.n=3: must be even\n"),
        (RunFailed("the loss is nan"), 1, "failed: the loss is nan\n"),
        (
            Stopped(signal.SIGUSR1, 7),
            75,
            "preempted by SIGUSR1 after update 7, which is saved: the same command continues\n",
        ),
        (
            Stopped(signal.SIGINT, None),
            130,
            "interrupted by SIGINT at once, with nothing to save: the same command continues\n",
        ),
        (KeyboardInterrupt(), 130, "stopped at once; the same command goes on from what is saved\n"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_status_and_message(error: BaseException, status: int, message: str, in_hydra: bool, capsys) -> None:
    assert ending(error, in_hydra=in_hydra) == status
    assert capsys.readouterr() == ("", message)


def test_done() -> None:
    assert guarded(lambda: None, []) == 0


# As tensorstore words it, shortened.
DISK_FULL = (
    'RESOURCE_EXHAUSTED: Error writing "params/head" in OCDBT database at local file "/runs/a/d/": Failed writing: '
    "\"/runs/a/d/bb72\": Failed to write 59 bytes to file 14: No space left on device [os_error_code='28']"
)


@pytest.mark.parametrize(
    ("error", "where"),
    [
        (ValueError(DISK_FULL), "/runs/a/d/bb72"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/runs/a/log"), "/runs/a/log"),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), None),
        (ValueError("UNKNOWN: File too large [os_error_code='27']"), None),
    ],
    ids=["tensorstore", "ENOSPC", "EDQUOT", "EFBIG"],
)
def test_a_full_disk_is_no_lack_of_memory(error: Exception, where: str | None, capsys) -> None:
    assert ending(error) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: no space left to write: ") and "memory" not in err
    assert (f"  where:   {where}\n" in err) is (where is not None)


def test_out_of_memory_is_no_full_disk(capsys) -> None:
    assert ending(ValueError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.")) == 1
    assert capsys.readouterr().err.startswith("failed: out of memory: RESOURCE_EXHAUSTED")


def test_the_threads_that_write_print_nothing_of_a_full_disk(capsys, caplog: pytest.LogCaptureFixture) -> None:
    """Orbax's log what stopped them, with a traceback, before the command hears of it."""

    def command() -> None:
        for text in (DISK_FULL, "another mistake"):
            absl_logging.error("thread raised an exception: %s", text)
        try:
            raise ValueError(DISK_FULL)
        except ValueError:
            absl_logging.exception("failed to run 6 operations")
        raise ValueError(DISK_FULL)

    assert guarded(command, []) == 2
    assert [record.getMessage() for record in caplog.records] == ["thread raised an exception: another mistake"]
    assert capsys.readouterr().err.count("error: no space left") == 1


def test_hydra_does_not_report_a_full_disk_in_its_own_words() -> None:
    with pytest.raises(Refused), past_hydra(is_cell=False):
        raise ValueError(DISK_FULL)
    with pytest.raises(ValueError, match="a mistake"), past_hydra(is_cell=False):
        raise ValueError("a mistake of ours")


def test_of_a_sweep_hydra_says_which_run_failed() -> None:
    with pytest.raises(RunFailed), past_hydra(is_cell=True):
        raise RunFailed("the loss is nan")
    with pytest.raises(Refused), past_hydra(is_cell=True):
        raise RequestError("must be even")


@pytest.mark.parametrize("error", [ValueError("a mistake of ours"), AssertionError()])
def test_a_mistake_of_ours_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        ending(error)
    assert raised.value is error


def test_the_user_may_ask_for_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(RequestError, match=r"model\.head_dim=96"):
        main(["preflight", "model.head_dim=96"])


def test_the_traceback_through_the_shell() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "HYDRA_FULL_ERROR"}
    command = [sys.executable, "-m", "olmo_hydra", "preflight", "model.head_dim=96"]
    plain, full = (
        subprocess.run(command, capture_output=True, text=True, cwd=CONF.parent, env=environment | more)
        for more in ({}, {"HYDRA_FULL_ERROR": "1"})
    )
    assert plain.returncode == 2 and "Traceback" not in plain.stderr
    assert full.returncode != 0 and "Traceback" in full.stderr and "model.head_dim=96" in full.stderr


def test_a_reader_that_has_seen_enough() -> None:
    """As `olmo-hydra preflight | head -1`, with a reader that is surely gone when the command writes."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "olmo_hydra", "preflight"]
    with os.fdopen(writing, "wb") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, cwd=CONF.parent)
    assert (done.returncode, done.stderr) == (0, b"")


def test_head_through_a_shell() -> None:
    command = f"set -o pipefail; '{sys.executable}' -m olmo_hydra preflight | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=CONF.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("run ") and len(done.stdout.splitlines()) == 1
