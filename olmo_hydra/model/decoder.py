"""The whole decoder: input table, layers, final norm, head."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from olmo_hydra.config.data import Positions
from olmo_hydra.config.hardware import LayerLoop
from olmo_hydra.config.model import Attention, ModelConfig
from olmo_hydra.config.remat import Point, Remat
from olmo_hydra.model import norm, rope
from olmo_hydra.model.block import Block
from olmo_hydra.model.head_loss import IMPOSSIBLE, HeadLoss
from olmo_hydra.model.init import Init
from olmo_hydra.model.kernels import Attend, xla
from olmo_hydra.model.layout import ONE_DEVICE, Layout
from olmo_hydra.model.linear import Embedding

Tree = Any


def build(
    cfg: ModelConfig,
    *,
    rngs: nnx.Rngs,
    layer_loop: LayerLoop,
    remat: Remat,
    on_host: frozenset[Point] = frozenset(),
    attend: Attend = xla.attention,
    positions: Positions = Positions.continued,
    layout: Layout = ONE_DEVICE,
    loss_chunk: int | None = None,
) -> "Decoder":
    """The decoder that a config describes, with initial parameters drawn from the `params` stream of `rngs`.

    `cfg` is derived and checked. `layer_loop`, `remat`, `on_host` (what lies in the host's memory of what `remat`
    keeps) and `attend` change how it is computed, never its parameters or values. `positions` says whether rotations
    run through a row or start at each of its documents. `layout` says where activations lie on a mesh, `loss_chunk` for
    how many tokens of a device logits exist at once in a loss (null: all). Under `nnx.eval_shape` nothing is allocated.
    """
    return Decoder(
        cfg,
        rngs=rngs,
        layer_loop=layer_loop,
        remat=remat,
        on_host=on_host,
        attend=attend,
        positions=positions,
        layout=layout,
        loss_chunk=loss_chunk,
    )


@dataclass(frozen=True)
class Layer:
    """What sets apart the layers at one position of the window pattern."""

    window: int | None
    frequencies: rope.Frequencies


class Decoder(nnx.Module):
    """A decoder-only transformer with an untied head.

    `blocks[i]` holds every layer at position i of `cfg.window_pattern`, stacked: its parameters have a leading axis
    `layers` of `n_layers / period`, whichever way the layers are looped over, so that checkpoints do not depend on it.
    """

    def __init__(
        self,
        cfg: ModelConfig,
        *,
        rngs: nnx.Rngs,
        layer_loop: LayerLoop,
        remat: Remat,
        on_host: frozenset[Point],
        attend: Attend,
        positions: Positions,
        layout: Layout,
        loss_chunk: int | None,
    ):
        flat = not layout.divides_positions
        init = Init(cfg, rngs, one_token_axis=flat)
        table = init.embedding((cfg.padded_vocab, cfg.d_model), ("vocab", "embed"))
        self.embedding = Embedding(table, cfg.compute_dtype)
        self.blocks = stacked_blocks(cfg, rngs, attend, one_token_axis=flat)
        self.final_norm = norm.build(cfg, cfg.d_model, "embed")
        self.head = init.head((cfg.d_model, cfg.padded_vocab), ("embed", "vocab"))
        self.layers = tuple(
            Layer(cfg.window if kind is Attention.sliding else None, rope.frequencies(cfg, kind))
            for kind in cfg.window_pattern
        )
        self.head_loss = HeadLoss(cfg.vocab_size, loss_chunk, layout.mesh)
        self.layer_loop, self.positions, self.layout = layer_loop, positions, layout
        self.remat, self.on_host = remat, on_host

    def __call__(self, tokens_BT: jax.Array, segments_BT: jax.Array | None = None) -> jax.Array:
        """logits_BTV in fp32, with V the padded vocabulary; position t predicts token t+1.

        Args:
          tokens_BT: Ids.
          segments_BT: Number of the document that each position belongs to; none sees another. Null: one document.
        """
        x_BTD = self._read_by_head(tokens_BT, segments_BT)
        with jax.named_scope("head"):
            logits_BTV = self.head(x_BTD)
            return jnp.where(jnp.arange(logits_BTV.shape[-1]) < self.head_loss.vocab_size, logits_BTV, IMPOSSIBLE)

    def nats(self, tokens_BT: jax.Array, labels_BT: jax.Array) -> jax.Array:
        """nats_BT: cross-entropy of each label, fp32; 0 where it is negative. No logits of all tokens exist."""
        x_BTD = self._read_by_head(tokens_BT, None)
        with jax.named_scope("head"):
            return self.head_loss.nats(x_BTD, self.head.weight[...], labels_BT)

    def loss(
        self,
        tokens_BT: jax.Array,
        labels_BT: jax.Array,
        segments_BT: jax.Array | None,
        *,
        z_weight: float,
        divisor: jax.Array,
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """(total, (loss, z_loss)) of all labels that are not negative; see `HeadLoss.loss`."""
        x_BTD = self._read_by_head(tokens_BT, segments_BT)
        with jax.named_scope("head"):
            weight_DV = self.head.weight[...]
            return self.head_loss.loss(x_BTD, weight_DV, labels_BT, z_weight=z_weight, divisor=divisor)

    def _read_by_head(self, tokens_BT: jax.Array, segments_BT: jax.Array | None) -> jax.Array:
        with jax.named_scope("embedding"):
            x_BTD = self.layout.lookup(self.embedding, tokens_BT)
        with jax.named_scope("blocks"):
            x_BTD = self._layers(x_BTD, segments_BT)
        with jax.named_scope("head"):
            return self.final_norm(x_BTD)

    def residuals(self, tokens_BT: jax.Array, segments_BT: jax.Array | None = None) -> jax.Array:
        """residual_LBTD: what the first layer reads and the output of every layer, to compare models layer by layer."""
        residuals = [self.embedding(tokens_BT)]
        apply = self._apply(tokens_BT.shape[1], segments_BT)
        for blocks in unstacked(self.blocks):
            for block, layer in zip(blocks, self.layers, strict=True):
                residuals.append(apply(residuals[-1], block, layer))
        return jnp.stack(residuals)

    def _apply(self, positions: int, segments_BT: jax.Array | None) -> Callable[[jax.Array, Block, Layer], jax.Array]:
        """One layer on the residual stream, with its rotations made once for all layers."""
        if self.positions is Positions.restarted and segments_BT is not None:
            at = rope.restarted(segments_BT)
        else:
            at = jnp.arange(positions)
        rotations = {f: rope.tables(f, at) for f in {layer.frequencies for layer in self.layers}}

        def apply(x_BTD: jax.Array, block: Block, layer: Layer) -> jax.Array:
            return self.layout.stream(block(x_BTD, rotations[layer.frequencies], layer.window, segments_BT))

        return apply

    def _layers(self, x_BTD: jax.Array, segments_BT: jax.Array | None) -> jax.Array:
        apply = self._apply(x_BTD.shape[1], segments_BT)
        if self.remat is not Remat.none:
            # In a scan the two passes are separate loops, and nothing can undo the recomputation by sharing work.
            prevent_cse = self.layer_loop is LayerLoop.unrolled
            policy = jax.checkpoint_policies.save_and_offload_only_these_names(
                names_which_can_be_saved=[point.value for point in self.remat.kept - self.on_host],
                names_which_can_be_offloaded=[point.value for point in self.on_host],
                offload_src="device",
                offload_dst="pinned_host",
            )
            apply = jax.checkpoint(apply, prevent_cse=prevent_cse, policy=policy, static_argnums=2)

        def period(x_BTD: jax.Array, blocks: nnx.List[Block]) -> tuple[jax.Array, None]:
            for block, layer in zip(blocks, self.layers, strict=True):
                if self.remat is not Remat.none:
                    x_BTD, block = in_turn((x_BTD, block))
                x_BTD = apply(x_BTD, block, layer)
            return x_BTD, None

        if self.layer_loop is LayerLoop.scan:
            return jax.lax.scan(period, x_BTD, self.blocks)[0]
        for blocks in unstacked(self.blocks):
            x_BTD, _ = period(x_BTD, blocks)
        return x_BTD


@jax.custom_vjp
def in_turn(tree: Tree) -> Tree:
    """The same; no gradient by any leaf is there before the gradients by all are.

    Before a layer, with its parameters: the gradient by these is not put off until those of all layers in a row are
    due, each with what the layer has computed again. Over eight devices of Ironwood, Olmo 3 7B then needs 11.9 GiB of
    temporaries instead of 14.9 (tests/hardware/test_seven_billion.py), for 0.3 % more of the compiler's cycles.
    """
    return tree


in_turn.defvjp(lambda tree: (tree, None), lambda _, gradients: (jax.lax.optimization_barrier(gradients),))


def stacked_blocks(cfg: ModelConfig, rngs: nnx.Rngs, attend: Attend, *, one_token_axis: bool = True) -> nnx.List[Block]:
    """A block for each position of the window pattern, with the layers at that position stacked.

    Layers are drawn in their order in the model and dealt out afterwards, so that two patterns start from the same
    values, and one drawing is compiled whatever the length of the pattern.
    """

    def draw(key: jax.Array, layer: jax.Array) -> Block:
        return Block(Init(cfg, nnx.Rngs(key), layer, one_token_axis), attend)

    layers = jax.vmap(draw)(jax.random.split(rngs.params(), cfg.n_layers), jnp.arange(cfg.n_layers))
    for param in jax.tree.leaves(layers, is_leaf=lambda x: isinstance(x, nnx.Param)):
        param.set_metadata(axes=("layers", *param.get_metadata()["axes"]))
    period = len(cfg.window_pattern)
    return nnx.List([jax.tree.map(lambda leaf, i=i: leaf[i::period], layers) for i in range(period)])


def unstacked(blocks: Tree) -> list[Tree]:
    """The trees along the leading axis, split at once: the gradient is one concatenation, not a scatter a layer."""
    leaves, treedef = jax.tree.flatten(blocks)
    layers = zip(*(jnp.split(leaf, leaf.shape[0]) for leaf in leaves), strict=True)
    return [jax.tree.unflatten(treedef, [leaf.reshape(leaf.shape[1:]) for leaf in layer]) for layer in layers]
