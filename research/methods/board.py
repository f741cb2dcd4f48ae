"""The board: a row for each entry and protocol with figures, intervals and verdicts, the best held-out error first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

from evaluator.group_out import COMMON
from evaluator.intervals import FIGURES
from evaluator.metrics import mean, mean_abs, present
from evaluator.statistics import clustered_interval, mean_abs_interval
from evolve.calibrate.steps.figures import StepFigures
from evolve.validate.held_out import Compared, observed_figures
from evolve.validate.ranks import rankings
from research.methods.bench import Bench, predicted_together, program_file
from research.methods.catalog import METHODS
from research.methods.entries import (
    NESTED,
    OURS,
    OWN,
    PUBLISHED,
    REFIT,
    SEARCH,
    Entry,
    Errors,
    Published,
    nested,
    published,
)
from research.methods.hypotheses import H1Verdict, H2Verdict, H3Verdict, h1, h2, h3
from research.methods.protocol import protocol
from research.methods.result import IN_SAMPLE, Result
from simulator.common.json import JsonObject
from simulator.language.complete import complete
from simulator.language.ir import Field, Function, nodes
from simulator.language.parse import parse
from simulator.serving.experiment import Experiment
from simulator.serving.splits import TEST, VALID
from translate_go.target import reads_kernels

WORTH_POINTS = 2.0  # of the mean E2E error, by which constants of its own must be better to be worth it to a model
# The five delays of the host's latency model. Nothing that was measured depends on admissions and evictions, which are
# one of the five here.
_ALONE = ("step_time", "queueing_time", "output_token_time", "completion_time")
DELAYS = (*((name,) for name in _ALONE), ("scheduling_time", "preemption_time"))
Interval = tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Loads:
    """Mean absolute errors over the runs that were predicted, in percent. runs: how many, `of` how many.

    interval_95, interval_95_by_model: of the mean E2E error, runs or whole models resampled. dense, moe: of E2E, over
    the runs of either architecture. inversions: pairs of runs whose mean E2E is predicted in the other order than
    observed; None of published errors, which have no sign. cycles_mape, cycles_r: of single steps of the runs that were
    held out.
    """

    runs: int
    of: int
    e2e: float | None
    e2e_median: float | None
    e2e_worst: float | None
    ttft: float | None
    itl: float | None
    e2e_p99: float | None
    interval_95: Interval
    interval_95_by_model: Interval
    dense: float | None
    moe: float | None
    inversions: int | None = None
    cycles_mape: float | None = None
    cycles_r: float | None = None


@dataclass(frozen=True, slots=True)
class Portability:
    """covered: how many of DELAYS are not always 0. host: what the host must know, `datasheet`, or `kernels` for the
    curves of measured kernels of its GPU. go: `generic`, or `trees` with a file of its ensemble next to it. programs:
    how many there are, one for each model or run unless it is 1."""

    covered: int
    host: str
    go: str
    programs: int


@dataclass(frozen=True, slots=True)
class BoardRow:
    """An entry by one protocol.

    constants, times: of the largest training; cpu_s: of all trainings. valid_mape, test_mape, test_r: of these cycles
    of all runs that have any, by the training on all runs.

    loads: by IN_SAMPLE or the kind of fold; published errors are in IN_SAMPLE. skipped: why there is neither h2 nor h3,
    "" if there is. failures: why trainings came to nothing.
    """

    name: str
    by: str
    group: str
    note: str
    what: str
    idea: str
    algorithm: str
    citations: tuple[str, ...]
    constants: int | None = None
    times: int | None = None
    cpu_s: float | None = None
    valid_mape: float | None = None
    test_mape: float | None = None
    test_r: float | None = None
    loads: Mapping[str, Loads] | None = None
    ns_a_step: float | None = None
    portability: Portability | None = None
    h1: H1Verdict | None = None
    h2: H2Verdict | None = None
    h3: H3Verdict | None = None
    skipped: str = ""
    failures: tuple[str, ...] = ()

    def of(self, kind: str) -> Loads | None:
        """The errors of a kind."""
        return (self.loads or {}).get(kind)

    def e2e(self, kind: str) -> float | None:
        """The mean absolute E2E error of a kind in percent."""
        loads = self.of(kind)
        return loads.e2e if loads else None

    @property
    def file(self) -> str:
        """The file of its program among those of the bench, if one is that of all runs."""
        return program_file(self.name, self.by)

    def to_json(self) -> JsonObject:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Board:
    """All rows, the best first. kinds: of folds that the runs have. limit_pct: the error of single steps beyond which a
    row is skipped; None without cycles or a short circuit."""

    rows: tuple[BoardRow, ...]
    kinds: tuple[str, ...]
    limit_pct: float | None

    @property
    def best(self) -> BoardRow | None:
        """The first row with one program for all models that was judged, without hindsight, on unseen models."""
        shared = [row for row in self.rows if row.portability and row.portability.programs == 1 and row.by != REFIT]
        return next((row for row in shared if row.e2e("models") is not None), None)

    @property
    def to_go_on_with(self) -> BoardRow | None:
        """The best of the user's own programs, or `best` if that comes before it."""
        yours = [row for row in self.rows if row.group == "yours" and row.portability and row.portability.programs == 1]
        return next((row for row in self.rows if row == self.best or row in yours), None)


