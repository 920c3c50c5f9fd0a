"""Where a run stands in its data: what a checkpoint keeps of it, and without which none continues."""

from collections.abc import Mapping

from jax.sharding import Mesh

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.root import Config
from olmo_hydra.data import heldout
from olmo_hydra.data.fingerprint import differences
from olmo_hydra.data.loader import Batch
from olmo_hydra.data.opened import Data
from olmo_hydra.train.checkpoint import Checkpoints, Record
from olmo_hydra.train.ledger import Ledger

KEPT = {"position", "fingerprint", "heldout", "ledger"}


class Reading:
    """Position, fingerprint and ledger of a run's data, and what is held out of it.

    Args:
      config: The run.
      data: Its data.
      mesh: Its devices, on which the ledger lies.
      unseen: `digests` of its held-out text.
    """

    def __init__(self, config: Config, data: Data, mesh: Mesh, unseen: Mapping[str, str]):
        self.ledger = Ledger(len(data.source), data.batches.labels, mesh)
        self._config, self._data = config.data, data
        self._sampler, self._fingerprint, self._unseen = data.sampler, data.fingerprint, dict(unseen)

    def record(self, last: Batch) -> Record:
        """What a checkpoint keeps beside the ledger's bits, as JSON, after the update that consumed batch `last`.

        The position is what the stream says of the batch, not what the loop has counted.
        """
        return {
            "position": {
                "batches": last.n + 1,
                "epoch": last.epoch,
                "row": last.row,
                "seed": self._sampler.order.seed,
                "instances": self._sampler.n_instances,
                "order": self._sampler.order.sha256(last.epoch),
            },
            "fingerprint": self._fingerprint,
            "heldout": self._unseen,
            "ledger": self.ledger.state(),
            "olmo_core": self._of_olmo_core(last),
        }

    def restore(self, record: Record, checkpoints: Checkpoints, done: int, *, accept_changed: bool) -> Record | None:
        """Takes up position, totals and ledger where the checkpoint of update `done` left them.

        Args:
          record: What that checkpoint says of the data.
          checkpoints: Of the run.
          done: Updates that the state has seen.
          accept_changed: Goes on with data of another fingerprint, or other held-out text.

        Returns:
          What to tell of data that has changed: the `differences` of what is trained on and of what is `heldout`, the
          number of the epoch that was `begun` with other data (None: with neither), and whether the ledger begins
          anew, for want of the same instances. None: all is the same.

        Raises:
          RequestError: The position is not behind batch `done - 1`, or the data differs and may not; or the checkpoint
            is damaged.
        """
        where = checkpoints.place(done)
        if not set(record) >= KEPT:
            raise RequestError(
                "the checkpoint is of an earlier version of this program, and says too little of its data",
                where=str(where),
                instead="run.tag=NAME for a run of its own; init.from=run:... begins it from these weights",
            )
        changed = differences(record["fingerprint"], self._fingerprint)
        evaluated = heldout.differences(record["heldout"], self._unseen)
        if (changed or evaluated) and not accept_changed:
            raise RequestError(
                "the data is not that of the checkpoint:\n  " + "\n  ".join(changed + evaluated),
                where=str(where),
                instead="the data as it was; run.tag=NAME for a run of its own; or checkpoint.accept_changed_data=true",
            )
        position, now = record["position"], self._sampler.place(done - 1)
        expected: dict[str, int | str] = {"batches": done, "seed": self._sampler.order.seed}
        if not changed:
            expected |= {"epoch": now.epoch, "row": now.row}
            if self._sampler.order.file(now.epoch).is_file():  # else the rule makes it
                expected["order"] = self._sampler.order.sha256(now.epoch)
        wrong = [f"{key} is {position[key]}, not {value}" for key, value in expected.items() if position[key] != value]
        if wrong:
            raise RequestError(
                f"the data's position is not that of update {done}: {'; '.join(wrong)}",
                where=str(where),
                instead="a copy of the checkpoint; without that folder, the same command continues from the one before",
            )
        anew = position["instances"] != self._sampler.n_instances
        words_W = None if anew else checkpoints.words(done, self.ledger.abstract)
        self.ledger.restore(record["ledger"], words_W)
        if not changed and not evaluated:
            return None
        following = self._sampler.place(done)
        begun = following.epoch if changed and following.row else None
        return {"differences": changed, "heldout": evaluated, "begun": begun, "ledger_begins_anew": anew}

    def _of_olmo_core(self, last: Batch) -> Record:
        """The state of OLMo-core's loader there (`state_dict` in data/data_loader.py of allenai/OLMo-core 3.0.0)."""
        batches = last.row + 1
        return {
            "dataset_fingerprint_version": "v2.0",
            "dataset_fingerprint": self._fingerprint.get("olmo_core"),
            "batches_processed": batches,
            "tokens_processed": batches * self._sampler.global_batch * self._config.seq_len,
            "seed": self._sampler.order.seed,
            "epoch": last.epoch,
            "dataset_type": "fsl",
            "sequence_length": self._config.seq_len,
            "max_target_sequence_length": self._config.max_target_seq_len,
        }
