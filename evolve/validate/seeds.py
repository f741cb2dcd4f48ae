"""The same search under several seeds: how much of a result is luck?

The repeats are ordinary runs OUT/seed-0, OUT/seed-1, ..., and repeats.json lists them. A pilot is a folder of repeats
that ends with a verdict. Language models are asked under limits that the repeats share equally.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal

from archive.champion import Rule, contenders
from archive.elite import SEED, Elite
from archive.proposal import MODEL, Outcome
from archive.score import Errors
from evaluator.baselines import SHARED
from evaluator.score import summarise
from evolve import __version__
from evolve.output.files import write_json
from evolve.run import folder as run_folder
from evolve.run.config import Config
from evolve.run.config_file import load_config
from evolve.run.folder import REPORT, RunFolder
from evolve.search import baselines
from evolve.search.llm.setup import check
from evolve.search.pool.pool import Pool
from evolve.search.run import start as start_run
from evolve.summary.result import RunReport, errors_of
from evolve.validate import shares
from evolve.validate.costs import Costs, costs_of
from evolve.validate.shares import check_spent, limits_of, share, shared_out, with_totals
from evolve.validate.statistics import Spread, spread
from evolve.validate.study import Member, carry_out, read_about
from simulator.common.errors import InputError, unwritable
from simulator.common.files import plain_folder, write_text
from simulator.common.json import JsonObject
from simulator.common.records import damaged, from_json, record_class, stored, to_json
from simulator.language.measure import features

FILE = "repeats.json"
GENERATIONS = 100  # of a pilot by operators
ASKED = 180  # times in a row by a pilot with language models: an hour, if an answer takes 20 seconds
KEPT = ("data", "search_seeds", "run", "config", "budget", "fitted", "repeats", "forms", "shared_fields")  # of a report
FIGURES = ("mean_error", "worst3", "e2e", "ttft", "itl", "group_out")


def _limits(raw: Mapping[str, float]) -> dict[str, float]:
    return {name: float(raw[name]) for name in shares.LIMITS}


@record_class
class _About:
    """A repeats.json."""

    engine: str  # version
    data: str  # hash of the fitted experiments
    seeds: Sequence[int]
    pilot: bool
    limits: Mapping[str, float] | None = stored(default=None, brief=True, read=_limits)


@dataclass(frozen=True)
class Repeats:
    """Runs that differ only in their seed."""

    path: Path
    runs: tuple[RunFolder, ...]
    pilot: bool  # whether they end with a verdict
    limits: Mapping[str, float] | None = None  # on the language models of all of them together; None without models


@dataclass(frozen=True, slots=True)
class Repeat:
    """The result of one repeat."""

    seed: int
    run: str  # path
    champion: Elite | None
    errors: Mapping[str, float | None]  # FIGURES of the champion over the fitted experiments, percent
    candidates: int
    ended: str  # why its search ended; "" if its proposer ended it

    def to_json(self) -> JsonObject:
        champion = self.champion.to_json() if self.champion else None
        row = {"seed": self.seed, "run": self.run, "champion": champion}
        return {**row, **self.errors, "candidates": self.candidates, "ended": self.ended}


@dataclass(frozen=True, slots=True)
class PilotVerdict:
    """A pilot's verdict on a full run."""

    verdict: Literal["yes", "no"]  # whether it is worth it
    reason: str
    baseline: str  # the one with the lowest mean error
    baseline_mean_error: float  # percent
    gain: float  # its mean error less the median of the repeats' mean errors
    spread: float  # interquartile range of the repeats' mean errors
    beyond_operators_pct: float | None  # median of the repeats; None without language models
    full_run_usd: float | None  # the most that language models of a full run cost at this rate


@dataclass(frozen=True, slots=True)
class RepeatsReport:
    """The results of all repeats of a search."""

    data: str  # hash of the fitted experiments
    arrival_seeds: Sequence[int]  # of the errors
    search_seeds: Sequence[int]  # of the repeats
    run: str  # path
    config: str  # name
    budget: int  # of each repeat
    fitted: Sequence[str]  # ids of the fitted experiments
    repeats: Sequence[Repeat]
    figures: Mapping[str, Spread]  # those of FIGURES that a champion has
    forms: int  # different forms among the champions
    shared_fields: Mapping[str, int]  # how many champions read each field
    pilot: bool = False
    verdict: PilotVerdict | None = None  # None unless this is a pilot with a champion
    costs: Costs | None = None  # of language models, if any are asked

    def to_json(self) -> JsonObject:
        figures = {}
        for name, figure in self.figures.items():
            figures[name] = {**asdict(figure), "best": min(v for v in figure.values if v is not None)}
        kept = {name: to_json(getattr(self, name)) for name in KEPT}
        seeds = {"seeds": list(self.arrival_seeds), "figures": figures}
        pilot = {"pilot": to_json(self.verdict)} if self.pilot else {}
        return {
            "engine": __version__,
            **kept,
            **seeds,
            **pilot,
            **({"llm": self.costs.to_json()} if self.costs else {}),
        }


