"""The distance of an experiment or deployment beyond the ranges of fitted runs: a line or a factor for each range."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from evaluator.score import Prediction
from evolve.run.ranges import Ranges, Span, in_flight, span_of, weights
from simulator.serving.experiment import Experiment
from simulator.serving.workload import prompt_lengths

# of the load; all other ranges are of the deployment
LOADS = ("requests_in_flight", "prompt_tokens", "max_num_batched_tokens")
TYPICAL = 95  # percentile of the lengths of prompts: a rare longer one does not place a load
TOLERANCE = 1.05  # so far beyond the fitted values is as good as among them; two paces of one run differ as much


def outside(fitted: Sequence[Ranges], experiment: Experiment, prediction: Prediction) -> list[str]:
    """A line for each range of the fitted runs that an experiment, as predicted, lies outside.

    The deployment must lie within the ranges of one fit: the lines are those of the fit that has the fewest. The load
    may be covered by several fits together.
    """
    deployment = min((_deployment(ranges, experiment) for ranges in fitted), key=len, default=[])
    return deployment + _load(_together(fitted), experiment, prediction)


def _deployment(fitted: Ranges, experiment: Experiment) -> list[str]:
    facts, engine = experiment.facts, experiment.engine
    total, active = facts["model_params_b"], facts["active_params_b"]
    lines = (
        _vocabulary(facts["vocab"], fitted.vocab),
        _among(f"tp {engine.tensor_parallel}", engine.tensor_parallel, fitted.tp, str(list(fitted.tp or ()))),
        _among(f"GPU {experiment.hardware}", experiment.hardware, fitted.hardware, ", ".join(fitted.hardware or ())),
        _beyond(f"a model of {total:.1f} billion parameters", total, fitted.model_params_b, ".1f"),
        _beyond(f"{active:.1f} billion parameters active per token", active, fitted.active_params_b, ".1f"),
        _architecture(bool(facts["is_moe"]), fitted.mixture_of_experts),
        _weights(weights(experiment), bool(facts["is_moe"]), fitted),
        _switch("KV offload to CPU", engine.offloads, fitted.kv_cpu_offload),
        _switch("chunked prefill", engine.chunked_prefill, fitted.chunked_prefill),
        _switch("prefix caching", engine.prefix_caching, fitted.prefix_caching),
        "prefill and decode on separate GPUs: no fitted run has that" if experiment.pools else "",
    )
    return [line for line in lines if line]


def _load(fitted: Ranges, experiment: Experiment, prediction: Prediction) -> list[str]:
    engine, lengths = experiment.engine, prompt_lengths(experiment.workload)
    lines = (
        _prompts(int(lengths.min()), int(lengths.max()), fitted.prompt_tokens),
        _uncached(prediction.uncached, fitted.uncached_step_tokens, engine.block_size),
        _beyond(
            f"max_num_batched_tokens {engine.max_num_batched_tokens}",
            float(engine.max_num_batched_tokens),
            fitted.max_num_batched_tokens,
        ),
    )
    return [line for line in lines if line] + _crowded(experiment, prediction, fitted.requests_in_flight)


def _together(fitted: Sequence[Ranges]) -> Ranges:
    """The ranges of the load that the fits span together; None where no fit knows them."""
    spans: dict[str, Any] = {}
    for name in LOADS:
        known = [span for ranges in fitted if (span := getattr(ranges, name)) is not None]
        spans[name] = span_of(x for span in known for x in span) if known else None
    uncached = [ranges.uncached_step_tokens for ranges in fitted if ranges.uncached_step_tokens is not None]
    return Ranges(**spans, uncached_step_tokens=max(uncached, default=None))


def _vocabulary(value: float, span: Span | None) -> str:
    if span is None or span[0] <= value <= span[1]:
        return ""
    return f"vocabulary {value:.0f} outside the fitted {span[0]:.0f} to {span[1]:.0f}"


def _among(what: str, value: object, fitted: Sequence[object] | None, shown: str) -> str:
    return "" if fitted is None or value in fitted else f"{what} not among the fitted {shown}"


def _beyond(what: str, value: float, span: Span | None, digits: str = ".0f") -> str:
    if span is None or span[0] / TOLERANCE <= value <= TOLERANCE * span[1]:
        return ""
    limit = f"at most {span[1]:{digits}}" if value > span[1] else f"at least {span[0]:{digits}}"
    return f"{what}: the fitted runs have {limit}"


def _architecture(moe: bool, fitted: Sequence[bool] | None) -> str:
    if fitted is None or moe in fitted:
        return ""
    if moe:
        return "a mixture of experts: the fitted models are dense"
    return "a dense model: the fitted models are mixtures of experts"


def _weights(kind: str, moe: bool, fitted: Ranges) -> str:
    """The line for weights of a type that no fitted model has; for a dense model, that no fitted dense model has.

    Other kernels multiply the experts of a mixture.
    """
    if line := _among(f"{kind} weights", kind, fitted.weights, ", ".join(fitted.weights or ())):
        return line
    if moe or not fitted.dense_weights:  # without a dense model the architecture has its line
        return ""
    return _among(f"{kind} weights of a dense model", kind, fitted.dense_weights, ", ".join(fitted.dense_weights))


def _switch(what: str, on: bool, fitted: Sequence[bool] | None) -> str:
    if fitted is None or on in fitted:
        return ""
    return f"{what} is {'on' if on else 'off'}: the fitted runs have it {'off' if on else 'on'}"


def _prompts(shortest: int, longest: int, span: Span | None) -> str:
    """The line for the longest prompts, or else for the shortest."""
    above = _beyond(f"prompts of {longest} tokens", float(longest), span)
    return above or _beyond(f"prompts of {shortest} tokens", float(shortest), span)


def _uncached(value: int, most: int | None, block: int) -> str:
    if most is None or value <= TOLERANCE * most + block:
        return ""
    return f"19 of 20 requests bring at most {value} uncached prompt tokens into a step: in the fitted runs {most}"


def _crowded(experiment: Experiment, prediction: Prediction, span: Span | None) -> list[str]:
    if span is None:
        return []
    lines = []
    stages = zip(experiment.workload.stages, prediction.predicted.stages, strict=True)
    for number, (stage, predicted) in enumerate(stages, 1):
        flight = in_flight(stage, predicted)
        if flight > TOLERANCE * span[1]:
            lines.append(
                f"stage {number}: {flight:.0f} requests are in flight: the fitted runs have at most {span[1]:.0f}"
            )
    return lines


def kinds_beyond(fits: Sequence[Ranges], facts: Mapping[str, float], hardware: str) -> tuple[str, ...]:
    """The respects in which a deployment is beyond the runs of every fit: GPU, TP degree, architecture, size.

    The closest of several fits counts. Unknown ranges span everything.
    """
    return min((_kinds_beyond_one(fitted, facts, hardware) for fitted in fits), key=len, default=())


def _kinds_beyond_one(fitted: Ranges, facts: Mapping[str, float], hardware: str) -> tuple[str, ...]:
    kinds: tuple[tuple[str, Collection[object] | None, object], ...] = (
        ("GPU", fitted.hardware, hardware),
        ("TP degree", fitted.tp, int(facts["tp"])),
        ("architecture", fitted.mixture_of_experts, bool(facts["is_moe"])),
    )
    sizes = (fitted.model_params_b, facts["model_params_b"]), (fitted.active_params_b, facts["active_params_b"])
    spanned = all(span is None or span[0] / TOLERANCE <= value <= span[1] * TOLERANCE for span, value in sizes)
    other = tuple(what for what, known, value in kinds if known is not None and value not in known)
    return other if spanned else (*other, "size")


def factors(fitted: Sequence[Ranges], experiment: Experiment, prediction: Prediction) -> dict[str, float]:
    """By range, the factor by which an experiment, as predicted, lies beyond the fitted runs; 1 within.

    Ranges that no fit knows are left out. A lighter load than was fitted is not beyond.
    """
    facts, engine, workload = experiment.facts, experiment.engine, experiment.workload
    stages = zip(workload.stages, prediction.predicted.stages, strict=True)
    values = {
        **{name: facts[name] for name in ("vocab", "model_params_b", "active_params_b")},
        "tp": float(engine.tensor_parallel),
        "max_num_batched_tokens": float(engine.max_num_batched_tokens),
        "requests_in_flight": max((in_flight(stage, predicted) for stage, predicted in stages), default=0.0),
        "prompt_tokens": float(np.percentile(prompt_lengths(workload), TYPICAL)),
    }
    known = {name: [span for ranges in fitted if (span := getattr(ranges, name)) is not None] for name in values}
    lighter = ("requests_in_flight", "prompt_tokens")
    return {
        name: min(_factor(x, min(span), max(span), name in lighter) for span in known[name])
        for name, x in values.items()
        if known[name]
    }


def _factor(value: float, least: float, most: float, lighter: bool) -> float:
    """The factor by which a value lies above a span, or below it unless that is merely `lighter`."""
    return max(value / most, 1.0 if lighter else least / value, 1.0)
