"""Remembered step times: for a fixed composition of the batch, most programs are a straight line in its context.

A step time depends on the step's composition (decodes, prompt chunks), on the tokens of context and, for programs that
read it, on the longest context. When a composition first comes up, the opcodes run once on straight lines, computing
values and slopes together. Every `max`, comparison and conditional narrows the range of contexts in which the line
holds, and a bound on the rounding error is carried along. From then on a step of that composition costs a
multiplication or two.

Only proven lines are remembered. Where the line does not hold, where rounding could reach 1e-7 us, or where the line's
value is within 1e-6 of a whole microsecond, the opcodes run.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from simulator import schema
from simulator.clock.bind import Bound
from simulator.clock.vm import MAX_TICKS, clamps, run
from simulator.common.jit import inlined, njit
from simulator.language.opcodes import ADD, DIV, FOREST, LT, MAX, MIN, MUL, NE, NEG, SELECT, STEP_TIME, SUB, UNEQUAL
from simulator.serving.load import NEVER, EngineLimits

# Kinds of pieces.
UNKNOWN = 0  # not looked at yet
WHOLE = 1  # one whole number of us for all contexts
LINE = 2  # a straight line in the contexts
DIRECT = 3  # neither: the opcodes have to run
# The memory of a composition: base + slope * context + tall_slope * longest context, in us, where context and
# longest context are within the bounds low to high, tall_low to tall_high. 64 bytes, one line of the processor's cache.
_PIECE = {"i8": "composition low high", "f8": "base slope tall_slope", "i4": "kind tall_low tall_high unused"}
PIECE = np.dtype([(name_, kind) for kind, names in _PIECE.items() for name_ in names.split()])
MIXED = 1 << 10  # places for compositions with prompt chunks, which may displace each other; others have one each
CHUNKS = 2  # most prompt chunks of a composition that is remembered
DECODES, TOKENS = 1 << 16, 1 << 20  # a composition that is remembered has fewer decodes, and fewer prompt tokens
REACH, TALL_REACH = 1 << 22, 1 << 17  # least `high` and `tall_high` (tokens) that a new line is tried for
ULP = 2.0**-52
MARGIN = 1e-6  # us from a whole microsecond within which a line is not trusted
TALLEST = np.iinfo(np.int32).max
TRUSTED = 1e-7  # us, the largest bound on a line's rounding error


class Chunks(NamedTuple):
    """The prompt chunks of a step."""

    count: Any  # requests that have one
    tokens: Any  # new tokens
    largest: Any  # new tokens of the largest
    pairs: Any  # token pairs attended
    prompts: Any  # sum of new * (2 * prompt + new), schema.PROMPT_PAIRS
    context: Any  # sum of the requests' progress before the step, tokens
    squares: Any  # sum of its squares
    longest: Any  # the largest


NO_CHUNKS = Chunks(*np.zeros(8, np.int64))


@inlined
def with_chunk(c, new, done, prompt):  # type: ignore[no-untyped-def]
    """The chunks `c` with one more, of `new` tokens after `done` earlier ones of a prompt of `prompt` tokens."""
    return Chunks(
        c.count + 1,
        c.tokens + new,
        max(c.largest, new),
        c.pairs + new * done + new * (new + 1) // 2,
        c.prompts + new * (2 * np.int64(prompt) + new),
        c.context + done,
        c.squares + done * done,
        max(c.longest, done),
    )


class KnownSteps(NamedTuple):
    """A program's step time on one deployment: its opcodes and values (see opcodes.Code), and what is remembered."""

    rows: Any
    moving: Any
    first: int  # rows[first:last] are those of a step
    last: int
    values: Any
    raw: int
    out: int  # the slot of the step time
    unequal: int  # the slot of what other ranks have more (opcodes.UNEQUAL)
    slopes: Any  # float64[slots, 3]: slopes in the context and in the longest context, and a bound on the error
    pieces: Any  # PIECE[places]
    lines: bool  # True if anything may be remembered
    spread: bool  # True if the program reads the variance of the contexts; then nothing is remembered
    longest: bool  # True if it reads their maximum
    chunks: int  # most prompt chunks of a composition that is remembered: none if it reads whole prompt lengths


