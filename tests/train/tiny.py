"""A tiny run, compiled once a session and a layout."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from olmo_hydra.config.compose import compose
from olmo_hydra.config.operations import CheckpointConfig, OnCorrupt
from olmo_hydra.config.root import Config
from olmo_hydra.data.sampler import Sampler
from olmo_hydra.hardware import devices
from olmo_hydra.hardware.sharding import make_mesh
from olmo_hydra.train.state import Program, State, make_program
from olmo_hydra.train.step import Inputs, make_step

TINY = (
    *("model.d_model=32", "model.head_dim=16", "model.d_ff=48", "model.n_layers=4", "model.window=8"),
    *("data.seq_len=32", "train.global_batch=8", "train.steps=40", "train.z_loss=1e-2", "hardware=cpu_sim"),
)


def saving(**fields: Any) -> CheckpointConfig:
    """A checkpoint after every update, and all are kept."""
    plain = {"every": 1, "fixed_steps": [], "on_corrupt": OnCorrupt.refuse, "accept_changed_data": False}
    return CheckpointConfig(**plain | fields)


NOTHING_READ = ({}, np.zeros(1024, np.uint32))  # what a checkpoint keeps of the data


@cache
def program(*overrides: str) -> tuple[Config, Program]:
    config = compose([*TINY, *overrides])
    mesh = make_mesh(config.hardware, devices.acquire(config.hardware, ""))
    return config, make_program(config, mesh)


@pytest.fixture
def batch() -> tuple[np.ndarray, np.ndarray]:
    """Random tokens and labels, a third of the labels masked, unevenly over rows."""
    rng = np.random.default_rng()
    tokens_BT = rng.integers(0, 257, (8, 32)).astype(np.int32)
    labels_BT = np.roll(tokens_BT, -1, axis=1)
    labels_BT[rng.random(labels_BT.shape) < np.linspace(0, 0.7, 8)[:, None]] = -100
    return tokens_BT, labels_BT


def updated(overrides: tuple[str, ...], batch: tuple[np.ndarray, np.ndarray], accumulation: int = 1):
    """Initial state, the state after one update, its metrics."""
    initial, step = _compiled(*overrides)
    state = jax.device_put(initial, program(*overrides)[1].shardings)
    shaped = [array.reshape(accumulation, -1, array.shape[1]) for array in batch]
    after, metrics = step(state, Inputs(*shaped, None), np.float32(1e-2))
    return state, after, metrics


@cache
def _compiled(*overrides: str) -> tuple[State, Callable[..., Any]]:
    """The initial state, in NumPy, and the update of a program."""
    _, made = program(*overrides)
    return jax.device_get(made.init()), jax.jit(make_step(made))


def data_of(n_instances: int) -> Any:
    """What a run asks its data of, for batches that are made up; no order is ever made."""
    return SimpleNamespace(
        source=range(n_instances),
        batches=SimpleNamespace(labels=["text"]),
        sampler=Sampler(n_instances, 8, seed=1, folder=Path("/nonexistent")),
        fingerprint={"rules": {}, "settings": {}, "files": [], "instances": n_instances},
    )
