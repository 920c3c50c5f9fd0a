"""The section on what was traced."""

from olmo_hydra.report.build import page, write_report
from olmo_hydra.report.content import Code, Link, Prose, Table
from olmo_hydra.report.evidence import Evidence
from olmo_hydra.tracking.record import Record
from olmo_hydra.tracking.run_dir import RunDir
from tests.report.synthetic import config

TRACE = "profile/plugins/profile/2026_01_05_09_00_00/host-1.a.trace.json.gz"
OPERATIONS = [
    {"name": "dot.1", "program": "jit_step", "seconds": 0.75, "times": 40},
    {"name": "(others)", "program": "", "seconds": 0.25, "times": 600},
]


def test_the_trace_is_linked_with_what_took_time(tmp_path) -> None:
    run_dir = RunDir(tmp_path / "nano-0123abcd")
    config(run_dir)
    assert "profile" not in [section.id for section in page(Evidence(run_dir)).sections]
    Record(run_dir).event("profiled", first=3, last=12, trace=TRACE, operations=OPERATIONS)
    (section,) = [section for section in page(Evidence(run_dir)).sections if section.id == "profile"]
    link, table, opens = section.blocks
    assert isinstance(link, Link) and link.file == TRACE and "updates 3 to 12" in link.text
    assert isinstance(table, Table) and table.rows == [
        ["dot.1", "jit_step", "750.0", "75%", "40"],
        ["(others)", "", "250.0", "25%", "600"],
    ]
    assert isinstance(opens, Code) and "xprof --logdir profile" in opens.text
    assert f'href="{TRACE}"' in write_report(run_dir).read_text()


def test_why_there_is_no_trace(tmp_path) -> None:
    run_dir = RunDir(tmp_path / "nano-0123abcd")
    config(run_dir)
    Record(run_dir).event("profile_failed", first=3, last=12, error="OSError: [Errno 28] No space left on device")
    (section,) = [section for section in page(Evidence(run_dir)).sections if section.id == "profile"]
    told = section.blocks[0]
    assert isinstance(told, Prose)
    assert told.text == "There is no trace of updates 3 to 12: OSError: [Errno 28] No space left on device"


def test_a_trace_in_which_no_operation_was_recognised_says_so(tmp_path) -> None:
    run_dir = RunDir(tmp_path / "nano-0123abcd")
    config(run_dir)
    Record(run_dir).event("profiled", first=3, last=12, trace=TRACE, operations=[])
    (section,) = [section for section in page(Evidence(run_dir)).sections if section.id == "profile"]
    link, told, _ = section.blocks
    assert isinstance(link, Link) and isinstance(told, Prose) and "No operation of a device" in told.text