def start(
    config: Config, repeats: int, out: Path | None, pilot: bool = False, note: Callable[[str], None] = lambda line: None
) -> Repeats:
    """New run folders for the seed of `config` and the seeds after it, before anything is computed.

    The limits of `config` on language models are those of all repeats together; `note` is called with lines about the
    models and the shares. Raises InputError for an `out` that exists or cannot be written, and for a limit that leaves
    a repeat not one question.
    """
    if out and out.exists():
        if run_folder.is_run(out):
            raise InputError(f"{out}: is a single run: choose another --out for repeats")
        raise run_folder.taken(out, is_repeats(out))
    seeds = list(range(config.seed, config.seed + repeats))
    limits = None
    if config.search.proposer != "offline":
        limits = limits_of(config.llm)
        for line in (*check(config, repeats), shares.shares_line(config.llm, repeats, "repeats")):
            note(line)
        config = replace(config, llm=share(config.llm, repeats))
    try:
        path = run_folder.new_folder(out)
    except OSError as e:
        raise unwritable(out or run_folder.RUNS, e, "choose another --out") from None
    try:
        runs = tuple(start_run(replace(config, seed=seed), path / f"seed-{seed}") for seed in seeds)
    except InputError:
        with suppress(OSError):  # some runs are there
            path.rmdir()
        raise
    write_json(path / FILE, to_json(_About(__version__, runs[0].about.data, seeds, pilot, limits)))
    return Repeats(path, runs, pilot, limits)


def is_repeats(path: Path) -> bool:
    return (path / FILE).is_file()


def reopen(path: Path, raised: Mapping[str, float] | None = None) -> Repeats:
    """The repeats in the folder `path`, with the limits `raised` instead of those that they had.

    Raises InputError if repeats.json or one of the runs is damaged. With `raised`, also if no language model is asked,
    or if a repeat has spent more than its new share.
    """
    raw = read_about(path / FILE, f"{path}: is not a folder of repeats (no {FILE})")
    about = from_json(_About, raw, path / FILE)
    if not about.seeds:
        raise damaged(path / FILE, "seeds", "must not be empty")
    runs = tuple(run_folder.open_run(plain_folder(path / f"seed-{seed}")) for seed in about.seeds)
    if about.limits is None:
        if raised:
            raise shares.no_models(path, raised)
        return Repeats(path, runs, about.pilot)
    llm = with_totals(runs[0].config.llm, {**about.limits, **(raised or {})})
    if raised:
        check_spent(runs, len(runs), llm)
        write_json(path / FILE, to_json(replace(about, limits=limits_of(llm))))
    # Shares are renewed each time, because a process may have died between this file and the runs' settings.
    return Repeats(path, tuple(shared_out(run, share(llm, len(runs))) for run in runs), about.pilot, limits_of(llm))


def work(repeats: Repeats, pool: Pool) -> RepeatsReport:
    """The report of the repeats, each searched from where its journal ends; written to report.json too."""
    first = repeats.runs[0]
    fitted, others = first.experiments()
    for run in repeats.runs:
        run_folder.check_same(run, fitted)
    members = [Member(run.path, run.config) for run in repeats.runs]
    baselines.run_baselines(first, fitted, others, pool)  # depend only on the data: the first one's are for all
    for run in repeats.runs[1:]:
        write_text(run.path / baselines.FILE, (first.path / baselines.FILE).read_text("utf-8"))
    reports = carry_out(members, "repeat", pool, full=True, then=lambda number, member, progress: member.report)
    costs = costs_of(repeats.path, repeats.limits) if repeats.limits is not None else None
    report = report_of(repeats.path, first.config, reports, costs)
    if repeats.pilot:
        report = replace(report, pilot=True, verdict=_verdict(repeats, report, reports))
    write_json(repeats.path / REPORT, report.to_json())
    return report


