"""Step times remembered: with a batch's composition fixed, most programs are a straight line in its context.

A step is decided by its composition (decodes, prompt chunks) and the tokens of context. For a composition that comes up
for the first time the opcodes run once as straight lines, value and slope in the context at once; every `max`,
comparison and conditional narrows the range of contexts in which the line holds, and a bound on the rounding error is
carried along. From then on the composition costs one multiplication.

Nothing is remembered that is not proven: where the line does not hold, where rounding could reach 1e-7 us, and where
its value lies within 1e-6 of a whole microsecond, the opcodes run as they are written.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from simulator.bind import Bound
from simulator.jit import njit
from simulator.load import Limits
from simulator.vm import MAX_TICKS, clamps, run

UNKNOWN, WHOLE, LINE, DIRECT = 0, 1, 2, 3  # kinds of piece: not looked at; one value; a straight line; run the opcodes
PIECE = np.dtype(  # 64 bytes: one line of the processor's cache
    [(name, "i8") for name in ("composition", "kind", "low", "high", "at")]
    + [(name, "f8") for name in ("base", "slope", "unused")]
)
MIXED = 1 << 10  # places for compositions with prompt chunks; those of decodes only have one each
CHUNKS = 2  # most prompt chunks of a composition that is remembered
DECODES, TOKENS = 1 << 16, 1 << 20  # and more decodes, more tokens than it may have
REACH = 1 << 22  # tokens of context up to which a line is looked for, at least
ULP = 2.0**-52
MARGIN = 1e-6  # us from a whole microsecond within which a line is not trusted
NEVER = np.iinfo(np.int64).max
TRUSTED = 1e-7  # us, the largest bound on a line's rounding error
# opcodes by number, as in language/opcodes.OPS
ADD, SUB, MUL, DIV, NEG, MAX, MIN, LESS, NOT_EQUAL, SELECT = 0, 1, 2, 3, 4, 5, 6, 12, 17, 18


class Steps(NamedTuple):
    """A program's step time on one deployment: opcodes, values, and what is remembered of them.

    `lines`: whether anything may be remembered (the program reads nothing of single contexts); `spread`, `longest`:
    whether it reads their variance, their maxima.
    """

    rows: Any
    first: int
    last: int
    values: Any
    raw: int
    out: int
    slope: Any
    error: Any
    pieces: Any
    lines: bool
    spread: bool
    longest: bool


def steps_of(bound: Bound, limits: Limits, *, remember: bool = True) -> Steps:
    """`bound` ready for the compiled clocks; `remember` False runs the opcodes at every step."""
    code = bound.code
    max_seqs, budget = limits.max_seqs, limits.budget
    spread, longest = "kv_var" in code.uses, bool({"kv_max", "kv_decode_max"} & code.uses)
    lines = remember and not (spread or longest) and max_seqs < DECODES and budget < TOKENS
    return Steps(
        rows=code.rows, first=code.static, last=code.step, values=bound.values.copy(), raw=code.raw,
        out=code.results[0], slope=np.zeros(code.slots), error=np.zeros(code.slots),
        pieces=np.zeros(MIXED + (max_seqs if lines else 0) + 1, PIECE), lines=lines, spread=spread, longest=longest,
    )  # fmt: skip


@njit
def put(v, raw, prefills, decodes, tokens, largest, pairs, context, decode_context):  # type: ignore[no-untyped-def]
    """The raw batch fields but those of single contexts (schema.RAW) into the value vector."""
    v[raw] = prefills
    v[raw + 1] = decodes
    v[raw + 2] = tokens
    v[raw + 3] = largest
    v[raw + 4] = pairs
    v[raw + 5] = context
    v[raw + 8] = decode_context


@njit
def evaluate(t, prefills, decodes, tokens, largest, pairs, context):  # type: ignore[no-untyped-def]
    """The step time in us, before truncation, by the opcodes; prompt chunks start at 0."""
    put(t.values, t.raw, prefills, decodes, tokens, largest, pairs, context, context)
    run(t.rows, t.first, t.last, t.values)
    return t.values[t.out]


@njit
def find(pieces, prefills, decodes, tokens, largest, context):  # type: ignore[no-untyped-def]
    """The place of this composition's piece; -1 - place if it is still to be made.

    For at most two prompt chunks that start at 0, their tokens and the larger one say all there is to know.
    """
    i, composition = decodes, np.int64(decodes)
    if prefills > 0:
        composition |= (prefills << 16) | (tokens << 20) | (largest << 42)
        i = pieces.size - MIXED + ((decodes * 7 + tokens * 31 + largest * 3) & (MIXED - 1))
    p = pieces[np.uintp(i)]
    if p.composition == composition and context >= p.low and context <= p.high and p.kind != UNKNOWN:
        return i
    p.composition = composition
    return -1 - i


@njit
def recall(pieces, i, context):  # type: ignore[no-untyped-def]
    """The step time in whole us that piece `i` knows for `context`, or -1 if the opcodes have to run."""
    p = pieces[np.uintp(i)]
    if p.kind == WHOLE:
        return np.int64(p.base)
    if p.kind == LINE:
        x = p.base + p.slope * (context - p.at)
        us = np.int64(x)
        part = x - us
        if part > MARGIN and part < 1.0 - MARGIN:
            return us
    return np.int64(-1)


@njit
def look(rows, first, last, v, raw, out, m, e, pieces, i, prefills, decodes, tokens, largest, pairs, context):  # type: ignore[no-untyped-def]
    """Make piece `i`: run the opcodes with value, slope `m` and error `e` of every slot."""
    p = pieces[np.uintp(i)]
    put(v, raw, prefills, decodes, tokens, largest, pairs, context, context)
    moving = 1.0 if decodes > 0 else 0.0  # without decodes there is no context
    m[raw + 5], m[raw + 8] = moving, moving
    p.at, p.low, p.high = context, np.int64(0), max(4 * context, np.int64(REACH))
    width = float(p.high)
    for row in range(first, last):
        op, d, a, b, c = rows[row, 0], rows[row, 1], rows[row, 2], rows[row, 3], rows[row, 4]
        run(rows, row, row + 1, v)
        if m[a] == 0.0 and m[b] == 0.0 and m[c] == 0.0 and e[a] == 0.0 and e[b] == 0.0 and e[c] == 0.0:
            m[d], e[d] = 0.0, 0.0
            continue
        x, y = v[a], v[b]
        still_a, still_b = m[a] == 0.0 and e[a] == 0.0, m[b] == 0.0 and e[b] == 0.0
        slope, error = 0.0, np.inf
        if op == ADD:
            slope, error = m[a] + m[b], e[a] + e[b]
        elif op == SUB:
            slope, error = m[a] - m[b], e[a] + e[b]
        elif op == MUL and still_b:
            slope, error = m[a] * y, e[a] * abs(y)
        elif op == MUL and still_a:
            slope, error = m[b] * x, e[b] * abs(x)
        elif op == DIV and still_b:
            slope, error = (m[a] / y, e[a] / abs(y)) if y != 0.0 else (0.0, 0.0)
        elif op == NEG:
            slope, error = -m[a], e[a]
        elif op in (MAX, MIN):
            if _narrow(p, width, x - y, m[a] - m[b], e[a] + e[b], abs(x) + abs(y), abs(m[a]) + abs(m[b])):
                first_one = (x > y) == (op == MAX)
                slope, error = (m[a], e[a]) if first_one else (m[b], e[b])
        elif op >= LESS and op <= NOT_EQUAL:
            if _narrow(p, width, x - y, m[a] - m[b], e[a] + e[b], abs(x) + abs(y), abs(m[a]) + abs(m[b])):
                m[d], e[d] = 0.0, 0.0
                continue
        elif op == SELECT and still_a:
            slope, error = (m[b], e[b]) if x != 0.0 else (m[c], e[c])
        error += 4.0 * ULP * (abs(v[d]) + abs(slope) * width)
        m[d], e[d] = slope, error if error == error else np.inf
    x, slope, error = v[out], m[out], e[out]
    p.base, p.slope, p.kind = x, slope, DIRECT
    if slope == 0.0 and error == 0.0 and not clamps(x, 1):
        p.kind = WHOLE
    elif (
        error <= TRUSTED
        and not clamps(x, 1)
        and _narrow(p, width, x - 1.0, slope, error, abs(x), abs(slope))
        and _narrow(p, width, MAX_TICKS - x, -slope, error, abs(x) + MAX_TICKS, abs(slope))
    ):
        p.kind = LINE
    if p.kind == DIRECT:
        p.low, p.high = np.int64(0), NEVER


@njit
def _narrow(p, width, gap, slope, error, size, slopes):  # type: ignore[no-untyped-def]
    """Narrow `p` to the contexts where gap + slope * (context - p.at) surely keeps its sign; False if nowhere."""
    doubt = error + 4.0 * ULP * (size + slopes * width)
    if not abs(gap) > doubt:
        return False
    towards = slope if gap < 0.0 else -slope  # above 0: the gap closes as the context grows
    if towards != 0.0:
        room = math.floor((abs(gap) - doubt) / abs(towards)) - 1.0
        room = np.int64(max(0.0, min(room, 1e15)))
        if towards > 0.0:
            p.high = min(p.high, p.at + room)
        else:
            p.low = max(p.low, p.at - room)
    return True
