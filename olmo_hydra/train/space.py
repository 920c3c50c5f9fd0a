"""Room on the disk for a checkpoint. No JAX."""

import shutil
from pathlib import Path

from olmo_hydra.config.errors import RequestError, RunFailed
from olmo_hydra.tracking.files import no_space

BESIDE = 0.1  # of the arrays' bytes, for indices and hashes; arrays are not compressed


def refuse_without_space(folder: Path, step: int, arrays: int) -> None:
    """Raises RequestError if `folder` has no room for a checkpoint of `arrays` bytes.

    A quota cannot be asked for: the save itself meets that, see `failed_save`.
    """
    needed, free = arrays + int(arrays * BESIDE), shutil.disk_usage(folder).free
    if free < needed:
        raise RequestError(
            f"checkpoint {step} needs {needed:,} bytes and {free:,} are free; the checkpoints before it are whole",
            where=str(folder),
            instead="the same command, once there is space: it continues from the newest checkpoint",
        )


def failed_save(folder: Path, step: int, error: Exception) -> Exception:
    """What to raise for a save that failed under way: a RequestError if there was no space, else a RunFailed."""
    found = no_space(str(error))
    if found is None:
        why = f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
        return RunFailed(f"checkpoint {step} was not saved, those before it are whole: {why} (in {folder})")
    return RequestError(
        f"checkpoint {step} was not saved, those before it are whole: {found}",
        where=str(folder),
        instead="the same command, once there is space: it continues from the newest checkpoint",
    )
