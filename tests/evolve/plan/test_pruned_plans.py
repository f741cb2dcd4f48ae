"""A plan that leaves out what cannot be first has the answer of one that counts the replicas of every deployment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from evolve.output.progress import Line
from evolve.plan.axes import axes_of
from evolve.plan.plan import Space, plan
from evolve.plan.plan_result import Plan
from evolve.plan.slo import parse_slo
from evolve.run.program import load
from simulator.common.json import JsonObject
from simulator.serving.spec import Spec

MODELS = "llama-2-7b", "llama-3.1-8b", "qwen3-14b", "codellama-34b", "mixtral-8x7b", "gpt-oss-20b"
GPUS = "H100-SXM-80GB", "H200-SXM-141GB", "A100-SXM-80GB", "L40S-48GB", "B200-SXM-180GB"
PROGRAMS = "floor", "kernels"  # both quick: one knows a step's measured kernels, one little of the GPU
MANY = range(200)  # questions
FEW = 1, 7, 80, 101, 116, 123, 127, 150  # quick ones; the limits of 80 are not monotone in the number of replicas


def question(number: int) -> tuple[str, Spec, Space, tuple[str, ...], dict[str, float], int]:
    """A program, a model under a load, deployments, limits, prices and the number of arrival seeds, drawn at random."""
    rng = np.random.default_rng(number)

    def some(values: tuple[Any, ...], most: int) -> list[Any]:
        return [values[i] for i in sorted(rng.choice(len(values), rng.integers(1, most + 1), replace=False))]

    def about(low: float, high: float) -> float:
        return float(f"{np.exp(rng.uniform(np.log(low), np.log(high))):.3g}")

    gpus = some(GPUS, 3)
    lengths: JsonObject = {"prompt_len": int(about(50, 1500)), "output_len": int(about(5, 100))}
    if rng.random() < 0.3:
        lengths["prompt_len"] = {"lognormal": {"mean": lengths["prompt_len"], "sd": about(50, 500), "max": 3000}}
    rate = about(5, 250)
    stages = [{"rate": rate, "duration_s": 20}]
    if rng.random() < 0.2:
        stages.append({"rate": 2 * rate, "duration_s": 10})
    workload: JsonObject = {"name": "w", "stages": stages, **lengths}
    closed = rng.random() < 0.3
    if closed:
        users = int(about(5, 400))
        workload = {"name": "w", "concurrency": users, "requests": 8 * users, "warmup_requests": users, **lengths}
    vary: dict[str, list[Any]] = {"hardware": gpus}
    for chance, key, values in (
        (0.4, "weights", ("bf16", "fp8")),
        (0.5, "max_num_seqs", (8, 32, 128, 512)),
        (0.3, "max_num_batched_tokens", (512, 2048, 8192)),
        (0.5, "tp", (1, 2, 4, 8)),
    ):
        if rng.random() < chance:
            vary[key] = some(values, 2)
    bounds = {
        "ttft_p99": (30, 3000),
        "ttft_mean": (20, 500),
        "itl_mean": (3, 60),
        "itl_p90": (4, 80),
        "e2e_p90": (100, 9000),
    }
    limits = tuple(f"{name}={about(*bounds[name]):.4g}ms" for name in some((*bounds,), 2))
    if not closed and rng.random() < 0.1:
        limits = ()
    prices = {gpu: about(0.5, 8) for gpu in gpus} if rng.random() < 0.6 else {}
    model = str(rng.choice(MODELS))
    spec = Spec.under(model, gpus[0], workload, engine={"version": "0.19.0"})
    program = PROGRAMS[int(rng.integers(2))]
    return program, spec, Space(axes_of(vary, "vary: ")), limits, prices, int(rng.integers(1, 4))


def answers(number: int) -> tuple[Plan, Plan]:
    """The pruned and the exhaustive plan of a question."""
    program, spec, space, limits, prices, seeds = question(number)
    pruned, every = (
        plan(load(program), spec, range(1, seeds + 1), space, parse_slo(limits), prices, Line(True), pruned=pruned)
        for pruned in (True, False)
    )
    return pruned, every


def first(found: Plan) -> tuple[Any, ...]:
    """The first deployment with its limits of a batch, and its replicas."""
    r = found.best
    return (r.setting, r.max_model_len, r.replicas, r.usd_per_hour) if r else ()


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param(FEW, id="few"),
        pytest.param(MANY, id="many", marks=pytest.mark.slow),
    ],
)
def test_pruned_plans_have_the_first_of_exhaustive_ones(numbers: Sequence[int]) -> None:
    found = {number: answers(number) for number in numbers}
    differ = {
        number: (first(pruned), first(every))
        for number, (pruned, every) in found.items()
        if first(pruned) != first(every)
    }
    assert not differ
    # the questions are no formality: most have an answer, and several need more than one replica
    best = [every.best for _, every in found.values() if every.best]
    assert len(best) > len(found) / 2 and sum(r.replicas > 1 for r in best) > len(best) / 8
