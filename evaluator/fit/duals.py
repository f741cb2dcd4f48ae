"""Slopes of opcodes in every constant, by forward-mode differentiation: what `clock.vm.run` computed, once more."""

from __future__ import annotations

import math

import numpy as np

from simulator.common.jit import njit
from simulator.language import opcodes
from simulator.language.guarded import EXP_LIMIT, POW_LIMIT
from simulator.language.opcodes import REFERENCE, STEP_TIME, Code


def varying(code: Code) -> tuple[np.ndarray, int, int]:
    """The rows whose results depend on a constant, int64[rows, 3], and how many of them are static, or static or a
    step's.

    Each with the first of the constants and the one behind the last: a sum of terms depends on a few neighbours. All
    other slopes are 0.

    >>> from simulator.language.opcodes import assemble
    >>> from simulator.language.parse import parse
    >>> varying(assemble(parse("def step_time(b, s, *, c=2.0): return b.tokens * (c + s.layers)")))
    (array([[0, 0, 1],
           [2, 0, 1]]), 1, 2)
    """
    spans = {j: (j, j + 1) for j in range(code.constants)}  # by slot; the constants are in the first ones
    which = []
    for i, (_, slot, *operands) in enumerate(code.rows.tolist()):
        if i == code.step and code.results[STEP_TIME] in spans:
            spans[code.request + REFERENCE] = spans[code.results[STEP_TIME]]
        if found := [spans[operand] for operand in operands if operand in spans]:
            spans[slot] = min(first for first, _ in found), max(last for _, last in found)
            which.append((i, *spans[slot]))
    static, step = (sum(i < end for i, _, _ in which) for end in (code.static, code.step))
    return np.array(which, dtype=np.int64).reshape(-1, 3), static, step


@njit
def differentiate(rows, which, low, high, v, d):  # type: ignore[no-untyped-def]
    """Fill d[slot, constant] for the results of rows[which[low:high]], from the values `v` that `run` has left.

    Where a guard of the language takes over, the slope is 0; at a kink it is that of the side taken.
    """
    for w in range(low, high):
        i = which[w, 0]
        op, z, a, b = rows[i, 0], rows[i, 1], rows[i, 2], rows[i, 3]
        x, y = v[a], v[b]
        p, q = 0.0, 0.0  # the slopes of the operation in its operands
        if op == opcodes.ADD:
            p, q = 1.0, 1.0
        elif op == opcodes.SUB:
            p, q = 1.0, -1.0
        elif op == opcodes.MUL:
            p, q = y, x
        elif op == opcodes.DIV:
            if y != 0.0:
                p, q = 1.0 / y, -v[z] / y
        elif op == opcodes.NEG:
            p = -1.0
        elif op == opcodes.MAX:
            p, q = (1.0, 0.0) if x > y else (0.0, 1.0)
        elif op == opcodes.MIN:
            p, q = (1.0, 0.0) if x < y else (0.0, 1.0)
        elif op == opcodes.SQRT:
            p = 0.5 / v[z] if x > 0.0 else 0.0
        elif op == opcodes.LOG:
            p = 1.0 / x if x > 0.0 else 0.0
        elif op == opcodes.LOG1P:
            p = 1.0 / (1.0 + x) if x > 0.0 else 0.0
        elif op == opcodes.EXP:
            p = v[z] if x < EXP_LIMIT else 0.0
        elif op == opcodes.SOFTPLUS:
            p = 1.0 / (1.0 + math.exp(-x)) if x > 0.0 else math.exp(x) / (1.0 + math.exp(x))  # neither overflows
        elif op == opcodes.POW:
            if x > 0.0:
                p = max(-POW_LIMIT, min(POW_LIMIT, y)) * v[z] / x
                q = math.log(x) * v[z] if abs(y) < POW_LIMIT else 0.0
        elif op == opcodes.SELECT:
            a = b if x != 0.0 else rows[i, 4]
            p = 1.0
        for j in range(which[w, 1], which[w, 2]):
            d[z, j] = p * d[a, j] + q * d[b, j]
