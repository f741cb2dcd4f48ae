"""Rows of the board: one for each entry and protocol, the best held-out error first."""

from __future__ import annotations

from collections.abc import Iterator

from evolve.output.columns import Column, flag, number, text, whole
from research.methods.board import BoardRow, Loads
from research.methods.result import IN_SAMPLE

KINDS = {IN_SAMPLE: "in_sample", "models": "lomo", "workloads": "lowo"} | {k: k for k in ("architectures", "hardware")}
_LOADS = {
    "e2e": "mean absolute error of the mean E2E",
    "ttft": "the same of TTFT",
    "itl": "the same of ITL",
    "e2e_p99": "the same of the p99 of E2E",
    "e2e_median": "median of the absolute E2E errors",
    "e2e_worst": "the largest of them",
    "dense": "mean absolute E2E error over the runs of dense models",
    "moe": "the same over those of mixtures of experts",
    "cycles_mape": "mean absolute error of all cycles of the runs held out, none in sample",
}


def _columns() -> Iterator[Column]:
    yield text("name", "name on the board", paper=True)
    yield text("by", "own: its authors' training; ours: our fit; hindsight, search, none or published", paper=True)
    yield text("group", "method, baseline, champion, yours or published")
    yield text("origin", "where a program's form comes from, or what was published where")
    yield text("idea", "idea of the original exercise")
    yield text("what", "what it is")
    yield text("algorithm", "how its constants are found")
    yield text("citations", "what it rests on, separated by semicolons")
    yield whole("constants", "constants that were trained, those of all models together")
    yield whole("times", "measured times that step_time was trained on")
    yield number("cpu_s", "CPU seconds of all trainings")
    yield number("valid_mape_pct", "mean absolute error of the valid cycles")
    yield number("test_mape_pct", "mean absolute error of the test cycles", paper=True)
    yield number("test_r", "correlation on the test cycles")
    for kind in KINDS.values():
        for name, meaning in _LOADS.items():
            paper = name == "e2e" and kind in ("in_sample", "lomo", "lowo")
            yield number(f"{kind}_{name}_pct", f"{meaning} ({kind})", paper=paper)
        for end, which in (("95", "runs"), ("95_by_model", "whole models")):
            for side in ("low", "high"):
                yield number(f"{kind}_e2e_{end}_{side}_pct", f"{side} end of its 95 % interval over {which} ({kind})")
        yield whole(f"{kind}_runs", f"runs that were predicted ({kind})")
        yield whole(f"{kind}_inversions", f"pairs of runs that are ordered wrongly by mean E2E ({kind})")
    yield number("ns_a_step", "nanoseconds of one step time, measured once")
    yield whole("covers_of_5", "of the host's five delays, those that are not always 0")
    yield text("host", "what the host must know: datasheet or kernels")
    yield text("go", "generic, or trees with a file of its ensemble")
    yield whole("programs", "programs that were trained on all runs, several where each model or run has one")
    yield whole("h1_pairs", "runs that h1 compares")
    yield number("h1_features_mape_pct", "mean step error of a ridge on its features")
    yield number("h1_counts_mape_pct", "mean step error of a ridge on raw counts")
    yield number("h1_p", "p of Wilcoxon's signed-rank test over these runs")
    yield number("h1_smallest_p", "the smallest p that so many runs can have")
    yield flag("h1", "features tell a step's time better than raw counts")
    yield whole("h2_passing", "runs within the limits of h2")
    yield flag("h2", "it predicts the loads that it was fitted on", paper=True)
    yield flag("h3", "it predicts runs that it was not fitted on", paper=True)
    yield text("skipped", "why it has neither h2 nor h3")
    yield text("failures", "why trainings came to nothing")


LEADERBOARD = tuple(_columns())


def board_row(row: BoardRow) -> dict[str, object]:
    """The row of LEADERBOARD of an entry under a protocol."""
    same = ("name", "by", "group", "constants", "times", "cpu_s", "test_r", "ns_a_step")
    cells: dict[str, object] = {name: getattr(row, name) for name in same}
    cells |= {name: getattr(row, name) or None for name in ("idea", "what", "algorithm", "skipped")}
    cells |= {"origin": row.note or None, "valid_mape_pct": row.valid_mape, "test_mape_pct": row.test_mape}
    cells |= {"citations": "; ".join(row.citations) or None, "failures": "; ".join(row.failures) or None}
    for kind, prefix in KINDS.items():
        loads = row.of(kind)
        if loads is not None and not row.skipped:
            cells |= _of_kind(prefix, loads)
    if p := row.portability:
        cells |= {"covers_of_5": p.covered, "host": p.host, "go": p.go, "programs": p.programs}
    if h1 := row.h1:
        cells |= {
            "h1_pairs": h1.pairs,
            "h1_features_mape_pct": h1.features_mape,
            "h1_p": h1.p,
            "h1": h1.supported,
            "h1_counts_mape_pct": h1.counts_mape,
            "h1_smallest_p": h1.smallest_p,
        }
    if row.h2:
        cells |= {"h2_passing": row.h2.passing, "h2": row.h2.supported}
    return cells | ({"h3": row.h3.supported} if row.h3 else {})


def _of_kind(prefix: str, loads: Loads) -> dict[str, object]:
    cells: dict[str, object] = {f"{prefix}_{name}_pct": getattr(loads, name) for name in _LOADS}
    for end, interval in (("95", loads.interval_95), ("95_by_model", loads.interval_95_by_model)):
        low, high = interval or (None, None)
        cells |= {f"{prefix}_e2e_{end}_low_pct": low, f"{prefix}_e2e_{end}_high_pct": high}
    return cells | {f"{prefix}_runs": loads.runs, f"{prefix}_inversions": loads.inversions}
