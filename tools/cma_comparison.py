"""Searches whose fits use Gauss-Newton (`search.fit: auto`) against searches whose fits use CMA-ES (`search.fit: cma`).

    python tools/cma_comparison.py [--candidates 300] [--seeds 3] [--out build/cma]

Each search has one worker and a folder of its own below --out, named METHOD-SEED. Finished ones are not repeated, and
an interrupted one goes on where it stopped. Prints a table in Markdown. CPU seconds are those of the assessments; the
polish of the finalists, which does not depend on the method, is not part of those per candidate.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

from paths import ROOT

import evolve
from archive.champion import selection_score
from evolve.output.columns import figures as of_figures
from evolve.output.columns import words
from evolve.output.printing import markdown
from evolve.output.table import Row, Table
from evolve.run.config import Config
from evolve.run.config_file import load_config, to_mapping
from evolve.summary.result import RunReport, read_report

METHODS = ("auto", "cma")
HEADS = (
    "seed",
    "candidates",
    "CPU s",
    "CPU ms per candidate",
    "mean error %",
    "group-out %",
    "selection score %",
    "worst E2E %",
    "operations",
    "constants",
)
DIGITS = (0, 0, 0, 2, 2, 2, 1, 1, 1)  # after the point, of the figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=300, help="of each search")
    parser.add_argument("--seeds", type=int, default=3, help="searches of each method")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "cma", help="folder of the searches")
    args = parser.parse_args()
    reports: dict[str, list[RunReport]] = {method: [] for method in METHODS}
    for seed in range(args.seeds):
        for method in METHODS:
            reports[method].append(searched(method, seed, args.candidates, args.out / f"{method}-{seed}"))
            print(f"{method}, seed {seed}: done", file=sys.stderr, flush=True)
    print(markdown(table(reports)))
    return 0


def searched(method: str, seed: int, candidates: int, folder: Path) -> RunReport:
    """The report of one search, carried out or continued if it is not finished."""
    report = folder / "report.json"
    if not report.exists():
        if folder.exists():
            evolve.resume(folder, workers=1)
        else:
            folder.parent.mkdir(parents=True, exist_ok=True)
            evolve.search(to_mapping(settings(method)), budget=candidates, seed=seed, workers=1, out=folder)
    return read_report(report)


def settings(method: str) -> Config:
    """The default configuration with this method."""
    config = load_config("default")
    return replace(config, search=replace(config.search, fit=method))


def figures(report: RunReport) -> tuple[float, ...]:
    """The figures of a search, in the order of DIGITS."""
    best, all_s = report.champion, sum(report.cpu_s.values())
    if best is None or best.group_out is None:
        raise SystemExit(
            f"{report.run}: the search has no champion with a leave-group-out error: give more --candidates"
        )
    each_ms = 1000.0 * (all_s - report.cpu_s.get("polish", 0.0)) / report.candidates
    errors_pct = best.mean_error, best.group_out, selection_score(best.mean_error, best.group_out), best.score.worst_e2e
    return report.candidates, all_s, each_ms, *errors_pct, best.operations, best.constants


def table(reports: dict[str, list[RunReport]]) -> Table:
    """A row for each search, then one for the means of each method."""
    rows: list[Row] = []
    means: list[Row] = []
    for method, of_method in reports.items():
        found = [figures(report) for report in of_method]
        rows += [row(method, str(report.seed), of_one) for report, of_one in zip(of_method, found, strict=True)]
        means.append(row(method, "mean", [mean(column) for column in zip(*found, strict=True)], whole=False))
    return Table.of("", [words("method"), of_figures("", *HEADS)], [*rows, *means])


def row(method: str, seed: str, found: Sequence[float], *, whole: bool = True) -> Row:
    """The row of a search; of means if not `whole`."""
    digits = DIGITS if not whole else (*DIGITS[:-2], 0, 0)
    return Row((method, seed, *(f"{x:.{n}f}" for x, n in zip(found, digits, strict=True))))


if __name__ == "__main__":
    sys.exit(main())
