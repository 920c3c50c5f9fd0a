"""One Hopper card: is it right, and how fast is it. `python -m benchmarks.gpu [--minutes N] [--rehearse]`.

1. cuDNN's attention and its gradient against float64 (`benchmarks/gpu_attention.py`).
2. One update of a small model against the processor (`benchmarks/gpu_step.py`).
3. A stack of layers of Olmo 3 7B at 8192 tokens, with each remat policy, of as many layers as fit: our update, and
   Hugging Face's under torch.compile beside it, one after the other. Where one of the two does not fit, both are tried
   with four layers fewer.

Prints as it goes and writes benchmarks/results/gpu/<device>.json. Nothing starts after `--minutes`, and what runs then
is ended. Exit status 1 if there is no GPU, something was wrong, or nothing was measured; targets that are missed are
only said. `--rehearse` goes the whole way at tiny shapes on the processor, with the kernel that runs anywhere.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import arguments
from benchmarks.peers.adapters.ours import overrides
from benchmarks.peers.jobs import OPTIM, Job, num_params
from benchmarks.peers.programs import INSTALL, PROGRAMS, ROOT, Worker, WorkerFailed, interpreter
from benchmarks.peers.summary import rate, spread
from olmo_hydra.config.compose import compose
from olmo_hydra.config.remat import Remat
from olmo_hydra.hardware.flops import mfu

TARGET_MFU, TARGET_TIMES = 0.5, 1.2
PATTERN = ["sliding", "sliding", "sliding", "full"]
OLMO3_7B = {"d_model": 4096, "n_layers": 32, "n_heads": 32, "head_dim": 128, "d_ff": 11008, "vocab_size": 100352}
OLMO3_7B |= {"window": 4096, "pattern": PATTERN, "rope_theta": 5e5, "norm_eps": 1e-6}
SMALL = {"d_model": 64, "n_layers": 4, "n_heads": 2, "head_dim": 32, "d_ff": 160, "vocab_size": 512}
SMALL |= {"window": 64, "pattern": PATTERN, "rope_theta": 5e5, "norm_eps": 1e-6}
BATCH, MICRO_BATCHES = 8, (4, 2, 1)  # instances of an update, and of what is computed at once, the largest first
USABLE = 0.9  # of a card's memory; what XLA takes at once
ROUNDS, STEPS = 3, 2
NO_TIME: dict[str, Any] = {"failed": "the time was up"}


class Card:
    """The card of this machine, or the processor where it is rehearsed.

    Attributes:
      hardware: The file of `conf/hardware` that has its numbers, or `gpu`, which has none.
      gib: Of its memory.
    """

    def __init__(self, rehearse: bool):
        self.rehearse = rehearse
        self.platform = "cpu" if rehearse else "gpu"
        self.name, self.gib = ("cpu", 0.009) if rehearse else found_gpu()
        files = () if rehearse else ("h100", "h200", "b300")
        kinds = {compose([f"hardware={file}", "hardware.chips=1"]).hardware.device_kind: file for file in files}
        self.hardware = kinds.get(self.name, self.platform)

    def overrides(self) -> list[str]:
        """Of our config."""
        return [] if self.rehearse else ["hardware.chips=1", "hardware.attention=cudnn"]


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.gpu", description="one Hopper card: right, and how fast")
    parser.add_argument("--minutes", type=arguments.amount, default=9.0, help="for everything")
    parser.add_argument(
        "--remat",
        type=arguments.some_of([policy.value for policy in Remat]),
        default="none,full",
        help="policies, with commas between",
    )
    parser.add_argument("--rehearse", action="store_true", help="tiny shapes, on the processor")
    parser.add_argument(
        "--out", type=arguments.folder, help="default: benchmarks/results/gpu; of a rehearsal a temporary one"
    )
    args = parser.parse_args()
    out = args.out or arguments.folder(
        tempfile.mkdtemp() if args.rehearse else str(ROOT / "benchmarks" / "results" / "gpu")
    )
    until = time.monotonic() + 60 * args.minutes
    try:
        card = Card(args.rehearse)
    except NoGPU as error:
        print(f"JAX finds no GPU here ({error}); --rehearse goes the whole way on the processor", file=sys.stderr)
        return 1
    print(f"{card.name}, {card.gib} GiB, hardware={card.hardware}", flush=True)
    checks = {name: checked(name, extra, card, until) for name, extra in checks_of(card).items()}
    speeds = [speed(card, remat, until) for remat in args.remat.split(",")]
    file = out / f"{card.name.replace(' ', '_')}.json"
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    report = {"device": card.name, "time": when, "targets": {"mfu": TARGET_MFU, "times": TARGET_TIMES}}
    file.write_text(json.dumps(report | {"checks": checks, "speed": speeds}, indent=1) + "\n")
    print(file)
    measured = any("ours" in one for one in speeds)
    return 0 if measured and all(check.get("passed") for check in checks.values()) else 1


class NoGPU(Exception):
    """JAX has none."""


def found_gpu() -> tuple[str, float]:
    """Kind and memory of the first GPU, asked in a process that gives its memory back.

    Raises:
      NoGPU: There is none.
    """
    ask = "import jax; d = jax.devices('gpu')[0]; print(d.device_kind, d.memory_stats()['bytes_limit'], sep='\\n')"
    variables = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_MEM_FRACTION": "1"}
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, env=os.environ | variables)
    if done.returncode:
        raise NoGPU(done.stderr.strip().splitlines()[-1][:200])
    kind, size = done.stdout.splitlines()
    return kind, round(int(size) / 2**30, 1)


def checks_of(card: Card) -> dict[str, list[str]]:
    """Arguments of each check."""
    if card.rehearse:
        return {"gpu_attention": ["--implementation", "xla", "--positions", "64"], "gpu_step": ["--rehearse"]}
    return {"gpu_attention": [], "gpu_step": []}


def checked(name: str, extra: list[str], card: Card, until: float) -> dict[str, Any]:
    """What a check prints; without `passed` where it broke off."""
    seconds = until - time.monotonic()
    if seconds <= 0:
        return NO_TIME
    command = [sys.executable, "-m", f"benchmarks.{name}", *extra]
    variables = {"JAX_PLATFORMS": "cpu" if card.rehearse else "cuda,cpu"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, env=os.environ | variables, timeout=seconds
        )
        result: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        print(f"{name}: {type(error).__name__}", flush=True)
        return {"failed": f"{error}"}
    summary = {key: value for key, value in result.items() if key in ("worst", "apart", "tolerance")}
    print(f"{name}: {'right' if result['passed'] else 'WRONG'}, {summary}", flush=True)
    return result


def speed(card: Card, remat: str, until: float) -> dict[str, Any]:
    """Both programs at the largest size that both can train; ours alone where Hugging Face is absent or never fits."""
    peer = interpreter("hugging_face")
    if not peer:
        print(f"Hugging Face is not measured: {INSTALL} hugging_face", flush=True)
    report: dict[str, Any] = {"remat": remat}
    for job in sizes(card, remat):
        ours = attempt("ours", job, until)
        if ours is NO_TIME:
            break
        if "failed" in ours:
            continue
        layers = job["model"]["n_layers"]
        if "ours" not in report:
            report |= {"layers": layers, "micro_batch": job["micro_batch"], "ours": ours | utilisation(job, ours)}
            print(f"  MFU {report['ours']['mfu']} (target {TARGET_MFU})", flush=True)
        theirs = attempt("hugging_face", job, until) if peer else None
        if theirs is None:
            break
        if "failed" not in theirs:
            times = ours["tokens_per_second"]["median"] / theirs["tokens_per_second"]["median"]
            report["beside"] = {"layers": layers, "ours": ours, "hugging_face": theirs, "times": round(times, 3)}
            print(f"  {times:.2f} times Hugging Face (target {TARGET_TIMES})", flush=True)
            break
    return report


def sizes(card: Card, remat: str) -> Iterator[Job]:
    """Jobs from the most layers that should fit, four fewer each time, each with the largest micro-batch."""
    model, seq_len = (SMALL, 128) if card.rehearse else (OLMO3_7B, 8192)
    for n_layers in range(model["n_layers"], 0, -len(PATTERN)):
        job = {
            "model": model | {"n_layers": n_layers},
            "compute_dtype": "bfloat16",
            "optim": OPTIM | {"lr": 3e-4},
            "batch": BATCH,
            "micro_batch": None,
            "seq_len": seq_len,
            "device": card.platform,
            "hardware": card.hardware,
            "remat": remat,
            "warmup": 2,
            "seed": 0,
            "weights": None,
            "overrides": card.overrides(),
        }
        fitting = [size for size in MICRO_BATCHES if needed(job, size) <= USABLE * card.gib * 2**30]
        if fitting:
            yield job | {"micro_batch": fitting[0]}


def needed(job: Job, micro_batch: int) -> float:
    """Bytes of an update, roughly: it only says where to begin.

    Parameters, two moments and two sets of gradients in fp32; in bf16 what every layer keeps, and what one layer has at
    work; logits and their gradient in fp32, and a copy of them in bf16.
    """
    model, tokens = job["model"], micro_batch * job["seq_len"]
    layer = 2 * tokens * (14 * model["d_model"] + 4 * model["d_ff"])
    kept = layer if job["remat"] == "none" else 2 * tokens * model["d_model"]
    head = 10 * tokens * model["vocab_size"]
    return 20 * num_params(model) + model["n_layers"] * kept + layer + head


def attempt(name: str, job: Job, until: float) -> dict[str, Any]:
    """Loads one program, lets it train, and ends it; or says why it failed."""
    if time.monotonic() >= until:
        return NO_TIME
    layers, micro_batch = job["model"]["n_layers"], job["micro_batch"]
    print(f"{PROGRAMS[name].title}: {layers} layers, micro-batch {micro_batch}, remat {job['remat']}", flush=True)
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        try:
            worker = Worker(name, job, Path(folder) / "log", until)
            turns = [worker.turn(STEPS) for _ in range(ROUNDS)]
            worker.close()
        except WorkerFailed as error:
            print(f"  {error}", flush=True)
            return {"failed": str(error)}
    rates = spread([rate(turn, job["batch"] * job["seq_len"]) for turn in turns])
    print(f"  {rates['median']:.0f} tokens/s ({rates['min']:.0f} to {rates['max']:.0f})", flush=True)
    return worker.loaded | {"turns": turns, "tokens_per_second": rates}


def utilisation(job: Job, found: dict[str, Any]) -> dict[str, float | None]:
    """MFU by the window-exact count; None where the peak of the card is unknown."""
    config = compose(overrides(job))
    peak = config.hardware.chip.peak_tflops
    fraction = mfu(config.model, job["seq_len"], found["tokens_per_second"]["median"], 1, peak)
    return {"mfu": None if fraction is None else round(fraction, 4)}


if __name__ == "__main__":
    sys.exit(main())
