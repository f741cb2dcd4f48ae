"""The result of `evolve fit`: the fitted programs and their records, and the constants before and after."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from archive.score import Errors
from evaluator.fit.fit import ScopedFit
from evaluator.fit.loss import Delays, FitSet
from evaluator.fit.uncertainty import Certainty
from evaluator.judge.physics import consistent
from evaluator.score import MEANS, SCORE_SEEDS, summarise
from evolve import __version__
from evolve.calibrate.first_stage import FirstStage, StageFigures
from evolve.calibrate.held_out import HeldOut
from evolve.output.columns import column, number, row_class, text
from evolve.run.program import Source
from evolve.run.program_files import save_program
from evolve.run.records import ConstantRecord, constant_records, record, today
from evolve.run.trust import Trust
from simulator.common.json import JsonObject
from simulator.common.records import to_json
from simulator.language.ir import Program
from simulator.language.key import key
from simulator.language.parse import parse
from simulator.language.simplify import brief
from simulator.language.unparse import unparse
from simulator.serving.experiment import Experiment, simulated
from simulator.serving.observations import NOT_MEASURED
from simulator.serving.splits import SHARES, TRAIN

Known = Mapping[str, ConstantRecord]  # by `method.name`
WORSE_POINTS = 5.0  # by how much the absolute error of one mean has to grow for a warning, percentage points
WORSE_PCT = 1.0  # by how much the mean of a run's absolute errors has to grow to be worse: what a replay leaves open


@dataclass(frozen=True)
class Try:
    """The fit by one method, its errors in the experiments' order, and how long it took."""

    method: str
    fit: ScopedFit
    errors: tuple[Errors, ...]
    seconds: float

    def to_json(self) -> JsonObject:
        means = {name: getattr(summarise(self.errors), name) for name in MEANS}
        return {"method": self.method, "loss": self.fit.loss, **means, "seconds": self.seconds}


@dataclass(frozen=True, slots=True)
class FittedProgram:
    """A fitted program's text, the ids it was fitted on, and its file (None: not written). model: None if for all.
    cautions: of its record."""

    model: str | None
    fitted: tuple[str, ...]
    program: str
    out: str | None
    cautions: tuple[str, ...]

    @property
    def parsed(self) -> Program:
        return parse(self.program)


@dataclass(frozen=True, slots=True)
class WorseError:
    """A latency of MEANS of a fitted run whose error grew by more than WORSE_POINTS: signed, in percent."""

    experiment: str
    latency: str
    before: float
    after: float


@row_class
class ConstantChange:
    """A constant before and after the fit. See `evaluator.fit.uncertainty.Certainty`."""

    model: str | None = column("the model that it is for; missing: all of them")
    method: str = column("the method that it is of", paper=True)
    name: str = column("its name", paper=True)
    before: float = column("value before the fit", paper=True)
    after_steps: float | None = column("value after the fit to single steps; missing without one")
    after: float = column("value after the fit", paper=True)
    standard_error: float | None = column("its standard error, in its unit; missing: none is known", paper=True)
    standard_error_before: float | None = column("standard error of the value before the fit")
    moved: float | None = column("the change in standard errors, those before and after taken together", paper=True)
    bound: str | None = column("the bound that the fit stopped at: `low` or `high`")
    data_share: float = column("the share of its information that comes from the runs, not from the prior")
    identified: bool = column("whether the fitted runs decide it", paper=True)
    held: bool = column("whether the fit left it as it was")
    shown: bool = column("whether fitted runs depend on it, as far as that is known")
    correlated: Mapping[str, float] = column("correlation of its error with those of others, by `method.name`, -1 to 1")


FIT_ERRORS = (
    text("experiment", "its id", paper=True),
    *(number(f"{x}_error_pct", f"signed error of the mean {x.upper()} after the fit", paper=True) for x in MEANS),
    *(number(f"before_{x}_error_pct", f"signed error of the mean {x.upper()} before the fit") for x in MEANS),
)


def fit_error_rows(before: Iterable[Errors], after: Iterable[Errors]) -> Iterator[dict[str, object]]:
    """The rows of FIT_ERRORS: the errors on every fitted experiment, after and before the fit."""
    for old, new in zip(before, after, strict=True):
        errors_before = {f"before_{x}_error_pct": getattr(old, x) for x in MEANS}
        yield {"experiment": new.experiment, **{f"{x}_error_pct": getattr(new, x) for x in MEANS}, **errors_before}


