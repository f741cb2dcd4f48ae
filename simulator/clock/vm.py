"""The compiled interpreter of opcodes: one function, compiled once, that takes every candidate as data."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from simulator.common.jit import njit
from simulator.common.knots import curve
from simulator.language import opcodes
from simulator.language.forest import leaves
from simulator.language.guarded import EXP_LIMIT, LOG_FLOOR, POW_LIMIT


@njit
def experts_fraction(active: float, experts: float, tokens: float) -> float:
    """1 - (1 - active/experts)**tokens by repeated squaring; 0 for dense models or no tokens."""
    if experts <= 0.0 or tokens <= 0.0:
        return 0.0
    base = 1.0 - active / experts
    n = np.int64(tokens)
    missed = 1.0
    while n > 0:
        if n & 1:
            missed = missed * base
        base = base * base
        n >>= 1
    return 1.0 - missed


@njit
def graph_batch(prefill_reqs: float, decode_reqs: float, uncaptured: float) -> float:
    """The decode batch rounded up to a captured size; the true size with prefill present, or `uncaptured`."""
    if prefill_reqs > 0.0 or uncaptured > 0.0:
        return prefill_reqs + decode_reqs
    if decode_reqs <= 2.0:
        return decode_reqs
    if decode_reqs <= 4.0:
        return 4.0
    return 8.0 * math.ceil(decode_reqs / 8.0)


@njit
def graph_tokens(tokens: float, limit: float, uncaptured: float) -> float:
    """Tokens rounded up to a captured size: 1, 2, 4, multiples of 8 to 256, of 16 above (vllm 0.15, config/vllm.py,
    _set_cudagraph_sizes).

    The true number above the `limit`, and in a step that is `uncaptured`.
    """
    if uncaptured > 0.0 or not tokens <= limit or tokens <= 2.0:
        return tokens
    if tokens <= 4.0:
        size = 4.0
    else:
        step = 8.0 if tokens <= 256.0 else 16.0
        size = step * math.ceil(tokens / step)
    return size if size <= limit else tokens


# schema.SPECIAL
BATCH_FIELDS: dict[str, Callable[..., float]] = {
    "experts_fraction": experts_fraction,
    "graph_batch": graph_batch,
    "graph_tokens": graph_tokens,
}


@njit
def run(rows: np.ndarray, low: int, high: int, v: np.ndarray) -> None:
    """Execute rows[low:high] (opcodes.Code) on the value vector `v` (float64), in place.

    The guards are those of `language/guarded.py`, in the same order of operations.
    """
    for i in range(np.uintp(low), np.uintp(high)):  # unsigned, which spares a check for negative indices
        op = rows[i, 0]
        x = v[rows[i, 2]]
        y = v[rows[i, 3]]
        if op == opcodes.ADD:
            z = x + y
        elif op == opcodes.SUB:
            z = x - y
        elif op == opcodes.MUL:
            z = x * y
        elif op == opcodes.DIV:
            z = x / y if y != 0.0 else 0.0
        elif op == opcodes.NEG:
            z = -x
        elif op == opcodes.MAX:
            z = x if x > y or x != x else y
        elif op == opcodes.MIN:
            z = x if x < y or x != x else y
        elif op == opcodes.SQRT:
            z = math.sqrt(x) if x > 0.0 else (x if x != x else 0.0)
        elif op == opcodes.LOG:
            z = math.log(x) if x > 0.0 else (x if x != x else math.log(LOG_FLOOR))
        elif op == opcodes.LOG1P:
            z = math.log1p(x) if x > 0.0 else (x if x != x else 0.0)
        elif op == opcodes.EXP:
            z = math.exp(min(x, EXP_LIMIT)) if x == x else x
        elif op == opcodes.POW:
            c = max(-POW_LIMIT, min(POW_LIMIT, y)) if y == y else y
            z = math.pow(x if x > 0.0 or x != x else 0.0, c)
        elif op == opcodes.LT:
            z = 1.0 if x < y else 0.0
        elif op == opcodes.LE:
            z = 1.0 if x <= y else 0.0
        elif op == opcodes.GT:
            z = 1.0 if x > y else 0.0
        elif op == opcodes.GE:
            z = 1.0 if x >= y else 0.0
        elif op == opcodes.EQ:
            z = 1.0 if x == y else 0.0
        elif op == opcodes.NE:
            z = 1.0 if x != y else 0.0
        elif op == opcodes.SELECT:
            z = y if x != 0.0 else v[rows[i, 4]]
        elif op == opcodes.EXPERTS_FRACTION:
            z = experts_fraction(x, y, v[rows[i, 4]])
        elif op == opcodes.GRAPH_BATCH:
            z = graph_batch(x, y, v[rows[i, 4]])
        elif op == opcodes.GRAPH_TOKENS:
            z = graph_tokens(x, y, v[rows[i, 4]])
        elif op == opcodes.SOFTPLUS:
            z = (x if x > 0.0 else 0.0) + math.log1p(math.exp(-abs(x))) if x == x else x
        elif op == opcodes.FOREST:
            z = leaves(v, rows[i, 3])
        elif op == opcodes.CURVE:
            z = curve(v, rows[i, 3], x)
        else:
            z = math.nan  # an operation without a branch above: never a plausible number
        v[rows[i, 1]] = z


MAX_TICKS = 10_000_000_000


@njit
def to_ticks(x: float, low: int) -> int:
    """Microseconds as the clock counts them: truncated and clamped to [low, 10^10]; NaN becomes 10^10.

    `low` is 1 for a step and 0 for an overhead. Replay, simulate and the Go all use this definition.
    """
    if not x < MAX_TICKS:
        return MAX_TICKS
    if not x > low:
        return low
    return int(x)


@njit
def clamps(x: float, low: int) -> bool:
    """True if `to_ticks` has to clamp: outside [low, 10^10] or NaN."""
    return not (x >= low and x <= MAX_TICKS)
