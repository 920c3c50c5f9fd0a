"""How run directories are written: which file an error names, and how orbax is made to write."""

import errno
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest

from olmo_hydra.cli.main import main
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


def test_a_full_disk_leaves_nothing(tmp_path) -> None:
    with pytest.raises(RequestError, match="bytes are needed"), whole_folder(tmp_path / "run", 1 << 62):
        pass
    assert not any(tmp_path.iterdir())


def test_an_empty_folder_of_a_killed_process_is_taken_over(tmp_path) -> None:
    (tmp_path / "run.partial").mkdir()
    with whole_folder(tmp_path / "run", 0) as partial:
        (partial / "file").touch()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "run"]


def test_targets_that_cannot_be_are_refused_at_once(tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    (tmp_path / "dangling").symlink_to("nowhere")
    before = sorted(tmp_path.iterdir())
    for name, said in (
        ("link", "is a link"),
        ("dangling", "is a link"),
        ("x" * 300, "cannot be written: File name too long"),
        ("/", "is not empty"),
        ("raw\udcff", "is no UTF-8"),
    ):
        with pytest.raises(RequestError, match=said), whole_folder(tmp_path / name, 0):
            pytest.fail("began to write")
    assert sorted(tmp_path.iterdir()) == before


def test_sources_that_no_record_can_hold_are_refused(in_memory, tmp_path, capsys) -> None:
    with pytest.raises(RequestError, match="is no UTF-8"):
        write_run(in_memory(), tmp_path / "run", Companions({}), "hf:raw\udcff")
    for command in (["from-hf", "raw\udcff", "run"], ["to-hf", "raw\udcff", "hf"], ["verify", "a", "raw\udcff"]):
        assert main(["convert", *command]) == 2
        assert "raw\\udcff': the name is no UTF-8" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
