"""The tiny run that is killed: a decoder of 21,000 parameters on modules of the standard library."""

import os
import sys
import sysconfig
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
