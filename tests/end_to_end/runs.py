"""Runs of the real command, tiny: a decoder of 21,000 parameters on modules of the standard library."""

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from olmo_hydra.config.paths import CONF

ROOT = CONF.parent
STEPS = 120
TINY = [
    *(
        "data=text_files",
        f"data.domains.text.path={sysconfig.get_path('stdlib')}/email",
        "data.domains.text.pattern=*.py",
    ),
    *("model.d_model=32", "model.head_dim=16", "model.d_ff=48", "model.window=8", "data.seq_len=64"),
    *(
        "train.global_batch=4",
        f"train.steps={STEPS}",
        "schedule.warmup_steps=5",
        "checkpoint.every=25",
        "eval.every=40",
    ),
    *("data.heldout_bytes=2000", "eval.sample_tokens=8", "eval.prompts=['def ']", "tracking.log_every=1"),
]


def command(root: Path, *overrides: str) -> list[str]:
    flags = [override for override in overrides if override.startswith("-")]
    typed = [override for override in overrides if not override.startswith("-")]
    return [sys.executable, str(ROOT / "train.py"), *flags, *TINY, f"run.root={root}", *typed]


def environment() -> dict[str, str]:
    """Without a W&B key, whatever the machine has."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "HYDRA_"))}
    return kept | {"WANDB_CONFIG_DIR": "/nonexistent", "NETRC": "/nonexistent"}


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
