"""Causal self-attention: projections, norms on queries and keys, rotation, and a kernel in the middle."""

import jax
from flax import nnx

from olmo_hydra.config.model import QKNorm
from olmo_hydra.config.remat import Point
from olmo_hydra.model import norm
from olmo_hydra.model.init import Init
from olmo_hydra.model.kernels import Attend
from olmo_hydra.model.linear import Linear
from olmo_hydra.model.rope import Rope, rotate


class SelfAttention(nnx.Module):
    """Projections, norms and rotation around `attend`.

    `qk_norm=projection` normalises all heads of a projection at once (Olmo 2 and 3, arXiv 2501.00656), `head` each head
    by itself with one gain for all of them; both before the rotation.
    """

    def __init__(self, init: Init, attend: Attend):
        cfg = init.cfg
        assert cfg.n_heads is not None and cfg.n_kv_heads is not None
        self.head_dim = cfg.head_dim
        q_width, kv_width = cfg.n_heads * cfg.head_dim, cfg.n_kv_heads * cfg.head_dim
        self.attend = attend
        self.q = Linear(init.matrix((cfg.d_model, q_width), ("embed", "heads")), point=Point.q)
        self.k = Linear(init.matrix((cfg.d_model, kv_width), ("embed", "kv_heads")), point=Point.k)
        self.v = Linear(init.matrix((cfg.d_model, kv_width), ("embed", "kv_heads")), point=Point.v)
        self.out = Linear(init.matrix((q_width, cfg.d_model), ("heads", "embed"), adds=True), point=Point.out)
        self.qk_norm = cfg.qk_norm
        if cfg.qk_norm is QKNorm.projection:
            self.q_norm = norm.build(cfg, q_width, "heads")
            self.k_norm = norm.build(cfg, kv_width, "kv_heads")
        elif cfg.qk_norm is QKNorm.head:
            self.q_norm = norm.build(cfg, cfg.head_dim, "head_dim")
            self.k_norm = norm.build(cfg, cfg.head_dim, "head_dim")

    def __call__(
        self, x_BTD: jax.Array, rope: Rope, window: int | None, segments_BT: jax.Array | None = None
    ) -> jax.Array:
        with jax.named_scope("attention"):
            q, k = self.q(x_BTD), self.k(x_BTD)
            if self.qk_norm is QKNorm.projection:
                q, k = self.q_norm(q), self.k_norm(k)
            q_BTHD, k_BSKD, v_BSKD = (self._heads(x) for x in (q, k, self.v(x_BTD)))
            if self.qk_norm is QKNorm.head:
                q_BTHD, k_BSKD = self.q_norm(q_BTHD), self.k_norm(k_BSKD)
            q_BTHD, k_BSKD = rotate(q_BTHD, rope), rotate(k_BSKD, rope)
            scale = self.head_dim**-0.5
            y_BTHD = self.attend(q_BTHD, k_BSKD, v_BSKD, window=window, scale=scale, segments_BT=segments_BT)
            return self.out(y_BTHD.reshape(*x_BTD.shape[:-1], -1))

    def _heads(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:-1], -1, self.head_dim)
