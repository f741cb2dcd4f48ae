"""The score that others publish: errors of TPOT and TTFT over measured runs, and of their shape.

Shape: each figure over that at the lowest concurrency of the same deployment and lengths, predicted against measured;
the lowest itself is left out. TPOT is what experiments files call the mean ITL: the mean over requests of
(E2E - TTFT) / (output tokens - 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from archive.score import Errors
from evaluator.cells import precision_of
from evaluator.score import SCORE_SEEDS, error_rows, score_set
from evolve.output.columns import Columns, number, text, whole
from evolve.output.printing import prose, show
from evolve.output.table import Table
from evolve.output.terms import legend
from evolve.plan.curve import family
from evolve.run.program import Source
from evolve.run.use import known_before
from simulator.common.errors import InputError
from simulator.common.json import JsonObject
from simulator.common.records import to_json
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment
from simulator.serving.observations import CLEAN

GROUPS: dict[str, Callable[[Experiment], str]] = {
    "model": lambda e: e.model.rsplit("/", 1)[-1],
    "GPU": lambda e: e.hardware,
    "precision": precision_of,
}


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """Mean absolute errors over the runs of a group, and mean signed ones, in percent; None where nothing was
    measured."""

    by: str
    group: str
    runs: int
    tpot_pct: float | None
    tpot_bias_pct: float | None
    ttft_pct: float | None
    ttft_bias_pct: float | None
    e2e_pct: float | None
    shape_runs: int
    tpot_shape_pct: float | None
    ttft_shape_pct: float | None


COLUMNS: Columns = (
    text("by", "what the runs of a row have in common", paper=True),
    text("group", "its value", paper=True),
    whole("runs", "measured runs", paper=True),
    number("tpot_pct", "mean absolute error of TPOT", format=".1f", paper=True),
    number("tpot_bias_pct", "mean signed error of TPOT", format="+.1f"),
    number("ttft_pct", "mean absolute error of TTFT", format=".1f", paper=True),
    number("ttft_bias_pct", "mean signed error of TTFT", format="+.1f"),
    number("e2e_pct", "mean absolute error of E2E; missing: not measured", format=".1f"),
    whole("shape_runs", "runs above the lowest concurrency of theirs"),
    number(
        "tpot_shape_pct", "mean absolute error of TPOT over that at the lowest concurrency", format=".1f", paper=True
    ),
    number("ttft_shape_pct", "the same of TTFT", format=".1f", paper=True),
)


@dataclass(frozen=True)
class RunsScore:
    """The score of a program on the runs `errors`, signed errors in percent. fitted: how many of them it or a program
    that it came from was fitted on; None if nothing says so."""

    program: str
    data: str
    fitted: int | None
    rows: tuple[ScoreRow, ...]
    errors: tuple[Errors, ...]
    seeds: tuple[int, ...] = SCORE_SEEDS

    def to_json(self) -> JsonObject:
        about = {"program": self.program, "data": self.data, "fitted_runs": self.fitted, "seeds": list(self.seeds)}
        runs = [
            dict(zip(("id", "e2e_error_pct", "ttft_error_pct", "tpot_error_pct"), e, strict=True)) for e in self.errors
        ]
        return {**about, "rows": [to_json(row) for row in self.rows], "runs": runs}


def runs_score(source: Source, experiments: Sequence[Experiment]) -> RunsScore:
    """The score on the measured, clean ones of these experiments. Raises InputError without any."""
    runs = [e for e in experiments if e.quality == CLEAN and e.observed and e.observed.summary]
    if not runs:
        raise InputError("cannot score: no experiment has `quality: clean` and `observed` figures. Add measurements.")
    return score_of(source, runs, error_rows(source.complete, score_set(runs)), SCORE_SEEDS)


def score_of(source: Source, runs: Sequence[Experiment], errors: Sequence[Errors], seeds: tuple[int, ...]) -> RunsScore:
    """The score whose errors of each run are known, from replays under these arrival seeds."""
    shapes = _shapes(runs, errors)
    every = range(len(runs))
    rows = [_row("all", "", every, errors, shapes)]
    for by, group_of in GROUPS.items():
        names = [group_of(e) for e in runs]
        rows += [_row(by, name, [i for i in every if names[i] == name], errors, shapes) for name in sorted(set(names))]
    fitted = None if source.record is None else sum(known_before(source.record, e) for e in runs)
    return RunsScore(source.name, data_hash(runs), fitted, tuple(rows), tuple(errors), seeds)


def _shapes(runs: Sequence[Experiment], errors: Sequence[Errors]) -> list[tuple[float | None, float | None]]:
    """The signed errors in percent of the shape of TPOT and TTFT of each run, None where there is none."""
    shapes: list[tuple[float | None, float | None]] = [(None, None)] * len(runs)
    loads: dict[tuple[object, ...], list[int]] = {}
    for i, e in enumerate(runs):
        if e.workload.closed:
            loads.setdefault(family(e), []).append(i)
    for members in loads.values():
        clients = {i: e.workload.stages[0].users or 0 for i in members for e in (runs[i],)}
        least = min(clients.values())
        lowest = [i for i in members if clients[i] == least]
        base = [_mean([_ratio(errors[i], latency) for i in lowest]) for latency in ("itl", "ttft")]
        for i in members:
            if clients[i] > least:
                ratios = [_ratio(errors[i], latency) for latency in ("itl", "ttft")]
                tpot, ttft = (100.0 * (r / b - 1.0) if r and b else None for r, b in zip(ratios, base, strict=True))
                shapes[i] = tpot, ttft
    return shapes


def _ratio(errors: Errors, latency: str) -> float | None:
    """Predicted over observed."""
    error: float | None = getattr(errors, latency)
    return None if error is None else 1.0 + error / 100.0


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None


def _row(
    by: str,
    group: str,
    members: Sequence[int],
    errors: Sequence[Errors],
    shapes: Sequence[tuple[float | None, float | None]],
) -> ScoreRow:
    def sizes(values: Iterable[float | None]) -> float | None:
        return _mean(None if v is None else abs(v) for v in values)

    e2e, ttft, tpot = zip(*(errors[i].figures for i in members), strict=True)
    of_tpot, of_ttft = zip(*(shapes[i] for i in members), strict=True)
    return ScoreRow(
        *(by, group, len(members), sizes(tpot), _mean(tpot), sizes(ttft), _mean(ttft), sizes(e2e)),
        *(sum(x is not None for x in of_tpot), sizes(of_tpot), sizes(of_ttft)),
    )


LEGEND = """TPOT: mean over requests of (E2E - TTFT) / (output tokens - 1), ITL in other tables. Shape: a figure over
that at the lowest concurrency of the same deployment and lengths, predicted against measured, the lowest left out;
shape runs: how many are left. E2E has no error where it was not measured"""


def print_score(score: RunsScore, explain: bool = False) -> None:
    runs = score.rows[0].runs
    show(Table.of_rows(f"Errors of {score.program} on {runs} measured runs, in percent", COLUMNS, score.rows))
    if score.fitted is None:
        prose("No record says which of these runs the program was fitted on.")
    elif score.fitted:
        prose(f"In sample: the program was fitted on {score.fitted} of these runs.")
    if explain:
        legend("bias", "in sample", also=LEGEND)
