"""The ranges of the fitted runs of a program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evaluator.fit.fit import FIT_SEED
from evaluator.fit.stages import paced
from evaluator.metrics import step_tokens
from simulator.serving.experiment import Experiment
from simulator.serving.load import load_of
from simulator.serving.observations import Observation
from simulator.serving.workload import Stage, prompt_lengths

Span = tuple[float, float]  # smallest and largest

REMEDY = "restore the record, or remove it"


@dataclass(frozen=True, slots=True)
class Ranges:
    """Spans and distinct values over the fitted runs; None where they are unknown, as in older records.

    requests_in_flight: rate x mean E2E of a load stage, or its concurrency. model_params_b, active_params_b: billions
    of parameters, all of them and those active per token. prompt_tokens: lengths of prompts. uncached_step_tokens: the
    most new prompt tokens that a request brings into a step (evaluator.metrics.step_tokens). weights: "fp8" or
    "16-bit", say; dense_weights: those of the dense models.
    """

    vocab: Span | None = None
    tp: tuple[int, ...] | None = None
    hardware: tuple[str, ...] | None = None
    requests_in_flight: Span | None = None
    model_params_b: Span | None = None
    active_params_b: Span | None = None
    mixture_of_experts: tuple[bool, ...] | None = None
    weights: tuple[str, ...] | None = None
    dense_weights: tuple[str, ...] | None = None
    prompt_tokens: Span | None = None
    uncached_step_tokens: int | None = None
    max_num_batched_tokens: Span | None = None
    kv_cpu_offload: tuple[bool, ...] | None = None
    chunked_prefill: tuple[bool, ...] | None = None
    prefix_caching: tuple[bool, ...] | None = None


def ranges_of(experiments: Sequence[Experiment]) -> Ranges:
    """The ranges of these experiments. Each is replayed once, at the observed pace."""
    flight = [x for e in experiments for x in _in_flight(e)]
    return Ranges(
        vocab=span_of(e.facts["vocab"] for e in experiments),
        tp=tuple(sorted({e.engine.tensor_parallel for e in experiments})),
        hardware=tuple(sorted({e.hardware for e in experiments})),
        requests_in_flight=span_of(flight) if flight else None,
        model_params_b=span_of(e.facts["model_params_b"] for e in experiments),
        active_params_b=span_of(e.facts["active_params_b"] for e in experiments),
        mixture_of_experts=tuple(sorted({bool(e.facts["is_moe"]) for e in experiments})),
        weights=tuple(sorted({weights(e) for e in experiments})),
        dense_weights=tuple(sorted({weights(e) for e in experiments if not e.facts["is_moe"]})),
        prompt_tokens=span_of(float(n) for e in experiments for n in prompt_lengths(e.workload)),
        uncached_step_tokens=max(step_tokens(paced(e, load_of(e, FIT_SEED))) for e in experiments),
        max_num_batched_tokens=span_of(float(e.engine.max_num_batched_tokens) for e in experiments),
        kv_cpu_offload=tuple(sorted({e.engine.offloads for e in experiments})),
        chunked_prefill=tuple(sorted({e.engine.chunked_prefill for e in experiments})),
        prefix_caching=tuple(sorted({e.engine.prefix_caching for e in experiments})),
    )


def weights(experiment: Experiment) -> str:
    """The type of a model's layer weights in words: fp8, or its bits."""
    return "fp8" if experiment.facts["is_fp8"] else f"{experiment.weight_bits}-bit"


def in_flight(stage: Stage, predicted: Observation) -> float:
    """The requests in flight of a load stage, see `Stage.in_flight`."""
    return stage.in_flight(predicted.e2e_ms.mean or 0.0)


def _in_flight(e: Experiment) -> list[float]:
    """Those of each load stage, as observed or as its concurrency says."""
    if e.workload.closed:
        return [stage.in_flight(0.0) for stage in e.workload.stages]
    observed = zip(e.workload.stages, e.observed.stages if e.observed else (), strict=False)
    return [in_flight(stage, of_stage) for stage, of_stage in observed if of_stage.e2e_ms.mean is not None]


def span_of(values: Iterable[float]) -> Span:
    """The smallest and the largest of these values."""
    numbers = list(values)
    return min(numbers), max(numbers)


def described(fitted: Ranges) -> str:
    """The ranges that a reader of the Go needs, in words; those that are unknown are left out."""
    kinds = {(False,): "dense", (True,): "mixtures of experts", (False, True): "dense or mixtures of experts"}
    size, prompts, flight = fitted.model_params_b, fitted.prompt_tokens, fitted.requests_in_flight
    parts = [
        ", ".join(fitted.hardware or ()),
        f"TP {', '.join(map(str, fitted.tp))}" if fitted.tp else "",
        f"models of {_from_to(size, ',.1f')} billion parameters" if size else "",
        kinds.get(tuple(sorted(fitted.mixture_of_experts or ())), ""),
        f"prompts of {_from_to(prompts, ',.0f')} tokens" if prompts else "",
        f"up to {flight[1]:,.0f} requests in flight" if flight else "",
    ]
    return "; ".join(part for part in parts if part)


def _from_to(span: tuple[float, float], form: str) -> str:
    """`LOW to HIGH`, or one figure if both are written alike."""
    low, high = (format(x, form) for x in span)
    return low if low == high else f"{low} to {high}"
