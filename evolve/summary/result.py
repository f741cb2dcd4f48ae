"""The report of a run as values, and as report.json, which is read and written only here."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from archive.champion import OLD_RULES, Rule
from archive.elite import OLD_KEYS, Elite
from archive.population import ChampionErrors
from archive.proposal import OLD_STAGES
from archive.score import Errors
from evolve.output.terminal import command
from evolve.run.folder import JOURNAL, REPORT
from evolve.run.program import with_true_names
from evolve.run.spent import read_spent
from simulator.common.documents import read_json
from simulator.common.json import JsonObject, renamed
from simulator.common.records import fields_to_json, from_json, reader_of, record_class, stored
from simulator.serving.experiment import Experiment

Means = Mapping[str, float | None]  # e2e, ttft, itl and worst3: mean absolute errors in percent
REBUILD = "restore it from a copy, or remove it: `evolve resume` writes it again"
# Times the usual limits of a file: a program on the front takes 130 values, with 1,000 experiments 5,000.
LONGER = 20
LEAST_EARLIER_S = 1.0  # CPU seconds of killed sessions: less is rounding


def errors_of(errors: Iterable[Errors], experiments: Collection[str]) -> list[Errors]:
    return [row for row in errors if row.experiment in experiments]


@dataclass(frozen=True, slots=True)
class Refusals:
    """The proposals that one stage refused."""

    stage: str
    count: int
    why: str  # the reason given for the first of them


def _rule(raw: JsonObject) -> Rule:
    rule: Rule = reader_of(Rule)(raw | {"by": OLD_RULES.get(raw["by"], raw["by"])})
    return rule


def _champion(raw: JsonObject | None) -> Elite | None:
    return with_true_names(Elite.from_json(raw)) if raw else None


def _best(raw: object) -> list[ChampionErrors]:
    pairs = reader_of(tuple[tuple[float | None, float | None], ...])(raw)
    return [
        ChampionErrors(math.inf if mean_error is None else mean_error, group_out) for mean_error, group_out in pairs
    ]


def _best_json(best: Sequence[ChampionErrors]) -> list[list[float | None]]:
    return [[mean_error if math.isfinite(mean_error) else None, group_out] for mean_error, group_out in best]


def _rows(raw: Sequence[JsonObject]) -> tuple[Errors, ...]:
    rows: tuple[Errors, ...] = reader_of(tuple[Errors, ...])([[row[name] for name in Errors._fields] for row in raw])
    return rows


def _rows_json(rows: Sequence[Errors]) -> list[JsonObject]:
    return [row._asdict() for row in rows]


def _by_name(raw: Mapping[str, Sequence[JsonObject]]) -> dict[str, tuple[Errors, ...]]:
    return {name: _rows(rows) for name, rows in raw.items()}


def _by_name_json(rows: Mapping[str, Sequence[Errors]]) -> dict[str, list[JsonObject]]:
    return {name: _rows_json(of_name) for name, of_name in rows.items()}


def _refusals(raw: object) -> list[Refusals]:
    rows = reader_of(tuple[tuple[str, int, str], ...])(raw)
    return [Refusals(OLD_STAGES.get(stage, stage), count, why) for stage, count, why in rows]


def _by_stage(kind: Any, old: Mapping[str, str]) -> Callable[[JsonObject], Any]:
    """The reader of numbers by stage, some of which had `old` names."""
    return lambda raw: reader_of(Mapping[str, kind])(renamed(raw, old))


@record_class
class RunReport:
    """The result of a run. Without a champion, the fields from `errors` to `observed_ms` are empty."""

    engine: str  # version
    data: str  # hash of the fitted experiments
    run: str  # path
    seed: int
    seeds: Sequence[int]  # arrival seeds of the errors
    search_seeds: Sequence[int]  # arrival seeds of the search
    rule: Rule = stored(read=_rule)
    fitted: Sequence[str]  # ids of the fitted experiments
    candidates: int
    proposals: int
    accepted: int  # members of the archive
    champion: Elite | None = stored(read=_champion)
    best: Sequence[ChampionErrors] = stored(read=_best, write=_best_json)  # by generation
    rejected: Sequence[Refusals] = stored(read=_refusals, write=lambda rows: [[r.stage, r.count, r.why] for r in rows])
    verdicts: Mapping[str, int] = stored(read=_by_stage(int, OLD_STAGES))  # outcomes by stage of the cascade
    cpu_s: Mapping[str, float] = stored(read=_by_stage(float, {"transfer": "group_out"}))  # by stage
    polished: int = 0  # scored outcomes that are polished finalists, which do not count as candidates
    ended: str = ""  # why the search ended; "" if its proposer ended it, and in reports of earlier releases
    errors: Sequence[Errors] = stored(default=(), read=_rows, write=_rows_json)  # of every experiment
    fitted_mean: Means = field(default_factory=dict)
    predicted_mean: Means = field(default_factory=dict)
    best_seed: Elite | None = None  # the seed program with the lowest mean error
    front: Sequence[Elite] = ()
    baselines: Mapping[str, Sequence[Errors]] = stored(  # fitted to this data, by name
        default_factory=dict, old=("known",), read=_by_name, write=_by_name_json
    )
    published: Mapping[str, Sequence[Errors]] = stored(default_factory=dict, read=_by_name, write=_by_name_json)
    quality: Mapping[str, str] = field(default_factory=dict)  # of every experiment
    observed_ms: Mapping[str, Sequence[float | None]] = field(default_factory=dict)  # means of E2E, TTFT and ITL
    # totals of calls to language models; empty: offline run
    calls: Mapping[str, Any] = stored(default_factory=dict, key="llm", brief=True)

    def to_json(self) -> JsonObject:
        values = fields_to_json(self)
        cascade = {name: values.pop(name) for name in ("verdicts", "polished", "cpu_s")}
        always = {name: values.pop(name) for name in [*values][: [*values].index("ended")]}
        always |= {"cascade": cascade, "ended": values.pop("ended")}
        return always | {name: value for name, value in values.items() if self.champion or name == "llm"}


def report_json(path: Path) -> Any:
    """The JSON value in a report.json, its champion with today's keys. Raises OSError, and InputError if it is not
    JSON."""
    raw = read_json(path, REBUILD, LONGER, kept=True)
    if isinstance(raw, dict) and isinstance(raw.get("champion"), dict):
        raw["champion"] = renamed(raw["champion"], OLD_KEYS)
    return raw


def read_report(path: Path) -> RunReport:
    """The report in a report.json. Raises OSError, and InputError if the file is damaged."""
    raw = report_json(path)
    cascade = raw.get("cascade") if isinstance(raw, dict) else None
    return from_json(RunReport, raw | cascade if isinstance(cascade, dict) else raw, path, REBUILD)


def finished(folder: Path) -> RunReport | None:
    """The report of a finished run; None if the run is not finished."""
    path = folder / REPORT
    return read_report(path) if path.exists() else None


def cut_off(report: RunReport | None, run: Path, proposals: int) -> str:
    """A line if the run's journal has fewer proposals than its report counts: its end is missing. Else ""."""
    if report is None or report.proposals <= proposals:
        return ""
    goes_on = command("resume", run)
    return (
        f"{run / JOURNAL}: has {proposals:,} of the {report.proposals:,} proposals that {REPORT} counts: "
        f"restore it from a copy, or let `{goes_on}` search the others again"
    )


def observed_means_ms(e: Experiment) -> list[float | None]:
    """The observed means of E2E, TTFT and ITL, ms; None where they were not measured."""
    s = e.observed.summary if e.observed else None
    return [s.e2e_ms.mean, s.ttft_ms.mean, s.itl_ms.mean] if s else [None] * 3


def cpu_by_stage(path: Path, seconds: Mapping[str, float]) -> dict[str, float]:
    """CPU seconds by stage of the run in the folder `path`, whose last session took `seconds`.

    What a session spent that was killed is known for each candidate, but not by stage.
    """
    if not seconds and (report := finished(path)):  # nothing was left to assess
        return dict(report.cpu_s)
    earlier = sum(read_spent(path).values()) - sum(seconds.values())
    known = {name: round(s, 2) for name, s in seconds.items()}
    return known | {"before it was resumed": round(earlier, 2)} if earlier > LEAST_EARLIER_S else known