@dataclass(frozen=True, slots=True)
class Freedom:
    """How many constants were fitted, how many of them the data decide, and the number of observed means."""

    constants: int
    effective: float
    observations: int


@dataclass(frozen=True)
class Calibration:
    """Everything that `evolve fit` prints of a program of this name and key. best: the try that is kept; started: the
    constant that it started from elsewhere than the program, in words, None if it did not. replaced: the files of an
    earlier fit, or blend, that it replaced. rewritten: whether it replaced the text that was fitted.

    fitted: ids of experiments; left_out: those of the others, with the reason. before, after: signed errors in percent
    on the fitted ones. shared: there is one program for all models. simulated: some of the fitted times are themselves
    a simulation's. warnings: by id of a fitted experiment, what its replay assumes and leaves out. trust: what
    intervals of the fitted program are made of, None if there is nothing; no_trust: why not, if the program that the
    fit started from has some. later: errors on the parts of traces that were not fitted, `valid` and `test`, if they
    were split by time. held_out: the errors by which latencies are trusted. delays: those (predicted, observed) of each
    run that observed them.
    """

    name: str
    key: str
    data: str
    shared: bool
    programs: tuple[FittedProgram, ...]
    fitted: tuple[str, ...]
    left_out: Mapping[str, str]
    best: Try
    replaced: tuple[str, ...]
    rewritten: bool
    started: str | None
    tries: tuple[Try, ...]
    freedom: Freedom
    constants: tuple[ConstantChange, ...]
    steps: StageFigures | None
    before: tuple[Errors, ...]
    simulated: bool
    warnings: Mapping[str, tuple[str, ...]]
    trust: Trust | None
    no_trust: str | None
    later: Mapping[str, tuple[Errors, ...]]
    held_out: HeldOut
    delays: tuple[tuple[Delays, Delays], ...]

    @property
    def program(self) -> str | None:
        return self.programs[0].program if self.shared else None

    @property
    def out(self) -> list[str]:
        return [p.out for p in self.programs if p.out]

    @property
    def worse(self) -> int:
        """How many runs are predicted worse than before, by more than WORSE_PCT."""
        pairs = zip(self.before, self.best.errors, strict=True)
        return sum(summarise([new]).mean_error > summarise([old]).mean_error + WORSE_PCT for old, new in pairs)

    @property
    def worse_errors(self) -> list[WorseError]:
        """The errors that the fit made larger by more than WORSE_POINTS, the worst first."""
        pairs = zip(self.before, self.best.errors, strict=True)
        of_means = ((old.experiment, x, getattr(old, x), getattr(new, x)) for old, new in pairs for x in MEANS)
        known = (WorseError(*row) for row in of_means if None not in row)
        grown = [(abs(e.after) - abs(e.before), e) for e in known]
        return [e for points, e in sorted(grown, key=lambda pair: -pair[0]) if points > WORSE_POINTS]

    def to_json(self) -> JsonObject:
        return {
            "engine": __version__,
            "data": self.data,
            "seeds": list(SCORE_SEEDS),
            "name": self.name,
            "program": self.program,
            "key": self.key,
            "programs": [asdict(p) for p in self.programs],
            "fitted": list(self.fitted),
            "left_out": list(self.left_out),
            "method": self.best.method,
            "loss": self.best.fit.loss,
            "started": self.started,
            "methods": [t.to_json() for t in self.tries],
            "degrees_of_freedom": asdict(self.freedom),
            "constants": [asdict(c) for c in self.constants],
            "steps": to_json(self.steps),
            "before": [r._asdict() for r in self.before],
            "after": [r._asdict() for r in self.best.errors],
            "worse": self.worse,
            "worse_errors": [asdict(e) for e in self.worse_errors],
            "simulated": self.simulated,
            "later": {name: [r._asdict() for r in rows] for name, rows in self.later.items()},
            "held_out": self.held_out.to_json(),
            "delays_ms": [{"predicted": a._asdict(), "observed": _finite(b)} for a, b in self.delays],
            "out": self.out,
            "ensemble": len(self.trust.ensemble) if self.trust else None,
            "no_intervals": self.no_trust,
            "warnings": list(dict.fromkeys(text for texts in self.warnings.values() for text in texts)),
        }


