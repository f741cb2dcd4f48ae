"""Synthetic batches for the gates: edge cases, and random pairs whose second batch is strictly more work."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from random import Random

import numpy as np

from simulator.clock.fields import Active, raw_row

SEED = 5
BATCHES = 64

Batch = tuple[Active, ...]


def decode_batch(n: int, context: int) -> Batch:
    """`n` decodes of slightly different ages, the youngest after `context` tokens."""
    return tuple(Active(min(context, 512), context + 7 * i, 1) for i in range(n))


@cache
def edges() -> tuple[list[str], np.ndarray]:
    """The names of the edge batches, and their raw fields, float64[batches, len(RAW)]."""
    batches: dict[str, Batch] = {
        "empty batch": (),
        "one decode": decode_batch(1, 512),
        "one decode of 1 token": (Active(1, 1, 1),),
        "128 decodes": decode_batch(128, 512),
        "one prefill of 2048": (Active(4096, 0, 2048),),
        "one prefill token": (Active(16, 15, 1),),
        "128 prefills of 16": tuple(Active(16, 0, 16) for _ in range(128)),
        "mixed": (*decode_batch(64, 512), Active(4096, 2048, 512), Active(40, 0, 40)),
    }
    for k in (4, 16, 32, 128):
        batches[f"one decode in {k}k context"] = decode_batch(1, 1024 * k)
        batches[f"128 decodes in {k}k context"] = decode_batch(128, 1024 * k)
        batches[f"last chunk of a {k}k prompt"] = (Active(1024 * k, 1024 * k - 2048, 2048),)
        chunk = Active(1024 * k, 1024 * k - 1024, 1024)
        batches[f"chunk of a {k}k prompt with 64 decodes"] = (*decode_batch(64, 1024 * k), chunk)
    return list(batches), table_of(batches.values())


def table_of(batches: Iterable[Batch]) -> np.ndarray:
    """float64[batches, len(RAW)]: the raw fields of each batch."""
    return np.array([raw_row(batch) for batch in batches])


@dataclass(frozen=True)
class BatchSweep:
    """Random batches, the same batches doubled, and batches with more work.

    raw: float64[rows, len(RAW)], the random batches first. names: a description of each row. twice: the row of each
    doubled batch. base, more: the rows of each pair; the second row is more work.
    """

    raw: np.ndarray
    names: list[str]
    twice: np.ndarray
    base: np.ndarray
    more: np.ndarray


@cache
def sweep() -> BatchSweep:
    """Random batches, each of them doubled, and each changed by every move that applies."""
    rng = Random(SEED)
    batches = [_random_batch(rng) for _ in range(BATCHES)]
    rows: list[Batch] = [*batches, *map(_doubled, batches)]
    names = [*map(_description, batches), *(f"{_description(batch)}, doubled" for batch in batches)]
    base = []
    for i, batch in enumerate(batches):
        for label, (move, most) in _MOVES.items():
            size = round(2 ** rng.uniform(0, most))
            changed = move(batch, size, rng)
            if changed is not None:
                base.append(i)
                names.append(f"{names[i]}, {label.format(size)}")
                rows.append(changed)
    n = len(batches)
    return BatchSweep(table_of(rows), names, np.arange(n, 2 * n), np.array(base), np.arange(2 * n, len(rows)))


def _random_batch(rng: Random) -> Batch:
    """Up to 64 decodes in up to 32k of context; half of these batches also have a prefill chunk or two."""
    decodes, context = 0 if rng.random() < 0.2 else round(2 ** rng.uniform(0, 6)), round(2 ** rng.uniform(5, 15))
    batch = [Active(32, round(context * rng.uniform(0.5, 1.5)) + 32, 1) for _ in range(decodes)]
    for _ in range(rng.choice((0, 0, 1, 2)) if decodes else rng.choice((1, 2))):
        progress = rng.choice((0, 0, 512, 4096))
        new = round(2 ** rng.uniform(0, 10))
        batch.append(Active(progress + new + rng.choice((0, 1000)), progress, new))
    return tuple(batch)


def _description(batch: Batch) -> str:
    decodes = [r.progress for r in batch if r.progress >= r.input_len]
    parts = []
    if decodes:
        plural = "s" if len(decodes) > 1 else ""
        parts = [f"{len(decodes)} decode{plural} after about {round(sum(decodes) / len(decodes))} tokens"]
    parts += [f"a prefill of {r.new} after {r.progress}" for r in batch if r.progress < r.input_len]
    return " and ".join(parts)


def _doubled(batch: Batch) -> Batch:
    """The batch with twice the decodes in twice the context, and prefills twice as long after twice the progress."""
    decodes = [Active(r.input_len, 2 * r.progress, 1) for r in batch if r.progress >= r.input_len]
    prefills = [Active(2 * r.input_len, 2 * r.progress, 2 * r.new) for r in batch if r.progress < r.input_len]
    return (*decodes, *decodes, *prefills)


def _longer_chunks(batch: Batch, more: int, rng: Random) -> Batch | None:
    if all(r.progress >= r.input_len for r in batch):
        return None
    return tuple(Active(r.input_len + more, r.progress, r.new + more) if r.progress < r.input_len else r for r in batch)


def _longer_context(batch: Batch, more: int, rng: Random) -> Batch:
    chosen = rng.randrange(len(batch))
    return tuple(_later(r, more) if i == chosen else r for i, r in enumerate(batch))


def _later(r: Active, more: int) -> Active:
    """The request after `more` further tokens of progress, in the same phase."""
    input_len = r.input_len + more if r.progress < r.input_len else r.input_len
    return Active(input_len, r.progress + more, r.new)


def _more_decodes(batch: Batch, more: int, rng: Random) -> Batch:
    return (*batch, *(Active(32, round(2 ** rng.uniform(5, 15)), 1) for _ in range(more)))


# By description: the move, and its largest size as a power of two.
_MOVES: dict[str, tuple[Callable[[Batch, int, Random], Batch | None], int]] = {
    "every chunk {} tokens longer": (_longer_chunks, 10),
    "one context {} tokens longer": (_longer_context, 12),
    "every context {} tokens longer": (lambda batch, more, rng: tuple(_later(r, more) for r in batch), 12),
    "{} decodes more": (_more_decodes, 6),
}
