import jax
from flax import nnx

from olmo_hydra.config.model import Attention, QKNorm
from olmo_hydra.model.params import named, param_axes, param_names

AXES = {
    "attention.k.weight": ("layers", "embed", "kv_heads"),
    "attention.k_norm.weight": ("layers", "kv_heads"),
    "attention.out.weight": ("layers", "heads", "embed"),
    "attention.q.weight": ("layers", "embed", "heads"),
    "attention.q_norm.weight": ("layers", "heads"),
    "attention.v.weight": ("layers", "embed", "kv_heads"),
    "attention_norm.weight": ("layers", "embed"),
    "mlp.down.weight": ("layers", "mlp", "embed"),
    "mlp.gate.weight": ("layers", "embed", "mlp"),
    "mlp.up.weight": ("layers", "embed", "mlp"),
    "mlp_norm.weight": ("layers", "embed"),
}
OUTER_AXES = {
    "embedding.weight": ("vocab", "embed"),
    "final_norm.weight": ("embed",),
    "head.weight": ("embed", "vocab"),
}


def shapes(build, cfg):
    return nnx.state(nnx.eval_shape(lambda: build(cfg)), nnx.Param)


def is_axes(x):
    return isinstance(x, tuple) and all(isinstance(name, str) for name in x)


def test_names_and_axes(config, build):
    state = shapes(build, config())
    expected = {f"blocks.{i}.{name}": axes for i in (0, 1) for name, axes in AXES.items()} | OUTER_AXES
    names, axes = jax.tree.leaves(param_names(state)), jax.tree.leaves(param_axes(state), is_leaf=is_axes)
    assert dict(zip(names, axes, strict=True)) == expected
    assert list(named(state)) == names
    assert all(named(state)[name].ndim == len(axes) for name, axes in expected.items())


def test_trees_fit_the_state_and_its_plain_dict(config, build):
    state = shapes(build, config())
    jax.tree.map(lambda leaf, name, axes: None, state, param_names(state), param_axes(state))
    plain = nnx.to_pure_dict(state)
    assert set(named(plain)) == set(named(state))
    assert param_names(plain)["blocks"][1]["mlp"]["up"]["weight"] == "blocks.1.mlp.up.weight"


def test_names_do_not_depend_on_depth_but_on_the_pattern(config, build):
    names = set(named(shapes(build, config(n_layers=2))))
    assert names == set(named(shapes(build, config(n_layers=4))))
    three = set(named(shapes(build, config(n_layers=3, window_pattern=[Attention.full] * 3))))
    assert three - names == {f"blocks.2.{name}" for name in AXES}


def test_head_norm_axes(config, build):
    state = shapes(build, config(qk_norm=QKNorm.head))
    assert param_axes(state)["blocks"][0]["attention"]["q_norm"]["weight"].get_value() == ("layers", "head_dim")