def _finite(delays: Delays) -> JsonObject:
    return {name: None if math.isnan(ms) else ms for name, ms in delays._asdict().items()}


def save(
    source: Source,
    best: Try,
    certainties: Sequence[Certainty],
    data: FitSet,
    old: Known | None,
    files: Sequence[Path | None],
    shared: bool,
    first: FirstStage | None,
    trust: Trust | None,
    split: bool,
) -> tuple[FittedProgram, ...]:
    """The program of each group of experiments, written to its file if it has one: with its record, trust and trees.

    A trust in the file's place is removed if there is none to replace it. split: the experiments are parts of traces.
    Raises InputError if a file cannot be written.
    """
    date = today()
    programs = []
    for i, (group, path) in enumerate(zip(best.fit.problem.groups, files, strict=True)):
        members = [data.experiments[j] for j in group.experiments]
        program = replace(best.fit.programs[i], doc=_doc(source, data.experiments if shared else members, split))
        text = unparse(brief(program))
        errors = [best.errors[j] for j in group.experiments]
        kept = replace(
            record(key(program), members, errors, SCORE_SEEDS, date, source.record),
            fitted_from=source.name,
            constants=_constants([certainties[j] for j in group.index], old),
            fitted_with=None if shared else tuple(e.id for e in data.experiments),
            steps=first.record() if first else None,
            consistent=_stays_consistent(source, best.fit.programs[i]),
        )
        if path is not None:
            save_program(path, text, program.forest, kept, trust)
        model, ids = None if shared else best.fit.models[i], tuple(e.id for e in members)
        programs.append(FittedProgram(model, ids, text, str(path) if path else None, kept.cautions))
    return tuple(programs)


def _stays_consistent(source: Source, fitted: Program) -> bool:
    """True if the fitted program contradicts no datasheets and no measured kernels.

    Also if the source contradicts them, and was not found to: nobody has judged a form by hand of one deployment.
    """
    found_inconsistent = source.record is not None and not source.record.consistent
    return consistent(fitted) or not (found_inconsistent or consistent(source.complete))


def _constants(certainties: Sequence[Certainty], old: Known | None) -> dict[str, ConstantRecord]:
    """What the record keeps of each constant; for those that were held, what was known before."""
    constants = constant_records(certainties)
    for c in certainties:
        name = f"{c.method}.{c.name}"
        if c.held and old and name in old:
            constants[name] = replace(old[name], held=True)
    return constants


def changes(
    program: Program, fit: ScopedFit, certainties: Sequence[Certainty], old: Known | None, first: FirstStage | None
) -> tuple[ConstantChange, ...]:
    """Each constant of `program` before and after the fit."""
    rows = []
    for j, c in enumerate(certainties):
        at = fit.problem.position[j]
        earlier = (old or {}).get(f"{c.method}.{c.name}")
        error_before = earlier.standard_error if earlier else None
        error = math.hypot(c.standard_error, error_before or 0.0)
        before = program.theta[at]
        rows.append(
            ConstantChange(
                model=None if c.group is None else fit.models[c.group],
                method=c.method,
                name=c.name,
                before=before,
                after_steps=first.program.theta[at] if first else None,
                after=c.value,
                standard_error=c.standard_error if math.isfinite(c.standard_error) else None,
                standard_error_before=error_before,
                moved=(c.value - before) / error if math.isfinite(error) and error > 0.0 else None,
                bound=c.bound,
                data_share=c.data_share,
                identified=c.identified,
                held=c.held,
                correlated=c.correlated,
                shown=not math.isinf(c.standard_error),
            )
        )
    return tuple(rows)


def _doc(source: Source, fitted: Sequence[Experiment], split: bool) -> str:
    of_each = f", the first {100 * SHARES[TRAIN]:.0f} % of the requests of each" if split else ""
    doc = f"The form of {source.name}, its constants fitted on {', '.join(e.id for e in fitted)}{of_each}."
    own = simulated(fitted)
    if own:
        doc += f" The times of {', '.join(own)} {NOT_MEASURED}: these constants say nothing about a real engine."
    return doc
