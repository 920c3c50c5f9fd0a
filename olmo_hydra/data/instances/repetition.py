"""The repetition filter: which instances repeat a few tokens so often that they are not trained on."""

import numpy as np

VERSION = "periods-v1"  # of the rule below: part of every fingerprint of data that is filtered


def repeats(
    tokens_BT: np.ndarray, lengths_B: np.ndarray, *, max_period: int = 13, min_period: int = 1, max_count: int = 32
) -> np.ndarray:
    """Which instances hold a stretch of tokens `max_count` times in a row.

    Same verdict as `find_periodic_sequences` of allenai/OLMo-core 3.0.0 (data/utils.py), which folds an instance into
    rows of p tokens and compares each with the one before. What it counts is this: the tokens that equal the one p
    places earlier come in runs, and a run of L tokens is its period L // p + 1 times. Fewer than three times are never
    counted, so that no period is longer than a third of an instance.

    To find a run of (max_count - 1) * p tokens one need not compare all: it covers at least four in a row of the places
    that lie a quarter of it apart. Only an instance with four such hits is looked at whole.

    Args:
      tokens_BT: Token ids, integers.
      lengths_B: Tokens of each instance that are text; what follows is not looked at.
      max_period: Longest stretch.
      min_period: Shortest stretch.
      max_count: From how many repeats on an instance is caught, at least 2.

    Returns:
      bool of shape (B,).
    """
    found_B = np.zeros(len(tokens_BT), bool)
    for period in range(min_period, max_period + 1):
        run = (max(max_count, 3) - 1) * period
        stride = max(1, run // 4)
        hits_BK = tokens_BT[:, period::stride] == tokens_BT[:, :-period:stride]
        in_a_row = run // stride
        n_starts = hits_BK.shape[1] - in_a_row + 1
        if n_starts <= 0:
            continue
        starts_BK = hits_BK[:, :n_starts].copy()
        for k in range(1, in_a_row):
            starts_BK &= hits_BK[:, k : k + n_starts]
        for b in np.flatnonzero(starts_BK.any(axis=1) & ~found_B).tolist():
            text = tokens_BT[b, : lengths_B[b]]
            found_B[b] = _has_run(text[period:] == text[:-period], run)
    return found_B


def _has_run(equal: np.ndarray, run: int) -> bool:
    """Whether `run` consecutive values are true."""
    breaks = np.flatnonzero(~equal)
    return int(np.diff(breaks, prepend=-1, append=len(equal)).max()) > run