def steps_of(bound: Bound, limits: EngineLimits, *, remember: bool = True) -> KnownSteps:
    """`bound` ready for the compiled clocks. With `remember` False, the opcodes run at every step."""
    code = bound.code
    spread, longest = "kv_var" in code.uses, bool({"kv_max", "kv_decode_max"} & code.uses)
    meets = code.meets and limits.together  # then the tokens of other ranks count, which no composition tells
    lines = remember and not spread and not meets and limits.max_seqs < DECODES and limits.budget < TOKENS
    return KnownSteps(
        rows=code.rows,
        moving=code.moving,
        first=code.static,
        last=code.step,
        values=bound.values.copy(),
        raw=code.raw,
        out=code.results[STEP_TIME],
        unequal=code.request + UNEQUAL,
        slopes=np.zeros((code.slots, 3)),
        pieces=np.zeros(MIXED + (limits.max_seqs if lines else 0) + 1, PIECE),
        lines=lines,
        spread=spread,
        longest=longest,
        chunks=0 if "prompt_pairs" in code.uses else CHUNKS,
    )


@njit
def put(  # type: ignore[no-untyped-def]
    v, raw, prefills, decodes, tokens, largest, pairs, prompts, context, decode_context
):
    """Write the raw batch fields (schema.RAW) into the value vector, except those of single contexts."""
    v[raw + schema.PREFILL_REQS] = prefills
    v[raw + schema.DECODE_REQS] = decodes
    v[raw + schema.PREFILL_TOKENS] = tokens
    v[raw + schema.MAX_PREFILL_CHUNK] = largest
    v[raw + schema.PREFILL_PAIRS] = pairs
    v[raw + schema.PROMPT_PAIRS] = prompts
    v[raw + schema.KV_SUM] = context
    v[raw + schema.KV_DECODE_SUM] = decode_context


@njit
def evaluate(t, prefills, decodes, tokens, largest, pairs, context, tall):  # type: ignore[no-untyped-def]
    """The step time in us, before truncation, by the opcodes.

    For steps whose prompt chunks start at 0, and programs that do not read the variance of the contexts; if they read
    whole prompt lengths, for steps without prompt chunks.
    """
    put(t.values, t.raw, prefills, decodes, tokens, largest, pairs, 0, context, context)
    t.values[t.raw + schema.KV_MAX] = tall
    t.values[t.raw + schema.KV_DECODE_MAX] = tall
    run(t.rows, t.first, t.last, t.values)
    return t.values[t.out]


