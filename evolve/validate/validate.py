"""`evolve validate`: held-out errors of a run, with the whole search repeated inside every fold.

A fold's held-out runs are removed before anything else happens: its search, its choice of a champion and its constants
see only the rest. Then the champion, unchanged, predicts what was held out.

Forms that language models proposed are not asked for again, unless `ask_models` says so: every fold fits, scores and
chooses among the forms that the run's journal recorded. Their authors had seen all data, so nothing is called held out
without saying that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from archive.elite import Elite
from evaluator.cells import cell_of
from evaluator.intervals import Residual, disagreements
from evaluator.score import SCORE_SEEDS
from evolve.output.files import write_json
from evolve.output.progress import ProgressTimes
from evolve.output.terminal import command
from evolve.run import folder as run_folder
from evolve.run import validations
from evolve.run.folder import RunFolder
from evolve.run.lock import lock
from evolve.run.program import CHAMPION, Source
from evolve.run.trust import TRUST_FILE, Trust, ensemble_of
from evolve.run.validations import FILES, RECORDED, REFITTED, SEARCHED
from evolve.search.llm.setup import check
from evolve.search.pool.pool import Pool
from evolve.search.pool.process import WorkerCall
from evolve.summary import markdown as summary_page
from evolve.summary.result import RunReport, finished
from evolve.validate import held_out
from evolve.validate.costs import costs_of, runs_in
from evolve.validate.folds import Fold, Winner, folder_of, folds_of, refit, winner_of
from evolve.validate.held_out import RANKED, FoldResult, HeldOutRow, log_ratios
from evolve.validate.ranks import Ranking, Selection, best_of, rankings, selection, selects
from evolve.validate.shares import check_spent, limits_of, share, shared_out, with_totals
from evolve.validate.statistics import breakdown, fields_used, summary
from evolve.validate.study import Finished, Member, carry_out
from evolve.validate.validation import Validation, line_of
from simulator.common.errors import InputError
from simulator.language.parse import parse
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment

FOLDERS = {SEARCHED: "validate", RECORDED: "validate-recorded"}  # of the folds, by where their forms come from


@dataclass(frozen=True)
class Options:
    """The settings of a validation."""

    kinds: tuple[str, ...] = ()  # of folds; empty: those of the run's configuration
    budget: int | None = None  # candidates of each fold's search; None: that of the run's configuration
    hindsight: bool = False  # refit the run's champion in every fold instead of searching
    ask_models: bool = False  # ask the run's language models in every fold, instead of taking the recorded forms
    limits: Mapping[str, float] = field(default_factory=dict)  # replace those of the configuration: max_usd, ...
    against: Source | None = None  # a program to compare with, refitted in every fold
    again: bool = False  # validate even if settings have changed since the first call


def validate(run: RunFolder, options: Options, pool: Pool) -> Validation:
    """The held-out errors of a finished run; a pool carries out the searches of all folds.

    They are written to RUN/validate.json; those of recorded forms or of the run's champion to other files, FILES. A
    line about the call goes to RUN/validate.jsonl. Ctrl-C leaves every fold intact, and the same call continues from
    there. Raises InputError for an unfinished run, for changed settings, and if nothing can be held out.
    """
    fitted, others = run.experiments()
    report, champion = _report_and_champion(run, fitted)
    settings = run.config.validate
    forms = _forms(run, options)
    budget = options.budget or (run.config.budget if forms == RECORDED else settings.budget)
    folds, skipped = folds_of(run.config, options.kinds or settings.folds, budget, fitted)
    searched_with = None if forms == REFITTED else budget
    with lock(run.path):
        protocol = validations.protocol(run, searched_with)
        changed = validations.changed(run.path, protocol, forms)
        if changed and not options.again:
            raise InputError(
                f"{run.path}: settings have changed since the first validate ({'; '.join(changed)}): "
                "change them back, or give --again, and the output will say so"
            )
        shared = _shared(run, folds, options) if forms == SEARCHED and _models(run) else None
        judged = _judged(run, shared.folds if shared else folds, forms, options.against, champion.text, pool)
        results, rows = [j.result for j in judged], [row for j in judged for row in j.rows]
        kinds, call = list(dict.fromkeys(fold.kind for fold in folds)), len(validations.calls(run.path)) + 1
        by_kind = {kind: [row for row in rows if row.kind == kind] for kind in kinds}
        trust = _trust(champion, ensemble_of(run, champion.key), rows, others, call)
        winners = {kind: [r.winner for r in results if r.winner and r.fold.kind == kind] for kind in kinds}
        validation = Validation(
            call=call,
            changed=changed,
            forms=forms,
            budget=searched_with,
            skipped=skipped,
            data=data_hash(fitted),
            seed=run.config.seed,
            run=str(run.path),
            rule={**asdict(run.config.score), "selection": run.config.search.selection},
            in_sample=report.fitted_mean,
            champion=champion.key,
            folds=results,
            rows=rows,
            summary={kind: summary(of_kind, run.config.seed) for kind, of_kind in by_kind.items()},
            breakdown={kind: breakdown(of_kind) for kind, of_kind in by_kind.items()},
            front_fields=fields_used(elite.program for elite in report.front),
            fold_fields={kind: fields_used(winner.program for winner in of_kind) for kind, of_kind in winners.items()},
            never_fitted=_never_fitted(report, others),
            selection={} if forms == REFITTED else _selection(judged, run.config.seed),
            ranking=_ranking(by_kind),
            intervals=trust.coverage(),
            costs=costs_of(run.path / FOLDERS[forms], shared.limits) if shared else None,
        )
        validations.append(run.path, line_of(validation, protocol, sum(j.searched for j in judged)))
        write_json(run.path / FILES[forms], validation.to_json())
        summary_page.write(run, report)  # which counts the calls, and says where their forms came from
        if forms == SEARCHED:  # residuals of forms that saw what is held out would make intervals too narrow
            write_json(run.path / TRUST_FILE, trust.to_json())
    return validation


def _report_and_champion(run: RunFolder, fitted: Sequence[Experiment]) -> tuple[RunReport, Elite]:
    """The report of the run, and its champion.

    Raises InputError for a shipped run, an unfinished one, one without a champion, and for changed experiments.
    """
    if run.shipped:
        shows = command("report", CHAMPION, "--only", "accuracy")
        raise InputError(
            f"{run.path}: is a shipped run, which was validated already (docs/search.md): "
            f"`{shows}` shows its held-out errors"
        )
    run_folder.check_same(run, fitted)
    report = finished(run.path)
    if report is None:
        raise InputError(f"{run.path}: is not finished: `{command('resume', run.path)}` finishes it")
    if report.champion is None:
        raise InputError(f"{run.path}: no candidate could be scored: `{command('resume', run.path)}` shows why")
    return report, report.champion


def _trust(
    champion: Elite, members: tuple[str, ...], rows: Sequence[HeldOutRow], others: Sequence[Experiment], call: int
) -> Trust:
    return Trust(
        champion.key,
        members,
        inside=tuple(row.residual for row in rows if row.spread and not row.outside),
        outside=tuple(row.residual for row in rows if row.spread and row.outside),
        saturated=_saturated(champion.text, members, others),
        reach=_reach(rows),
        call=call,
    )


def _ranking(by_kind: Mapping[str, Sequence[HeldOutRow]]) -> list[Ranking]:
    """The rank correlation of each figure of RANKED over runs and load stages, by kind of fold."""
    found = []
    for kind, of_kind in by_kind.items():
        stages = [stage for row in of_kind for stage in row.stages]
        for unit, compared in (("runs", [row.whole for row in of_kind]), ("load stages", stages)):
            for figure in RANKED if kind != "stages" else ():
                found += rankings(compared, kind, unit, figure)
    return found


def _models(run: RunFolder) -> bool:
    return run.config.search.proposer != "offline"


def _forms(run: RunFolder, options: Options) -> str:
    """The source of the folds' forms. Raises InputError if the run has no models to ask."""
    if options.ask_models and not _models(run):
        raise InputError(f"{run.path}: calls no language model: leave out --ask-models")
    if options.hindsight:
        return REFITTED
    return SEARCHED if options.ask_models or not _models(run) else RECORDED


