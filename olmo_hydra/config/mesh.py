"""Schema of `hardware.mesh`, and the one table that says which of its axes divides what."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from olmo_hydra.config.errors import RequestError, require

MESH_AXES = ("data", "fsdp", "context", "tensor")  # outermost first: neighbours in JAX's order differ in `tensor`

# Which axes of the mesh divide a logical axis of an array. Every matrix of the decoder has the model's width (`embed`)
# on one side and on the other what `tensor` divides (arXiv 1909.08053): columns of the first of two products, rows of
# the second, so that only the sum after both is communicated.
RULES = {
    "batch": ("data", "fsdp"),  # instances
    "length": ("context",),  # positions of an instance
    "lookup": ("data",),  # instances, where `fsdp` divides the width of what is looked up
    "embed": ("fsdp",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "mlp": ("tensor",),
    "vocab": ("tensor",),
}


@dataclass
class MeshConfig:
    """Devices along each axis. One axis may be -1: it takes the devices that the others leave.

    `data` and `fsdp` divide the instances of a batch, and `context` the positions of an instance. `fsdp` also divides
    the model's width in matrices and their moments, and `tensor` their heads, MLP and vocabulary.
    """

    data: int = MISSING
    fsdp: int = MISSING
    context: int = MISSING
    tensor: int = MISSING

    @property
    def sizes(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in MESH_AXES}

    def derive(self, devices: int) -> None:
        """Fills the axis that is -1."""
        for name, size in self.sizes.items():
            require(size == -1 or size >= 1, "must be positive, or -1", key=f"hardware.mesh.{name}", value=size)
        free = [name for name, size in self.sizes.items() if size == -1]
        if len(free) > 1:
            raise RequestError(
                f"only one axis of the mesh may be -1, and hardware.mesh.{free[0]} is too",
                key=f"hardware.mesh.{free[1]}",
                value=-1,
                instead=f"hardware.mesh.{free[1]}=1",
            )
        if free:
            taken = -math.prod(self.sizes.values())
            others = " x ".join(f"{name}={size}" for name, size in self.sizes.items() if size != -1)
            require(
                devices % taken == 0,
                f"is not a multiple of {taken}, of the mesh's {others}",
                key="hardware.devices",
                value=devices,
                instead=f"hardware.devices={-(-devices // taken) * taken}, or smaller hardware.mesh axes",
            )
            setattr(self, free[0], devices // taken)

    def check(self, devices: int, processes: int, slices: int) -> None:
        """Raises `RequestError` unless these devices make this mesh, processes have whole instances of it, and slices
        whole parts of `data`."""
        wanted = math.prod(self.sizes.values())
        require(
            wanted == devices,
            f"is not what a mesh of {' x '.join(f'{name}={size}' for name, size in self.sizes.items())} has",
            key="hardware.devices",
            value=devices,
            instead=f"hardware.devices={wanted}, or -1 for one axis of hardware.mesh",
        )
        local = devices // processes
        for name, size, left in (("tensor", self.tensor, local), ("context", self.context, local // self.tensor)):
            require(
                left % size == 0,
                f"tensor={self.tensor} x context={self.context} does not divide the {local} device{'s' * (local > 1)} "
                "of a process, so that one would not hold whole instances",
                key=f"hardware.mesh.{name}",
                value=size,
                instead=f"hardware.mesh.{name}={math.gcd(left, size)}",
            )
        require(
            self.data % slices == 0,
            f"is no multiple of hardware.slices={slices}, and only data may be divided over slices",
            key="hardware.mesh.data",
            value=self.data,
            instead=f"hardware.mesh.data={-(-self.data // slices) * slices} hardware.mesh.fsdp=-1",
        )


def divided(
    axes: Sequence[str | None], shape: Sequence[int], mesh: Mapping[str, int]
) -> tuple[tuple[str, ...] | None, ...]:
    """The axes of the mesh that divide each dimension of an array; None for one that is whole on every device.

    Args:
      axes: Logical names of the first dimensions, None for one that nothing divides.
      shape: A dimension that its axes do not divide evenly is whole.
      mesh: Devices along each axis.
    """
    rules = [RULES.get(name, ()) if name else () for name in axes]
    shares = [math.prod(mesh[axis] for axis in rule) for rule in rules]
    fits = zip(rules, shares, shape, strict=False)
    return tuple(rule if rule and size % share == 0 else None for rule, share, size in fits)


def halo(seq_len: int, window: int | None) -> int | None:
    """Keys before its own positions that a shard along `context` needs in a layer; None: it takes those of all shards.

    A window of more than half a sequence reaches nearly as many keys, which shards then attend to in balance.
    """
    return None if window is None or 2 * window > seq_len else window - 1


def balanced_parts(shard: Any, shards: int) -> tuple[Any, Any]:
    """The two of 2 x `shards` equal parts of a sequence whose queries a shard computes where it has the keys of all.

    Its own first part, and the second part of the shard that mirrors it: one sees few keys and the other many, so that
    every shard has the same work: of two that kept their own, the second would have three times that of the first.
    `shard` may be traced.
    """
    return 2 * shard, 2 * (shards - 1 - shard) + 1


def query_positions(shard: int, shards: int, queries: int, keys: int) -> list[int]:
    """Where among its `keys` the `queries` of a shard are: the last ones, or its `balanced_parts` of several shards."""
    if shards == 1:
        return list(range(keys - queries, keys))
    size = queries // 2
    return [part * size + i for part in balanced_parts(shard, shards) for i in range(size)]
