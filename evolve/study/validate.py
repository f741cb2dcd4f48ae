"""`evolve validate`: held-out errors of a run, with the whole search repeated inside every fold.

What a fold holds out is removed before anything else happens: its search, its choice of a champion and its constants
see only the rest. Then the champion, unchanged, predicts what was held out.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evaluator.experiments import data_hash
from evaluator.intervals import Coverage, Residual, coverage, disagreements
from evaluator.score import MEANS, SCORE_SEEDS
from evolve import __version__
from evolve.pool.pool import Pool
from evolve.pool.process import Call
from evolve.report.progress import Progress
from evolve.report.result import Means, RunReport
from evolve.run import folder as run_folder
from evolve.run import validations
from evolve.run.data import chosen
from evolve.run.files import write_json
from evolve.run.folder import Run
from evolve.run.program import CHAMPION, Source
from evolve.run.trust import CLASSES, TRUST_FILE, Trust, committee_of
from evolve.study.folds import Fold, Winner, folder_of, folds_of, refit, winner_of
from evolve.study.held_out import (
    RANKED,
    FoldResult,
    Row,
    Unfitted,
    held_out_errors,
    log_ratios,
    never_fitted,
    result_of,
    rows_of,
)
from evolve.study.ranks import Ranking, Selection, best_of, rankings, selection, selects
from evolve.study.statistics import FieldCounts, Group, Summary, breakdown, fields_used, summary
from evolve.study.study import Finished, Member, carry_out, finished
from evolve.terminal import command
from simulator.errors import InputError
from simulator.experiment.experiment import Experiment
from simulator.json import JsonObject
from simulator.language.parse import parse


@dataclass(frozen=True)
class Options:
    """How to validate."""

    kinds: tuple[str, ...] = ()  # of folds; empty: those of the run's configuration
    budget: int | None = None  # candidates of each fold's search; None: that of the run's configuration
    hindsight: bool = False  # refit the run's champion in every fold instead of searching
    against: Source | None = None  # a program to compare with, refitted in every fold
    again: bool = False  # validate even if settings have changed since the first call


@dataclass(frozen=True, slots=True)
class Validation:
    """The held-out errors of a run, and how they were measured."""

    call: int  # number of this validate call on the run, from 1
    changed: Sequence[str]  # settings that differ from the first call
    budget: int | None  # candidates of each fold's search; None with hindsight
    skipped: Mapping[str, str]  # why there is no fold, by kind
    data: str  # hash of the fitted experiments
    seed: int
    run: str  # path
    hindsight: bool
    rule: Mapping[str, Any]  # how champions are chosen
    in_sample: Means  # of the run's champion
    champion: str  # its key
    folds: Sequence[FoldResult]
    rows: Sequence[Row]
    summary: Mapping[str, Summary]  # by kind of fold
    breakdown: Mapping[str, Sequence[Group]]  # by kind of fold
    front_fields: FieldCounts  # of the programs on the run's Pareto front
    fold_fields: Mapping[str, FieldCounts]  # of the folds' programs, by kind
    never_fitted: Sequence[Unfitted]
    selection: Mapping[str, Selection]  # by kind of fold; empty with hindsight
    ranking: Sequence[Ranking]
    intervals: Mapping[str, Mapping[str, Coverage]]  # by class of residuals (evolve.run.trust), by figure

    def to_json(self) -> JsonObject:
        """The validation as validate.json has it."""
        return {
            "call": self.call,
            "changed_since_first_call": list(self.changed),
            "budget": self.budget,
            "skipped": dict(self.skipped),
            "engine": __version__,
            "data": self.data,
            "seed": self.seed,
            "seeds": list(SCORE_SEEDS),
            "run": self.run,
            "form_chosen_with_hindsight": self.hindsight,
            "rule": dict(self.rule),
            "in_sample": dict(self.in_sample),
            "champion": self.champion,
            "folds": [fold.to_json() for fold in self.folds],
            "rows": [row.to_json() for row in self.rows],
            "summary": {kind: s.to_json() for kind, s in self.summary.items()},
            "breakdown": {kind: [asdict(group) for group in groups] for kind, groups in self.breakdown.items()},
            "fields": {
                "front": asdict(self.front_fields),
                "folds": {kind: asdict(counts) for kind, counts in self.fold_fields.items()},
            },
            "never_fitted": [row.to_json() for row in self.never_fitted],
            "selection": {kind: asdict(s) for kind, s in self.selection.items()},
            "ranking": [asdict(r) for r in self.ranking],
            "intervals": {
                name: {figure: asdict(c) for figure, c in of_figures.items()}
                for name, of_figures in self.intervals.items()
            },
        }


def validate(run: Run, options: Options, pool: Pool) -> Validation:
    """The held-out errors of a finished run; a pool carries out the searches of all folds.

    They are written to RUN/validate.json (with `hindsight` to RUN/validate-hindsight.json), and a line about the call
    to RUN/validate.jsonl. Ctrl-C leaves every fold intact, and the same call continues from there. Raises InputError if
    the run is not finished, if nothing can be held out, or if settings have changed since the first call.
    """
    fitted, others = chosen(run.config.data)
    if run.shipped:
        shows = command("report", CHAMPION, "--only", "accuracy")
        raise InputError(f"{run.path}: is a shipped run, which was validated already (docs/validation.md): "
                         f"`{shows}` shows its held-out errors")  # fmt: skip
    run_folder.check_same(run, fitted)
    report = finished(run.path)
    if report is None:
        raise InputError(f"{run.path}: is not finished: `{command('resume', run.path)}` finishes it")
    if report.champion is None:
        raise InputError(f"{run.path}: no candidate could be scored: `{command('resume', run.path)}` shows why")
    settings = run.config.validate
    budget = options.budget or settings.budget
    folds, skipped = folds_of(run.config, options.kinds or settings.folds, budget, fitted)
    searched_with = None if options.hindsight else budget
    with run_folder.lock(run.path):
        protocol = validations.protocol(run, searched_with)
        changed = validations.changed(run.path, protocol)
        if changed and not options.again:
            raise InputError(f"{run.path}: settings have changed since the first validate ({'; '.join(changed)}): "
                             "change them back, or give --again, and the output will say so")  # fmt: skip
        judged = _judged(run, folds, options, report.champion.text, pool)
        results, rows = [j.result for j in judged], [row for j in judged for row in j.rows]
        kinds = list(dict.fromkeys(fold.kind for fold in folds))
        by_kind = {kind: [row for row in rows if row.kind == kind] for kind in kinds}
        members = committee_of(run, report.champion.key)
        trust = Trust(
            report.champion.key,
            members,
            inside=tuple(row.residual for row in rows if row.spread and not row.outside),
            outside=tuple(row.residual for row in rows if row.spread and row.outside),
            saturated=_saturated(report.champion.text, members, others),
        )
        texts = {kind: [r.winner.text for r in results if r.winner and r.fold.kind == kind] for kind in kinds}
        validation = Validation(
            call=len(validations.calls(run.path)) + 1,
            changed=changed,
            budget=searched_with,
            skipped=skipped,
            data=data_hash(fitted),
            seed=run.config.seed,
            run=str(run.path),
            hindsight=options.hindsight,
            rule={**asdict(run.config.score), "selection": run.config.search.selection},
            in_sample=report.fitted_mean,
            champion=report.champion.key,
            folds=results,
            rows=rows,
            summary={kind: summary(of_kind, run.config.seed) for kind, of_kind in by_kind.items()},
            breakdown={kind: breakdown(of_kind) for kind, of_kind in by_kind.items()},
            front_fields=fields_used(elite.text for elite in report.front),
            fold_fields={kind: fields_used(of_kind) for kind, of_kind in texts.items()},
            never_fitted=_never_fitted(report, others),
            selection={} if options.hindsight else _selection(judged, run.config.seed),
            ranking=[
                r
                for kind, of_kind in by_kind.items()
                if kind != "stages"
                for unit, compared in (
                    ("runs", [row.whole for row in of_kind]),
                    ("load stages", [stage for row in of_kind for stage in row.stages]),
                )
                for figure in RANKED
                for r in rankings(compared, kind, unit, figure)
            ],
            intervals={name: coverage(trust.residuals(name)) for name in CLASSES},
        )
        validations.append(run.path, _line(validation, protocol, sum(j.searched for j in judged)))
        name = "validate-hindsight.json" if options.hindsight else "validate.json"
        write_json(run.path / name, validation.to_json())
        if not options.hindsight:
            write_json(run.path / TRUST_FILE, trust.to_json())
    return validation


def _saturated(champion: str, committee: Sequence[str], others: Sequence[Experiment]) -> tuple[Residual, ...]:
    """The residuals of the runs that were never fitted and in which a queue may grow."""
    program, held = parse(champion), [e for e in others if e.observed]
    doubts = disagreements(program, [parse(text) for text in committee], held, SCORE_SEEDS[0])
    of_runs = zip(held, held_out_errors(program, held, False), doubts, strict=True)
    return tuple(Residual(e.id, e.id, log_ratios(row.errors), d.spread) for e, row, d in of_runs if d.saturated > 0.0)


def _never_fitted(report: RunReport, others: Sequence[Experiment]) -> list[Unfitted]:
    assert report.champion
    return never_fitted(report.champion.text, [e for e in others if e.observed])


@dataclass(frozen=True, slots=True)
class Judged:
    """A fold's result, and the rows that it comes from.

    searched: whether this call searched. selects: whether the search's merit selects, see evolve.study.ranks.selects.
    """

    result: FoldResult
    rows: Sequence[Row]
    searched: bool = False
    selects: float | None = None


def _judged(run: Run, folds: Sequence[Fold], options: Options, champion: str, pool: Pool) -> list[Judged]:
    """Every fold with the errors of its program on what it holds out."""
    if options.hindsight:
        pool.line.show(f"refit and held-out errors of {len(folds)} folds ...")
        refits = [pool.submit(Call(_refit, (champion, fold, fold.train(), options.against))) for fold in folds]
        errors = [refitted.result() for refitted in refits]
        pool.line.close()
        return [Judged(result, rows) for result, rows in errors]

    def finish(number: int, search: Finished, progress: Progress) -> Judged:
        fold, path = folds[number], members[number].folder
        progress.stage("held-out errors, known answers")
        winner = winner_of(path, search.report)
        errors = pool.submit(Call(_held_out, (fold, winner, fold.train(), options.against)))
        correlation = None if fold.last_stage else pool.submit(Call(selects, (*best_of(path), fold.held)))
        result, rows = errors.result()
        return Judged(result, rows, search.searched, correlation.result() if correlation else None)

    members = [Member(folder_of(run.path / "validate", fold), fold.config) for fold in folds]
    return carry_out(members, "fold", pool, full=False, then=finish)


def _refit(
    champion: str, fold: Fold, train: Sequence[Experiment], against: Source | None
) -> tuple[FoldResult, list[Row]]:
    return _held_out(fold, refit(champion, train), train, against)


def _held_out(
    fold: Fold, winner: Winner | None, train: Sequence[Experiment], against: Source | None
) -> tuple[FoldResult, list[Row]]:
    rows = rows_of(fold, winner, train, against)
    return result_of(fold, winner, train, rows), rows


def _selection(judged: Sequence[Judged], seed: int) -> dict[str, Selection]:
    """By kind of fold, whether the merit selects; the folds have been searched."""
    correlations: dict[str, dict[str, float | None]] = {}
    for j in judged:
        if not j.result.fold.last_stage:
            correlations.setdefault(j.result.fold.kind, {})[j.result.fold.name] = j.selects
    return {kind: selection(of_kind, seed) for kind, of_kind in correlations.items()}


def _line(validation: Validation, protocol: Mapping[str, Any], searched: int) -> JsonObject:
    """The line about a call in RUN/validate.jsonl."""
    figures = {
        kind: {name: of_kind.mean_abs_error_pct[name] for name in MEANS} | {"over": of_kind.experiments}
        for kind, of_kind in validation.summary.items()
    }
    return {
        "call": validation.call,
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "engine": __version__,
        "data": validation.data,
        "form_chosen_with_hindsight": validation.hindsight,
        "kinds": list(validation.summary),
        "budget": validation.budget,
        "searched_folds": searched,
        "changed_since_first_call": list(validation.changed),
        "champions": {r.fold.folder: r.winner.key if r.winner else None for r in validation.folds},
        "mean_abs_error_pct": figures,
        "protocol": protocol,
    }
