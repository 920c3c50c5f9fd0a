"""What is evaluated while a run trains: held-out text at every call, baselines at the start, samples at the end."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.root import Config
from olmo_hydra.data.heldout import HeldoutDocument
from olmo_hydra.data.opened import Data
from olmo_hydra.eval import baselines, heldout
from olmo_hydra.eval.generate import sample
from olmo_hydra.eval.scoring import Scorer

Record = Callable[[dict[str, Any]], None]


class InLoop:
    """Evaluates parameters and hands the rows of evals.jsonl to `record`. Reads the parameters and changes nothing.

    Args:
      config: The run.
      data: Where the baselines' training text and the tokenizer come from.
      domains: Held-out documents by domain; without any, nothing but samples is made.
      graphdef: The decoder's structure.
      place: Puts a [B, T] array on the devices.
      whole: Puts what is computed on all of them.
      first: Whether this process of the run writes what is found: baselines take no devices, and others need none.
      batch: Rows scored at once.
      key: Decides the samples.
      record: Receives each row.
      note: Receives a line for the person who waits.
    """

    def __init__(
        self,
        config: Config,
        data: Data,
        domains: Mapping[str, Sequence[HeldoutDocument]],
        graphdef: nnx.GraphDef,
        *,
        place: Callable[[np.ndarray], jax.Array],
        whole: NamedSharding,
        first: bool,
        batch: int,
        key: jax.Array,
        record: Record,
        note: Callable[[str], None],
    ):
        self._config, self._data, self._graphdef = config, data, graphdef
        self._tokenizer = data.tokenizer
        self._has_text = bool(domains)
        self._heldout = heldout.HeldOut(
            domains,
            seq_len=config.data.seq_len,
            eos=self._tokenizer.eos,
            batch=batch,
        )
        self._batch = batch
        self._score = Scorer(graphdef, place, whole)
        self._whole, self._first = whole, first
        self._key, self._record, self._note = key, record, note

    def compile(self, params: nnx.State) -> None:
        """Compiles the scoring for parameters as these, which may be shapes with shardings."""
        if self._has_text:
            self._score.compile(params, self._batch, self._config.data.seq_len)

    def __call__(self, step: int, params: nnx.State) -> Callable[[], None]:
        """Has the devices begin with the evaluation of one step; what it returns waits for them and records rows."""
        scores = self._heldout.scores(partial(self._score, params))
        cfg, is_end = self._config.eval, step == self._config.train.steps
        sampled = params if is_end and cfg.sample_tokens and cfg.prompts else None  # no others are kept until then

        def record() -> None:
            baselines = self._baselines() if step == 0 and self._first and self._has_text else []
            if self._has_text:
                self._record(heldout.row(step, "heldout", self._heldout.results(scores)))
            for row in baselines:
                self._record(row)
            if sampled is not None:
                self._samples(step, sampled)

        return record

    def _baselines(self) -> list[dict[str, Any]]:
        """The rows of the baselines, which the host makes while the devices score."""
        start, rows = time.perf_counter(), []
        texts = baselines.text_to_count(self._data.files, self._tokenizer.vocab_size)
        counted, there = sum(map(len, texts)), sum(file.n_tokens for file in self._data.files)
        for name, fit in (("unigram", baselines.unigram), ("trigram", baselines.trigram)):
            scores = self._heldout.scores(fit(texts, self._tokenizer.vocab_size))
            row = heldout.row(0, f"baseline_{name}", self._heldout.results(scores))
            rows.append({**row, "fitted_tokens": counted})
        seconds = time.perf_counter() - start
        self._note(f"baselines: {counted:,} of {there:,} training tokens counted and scored in {seconds:.1f} s")
        return rows

    def _samples(self, step: int, params: nnx.State) -> None:
        cfg = self._config.eval
        try:
            prompts = self._tokenizer.encode_batch(cfg.prompts)
        except RequestError as error:  # text of others is trained on without the tokenizer's file
            self._note(f"no samples: {error}")
            return
        texts = sample(
            self._graphdef,
            params,
            prompts,
            key=self._key,
            new_tokens=cfg.sample_tokens,
            temperature=cfg.temperature,
            vocab=self._tokenizer.vocab_size,
            eos=self._tokenizer.eos,
            whole=self._whole,
        )
        samples = [
            {"prompt": prompt, "text": self._tokenizer.decode(text)}
            for prompt, text in zip(cfg.prompts, texts, strict=True)
        ]
        self._record({"step": step, "suite": "samples", "samples": samples})
