"""What to change of a run that does not fit: the smallest change, the least recomputation first."""

import copy
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

from olmo_hydra.config import rules, topology
from olmo_hydra.config.errors import RequestError, show
from olmo_hydra.config.hardware import AttentionKernel
from olmo_hydra.config.remat import Remat
from olmo_hydra.config.root import Config
from olmo_hydra.hardware.activations import needed_by_part, tokens_at_once

VMEM_LIMIT = "xla_tpu_scoped_vmem_limit_kib"
DOUBLINGS = 10  # of the chips, in search of as many as a run fits
LOSS_CHUNK = 1024  # tokens: logits of fewer take little beside the head's own weight and gradient

Change = dict[str, Any]  # values by full key


def smallest_change(config: Config, fits: Callable[[Remat, int], bool]) -> tuple[Remat, int] | None:
    """The rematerialisation and the micro-batch, nearest to those of the config, with which the run fits.

    The first policy from the config's on, in the order of `Remat`, with which any micro-batch fits, and the largest one
    that does. A device's whole share at once is asked by itself, whatever the config says: it needs no sum of gradients
    beside those of a micro-batch. Of micro-batches that are added up smaller ones never need more memory, so that the
    largest is found by halving.

    Args:
      config: Of the run.
      fits: Whether it does, with this policy and so many instances of a device at once. Not asked the same thing twice.

    Returns:
      None: nothing fits.
    """
    share, added_up = micro_batches(config)
    for remat in list(Remat)[list(Remat).index(config.hardware.remat) :]:
        if fits(remat, share):
            return remat, share
        low, high = -1, len(added_up) - 1  # added_up[low] fits
        asked = 0  # the smallest one first: with many policies nothing fits
        while low < high:
            if fits(remat, added_up[asked]):
                low = asked
            else:
                high = asked - 1
            asked = (low + high + 1) // 2
        if low >= 0:
            return remat, added_up[low]
    return None


def micro_batches(config: Config) -> tuple[int, list[int]]:
    """Instances of a device's share of the batch; and of micro-batches that divide it and are added up, from 1 up to as
    many as the config says."""
    hardware, batch = config.hardware, config.train.global_batch
    share, most = batch // hardware.batch_shards, hardware.instances_at_once(batch)
    return share, [size for size in range(1, min(most, share - 1) + 1) if share % size == 0]


def in_hbm(config: Config) -> list[str]:
    """What to type for a smaller need of a device's memory, by our own arithmetic.

    Of each kind of change one that the rules take and that lowers the need: the smallest with which the run fits, or
    the one with which it needs least. Those with which it fits come first, then those that lower the largest part of
    what it needs, and among equals the cheapest.
    """
    before, room = needed_by_part(config), (config.hardware.chip.of_device("hbm_gib") or 0) * 2**30
    largest = max(before, key=lambda part: before[part])
    found = []
    for kind in _changes(config):
        lower = []
        for change in kind:
            after = changed(config, change)
            needed = {} if after is None else needed_by_part(after)
            if needed and sum(needed.values()) < sum(before.values()):
                rank = 0 if sum(needed.values()) <= room else 1 if needed[largest] < before[largest] else 2
                lower.append((rank, sum(needed.values()) if rank else 0, typed(change)))
        found += sorted(lower, key=lambda one: one[:2])[:1]
    return [text for _, _, text in sorted(found, key=lambda one: one[0])]


def _changes(config: Config) -> Iterator[list[Change]]:
    """What may lower the need of memory, kind by kind, the cheapest first; of each kind the smallest first."""
    hardware, mesh = config.hardware, config.hardware.mesh
    if min(hardware.loss_chunk or tokens_at_once(config), tokens_at_once(config)) > LOSS_CHUNK:
        yield [{"hardware.loss_chunk": LOSS_CHUNK}]
    share, added_up = micro_batches(config)
    now = hardware.instances_at_once(config.train.global_batch)
    smaller = [size for size in reversed(added_up) if size < now]
    yield [{"hardware.micro_batch": size} for size in (*smaller, share)]
    yield [{"hardware.remat": policy} for policy in list(Remat)[list(Remat).index(hardware.remat) + 1 :]]
    slices = hardware.slices
    yield [{"hardware.mesh.data": slices, "hardware.mesh.fsdp": mesh.data // slices * mesh.fsdp}]
    if hardware.attention is AttentionKernel.xla:
        yield [{"hardware.attention": kernel} for kernel in (AttentionKernel.splash, AttentionKernel.cudnn)]
    assert hardware.chips is not None and hardware.devices is not None
    of_slice = hardware.chips // slices
    least = topology.offered(2 * of_slice) if hardware.chip.torus else 2 * of_slice
    derived = dict.fromkeys(("hardware.devices", "hardware.topology", "hardware.processes"))
    yield [
        {"hardware.chips": chips, **derived, f"hardware.mesh.{axis}": chips * hardware.chip.devices // others}
        for chips in (slices * least << power for power in range(DOUBLINGS))
        for axis in ("fsdp", "context", "tensor")
        if chips * hardware.chip.devices % (others := hardware.devices // getattr(mesh, axis)) == 0
    ]


def changed(config: Config, change: Change) -> Config | None:
    """The config with other values; None: the rules refuse them."""
    new = copy.deepcopy(config)
    for key, value in change.items():
        *groups, name = key.split(".")
        setattr(reduce(getattr, groups, new), name, value)
    try:
        return rules.apply(new)
    except RequestError:
        return None


def typed(change: Change) -> str:
    """As overrides of the command line."""
    return " ".join(f"{key}={show(value)}" for key, value in change.items())


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
