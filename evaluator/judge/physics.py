"""Consistency of a program with hardware: five checks that measurements of a few deployments cannot make.

    roofline   a step takes at least 0.8 of its bytes over the bandwidth and of its FLOPs over the peak
    efficiency a step full of prefill takes at most twenty times as long as that
    parallel   four GPUs run a heavy step 1.5 to 4 times as fast as one
    sublinear  twice the decodes take at most twice as long, for every batch
    size       of two dense models on the same GPUs, the one with more parameters is slower, one request at a time

Sources: Williams, Waterman and Patterson, Roofline, CACM 2009 (first check); Amdahl's law with communication (second).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

import numpy as np

from evaluator.judge.gates import ROUNDING, Case, Facts, Gate, bound_on, verdict
from evaluator.judge.sweep import Batch, table_of
from simulator.bind import Bound
from simulator.fields import Active, BatchFields
from simulator.language.ir import Program

LEAST_OF_ROOFLINE = 0.8
MOST_OF_ROOFLINE = 20.0  # the poorest of the shipped runs, a mixture of experts in fp8, takes about 5 over 900 tokens
PARALLEL = (1.5, 4.0)


def _decodes(n: int, context: int) -> Batch:
    return tuple(Active(32, context, 1) for _ in range(n))


# Steps as an engine with a budget of 2048 tokens schedules them.
_STEPS: dict[str, Batch] = {
    "1 decode in 512 context": _decodes(1, 512),
    "64 decodes in 512 context": _decodes(64, 512),
    "128 decodes in 4096 context": _decodes(128, 4096),
    "a prefill of 2048": (Active(2048, 0, 2048),),
    "a prefill of 2048 after 14336": (Active(16384, 14336, 2048),),
    "a prefill of 512 and 64 decodes in 512 context": (*_decodes(64, 512), Active(512, 0, 512)),
}
FULL = 2048  # tokens, the budget
HEAVY = "a prefill of 1920 and 128 decodes in 4096 context"
_HEAVY: Batch = (*_decodes(128, 4096), Active(1920, 0, 1920))
_FULL = {name: batch for name, batch in _STEPS.items() if sum(r.new for r in batch) >= FULL}
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)


def physics(program: Program, deployments: Facts) -> list[Gate]:
    """The five checks over `deployments`, which are named `MODEL tpN` and all have the same kind of GPU."""
    bounds = bound_on(program, deployments)
    return [
        _roofline(_over_datasheet(bounds, deployments, _STEPS)),
        _efficiency(_over_datasheet(bounds, deployments, _FULL)),
        _parallel(bounds, deployments),
        _sublinear(bounds),
        _size(bounds, deployments),
    ]


def _steps_us(bounds: Mapping[str, Bound], batches: Iterable[Batch]) -> dict[str, list[float]]:
    """The time of each batch on every deployment, at least 1 us like the clock's steps."""
    table = table_of(batches)
    return {name: np.maximum(bound.steps_us(table), 1.0).tolist() for name, bound in bounds.items()}


def roofline_us(batch: Batch, facts: Mapping[str, float]) -> float:
    """The datasheet's lower bound on a step in us: the larger of bytes over bandwidth and FLOPs over peak."""
    fields = BatchFields(batch, facts)
    return max(fields["b", "total_bytes"] / facts["bytes_per_us"], fields["b", "total_flops"] / facts["flops_per_us"])


def _over_datasheet(bounds: Mapping[str, Bound], deployments: Facts, steps: Mapping[str, Batch]) -> list[Case]:
    """The time of every step on every deployment over the datasheet's."""
    cases = []
    for name, times in _steps_us(bounds, steps.values()).items():
        for (label, batch), step_us in zip(steps.items(), times, strict=True):
            least = roofline_us(batch, deployments[name])
            cases.append((step_us / least, f"{name}: {label}: {step_us:,.0f} us, the datasheet allows {least:,.0f} us"))
    return cases


