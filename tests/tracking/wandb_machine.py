"""What tests of W&B share: a machine without credentials, and a run that is recorded and logged as the tracker does."""

import pytest
import wandb

from olmo_hydra.config.operations import TrackingConfig, WandbMode
from olmo_hydra.config.root import Config
from olmo_hydra.tracking.record import Record
from olmo_hydra.tracking.run_dir import RunDir
from olmo_hydra.tracking.wandb_run import start
from tests.tracking.wandb_server import KEY

NAME = "nano-0123abcd"
FROZEN = """\
model: {d_model: 128}
optim: {lr: 4e-3}
train: {steps: 60}
tracking: {log_every: 1, wandb: auto, project: p, entity: null, group: head_dim, tags: [a]}
"""
DOMAIN = {"documents": 3, "bytes": 10, "nats": 20.0, "bits_per_byte": 2.5, "stderr": 0.1}
EVALUATION = {"step": 2, "suite": "heldout", "bits_per_byte": 2.5, "domains": {"stdlib": DOMAIN}}


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine without credentials, and a client that has read no environment yet."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "settings"))
    wandb.teardown()
    yield monkeypatch
    wandb.teardown()


def online(machine, address):
    """Gives the machine a key of the server at an address."""
    wandb.teardown()
    machine.setenv("WANDB_BASE_URL", address)
    machine.setenv("WANDB_API_KEY", KEY)


def make(path):
    run_dir = RunDir(path)
    run_dir.path.mkdir(parents=True)
    run_dir.config.write_text(FROZEN)
    return run_dir


def config(mode=WandbMode.auto):
    tracking = TrackingConfig(log_every=1, wandb=mode, project="p", group="head_dim", tags=["a"])
    return Config(tracking=tracking)


def kept_id(run_dir):
    return (run_dir.wandb / "id").read_text().strip()


def metrics(n):
    return {"step": n, "tokens": 100 * n, "loss": 5.0 / n, "grad_norm": None}


def throughput(n):
    return {"step": n, "seconds": 0.5, "tokens_per_second": 100.0, "mfu": None}


class Recorded:
    """One start of a run: rows go to the record, then to W&B."""

    def __init__(self, run_dir, restored=None, problems=None, cfg=None, **timeouts):
        self.record = Record(run_dir)
        self.record.rewind(restored)
        self.record.event("resumed" if restored else "started", step=restored or 0)
        unavailable = pytest.fail if problems is None else problems.append
        self.wandb = start(cfg or config(), run_dir, NAME, unavailable, **timeouts)

    def steps(self, steps):
        for n in steps:
            self.wandb.metrics(self.record.metrics(metrics(n)))
            self.wandb.throughput(self.record.throughput(throughput(n)))

    def evaluation(self, row):
        self.wandb.evaluation(self.record.evaluation(row))

    def finish(self, exit_code=0, event="finished"):
        self.record.event(event, step=60)
        self.wandb.finish(exit_code)


def recorded(run_dir, steps):
    """A run that had nothing to do with W&B."""
    record = Record(run_dir)
    record.event("started", step=0)
    for n in steps:
        record.metrics(metrics(n))
        record.throughput(throughput(n))
    return record


def expected(steps, evaluated=()):
    """History of W&B: one row a step."""
    rows = []
    for n in steps:
        row = {"train/step": n, "train/tokens": 100 * n, "train/loss": 5.0 / n}
        row |= {"perf/seconds": 0.5, "perf/tokens_per_second": 100.0}
        if n in evaluated:
            row |= {"eval/bits_per_byte": 2.5, "eval/stdlib/bits_per_byte": 2.5}
        rows.append(row)
    return rows
