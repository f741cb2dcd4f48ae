"""`evolve validate`: held-out errors of a run, with the whole search repeated inside every fold.

What is held out is removed before anything else happens: a fold's search, its choice of a champion and its constants
see the rest only. Then the champion, unchanged, predicts what was held out.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evaluator.experiments import data_hash
from evaluator.score import SCORE_SEEDS
from evolve import __version__
from evolve.report.progress import Line
from evolve.report.result import Means, RunReport
from evolve.run import folder as run_folder
from evolve.run import validations
from evolve.run.data import chosen
from evolve.run.folder import Run
from evolve.run.program import Source
from evolve.study.folds import Fold, Winner, folder_of, folds_of, refit, winner_of
from evolve.study.held_out import MEANS, FoldResult, Row, Unfitted, never_fitted, result_of, rows_of
from evolve.study.statistics import FieldCounts, Group, Summary, breakdown, fields_used, summary
from evolve.study.study import Member, carry_out, finished
from simulator.errors import InputError
from simulator.experiment.experiment import Experiment


@dataclass(frozen=True)
class Options:
    """What a validation is asked for.

    Empty `kinds` and `budget` None: what the run's configuration says. `hindsight`: no search, the run's champion
    refitted in every fold. `against`: a program that is refitted in every fold too. `again`: validate although the
    settings have changed since the first call.
    """

    kinds: tuple[str, ...] = ()
    budget: int | None = None
    hindsight: bool = False
    against: Source | None = None
    again: bool = False
    workers: int = 1
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Validation:
    """The held-out errors of a run, and how they were found.

    call: which look at held-out figures this is; changed: settings that differ from the first call. budget: of each
    fold's search, None with hindsight. skipped: why a kind of fold has none. rule: how champions are chosen. in_sample:
    the run's mean absolute errors on what it fitted. champion: the key of its program.
    """

    call: int
    changed: Sequence[str]
    budget: int | None
    skipped: Mapping[str, str]
    data: str
    seed: int
    run: str
    hindsight: bool
    rule: Mapping[str, Any]
    in_sample: Means
    champion: str
    folds: Sequence[FoldResult]
    rows: Sequence[Row]
    summary: Mapping[str, Summary]
    breakdown: Mapping[str, Sequence[Group]]
    front_fields: FieldCounts
    fold_fields: Mapping[str, FieldCounts]
    never_fitted: Sequence[Unfitted]

    def to_json(self) -> dict[str, Any]:
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
        }


def validate(run: Run, options: Options) -> Validation:
    """Held-out errors of a finished run, written to RUN/validate.json (with `hindsight`: RUN/validate-hindsight.json),
    and a line about the call to RUN/validate.jsonl.

    Ctrl-C leaves every fold whole: the same call goes on from there. Raises InputError if the run is not finished, if
    nothing can be held out, or if settings have changed since the first call.
    """
    fitted, others = chosen(run.config.data)
    run_folder.check_same(run, fitted)
    report = finished(run.path)
    if report is None or report.champion is None:
        why = "is not finished" if report is None else "has no champion: no candidate could be scored"
        raise InputError(f"{run.path}: {why}: `evolve resume {run.path}` says how far it is")
    settings = run.config.validate
    budget = options.budget or settings.budget
    folds, skipped = folds_of(run.config, options.kinds or settings.folds, budget, fitted)
    searched_with = None if options.hindsight else budget
    with run_folder.lock(run.path):
        protocol = validations.protocol(run, searched_with)
        changed = validations.changed(run.path, protocol)
        if changed and not options.again:
            raise InputError(f"{run.path}: settings have changed since the first validate ({'; '.join(changed)}): "
                             "change them back, or say --again, and the output will say so")  # fmt: skip
        winners, searched = _winners(run, folds, options, report.champion.text)
        results, rows = _results(folds, winners, options)
        kinds = list(dict.fromkeys(fold.kind for fold in folds))
        by_kind = {kind: [row for row in rows if row.kind == kind] for kind in kinds}
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
        )
        validations.append(run.path, _line(validation, protocol, searched))
        name = "validate-hindsight.json" if options.hindsight else "validate.json"
        run_folder.write_json(run.path / name, validation.to_json())
    return validation


def _never_fitted(report: RunReport, others: Sequence[Experiment]) -> list[Unfitted]:
    assert report.champion
    return never_fitted(report.champion.text, [e for e in others if e.observed])


def _winners(run: Run, folds: Sequence[Fold], options: Options, champion: str) -> tuple[list[Winner | None], int]:
    """What predicts in every fold, and in how many folds a search was made now."""
    if options.hindsight:
        line = Line(options.quiet)
        winners: list[Winner | None] = []
        for fold in folds:
            line.show(f"refit in {fold.folder} ...")
            winners.append(refit(champion, fold))
        line.close()
        return winners, 0
    members = [Member(folder_of(run.path / "validate", fold), fold.config) for fold in folds]
    done = carry_out(members, "fold", options.workers, options.quiet, full=False)
    return [winner_of(d.report) for d in done], sum(d.worked for d in done)


def _results(
    folds: Sequence[Fold], winners: Sequence[Winner | None], options: Options
) -> tuple[list[FoldResult], list[Row]]:
    """What every fold comes to, and the rows of all."""
    results, rows, line = list[FoldResult](), list[Row](), Line(options.quiet)
    for number, (fold, winner) in enumerate(zip(folds, winners, strict=True), 1):
        line.show(f"held-out predictions and known answers of fold {number}/{len(folds)} ({fold.folder}) ...")
        train = fold.train()
        of_fold = rows_of(fold, winner, train, options.against)
        results.append(result_of(fold, winner, train, of_fold))
        rows += of_fold
    line.close()
    return results, rows


def _line(validation: Validation, protocol: Mapping[str, Any], searched: int) -> dict[str, Any]:
    """What RUN/validate.jsonl keeps of a call."""
    figures = {
        kind: {name: found.mean_abs_error_pct[name] for name in MEANS} | {"over": found.experiments}
        for kind, found in validation.summary.items()
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
