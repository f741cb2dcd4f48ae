"""The same search under several seeds: how much of a result is luck?

The repeats are ordinary runs OUT/seed-0, OUT/seed-1, ..., and repeats.json lists them. A pilot is a folder of repeats
that ends with a verdict. Language models are asked under limits that the repeats share equally.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from archive.elite import SEED, Elite
from archive.score import Errors
from evaluator.score import summarise
from evolve import __version__
from evolve.output.files import write_json
from evolve.run import folder as run_folder
from evolve.run.config import Config
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
    """A pilot's verdict: a full run, or stop."""

    escalate: bool
    blackbox: Mapping[str, float | None]  # mean absolute errors of the blackbox form, percent
    spread: float  # interquartile range of the repeats' mean errors
    best_seed: Mapping[str, str | float] | None  # name and mean error of the best program from before the search
    text: str  # the verdict in words


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
    pilot: bool
    verdict: PilotVerdict | None  # None unless this is a pilot with a champion
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
    report = report_of(repeats.path, first.config, reports, repeats.pilot)
    if repeats.limits is not None:
        report = replace(report, costs=costs_of(repeats.path, repeats.limits))
    write_json(repeats.path / REPORT, report.to_json())
    return report


def report_of(path: Path, config: Config, reports: Sequence[RunReport], pilot: bool) -> RepeatsReport:
    """The results of the repeats in the folder `path`. `config`: of one repeat; they differ in their seed."""
    repeats = [_repeat(report) for report in reports]
    scored = [repeat for repeat in repeats if repeat.champion]
    fields = Counter(f for repeat in scored if repeat.champion for f in features(repeat.champion.program))
    columns = {name: [repeat.errors[name] for repeat in scored] for name in FIGURES}
    figures = {name: spread(values) for name, values in columns.items() if any(v is not None for v in values)}
    first = next((report for report in reports if report.champion), None)
    blackbox = _means(errors_of(first.baselines["blackbox"], first.fitted)) if first else None
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
        pilot=pilot,
        verdict=verdict(figures["mean_error"], blackbox, first.best_seed) if pilot and first and blackbox else None,
    )


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


def verdict(mean_error: Spread, blackbox: Mapping[str, float | None], seed: Elite | None) -> PilotVerdict:
    """The verdict of a pilot: escalate or stop.

    Escalate if the median of the repeats is below `blackbox` by more than their interquartile range, and not above
    `seed`. blackbox: the mean error of the host's linear form. seed: the best of the programs that every search starts
    from. Both are fitted on the same experiments. The verdict says if the searches are ahead of the seed.
    """
    theirs = blackbox["mean_error"]
    assert (
        theirs is not None
        and mean_error.median is not None
        and mean_error.high is not None
        and mean_error.low is not None
    )
    gain, iqr = theirs - mean_error.median, mean_error.high - mean_error.low
    led = seed is not None and seed.mean_error < mean_error.median  # searches also choose for transfer
    escalate = gain > iqr and not led
    gap = f"{abs(gain):.2f} {'lower' if gain > 0 else 'higher'}"
    why = f"{gap}, {'more than' if gain > iqr else 'not below it by more than'} the spread of {iqr:.2f}"
    advice = "escalate: a full run is worth it" if escalate else "stop: no better than the blackbox form"
    if led and gain > iqr:
        advice = "stop: a program that was only fitted is better"
    errors = f"mean error {mean_error} % over {len(mean_error.values)} repeats against {theirs:.2f} % of blackbox"
    text = f"{errors}: {why} -> {advice}"
    if seed is None:
        return PilotVerdict(escalate, blackbox, iqr, None, text)
    name, ahead = seed.operator.removeprefix(SEED), "are" if seed.mean_error - mean_error.median > iqr else "are not"
    text += f". The best seed, {name}, only fitted: {seed.mean_error:.2f} %, the searches {ahead} ahead of it"
    return PilotVerdict(escalate, blackbox, iqr, {"name": name, "mean_error": seed.mean_error}, text)
