"""The report of a run as values, and as report.json, which is read and written only here."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from archive.champion import OLD_RULES, Rule
from archive.elite import OLD_KEYS, Elite
from archive.population import ChampionErrors
from archive.proposal import OLD_STAGES
from archive.score import Errors
from evolve.output.files import REMEDY
from evolve.run.folder import REPORT
from evolve.run.program import with_true_names
from evolve.run.spent import read_spent
from simulator.common.documents import read_json
from simulator.common.json import JsonObject, renamed
from simulator.common.records import from_json
from simulator.serving.experiment import Experiment

Means = Mapping[str, float | None]  # e2e, ttft, itl and worst3: mean absolute errors in percent
# Times the usual limits of a file: a program on the front takes 130 values, with 1,000 experiments 5,000.
LONGER = 20
LEAST_EARLIER_S = 1.0  # CPU seconds of killed sessions: less is rounding


def errors_of(errors: Iterable[Errors], experiments: Collection[str]) -> list[Errors]:
    """The errors on these experiments."""
    return [row for row in errors if row.experiment in experiments]


@dataclass(frozen=True, slots=True)
class Refusals:
    """The proposals that one stage refused."""

    stage: str
    count: int
    why: str  # the reason given for the first of them


@dataclass(frozen=True, slots=True)
class RunReport:
    """The result of a run. Without a champion, the fields from `errors` to `observed_ms` are empty."""

    engine: str  # version
    data: str  # hash of the fitted experiments
    run: str  # path
    seed: int
    seeds: Sequence[int]  # arrival seeds of the errors
    search_seeds: Sequence[int]  # arrival seeds of the search
    rule: Rule
    fitted: Sequence[str]  # ids of the fitted experiments
    candidates: int
    proposals: int
    accepted: int  # members of the archive
    champion: Elite | None
    best: Sequence[ChampionErrors]  # by generation
    rejected: Sequence[Refusals]
    verdicts: Mapping[str, int]  # outcomes by stage of the cascade
    cpu_s: Mapping[str, float]  # CPU seconds by stage of the cascade
    polished: int = 0  # scored outcomes that are polished finalists, which do not count as candidates
    ended: str = ""  # why the search ended; "" if its proposer ended it, and in reports of earlier releases
    errors: Sequence[Errors] = ()  # of every experiment, fitted or predicted
    fitted_mean: Means = field(default_factory=dict)
    predicted_mean: Means = field(default_factory=dict)
    best_seed: Elite | None = None  # the seed program with the lowest mean error
    front: Sequence[Elite] = ()
    apart_pct: Mapping[int, float] = field(default_factory=dict)  # by id, see evaluator.ensemble.apart_pct
    baselines: Mapping[str, Sequence[Errors]] = field(default_factory=dict)  # baselines fitted to this data, by name
    published: Mapping[str, Sequence[Errors]] = field(default_factory=dict)  # published baselines, by name
    quality: Mapping[str, str] = field(default_factory=dict)  # of every experiment
    observed_ms: Mapping[str, Sequence[float | None]] = field(default_factory=dict)  # means of E2E, TTFT and ITL
    calls: Mapping[str, Any] = field(default_factory=dict)  # totals of calls to language models; empty: offline run

    def to_json(self) -> JsonObject:
        """The report as report.json has it."""
        report: JsonObject = {
            "engine": self.engine,
            "data": self.data,
            "run": self.run,
            "seed": self.seed,
            "seeds": list(self.seeds),
            "search_seeds": list(self.search_seeds),
            "rule": asdict(self.rule),
            "fitted": list(self.fitted),
            "candidates": self.candidates,
            "proposals": self.proposals,
            "accepted": self.accepted,
            "champion": self.champion.to_json() if self.champion else None,
            "best": [
                [mean_error if math.isfinite(mean_error) else None, group_out] for mean_error, group_out in self.best
            ],
            "rejected": [[r.stage, r.count, r.why] for r in self.rejected],
            "cascade": {"verdicts": dict(self.verdicts), "polished": self.polished, "cpu_s": dict(self.cpu_s)},
            "ended": self.ended,
        }
        if self.champion:
            report |= {
                "errors": [row._asdict() for row in self.errors],
                "fitted_mean": dict(self.fitted_mean),
                "predicted_mean": dict(self.predicted_mean),
                "best_seed": self.best_seed.to_json() if self.best_seed else None,
                "front": [elite.to_json() for elite in self.front],
                "apart_pct": {str(id): apart for id, apart in self.apart_pct.items()},
                "baselines": _rows_json(self.baselines),
                "published": _rows_json(self.published),
                "quality": dict(self.quality),
                "observed_ms": {name: list(means) for name, means in self.observed_ms.items()},
            }
        return report | ({"llm": dict(self.calls)} if self.calls else {})

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> RunReport:
        """The report that a report.json holds."""
        always = ("engine", "data", "run", "seed", "seeds", "search_seeds", "fitted")
        counts = ("candidates", "proposals", "accepted")
        with_champion = ("fitted_mean", "predicted_mean", "quality", "observed_ms")
        return cls(
            **{name: raw[name] for name in (*always, *counts)},
            **{name: raw[name] for name in with_champion if name in raw},
            rule=Rule(**raw["rule"]),
            champion=with_true_names(Elite.from_json(raw["champion"])) if raw["champion"] else None,
            best=[
                ChampionErrors(math.inf if mean_error is None else mean_error, group_out)
                for mean_error, group_out in raw["best"]
            ],
            rejected=[Refusals(*row) for row in raw["rejected"]],
            verdicts=raw["cascade"]["verdicts"],
            cpu_s=raw["cascade"]["cpu_s"],
            polished=raw["cascade"].get("polished", 0),  # not in reports of earlier releases
            ended=raw.get("ended", ""),  # nor is this
            errors=[Errors(**row) for row in raw.get("errors", ())],
            best_seed=_elite(raw.get("best_seed")),
            front=[Elite.from_json(row) for row in raw.get("front", ())],
            apart_pct={int(id): apart for id, apart in raw.get("apart_pct", {}).items()},
            baselines=_rows(raw.get("baselines", {})),
            published=_rows(raw.get("published", {})),
            calls=raw.get("llm", {}),
        )


def report_json(path: Path) -> Any:
    """The JSON value in a report.json. Raises OSError, and InputError if it is not JSON."""
    return _renewed(read_json(path, REMEDY, LONGER))


def _renewed(raw: Any) -> Any:
    """A report of an older release under today's names."""
    if not isinstance(raw, dict):
        return raw
    raw = renamed(raw, {"known": "baselines"})
    try:
        if (by := raw["rule"]["by"]) in OLD_RULES:
            raw["rule"] = raw["rule"] | {"by": OLD_RULES[by]}
        raw["rejected"] = [[OLD_STAGES.get(stage, stage), count, why] for stage, count, why in raw["rejected"]]
        raw["cascade"] = raw["cascade"] | {
            "verdicts": renamed(raw["cascade"]["verdicts"], OLD_STAGES),
            "cpu_s": renamed(raw["cascade"]["cpu_s"], {"transfer": "group_out"}),
        }
        for name in ("champion", "best_seed"):
            if raw.get(name):
                raw[name] = renamed(raw[name], OLD_KEYS)
        if "front" in raw:
            raw["front"] = [renamed(elite, OLD_KEYS) for elite in raw["front"]]
    except (KeyError, TypeError, ValueError, AttributeError):
        pass  # whoever reads the values says that they are damaged
    return raw


