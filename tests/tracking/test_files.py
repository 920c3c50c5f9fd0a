"""The doors to the files of a run: what goes through, and that a disk which takes a part of it keeps none."""

import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from olmo_hydra.config.errors import RequestError
from olmo_hydra.tracking.files import make_folder, open_to_append, read, refuse_foreign_link, replace
from olmo_hydra.tracking.record import Record
from olmo_hydra.tracking.run_dir import RunDir


@pytest.fixture
def limited():
    """Sets the size that a file may have, as a quota would; Python is told by an error, not by a signal."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_of_a_row_that_fits_in_part_nothing_stays(tmp_path, limited):
    run_dir = RunDir(tmp_path)
    record = Record(run_dir)
    record.metrics({"step": 1, "loss": 2.0})
    before = run_dir.metrics.read_bytes()
    limited(len(before) + 7)
    with pytest.raises(RequestError, match="no space left to write") as refused:
        record.metrics({"step": 2, "loss": 2.0})
    assert refused.value.where == str(run_dir.metrics) and run_dir.metrics.read_bytes() == before
    limited(resource.RLIM_INFINITY)
    record.metrics({"step": 3, "loss": 2.0})
    assert [row["step"] for row in run_dir.rows("metrics")] == [1, 3]


def test_a_file_that_cannot_be_replaced_stays_and_leaves_nothing_beside(tmp_path, limited):
    path = tmp_path / "provenance.json"
    replace(path, b"before")
    limited(10)
    with pytest.raises(RequestError, match="no space left to write"):
        replace(path, b"x" * 100)
    assert path.read_bytes() == b"before" and os.listdir(tmp_path) == ["provenance.json"]


def test_rows_of_a_file_that_was_removed_are_not_written_into_nothing(tmp_path):
    run_dir = RunDir(tmp_path)
    record = Record(run_dir)
    record.event("started")
    run_dir.events.unlink()
    for write in (lambda: record.event("finished"), record.sync):
        with pytest.raises(RequestError, match="was removed while the run wrote it"):
            write()
    assert not run_dir.events.exists()


def test_a_second_name_keeps_its_content(tmp_path):
    (tmp_path / "backup").write_bytes(b"1\n")
    os.link(tmp_path / "backup", tmp_path / "log")
    with open_to_append(tmp_path / "log") as file:
        file.write(b"2\n")
    assert ((tmp_path / "backup").read_bytes(), (tmp_path / "log").read_bytes()) == (b"1\n", b"1\n2\n")
    os.link(tmp_path / "backup", tmp_path / ".lock")
    with pytest.raises(RequestError, match="second name"), RunDir(tmp_path).lock():
        pass
    assert (tmp_path / "backup").read_bytes() == b"1\n"


def test_a_file_has_a_limit_and_may_be_absent(tmp_path):
    (tmp_path / "id").write_bytes(b"12345")
    assert read(tmp_path / "id", 5) == b"12345" and read(tmp_path / "absent", 5) is None
    with pytest.raises(RequestError, match="more than 4 bytes"):
        read(tmp_path / "id", 4)


def test_a_device_is_not_opened(tmp_path):
    with pytest.raises(RequestError, match="a device or a socket"):
        read(type(tmp_path)("/dev/zero"), 5)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a link to somebody else")
def test_a_folder_behind_somebody_elses_link_is_not_written(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "checkpoints").symlink_to(tmp_path / "disk")
    refuse_foreign_link(tmp_path / "checkpoints")
    os.chown(tmp_path / "checkpoints", 12345, -1, follow_symlinks=False)
    with pytest.raises(RequestError, match="is a link of user 12345"), RunDir(tmp_path).lock():
        pass


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("nowhere"), os.mkfifo])
def test_what_is_in_the_place_of_a_folder_is_named(tmp_path, make):
    (tmp_path / "checkpoints").mkdir()
    make(tmp_path / "logs")
    make_folder(tmp_path / "checkpoints")
    with pytest.raises(RequestError, match="is not a folder") as refused:
        make_folder(tmp_path / "logs")
    assert refused.value.where == str(tmp_path / "logs") and "run.root" not in str(refused.value)


def test_a_folder_that_cannot_be_made_is_a_matter_of_the_root(tmp_path):
    (tmp_path / "runs").touch()
    for root in (tmp_path / "runs", Path("/dev/null")):
        with pytest.raises(RequestError, match="cannot be written: Not a directory") as refused:
            make_folder(root / "nano-0123abcd")
        assert refused.value.key == "run.root"


def test_what_killed_processes_left_beside_goes_and_what_is_being_written_stays(tmp_path):
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    here, dead, alive = socket.gethostname(), int(gone.stdout), os.getppid()
    abandoned = {f".a.{here}.{dead}", f".a.{here}.{10**12}", ".a.login.node-1.1"}
    others = {f".a.{here}.{alive}", f".a.elsewhere.{dead}", f".a.elsewhere.{os.getpid()}", ".a.swp", ".a.b.txt"}
    for name in abandoned | others:
        (tmp_path / name).write_text("half")
    for name in (".a.login.node-1.1", ".a.swp"):
        os.utime(tmp_path / name, (0, time.time() - 25 * 3600))
    replace(tmp_path / "a", b"whole")
    assert set(os.listdir(tmp_path)) == others | {"a"} and (tmp_path / "a").read_bytes() == b"whole"
