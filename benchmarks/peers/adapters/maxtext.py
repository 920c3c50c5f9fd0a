"""MaxText's own train step."""

import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import maxtext
import numpy as np
from flax import nnx
from flax.core.spmd import logical_axis_rules
from maxtext.trainers.pre_train import train
from maxtext.utils import sharding, train_utils

from benchmarks.peers.worker import Loaded

# Its names -> Hugging Face's.
AROUND = {
    "token_embedder": "model.embed_tokens.weight",
    "decoder_norm": "model.norm.weight",
    "logits_dense": "lm_head.weight",
}
LAYER = {
    "attention.query": "self_attn.q_proj.weight",
    "attention.key": "self_attn.k_proj.weight",
    "attention.value": "self_attn.v_proj.weight",
    "attention.out": "self_attn.o_proj.weight",
    "attention.query_norm": "self_attn.q_norm.weight",
    "attention.key_norm": "self_attn.k_norm.weight",
    "mlp.wi_0": "mlp.gate_proj.weight",
    "mlp.wi_1": "mlp.up_proj.weight",
    "mlp.wo": "mlp.down_proj.weight",
    "post_self_attention_layer_norm": "post_attention_layernorm.weight",
    "post_mlp_layer_norm": "post_feedforward_layernorm.weight",
}
REMAT = {"none": "minimal_with_context", "full": "full"}  # its `none` recomputes as much as `full`


def arguments(job: dict[str, Any], folder: str) -> list[str]:
    """MaxText's command line for a job, with its defaults where the job is silent: a scan over layers, for one."""
    model, optim = job["model"], job["optim"]
    return [
        "",
        str(Path(maxtext.__file__).parent / "configs" / "base.yml"),
        "model_name=olmo3-7b-pt",
        "override_model_config=True",
        f"base_output_directory={folder}",
        "run_name=peer",
        f"hardware={job['device']}",
        "skip_jax_distributed_system=True",
        "enable_checkpointing=False",
        "enable_goodput_recording=False",
        "dataset_type=synthetic",
        "steps=1000000",
        f"base_emb_dim={model['d_model']}",
        f"base_num_decoder_layers={model['n_layers']}",
        f"base_num_query_heads={model['n_heads']}",
        f"base_num_kv_heads={model['n_heads']}",
        f"head_dim={model['head_dim']}",
        f"base_mlp_dim={model['d_ff']}",
        f"vocab_size={model['vocab_size']}",
        f"sliding_window_size={model['window']}",
        f"rope_max_timescale={int(model['rope_theta'])}",
        f"normalization_layer_epsilon={model['norm_eps']}",
        f"max_target_length={job['seq_len']}",
        f"per_device_batch_size={job['micro_batch'] or job['batch']}",
        f"gradient_accumulation_steps={job['batch'] // (job['micro_batch'] or job['batch'])}",
        f"dtype={job['compute_dtype']}",
        "weight_dtype=float32",
        "mu_dtype=float32",
        "attention=dot_product",
        f"remat_policy={REMAT[job['remat']]}",
        f"learning_rate={optim['lr']}",
        "learning_rate_final_fraction=1.0",
        "warmup_steps_fraction=0.0",
        f"adam_b1={optim['b1']}",
        f"adam_b2={optim['b2']}",
        f"adam_eps={optim['eps']}",
        f"adam_weight_decay={optim['weight_decay']}",
        "adamw_mask=['token_embedder']",
        f"gradient_clipping_threshold={optim['clip_norm']}",
        "z_loss_multiplier=0.0",
    ]


def load(job: dict[str, Any]) -> Loaded:
    with tempfile.TemporaryDirectory() as folder:
        config, recorder = train.initialize(arguments(job, folder))
        _, _, shardings, _, mesh, *_, made = train_utils.setup_train_loop(config, recorder)
    params = nnx.state(made.model, nnx.Param)
    if job["weights"]:
        nnx.update(made.model, filled(params, job))
    graph, state = nnx.split(made)
    params_shardings, shardings = sharding.maybe_update_params_sharding_with_opt(config, shardings)
    step, _ = train_utils.jit_train_and_eval_step(
        config, graph, mesh, state, shardings, train.train_step, params_shardings=params_shardings
    )
    data_sharding = sharding.get_input_data_sharding(config, mesh)
    shape = (job["batch"], job["seq_len"])
    positions_BT = np.broadcast_to(np.arange(job["seq_len"], dtype=np.int32), shape)
    segments_BT = np.ones(shape, np.int32)

    def update(tokens_BT: np.ndarray, labels_BT: np.ndarray) -> jax.Array:
        nonlocal state
        batch = {}
        for name, ids_BT in (("inputs", tokens_BT), ("targets", labels_BT)):
            arrays = {"": ids_BT.astype(np.int32), "_position": positions_BT, "_segmentation": segments_BT}
            batch |= {name + suffix: jax.device_put(array, data_sharding) for suffix, array in arrays.items()}
        with jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
            state, metrics = step(state, batch)
        return metrics["scalar"]["learning/loss"]

    versions = {name: version(name) for name in ("maxtext", "jax", "jaxlib", "flax")}
    return Loaded(update, sum(leaf.size for leaf in jax.tree.leaves(params)), versions)


def filled(params: nnx.State, job: dict[str, Any]) -> nnx.State:
    """Its parameters with the weights of a job. Those of layers are stacked along their second axis."""
    period = len(job["model"]["pattern"])
    with np.load(job["weights"]) as weights:

        def value(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
            keys = [str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey)]
            if keys[:2] != ["decoder", "layers"]:
                array = weights[AROUND[keys[-2]]]
                array = array.T if keys[-2] == "logits_dense" else array
            else:
                first, name = int(keys[2].removeprefix("layers_")), LAYER[".".join(keys[3:-1])]
                shape = (leaf.shape[0], *leaf.shape[2:])
                layers = range(first, job["model"]["n_layers"], period)
                array = np.stack([weights[f"model.layers.{i}.{name}"].T.reshape(shape) for i in layers], axis=1)
            return jax.device_put(array, leaf.sharding)

        return jax.tree_util.tree_map_with_path(value, params)
