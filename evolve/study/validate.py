"""`evolve validate`: held-out figures of a run, with the whole search repeated inside every fold.

What is held out is removed before anything else happens: a fold's search, its choice of a champion and its constants
see the rest only. Then the champion, as it is, predicts what was held out.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evaluator.experiments import data_hash
from evaluator.score import SCORE_SEEDS
from evolve import __version__
from evolve.report.progress import Line
from evolve.run import folder as run_folder
from evolve.run import validations as log
from evolve.run.data import chosen
from evolve.run.folder import Run
from evolve.run.program import Source
from evolve.study.fold_search import Winner, folder_of, refit, winner_of
from evolve.study.folds import Fold, folds_of
from evolve.study.rows import fold_json, never_fitted, rows_of
from evolve.study.statistics import MEANS, breakdown, fields_used, summary
from evolve.study.study import Member, carry_out, finished
from simulator.errors import InputError
from simulator.experiment.experiment import Experiment


@dataclass(frozen=True)
class Options:
    """`kinds`, `budget`: empty and None, what the run's configuration says. `hindsight`: no search, the run's champion
    refitted in every fold. `against`: refitted in every fold too. `again`: although the settings have changed."""

    kinds: tuple[str, ...] = ()
    budget: int | None = None
    hindsight: bool = False
    against: Source | None = None
    again: bool = False
    workers: int = 1
    quiet: bool = False


def validate(run: Run, options: Options) -> dict[str, Any]:
    """Everything that the printed report shows, as plain values; written to RUN/validate.json (with `hindsight`:
    RUN/validate-hindsight.json), and the call to RUN/validate.jsonl.

    Ctrl-C leaves every fold whole: the same call goes on from there. Raises InputError if the run is not finished, if
    nothing can be held out, or if settings have changed since the first call.
    """
    fitted, others = chosen(run.config.data)
    run_folder.check_same(run, fitted)
    report = finished(run.path)
    if report is None or report["champion"] is None:
        why = "is not finished" if report is None else "has no champion: no candidate could be scored"
        raise InputError(f"{run.path}: {why}: `evolve resume {run.path}` says how far it is")
    settings = run.config.validate
    budget = options.budget or settings.budget
    folds, skipped = folds_of(run.config, options.kinds or settings.folds, budget, fitted)
    with run_folder.lock(run.path):
        protocol = log.protocol(run, None if options.hindsight else budget)
        changed = log.changed(run.path, protocol)
        if changed and not options.again:
            raise InputError(f"{run.path}: settings have changed since the first validate ({'; '.join(changed)}): "
                             "change them back, or say --again, and the output will say so")  # fmt: skip
        winners, searched = _winners(run, folds, options, report["champion"]["text"])
        result = {
            "call": len(log.calls(run.path)) + 1,
            "changed_since_first_call": changed,
            "budget": None if options.hindsight else budget,
            "skipped": skipped,
            **_result(run, folds, winners, options, fitted, others, report),
        }
        log.append(run.path, _line(result, protocol, searched))
        name = "validate-hindsight.json" if options.hindsight else "validate.json"
        run_folder.write_json(run.path / name, result)
    return result


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


def _result(
    run: Run,
    folds: Sequence[Fold],
    winners: Sequence[Winner | None],
    options: Options,
    fitted: Sequence[Experiment],
    others: Sequence[Experiment],
    report: dict[str, Any],
) -> dict[str, Any]:
    told, rows, line = [], [], Line(options.quiet)
    for number, (fold, winner) in enumerate(zip(folds, winners, strict=True), 1):
        line.show(f"held-out predictions and known answers of fold {number}/{len(folds)} ({fold.folder}) ...")
        train = fold.train()
        found = rows_of(fold, winner, train, options.against)
        told.append(fold_json(fold, winner, train, found))
        rows += found
    line.close()
    kinds = list(dict.fromkeys(f.kind for f in folds))
    by_kind = {kind: [r for r in rows if r["kind"] == kind] for kind in kinds}
    champions = {kind: [f["champion"]["text"] for f in told if f["kind"] == kind and f["champion"]] for kind in kinds}
    return {
        "engine": __version__,
        "data": data_hash(fitted),
        "seed": run.config.seed,
        "seeds": list(SCORE_SEEDS),
        "run": str(run.path),
        "form_chosen_with_hindsight": options.hindsight,
        "rule": {**asdict(run.config.score), "selection": run.config.search.selection},
        "in_sample": report["fitted_mean"],
        "champion": report["champion"]["key"],
        "folds": told,
        "rows": rows,
        "summary": {kind: summary(found, run.config.seed) for kind, found in by_kind.items()},
        "breakdown": {kind: breakdown(found) for kind, found in by_kind.items()},
        "fields": {
            "front": fields_used(e["text"] for e in report["front"]),
            "folds": {kind: fields_used(texts) for kind, texts in champions.items()},
        },
        "never_fitted": never_fitted(report["champion"]["text"], [e for e in others if e.observed]),
    }


def _line(result: dict[str, Any], protocol: dict[str, Any], searched: int) -> dict[str, Any]:
    """What RUN/validate.jsonl keeps of a call."""
    figures = {
        kind: {name: found["mean_abs_error_pct"][name] for name in MEANS} | {"over": found["experiments"]}
        for kind, found in result["summary"].items()
    }
    return {
        "call": result["call"],
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "engine": result["engine"],
        "data": result["data"],
        "form_chosen_with_hindsight": result["form_chosen_with_hindsight"],
        "kinds": list(result["summary"]),
        "budget": result["budget"],
        "searched_folds": searched,
        "changed_since_first_call": result["changed_since_first_call"],
        "champions": {f["folder"]: f["champion"]["key"] if f["champion"] else None for f in result["folds"]},
        "mean_abs_error_pct": figures,
        "protocol": protocol,
    }