def _roofline(cases: list[Case]) -> Gate:
    ratio, worst = min(cases)
    low = sum(r < LEAST_OF_ROOFLINE for r, _ in cases)
    share = f"{low} of {len(cases)} steps below {LEAST_OF_ROOFLINE}"
    measured = f"{ratio:.2f} of the datasheet's time at least ({share}): {worst}"
    rule = f"no step may take less than {LEAST_OF_ROOFLINE} of the datasheet's time"
    return verdict("roofline", not low, measured, rule)


def _efficiency(cases: list[Case]) -> Gate:
    ratio, worst = max(cases)
    measured = f"{ratio:.1f} times the datasheet's time at most: {worst}"
    rule = f"a step of {FULL} tokens takes at most {MOST_OF_ROOFLINE:g} times the datasheet's time"
    return verdict("efficiency", ratio <= MOST_OF_ROOFLINE, measured, rule)


def _parallel(bounds: Mapping[str, Bound], deployments: Facts) -> Gate:
    cases, times = [], _steps_us(bounds, [_HEAVY])
    for model, by_tp in _by_model(deployments).items():
        if 1 in by_tp and 4 in by_tp:
            one, four = (times[by_tp[tp]][0] for tp in (1, 4))
            cases.append((one / four, f"{model}: {HEAVY}: {one:,.0f} us on one GPU, {four:,.0f} us on four"))
    if not cases:
        return Gate("parallel", True, "no model here fits on one GPU and on four")
    low, high = PARALLEL
    (least, slow), (most, fast) = min(cases), max(cases)
    measured = f"{least:.2f} to {most:.2f} times as fast over {len(cases)} models: {slow if least < low else fast}"
    rule = f"four GPUs run it {low} to {high:g} times as fast"
    return verdict("parallel", low <= least and most <= high, measured, rule)


def _sublinear(bounds: Mapping[str, Bound]) -> Gate:
    cases = []
    for name, times in _steps_us(bounds, [_decodes(n, 1024) for n in _COUNTS]).items():
        for n, (one, other) in zip(_COUNTS, pairwise(times), strict=False):
            step = f"{name}: {n} -> {2 * n} decodes in 1024 context: {one:,.0f} -> {other:,.0f} us"
            cases.append((other / one, step))
    ratio, worst = max(cases)
    passes = ratio <= 2.0 * (1.0 + ROUNDING)
    measured = f"{ratio:.2f} times at most: {worst}"
    return verdict("sublinear", passes, measured, "twice the decodes take at most twice as long")


def _size(bounds: Mapping[str, Bound], deployments: Facts) -> Gate:
    dense = {name: facts for name, facts in deployments.items() if not facts["is_moe"] and not facts["is_fp8"]}
    times = _steps_us(bounds, [_STEPS["1 decode in 512 context"]])
    pairs, wrong = 0, []
    for small, a in dense.items():
        for large, c in dense.items():
            if a["tp"] != c["tp"] or a["model_params_b"] * 1.5 > c["model_params_b"]:
                continue  # for models of nearly equal size the shapes decide
            pairs += 1
            one, other = (times[name][0] for name in (small, large))
            if not other > one:
                wrong.append((other / one, f"{small} {one:,.0f} us, {large} {other:,.0f} us"))
    measured = f"{pairs - len(wrong)} of {pairs} pairs of dense models"
    if wrong:
        measured += f", worst: {min(wrong)[1]}"
    return verdict("size", not wrong, measured, "a model with at least half as many parameters again must be slower")


def _by_model(deployments: Facts) -> dict[str, dict[int, str]]:
    """Model -> tp -> name of the deployment, `MODEL tpN`."""
    names: dict[str, dict[int, str]] = {}
    for name, facts in deployments.items():
        names.setdefault(name.rpartition(" tp")[0], {})[int(facts["tp"])] = name
    return names
