"""What a person sees: lines off a terminal, one line of the terminal's width on it."""

import io
import os
import subprocess
import sys

import pytest
from rich.console import Console

from olmo_hydra.tracking.progress import Progress


def plain(seconds_per_step, steps, evaluate_at=()):
    now = [0.0]
    console = Console(file=io.StringIO(), force_terminal=False, width=80)
    progress = Progress(console, clock=lambda: now[0])
    progress.start(steps, 0)
    for n in range(1, steps + 1):
        now[0] += seconds_per_step
        progress.step(n, loss=5.0 - n / steps, lr=4e-3)
        progress.step(n, tokens_per_second=12_345.6)
        if n in evaluate_at:
            progress.evaluated(2.71828)
    progress.close()
    return console.file.getvalue().splitlines()


def test_lines_come_every_five_seconds_and_first_and_last():
    lines = plain(seconds_per_step=1.0, steps=18)
    assert [line.split()[1] for line in lines] == ["1/18", "6/18", "11/18", "16/18", "18/18"]
    assert lines[1] == "step 6/18  loss 4.667  lr 4.0e-03  tok/s 12.3k  eta 0:12"


def test_an_evaluation_always_has_a_line():
    lines = plain(seconds_per_step=0.01, steps=100, evaluate_at=(50,))
    assert [line.split()[1] for line in lines] == ["1/100", "50/100", "100/100"]
    assert "bpb 2.718" in lines[1]


def test_a_long_run_has_at_most_a_line_a_minute():
    lines = plain(seconds_per_step=10.0, steps=8640)  # a day
    assert 24 * 60 - 100 < len(lines) < 24 * 60 + 100


@pytest.mark.parametrize("width", [80, 160])
def test_the_bar_is_one_line_of_the_terminal(width):
    console = Console(file=io.StringIO(), force_terminal=True, width=width)
    progress = Progress(console)
    progress.start(120_000, 60_000)
    progress.step(60_001, loss=2.345, lr=3.9e-3, tokens_per_second=1.234e6)
    progress.evaluated(0.912)
    progress.step(60_002)
    progress.note("a line above [not markup]")
    progress.close()
    shown = console.file.getvalue()
    assert "a line above [not markup]" in shown
    for value in ("60002/120000", "2.345", "0.912", "3.9e-03", "1.23M"):
        assert value in shown


SHOW = """
import sys
from rich.console import Console
from olmo_hydra.tracking.progress import Progress
progress = Progress(Console(stderr=True, force_terminal=sys.argv[1] == "terminal"))
progress.note("a line")
progress.start(2, 0)
for n in (1, 2):
    progress.step(n, loss=1.0)
    progress.evaluated(1.0)
progress.close()
print("trained")
"""


@pytest.mark.parametrize("output", ["terminal", "plain"])
def test_a_reader_who_has_seen_enough_does_not_end_the_run(output):
    """As in `2>&1 | head -3`."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", SHOW, output], stdout=subprocess.PIPE, stderr=writer)
    os.close(writer)
    assert (done.returncode, done.stdout) == (0, b"trained\n")


@pytest.mark.parametrize("terminal", [True, False])
def test_output_that_fails_is_given_up(terminal):
    class Full(io.StringIO):
        attempts = 0

        def write(self, text):
            self.attempts += 1
            raise OSError(28, "No space left on device")

    file = Full()
    progress = Progress(Console(file=file, force_terminal=terminal))
    progress.start(2, 0)
    progress.step(1, loss=1.0)
    progress.evaluated(1.0)
    progress.close()
    assert file.attempts == 1


def test_closing_before_the_start_prints_nothing():
    file = io.StringIO()
    Progress(Console(file=file)).close()
    assert file.getvalue() == ""
