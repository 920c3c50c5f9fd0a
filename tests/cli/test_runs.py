"""`olmo-hydra runs`: what the table says of runs in every state, of damaged and hostile ones; and `--sync`."""

import json
import re

import pytest

from olmo_hydra.cli.main import main
from olmo_hydra.tracking.checkpoints import Kind, write_manifest
from tests.cli.test_summary import NAN, evaluation, make
from tests.tracking.wandb_machine import NAME, expected, kept_id, machine, online, recorded
from tests.tracking.wandb_machine import make as make_tracked
from tests.tracking.wandb_server import KEY, serve

pytestmark = pytest.mark.usefixtures(machine.__name__)


def listed(capsys, *arguments):
    assert main(["runs", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def table(capsys, *arguments):
    assert main(["runs", *map(str, arguments)]) == 0
    return [re.split(r"  +", line.rstrip()) for line in capsys.readouterr().out.splitlines()]


def save(run_dir, step):
    place = run_dir.checkpoints / str(step)
    place.mkdir(parents=True)
    (place / "state").write_bytes(bytes(2000))
    write_manifest(place, step, Kind.permanent)


def test_states_and_held_out_text(tmp_path, capsys):
    make(tmp_path, "a", [evaluation(0, "heldout", 8.0), evaluation(9, "heldout", 2.04)], "started", "finished")
    make(tmp_path, "b", [evaluation(9, "heldout", NAN)], "started")
    running = make(tmp_path, "c", [], "started")
    make(tmp_path, "d", [], "started", "preempted")
    with running.lock():
        writer = running.writer()
        found, shown = listed(capsys, tmp_path), table(capsys, tmp_path)
    keys = ("run", "state", "writer", "heldout_step", "bits_per_byte")
    assert [tuple(row[key] for key in keys) for row in found] == [
        ("a", "Finished", None, 9, 2.04),
        ("b", "Killed", None, 9, None),
        ("c", "Running", writer, None, None),
        ("d", "Preempted", None, None, None),
    ]
    assert [row[:4] for row in shown[1:3]] == [["a", "Finished", "0", "2.040"], ["b", "Killed", "0", "nan"]]
    assert shown[3][-1] == writer


def test_steps_whole_checkpoints_and_sizes(tmp_path, capsys):
    run_dir = make(tmp_path, "a", [], "started")
    run_dir.config.write_text("train: {steps: 12000}\n")
    for step in (1000, 2000, 3000):
        save(run_dir, step)
    (run_dir.checkpoints / "3000" / "state").unlink()
    (found,) = listed(capsys, run_dir.path)
    assert found["checkpoints"] == [{"step": step, "kind": "permanent", "bytes": 2000} for step in (1000, 2000)]
    assert found["checkpoint_bytes"] > 4000 > found["other_bytes"] > 0
    (_, row) = table(capsys, run_dir.path)
    assert row[2:4] == ["0/12,000", "2,000"] and row[4].endswith("kB") and row[5].endswith("bytes")


def test_damaged_and_hostile_runs_do_not_hide_the_others_and_reach_no_terminal(tmp_path, capsys):
    make(tmp_path, "good", [], "started", "finished")
    make(tmp_path, "no rows", []).metrics.write_text("x\n{}\n")
    make(tmp_path, "no time", []).events.write_text('{"event": "started", "time": "\\u001b[2J"}\n')
    make(tmp_path, "no steps", []).config.write_text("train: {steps: '[red]\\x1b'}\n")
    make(tmp_path, "[red]name\x1b[31m<b>\n", [], "started")
    assert main(["runs", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "[red]name\\x1b[31m<b>\\n" in shown
    assert re.search(r"good +Finished", shown) and re.search(r"no rows +Damaged \(metrics.jsonl:1\)", shown)
    assert re.search(r"no time +Damaged \(events.jsonl:1\)", shown) and "no steps" in shown
    assert len(shown.splitlines()) == 6


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for root in ("here", "there"):
        (tmp_path / root).mkdir()
        for name in ("a", "b"):
            make(tmp_path / root, name, [], "started", "finished")
    assert [row[0] for row in table(capsys, "here")[1:]] == ["a", "b"]
    assert [row[0] for row in table(capsys, "here/a", "here/b")[1:]] == ["a", "b"]
    assert [row[0] for row in table(capsys, "here", "there/a")[1:]] == ["here/a", "here/b", "there/a"]
    assert [row[0] for row in table(capsys, tmp_path / "here/a", "there/a")[1:]] == [f"{tmp_path}/here/a", "there/a"]
    assert [(row["run"], row["folder"]) for row in listed(capsys, "here/a", "there/a")] == [
        ("a", "here/a"),
        ("a", "there/a"),
    ]


def test_a_folder_that_is_not_there_is_refused(tmp_path, capsys):
    assert main(["runs", str(tmp_path / "none")]) == 2
    assert "there is no such folder" in capsys.readouterr().err


@pytest.mark.parametrize("key", [None, "short"])
def test_sync_without_a_usable_key_says_what_to_do(tmp_path, machine, capsys, key):
    if key:
        machine.setenv("WANDB_API_KEY", key)
    assert main(["runs", "--sync", str(tmp_path)]) == 2
    assert "wandb login" in capsys.readouterr().err


def test_sync_sends_what_it_can_and_says_what_it_cannot(tmp_path, machine, capsys):
    good, damaged = make_tracked(tmp_path / NAME), make_tracked(tmp_path / "damaged")
    recorded(good, (1, 2, 3))
    damaged.metrics.write_text("x\n{}\n")
    written = make_tracked(tmp_path / "written")
    with serve() as server, written.lock():
        online(machine, server.url)
        assert main(["runs", "--sync", str(tmp_path)]) == 1
        assert server.rows(kept_id(good)) == expected((1, 2, 3))
        out, err = capsys.readouterr()
        lines = out.splitlines()
        assert lines[0].startswith("damaged  failed: line 1 is not a JSON object")
        assert lines[1] == f"{NAME}  sent: 3 rows, up to step 3"
        assert lines[2].startswith("written  left: is being written by pid")
        assert "failed: 1 of 3 runs" in err
        assert main(["runs", "--sync", "--json", str(good.path)]) == 0
        (again,) = json.loads(capsys.readouterr().out)
        assert (again["outcome"], again["rows"], again["last"]) == ("has", 0, 3)
    assert KEY not in out + err
