"""Schema of the `hardware` group: what a run is computed on. Never part of a run's identity."""

import math
from dataclasses import dataclass, field, fields
from enum import Enum

from omegaconf import MISSING

from olmo_hydra.config import topology
from olmo_hydra.config.errors import require, show
from olmo_hydra.config.mesh import MeshConfig
from olmo_hydra.config.remat import Point, Remat
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


class AttentionKernel(Enum):
    """What computes attention (`docs/model.md`).

    `xla` runs anywhere; `splash` is JAX's Pallas kernel for TPUs; `cudnn` is cuDNN's fused kernel for NVIDIA GPUs.
    """

    xla = "xla"
    splash = "splash"
    cudnn = "cudnn"


KERNEL_PLATFORM = {AttentionKernel.splash: Platform.tpu, AttentionKernel.cudnn: Platform.gpu}
LANES = 128  # of a TPU; splash takes blocks that are multiples of it
SPLASH_BLOCK = 512  # tokens; fits the on-chip memory of every TPU without a higher limit


def splash_block(seq_len: int, most: int | None) -> tuple[int, int]:
    """The length to which splash pads a sequence, a multiple of 128, and its block: the largest multiple of 128 up to
    `most` (null: `SPLASH_BLOCK`) that divides it."""
    length = -(-seq_len // LANES) * LANES
    sizes = range(min(most or SPLASH_BLOCK, length), 0, -LANES)
    return length, next(size for size in sizes if length % size == 0)


def splash_query_block(queries: int, shards: int, most: int | None) -> tuple[int, int]:
    """The same for the queries of a device: where they are parts of two shards, multiples of 128, no block has both."""
    part = -(-queries // 2 // LANES) * LANES
    return splash_block(queries, most if shards == 1 else min(most or SPLASH_BLOCK, part))


@dataclass
class ChipConfig:
    """One chip, in its vendor's numbers; null where there is none to cite. `conf/hardware/*.yaml` gives the source.

    What is per device, as JAX counts them, is a chip's share: a chip may show as two.
    """

    devices: int = MISSING
    per_host: int | None = None
    peak_tflops: float | None = None
    hbm_gib: float | None = None
    hbm_gbps: float | None = None
    link_gbps: float | None = None
    network_gbps: float | None = None
    torus: int = MISSING
    largest: str | None = None
    matrix_unit: int | None = None
    clock_ghz: float | None = None
    price_per_hour: float | None = None

    def check(self) -> None:
        for each in fields(self):
            value, key = getattr(self, each.name), f"hardware.chip.{each.name}"
            if each.name == "torus":
                require(value in (0, 2, 3), "must be 2 or 3, or 0 where chips are switched", key=key, value=value)
            elif each.name == "devices":
                require(value > 0, "must be at least 1", key=key, value=value)
            elif each.name != "largest":
                require(value is None or value > 0, "must be positive, or null", key=key, value=value)

    def of_device(self, name: str) -> float | None:
        """The part of a number that one device has."""
        value: float | None = getattr(self, name)
        return None if value is None else value / self.devices


@schema("hardware")
@dataclass
class HardwareConfig:
    """Fields are documented in `conf/hardware/*.yaml`."""

    name: str = MISSING
    platform: Platform = MISSING
    device_kind: str | None = None
    libtpu: str | None = None
    slices: int = MISSING
    topology: str | None = None
    chips: int | None = None
    devices: int | None = None
    processes: int | None = None
    process_timeout: float = MISSING
    chip: ChipConfig = field(default_factory=ChipConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    micro_batch: int | None = None
    attention: AttentionKernel = MISSING
    attention_block: int | None = None
    layer_loop: LayerLoop = MISSING
    remat: Remat = MISSING
    offload: list[Point] = MISSING
    loss_chunk: int | None = None
    compiler_options: dict[str, str] = field(default_factory=dict)
    loader_threads: int = MISSING
    loader_workers: int = MISSING

    def derive(self) -> None:
        """Fills chips, topology, devices and processes, and the mesh axis that is -1."""
        self._count()
        assert self.devices is not None
        self.mesh.derive(self.devices)

    def check(self, global_batch: int) -> None:
        mesh, shards = self.mesh, self.batch_shards
        assert self.devices is not None and self.processes is not None
        require(
            self.devices % self.processes == 0,
            f"cannot have equal parts of hardware.devices={self.devices}",
            key="hardware.processes",
            value=self.processes,
            instead=f"hardware.devices={-(-self.devices // self.processes) * self.processes}, or fewer processes",
        )
        require(
            self.slices == 1 or self.platform is not Platform.gpu,
            f"only TPUs come in slices, and hardware={self.name} is of platform {self.platform.value}",
            key="hardware.slices",
            value=self.slices,
            instead="hardware.slices=1",
        )
        require(
            self.processes % self.slices == 0 or self.slices % self.processes == 0,
            f"cannot have whole parts of hardware.slices={self.slices}, nor slices whole processes",
            key="hardware.processes",
            value=self.processes,
            instead=f"hardware.processes={self.slices}, or a multiple of it",
        )
        mesh.check(self.devices, self.processes, self.slices)
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
            f"runs on platform {platform.value} only, and hardware={self.name} is of platform {self.platform.value}",
            key="hardware.attention",
            value=self.attention,
            instead="hardware.attention=" + ("splash" if self.platform is Platform.tpu else "xla"),
        )
        require(
            self.process_timeout >= 5,
            "must be at least 5 seconds, as processes tell of themselves once a second",
            key="hardware.process_timeout",
            value=self.process_timeout,
        )
        require(
            len(set(self.offload)) == len(self.offload),
            "names something twice",
            key="hardware.offload",
            value=self.offload,
            instead=f"hardware.offload={show(list(dict.fromkeys(self.offload)))}",
        )
        require(
            not self.offload or self.remat is not Remat.none,
            "is of what a policy keeps, and hardware.remat=none leaves that to the compiler",
            key="hardware.offload",
            value=self.offload,
            instead="hardware.remat=minimal_with_context with it, or hardware.offload=[]",
        )
        require(
            self.loss_chunk is None or self.loss_chunk >= 1,
            "must be at least 1 token, or null for all at once",
            key="hardware.loss_chunk",
            value=self.loss_chunk,
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

    def _count(self) -> None:
        """Chips, devices and processes, from topology, chips or devices; of one host a slice where none is given."""
        self.chip.check()
        for name in ("slices", "chips", "devices", "processes"):
            value = getattr(self, name)
            require(value is None or value >= 1, "must be at least 1", key=f"hardware.{name}", value=value)
        said: dict[str, int] = {}
        if self.topology is not None:
            said["topology"] = self.slices * math.prod(topology.parse(self.topology, self.chip.torus, self.name))
        if self.chips is not None:
            said["chips"] = self.chips
        if self.devices is not None:
            said["devices"] = -(-self.devices // self.chip.devices)  # half a chip is paid for whole
        in_slices = f" in hardware.slices={self.slices}" if self.slices > 1 else ""
        first, *others = said or ["chips"]
        for other in others:
            require(
                said[other] == said[first],
                f"is not the {said[first]} chips of hardware.{first}={getattr(self, first)}{in_slices}",
                key=f"hardware.{other}",
                value=getattr(self, other),
                instead=f"hardware.{other}=null, or hardware.{first}=null",
            )
        self.chips = said.get(first, (self.chip.per_host or 1) * self.slices)
        self.devices = self.devices or self.chips * self.chip.devices
        for name, count in (("devices", self.devices), ("chips", self.chips)):
            require(
                count % self.slices == 0,
                f"cannot have equal parts of hardware.{name}={count}",
                key="hardware.slices",
                value=self.slices,
                instead=f"hardware.slices={math.gcd(count, self.slices)}, or a multiple of {self.slices} {name}",
            )
        of_slice = self.chips // self.slices
        self.topology = self.topology or topology.usual(of_slice, self.chip.torus)
        if self.topology is not None and self.chip.largest is not None:
            self._refuse_larger(self.topology, self.chip.largest)
        devices, hosts = self.devices // self.slices, -(-of_slice // (self.chip.per_host or of_slice))
        of_equal_parts = next(count for count in range(min(hosts, devices), devices + 1) if devices % count == 0)
        self.processes = self.processes or self.slices * of_equal_parts

    def _refuse_larger(self, shape: str, largest: str) -> None:
        sizes, most = (
            topology.parse(text, self.chip.torus, self.name, key)
            for text, key in ((shape, "hardware.topology"), (largest, "hardware.chip.largest"))
        )
        assert self.chips is not None
        slices = max(-(-self.chips // math.prod(most)), self.slices + 1)
        require(
            all(size <= limit for size, limit in zip(sorted(sizes), sorted(most), strict=True)),
            f"is more than the largest slice of hardware={self.name}, {largest}",
            key="hardware.topology",
            value=shape,
            instead=f"fewer chips, or hardware.slices={slices} with as many of hardware.mesh.data",
        )

    @property
    def batch_shards(self) -> int:
        """Parts that a batch is divided into. The devices along `context` and `tensor` hold the same instances."""
        return self.mesh.data * self.mesh.fsdp

    @property
    def kept_on_host(self) -> frozenset[Point]:
        """Points that `remat` keeps and that lie in the host's memory until the backward pass."""
        return frozenset(self.offload) & self.remat.kept

    def instances_at_once(self, global_batch: int) -> int:
        """Of a micro-batch on one device; those along `context` and `tensor` share them."""
        return global_batch // (self.batch_shards * self.accumulation(global_batch))

    def accumulation(self, global_batch: int) -> int:
        """Micro-batches per update: the fewest equal ones of at most `micro_batch` instances a device."""
        per_device = global_batch // self.batch_shards
        most = per_device if self.micro_batch is None else self.micro_batch
        return next(
            count for count in range(1, per_device + 1) if per_device % count == 0 and per_device // count <= most
        )
