"""A run directory of synthetic numbers, shaped as a real one: interrupted once, with skips and a dirty tree."""

import json
import math
import random
from pathlib import Path

import yaml

from olmo_hydra.config.compose import compose
from olmo_hydra.config.identity import plain
from olmo_hydra.tracking.goodput import KEYS
from olmo_hydra.tracking.record import Record
from olmo_hydra.tracking.run_dir import RunDir

DOMAINS = {"stdlib": 1.0, "docstrings": 1.1, "descriptions": 1.25, "topics": 0.95}
OVERRIDES = ["optim.lr=4e-3", "eval.prompts=['def ', 'The ']"]
HOSTILE = "</pre><script>document.title = 'broken'</script> & <b>bold</b> é 中\n\tindented"
SKIPPED = (151, 320)


EIGHT = {"hardware": {"devices": 8, "name": "cpu_sim"}}


def evaluation(step: int, suite: str, level: float) -> dict:
    domains = {
        name: {"documents": 40 + i, "bytes": 65536 - i, "targets": 16384, "nats": level * factor * 65536 * math.log(2),
               "bits_per_byte": level * factor, "stderr": 0.021 * factor}
        for i, (name, factor) in enumerate(DOMAINS.items())
    }  # fmt: skip
    mean = sum(domain["bits_per_byte"] for domain in domains.values()) / len(domains)
    return {"step": step, "suite": suite, "bits_per_byte": mean, "domains": domains}


def start(step: int = 0) -> dict:
    sides = {"train": {"documents": 1400, "bytes": 21_000_000, "tokens": 21_001_400},
             "heldout": {"documents": 150, "bytes": 2_300_000, "tokens": 2_300_150}}  # fmt: skip
    return {
        "time": "2026-01-05T09:00:00+00:00", "step": step, "command": "train.py", "overrides": OVERRIDES,
        "folder": "/home/me/my runs", "script": "../olmo/train.py",
        "git": {"top": "/home/me/olmo", "commit": "5e53fd6" + "0" * 33, "dirty": True, "diff_sha256": "ab" * 32,
                "diff": "-a < b\n+a > b\n", "diff_bytes": 14, "untracked": []},
        "olmo_hydra": "0.1.0", "packages": {"jax": "0.10.2", "flax": "0.12.8", "numpy": "2.3.1"}, "python": "3.11.7",
        "environment": {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=true"}, "host": "workstation",
        "os": "Linux-6.1-x86_64", "cpus": 2, "parameters": 921_728,
        "devices": {"count": 1, "platform": "cpu", "kind": "cpu"},
        "data": {"name": "python_text", "fingerprint": "0f" * 32, "heldout": "1e" * 32,
                 "instances": 4_000, "dropped_tokens": 123, "padding_tokens": 0,
                 "domains": {name: {**sides, "left_out": {}, "absent": []} for name in DOMAINS}},
        "operations": {"hardware": {"devices": 1, "name": "cpu"}},
    }  # fmt: skip


def config(run_dir: RunDir) -> None:
    """The frozen config and what was typed, and nothing else."""
    run_dir.path.mkdir(parents=True)
    run_dir.config.write_text(yaml.safe_dump(plain(compose([*OVERRIDES, "train.steps=400"])), sort_keys=False))
    run_dir.overrides.write_text(yaml.safe_dump(OVERRIDES))


def ledger(n: int, repeated: float = 0.0) -> dict:
    """As a corpus of 4,000 instances gives it: 250 updates an epoch."""
    shares = {"stdlib": 0.6, "docstrings": 0.25, "descriptions": 0.1, "topics": 0.05}
    return {
        "data/epoch": 1 + (n - 1) // 250, "data/seen_fraction": (1 - repeated) * (1 + (n - 1) % 250) / 250,
        "data/repeated_fraction": repeated, "data/masked_tokens": 1024 * (n // 100),
        **{f"data/tokens/{label}": round(share * n * 4096) for label, share in shares.items()},
    }  # fmt: skip


def training(record: Record, steps: range, mfu: float | None, seed: int = 0) -> None:
    rng = random.Random(seed)
    for n in steps:
        loss = 1.3 + 4.2 * math.exp(-n / 60) + rng.gauss(0, 0.05)
        skipped = n in SKIPPED
        record.metrics({
            "step": n, "tokens": n * 4096, "loss": loss + 2 * skipped, "z_loss": 1e-4 * loss,
            "lr": 4e-3 * min(n / 40, 0.55 + 0.45 * math.cos(math.pi * n / 400)), "param_norm": 60 + 10 * math.log(n),
            "grad_norm": math.nan if n == 200 else math.exp(rng.gauss(-0.5, 0.2)) * (30 if skipped else 1),
            "skipped": int(skipped), **ledger(n),
        })  # fmt: skip
        record.throughput({"step": n, "seconds": 0.3, "tokens_per_second": 13_500 + rng.gauss(0, 300), "mfu": mfu})


def finished_run(path: Path, mfu: float | None = None) -> RunDir:
    """All 400 updates, stopped by Ctrl-C at 230 and resumed."""
    run_dir = RunDir(path)
    config(run_dir)
    record = Record(run_dir)
    run_dir.provenance.write_text(
        json.dumps({"starts": [start(), {**start(230), "host": "other", "operations": EIGHT}]})
    )
    record.evaluation(evaluation(0, "baseline_unigram", 4.6))
    record.evaluation(evaluation(0, "baseline_trigram", 2.9))
    record.event("started", step=0)
    for begin in range(0, 400, 100):
        record.evaluation(evaluation(begin, "heldout", 1.9 + 6.1 * math.exp(-begin / 70)))
        if begin == 200:
            record.event("interrupted", step=230, signal="SIGINT")
            record.event("resumed", step=230)
        training(record, range(begin + 1, begin + 101), mfu, seed=begin)
        record.event("checkpoint", step=begin + 100)
    record.evaluation(evaluation(400, "heldout", 1.9))
    texts = [
        "forward(self, x):\n        return self.norm(x)\n",
        HOSTILE,
        "",
        "same as the argument of the given value\n" * 6,
    ]
    samples = [
        {"prompt": prompt, "text": text} for prompt, text in zip(["def ", "class ", "<i>", "The "], texts, strict=True)
    ]
    record.evaluation({"step": 400, "suite": "samples", "samples": samples})
    record.event("finished", step=400)
    for number, (first, last) in enumerate(((0, 230), (230, 400)), 1):
        begun = {"time": f"2026-01-05T09:{15 * number}:00.000+00:00", "start": number, "chips": number}
        record.time({**begun, "step": first, **dict.fromkeys(KEYS, 1.0)})
        record.time({**begun, "step": last, **dict.fromkeys(KEYS, 1.0), "updates": float(last - first)})
    dated = [
        {**event, "time": f"2026-01-05T09:{2 * i:02d}:00.000+00:00"} for i, event in enumerate(run_dir.rows("events"))
    ]
    run_dir.events.write_text("".join(json.dumps(event) + "\n" for event in dated))
    return run_dir