@njit
def find(pieces, prefills, decodes, tokens, largest, context):  # type: ignore[no-untyped-def]
    """The place of this composition's piece, or -1 - place if it must be made first.

    At most two prompt chunks that start at 0 are determined by their tokens and the larger one.
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
def reaches(pieces, i, tall):  # type: ignore[no-untyped-def]
    """True if a piece that `find` found also holds for the longest context `tall`."""
    return i >= 0 and tall >= pieces[i].tall_low and tall <= pieces[i].tall_high


@inlined
def piece_for(t, longest, prefills, decodes, tokens, largest, pairs, context, tall):  # type: ignore[no-untyped-def]
    """The place of the piece for this composition and these contexts; if there is none, it is made.

    `longest`: True if the program reads `tall`, the longest context.
    """
    i = find(t.pieces, prefills, decodes, tokens, largest, context)
    if longest and not reaches(t.pieces, i, tall):
        i = min(i, -1 - i)
    if i < 0:
        i = -1 - i
        look(
            t.rows,
            t.moving,
            t.first,
            t.last,
            t.values,
            t.raw,
            t.out,
            t.slopes,
            t.pieces,
            i,
            prefills,
            decodes,
            tokens,
            largest,
            pairs,
            context,
            tall,
        )
    return i


@njit
def recall(pieces, i, context, tall):  # type: ignore[no-untyped-def]
    """The step time in whole us for these contexts by piece `i`, or -1 if the opcodes have to run."""
    p = pieces[i]
    if p.kind == WHOLE:
        return np.int64(p.base)
    if p.kind == LINE:
        x = p.base + p.slope * context
        if tall > 0:
            x += p.tall_slope * tall
        us = np.int64(x)
        part = x - us
        if part > MARGIN and part < 1.0 - MARGIN:  # else rounding might change the whole number
            return us
    return np.int64(-1)


@njit
def look(  # type: ignore[no-untyped-def]
    rows, moving, first, last, v, raw, out, m, pieces, i, prefills, decodes, tokens, largest, pairs, context, tall
):
    """Make piece `i`: run the opcodes with value, slopes and error of every slot."""
    # v, m     value of every slot; its slopes in context and longest context, and a bound on its rounding error
    # p        the piece; its bounds start wide and are narrowed
    # width, height   contexts and longest contexts that the bounds on errors are taken over
    # d, a, b, c      slots of the row's result and operands; x, y the values of a and b
    # slope, up, error   the row's result, to be stored in m[d]; an infinite error means that it is no line
    p = pieces[i]
    put(v, raw, prefills, decodes, tokens, largest, pairs, 0, context, context)  # see `evaluate`
    v[raw + schema.KV_MAX], v[raw + schema.KV_DECODE_MAX] = tall, tall
    unit = 1.0 if decodes > 0 else 0.0  # the slope of a context in itself; without decodes there is no context
    m[raw + schema.KV_SUM, 0], m[raw + schema.KV_DECODE_SUM, 0] = unit, unit
    m[raw + schema.KV_MAX, 1], m[raw + schema.KV_DECODE_MAX, 1] = unit, unit
    p.low, p.high, p.tall_low, p.tall_high = 0, max(4 * context, REACH), 0, min(max(4 * tall, TALL_REACH), TALLEST)
    width, height = float(p.high), float(p.tall_high)
    run(rows, first, last, v)  # no row writes a slot that an earlier one has read, so all values can come first
    for row in range(first, last):
        if not moving[row]:  # has the same value for all contexts, and its slopes are 0
            continue
        op, d, a, b, c = rows[row, 0], rows[row, 1], rows[row, 2], rows[row, 3], rows[row, 4]
        still_a, still_b = _still(m, a), _still(m, b)
        still = still_a and still_b and _still(m, c)
        if op == FOREST:  # its operand, the sum of its features, may stand still while they move: look at each
            still = _all_still(m, v, b)
        if still:
            m[d, 0], m[d, 1], m[d, 2] = 0.0, 0.0, 0.0
            continue
        x, y = v[a], v[b]
        slope, up, error = 0.0, 0.0, np.inf  # what no case below handles is no line
        if op == ADD:
            slope, up, error = m[a, 0] + m[b, 0], m[a, 1] + m[b, 1], m[a, 2] + m[b, 2]
        elif op == SUB:
            slope, up, error = m[a, 0] - m[b, 0], m[a, 1] - m[b, 1], m[a, 2] + m[b, 2]
        elif op == MUL and still_b:
            slope, up, error = m[a, 0] * y, m[a, 1] * y, m[a, 2] * abs(y)
        elif op == MUL and still_a:
            slope, up, error = m[b, 0] * x, m[b, 1] * x, m[b, 2] * abs(x)
        elif op == DIV and still_b:
            if y == 0.0:  # x/0 is 0
                error = 0.0
            else:
                slope, up, error = m[a, 0] / y, m[a, 1] / y, m[a, 2] / abs(y)
        elif op == NEG:
            slope, up, error = -m[a, 0], -m[a, 1], m[a, 2]
        elif op in (MAX, MIN) or (op >= LT and op <= NE):
            # The sign of x - y decides: keep to the contexts in which it is surely what it is here.
            size = abs(x) + abs(y) + (abs(m[a, 0]) + abs(m[b, 0])) * width + (abs(m[a, 1]) + abs(m[b, 1])) * height
            doubt = m[a, 2] + m[b, 2] + 4.0 * ULP * size
            if _narrow(p, context, tall, x - y, m[a, 0] - m[b, 0], m[a, 1] - m[b, 1], doubt):
                if op >= LT:  # a comparison is 0 or 1, exactly
                    m[d, 0], m[d, 1], m[d, 2] = 0.0, 0.0, 0.0
                    continue
                chosen = a if (x > y) == (op == MAX) else b
                slope, up, error = m[chosen, 0], m[chosen, 1], m[chosen, 2]
        elif op == SELECT and still_a:
            chosen = b if x != 0.0 else c
            slope, up, error = m[chosen, 0], m[chosen, 1], m[chosen, 2]
        error += 4.0 * ULP * (abs(v[d]) + abs(slope) * width + abs(up) * height)  # of this operation, anywhere in p
        m[d, 0], m[d, 1], m[d, 2] = slope, up, error if error == error else np.inf
    x, slope, up, error = v[out], m[out, 0], m[out, 1], m[out, 2]
    p.base, p.slope, p.tall_slope, p.kind = x - slope * context - up * tall, slope, up, DIRECT
    size = abs(x) + abs(slope) * width + abs(up) * height
    error += 8.0 * ULP * size if size > 0.0 and not _still(m, out) else 0.0  # of recalling it
    if clamps(x, 1):  # stays DIRECT, so that it is counted
        pass
    elif _still(m, out):
        p.kind = WHOLE
    elif (
        error <= TRUSTED
        and _narrow(p, context, tall, x - 1.0, slope, up, error)
        and _narrow(p, context, tall, x - MAX_TICKS, slope, up, error)
    ):
        p.kind = LINE
    if p.kind == DIRECT:  # do not look again
        p.low, p.high, p.tall_low, p.tall_high = 0, NEVER, 0, TALLEST


@njit
def _still(m, slot):  # type: ignore[no-untyped-def]
    """True if the slot has exactly one value for the composition."""
    return m[slot, 0] == 0.0 and m[slot, 1] == 0.0 and m[slot, 2] == 0.0


@njit
def _all_still(m, v, block):  # type: ignore[no-untyped-def]
    """True if all features of the ensemble in this block (simulator.language.forest) are still."""
    still = True
    for i in range(int(v[block])):
        still = still and _still(m, int(v[block + 1 + i]))
    return still


@njit
def _narrow(p, context, tall, gap, slope, up, doubt):  # type: ignore[no-untyped-def]
    """Narrow `p` to contexts in which `gap`, with these slopes, surely keeps its sign. False if it is unsure here."""
    if not abs(gap) > doubt:
        return False
    room = abs(gap) - doubt
    if slope != 0.0 and up != 0.0:
        room /= 2.0  # half for each of the two contexts
    closing = slope if gap < 0.0 else -slope  # positive: the gap closes as the context grows
    if closing > 0.0:
        p.high = min(p.high, context + _whole(room / closing))
    elif closing < 0.0:
        p.low = max(p.low, context - _whole(room / -closing))
    closing = up if gap < 0.0 else -up
    if closing > 0.0:
        p.tall_high = min(p.tall_high, tall + _whole(room / closing))
    elif closing < 0.0:
        p.tall_low = max(p.tall_low, tall - _whole(room / -closing))
    return True


@njit
def _whole(tokens):  # type: ignore[no-untyped-def]
    """The whole tokens surely within `tokens`, at most 10^15."""
    return np.int64(max(0.0, min(math.floor(tokens) - 1.0, 1e15)))
