"""What every command shares: wrong requests become one message and exit status 2."""

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import yaml
from absl import logging as absl_logging
from omegaconf.errors import OmegaConfBaseException

from olmo_hydra.config.errors import RequestError, RunFailed
from olmo_hydra.config.explain import explain
from olmo_hydra.hardware.environment import is_first
from olmo_hydra.tracking.files import no_space
from olmo_hydra.train.stop import INTERRUPTED, Stopped

DONE, FAILED, WRONG_REQUEST = 0, 1, 2
OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|Out of memory|Unable to allocate")
FILE_WRITTEN = re.compile(r"""writing:? ["']([^"']*/[^"']*)["']""", re.IGNORECASE)


class Refused(BaseException):
    """Carries an error through Hydra, which would report any `Exception` of the task in its own words first."""

    def __init__(self, error: Exception):
        super().__init__(str(error))
        self.error = error


@contextmanager
def past_hydra(is_cell: bool) -> Iterator[None]:
    """Wraps a Hydra task: wrong requests, a full disk, and that a run failed, leave it as `Refused`.

    Args:
      is_cell: Whether the task is one of a sweep: that goes on after a run that failed, and Hydra says which.
    """
    try:
        yield
    except Exception as error:
        ours = RequestError if is_cell else (RequestError, RunFailed)
        if isinstance(error, (ours, OmegaConfBaseException, yaml.MarkedYAMLError)) or _of_full_disk(error):
            raise Refused(error) from error
        raise


def guarded(command: Callable[[], object], arguments: Sequence[str] | None = None) -> int:
    """Runs a command and gives its exit status: 0 done, 1 failed, 2 wrong request, 75 preempted, 130 interrupted.

    Hydra would print its own report of an error and exit with 1; `HYDRA_FULL_ERROR` makes it pass the error on to us.
    Set by the user, it shows the traceback of a wrong request as well.
    """
    asked = os.environ.get("HYDRA_FULL_ERROR")
    wants_traceback = asked == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"
    absl_logging.get_absl_logger().addFilter(_not_of_a_full_disk)
    hook, sys.unraisablehook = sys.unraisablehook, _not_of_a_save_that_failed
    try:
        command()
        sys.stdout.flush()
    except Stopped as stopped:
        if is_first():
            print(stopped, file=sys.stderr)
        return stopped.status
    except KeyboardInterrupt:
        print("stopped at once; the same command goes on from what is saved", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has seen enough (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except (Exception, Refused) as raised:
        error = raised.error if isinstance(raised, Refused) else raised
        if isinstance(error, RunFailed):
            print(f"failed: {error}", file=sys.stderr)
            return FAILED
        request = explain(error, sys.argv[1:] if arguments is None else arguments)
        if wants_traceback:
            raise error from None
        if request is None:
            request = _of_full_disk(error)
        if request is None and OUT_OF_MEMORY.search(str(error)):
            print(f"failed: out of memory: {str(error).splitlines()[0][:200]}", file=sys.stderr)
            return FAILED
        if request is None:
            raise error from None
        print(request, file=sys.stderr)
        return WRONG_REQUEST
    finally:
        os.environ["HYDRA_FULL_ERROR"] = asked or "0"
        sys.unraisablehook = hook
    return DONE


def _of_full_disk(error: BaseException) -> RequestError | None:
    """The request error of a disk or a quota that is full, or None if `error` is about something else."""
    found = no_space(str(error))
    if found is None:
        return None
    file = FILE_WRITTEN.findall(str(error))
    named = getattr(error, "filename", None) or (file[-1] if file else None)
    return RequestError(
        f"no space left to write: {found}",
        where=None if named is None else str(named),
        instead="the same command, once there is space",
    )


def _not_of_a_save_that_failed(raised: "sys.UnraisableHookArgs") -> None:
    """Drops what threads of tensorstore raise whose writes end after orbax has given up the save: a traceback each."""
    if str(raised.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(raised)


def _not_of_a_full_disk(record: logging.LogRecord) -> bool:
    """Keeps out of the log what orbax's threads say, with a traceback, of a full disk: the command reports it."""
    raised = record.exc_info[1] if record.exc_info else None
    return no_space(f"{record.getMessage()} {raised}") is None
