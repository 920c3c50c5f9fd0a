"""Replacing a file whole, after processes that were killed while they did."""

import os
import subprocess
import sys
from pathlib import Path

from olmo_hydra.tracking.files import replace


def test_what_killed_processes_left_beside_a_file_goes_with_its_next_writing(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = tmp_path / f".rows[1].jsonl.{ended.pid}"
    others = [
        tmp_path / f".rows[1].jsonl.{os.getppid()}",  # of a process that lives
        tmp_path / f".rows1.jsonl.{ended.pid}",  # of another file
        tmp_path / ".rows[1].jsonl.partial",  # not ours
    ]
    for path in (left, *others):
        path.write_text("half")
    replace(tmp_path / "rows[1].jsonl", b"whole")
    assert (tmp_path / "rows[1].jsonl").read_bytes() == b"whole"
    assert set(tmp_path.iterdir()) == {tmp_path / "rows[1].jsonl", *others}
