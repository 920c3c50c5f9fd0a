"""Parameters by name: the dotted path by which people address one, and the logical axes it carries."""

from typing import Any

import jax
from flax import nnx

Tree = Any


def named(params: Tree) -> dict[str, Any]:
    """The leaves of a tree of parameters by name (`blocks.0.attention.q.weight`), in the tree's order.

    Takes an `nnx.State` or the nested dict of `nnx.to_pure_dict`; leaves are arrays, shapes or anything else.
    """
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def param_names(params: Tree) -> Tree:
    """The same tree with each leaf's name in its place."""
    return jax.tree_util.tree_map_with_path(lambda path, _: _name(path), params)


def param_axes(state: nnx.State) -> Tree:
    """The same tree with each leaf's logical axes, a tuple of names, in its place.

    Read it with `is_leaf=lambda x: isinstance(x, tuple)`: a tuple is a tree too.
    """
    variables = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, nnx.Variable))
    axes = [variable.get_metadata()["axes"] for variable in variables]
    return jax.tree.unflatten(jax.tree.structure(state), axes)


def _name(path: tuple[Any, ...]) -> str:
    # A state's path ends in the attribute `value` of the nnx.Param; the names are the dictionary keys before it.
    return ".".join(str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey))