def board(bench: Bench, results: Sequence[Result], with_published: bool) -> Board:
    """The board of these results; `with_published`: with what others published of the same runs."""
    experiments = bench.experiments
    kinds = tuple(kind for kind in predicted_together(experiments) if kind != IN_SAMPLE)
    limit = _limit(results) if bench.short_circuit else None
    rows = []
    for entry in bench.entries:
        for by in entry.protocols:
            mine = [r for r in results if (r.task.name, r.task.protocol) == (entry.name, by)]
            rows.append(_row(entry, by, mine, experiments, kinds, limit))
    if with_published:
        rows += [_published_row(p, experiments) for p in published(experiments)]
    return Board(tuple(sorted(rows, key=_order)), kinds, limit)


def _limit(results: Sequence[Result]) -> float | None:
    """The error of single steps in percent beyond which an entry is skipped; None if nothing has one."""
    errors = {r.task.name: r.test_mape for r in results if r.test_mape is not None}
    short = protocol().short_circuit
    return short.limit(errors.get(short.reference)) if errors else None


def _order(row: BoardRow) -> tuple[bool, float, float, float, str, str]:
    """The mean E2E error on models left out, then on workloads left out, then in sample; skipped rows come last."""
    errors = (row.e2e(kind) for kind in ("models", "workloads", IN_SAMPLE))
    first, second, third = (float("inf") if e is None else e for e in errors)
    return bool(row.skipped), first, second, third, row.name, row.by


def _row(
    entry: Entry,
    by: str,
    results: Sequence[Result],
    experiments: Sequence[Experiment],
    kinds: Sequence[str],
    limit: float | None,
) -> BoardRow:
    whole = next(r for r in results if r.task.kind == IN_SAMPLE)
    errors = {kind: _errors(results, kind) for kind in dict.fromkeys(r.task.kind for r in results)}
    if by == SEARCH and entry.source is not None:
        errors |= nested(entry.source, experiments)
    loads = {kind: _with_cycles(loads_of(of_kind, experiments), results, kind) for kind, of_kind in errors.items()}
    test, valid = whole.cycles.get(TEST), whole.cycles.get(VALID)
    rules, untold = protocol(), whole.skipped or bool(whole.failure)
    return BoardRow(
        entry.name,
        by,
        entry.group,
        NESTED if by == SEARCH else entry.note,
        entry.what,
        entry.idea,
        entry.algorithm(by),
        entry.citations,
        constants=max(r.constants for r in results),
        times=max(r.times for r in results),
        cpu_s=round(sum(r.cpu_s for r in results), 3),
        valid_mape=valid.mape_pct if valid else None,
        test_mape=whole.test_mape,
        test_r=test.pearson_r if test else None,
        loads=loads,
        ns_a_step=whole.ns_a_step,
        portability=portability(list(whole.texts.values())),
        h1=h1(rules.h1, whole.features or {}),
        h2=None if untold else h2(rules.h2, errors[IN_SAMPLE], len(experiments)),
        h3=None if untold else h3(rules.h3, errors, kinds, len(experiments)),
        skipped=f"mean absolute error of test cycles above {limit:.1f} %"
        if whole.skipped and limit is not None
        else "",
        failures=tuple(dict.fromkeys(r.failure for r in results if r.failure)),
    )


def portability(texts: Sequence[str]) -> Portability | None:
    """That of an entry with these programs; None without any."""
    if not texts:
        return None
    program = complete(parse(texts[0]))
    told = {f.name for f in program.functions if _says_something(f)}
    return Portability(
        covered=sum(any(name in told for name in names) for names in DELAYS),
        host="kernels" if reads_kernels(program) else "datasheet",
        go="trees" if program.reads_trees else "generic",
        programs=len(texts),
    )


