"""`evolve show --diagnose`: signed errors of a program, and terms that could reduce them.

evaluator.diagnose makes the same diagnosis for questions to language models (`evolve llm prompt`). Terms to add are
ranked as by the operator `explain`, over all terms that it may draw; constants to drop as by `prune`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evaluator.assess import prepare
from evaluator.diagnose.diagnose import Diagnosis
from evaluator.diagnose.diagnose import diagnose as diagnosis_of
from evaluator.diagnose.explain import costs, gains, without_effect
from evaluator.fit.problem import Problem, problem_of
from evaluator.score import SCORE_SEEDS
from evolve import __version__
from evolve.run.data import fittable, nothing_to_fit
from evolve.run.measurements import refuse_absurd
from evolve.run.program import Source
from evolve.run.use import exactly, fitted_by_predecessor, fitted_share
from evolve.search.vocabulary import Vocabulary, vocabulary
from simulator.common.errors import InputError
from simulator.common.json import JsonObject
from simulator.common.records import to_json
from simulator.language.affine import affine
from simulator.language.ir import Expr, Program
from simulator.language.key import key
from simulator.language.unparse import spell
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment
from simulator.serving.facts import has_curves
from translate_go.target import reads_kernels

METHODS = ("step_time", "queueing_time")
MOST = 8  # terms, and constants, that are kept
AT_ONCE = 64  # terms whose slopes are computed together
DIGITS = 6  # significant digits of gains that agree if two terms do the same


@dataclass(frozen=True, slots=True)
class Addition:
    """A term for a method. gain: the share, 0 to 1, of the squared residuals that it would remove, to first order.

    Its coefficient is >= 0 and all other constants are refitted. alike: longer terms that would remove the same on
    these runs.
    """

    method: str
    term: str
    gain: float
    alike: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Removal:
    """A constant that enters affinely. cost: the share by which the squared residuals would grow, to second order, if
    it were 0 and the others refitted."""

    method: str
    constant: str
    value: float
    cost: float


@dataclass(frozen=True)
class Findings:
    """A diagnosis of a program on these experiments.

    fitted_share: by experiment, the share that the program was fitted on, so that its errors are in sample; None if
    unknown. fitted_by_predecessor: the ids of those that a program was fitted on from which this one was fitted.
    add: the terms with the largest gains, first the largest. drop: the constants with the smallest costs, first the
    smallest; without_effect: those that change nothing on these runs, by `method.name`, which have no cost.
    """

    name: str
    program: Program
    data: str
    seeds: tuple[int, ...]
    fitted_share: Mapping[str, float | None]
    fitted_by_predecessor: Collection[str]
    diagnosis: Diagnosis
    add: tuple[Addition, ...]
    drop: tuple[Removal, ...]
    without_effect: tuple[str, ...]

    def to_json(self) -> JsonObject:
        d = self.diagnosis
        of_runs = []
        for r in d.runs:
            share, before = self.fitted_share[r.experiment], r.experiment in self.fitted_by_predecessor
            of_runs.append(r._asdict() | {"fitted": exactly(share), "fitted_share": share, "fitted_before": before})
        about = {"engine": __version__, "data": self.data, "seeds": list(self.seeds), "name": self.name}
        found = {name: to_json(getattr(d, name)) for name in ("stages", "correlations", "worst")}
        found |= {name: to_json(getattr(self, name)) for name in ("add", "drop", "without_effect")}
        return {**about, "key": key(self.program), "experiments": of_runs, **found}


def observed(experiments: Sequence[Experiment], named: bool) -> list[Experiment]:
    """The experiments with errors to diagnose: observed ones, and only clean ones unless they were `named`.

    Raises InputError if there is none.
    """
    usable = [e for e in experiments if e.observed] if named else fittable(experiments)
    if not usable:
        raise InputError(nothing_to_fit(experiments))
    return usable


def diagnose(
    source: Source, experiments: Sequence[Experiment], seeds: Sequence[int] = SCORE_SEEDS, fields: str = ""
) -> Findings:
    """The findings about a program at its constants, on observed experiments, under these arrival seeds.

    fields: the field set of the terms to add (evolve.search.vocabulary); "": `all` for a program that reads measured
    kernels, else `datasheet`. Raises InputError if a deployment lacks the measured kernels that the program reads.
    """
    program = source.complete
    refuse_absurd(experiments)
    data = prepare(experiments, seeds)
    measured = reads_kernels(program) and all(has_curves(e.facts) for e in experiments)
    words = vocabulary(experiments, fields or ("all" if measured else "datasheet"))
    problem = problem_of(program, data.fit)
    shares = {e.id: fitted_share(source.record, e) for e in experiments}
    before = [e.id for e in experiments if fitted_by_predecessor(source.record, e)]
    about = source.name, program, data_hash(experiments), tuple(seeds), shares, before
    return Findings(*about, diagnosis_of(program, data), _additions(problem, words), *_removals(problem))


def _additions(problem: Problem, words: Vocabulary) -> tuple[Addition, ...]:
    found = list[Addition]()
    for method in METHODS:
        terms = words.every(method)
        shares = (gains(problem, method, terms[i : i + AT_ONCE]) for i in range(0, len(terms), AT_ONCE))
        by_length = sorted(zip(terms, np.concatenate([*shares]), strict=True), key=lambda pair: len(pair[0]))
        for term, gain in sorted(by_length, key=lambda pair: -float(f"{pair[1]:.{DIGITS}g}")):
            last = found[-1] if found else None
            if last and last.method == method and math.isclose(gain, last.gain, rel_tol=10.0**-DIGITS):
                found[-1] = replace(last, alike=(*last.alike, _spelled(term)))
            elif gain > 0.0:
                found.append(Addition(method, _spelled(term), float(gain)))
    return tuple(sorted(found, key=lambda a: -a.gain)[:MOST])


def _spelled(factors: Sequence[Expr]) -> str:
    return " * ".join(map(spell, factors)) or "a constant"


def _removals(problem: Problem) -> tuple[tuple[Removal, ...], tuple[str, ...]]:
    """The constants that these runs would miss least, and those that change nothing on them."""
    functions = problem.program.functions
    names = [(f.name, c) for f in functions for c in f.constants]
    linear = {(f.name, name) for f in functions for name in affine(f).linear}
    found, idle = list[Removal](), list[str]()
    for (method, c), cost, none in zip(names, costs(problem), without_effect(problem), strict=True):
        if not c.value or (method, c.name) not in linear:
            continue
        if none:
            idle.append(f"{method}.{c.name}")
        else:
            found.append(Removal(method, c.name, c.value, float(cost)))
    return tuple(sorted(found, key=lambda r: r.cost)[:MOST]), tuple(idle)
