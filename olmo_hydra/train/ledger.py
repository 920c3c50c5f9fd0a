"""Which instances an epoch has read: a bit an instance on the devices, and totals on the host.

Shapes: A micro-batches, B instances of one, L labels, W words of 32 bits, E examples.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from olmo_hydra.hardware.sharding import replicated

Array = jax.Array | np.ndarray

BLOCK = 1024  # words: every number of devices that divides it shares the ledger, and none changes its shape
EXAMPLES = 8
NO_INSTANCE = 2**32 - 1  # past the number of every instance


class Read(NamedTuple):
    """What was read for a global batch, laid out on the devices as its tokens are."""

    instances_AB: Array  # uint32
    by_label_ABL: Array  # int32, tokens
    masked_AB: Array  # bool, whether the repetition filter took its targets


class Found(NamedTuple):
    """What the ledger says of a batch, on the devices."""

    repeated: jax.Array  # of its instances
    examples_E: jax.Array  # their numbers, `NO_INSTANCE` where there are fewer
    by_label_L: jax.Array  # tokens
    masked: jax.Array  # tokens


@dataclass
class Totals:
    """Of the run so far, but for `consumed` and `repeated`: instances of the epoch, and those read in it before."""

    epoch: int = 0
    consumed: int = 0
    repeated: int = 0
    masked_tokens: int = 0
    tokens: dict[str, int] = field(default_factory=dict)

    @property
    def seen(self) -> int:
        """Different instances of the epoch."""
        return self.consumed - self.repeated


class Ledger:
    """Marks the instances that updates consume and counts those that an epoch has read before.

    What is marked are the numbers that lie on the devices beside the tokens, so that it counts what was trained on,
    whichever processes read it.

    Args:
      n_instances: In the corpus.
      labels: Of its files.
      mesh: Devices of the run, which share the bits where they divide them.
    """

    def __init__(self, n_instances: int, labels: Sequence[str], mesh: Mesh):
        words = -(-n_instances // (32 * BLOCK)) * BLOCK
        shared = words % mesh.size == 0
        sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names)) if shared else replicated(mesh)
        self.abstract = jax.ShapeDtypeStruct((words,), jnp.uint32, sharding=sharding)
        self.totals = Totals(tokens=dict.fromkeys(labels, 0))
        self.labels, self._n_instances = list(labels), n_instances
        self._empty = jax.jit(lambda: jnp.zeros(words, jnp.uint32), out_shardings=sharding)
        self._mark: Any = jax.jit(mark, donate_argnums=0, out_shardings=(sharding, replicated(mesh)))
        self.words_W = self._empty()

    def compile(self, example: Read) -> None:
        """Compiles what `mark` does for batches as `example`, which may be shapes with shardings."""
        self._mark = self._mark.lower(self.words_W, example).compile()

    def mark(self, read: Read, *, begins_epoch: bool) -> Found:
        """Marks a batch; does not wait for the devices. An epoch begins with no instance marked."""
        if begins_epoch:
            self.words_W = self._empty()
        self.words_W, found = self._mark(self.words_W, read)
        return found

    def count(self, epoch: int, instances: int, found: Found) -> dict[str, Any]:
        """Adds a batch of `instances` to the totals, and gives them as the metrics of its update.

        `data/seen_fraction` is of the corpus, `data/repeated_fraction` of what the epoch has consumed; tokens are of
        the whole run.
        """
        totals = self.totals
        if epoch != totals.epoch:
            totals.epoch, totals.consumed, totals.repeated = epoch, 0, 0
        totals.consumed += instances
        totals.repeated += int(found.repeated)
        totals.masked_tokens += int(found.masked)
        for label, tokens in zip(self.labels, np.asarray(found.by_label_L).tolist(), strict=True):
            totals.tokens[label] += tokens
        return {
            "data/epoch": epoch,
            "data/seen_fraction": totals.seen / self._n_instances,
            "data/repeated_fraction": totals.repeated / totals.consumed,
            "data/masked_tokens": totals.masked_tokens,
            **{f"data/tokens/{label}": tokens for label, tokens in totals.tokens.items()},
        }

    def state(self) -> dict[str, Any]:
        """The totals as JSON holds them."""
        return asdict(self.totals)

    def restore(self, totals: dict[str, Any], words_W: jax.Array | None) -> None:
        """Goes on from what a checkpoint kept. Without its bits the epoch is counted from here on."""
        self.totals = Totals(**totals)
        self.totals.tokens = dict.fromkeys(self.labels, 0) | self.totals.tokens
        if words_W is None:
            self.totals.epoch = 0
        else:
            self.words_W = words_W


def mark(words_W: jax.Array, read: Read) -> tuple[jax.Array, Found]:
    """The bits with those of a batch set, and what was set before; an instance twice in the batch counts as well.

    Bit `i % 32` of word `i // 32` is instance i's.
    """
    instances_B = jnp.sort(read.instances_AB.reshape(-1))
    words_B, bits_B = instances_B >> 5, jnp.uint32(1) << (instances_B & 31)
    before_B = (words_W[words_B] & bits_B) != 0
    twice_B = jnp.pad(instances_B[1:] == instances_B[:-1], (1, 0))
    repeated_B = before_B | twice_B
    # Adding a bit sets it, as it is not set yet: unlike `|`, it gives the same where several fall into one word.
    words_W = words_W.at[words_B].add(jnp.where(repeated_B, 0, bits_B))
    examples_B = jnp.sort(jnp.where(repeated_B, instances_B, jnp.uint32(NO_INSTANCE)))
    found = Found(
        repeated=repeated_B.sum(),
        examples_E=examples_B[:EXAMPLES],
        by_label_L=read.by_label_ABL.sum((0, 1)),
        masked=(read.by_label_ABL.sum(-1) * read.masked_AB).sum(),
    )
    return words_W, found


def examples(found: Found) -> list[int]:
    """Numbers of some instances that were read again."""
    return [number for number in np.asarray(found.examples_E).tolist() if number != NO_INSTANCE]