def _says_something(function: Function) -> bool:
    """True if it has a constant or reads a field; other functions are 0 in every form of ours."""
    return bool(function.constants) or any(isinstance(node, Field) for node in nodes(function))


def _errors(results: Sequence[Result], kind: str) -> dict[str, Errors]:
    return {name: errors for r in results if r.task.kind == kind for name, errors in r.errors.items()}


def _published_row(system: Published, experiments: Sequence[Experiment]) -> BoardRow:
    loads = replace(loads_of(system.errors, experiments), inversions=None)
    note = f"published: {system.source}"
    return BoardRow(system.name, PUBLISHED, "published", note, "", "", "", (), loads={IN_SAMPLE: loads})


def loads_of(errors: Mapping[str, Errors], experiments: Sequence[Experiment]) -> Loads:
    """The figures of the errors by run; the runs are some of these experiments."""
    rows = [(e, errors[e.id]) for e in experiments if e.id in errors]
    e2es, seed = [row["e2e"] for _, row in rows], protocol().bootstrap_seed
    sizes = [abs(x) for x in present(e2es)]
    kind = COMMON["architectures"]
    dense, moe = (mean_abs([row["e2e"] for e, row in rows if kind(e) == name]) for name in ("dense", "MoE"))
    means = {name: mean_abs([row[name] for _, row in rows]) for name in FIGURES}
    e2e = means["e2e"], median(sizes) if sizes else None, max(sizes, default=None)
    others = means["ttft"], means["itl"], means["e2e_p99"]
    intervals = mean_abs_interval(e2es, seed), clustered_interval(e2es, [e.model for e, _ in rows], seed)
    return Loads(len(rows), len(experiments), *e2e, *others, *intervals, dense, moe, _inversions(rows))


def _inversions(rows: Sequence[tuple[Experiment, Errors]]) -> int | None:
    """The number of pairs of runs predicted in the wrong order, by mean E2E; None without runs."""
    compared = [
        Compared(e.id, observed_figures(e.observed.summary if e.observed else None), row, {}) for e, row in rows
    ]
    ranked = rankings(compared, "", "runs", "e2e")[0]
    return len(ranked.inversions) if ranked.count else None


def _with_cycles(loads: Loads, results: Sequence[Result], kind: str) -> Loads:
    """With the figures of single steps of the runs that were held out."""
    mape, r = _over([r.cycles["all"] for r in results if r.task.kind == kind and "all" in r.cycles])
    return replace(loads, cycles_mape=mape, cycles_r=r)


def _over(figures: Sequence[StepFigures]) -> tuple[float | None, float | None]:
    """(mean absolute error in percent, r) of the cycles of several trainings; r is the mean over them."""
    measured = [f for f in figures if f.mape_pct is not None]
    if not measured:
        return None, None
    steps = sum(f.steps for f in measured)
    mape = sum(f.steps * (f.mape_pct or 0.0) for f in measured) / steps
    return mape, mean([f.pearson_r for f in measured])


@dataclass(frozen=True, slots=True)
class Worth:
    """Errors of a method with constants that all models share, and with constants of each model.

    They are errors of the mean E2E in percent on workloads held out.
    """

    shared: str
    own: str
    protocol: str
    shared_e2e: float
    own_e2e: float

    def to_json(self) -> JsonObject:
        return {**asdict(self), "justified": self.justified}

    @property
    def justified(self) -> bool:
        """True if constants of each model are better by more than WORTH_POINTS."""
        return self.shared_e2e - self.own_e2e > WORTH_POINTS


def worth(rows: Sequence[BoardRow]) -> list[Worth]:
    """The comparison for each method that is also on the board with constants of each model."""
    e2e = {(row.name, row.by): row.e2e("workloads") for row in rows}
    verdicts = []
    for method in METHODS:
        alike = [m for m in METHODS if (m.program, m.own, m.per_model) == (method.program, method.own, False)]
        if not method.per_model or not alike:
            continue
        (shared,) = alike
        for by in (OWN, OURS):
            theirs, own = e2e.get((shared.name, by)), e2e.get((method.name, by))
            if theirs is not None and own is not None:
                verdicts.append(Worth(shared.name, method.name, by, theirs, own))
    return verdicts
