"""Runs of the real command, tiny."""

import json
import signal
import subprocess
import time
from pathlib import Path

from benchmarks.kills.tiny import command, environment


def train(root: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(root, *overrides), capture_output=True, text=True, env=environment(), cwd=root)


def stopped(root: Path, number: signal.Signals, at_step: int, *overrides: str) -> int:
    """Starts a run, signals it once the row of `at_step` is written, and gives its exit status."""
    process = subprocess.Popen(command(root, *overrides), stderr=subprocess.DEVNULL, env=environment(), cwd=root)
    tag = next(override.removeprefix("run.tag=") for override in overrides if override.startswith("run.tag="))
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        directory = find(root, tag)
        if directory is not None and last_step(directory / "metrics.jsonl") >= at_step:
            process.send_signal(number)
            return process.wait(timeout=60)
        time.sleep(0.002)
    process.kill()
    raise AssertionError(f"step {at_step} was not reached: status {process.returncode}")


def find(root: Path, tag: str) -> Path | None:
    return next(iter(root.glob(f"nano-{tag}-*")), None)


def last_step(metrics: Path) -> int:
    lines = metrics.read_bytes().split(b"\n") if metrics.exists() else []
    return json.loads(lines[-2])["step"] if len(lines) > 1 else 0


def events(directory: Path) -> list[dict]:
    return [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
