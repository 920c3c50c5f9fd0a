"""Cross-entropy of next-token prediction, by which models are trained and judged, without the logits of all tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from olmo_hydra.config.hardware import BATCH_AXES
from olmo_hydra.model.layout import divided

IMPOSSIBLE = -1e30  # the logit of ids that only pad the vocabulary; finite, so that products with zero stay zero

Tokens = tuple[jax.Array, jax.Array]  # x_CD and labels_C
Losses = tuple[jax.Array, tuple[jax.Array, jax.Array]]

WHOLE = PartitionSpec()  # on every device


class Chunk(NamedTuple):
    """Some tokens under the head, on one device: V is its part of the vocabulary.

    `nats_C` and `partition_C` (the log of the softmax's denominator) are fp32, and 0 where the label is negative.
    """

    nats_C: jax.Array
    partition_C: jax.Array
    counted_C: jax.Array
    probability_CV: jax.Array
    is_label_CV: jax.Array


@dataclass(frozen=True)
class Part:
    """Which axes of the mesh divide what one device has; none where it has all."""

    batch: tuple[str, ...] = ()
    width: str | None = None
    vocabulary: str | None = None

    def whole(self, weight_DV: jax.Array) -> jax.Array:
        return jax.lax.all_gather(weight_DV, self.width, axis=0, tiled=True) if self.width else weight_DV

    def first_id(self, size: int) -> jax.Array | int:
        return jax.lax.axis_index(self.vocabulary) * size if self.vocabulary else 0

    def largest(self, x: jax.Array) -> jax.Array:
        return jax.lax.pmax(x, self.vocabulary) if self.vocabulary else x

    def added(self, x: jax.Array) -> jax.Array:
        """Over the parts of the vocabulary."""
        return jax.lax.psum(x, self.vocabulary) if self.vocabulary else x

    def of_all_instances(self, x: jax.Array) -> jax.Array:
        return jax.lax.psum(x, self.batch) if self.batch else x

    def weight_gradient(self, gradient_DV: jax.Array) -> jax.Array:
        """Added up over all instances, and divided as the weight is."""
        others = tuple(axis for axis in self.batch if axis != self.width)
        if self.width:
            # Devices along it have other instances, or else the same ones, which count once.
            scatter = partial(jax.lax.psum_scatter, axis_name=self.width, scatter_dimension=0, tiled=True)
            gradient_DV = scatter(gradient_DV) / (1 if self.width in self.batch else jax.lax.axis_size(self.width))
        return jax.lax.psum(gradient_DV, others) if others else gradient_DV


@dataclass(frozen=True)
class HeadLoss:
    """The head and its cross-entropy, a chunk of tokens after the other, each on every device of a mesh.

    The gradient is computed with the loss, chunk by chunk, so that logits are neither kept nor computed again. Logits,
    softmax and the weight's gradient are fp32; the logits' gradient is multiplied in the dtype of the activations.

    Attributes:
      vocab_size: Ids below it are real, the others pad the table.
      chunk: Most tokens of a device for which logits exist at once; null: all.
      mesh: Devices, along `MESH_AXES`: instances divided by `data` and `fsdp`, the weight by `fsdp` and `tensor`. The
        weight is gathered once and its gradient added up once, whatever the number of chunks. Null: one device.
    """

    vocab_size: int
    chunk: int | None = None
    mesh: Mesh | None = None

    def nats(self, x_BTD: jax.Array, weight_DV: jax.Array, labels_BT: jax.Array) -> jax.Array:
        """nats_BT: cross-entropy of each label, 0 where it is negative.

        Args:
          x_BTD: What the head reads.
          weight_DV: Of the head; V is padded.
          labels_BT: Ids.
        """

        def on_device(x: jax.Array, weight: jax.Array, labels: jax.Array, part: Part) -> jax.Array:
            weight = part.whole(weight.astype(x.dtype))
            found = jax.lax.map(lambda chunk: self._chunk(chunk, weight, part).nats_C, self._chunks(x, labels))
            return found.reshape(-1)[: labels.size].reshape(labels.shape)

        return self._on_mesh(on_device, (x_BTD, weight_DV, labels_BT), lambda x, weight, labels: labels)

    def loss(
        self, x_BTD: jax.Array, weight_DV: jax.Array, labels_BT: jax.Array, *, z_weight: float, divisor: jax.Array
    ) -> Losses:
        """(total, (loss, z_loss)): sums over the labels that are not negative, divided by `divisor`.

        `loss` is cross-entropy, `z_loss` the squared log-partition times `z_weight`, `total` their sum. Only `total`
        has a gradient. Arguments as of `nats`.
        """
        return _loss(self, z_weight, x_BTD, weight_DV, labels_BT, divisor)

    def _chunks(self, x_BTD: jax.Array, labels_BT: jax.Array) -> Tokens:
        """Tokens as [chunks, C, ...], the last filled up with labels that do not count."""
        x_ND, labels_N = x_BTD.reshape(-1, x_BTD.shape[-1]), labels_BT.reshape(-1)
        count = -(-labels_N.size // (self.chunk or labels_N.size))
        size = -(-labels_N.size // count)
        missing = count * size - labels_N.size
        x_ND = jnp.pad(x_ND, ((0, missing), (0, 0)))
        labels_N = jnp.pad(labels_N, (0, missing), constant_values=-1)
        return x_ND.reshape(count, size, -1), labels_N.reshape(count, size)

    def _chunk(self, tokens: Tokens, weight_DV: jax.Array, part: Part) -> Chunk:
        """The label's logit is picked by a comparison, not by a gather: on no device is that slow."""
        x_CD, labels_C = tokens
        ids_V = part.first_id(weight_DV.shape[1]) + jnp.arange(weight_DV.shape[1])
        logits_CV = jnp.dot(x_CD, weight_DV, preferred_element_type=jnp.float32)
        logits_CV = jnp.where(ids_V < self.vocab_size, logits_CV, IMPOSSIBLE)
        largest_C = part.largest(logits_CV.max(axis=-1))
        exp_CV = jnp.exp(logits_CV - largest_C[:, None])
        sum_C = part.added(exp_CV.sum(axis=-1))
        is_label_CV = ids_V == labels_C[:, None]
        label_logit_C = part.added(jnp.where(is_label_CV, logits_CV, 0.0).sum(axis=-1))
        counted_C, partition_C = labels_C >= 0, largest_C + jnp.log(sum_C)
        return Chunk(
            jnp.where(counted_C, partition_C - label_logit_C, 0.0),
            jnp.where(counted_C, partition_C, 0.0),
            counted_C,
            exp_CV / sum_C[:, None],
            is_label_CV,
        )

    def _on_mesh(self, function: Callable[..., Any], arrays: tuple[jax.Array, ...], out: Callable[..., Any]) -> Any:
        """`function(x, weight, labels, ..., part)` of each device's parts; `out` picks the layouts of its results."""
        if self.mesh is None:
            return function(*arrays, Part())
        x_BTD, weight_DV, labels_BT, *scalars = arrays
        x = divided(self.mesh, x_BTD.shape, (BATCH_AXES,))
        weight = divided(self.mesh, weight_DV.shape, ("fsdp", "tensor"))
        labels = divided(self.mesh, labels_BT.shape, (BATCH_AXES,))
        part = Part(x[0] or (), *weight)
        specs = (x, weight, labels, *(WHOLE for _ in scalars))
        on_mesh = jax.shard_map(
            partial(function, part=part),
            mesh=self.mesh,
            in_specs=specs,
            out_specs=out(*specs[:3]),
            check_vma=False,
        )
        return on_mesh(*arrays)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _loss(
    head: HeadLoss, z_weight: float, x_BTD: jax.Array, weight_DV: jax.Array, labels_BT: jax.Array, divisor: jax.Array
) -> Losses:
    on_device = partial(_on_device, head, z_weight, False)
    arrays = (x_BTD, weight_DV, labels_BT, divisor)
    return _totals(*head._on_mesh(on_device, arrays, lambda x, weight, labels: (WHOLE, WHOLE)))


def _forward(
    head: HeadLoss, z_weight: float, x_BTD: jax.Array, weight_DV: jax.Array, labels_BT: jax.Array, divisor: jax.Array
) -> tuple[Losses, tuple[jax.Array, jax.Array]]:
    on_device = partial(_on_device, head, z_weight, True)
    arrays = (x_BTD, weight_DV, labels_BT, divisor)
    *losses, dx_BTD, dweight_DV = head._on_mesh(on_device, arrays, lambda x, weight, labels: (WHOLE, WHOLE, x, weight))
    return _totals(*losses), (dx_BTD, dweight_DV.astype(weight_DV.dtype))


def _backward(head: HeadLoss, z_weight: float, gradient: tuple[jax.Array, jax.Array], cotangents: Losses) -> Any:
    total, dx_BTD, dweight_DV = cotangents[0], *gradient
    return (total * dx_BTD).astype(dx_BTD.dtype), (total * dweight_DV).astype(dweight_DV.dtype), None, None


_loss.defvjp(_forward, _backward)


def _totals(loss: jax.Array, z_loss: jax.Array) -> Losses:
    return loss + z_loss, (loss, z_loss)


def _on_device(
    head: HeadLoss,
    z_weight: float,
    with_gradient: bool,
    x_BTD: jax.Array,
    weight_DV: jax.Array,
    labels_BT: jax.Array,
    divisor: jax.Array,
    part: Part,
) -> tuple[jax.Array, ...]:
    """Both losses of the instances of all devices, and the gradient of their sum by this device's x and weight."""
    whole_DV = part.whole(weight_DV.astype(x_BTD.dtype))

    def add(sums: tuple[jax.Array, ...], tokens: Tokens) -> tuple[tuple[jax.Array, ...], jax.Array | None]:
        chunk = head._chunk(tokens, whole_DV, part)
        nats, squares, *gradient = sums
        nats, squares = nats + chunk.nats_C.sum(), squares + jnp.square(chunk.partition_C).sum()
        if not with_gradient:
            return (nats, squares), None
        slope_C1 = (chunk.counted_C / divisor)[:, None]
        by_partition_C1 = slope_C1 * (1 + 2 * z_weight * chunk.partition_C[:, None])
        dlogits_CV = by_partition_C1 * chunk.probability_CV - jnp.where(chunk.is_label_CV, slope_C1, 0.0)
        dlogits_CV = dlogits_CV.astype(x_BTD.dtype)
        dweight_DV = jnp.dot(tokens[0].T, dlogits_CV, preferred_element_type=jnp.float32)
        return (nats, squares, gradient[0] + dweight_DV), jnp.dot(dlogits_CV, whole_DV.T)

    sums = (jnp.float32(0), jnp.float32(0), *[jnp.zeros(whole_DV.shape, jnp.float32)] * with_gradient)
    (nats, squares, *gradient), dx_chunks = jax.lax.scan(add, sums, head._chunks(x_BTD, labels_BT))
    losses = part.of_all_instances(nats) / divisor, z_weight * part.of_all_instances(squares) / divisor
    if dx_chunks is None:
        return losses
    dx_ND = part.added(dx_chunks.reshape(-1, x_BTD.shape[-1])[: labels_BT.size])
    return *losses, dx_ND.reshape(x_BTD.shape), part.weight_gradient(gradient[0])
