"""Batches as the host simulator's step time would see them, in the columns of `simulator.schema.RAW`."""

from __future__ import annotations

import numpy as np

from evolve.ingest.columns import Columns
from simulator.schema import RAW


def raw_columns(rows: int, step: np.ndarray, prefill: np.ndarray, new: np.ndarray, progress: np.ndarray) -> Columns:
    """float64[rows] by name. Entries: their row, whether they are prefills, new tokens, and progress before the step.

    The host counts a prefix hit as no progress yet: the first chunk after one has progress 0 (contract of
    `simulator/schema.py`), though attention reads the cached tokens.
    """
    decode = ~prefill

    def total(values: np.ndarray, which: np.ndarray) -> np.ndarray:
        return np.bincount(step[which], values[which], rows)

    def largest(values: np.ndarray, which: np.ndarray) -> np.ndarray:
        out = np.zeros(rows)
        np.maximum.at(out, step[which], values[which])
        return out

    every = np.ones(len(step), dtype=bool)
    one = np.ones(len(step))
    n, s1, s2 = total(one, every), total(progress, every), total(progress * progress, every)
    columns = {
        "prefill_reqs": total(one, prefill),
        "decode_reqs": total(one, decode),
        "prefill_tokens": total(new, prefill),
        "max_prefill_chunk": largest(new, prefill),
        "prefill_pairs": total(new * progress + new * (new + 1) // 2, prefill),
        "kv_sum": s1,
        "kv_max": largest(progress, every),
        "kv_var": np.divide(n * s2 - s1 * s1, n * n, out=np.zeros(rows), where=n > 0),
        "kv_decode_sum": total(progress, decode),
        "kv_decode_max": largest(progress, decode),
    }
    return {name: columns[name] for name in RAW}
