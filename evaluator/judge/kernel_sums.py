"""Consistency of a program's step times with the sums of their measured kernels: two checks, which also cover
deployments that were never measured as a whole.

    decode   a decode step takes 0.7 times the sum of its kernels to 1.6 times the sum plus 3 ms
    prefill  an uncached prompt of 2k, 8k or 32k tokens takes 0.9 to 2 times the sum of its kernels

The margins cover what no table contains: launches and the scheduler's own time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from evaluator.judge.gates import FactsByDeployment, Gate, Theta, extreme, verdict
from evaluator.judge.physics import hardware_of, physics
from evaluator.judge.sweep import Batch, decode_batch, table_of
from simulator.clock.bind import Deployments
from simulator.clock.fields import Active
from simulator.language.ir import Program
from simulator.language.opcodes import Code, assemble
from simulator.language.parse import parse
from simulator.serving.known import datasheet_deployments, kernel_deployments

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

    decode, prefill: float64[deployments, DECODES] of the decode steps, float64[deployments, PROMPTS] of the prompts.
    """

    deployments: Deployments
    decode: np.ndarray
    prefill: np.ndarray


def kernel_sums(deployments: FactsByDeployment) -> KernelSums:
    """The sums of every deployment. Raises InputError for a GPU without measured kernels."""
    program, prepared = parse(KERNEL_STEP), Deployments(deployments)
    return KernelSums(prepared, *kernel_times_us(assemble(program), program.theta, prepared))


@cache
def known_kernel_sums() -> KernelSums:
    """The sums of every `kernel_deployments`. They take a second, so that one process computes them for all others."""
    return kernel_sums(kernel_deployments())


def kernel_checks(code: Code, theta: Theta, sums: KernelSums) -> list[Gate]:
    """Both checks over all deployments, at the constants `theta`."""
    names = sums.deployments.names
    decode_us, prefill_us = kernel_times_us(code, theta, sums.deployments)

    def decode(d: int, i: int) -> str:
        (n, context), x, k = DECODES[i], decode_us[d, i], sums.decode[d, i]
        return f"{names[d]}: {n} decodes in {context} context: {x:,.0f} us, kernels {k:,.0f} us"

    def prefill(d: int, i: int) -> str:
        x, k = prefill_us[d, i], sums.prefill[d, i]
        return f"{names[d]}: a prompt of {PROMPTS[i]} tokens: {x / 1e3:,.1f} ms, kernels {k / 1e3:,.1f} ms"

    decode_ratios = _ratios(DECODE[0] * sums.decode, decode_us, DECODE[1] * sums.decode + DECODE_MORE_US)
    prefill_ratios = _ratios(PREFILL[0] * sums.prefill, prefill_us, PREFILL[1] * sums.prefill)
    least, most = DECODE
    more_ms = DECODE_MORE_US / 1e3
    decode_rule = f"a decode step takes {least:g} times its kernels to {most:g} times them plus {more_ms:g} ms"
    prefill_rule = f"an uncached prompt takes {PREFILL[0]:g} to {PREFILL[1]:g} times its kernels"
    return [
        _gate("kernels: decode", decode_ratios, decode, decode_rule),
        _gate("kernels: prefill", prefill_ratios, prefill, prefill_rule),
    ]


def hardware_checks(code: Code, theta: Theta) -> list[Gate]:
    """What the datasheets and the measured kernels of the shipped models say of a program at the constants `theta`."""
    physical = physics(code, theta, hardware_of(datasheet_deployments()))
    return [*physical, *kernel_checks(code, theta, known_kernel_sums())]


def consistent(program: Program) -> bool:
    """Whether none of the `hardware_checks` contradicts a complete program."""
    return all(gate.passes for gate in hardware_checks(assemble(program), program.theta))


def _ratios(low: np.ndarray, x: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The ratio of every time to its limits: 1 at the nearer limit and larger beyond it, infinite for no time."""
    with np.errstate(all="ignore"):
        below, above = np.where(x > 0.0, low / x, np.inf), x / high
    return np.where(above > below, above, below)


def _gate(name: str, ratios: np.ndarray, text: Callable[[int, int], str], rule: str) -> Gate:
    """`text`: a case by its deployment and its column."""
    _, worst = extreme(max, ratios, lambda case: text(*divmod(case, ratios.shape[1])))
    beyond = np.count_nonzero(ratios > 1.0)
    which = "farthest beyond" if beyond else "closest to a limit"
    measured = f"{ratios.size - beyond} of {ratios.size} within bounds, {which}: {worst}"
    return verdict(name, not beyond, measured, rule)


@cache
def _table() -> np.ndarray:
    """The raw fields of the decode steps, then of the chunks of every prompt."""
    chunks = (chunk for tokens in PROMPTS for chunk in _chunks(tokens))
    return table_of((*(decode_batch(n, context) for n, context in DECODES), *chunks))


def _chunks(tokens: int) -> list[Batch]:
    return [(Active(tokens, done, BUDGET),) for done in range(0, tokens, BUDGET)]


def kernel_times_us(code: Code, theta: Theta, deployments: Deployments) -> tuple[np.ndarray, np.ndarray]:
    """A program's times in us: float64[deployments, DECODES] of the decode steps, float64[deployments, PROMPTS] of the
    prompts, each the sum over its chunks."""
    us = deployments.bind(code, theta).steps_us(_table())
    ends = np.cumsum([len(DECODES), *(len(_chunks(tokens)) for tokens in PROMPTS)])
    decode_us, *prompts = np.split(us, ends[:-1], axis=1)
    return decode_us, np.stack([prompt.sum(axis=1) for prompt in prompts], axis=1)