@dataclass(frozen=True, slots=True)
class _Shared:
    """The folds with their shares of the limits on language models, which hold for all folds of a run together."""

    folds: Sequence[Fold]
    limits: Mapping[str, float]


def _shared(run: RunFolder, folds: Sequence[Fold], options: Options) -> _Shared:
    """The folds of this call with their shares. Folds of earlier calls count too, whatever kind they are of.

    Raises InputError if a fold has spent more than its share already.
    """
    llm, parent = with_totals(run.config.llm, options.limits), run.path / FOLDERS[SEARCHED]
    before = runs_in(parent)
    paths = {fold.folder: folder_of(parent, fold) for fold in folds}
    searches = len({*paths.values(), *(earlier.path for earlier in before)})
    check_spent(before, searches, llm)
    if any(finished(path) is None for path in paths.values()):
        check(replace(run.config, llm=llm), searches)
    each = share(llm, searches)
    for earlier in before:
        if earlier.path in paths.values():
            shared_out(earlier, each)
    return _Shared([replace(f, config=replace(f.config, llm=each)) for f in folds], limits_of(llm))


def _reach(rows: Sequence[HeldOutRow]) -> dict[str, float]:
    most: dict[str, float] = {}
    for row in rows:
        for name, factor in row.factors_beyond.items():
            most[name] = max(most.get(name, 1.0), factor)
    return most


