"""Changed versions of a program: what they predict, how far off they are, and what a refit of constants takes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evaluator.fit.fit import fit_set
from evaluator.fit.loss import FitSet
from evaluator.fit.per_model import fit_scoped
from evaluator.fit.problem import problem_of
from evaluator.metrics import LATENCIES, mean_abs
from evaluator.score import MEANS, SCORE_SEEDS, ScoreSet, error_rows, predictions, score_set
from evolve.dimensions.evidence import Evidence, carried_out
from evolve.pool.process import Call, parcel
from evolve.run.selectors import WORDS
from simulator.clock.run import HostileStep
from simulator.experiment.experiment import Experiment
from simulator.language.ir import Expr, Field, Function, Guard, Let, Number, Op, Program, rebuild, with_returns
from simulator.schema import KERNELS

ALL = "all"
REFITS = ("alpha", "beta", ALL)  # words for constants, as of `evolve fit --only`
Means = Mapping[str, float | None]  # of MEANS, in percent


@dataclass(frozen=True, slots=True)
class Stressed:
    """A changed program on the clean experiments: mean absolute errors in percent as it is, and after a fit of "
    "alpha, of
    beta or of all constants there, by word; a word is missing if there are no such constants, or no fit."""

    name: str
    errors: Means
    refitted: Mapping[str, Means]


def kernels_times(program: Program, factor: float) -> Program:
    """The program with every measured kernel's time times `factor`."""

    def scaled(node: Expr) -> Expr:
        is_kernel = isinstance(node, Field) and node.scope == "b" and node.name in KERNELS
        return Op("*", Number(factor), node) if is_kernel else node

    def statement(s: Let | Guard) -> Let | Guard:
        if isinstance(s, Guard):
            c = s.condition
            s = replace(s, condition=replace(c, left=rebuild(c.left, scaled), right=rebuild(c.right, scaled)))
        return replace(s, value=rebuild(s.value, scaled))

    def rewritten(f: Function) -> Function:
        return replace(f, body=tuple(map(statement, f.body)), result=rebuild(f.result, scaled))

    return replace(program, functions=tuple(map(rewritten, program.functions)))


def steps_longer(program: Program, us: float) -> Program:
    """The program with every step longer by `us` microseconds."""

    def longer(f: Function) -> Function:
        return with_returns(f, lambda e: Op("+", e, Number(us))) if f.name == "step_time" else f

    return replace(program, functions=tuple(map(longer, program.functions)))


def constants_times(program: Program, positions: Sequence[int], factor: float) -> Program:
    """The program with the constants at these positions of `theta` times `factor`."""
    return program.with_theta(tuple(v * factor if i in positions else v for i, v in enumerate(program.theta)))


def changes(evidence: Evidence, variants: Mapping[str, Program]) -> dict[str, Means]:
    """By variant, how far its mean E2E, TTFT and ITL are from the program's, in percent, the mean over clean runs."""
    clean = evidence.subject.clean
    programs = [evidence.subject.source.complete, *variants.values()]
    means = carried_out(evidence.pool, "changed constants", [Call(_means_ms, (p, clean)) for p in programs])
    return {name: _change(means[0], theirs) for name, theirs in zip(variants, means[1:], strict=True)}


def _means_ms(program: Program, experiments: Sequence[Experiment]) -> list[tuple[float | None, ...]]:
    """Predicted mean E2E, TTFT and ITL of each experiment in ms, under one arrival seed."""
    every = predictions(program, score_set(experiments, SCORE_SEEDS[:1]))
    summaries = [p.predicted.summary for p in every]
    return [tuple(getattr(s, name).mean if s else None for name in LATENCIES) for s in summaries]


def _change(ours: Sequence[tuple[float | None, ...]], theirs: Sequence[tuple[float | None, ...]]) -> Means:
    columns = [
        [100.0 * (b / a - 1.0) for a, b in ((x[i], y[i]) for x, y in zip(ours, theirs, strict=True)) if a and b]
        for i in range(len(MEANS))
    ]
    return {name: sum(c) / len(c) if c else None for name, c in zip(MEANS, columns, strict=True)}


def stressed(evidence: Evidence, variants: Mapping[str, Program]) -> list[Stressed]:
    """Each variant on the clean experiments, as it is and with constants fitted there."""
    clean = evidence.subject.clean
    data = parcel(_prepared, clean)
    tasks = [(name, word) for name in variants for word in ("", *REFITS)]
    calls = [Call(_errors, (variants[name], word), parcel=data) for name, word in tasks]
    means = dict(zip(tasks, carried_out(evidence.pool, "changed kernels and steps", calls), strict=True))
    return [
        Stressed(name, means[name, ""], {w: of_word for w in REFITS if (of_word := means[name, w]) is not None})
        for name in variants
    ]


def _prepared(experiments: Sequence[Experiment]) -> tuple[FitSet, ScoreSet]:
    return fit_set(experiments), score_set(experiments)


def _errors(data: tuple[FitSet, ScoreSet], program: Program, word: str) -> Means | None:
    """Mean absolute errors in percent after a fit of the constants that `word` selects, none for ""; None if there are
    none or if they make no usable program."""
    fit, score = data
    if word:
        names = [f.name for f in program.functions for _ in f.constants]
        held = [i for i, method in enumerate(names) if word != ALL and method not in WORDS[word]]
        if len(held) == len(names):
            return None
        try:
            program = fit_scoped(problem_of(program, fit, held, fitted_before=True)).programs[0]
        except HostileStep:
            return None
    rows = error_rows(program, score)
    return {name: mean_abs([getattr(row, name) for row in rows]) for name in MEANS}
