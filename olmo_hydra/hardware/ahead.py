"""Compiling for TPUs that are not here. libtpu, the compiler that they use, does so on any machine (extra `tpu`)."""

import importlib.util
import os
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import jax
from jax.experimental import topologies
from omegaconf import OmegaConf

from olmo_hydra.config import topology
from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.hardware import HardwareConfig
from olmo_hydra.config.paths import CONF
from olmo_hydra.hardware import compiler, hlo
from olmo_hydra.hardware.devices import in_slices

# What libtpu reads when it is loaded where no TPU is: to ask nobody, to say nothing, and to share the machine. The type
# need not be that of the topology asked for.
ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "tpu7x-8",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
HBM = re.compile(r"CompileTimeHbmOom.*?\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)", re.DOTALL)
VMEM = re.compile(r"CompileTimeScopedVmemOom.*?size ([\d.]+)([KMGT]?) and limit ([\d.]+)([KMGT]?)", re.DOTALL)
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class OutOfMemory(Exception):
    """The compiler's answer that a program does not fit.

    Attributes:
      memory: `hbm`, of the device; or `vmem`, on the chip, of one kernel.
      needed: Bytes that it needs.
      available: Bytes that are there for it.
    """

    def __init__(self, memory: str, needed: int, available: int):
        super().__init__(f"{memory}: {needed:,} bytes of {available:,}")
        self.memory, self.needed, self.available = memory, needed, available


@dataclass(frozen=True)
class Compiled:
    """A program compiled for a TPU. Sizes in bytes a device.

    Attributes:
      seconds: That the compiler took on this machine; `cpu_seconds` of all its cores.
      arguments: Of what it gets; what it gives back lies in the same memory, but for `results`.
      temporaries: Of everything between.
      code: Of the program itself.
      estimate: Of its cycles and collectives.
    """

    seconds: float
    cpu_seconds: float
    arguments: int
    results: int
    temporaries: int
    code: int
    estimate: hlo.Estimate

    @property
    def needed(self) -> int:
        """Bytes of a device's memory that it takes in all."""
        return self.arguments + self.results + self.temporaries + self.code


def devices(cfg: HardwareConfig) -> list[jax.Device]:
    """The devices of the config's topology, described to the compiler, in the order in which a run has them.

    Raises:
      RequestError: The hardware is none that libtpu compiles for, libtpu is absent, or knows no such topology.
    """
    if cfg.libtpu is None:
        raise RequestError(
            f"libtpu compiles for TPUs only: conf/hardware/{cfg.name}.yaml names none (hardware.libtpu)",
            key="hardware",
            value=cfg.name,
            instead=f"hardware={' or '.join(_with_libtpu())} with --compile; or preflight without it",
        )
    if importlib.util.find_spec("libtpu") is None:
        raise RequestError(
            "--compile needs libtpu, the TPUs' compiler, which is not installed",
            instead='pip install "olmo_hydra[tpu]"',
        )
    os.environ.update(ENVIRONMENT)
    jax.config.update("jax_platforms", "cpu")
    if cfg.topology is None:
        raise RequestError(
            f"{cfg.chips} chips are in no slice that is offered",
            key="hardware.chips",
            value=cfg.chips,
            instead=f"hardware.chips={topology.offered(cfg.chips or 1)}",
        )
    try:
        several = {"num_slices": cfg.slices} if cfg.slices > 1 else {}
        found = topologies.get_topology_desc(f"{cfg.libtpu}:{cfg.topology}", platform="tpu", **several).devices
    except jax.errors.JaxRuntimeError as error:
        raise RequestError(
            f"libtpu describes no such topology: {str(error).splitlines()[0][:200]}",
            key="hardware.topology",
            value=cfg.topology,
            instead="one that is offered, such as 2x2x1 or 4x4x4 (2x2 or 4x4 where the torus has two dimensions)",
        ) from error
    if len(found) != cfg.devices:
        raise RequestError(
            f"is not the {len(found)} devices of {cfg.libtpu}:{cfg.topology}",
            key="hardware.devices",
            value=cfg.devices,
            instead="hardware.devices=null, with hardware.topology or hardware.chips of a whole slice",
        )
    return in_slices(found)


def _with_libtpu() -> list[str]:
    """Names of the hardware files that name a chip of libtpu."""
    files = sorted((CONF / "hardware").glob("*.yaml"))
    return [file.stem for file in files if OmegaConf.select(OmegaConf.load(file), "libtpu")]


def available(device: jax.Device) -> int:
    """Bytes of the device's memory that the compiler lets a program have, to a hundredth of a GiB.

    It says so only of a program that needs more, so that it is given one.
    """
    where = jax.sharding.SingleDeviceSharding(device)
    too_much = jax.ShapeDtypeStruct((2**20, 2**20), "int8", sharding=where)
    try:
        jax.jit(lambda x: x + 1).lower(too_much).compile()
    except jax.errors.JaxRuntimeError as error:
        return _out_of_memory(error).available
    raise ValueError(f"a {device.device_kind} is said to hold 2 TiB")


def compile_for(lowered: jax.stages.Lowered, cfg: HardwareConfig) -> Compiled:
    """The program, compiled with the options of the config, and read.

    Raises:
      OutOfMemory: It does not fit.
      RequestError: The compiler does not take one of the options.
    """
    with tempfile.TemporaryDirectory(prefix="olmo-hydra-") as folder:
        began, cpu_began = time.perf_counter(), time.process_time()
        try:
            found = compiler.compiled(lowered, cfg, xla_dump_to=folder, xla_dump_hlo_as_text=True)
        except jax.errors.JaxRuntimeError as error:
            raise _out_of_memory(error) from error
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
        # The only text with the estimates: `as_text()` of libtpu 0.0.52 fails on collectives that SparseCores do.
        (text,) = Path(folder).glob("*.after_codegen.txt")
        estimate = hlo.estimate(hlo.parse(text.read_text()))
    memory = found.memory_analysis()
    assert memory is not None
    return Compiled(
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        arguments=memory.argument_size_in_bytes,
        results=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        estimate=estimate,
    )


def _out_of_memory(error: jax.errors.JaxRuntimeError) -> OutOfMemory:
    """What the compiler says by an error; raises an error of anything else again."""
    for memory, pattern in (("hbm", HBM), ("vmem", VMEM)):
        if found := pattern.search(str(error)):
            needed, unit, there, unit_there = found.groups()
            return OutOfMemory(memory, int(float(needed) * UNITS[unit]), int(float(there) * UNITS[unit_there]))
    raise error
