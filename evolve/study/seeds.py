"""The same search under several seeds: how much of a result is luck?

A folder of runs, OUT/seed-0 and so on, each a run like any other, and repeats.json that says which belong together. A
pilot is such a folder too, and ends with a verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from archive.elite import Elite
from evaluator.score import Errors, summarise
from evolve import __version__
from evolve.report.result import RunReport
from evolve.run import folder as run_folder
from evolve.run.config import Config
from evolve.run.data import chosen
from evolve.run.folder import Run
from evolve.search.run import start as start_run
from evolve.study.statistics import Spread, spread
from evolve.study.study import Member, carry_out, read_about
from simulator.errors import InputError
from simulator.language.measure import features
from simulator.language.parse import parse

FILE = "repeats.json"
FIGURES = ("joint", "worst3", "e2e", "ttft", "itl", "transfer")


@dataclass(frozen=True)
class Repeats:
    """Runs that differ in their seed only. `pilot`: they end with a verdict."""

    path: Path
    runs: tuple[Run, ...]
    pilot: bool


@dataclass(frozen=True, slots=True)
class Repeat:
    """What one repeat reached: its champion and its mean absolute errors (FIGURES) over the fitted runs, percent."""

    seed: int
    run: str
    champion: Elite | None
    errors: Mapping[str, float | None]
    candidates: int

    def to_json(self) -> dict[str, Any]:
        """The repeat as report.json has it."""
        champion = self.champion.to_json() if self.champion else None
        row = {"seed": self.seed, "run": self.run, "champion": champion}
        return {**row, **self.errors, "candidates": self.candidates}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a pilot is worth a full run. `blackbox`: its mean absolute errors; `spread`: the repeats' interquartile
    range of the joint error."""

    escalate: bool
    blackbox: Mapping[str, float | None]
    spread: float
    text: str


@dataclass(frozen=True, slots=True)
class RepeatsReport:
    """What the repeats of a search reached together. figures: of FIGURES those that every champion has. forms: how many
    different champions. shared_fields: how many champions read each field. verdict: of a pilot."""

    data: str
    arrival_seeds: Sequence[int]
    search_seeds: Sequence[int]
    run: str
    config: str
    budget: int
    fitted: Sequence[str]
    repeats: Sequence[Repeat]
    figures: Mapping[str, Spread]
    forms: int
    shared_fields: Mapping[str, int]
    pilot: bool
    verdict: Verdict | None

    def to_json(self) -> dict[str, Any]:
        """The report as report.json has it."""
        figures = {}
        for name, figure in self.figures.items():
            figures[name] = {**asdict(figure), "best": min(v for v in figure.values if v is not None)}
        return {
            "engine": __version__,
            "data": self.data,
            "seeds": list(self.arrival_seeds),
            "search_seeds": list(self.search_seeds),
            "run": self.run,
            "config": self.config,
            "budget": self.budget,
            "fitted": list(self.fitted),
            "repeats": [repeat.to_json() for repeat in self.repeats],
            "figures": figures,
            "forms": self.forms,
            "shared_fields": dict(self.shared_fields),
            **({"pilot": asdict(self.verdict) if self.verdict else None} if self.pilot else {}),
        }


def start(config: Config, repeats: int, out: Path | None, pilot: bool = False) -> Repeats:
    """The run folders of seeds `config.seed` and those after it; nothing is computed yet.

    Raises InputError if `out` exists or cannot be written.
    """
    path = out or run_folder.next_path()
    if path.exists():
        raise InputError(f"{path}: exists already: choose another --out, or `evolve resume {path}`")
    seeds = list(range(config.seed, config.seed + repeats))
    runs = tuple(start_run(replace(config, seed=seed), path / f"seed-{seed}") for seed in seeds)
    about = {"engine": __version__, "data": runs[0].about["data"], "seeds": seeds, "pilot": pilot}
    run_folder.write_json(path / FILE, about)
    return Repeats(path, runs, pilot)


