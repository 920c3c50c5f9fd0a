"""Text by sampling: a look at what the model writes, not a measurement."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding


def sample(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    prompts: Sequence[np.ndarray],
    *,
    key: jax.Array,
    new_tokens: int,
    temperature: float,
    vocab: int,
    eos: int,
    whole: NamedSharding | None = None,
) -> list[np.ndarray]:
    """Continuations of the prompts, each of at most `new_tokens` tokens and cut at the first end of document.

    Every prompt is read after an end of document. The whole text is run through the model for each new token, all
    prompts at once, in one compiled loop: simple, and quick enough for a few hundred tokens.

    Args:
      prompts: Token ids.
      key: Decides the draw; the same key gives the same text.
      temperature: Divides the logits; 0 takes the likeliest token.
      vocab: Ids below this can be drawn (the tables may be padded beyond it).
      eos: End of document.
      whole: Where the text lies, so that every process of a run can read it.
    """
    lengths = np.array([len(prompt) + 1 for prompt in prompts])
    width = int(lengths.max()) + new_tokens
    start_PT = np.full((len(prompts), width), eos, np.int32)
    for prompt, row in zip(prompts, start_PT, strict=True):
        row[1 : 1 + len(prompt)] = prompt

    @partial(jax.jit, out_shardings=whole)
    def run(params: nnx.State, tokens_PT: jax.Array, lengths_P: jax.Array, key: jax.Array) -> jax.Array:
        rows = jnp.arange(tokens_PT.shape[0])

        def extend(n: jax.Array, tokens_PT: jax.Array) -> jax.Array:
            logits_PV = nnx.merge(graphdef, params)(tokens_PT)[rows, lengths_P + n - 1, :vocab]
            if temperature == 0:
                drawn_P = logits_PV.argmax(axis=-1)
            else:
                drawn_P = jax.random.categorical(jax.random.fold_in(key, n), logits_PV / temperature)
            return tokens_PT.at[rows, lengths_P + n].set(drawn_P.astype(jnp.int32))

        return jax.lax.fori_loop(0, new_tokens, extend, tokens_PT)

    done_PT = np.asarray(run(params, start_PT, lengths, key))
    return [until(row[length : length + new_tokens], eos) for row, length in zip(done_PT, lengths, strict=True)]


def until(tokens: np.ndarray, eos: int) -> np.ndarray:
    """The tokens before the first end of document."""
    ends = np.flatnonzero(tokens == eos)
    return tokens[: ends[0]] if len(ends) else tokens
