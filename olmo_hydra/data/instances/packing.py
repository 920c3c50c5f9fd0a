"""Packing whole documents into instances: best fit by decreasing length (arXiv 2404.10830)."""

from bisect import bisect_left, insort
from collections import deque

import numpy as np

SCANNED = 2**24  # tokens of a file that are looked at together


def documents(tokens: np.ndarray, end: int) -> np.ndarray:
    """Where the documents of a token file begin, and where the last one ends.

    Args:
      tokens: All tokens of the file; a memory map is read in parts.
      end: The token that ends a document, and belongs to it.

    Returns:
      int64 of length n + 1: document i is `tokens[bounds[i]:bounds[i + 1]]`. What follows the last end is in none.
    """
    parts = range(0, len(tokens), SCANNED)
    ends = [start + 1 + np.flatnonzero(tokens[start : start + SCANNED] == end) for start in parts]
    return np.concatenate([[0], *ends]).astype(np.int64)


def pack(lengths: np.ndarray, seq_len: int) -> tuple[np.ndarray, np.ndarray]:
    """Best-fit decreasing: the longest document first, each into the fullest instance that has room for all of it.

    Of documents of equal length the earlier one goes first, and of instances of equal room the one that has had it for
    longer. OLMo-core differs in the first half alone: its sort is not stable, so that the order among equal lengths is
    up to NumPy (`InstancePacker` in data/utils.py of allenai/OLMo-core 3.0.0).

    Args:
      lengths: Of the documents, from 1 to `seq_len` tokens.
      seq_len: Tokens an instance.

    Returns:
      The documents by number, instance after instance, each in the order of filling; and int64 of length n + 1:
      instance i holds the documents `[bounds[i]:bounds[i + 1]]` of them.
    """
    by_length = np.argsort(-lengths.astype(np.int64), kind="stable")
    waiting: dict[int, deque[int]] = {}  # instances that are not full, by the room that is left
    rooms: list[int] = []  # its keys, ascending
    chosen: list[int] = []
    n_instances = 0
    for length in lengths[by_length].tolist():
        fit = bisect_left(rooms, length)
        if fit == len(rooms):
            instance, room = n_instances, seq_len
            n_instances += 1
        else:
            room = rooms[fit]
            instance = waiting[room].popleft()
            if not waiting[room]:
                del waiting[room], rooms[fit]
        chosen.append(instance)
        if left := room - length:
            if left not in waiting:
                waiting[left] = deque()
                insort(rooms, left)
            waiting[left].append(instance)
    instances = np.array(chosen, np.int64)
    counts = np.bincount(instances, minlength=n_instances)
    return by_length[np.argsort(instances, kind="stable")], np.concatenate([[0], np.cumsum(counts)])
