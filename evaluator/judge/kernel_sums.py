"""Is what a program says of a step consistent with the sum of its measured kernels? Two checks, also on deployments
that nobody has measured as a whole.

    decode   a decode step takes 0.7 times the sum of its kernels at least, and 1.6 times the sum plus 3 ms at most
    prefill  an uncached prompt of 2k, 8k or 32k takes 0.9 to 2 times the sum of its kernels

The margins hold what no table has: launches, the scheduler's own time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from evaluator.judge.gates import Facts, Gate, bound_on, verdict
from evaluator.judge.sweep import Batch, decode_batch, table_of
from simulator.fields import Active
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.parse import parse

DECODE = (0.7, 1.6)
DECODE_MORE_US = 3000.0
PREFILL = (0.9, 2.0)
BUDGET = 2048  # tokens of a prefill step
DECODES = ((1, 1024), (8, 1024), (32, 1024), (128, 1024), (8, 16384))  # requests, tokens of context of each
PROMPTS = (2048, 8192, 32768)
_SUM = "def step_time(b, s): return b.kernel_us"


@dataclass(frozen=True)
class KernelSums:
    """Deployments with measured kernels, and the sums of their kernels in us: float64[len(DECODES)] of the decode
    steps, float64[len(PROMPTS)] of the prompts. Computed once for any number of programs."""

    deployments: Facts
    decode: Mapping[str, np.ndarray]
    prefill: Mapping[str, np.ndarray]


def kernel_sums(deployments: Facts) -> KernelSums:
    """The sums of every deployment. Raises InputError for one whose GPU has no measured kernels."""
    bounds = bound_on(complete(parse(_SUM)), deployments)
    decode = {name: bound.steps_us(_decode_table()) for name, bound in bounds.items()}
    prefill = {name: _prompts_us(bound.steps_us(_prefill_table())) for name, bound in bounds.items()}
    return KernelSums(deployments, decode, prefill)


def kernel_checks(program: Program, sums: KernelSums) -> list[Gate]:
    """Both checks over all the deployments."""
    decode: list[tuple[float, str]] = []
    prefill: list[tuple[float, str]] = []
    for name, bound in bound_on(program, sums.deployments).items():
        steps = bound.steps_us(_decode_table())
        measured = sums.decode[name]
        low, high = DECODE[0] * measured, DECODE[1] * measured + DECODE_MORE_US
        for (n, context), x, a, b, k in zip(DECODES, steps, low, high, measured, strict=True):
            what = f"{name}: {n} decodes in {context} context: {x:,.0f} us, kernels {k:,.0f} us"
            decode.append((max(a / x if x > 0.0 else np.inf, x / b), what))
        times = _prompts_us(bound.steps_us(_prefill_table()))
        for tokens, x, k in zip(PROMPTS, times, sums.prefill[name], strict=True):
            what = f"{name}: a prompt of {tokens} tokens: {x / 1e3:,.1f} ms, kernels {k / 1e3:,.1f} ms"
            prefill.append((max(PREFILL[0] * k / x if x > 0.0 else np.inf, x / (PREFILL[1] * k)), what))
    return [
        _gate("kernels: decode", decode, "a decode step takes 0.7 times its kernels to 1.6 times them plus 3 ms"),
        _gate("kernels: prefill", prefill, "an uncached prompt takes 0.9 to 2 times its kernels"),
    ]


def _gate(name: str, found: list[tuple[float, str]], rule: str) -> Gate:
    """`found`: how far each step is beyond its limit, 1 at the limit, and which step that is."""
    _, what = max(found)
    beyond = sum(x > 1.0 for x, _ in found)
    said = "the farthest beyond" if beyond else "the closest to one"
    measured = f"{len(found) - beyond} of {len(found)} within the limits, {said}: {what}"
    return verdict(name, not beyond, measured, rule)


@cache
def _decode_table() -> np.ndarray:
    return table_of(decode_batch(n, context) for n, context in DECODES)


@cache
def _prefill_table() -> np.ndarray:
    return table_of(chunk for tokens in PROMPTS for chunk in _chunks(tokens))


def _chunks(tokens: int) -> list[Batch]:
    return [(Active(tokens, done, BUDGET),) for done in range(0, tokens, BUDGET)]


def _prompts_us(steps_us: np.ndarray) -> np.ndarray:
    """float64[len(PROMPTS)]: the time of each prompt from those of its chunks."""
    ends = np.cumsum([len(_chunks(tokens)) for tokens in PROMPTS])
    return np.array([part.sum() for part in np.split(steps_us, ends[:-1])])
