"""How run directories are written: which file an error names, and how orbax is made to write."""

import errno
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest

from olmo_hydra.config.errors import RequestError
from olmo_hydra.interop import write_run as write_run_module
from olmo_hydra.interop.companions import Companions
from olmo_hydra.interop.run_weights import RunWeights
from olmo_hydra.interop.whole import whole_folder
from olmo_hydra.interop.write_run import write_run
from olmo_hydra.tracking.run_dir import RunDir


def test_what_cannot_be_read_or_written_is_named(in_memory, tmp_path) -> None:
    gone = tmp_path / "chat_template.jinja"
    with pytest.raises(RequestError, match="cannot be read: No such file") as refused:
        write_run(in_memory(), tmp_path / "run", Companions({}, (gone,)), "here")
    assert refused.value.where == str(gone)
    full = OSError(errno.ENOSPC, "No space left on device", str(gone), None, str(tmp_path / "run.partial" / gone.name))
    for raised in (full, OSError(errno.EIO, "Input/output error"), PermissionError(errno.EACCES, "no", "run.partial")):
        with (
            pytest.raises(RequestError, match="the folder cannot be written") as refused,
            chdir(tmp_path),
            whole_folder(Path("run"), 0),
        ):
            raise raised
        assert refused.value.where == str(tmp_path / "run")
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="the folder cannot be written: "):
        write_run(in_memory(), tmp_path / "file" / "run", Companions({}), "here")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_orbax_writes_arrays_the_way_that_needs_little_memory(in_memory, tmp_path, monkeypatch) -> None:
    """The method that writes is private to orbax: one that it does not call any more would go unnoticed."""
    written = []
    original = write_run_module._OneByOne._open_and_write

    async def counted(self, value, *rest) -> None:
        written.append(value.shape)
        await original(self, value, *rest)

    monkeypatch.setattr(write_run_module._OneByOne, "_open_and_write", counted)
    weights = in_memory()
    write_run(weights, tmp_path / "run", Companions({}), "here")
    assert sorted(written) == sorted(tensor.shape for tensor in weights.tensors.values())
    run = RunWeights(RunDir(tmp_path / "run"))
    assert all(np.array_equal(run.read(name), tensor) for name, tensor in weights.tensors.items())