def _saturated(champion: str, ensemble: Sequence[str], others: Sequence[Experiment]) -> tuple[Residual, ...]:
    program, held = parse(champion), [e for e in others if e.observed]
    doubts = disagreements(program, [parse(text) for text in ensemble], held, SCORE_SEEDS[0])
    of_runs = zip(held, held_out.held_out_errors(program, held, False), doubts, strict=True)
    return tuple(
        Residual(e.id, e.id, log_ratios(row.errors), d.spread, e.workload.closed, cell_of(e))
        for e, row, d in of_runs
        if d.saturated > 0.0
    )


def _never_fitted(report: RunReport, others: Sequence[Experiment]) -> list[held_out.Unfitted]:
    assert report.champion
    return held_out.never_fitted(report.champion.text, [e for e in others if e.observed])


@dataclass(frozen=True, slots=True)
class JudgedFold:
    """A fold's result, and the rows that it comes from.

    searched: whether this call searched. selects: whether the search's selection score selects, see ranks.selects.
    """

    result: FoldResult
    rows: Sequence[HeldOutRow]
    searched: bool = False
    selects: float | None = None


def _judged(
    run: RunFolder, folds: Sequence[Fold], forms: str, against: Source | None, champion: str, pool: Pool
) -> list[JudgedFold]:
    if forms == REFITTED:
        pool.line.show(f"refit and held-out errors of {len(folds)} folds ...")
        refits = [pool.submit(WorkerCall(_refit, (champion, fold, fold.train(), against))) for fold in folds]
        errors = [refitted.result() for refitted in refits]
        pool.line.close()
        return [JudgedFold(result, rows) for result, rows in errors]

    def finish(number: int, search: Finished, progress: ProgressTimes) -> JudgedFold:
        fold, path = folds[number], members[number].folder
        progress.stage("held-out errors, baselines")
        winner = winner_of(path, search.report)
        errors = pool.submit(WorkerCall(_held_out, (fold, winner, fold.train(), against)))
        correlation = None if fold.last_stage else pool.submit(WorkerCall(selects, (*best_of(path), fold.held)))
        result, rows = errors.result()
        return JudgedFold(result, rows, search.searched, correlation.result() if correlation else None)

    forms_of = "../.." if forms == RECORDED else ""
    members = [Member(folder_of(run.path / FOLDERS[forms], fold), fold.config, forms_of) for fold in folds]
    return carry_out(members, "fold", pool, full=False, then=finish)


def _refit(
    champion: str, fold: Fold, train: Sequence[Experiment], against: Source | None
) -> tuple[FoldResult, list[HeldOutRow]]:
    return _held_out(fold, refit(champion, train), train, against)


def _held_out(
    fold: Fold, winner: Winner | None, train: Sequence[Experiment], against: Source | None
) -> tuple[FoldResult, list[HeldOutRow]]:
    rows = held_out.rows_of(fold, winner, train, against)
    return held_out.result_of(fold, winner, train, rows), rows


def _selection(judged: Sequence[JudgedFold], seed: int) -> dict[str, Selection]:
    """By kind of fold, whether the selection score selects; the folds have been searched."""
    correlations: dict[str, dict[str, float | None]] = {}
    for j in judged:
        if not j.result.fold.last_stage:
            correlations.setdefault(j.result.fold.kind, {})[j.result.fold.name] = j.selects
    return {kind: selection(of_kind, seed) for kind, of_kind in correlations.items()}
