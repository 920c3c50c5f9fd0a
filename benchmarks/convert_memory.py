"""Peak memory of `olmo-hydra convert from-hf` and `to-hf` on a model of real size, and whether a round trip keeps all.

    python benchmarks/convert_memory.py [--model olmo3_1b] [--dtype float32] [--folder FOLDER]

Makes a Hugging Face folder of random weights, converts it to a run and back, each in a process of its own, compares
every tensor of the two folders bit for bit, and removes everything again. Needs three times the size of the weights on
disk. Prints one JSON object: megabytes (10^6 bytes), seconds, and the limit, which is the largest stacked tensor plus
1000 MB.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from olmo_hydra.config.compose import compose
from olmo_hydra.config.model import ModelConfig
from olmo_hydra.interop import safetensors
from olmo_hydra.interop.companions import Companions
from olmo_hydra.interop.shapes import param_shapes
from olmo_hydra.interop.write_hf import write_hf


class RandomWeights:
    """Normal numbers, drawn when they are read."""

    def __init__(self, model: ModelConfig, dtype: str):
        self.model, self.place = model, "random"
        self.shapes = {name: jax.ShapeDtypeStruct(struct.shape, dtype) for name, struct in param_shapes(model).items()}

    def read(self, name: str) -> np.ndarray:
        """One parameter."""
        struct = self.shapes[name]
        numbers = np.random.default_rng(len(name)).standard_normal(struct.shape, np.float32)
        return numbers.astype(struct.dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description="peak memory of both conversions")
    parser.add_argument("--model", default="olmo3_1b")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--folder", type=Path, help="where to work; default: the system's folder for such files")
    args = parser.parse_args()
    model = compose([f"model={args.model}"]).model
    weights = RandomWeights(model, args.dtype)
    largest = max(np.prod(struct.shape) * struct.dtype.itemsize for struct in weights.shapes.values())
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        made, run, back = (Path(folder) / name for name in ("made", "run", "back"))
        # In a process of its own: on Linux a child's peak is at least what its parent held when it started it.
        maker = multiprocessing.get_context("spawn").Process(target=write_hf, args=(weights, made, Companions({})))
        maker.start()
        maker.join()
        found = {"from_hf": measured("from-hf", made, run), "to_hf": measured("to-hf", run, back)}
        equal = digests(made) == digests(back)
    limit = round(largest / 1e6 + 1000)
    within = all(one["peak_mb"] <= limit for one in found.values())
    print(json.dumps({"model": args.model, "dtype": args.dtype, "parameters": model.num_params,
                      "largest_tensor_mb": round(largest / 1e6), "limit_mb": limit, "within": within,
                      "bit_identical": equal, **found}))  # fmt: skip


def measured(command: str, source: Path, target: Path) -> dict[str, float]:
    """Peak resident memory and duration of a conversion."""
    start = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "olmo_hydra", "convert", command, str(source), str(target)],
                               stdout=sys.stderr)  # fmt: skip
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{command} ended with {status}")
    kilobyte = 1 if sys.platform == "darwin" else 1024
    return {"peak_mb": round(usage.ru_maxrss * kilobyte / 1e6), "seconds": round(time.monotonic() - start, 1)}


def digests(folder: Path) -> dict[str, str]:
    """Dtype, shape and hash of every tensor."""
    found = {}
    for file in folder.glob("*.safetensors"):
        for name, entry in safetensors.header(file).items():
            content = safetensors.read(entry).reshape(-1).view(np.uint8)
            found[name] = f"{entry.code} {entry.shape} {hashlib.sha256(content).hexdigest()}"
    return found


if __name__ == "__main__":
    main()
