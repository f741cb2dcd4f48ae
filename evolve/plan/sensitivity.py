"""`evolve sensitivity`: how far predicted latencies move with each setting of the engine, by replays with it changed.

Only the engine's settings. evaluator/sensitivity.py has the effects of the terms and constants of a program.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import numpy as np

from evaluator.intervals import FIGURES, figure_of
from evaluator.score import Prediction, prediction_of
from evolve.output.progress import Line
from evolve.plan.sensitivity_result import Change, Effect, Sensitivities, Sensitivity, SensitivityPoint, value_text
from evolve.plan.sweep_figures import figures_of
from evolve.plan.warnings import about
from evolve.run.beyond import outside
from evolve.run.program import Source
from simulator.clock.bind import bind
from simulator.clock.replay import replay_all
from simulator.common.errors import InputError
from simulator.language.ir import Program
from simulator.language.opcodes import Code, assemble
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment, deploy
from simulator.serving.load import load_of
from simulator.serving.spec import Spec
from simulator.serving.workload import is_recorded, longest_request, seeds_of

# A setting that is halved and doubled, or switched: its key here, and its name in an experiments file.
LIMITS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
NUMBERS = {"tp": "tensor_parallel", **{name: name for name in LIMITS}}
SWITCHES = ("prefix_caching", "chunked_prefill")
NAMES = NUMBERS | {name: name for name in SWITCHES}
MOST_TIMES = 8  # the experiment's own TP degree, as far as the next possible one is looked for
NOTHING_ELSE: Mapping[str, int] = {}


@dataclass(frozen=True)
class _Question:
    """The program, and the arrival seeds under which every deployment is replayed."""

    source: Source
    program: Program
    code: Code
    seeds: Sequence[int]


@dataclass(frozen=True)
class _Outcome:
    """The prediction for one deployment: figures in ms by FIGURES, averaged and of each arrival seed."""

    figures_ms: Mapping[str, float | None]
    by_seed: tuple[Mapping[str, float | None], ...]
    fails: tuple[str, ...]
    outside: tuple[str, ...] | None


@dataclass(frozen=True)
class _Subject:
    """An experiment, and the spec that asks for it."""

    spec: Spec
    e: Experiment


def sensitivity(source: Source, specs: Sequence[Spec], seeds: Sequence[int], line: Line) -> Sensitivities:
    """`sensitivities`, and the warnings about them."""
    for spec in specs:
        if spec.pools:
            raise InputError(f"{spec.where}: cannot turn settings of separate pools: choose others with --id")
    experiments = [deploy(spec) for spec in specs]
    return Sensitivities(
        name=source.name,
        program=source.complete,
        data=data_hash(experiments),
        seeds=tuple(seeds),
        drawn=any(not is_recorded(e.workload) for e in experiments),
        experiments=tuple(sensitivities(source, specs, seeds, line)),
        warnings=tuple(about(source, experiments)),
    )


def sensitivities(
    source: Source, specs: Sequence[Spec], seeds: Sequence[int], line: Line | None = None
) -> list[Sensitivity]:
    """The sensitivity of every experiment by the predictions of a program, averaged over the arrival `seeds`.

    Every number of NUMBERS is halved and doubled (of the TP degree, the next that splits the heads), every switch of
    SWITCHES turned over. Measurements play no part.
    """
    line = line or Line(quiet=True)
    program = source.complete
    question = _Question(source, program, assemble(program), seeds)
    found: list[Sensitivity] = []
    try:
        for spec in specs:
            found.append(_sensitivity(question, _Subject(spec, deploy(spec.vary()))))
            line.update(partial("{}: {} of {} experiments".format, spec.id, len(found), len(specs)))
    finally:
        line.close()
    return found


def _sensitivity(question: _Question, subject: _Subject) -> Sensitivity:
    own = _outcome(question, subject.e)
    numbers = [_effect_of_number(question, subject, setting, own) for setting in NUMBERS]
    switches = [_effect_of_switch(question, subject, setting, own) for setting in SWITCHES]
    return Sensitivity(subject.e.id, own.figures_ms, own.fails, own.outside, (*numbers, *switches))


def _outcome(question: _Question, e: Experiment) -> _Outcome:
    bound = bind(question.code, question.program.theta, e.facts)
    replays = replay_all((load_of(e, seed) for seed in seeds_of(e.workload, question.seeds)), bound)
    record = question.source.record
    figures = figures_of(record, e, replays)
    return _Outcome(
        figures_ms=_figures_ms(figures.prediction),
        by_seed=tuple(_figures_ms(prediction_of(e, [replay])) for replay in replays),
        fails=figures.fails,
        outside=tuple(outside(record.all_ranges, e, figures.prediction)) if record else None,
    )


def _figures_ms(prediction: Prediction) -> dict[str, float | None]:
    return {name: figure_of(prediction.predicted.summary, name) for name in FIGURES}


def _effect_of_number(question: _Question, subject: _Subject, setting: str, own: _Outcome) -> Effect:
    at = _own(subject.e, setting)
    outcomes = {at: own}
    points = []
    for value, deployed in _other_values(subject, setting, at):
        if isinstance(deployed, InputError):
            points.append(SensitivityPoint(value, impossible=str(deployed)))
            continue
        outcomes[value] = _outcome(question, deployed)
        points.append(_point(value, outcomes[value], own))
    low, high = min(outcomes), max(outcomes)
    return Effect(setting, at, tuple(points), _elasticity(outcomes[low], outcomes[high], high / low))


def _own(e: Experiment, setting: str) -> int:
    """The experiment's own value; where its file has no max_model_len, the model's."""
    own: int | None = getattr(e.engine, NUMBERS[setting])
    return int(e.facts[setting]) if own is None else own


def _other_values(subject: _Subject, setting: str, own: int) -> Iterator[tuple[int, Experiment | InputError]]:
    """Half the value and twice the value, with the experiment there or why there is none; of a TP degree also the next
    one that is possible, if twice the value is not."""
    if own > 1:
        yield own // 2, _changed(subject, setting, own // 2)
    doubled = _changed(subject, setting, 2 * own)
    yield 2 * own, doubled
    if setting == "tp" and isinstance(doubled, InputError):
        more = ((value, _changed(subject, setting, value)) for value in range(2 * own + 1, MOST_TIMES * own + 1))
        yield from islice(((value, e) for value, e in more if isinstance(e, Experiment)), 1)


def _changed(
    subject: _Subject, setting: str, value: int | bool, also: Mapping[str, int] = NOTHING_ELSE
) -> Experiment | InputError:
    """The experiment with this setting, or the error that says why it is impossible."""
    spec = replace(subject.spec, where=f"{subject.e.id}, {setting} {value_text(value)}")
    # The budget's default may depend on other settings: here only one thing changes.
    fixed = {"max_num_batched_tokens": subject.e.engine.max_num_batched_tokens}
    try:
        changed = deploy(spec.vary(**{**fixed, **also, NAMES[setting]: value}))  # type: ignore[arg-type]
        if setting == "max_model_len":
            _check_length(spec, subject.e, int(value))
    except InputError as error:
        return error
    return changed


def _check_length(spec: Spec, e: Experiment, tokens: int) -> None:
    """Raises InputError if requests would be refused that the experiment's own engine accepts, or if the model cannot
    have sequences of so many tokens (vLLM does not start then)."""
    longest, own = longest_request(e.workload), e.facts["max_model_len"]
    if tokens < longest <= own:
        raise InputError(
            f"{spec.where}: requests have up to {longest} tokens, prompt and answer: they would be refused"
        )
    of_model = spec.model.architecture.longest
    if tokens > of_model >= own:
        raise InputError(f"{spec.where}: the model has at most {of_model} tokens")


def _effect_of_switch(question: _Question, subject: _Subject, setting: str, own: _Outcome) -> Effect:
    e = subject.e
    on: bool = getattr(e.engine, setting)
    also: dict[str, int] = {}
    longest = int(e.facts["max_model_len"])
    if setting == "chunked_prefill" and on and e.engine.max_num_batched_tokens < longest:
        # Without chunked prefill vLLM needs this budget: who switches it off has to raise the budget, too.
        also = {"max_num_batched_tokens": longest}
    deployed = _changed(subject, setting, not on, also)
    if isinstance(deployed, InputError):
        return Effect(setting, on, (SensitivityPoint(not on, impossible=str(deployed)),), None)
    return Effect(setting, on, (_point(not on, _outcome(question, deployed), own, also),), None)


def _point(
    value: int | bool, outcome: _Outcome, reference: _Outcome, also: Mapping[str, int] = NOTHING_ELSE
) -> SensitivityPoint:
    def change(name: str) -> Change | None:
        return _mean([100.0 * (ratio - 1.0) for ratio in _ratios(reference, outcome, name)])

    return SensitivityPoint(
        value=value,
        figures_ms=outcome.figures_ms,
        change_pct={name: change(name) for name in FIGURES},
        fails=outcome.fails,
        outside=outcome.outside,
        also=also,
    )


def _elasticity(low: _Outcome, high: _Outcome, times: float) -> dict[str, Change | None]:
    """The slope between two outcomes in logarithms, where the setting of `high` is so many `times` that of `low`."""
    if times == 1.0:
        return dict.fromkeys(FIGURES)
    slopes = {
        name: [math.log(ratio) / math.log(times) for ratio in _ratios(low, high, name) if ratio > 0.0]
        for name in FIGURES
    }
    return {name: _mean(of_seeds) for name, of_seeds in slopes.items()}


def _ratios(before: _Outcome, after: _Outcome, figure: str) -> list[float]:
    """after / before under each arrival seed; none if the figure is missing or 0 under any."""
    pairs = [(b[figure], a[figure]) for b, a in zip(before.by_seed, after.by_seed, strict=True)]
    return [a / b for b, a in pairs if a and b] if all(a and b for b, a in pairs) else []


def _mean(values: Sequence[float]) -> Change | None:
    if not values:
        return None
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None
    return Change(float(np.mean(values)), error)
