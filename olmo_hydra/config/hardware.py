"""Schema of the `hardware` group: what a run is computed on. Never part of a run's identity."""

import math
from dataclasses import dataclass, field
from enum import Enum

from omegaconf import MISSING

from olmo_hydra.config.errors import RequestError, require
from olmo_hydra.config.store import schema


class Platform(Enum):
    """JAX's names for back ends."""

    cpu = "cpu"
    gpu = "gpu"
    tpu = "tpu"


class LayerLoop(Enum):
    """`scan` compiles one period of layers and loops over it; `unrolled` compiles every layer."""

    scan = "scan"
    unrolled = "unrolled"


class Remat(Enum):
    """`none` keeps all activations for the backward pass; `full` keeps each layer's input and recomputes the rest."""

    none = "none"
    full = "full"


class AttentionKernel(Enum):
    """What computes attention (`docs/model.md`).

    `xla` runs anywhere; `splash` is JAX's Pallas kernel for TPUs; `cudnn` is cuDNN's fused kernel for NVIDIA GPUs.
    """

    xla = "xla"
    splash = "splash"
    cudnn = "cudnn"


KERNEL_PLATFORM = {AttentionKernel.splash: Platform.tpu, AttentionKernel.cudnn: Platform.gpu}
LANES = 128  # of a TPU; splash takes blocks that are multiples of it

MESH_AXES = ("data", "fsdp", "tensor")  # outermost first: neighbours in JAX's order of devices differ in `tensor`
BATCH_AXES = MESH_AXES[:2]


@dataclass
class MeshConfig:
    """Devices along each axis. One axis may be -1: it takes the devices that the others leave.

    `data` and `fsdp` divide the batch. `fsdp` also divides the model's width in matrices and their moments, and
    `tensor` their heads, MLP and vocabulary.
    """

    data: int = MISSING
    fsdp: int = MISSING
    tensor: int = MISSING


@schema("hardware")
@dataclass
class HardwareConfig:
    """Fields are documented in `conf/hardware/*.yaml`."""

    name: str = MISSING
    platform: Platform = MISSING
    device_kind: str | None = None
    devices: int = MISSING
    processes: int = MISSING
    process_timeout: float = MISSING
    peak_tflops: float | None = None
    hbm_gib: float | None = None
    mesh: MeshConfig = field(default_factory=MeshConfig)
    micro_batch: int | None = None
    attention: AttentionKernel = MISSING
    attention_block: int | None = None
    layer_loop: LayerLoop = MISSING
    remat: Remat = MISSING
    compiler_options: dict[str, str] = field(default_factory=dict)
    loader_threads: int = MISSING
    loader_workers: int = MISSING

    def derive(self) -> None:
        """Fills the mesh axis that is -1."""
        axes = {name: getattr(self.mesh, name) for name in MESH_AXES}
        free = [name for name, size in axes.items() if size == -1]
        require(self.devices >= 1, "must be at least 1", key="hardware.devices", value=self.devices)
        for name, size in axes.items():
            require(size == -1 or size >= 1, "must be positive, or -1", key=f"hardware.mesh.{name}", value=size)
        if len(free) > 1:
            raise RequestError(
                f"only one axis of the mesh may be -1, and hardware.mesh.{free[0]} is too",
                key=f"hardware.mesh.{free[1]}",
                value=-1,
                instead=f"hardware.mesh.{free[1]}=1",
            )
        if free:
            taken = -math.prod(axes.values())
            others = " x ".join(f"{name}={size}" for name, size in axes.items() if size != -1)
            require(
                self.devices % taken == 0,
                f"is not a multiple of {taken}, of the mesh's {others}",
                key="hardware.devices",
                value=self.devices,
                instead=f"hardware.devices={-(-self.devices // taken) * taken}, or smaller hardware.mesh axes",
            )
            setattr(self.mesh, free[0], self.devices // taken)

    def check(self, global_batch: int) -> None:
        for name in ("peak_tflops", "hbm_gib"):
            value = getattr(self, name)
            require(value is None or value > 0, "must be positive, or null", key=f"hardware.{name}", value=value)
        mesh, shards = self.mesh, self.batch_shards
        require(
            shards * mesh.tensor == self.devices,
            f"is not what a mesh of data={mesh.data} x fsdp={mesh.fsdp} x tensor={mesh.tensor} has",
            key="hardware.devices",
            value=self.devices,
            instead=f"hardware.devices={shards * mesh.tensor}, or -1 for one axis of hardware.mesh",
        )
        require(self.processes >= 1, "must be at least 1", key="hardware.processes", value=self.processes)
        require(
            self.devices % self.processes == 0,
            f"cannot have equal parts of hardware.devices={self.devices}",
            key="hardware.processes",
            value=self.processes,
            instead=f"hardware.devices={-(-self.devices // self.processes) * self.processes}, or fewer processes",
        )
        lower = global_batch // shards * shards
        require(
            global_batch % shards == 0,
            f"does not divide over the mesh's data={mesh.data} x fsdp={mesh.fsdp} (hardware={self.name})",
            key="train.global_batch",
            value=global_batch,
            instead="train.global_batch=" + (f"{lower} or {lower + shards}" if lower else str(shards)),
        )
        require(
            self.micro_batch is None or self.micro_batch >= 1,
            "must be at least 1 instance, or null for all at once",
            key="hardware.micro_batch",
            value=self.micro_batch,
        )
        platform = KERNEL_PLATFORM.get(self.attention, self.platform)
        require(
            self.platform is platform,
            f"runs on platform {platform.value} only; hardware={self.name} is {self.platform.value}",
            key="hardware.attention",
            value=self.attention,
            instead="hardware.attention=xla",
        )
        local = self.devices // self.processes
        require(
            local % mesh.tensor == 0,
            f"does not divide the {local} devices of a process, so that one would not hold whole instances",
            key="hardware.mesh.tensor",
            value=mesh.tensor,
            instead=f"hardware.mesh.tensor={math.gcd(local, mesh.tensor)}",
        )
        require(
            self.process_timeout >= 5,
            "must be at least 5 seconds, as processes tell of themselves once a second",
            key="hardware.process_timeout",
            value=self.process_timeout,
        )
        for name in ("loader_threads", "loader_workers"):
            value = getattr(self, name)
            require(0 <= value <= 1024, "must lie in [0, 1024]", key=f"hardware.{name}", value=value)
        block = self.attention_block
        require(
            block is None or (block > 0 and block % LANES == 0),
            f"must be a multiple of {LANES} tokens, or null for a size that fits every TPU",
            key="hardware.attention_block",
            value=block,
            instead=f"hardware.attention_block={max(LANES, (block or 0) // LANES * LANES)}",
        )

    @property
    def batch_shards(self) -> int:
        """Parts that a batch is divided into. The devices along `tensor` hold the same instances."""
        return self.mesh.data * self.mesh.fsdp

    def accumulation(self, global_batch: int) -> int:
        """Micro-batches per update: the fewest equal ones of at most `micro_batch` instances a device."""
        per_device = global_batch // self.batch_shards
        most = per_device if self.micro_batch is None else self.micro_batch
        return next(
            count for count in range(1, per_device + 1) if per_device % count == 0 and per_device // count <= most
        )
