"""The decoder written a second time, from the papers, one layer and one head at a time, in numpy float64."""

import numpy as np

from olmo_hydra.config.model import Attention, BlockNorm, ModelConfig, QKNorm


def rms_norm(x, weight, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def frequency(cfg: ModelConfig, i: int, kind: Attention) -> float:
    """Radians a position of pair i; YaRN as arXiv 2309.00071 writes it, with the ramp over i."""
    f = cfg.rope_theta ** (-2 * i / cfg.head_dim)
    if cfg.yarn_factor is None or kind is Attention.sliding:
        return f
    # The pair that turns n times over the original length has theta^(-2 i / D) * length = 2 pi n.
    low, high = (
        cfg.head_dim / 2 * np.log(cfg.yarn_original_len / (2 * np.pi * n)) / np.log(cfg.rope_theta)
        for n in (cfg.yarn_beta_fast, cfg.yarn_beta_slow)
    )
    low, high = max(np.floor(low), 0), min(np.ceil(high), cfg.head_dim / 2 - 1)
    ramp = min(max((i - low) / max(high - low, 1e-3), 0), 1)
    return (1 - ramp) * f + ramp * f / cfg.yarn_factor


def rotate(cfg: ModelConfig, x_TD, kind: Attention):
    T, D = x_TD.shape
    stretched = cfg.yarn_factor is not None and kind is Attention.full
    length = 0.1 * np.log(cfg.yarn_factor) + 1 if stretched else 1.0
    out = np.empty_like(x_TD)
    for i in range(D // 2):
        pair = x_TD[:, i] + 1j * x_TD[:, i + D // 2]
        turned = length * pair * np.exp(1j * np.arange(T) * frequency(cfg, i, kind))
        out[:, i], out[:, i + D // 2] = turned.real, turned.imag
    return out


def attend(q_TD, k_TD, v_TD, window, segments_T=None):
    out = np.empty_like(v_TD)
    for i in range(len(q_TD)):
        first = 0 if window is None else max(0, i - window + 1)
        seen = [j for j in range(first, i + 1) if segments_T is None or segments_T[j] == segments_T[i]]
        logits = k_TD[seen] @ q_TD[i] / np.sqrt(q_TD.shape[1])
        weights = np.exp(logits - logits.max())
        out[i] = weights / weights.sum() @ v_TD[seen]
    return out


def forward(cfg: ModelConfig, params: dict[str, np.ndarray], tokens_T: np.ndarray) -> np.ndarray:
    """logits_TV of one sequence, over the ids that exist."""
    params = {name: np.asarray(value, np.float64) for name, value in params.items()}
    x = params["embedding.weight"][tokens_T]
    period = len(cfg.window_pattern)
    for layer in range(cfg.n_layers):
        prefix = f"blocks.{layer % period}."
        p = {name.removeprefix(prefix): v[layer // period] for name, v in params.items() if name.startswith(prefix)}
        kind = cfg.window_pattern[layer % period]
        window = cfg.window if kind is Attention.sliding else None

        def attention(x, p=p, window=window, kind=kind):
            q, k, v = (x @ p[f"attention.{name}.weight"] for name in "qkv")
            if cfg.qk_norm is QKNorm.projection:
                q = rms_norm(q, p["attention.q_norm.weight"], cfg.norm_eps)
                k = rms_norm(k, p["attention.k_norm.weight"], cfg.norm_eps)
            heads = []
            for head in range(cfg.n_heads):
                kv_head = head * cfg.n_kv_heads // cfg.n_heads
                cut, kv_cut = (slice(h * cfg.head_dim, (h + 1) * cfg.head_dim) for h in (head, kv_head))
                q_h, k_h = q[:, cut], k[:, kv_cut]
                if cfg.qk_norm is QKNorm.head:
                    q_h = rms_norm(q_h, p["attention.q_norm.weight"], cfg.norm_eps)
                    k_h = rms_norm(k_h, p["attention.k_norm.weight"], cfg.norm_eps)
                q_h, k_h = rotate(cfg, q_h, kind), rotate(cfg, k_h, kind)
                heads.append(attend(q_h, k_h, v[:, kv_cut], window))
            return np.concatenate(heads, -1) @ p["attention.out.weight"]

        def mlp(x, p=p):
            gate = x @ p["mlp.gate.weight"]
            return (gate / (1 + np.exp(-gate)) * (x @ p["mlp.up.weight"])) @ p["mlp.down.weight"]

        for sublayer, name in ((attention, "attention_norm.weight"), (mlp, "mlp_norm.weight")):
            if cfg.block_norm is BlockNorm.reordered:
                x = x + rms_norm(sublayer(x), p[name], cfg.norm_eps)
            else:
                x = x + sublayer(rms_norm(x, p[name], cfg.norm_eps))
    return rms_norm(x, params["final_norm.weight"], cfg.norm_eps) @ params["head.weight"][:, : cfg.vocab_size]