def pilot_generations(config: Config) -> int:
    """The generations of a pilot. With language models they are fewer: a generation waits for its rounds of questions,
    one after another, and for judges."""
    llm = config.llm
    return GENERATIONS if config.search.proposer == "offline" else max(ASKED // (llm.rounds + bool(llm.judges)), 1)


def report_of(path: Path, config: Config, reports: Sequence[RunReport], costs: Costs | None) -> RepeatsReport:
    """The results of the repeats in the folder `path`. `config`: of one repeat; they differ in their seed."""
    repeats = [_repeat(report) for report in reports]
    scored = [repeat for repeat in repeats if repeat.champion]
    fields = Counter(f for repeat in scored if repeat.champion for f in features(repeat.champion.program))
    columns = {name: [repeat.errors[name] for repeat in scored] for name in FIGURES}
    figures = {name: spread(values) for name, values in columns.items() if any(v is not None for v in values)}
    return RepeatsReport(
        data=reports[0].data,
        arrival_seeds=reports[0].seeds,
        search_seeds=[report.seed for report in reports],
        run=str(path),
        config=config.name,
        budget=config.budget,
        fitted=reports[0].fitted,
        repeats=repeats,
        figures=figures,
        forms=len({repeat.champion.key for repeat in scored if repeat.champion}),
        shared_fields=dict(sorted(fields.items(), key=lambda item: (-item[1], item[0]))),
        costs=costs,
    )


def _verdict(repeats: Repeats, report: RepeatsReport, reports: Sequence[RunReport]) -> PilotVerdict | None:
    """The verdict of a finished pilot; None if no repeat has a champion."""
    first = next((one for one in reports if one.champion), None)
    if first is None:
        return None
    errors = {name: _means(errors_of(first.baselines[name], first.fitted))["mean_error"] for name in SHARED}
    if first.best_seed:
        errors[f"the starting program {first.best_seed.operator.removeprefix(SEED)}"] = first.best_seed.mean_error
    known = {name: error for name, error in errors.items() if error is not None}
    beyond = usd = None
    if report.costs:
        beyond = [beyond_operators_pct(run.outcomes(), run.config.score.rule) for run in repeats.runs]
        total, candidates = report.costs.total, sum(one.candidates for one in reports)
        usd = load_config("default").budget * (total.usd + total.possibly_usd) / candidates
    return verdict(report.figures["mean_error"], known, beyond, usd)


def _repeat(report: RunReport) -> Repeat:
    errors: dict[str, float | None] = dict.fromkeys(FIGURES)
    if report.champion:
        errors |= _means(errors_of(report.errors, report.fitted))
        errors |= {"worst3": report.fitted_mean["worst3"], "group_out": report.champion.group_out}
    return Repeat(report.seed, report.run, report.champion, errors, report.candidates, report.ended)


def _means(rows: Sequence[Errors]) -> dict[str, float | None]:
    score = summarise(rows)
    mean_error = score.mean_error if score.mean_error == score.mean_error else None
    return {"mean_error": mean_error, "e2e": score.e2e, "ttft": score.ttft, "itl": score.itl}


def verdict(
    mean_error: Spread, baselines: Mapping[str, float], beyond: Sequence[float] | None, usd: float | None
) -> PilotVerdict:
    """The verdict of a pilot: yes if the median of the repeats is below the best of `baselines`, mean errors by name,
    by more than their interquartile range.

    beyond: `beyond_operators_pct` of each repeat, and usd: the cost of a full run, if language models proposed.
    """
    assert mean_error.median is not None and mean_error.high is not None and mean_error.low is not None
    name = min(baselines, key=lambda name: baselines[name])
    gain, iqr = baselines[name] - mean_error.median, mean_error.high - mean_error.low
    side = "below" if gain > 0 else "above"
    reason = (
        f"the median mean error of {len(mean_error.values)} repeats, {mean_error.median:.2f} %, is {abs(gain):.2f} "
        f"{side} that of the best baseline, {name}; the spread to exceed is {iqr:.2f}"
    )
    models = median(beyond) if beyond else None
    if models is not None:
        more = f"lowers the selection score {models:.1f} % below what operators reached" if models else "gained nothing"
        reason += f"; what models proposed {more}{'' if models else ' beyond operators'}"
    if usd is not None:
        reason += f"; a full run costs at most {usd:.2f} USD at this rate"
    return PilotVerdict("yes" if gain > iqr else "no", reason, name, baselines[name], gain, iqr, models, usd)


def beyond_operators_pct(outcomes: Sequence[Outcome], rule: Rule) -> float:
    """How far the selection score of the best program that a model proposed, or that descends from such a one, is below
    that of all others, in percent of the latter; 0 if it is not."""
    of_models, elites = set[int](), [outcome.elite for outcome in outcomes if outcome.elite]
    for elite in elites:
        if elite.operator.startswith(MODEL) or not of_models.isdisjoint(elite.parents):
            of_models.add(elite.id)
    rivals, rule = contenders(elites, rule)
    ours = min((rule.selection_score(e) for e in rivals if e.id in of_models), default=math.inf)
    others = min((rule.selection_score(e) for e in rivals if e.id not in of_models), default=math.inf)
    return 100.0 * (others - ours) / others if ours < others < math.inf else 0.0
