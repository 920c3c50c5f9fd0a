"""Where numbers come from, checked against git itself."""

import hashlib
import json
import os
import subprocess
import sys
from importlib import metadata

from olmo_hydra.config.compose import compose
from olmo_hydra.tracking import provenance
from olmo_hydra.tracking.run_dir import RunDir


def git(folder, *arguments):
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    return subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True).stdout


def checkout(folder):
    folder.mkdir()
    (folder / "__init__.py").write_text("x = 1\n")
    git(folder, "init", "-q")
    git(folder, "add", "__init__.py")
    git(folder, "commit", "-q", "-m", "first")
    return git(folder, "rev-parse", "HEAD").decode().strip()


def test_git_state_says_commit_and_what_differs(tmp_path):
    folder = tmp_path / "package"
    commit = checkout(folder)
    assert provenance.git_state(folder) == {
        "top": str(folder.resolve()), "commit": commit, "dirty": False, "diff_sha256": None,
        "diff": "", "diff_bytes": 0, "untracked": [],
    }  # fmt: skip
    (folder / "__init__.py").write_text("x = 2\n")
    (folder / "new.py").write_text("")
    state = provenance.git_state(folder)
    assert state["dirty"] and state["untracked"] == ["new.py"]
    assert "-x = 1\n+x = 2\n" in state["diff"]
    assert state["diff_sha256"] == hashlib.sha256(git(folder, "diff", "HEAD")).hexdigest()


def test_a_long_diff_is_cut_but_hashed_whole(tmp_path, monkeypatch):
    folder = tmp_path / "package"
    checkout(folder)
    (folder / "__init__.py").write_text("y = 'é'\n" * 50)
    monkeypatch.setattr(provenance, "MAX_DIFF_BYTES", 100)
    whole = git(folder, "diff", "HEAD")
    state = provenance.git_state(folder)
    assert (len(state["diff"].encode(errors="replace")), state["diff_bytes"]) == (100, len(whole))
    assert state["diff_sha256"] == hashlib.sha256(whole).hexdigest()


def test_a_package_inside_somebody_elses_checkout_has_no_git_state(tmp_path):
    checkout(tmp_path / "theirs")
    (tmp_path / "theirs" / "venv").mkdir()
    (tmp_path / "theirs" / "venv" / "__init__.py").write_text("")
    assert provenance.git_state(tmp_path / "theirs" / "venv") is None
    assert provenance.git_state(tmp_path) is None


def test_starts_are_appended_with_what_they_ran_on(tmp_path, monkeypatch):
    cfg = compose(["optim.lr=1e-3"])
    monkeypatch.setattr(sys, "argv", ["../train.py", "optim.lr=1e-3", "run.tag=a b"])
    monkeypatch.setenv("XLA_FLAGS", "--xla_x=1")
    for _ in range(2):
        start = provenance.collect(cfg, ["optim.lr=1e-3"], 7, {"fingerprint": "ab"}, {"kind": "cpu"})
        provenance.append_start(RunDir(tmp_path), start)
    starts = json.loads(RunDir(tmp_path).provenance.read_text())["starts"]
    assert [start["step"] for start in starts] == [7, 7]
    assert starts[1]["command"] == "../train.py optim.lr=1e-3 'run.tag=a b'"
    assert (starts[1]["folder"], starts[1]["script"]) == (os.getcwd(), "../train.py")
    assert starts[1]["packages"]["numpy"] == metadata.version("numpy")
    assert starts[1]["environment"]["XLA_FLAGS"] == "--xla_x=1"
    assert starts[1]["operations"]["hardware"]["layer_loop"] == "unrolled"
    assert (starts[1]["data"], starts[1]["devices"]) == ({"fingerprint": "ab"}, {"kind": "cpu"})