def is_repeats(path: Path) -> bool:
    """Whether a folder holds repeats."""
    return (path / FILE).is_file()


def reopen(path: Path) -> Repeats:
    """The repeats in `path`. Raises InputError if the file that names them, or one of them, is damaged."""
    about = read_about(path / FILE, f"{path}: is not a folder of repeats (no {FILE})")
    try:
        seeds, pilot = list(about["seeds"]), bool(about["pilot"])
    except (KeyError, TypeError):
        raise InputError(f"{path / FILE}: is damaged: restore it from a copy") from None
    return Repeats(path, tuple(run_folder.open_run(path / f"seed-{seed}") for seed in seeds), pilot)


def work(repeats: Repeats, workers: int, quiet: bool = False) -> RepeatsReport:
    """Every run to its end, from where it stopped, then what they have in common (report.json)."""
    first = repeats.runs[0]
    fitted, _ = chosen(first.config.data)
    for run in repeats.runs:
        run_folder.check_same(run, fitted)
    members = [Member(run.path, run.config) for run in repeats.runs]
    done = carry_out(members, "repeat", workers, quiet, full=True, known=first.path / "known.json")
    report = report_of(repeats.path, first.config, [d.report for d in done], repeats.pilot)
    run_folder.write_json(repeats.path / "report.json", report.to_json())
    return report


def report_of(path: Path, config: Config, reports: Sequence[RunReport], pilot: bool) -> RepeatsReport:
    """What the repeats in `path` reached together. `config`: what they have in common but for the seed."""
    repeats = [_repeat(report) for report in reports]
    scored = [repeat for repeat in repeats if repeat.champion]
    fields = Counter(f for repeat in scored if repeat.champion for f in features(parse(repeat.champion.text)))
    columns = {name: [repeat.errors[name] for repeat in scored] for name in FIGURES}
    figures = {name: spread(values) for name, values in columns.items() if any(v is not None for v in values)}
    blackbox = next((_means(r.known["blackbox"], r.fitted) for r in reports if r.champion), None)
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
        verdict=verdict(figures["joint"], blackbox) if pilot and blackbox else None,
    )


def _repeat(report: RunReport) -> Repeat:
    errors: dict[str, float | None] = dict.fromkeys(FIGURES)
    if report.champion:
        errors |= _means(report.errors, report.fitted)
        errors |= {"worst3": report.fitted_mean["worst3"], "transfer": report.champion.transfer}
    return Repeat(report.seed, report.run, report.champion, errors, report.candidates)


def _means(rows: Sequence[Errors], fitted: Sequence[str]) -> dict[str, float | None]:
    """Mean absolute E2E, TTFT and ITL errors of these experiments in percent, and their mean, joint."""
    score = summarise([row for row in rows if row.experiment in fitted])
    joint = score.joint if score.joint == score.joint else None
    return {"joint": joint, "e2e": score.e2e, "ttft": score.ttft, "itl": score.itl}


def verdict(joint: Spread, blackbox: Mapping[str, float | None]) -> Verdict:
    """Escalate where the median joint error of the repeats is below that of the host's blackbox form, fitted on the
    same runs, by more than the repeats' interquartile range; else stop."""
    theirs = blackbox["joint"]
    assert theirs is not None and joint.median is not None and joint.high is not None and joint.low is not None
    lower, apart = theirs - joint.median, joint.high - joint.low
    escalate = lower > apart
    gap = f"{abs(lower):.2f} {'lower' if lower > 0 else 'higher'}"
    why = f"{gap}, {'more than' if escalate else 'not below it by more than'} the spread of {apart:.2f}"
    says = "escalate: a full run is worth it" if escalate else "stop: no better than the blackbox form"
    text = f"joint error {joint} % over {len(joint.values)} repeats against {theirs:.2f} % of blackbox: {why} -> {says}"
    return Verdict(escalate, blackbox, apart, text)
