"""The arguments of the call, by XLA on any platform; cuDNN itself where there is a GPU."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.paths import CONF
from olmo_hydra.model.kernels import cudnn
from tests.components import require_hardware
from tests.model.kernels.reference import Case, assert_equals_reference

SCRIPT = CONF.parent / "benchmarks" / "gpu_attention.py"


@pytest.mark.parametrize(
    "case",
    [
        Case(positions=23, window=None, group=3),
        Case(positions=23, window=7, kv_heads=1),
        Case(positions=23, window=1, group=1),
        Case(positions=23, window=7, documents=3),
        Case(positions=12, window=50, documents=2),
    ],
    ids=str,
)
def test_arguments_mean_the_float64_reference(case):
    call = partial(cudnn.attention, implementation="xla")
    assert_equals_reference(call, case, np.random.default_rng().integers(2**32))


def test_wide_heads_before_hopper_are_refused(monkeypatch):
    device = SimpleNamespace(compute_capability="8.0", device_kind="NVIDIA A100")
    monkeypatch.setattr(jax, "local_devices", lambda backend: [device])
    q = jax.ShapeDtypeStruct((1, 16, 2, 256), "bfloat16")
    with pytest.raises(RequestError, match="at most 128 on this GPU"):
        jax.eval_shape(partial(cudnn.attention, window=None, scale=1.0), q, q, q)


def run(*arguments: str, platforms: str) -> dict:
    env = {**os.environ, "JAX_PLATFORMS": platforms}
    done = subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout
    return json.loads(done.stdout)


def test_the_gpu_check_runs_here_by_xla():
    found = run("--implementation", "xla", "--positions", "24", "--head-dims", "8", platforms="cpu")
    assert found["passed"] and found["platform"] == "cpu" and len(found["cases"]) == 6


def test_cudnn_equals_the_float64_reference():
    found = shutil.which("nvidia-smi") is not None and importlib.util.find_spec("nvidia") is not None
    require_hardware("an NVIDIA GPU", found, "python benchmarks/gpu_attention.py")
    assert run(platforms="cuda")["passed"]
