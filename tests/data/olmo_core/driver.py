"""Runs OLMo-core for test_olmo_core.py, under the interpreter that has it. A line of JSON asks, and one answers."""

import json
import sys

import numpy as np
from olmo_core.data import DataCollator, NumpyFSLDataset, NumpyPackedFSLDataset, NumpyPaddedFSLDataset
from olmo_core.data.composable import ConcatAndChunkInstanceSource, MixingInstanceSource
from olmo_core.data.composable.token_source import InMemoryTokenSource
from olmo_core.data.data_loader import NumpyDataLoaderBase
from olmo_core.data.numpy_dataset import InstanceFilterConfig
from olmo_core.data.utils import find_periodic_sequences, get_labels, iter_document_indices

CLASSES = {"windows": NumpyFSLDataset, "packed": NumpyPackedFSLDataset, "padded": NumpyPaddedFSLDataset}


def dataset_of(ask):
    options = {"dtype": getattr(np, ask["dtype"])}
    if ask["instances"] == "windows":
        options |= {"max_target_sequence_length": ask["max_target_seq_len"]}
    if ask["instances"] == "packed":
        options |= {"source_group_size": ask["pack_files"]}
    if ask["instances"] != "padded":
        options |= {"generate_doc_lengths": True}
    if ask["masks"]:
        options |= {"label_mask_paths": ask["masks"]}
    if ask["repetition_filter"]:
        options |= {"instance_filter_config": InstanceFilterConfig()}
    dataset = CLASSES[ask["instances"]](
        *ask["paths"],
        sequence_length=ask["seq_len"],
        pad_token_id=ask["pad"],
        eos_token_id=ask["end"],
        vocab_size=ask["vocab_size"],
        **options,
    )
    dataset.work_dir = ask["folder"]
    dataset.prepare()
    return dataset


def run(ask):
    """Every batch of every epoch asked for, of each rank."""
    dataset = dataset_of(ask)
    batches = {}
    for epoch in ask["epochs"]:
        for rank in range(ask["processes"]):
            loader = NumpyDataLoaderBase.wrap_numpy_dataset(
                dataset,
                global_batch_size=ask["global_batch"] * ask["seq_len"],
                collator=DataCollator(pad_token_id=ask["pad"]),
                work_dir=ask["folder"],
                seed=ask["seed"],
                dp_world_size=ask["processes"],
                dp_rank=rank,
                fs_local_rank=0,
                num_threads=0,
            )
            loader.reshuffle(epoch)
            batches[f"{epoch} {rank}"] = [
                {
                    name: batch[name].tolist()
                    for name in ("index", "input_ids", "doc_lens", "instance_mask")
                    if name in batch
                }
                | {"labels": get_labels(batch).tolist()}
                for batch in loader
            ]
            loader.reset()
    return {
        "instances": len(dataset),
        "fingerprint": dataset.fingerprint,
        "order": str(loader._global_indices_file),
        "batches": batches,
    }


def mixture(ask):
    """The instances of a mixture, in order: of in-memory sources whose tokens say where they stand."""
    specs = [
        MixingInstanceSource.Spec(
            ConcatAndChunkInstanceSource(
                InMemoryTokenSource(np.arange(first, first + n_tokens), work_dir=ask["folder"]),
                sequence_length=ask["seq_len"],
                max_sequence_length=ask["chunk"] * ask["seq_len"],
                work_dir=ask["folder"],
            ),
            ratio=ratio,
            max_repetition_factor=repetition,
        )
        for first, n_tokens, ratio, repetition in ask["sources"]
    ]
    mixed = MixingInstanceSource(*specs, work_dir=ask["folder"], seed=ask["seed"], num_tokens=ask["tokens"])
    return {
        "sizes": [len(source) for source in mixed.sampled_sources],
        "firsts": [[int(instance["input_ids"][0]) for instance in source] for source in mixed.sampled_sources],
    }


def filtered(ask):
    """Whether the filter catches each text."""
    return [
        any(found.times >= 32 for found in find_periodic_sequences(np.array(text), max_period=13))
        for text in ask["texts"]
    ]


def documents(ask):
    """Bounds of the documents of a file, by its companion and by its tokens."""
    of = {"eos_token_id": ask["end"], "dtype": getattr(np, ask["dtype"])}
    ways = {"companion": False, "tokens": True}
    return {
        way: [list(map(int, bounds)) for bounds in iter_document_indices(ask["path"], use_array_if_local=use, **of)]
        for way, use in ways.items()
    }


ANSWERS = {"run": run, "mixture": mixture, "filtered": filtered, "documents": documents}

if __name__ == "__main__":
    for line in sys.stdin:
        ask = json.loads(line)
        print(json.dumps(ANSWERS[ask.pop("what")](ask)), flush=True)
