"""The steps of a closed load side by side: their times and slopes, operation by operation over all steps at once.

The values are those of `vm.run` and `machine.differentiate` to the last bit. Only the rows of a step that depend on
constants are run: what these read besides is the same at all constants, and computed once (`Lanes.seen`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from simulator.clock.vm import run
from simulator.common.jit import njit
from simulator.language import opcodes
from simulator.language.guarded import EXP_LIMIT, POW_LIMIT
from simulator.language.opcodes import STEP_TIME, VALUES, Code


class Lanes(NamedTuple):
    """The rows of a step that depend on constants, and room for the values of each step of a closed load.

    rows: uint32[n, 7]: operation, places of the result and of the operands a, b, c, first constant that the result
    depends on, the one after the last. Places are those of `alike`, of `differing`, then of the results.

    - alike: int64[a], slots with the same value in all steps. moving: int64[m, 4], place, slot, first constant and the
      one after the last of those among them that depend on constants
    - differing: int64[k], other slots that rows read. seen: float64[stages, k, bins], their values
    - weights: float64[stages, 3, bins], of the steps in E2E, TTFT and ITL
    - result: place of the step time, which depends on the constants from `first` until `last`

    Room: values: float64[places, bins]; slopes: float64[places, theta, bins]; partial: float64[3, bins]; few, single:
    for an operation at a time.
    """

    rows: np.ndarray
    alike: np.ndarray
    moving: np.ndarray
    differing: np.ndarray
    seen: np.ndarray
    weights: np.ndarray
    result: int
    first: int
    last: int
    values: np.ndarray
    slopes: np.ndarray
    partial: np.ndarray
    few: np.ndarray
    single: np.ndarray


def lanes(code: Code, which: np.ndarray, static: int, step: int, weights: np.ndarray) -> Lanes:
    """The lanes of a program whose rows `which`, as `machine.varying` has them, depend on constants. `seen` is 0.

    weights: float64[stages, bins, 3], of the steps in E2E, TTFT and ITL.
    """
    spans = {j: (j, j + 1) for j in range(code.constants)}
    spans |= {int(code.rows[i, 1]): (low, high) for i, low, high in which[:step].tolist()}
    own = code.rows[which[static:step, 0]]
    results, of_step = own[:, 1].tolist(), code.results[STEP_TIME]
    read = {slot for op, _, *operands in own.tolist() for slot in operands[: VALUES[op]]} | {of_step}
    changing = {*range(code.raw, code.request), *code.rows[code.static : code.step, 1].tolist()}
    differing = sorted((read & changing) - {*results})
    alike = sorted(read - changing - {*results})
    place = {slot: i for i, slot in enumerate([*alike, *differing, *results])}
    rows = np.zeros((len(own), 7), np.uint32)
    for i, (op, slot, *operands) in enumerate(own.tolist()):
        used = [place[operand] for operand in operands[: VALUES[op]]]
        rows[i] = op, place[slot], *used, *used[:1] * (3 - len(used)), *spans[slot]
    moving = [(place[slot], slot, *spans[slot]) for slot in alike if slot in spans]
    wide, count = weights.shape[1], len(place)
    values, partial = np.zeros((count, wide)), np.zeros((3, wide))
    first, last = spans.get(of_step, (0, 0))
    return Lanes(
        rows,
        np.array(alike, np.int64),
        np.array(moving, np.int64).reshape(-1, 4),
        np.array(differing, np.int64),
        np.zeros((len(weights), len(differing), wide)),
        np.ascontiguousarray(np.swapaxes(weights, 1, 2)),
        place[of_step],
        first,
        last,
        values,
        np.zeros((count, code.constants, wide)),
        partial,
        np.zeros(4),
        np.array([[0, 3, 0, 1, 2]], np.uint32),
    )


@njit
def put_alike(lane, v):  # type: ignore[no-untyped-def]
    """Put what is alike in all steps of the deployment that is settled in `v` into all lanes."""
    w = lane.values
    for f in range(np.uintp(lane.alike.size)):
        for k in range(np.uintp(w.shape[1])):
            w[f, k] = v[lane.alike[f]]


@njit
def times(lane, i, count):  # type: ignore[no-untyped-def]
    """Fill lane.values with those of the `count` steps of closed load `i`, after `put_alike`."""
    # unsigned, so that they become vector instructions
    w, wide, alike = lane.values, np.uintp(count), np.uintp(lane.alike.size)
    for f in range(np.uintp(lane.differing.size)):
        for k in range(wide):
            w[alike + f, k] = lane.seen[i, f, k]
    for r in range(np.uintp(lane.rows.shape[0])):
        op, z, x, y = lane.rows[r, 0], np.uintp(lane.rows[r, 1]), np.uintp(lane.rows[r, 2]), np.uintp(lane.rows[r, 3])
        if op == opcodes.ADD:
            for k in range(wide):
                w[z, k] = w[x, k] + w[y, k]
        elif op == opcodes.MUL:
            for k in range(wide):
                w[z, k] = w[x, k] * w[y, k]
        elif op == opcodes.MAX:
            for k in range(wide):
                w[z, k] = w[x, k] if w[x, k] > w[y, k] or w[x, k] != w[x, k] else w[y, k]
        elif op == opcodes.GT:
            for k in range(wide):
                w[z, k] = 1.0 if w[x, k] > w[y, k] else 0.0
        elif op == opcodes.SELECT:
            other = np.uintp(lane.rows[r, 4])
            for k in range(wide):
                w[z, k] = w[y, k] if w[x, k] != 0.0 else w[other, k]
        else:  # no curve and no forest: what these read does not depend on constants
            few, single = lane.few, lane.single
            single[0, 0] = op
            for k in range(wide):
                few[0], few[1], few[2] = w[x, k], w[y, k], w[np.uintp(lane.rows[r, 4]), k]
                run(single, 0, 1, few)
                w[z, k] = few[3]


@njit
def slopes(lane, count, d):  # type: ignore[no-untyped-def]
    """Fill lane.slopes after `times`; d: float64[slots, theta], the slopes of what is alike in all steps."""
    w, s, partial, wide = lane.values, lane.slopes, lane.partial, np.uintp(count)
    for f in range(lane.moving.shape[0]):
        place, slot = lane.moving[f, 0], lane.moving[f, 1]
        for j in range(lane.moving[f, 2], lane.moving[f, 3]):
            for k in range(wide):
                s[place, j, k] = d[slot, j]
    for r in range(np.uintp(lane.rows.shape[0])):
        op, z, x, y = lane.rows[r, 0], np.uintp(lane.rows[r, 1]), np.uintp(lane.rows[r, 2]), np.uintp(lane.rows[r, 3])
        if op not in (opcodes.ADD, opcodes.MUL, opcodes.SELECT):
            for k in range(wide):
                partial[0, k], partial[1, k] = partials(op, w[x, k], w[y, k], w[z, k])
        for j in range(lane.rows[r, 5], lane.rows[r, 6]):
            if op == opcodes.ADD:
                for k in range(wide):
                    s[z, j, k] = s[x, j, k] + s[y, j, k]
            elif op == opcodes.MUL:
                for k in range(wide):
                    s[z, j, k] = w[y, k] * s[x, j, k] + w[x, k] * s[y, j, k]
            elif op == opcodes.SELECT:
                other = np.uintp(lane.rows[r, 4])
                for k in range(wide):
                    s[z, j, k] = s[y, j, k] if w[x, k] != 0.0 else s[other, j, k]
            else:
                for k in range(wide):
                    s[z, j, k] = partial[0, k] * s[x, j, k] + partial[1, k] * s[y, j, k]


@njit
def partials(op, x, y, z):  # type: ignore[no-untyped-def]
    """The slopes of an operation of the operands x and y, with the result z, in x and y; 0 of comparisons and choices.

    A slope is 0 where a guard of the language takes over, and at a kink that of the side taken.
    """
    p, q = 0.0, 0.0
    if op == opcodes.ADD:
        p, q = 1.0, 1.0
    elif op == opcodes.SUB:
        p, q = 1.0, -1.0
    elif op == opcodes.MUL:
        p, q = y, x
    elif op == opcodes.DIV:
        if y != 0.0:
            p, q = 1.0 / y, -z / y
    elif op == opcodes.NEG:
        p = -1.0
    elif op == opcodes.MAX:
        p, q = (1.0, 0.0) if x > y else (0.0, 1.0)
    elif op == opcodes.MIN:
        p, q = (1.0, 0.0) if x < y else (0.0, 1.0)
    elif op == opcodes.SQRT:
        p = 0.5 / z if x > 0.0 else 0.0
    elif op == opcodes.LOG:
        p = 1.0 / x if x > 0.0 else 0.0
    elif op == opcodes.LOG1P:
        p = 1.0 / (1.0 + x) if x > 0.0 else 0.0
    elif op == opcodes.EXP:
        p = z if x < EXP_LIMIT else 0.0
    elif op == opcodes.SOFTPLUS:
        p = 1.0 / (1.0 + math.exp(-x)) if x > 0.0 else math.exp(x) / (1.0 + math.exp(x))  # neither overflows
    elif op == opcodes.POW and x > 0.0:
        p = max(-POW_LIMIT, min(POW_LIMIT, y)) * z / x
        q = math.log(x) * z if abs(y) < POW_LIMIT else 0.0
    return p, q


@njit
def add_slopes(lane, i, j, count, e2e, ttft, itl):  # type: ignore[no-untyped-def]
    """The three sums, each plus the slopes in constant `j` of the steps of closed load `i` in it, in ms.

    One step after the other, so that a sum does not depend on the width of vectors.
    """
    of_j, weights, share = lane.slopes[lane.result, j], lane.weights[i], lane.partial
    first = 0
    while first < count and of_j[first] == 0.0:  # often in all steps: a constant of another GPU or precision
        first += 1
    if first == count:
        return e2e, ttft, itl
    for c in range(3):
        for k in range(np.uintp(count)):
            share[c, k] = weights[c, k] * of_j[k] / 1e3
    for k in range(count):
        e2e, ttft, itl = e2e + share[0, k], ttft + share[1, k], itl + share[2, k]
    return e2e, ttft, itl
