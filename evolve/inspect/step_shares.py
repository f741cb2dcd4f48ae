"""The part of each term of a program in a decode step, over batch sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.parts import by_term
from simulator.clock.bind import Deployments, deployments_in_order
from simulator.clock.fields import Active, raw_row
from simulator.language.ir import Program
from simulator.language.opcodes import assemble
from simulator.serving.experiment import Experiment

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)
CONTEXT = 1024  # tokens in the KV cache of every request
CHANGE = 1e-3  # by which a term is made shorter and longer


@dataclass(frozen=True, slots=True)
class StepShares:
    """The times of the terms of step_time in steps of `batch` decodes on a deployment: `us` by term and batch size.

    Terms that add nothing to any of these steps are left out. The others are in the order of the program.
    """

    deployment: str
    batch: tuple[int, ...]
    terms: tuple[str, ...]
    us: tuple[tuple[float, ...], ...]


def step_shares(program: Program, experiments: Sequence[Experiment]) -> list[StepShares]:
    """The shares on the deployment of each experiment, each deployment once, with CONTEXT tokens a request."""
    named = {deployment_name(e): e for e in reversed(experiments)}
    chosen = [named[name] for name in dict.fromkeys(map(deployment_name, experiments))]
    batches = np.stack([raw_row([Active(1, CONTEXT, 1) for _ in range(n)]) for n in BATCH_SIZES])
    terms, us = term_times_us(program, deployments_in_order(chosen), batches)
    return [_of_deployment(deployment_name(e), terms, us[:, d]) for d, e in enumerate(chosen)]


def term_times_us(
    program: Program, deployments: Deployments, batches: np.ndarray
) -> tuple[tuple[str, ...], np.ndarray]:
    """(the terms of step_time in the order of the program; what each adds, float64[terms, deployments, batches]).

    `batches`: float64[batches, RAW], raw batch fields. A term's time is the slope of the step time in a factor on the
    term. These times add up to the step time. Inside max, min and choices, only the terms that count have one.
    """
    factored = by_term(program)
    terms = {at: part.text for at, part in factored.parts.items() if part.method == "step_time"}
    code = assemble(factored.program)
    us = np.empty((len(terms), len(deployments.names), len(batches)))
    for i, position in enumerate(terms):
        low, high = (
            deployments.bind(code, _with(factored.program.theta, position, factor)).steps_us(batches)
            for factor in (1.0 - CHANGE, 1.0 + CHANGE)
        )
        us[i] = (high - low) / (2.0 * CHANGE)
    return tuple(terms.values()), us


def deployment_name(e: Experiment) -> str:
    """The deployment of an experiment in words: model, GPU and TP degree."""
    return f"{e.model} on {e.hardware}, TP {e.engine.tensor_parallel}"


def _with(theta: tuple[float, ...], position: int, value: float) -> tuple[float, ...]:
    return (*theta[:position], value, *theta[position + 1 :])


def _of_deployment(name: str, terms: Sequence[str], us: np.ndarray) -> StepShares:
    kept = [i for i in range(len(terms)) if np.any(us[i] != 0.0)]
    rows = tuple(tuple(float(x) for x in us[i]) for i in kept)
    return StepShares(name, BATCH_SIZES, tuple(terms[i] for i in kept), rows)
