"""Warnings about a prediction: events that the replay met or leaves out, and ranges beyond the fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from evaluator.intervals import LEVELS, figure_of, waiting_share
from evaluator.judge.gates import complaints, deployments_of
from evaluator.judge.physics import LEAST_OF_ROOFLINE
from evaluator.score import MEANS, Prediction
from evolve.plan.forecast import Intervals
from evolve.run.beyond import outside
from evolve.run.measurements import MOSTLY_WAITING, requests_of
from evolve.run.program import Source
from evolve.run.records import Record
from evolve.run.trust import stale
from simulator.clock.bind import bind
from simulator.clock.fields import Active, raw_row
from simulator.common.text import counted
from simulator.language.ir import Program
from simulator.language.opcodes import assemble
from simulator.schema import READABLE
from simulator.serving.experiment import Experiment
from simulator.serving.observations import CLEAN, Observation
from simulator.serving.pools import NODE
from simulator.serving.trace import Requests, Trace, again
from simulator.serving.workload import Profile, Session, duration_s, is_recorded

HURRIED = 1.2  # times as fast as recorded from which on a trace's shorter peaks are mentioned
MIXED = (*[Active(0, 1000, 1)] * 8, Active(0, 0, 500))  # a step of eight decodes and a prompt
SOON = 0.05  # share of turns before the answer to the one before from which on it is mentioned
LATE = 0.05  # share of requests after the last stage from which on the rate is too low to be left unsaid

# The names of the ranges of evolve.run.beyond.factors in a sentence.
RANGES = {
    "vocab": "the vocabulary is",
    "model_params_b": "the model's parameters are",
    "active_params_b": "the parameters active per token are",
    "tp": "the TP degree is",
    "requests_in_flight": "requests in flight are",
    "prompt_tokens": "prompts, the longest 5 % left out, are",
    "max_num_batched_tokens": "max_num_batched_tokens is",
}


def impossible(prediction: Prediction, bound: Prediction) -> list[str]:
    """A line for each time that is shorter than the datasheet allows by more than a fifth."""

    def compare(what: str, ours: float | None, least: float | None) -> str | None:
        if ours is None or least is None or ours >= LEAST_OF_ROOFLINE * least:
            return None
        return f"{what} {ours:.1f} ms is below the datasheet's bound of {least:.1f} ms: outside what the program knows"

    e2e, least = (p.predicted.summary.e2e_ms.mean if p.predicted.summary else None for p in (prediction, bound))
    prefill = (p.components["prefill_steps"] for p in (prediction, bound))
    lines = compare("E2E", e2e, least), compare("time in prefill steps", *prefill)
    return [line for line in lines if line]


def warnings(record: Record | None, experiment: Experiment, prediction: Prediction) -> list[str]:
    """A line for each event that the replay met or leaves out, and for each range beyond the fit."""
    lines = list(experiment.notes)
    if prediction.clamped:
        lines.append(f"{prediction.clamped} times were outside [1, 1e10] us and clamped")
    total = requests_of(prediction)
    if prediction.refused:
        lines.append(f"{prediction.refused} of {total} requests are longer than max_model_len and were refused")
    if prediction.dropped:
        lines.append(
            f"the decode pool drops {prediction.dropped} of {total} requests, whose prompts find no KV blocks: give it "
            "more instances, or GPUs"
        )
    if prediction.gave_up:
        after = f"after {experiment.workload.timeout_s:g} s"
        text = f"clients give up {prediction.gave_up} of {total} requests {after}"
        lines.append(f"{text}: latencies are those of the others")
    if prediction.preemptions:
        times = counted(prediction.preemptions, "preemption")
        lines.append(f"{times}: the cache of {experiment.facts['kv_blocks']:.0f} KV blocks is full at times")
    lines += _offload(experiment, prediction)
    lines += [*too_late(prediction), *_too_soon(experiment, prediction)]
    share, queue = waiting_share(prediction), ""
    if prediction.queue_grows:
        queue = f"growing queue: requests wait {100.0 * share:.0f} % of their time, later ones longer than earlier ones"
    elif share > MOSTLY_WAITING:
        queue = "long queue: requests wait longer than they are served, later ones not much longer than earlier ones"
    if queue:
        lines.append(f"the program predicts a {queue}; `--sweep rate=...` says what one replica serves")
    lines += never_starts(experiment.facts)
    if (gpus := experiment.engine.gpus) > NODE:
        link = "the slower link between servers is not modelled"
        lines.append(f"{gpus} GPUs: most servers have at most {NODE} GPUs, and {link}")
    if (deployed := experiment.facts.deployed) and deployed.gpu.timed_on:
        kernels = f"its kernels are those of {deployed.gpu.tables}, scaled to the peaks of {experiment.hardware}"
        lines.append(f"{kernels}: where that could be compared, steps were up to 24 % off (docs/plan.md)")
    if experiment.quality != CLEAN:
        lines.append(f"quality is {experiment.quality}")
    if record is None:
        return [*lines, "no record of what this program was fitted on"]
    return [*lines, *outside(record.all_ranges, experiment, prediction)]


def _offload(experiment: Experiment, prediction: Prediction) -> list[str]:
    """A line on what KV offload gave back, or what was lost because its size is not given."""
    engine = experiment.engine
    if engine.kv_offloading_size:
        loaded = f"{prediction.loaded * engine.block_size} prompt tokens are loaded from host memory"
        return [f"KV offload of {engine.kv_offloading_size:g} GiB: {loaded} instead of being computed"]
    if not engine.kv_cpu_offload or not (prediction.preemptions or prediction.evicted):
        return []
    lost = f"{prediction.evicted} evicted prompts and {prediction.preemptions} preemptions are prefilled again"
    return [f"KV offload to CPU is not replayed: {lost}; with engine.kv_offloading_size it would be"]


def never_starts(facts: Mapping[str, float]) -> list[str]:
    """A line if the KV cache cannot hold one request of the longest length: then vLLM ends when it starts
    (vllm/v1/core/kv_cache_utils.py, check_enough_kv_cache_memory)."""
    tokens, longest = kv_tokens(facts), facts["max_model_len"]
    if longest <= tokens:
        return []
    return [
        f"the KV cache of {tokens:.0f} tokens cannot hold a request of max_model_len, {longest:.0f} tokens, so vLLM "
        f"does not start: set engine.max_model_len to at most {tokens:.0f}, or use more or larger GPUs"
    ]


def kv_tokens(facts: Mapping[str, float]) -> float:
    """The tokens that the KV cache holds."""
    return facts["kv_blocks"] * facts["block_size"]


def about(source: Source, experiments: Sequence[Experiment]) -> list[str]:
    """A line for each doubt about a program on these experiments, whatever it predicts for them."""
    program = source.complete
    wrong = complaints(program, deployments_of(experiments)) if experiments else ()
    alike = _same_on_every_gpu(program, source.record, experiments)
    return [*wrong, *source.cautions, *stale(source), *alike]


def _same_on_every_gpu(program: Program, record: Record | None, experiments: Sequence[Experiment]) -> list[str]:
    """A line if a step takes as long on a GPU twice as fast, and not all of these experiments are known to be on GPUs
    that the program was fitted on."""
    known, code = record.all_gpus if record else (), assemble(program)
    if not experiments or code.curves or {e.hardware for e in experiments} <= {*known}:
        return []
    facts, batch = experiments[0].facts, raw_row(MIXED)
    twice = {name: value * _times_twice_as_fast(name) for name, value in facts.items()}
    now_us, fast_us = (bind(code, program.theta, each).step_us(batch) for each in (facts, twice))
    if not math.isclose(now_us, fast_us, rel_tol=1e-9):
        return []
    return ["the program has the figures of one GPU among its constants: its steps take as long on every other one"]


def _times_twice_as_fast(field: str) -> float:
    """By what a field of the deployment is multiplied on a GPU that does everything twice as fast."""
    unit = READABLE["s", field].unit if ("s", field) in READABLE else ""
    return 0.5 if unit.startswith("us") else 2.0 if unit.endswith("/us") else 1.0


def too_late(prediction: Prediction) -> list[str]:
    """A line if so many turns of conversations come after the last stage that the rate is not reached."""
    total = requests_of(prediction)
    if prediction.late <= LATE * total:
        return []
    text = f"{prediction.late} of {total} requests are later turns that come after the last stage has ended"
    return [f"{text}: the rate is not reached: lengthen the stages"]


def _too_soon(experiment: Experiment, prediction: Prediction) -> list[str]:
    """A line if many turns of conversations come sooner than the mean answer to the turn before takes."""
    source, e2e_ms = experiment.workload.source, figure_of(prediction.predicted.summary, "e2e")
    match source:
        case Profile(session=Session(think_time_s=thought)):
            apart_ms, why = 1e3 * thought.quantiles(), "think_time_s goes from one turn's arrival to that of the next"
            why += ", the answer included"
        case Trace(requests=Requests(turns=True) as sent):
            later, before = again(sent.prompt)
            apart_ms = (sent.arrival_us[later] - sent.arrival_us[before]) / 1e3
            why = "a trace is sent as recorded, where a client would wait"
        case _:
            return []
    if e2e_ms is None or not len(apart_ms) or (share := float((apart_ms < e2e_ms).mean())) <= SOON:
        return []
    turns = f"{100.0 * share:.0f} % of later turns come before the answer to the turn before"
    return [f"{turns}, which takes {e2e_ms / 1e3:.2g} s in the mean: {why}"]


def hurried(experiment: Experiment, own: Experiment) -> list[str]:
    """A line if a trace is played faster than it was recorded, in `own`: its peaks are as high as they should be, but
    shorter."""
    if own.workload.closed:
        return []
    faster = duration_s(own.workload) / duration_s(experiment.workload)
    if not is_recorded(own.workload) or faster < HURRIED:
        return []
    peaks = f"its peaks last only 1/{faster:.2g} of their time"
    return [f"the trace is played {faster:.2g} times as fast, so {peaks}: in truth queues grow longer in them"]


def outside_intervals(observed: Observation | None, intervals: Intervals) -> list[tuple[str, float, float, float]]:
    """The latencies whose observed mean lies outside the widest calibrated interval: (name, mean, low, high) in ms."""
    known = [name for name in MEANS if name in intervals and intervals[name].calibrated]
    means = ((name, figure_of(observed, name), *intervals[name].at[LEVELS[-1]]) for name in known)
    return [(name, mean, low, high) for name, mean, low, high in means if mean is not None and not low <= mean <= high]


def contradicted(observed: Observation | None, intervals: Intervals, ident: str, fitted: bool) -> list[str]:
    """A line if an observed mean lies outside the widest interval of its latency. ident: of the run; fitted: the
    program was fitted on it, or on a part of it."""
    outside_of = outside_intervals(observed, intervals)
    beyond = [f"{name.upper()} {mean:.4g} ms, not {low:.4g} to {high:.4g}" for name, mean, low, high in outside_of]
    if not beyond:
        return []
    remedy = f"`evolve drift` with `--id {ident}` says what differs, and `evolve fit` adapts the program"
    if fitted:
        remedy = (
            "no constants of this form explain all fitted runs. Compare its settings with theirs, or try another form"
        )
    return [f"observed means lie outside the {100 * LEVELS[-1]:.0f} % intervals ({'; '.join(beyond)}): {remedy}"]


def farther_than_held_out(far: Mapping[str, tuple[float, float]]) -> list[str]:
    """A line for each range beyond which an experiment lies farther than any held-out run: how many times beyond, and
    the most that was held out."""
    return [
        f"{RANGES[name]} {factor:.3g} times beyond the fitted runs: held-out runs were at most {most:.3g} times beyond "
        "theirs, so the intervals may be too narrow"
        for name, (factor, most) in far.items()
    ]
