"""Consistency of a program's step times with the sums of their measured kernels: two checks, which also cover
deployments that were never measured as a whole.

    decode   a decode step takes 0.7 times the sum of its kernels to 1.6 times the sum plus 3 ms
    prefill  an uncached prompt of 2k, 8k or 32k tokens takes 0.9 to 2 times the sum of its kernels

The margins cover what no table contains: launches and the scheduler's own time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from evaluator.judge.gates import Case, Facts, Gate, bound_on, verdict
from evaluator.judge.sweep import Batch, decode_batch, table_of
from simulator.fields import Active
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.parse import parse

DECODE = (0.7, 1.6)
DECODE_MORE_US = 3000.0
PREFILL = (0.9, 2.0)
BUDGET = 2048  # tokens of a prefill step
DECODES = ((1, 1024), (8, 1024), (32, 1024), (128, 1024), (8, 16384))  # (requests, tokens of context of each)
PROMPTS = (2048, 8192, 32768)  # tokens
KERNEL_STEP = "def step_time(b, s): return b.kernel_us"


@dataclass(frozen=True)
class KernelSums:
    """Deployments with measured kernels, and the sums of their kernels in us, computed once for any number of programs.

    decode, prefill: by deployment, float64[len(DECODES)] of the decode steps, float64[len(PROMPTS)] of the prompts.
    """

    deployments: Facts
    decode: Mapping[str, np.ndarray]
    prefill: Mapping[str, np.ndarray]


def kernel_sums(deployments: Facts) -> KernelSums:
    """The sums of every deployment. Raises InputError for a GPU without measured kernels."""
    bounds = bound_on(complete(parse(KERNEL_STEP)), deployments)
    decode = {name: bound.steps_us(_decode_table()) for name, bound in bounds.items()}
    prefill = {name: _prompts_us(bound.steps_us(_prefill_table())) for name, bound in bounds.items()}
    return KernelSums(deployments, decode, prefill)


def kernel_checks(program: Program, sums: KernelSums) -> list[Gate]:
    """Both checks over all deployments. A case's ratio is 1 at the nearer limit and larger beyond it."""
    decode: list[Case] = []
    prefill: list[Case] = []
    for name, bound in bound_on(program, sums.deployments).items():
        steps = bound.steps_us(_decode_table())
        measured = sums.decode[name]
        low, high = DECODE[0] * measured, DECODE[1] * measured + DECODE_MORE_US
        for (n, context), x, a, b, k in zip(DECODES, steps, low, high, measured, strict=True):
            step = f"{name}: {n} decodes in {context} context: {x:,.0f} us, kernels {k:,.0f} us"
            decode.append((max(a / x if x > 0.0 else np.inf, x / b), step))
        times = _prompts_us(bound.steps_us(_prefill_table()))
        for tokens, x, k in zip(PROMPTS, times, sums.prefill[name], strict=True):
            prompt = f"{name}: a prompt of {tokens} tokens: {x / 1e3:,.1f} ms, kernels {k / 1e3:,.1f} ms"
            prefill.append((max(PREFILL[0] * k / x if x > 0.0 else np.inf, x / (PREFILL[1] * k)), prompt))
    return [
        _gate("kernels: decode", decode, "a decode step takes 0.7 times its kernels to 1.6 times them plus 3 ms"),
        _gate("kernels: prefill", prefill, "an uncached prompt takes 0.9 to 2 times its kernels"),
    ]


def _gate(name: str, cases: list[Case], rule: str) -> Gate:
    _, worst = max(cases)
    beyond = sum(ratio > 1.0 for ratio, _ in cases)
    extreme = "farthest beyond" if beyond else "closest to a limit"
    measured = f"{len(cases) - beyond} of {len(cases)} within the limits, {extreme}: {worst}"
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
    """float64[len(PROMPTS)]: the time of each prompt, the sum over its chunks."""
    ends = np.cumsum([len(_chunks(tokens)) for tokens in PROMPTS])
    return np.array([part.sum() for part in np.split(steps_us, ends[:-1])])