def read_report(path: Path) -> RunReport:
    """The report in a report.json. Raises OSError, and InputError if the file is damaged."""
    return from_json(RunReport, report_json(path), path)


def observed_means_ms(e: Experiment) -> list[float | None]:
    """The observed means of E2E, TTFT and ITL, ms; None where they were not measured."""
    s = e.observed.summary if e.observed else None
    return [s.e2e_ms.mean, s.ttft_ms.mean, s.itl_ms.mean] if s else [None] * 3


def cpu_by_stage(path: Path, seconds: Mapping[str, float]) -> dict[str, float]:
    """CPU seconds by stage of the run in the folder `path`, whose last session took `seconds`.

    What a session spent that was killed is known for each candidate, but not by stage.
    """
    report = path / REPORT
    if not seconds and report.exists():  # nothing was left to assess
        return dict(read_report(report).cpu_s)
    earlier = sum(read_spent(path).values()) - sum(seconds.values())
    known = {name: round(s, 2) for name, s in seconds.items()}
    return known | {"before it was resumed": round(earlier, 2)} if earlier > LEAST_EARLIER_S else known


def _elite(raw: Mapping[str, Any] | None) -> Elite | None:
    return Elite.from_json(dict(raw)) if raw else None


def _rows(raw: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[Errors]]:
    return {name: [Errors(**row) for row in rows] for name, rows in raw.items()}


def _rows_json(rows: Mapping[str, Sequence[Errors]]) -> dict[str, list[JsonObject]]:
    return {name: [row._asdict() for row in of_name] for name, of_name in rows.items()}
