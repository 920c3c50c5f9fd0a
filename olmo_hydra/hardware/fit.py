"""What to change of a run that does not fit: the smallest change, the least recomputation first."""

from collections.abc import Callable

from olmo_hydra.config.hardware import AttentionKernel
from olmo_hydra.config.remat import Remat
from olmo_hydra.config.root import Config

VMEM_LIMIT = "xla_tpu_scoped_vmem_limit_kib"


def smallest_change(config: Config, fits: Callable[[Remat, int], bool]) -> tuple[Remat, int] | None:
    """The rematerialisation and the micro-batch, nearest to those of the config, with which the run fits.

    The first policy from the config's on, in the order of `Remat`, with which any micro-batch fits, and the largest one
    that does. Smaller micro-batches never need more memory, so that it is found by halving.

    Args:
      config: Of the run.
      fits: Whether it does, with this policy and so many instances of a device at once. Not asked the same thing twice.

    Returns:
      None: nothing fits.
    """
    sizes = micro_batches(config)
    for remat in list(Remat)[list(Remat).index(config.hardware.remat) :]:
        low, high = -1, len(sizes) - 1  # sizes[low] fits
        asked = 0  # the smallest one first: with many policies nothing fits
        while low < high:
            if fits(remat, sizes[asked]):
                low = asked
            else:
                high = asked - 1
            asked = (low + high + 1) // 2
        if low >= 0:
            return remat, sizes[low]
    return None


def micro_batches(config: Config) -> list[int]:
    """Instances that a device can compute at once, from 1 up to as many as the config says, dividing its share."""
    hardware = config.hardware
    share, most = (
        config.train.global_batch // hardware.batch_shards,
        hardware.instances_at_once(config.train.global_batch),
    )
    return [size for size in range(1, most + 1) if share % size == 0]


def in_hbm(config: Config) -> list[str]:
    """What to type for a smaller need of a device's memory, the cheapest first."""
    hardware, sizes = config.hardware, micro_batches(config)
    policies = list(Remat)[list(Remat).index(hardware.remat) + 1 :]
    found = [f"hardware.micro_batch={sizes[-2]}"] if len(sizes) > 1 else []
    found += [f"hardware.remat={policy.value}" for policy in policies[:1]]
    if hardware.mesh.data > 1:
        found.append(f"hardware.mesh.data=1 hardware.mesh.fsdp={hardware.mesh.data * hardware.mesh.fsdp}")
    return [*found, f"hardware.chips={2 * (hardware.chips or 1)} hardware.topology=null hardware.mesh.fsdp=-1"]


def in_vmem(config: Config, needed: int) -> list[str]:
    """What to type where a kernel needs more of the chip's scratch memory than it may have."""
    options = config.hardware.compiler_options
    kib = -(-needed // 2**20) * 2**10
    new = "" if VMEM_LIMIT in options else "+"
    found = [f"{new}hardware.compiler_options.{VMEM_LIMIT}={kib}"]
    block = config.hardware.attention_block
    if config.hardware.attention is AttentionKernel.splash and block is not None and block >= 256:
        found.insert(0, f"hardware.attention_block={block // 256 * 128}")
    return found
