"""A run from start to report: data, workers, search, champion, baselines."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from archive.champion import best_seed, champion
from archive.elite import SEED
from archive.journal import Journal
from archive.proposal import ENDING, MODEL, Outcome, is_outcome
from archive.score import Errors, Score
from evaluator import baselines
from evaluator.assess import foreknown
from evaluator.score import SCORE_SEEDS, error_rows, score_set, summarise
from evolve import __version__
from evolve.output.files import write_json
from evolve.output.progress import ProgressTimes
from evolve.output.terminal import warn_once
from evolve.run import folder as run_folder
from evolve.run.checkpoint import best_programs, checkpoints_in, is_checkpoint
from evolve.run.config import AUTO, Config
from evolve.run.data import chosen, located
from evolve.run.folder import About, RunFolder, first_population
from evolve.run.lock import lock
from evolve.run.program import load, seed_texts, with_true_names
from evolve.run.ranges import ranges_of
from evolve.run.spent import Spent
from evolve.search.assessor import Live, Remembering
from evolve.search.baselines import run_baselines
from evolve.search.llm import ledger
from evolve.search.llm.calls import call_log
from evolve.search.llm.dispatch import passed
from evolve.search.llm.documents import kept
from evolve.search.llm.ledger import beyond_budget
from evolve.search.llm.panel import statistics
from evolve.search.llm.proposer import LanguageModels, hidden_of, shown_of, write_research
from evolve.search.llm.setup import check, keep_prompts
from evolve.search.pool.pool import Pool
from evolve.search.proposer import Operators, Proposer, RecordedProposals, to_the_end
from evolve.search.search import Search
from evolve.search.workers import workers_of
from evolve.summary import markdown as summary
from evolve.summary.llm import arms
from evolve.summary.recommendation import conclusions
from evolve.summary.research import Research
from evolve.summary.result import Refusals, RunReport, cpu_by_stage, cut_off, finished, observed_means_ms
from simulator.common.errors import InputError
from simulator.common.json import JsonObject
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment, simulated
from simulator.serving.facts import has_curves


def start(
    config: Config, out: Path | None, note: Callable[[str], None] = lambda line: None, forms_of: str = ""
) -> RunFolder:
    """A new run folder for this configuration, before anything is computed.

    `note` is called with lines about the language models, if there are any: prices, and the size of questions.
    `forms_of`: see About; such a run calls no language model.

    Raises InputError if nothing can be fitted, or if a language model of the configuration cannot be called.
    """
    asks = config.search.proposer != "offline" and not forms_of
    if asks:
        for line in check(config):
            note(line)
    config = replace(config, data=located(config.data))
    fitted, _ = chosen(config.data)
    own = own_programs(config)
    if config.search.fields == "all":
        for e in fitted:
            if not has_curves(e.facts):
                raise InputError(
                    f"experiment {e.id!r}: {e.hardware} has no measured kernels: write `fields: datasheet` under "
                    "`search:` (or use --config datasheet), or name the tables of a similar GPU as `kernels` of its "
                    "hardware"
                )
    about = About(
        engine=__version__,
        data=data_hash(fitted),
        fitted=tuple(e.id for e in fitted),
        ranges=ranges_of(fitted),
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        simulated=simulated(fitted),
        forms_of=forms_of,
    )
    run = run_folder.create(out, config, about)
    run_folder.write_start(run, own)
    if asks:
        keep_prompts(run)
    return run


def own_programs(config: Config) -> list[tuple[str, str]]:
    """The user's programs that a search starts from, (name, text), under distinct names.

    Raises InputError for a program that cannot be read, exceeds the caps, or says what its constants are.
    """
    shipped, programs = dict(seed_texts()), dict[str, str]()
    for spec, text in (named for start in config.search.start for named in _named_by(start, config)):
        stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(spec.removesuffix(".py")).name)
        name = next(x for n in count(1) if (x := stem if n == 1 else f"{stem}-{n}") not in {**shipped, **programs})
        programs[name] = text
    return list(programs.items())


def _named_by(spec: str, config: Config) -> Sequence[tuple[str, str]]:
    """(name, text) of the program that a setting `start` names, or of the best ones of an OpenEvolve checkpoint."""
    if is_checkpoint(Path(spec)):
        return best_programs(Path(spec), config.caps).programs
    if inside := checkpoints_in(Path(spec)):
        raise InputError(f"{spec}: is a folder of checkpoints: name one, such as {inside[-1]}")
    source = load(spec, config.caps)
    if refused := foreknown(source.program):
        raise InputError(f"{spec}: {refused.why}")
    return [(spec, source.text)]


def work(run: RunFolder, pool: Pool, progress: ProgressTimes | None = None, full: bool = True) -> RunReport:
    """The report of a run, searched by a pool from where its journal ends to the end of its budget.

    The report is written to report.json too. With `full` it has the baselines and the errors on experiments that are
    not fitted. A fold of a validation goes without: its report must show no held-out error. Ctrl-C leaves the journal
    intact, and `evolve resume` continues from it.
    """
    fitted, others = run.experiments()
    run_folder.check_same(run, fitted)
    with lock(run.path):
        past = run.outcomes()
        if missing := cut_off(finished(run.path), run.path, len(past)):
            warn_once(missing)
        progress = progress or ProgressTimes(run.config.budget, pool.line, pool.state)
        progress.resumed = len(past)
        search, answers, calls = _search(run, past, fitted, others, pool, progress, full)
        run_folder.write_programs(run, [with_true_names(elite) for elite in search.population.archive.members()])
        report = _report(run, search, fitted, others if full else [], answers, calls)
        write_json(run.path / run_folder.REPORT, report.to_json())
        summary.write(run, report)
        if calls:
            outcomes = run.outcomes()
            ideas = Research(hidden_of(run.config, fitted))
            ideas.tell(outcomes)
            ending = conclusions(report, outcomes, search.population.archive.members())
            write_research(run.path, run.config, ideas, kept(run.path), ending)
    return report


def _search(
    run: RunFolder,
    past: Sequence[Outcome],
    fitted: Sequence[Experiment],
    others: Sequence[Experiment],
    pool: Pool,
    progress: ProgressTimes,
    full: bool,
) -> tuple[Search, dict[str, list[Errors]], JsonObject]:
    """The finished search, the baselines (with `full`), and the totals of calls to language models, if any."""
    config = run.config
    remembered = {outcome.proposal.id: outcome for outcome in past}
    workers = workers_of(pool, fitted, config)
    spent, journal = Spent(run.path), Journal(run.journal)
    models: LanguageModels | None = None
    calls: JsonObject = {}
    try:
        operators = Operators(config, workers, remembered)
        proposer: Proposer = operators
        if run.about.forms_of:
            source = run_folder.open_run(run.path / run.about.forms_of)
            proposer = RecordedProposals(source.outcomes(), config.search.batch * config.search.islands)
            config = to_the_end(config)
        elif config.search.proposer != "offline":
            shown = shown_of(config, fitted)
            seen = workers_of(pool, shown, config) if len(shown) < len(fitted) else workers
            models = LanguageModels(run, journal, operators, workers, seen, fitted, remembered, progress.asking)
            proposer = models
            if models.lost:
                progress.stage(f"possibly paid, since a process died before an answer came: {', '.join(models.lost)}")
            progress.models = models.status
        assessor = Remembering(remembered, Live(config, workers))
        population = first_population(config)
        search = Search(config, population, proposer, assessor, journal, progress.update, spent.add)
        shipped = [] if config.search.only_start else seed_texts()
        first = [*run_folder.read_start(run), *shipped]
        if untried := [name for name, _ in first[config.budget :]]:
            progress.line.note(
                f"a budget of {config.budget} is smaller than the number of programs that the search starts from, "
                f"{len(first)}: these may not be tried: {', '.join(untried)}"
            )
        search.run(first)
        if models and not models.stopped:
            models.end(search.population)
        if not (models and models.stopped):  # a run stopped by a limit may be resumed with a higher one
            if config.search.trim:
                progress.stage("dropping terms that do not earn their place")
                search.trim()
            if config.search.finalists:
                progress.stage("polishing the constants of the finalists")
            search.polish()
        answers: dict[str, list[Errors]] = {}
        if full:
            progress.stage("baselines")
            answers = run_baselines(run, fitted, others, pool)
    finally:
        progress.close()
        if models:
            models.close()
        journal.close()
        spent.close()
        if models:
            calls = _ledger(run, models.stopped or models.exhausted)
    if models:
        calls["ended"] = calls["stopped"] or search.ended
        if config.search.proposer == AUTO:
            calls["arms"] = arms(run.outcomes(), config.score.rule)
    return search, answers, calls


def _report(
    run: RunFolder,
    search: Search,
    fitted: Sequence[Experiment],
    others: Sequence[Experiment],
    answers: dict[str, list[Errors]],
    calls: JsonObject,
) -> RunReport:
    population, score = search.population, run.config.score
    archive = population.archive
    best = champion(archive.members(), score.rule)
    report = RunReport(
        engine=__version__,
        data=run.about.data,
        run=str(run.path),
        seed=run.config.seed,
        seeds=SCORE_SEEDS,
        search_seeds=score.arrival_seeds,
        rule=score.rule,
        fitted=[e.id for e in fitted],
        candidates=population.fitted,
        proposals=population.proposals,
        accepted=len(archive.members()),
        champion=with_true_names(best) if best else None,
        best=population.best,
        rejected=_refusals(search),
        verdicts=dict(population.stages.most_common()),
        cpu_s=cpu_by_stage(run.path, search.seconds),
        polished=search.polished,
        ended="" if calls.get("stopped") else search.ended,
        calls=calls,
    )
    if best is None:
        return report
    everything = [*fitted, *others]
    rows = error_rows(best.program, score_set(everything))
    return replace(
        report,
        errors=rows,
        fitted_mean=_means(summarise(rows[: len(fitted)])),
        predicted_mean=_means(summarise(rows[len(fitted) :])),
        best_seed=best_seed(archive.by_id.values(), score.rule),
        front=archive.front_by_size(),
        baselines=answers,
        published=baselines.published(),
        quality={e.id: e.quality for e in everything},
        observed_ms={e.id: observed_means_ms(e) for e in everything},
    )


def _ledger(run: RunFolder, stopped: str) -> JsonObject:
    """The totals of the calls to language models, each of which is written to ledger.csv.

    `stopped`: why the models ended the search before its end, or "".
    """
    lines = run.calls()
    beyond = beyond_budget(run)
    ledger.write(run.path / ledger.FILE, lines, beyond)
    # where only models should propose, operators propose in place of models that are not available
    outcomes = filter(is_outcome, run.each_line() if run.config.search.proposer == "llm" else ())
    substitutes = sum(not line["operator"].startswith((MODEL, SEED, *ENDING)) for line in outcomes)
    ending: JsonObject = {
        "replayed": run.about.replayed,
        "substitutes": substitutes,
        "stopped": stopped,
        "passed": passed(call_log(lines), run.config.llm),
        "beyond_budget": sum(left.programs for left in beyond.values()),
        "beyond_budget_usd": sum(left.usd for left in beyond.values()),
    }
    if run.config.llm.judges:  # the parents of what models proposed may be from operators
        ending["reviews"] = statistics([*run.each_line()])
    return ledger.summary(lines) | ending


def _refusals(search: Search) -> list[Refusals]:
    """The refusals of each stage, the most frequent stage first."""
    counts = search.population.stages
    refusals = [Refusals(stage, counts[stage], why) for stage, why in search.refusals.items()]
    return sorted(refusals, key=lambda r: (-r.count, r.stage))


def _means(score: Score) -> dict[str, float | None]:
    worst3 = None if math.isnan(score.worst3) else score.worst3
    return {"e2e": score.e2e, "ttft": score.ttft, "itl": score.itl, "worst3": worst3}
