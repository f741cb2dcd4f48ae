"""Repeats and comparisons of engines, printed as tables and a few sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from evolve import __version__
from evolve.output.columns import figures, words
from evolve.output.printing import prose, show
from evolve.output.table import Table, arrival_seeds, row, section
from evolve.output.terminal import command, say, suggest
from evolve.output.terms import legend
from evolve.run.config import Config
from evolve.run.folder import open_run
from evolve.validate.costs import spent_notes, spent_table
from evolve.validate.seeds import Repeat, RepeatsReport
from evolve.validate.statistics import Spread

TITLES = {name: name.upper() for name in ("mean_error", "worst3", "e2e", "ttft", "itl", "group_out")}
TITLES |= {"mean_error": "mean error", "worst3": "worst-3 E2E", "group_out": "group-out"}


def print_repeats(report: RepeatsReport, explain: bool = False) -> None:
    """Print a pilot's verdict, the best repeat's champion, a table of all champions, and the fields they share."""
    scored = [repeat for repeat in report.repeats if repeat.champion]
    if not scored:
        say("No repeat scored a candidate.")
        suggest(command("resume", report.repeats[0].run))
        return
    if report.verdict:
        prose(f"Worth a full run: {report.verdict.verdict}, because {report.verdict.reason}.", "bold")
    best = min(scored, key=lambda repeat: (repeat.errors["mean_error"] or 0.0, repeat.seed))
    assert best.champion
    counts = f"proposal {best.champion.id}, seed {best.seed}"
    say("\nChampion of the best repeat", "bold", end="")
    say(f" ({counts}; chosen with hindsight)\n")
    say(best.champion.text)
    show(repeats_table(report))
    if explain:
        legend("mean error", "worst-3 E2E", "group-out", "in sample")
    n = len(report.fitted)
    lines = [
        *_shared(report.shared_fields, len(scored)),
        f"Distinct forms: {report.forms} of {len(scored)}.",
        *([] if report.costs else _endings(report.repeats)),  # the table of costs says it of each search
        "",
        f"In sample: mean absolute errors of the champions on the {n} runs they were fitted on, over "
        f"{arrival_seeds(report.arrival_seeds)}.",
        f"Repeats: {report.run} (engine {__version__}, data {report.data})",
    ]
    if report.costs:
        show(spent_table(report.costs))
        lines += ["", *spent_notes(report.costs, f"{report.run}/ledger.csv", command("resume", report.run))]
    prose("\n".join(lines))
    suggest(_following(report, best.run), command("show", f"{best.run}:{best.champion.id}"))


def _endings(repeats: Sequence[Repeat]) -> list[str]:
    """Why the searches ended, a line for each reason."""
    by_reason: dict[str, list[Repeat]] = {}
    for repeat in repeats:
        by_reason.setdefault(repeat.ended, []).append(repeat)
    return [
        f"Ended: {reason} (seed {', '.join(str(repeat.seed) for repeat in mine)})."
        for reason, mine in by_reason.items()
        if reason
    ]


def _following(report: RepeatsReport, best: str) -> str:
    """The command to go on with: of a pilot the full run, or a fit of the shipped champion instead of one."""
    if report.verdict is None:
        return command("resume", best)
    run = open_run(Path(best))
    known = run.own_options
    if report.verdict.verdict == "yes":
        return command("run", *known, *(_asking(run.config) if report.verdict.beyond_operators_pct else []))
    return command("fit", "champion", *known, *[] if known else ["--id", ",".join(report.fitted)], "--out", "mine.py")


def _asking(config: Config) -> list[str]:
    """The options by which another run asks the models of this one."""
    server = ["--api-base", config.llm.api_base] if config.llm.api_base else []
    return [
        "--proposer",
        config.search.proposer,
        *(x for model in config.llm.models for x in ("--llm", model)),
        *server,
    ]


def repeats_table(report: RepeatsReport) -> Table:
    """A row for the champion of each repeat, then the median, the quartiles and the lowest figure of each column."""
    names = [name for name in TITLES if name in report.figures]
    columns = [
        words("repeat"),
        figures("d", "champion", "operations", "constants"),
        figures(".2f", *(TITLES[n] for n in names)),
    ]
    rows: list[tuple[object, ...]] = []
    for repeat in report.repeats:
        best = repeat.champion
        counts = (best.id, best.operations, best.constants) if best else (None, None, None)
        rows.append((f"seed {repeat.seed}", *counts, *(repeat.errors[name] for name in names)))
    summary: list[tuple[str, Sequence[object]]] = [
        ("median", [report.figures[n].median for n in names]),
        ("quartiles", [_quartiles(report.figures[n]) for n in names]),
        ("lowest", [min(v for v in report.figures[n].values if v is not None) for n in names]),
    ]
    averages = [row(label, "", "", "", *cells, style="bold") for label, cells in summary]
    return Table.of("Champions of the repeats, errors in percent", columns, [*section(rows), *averages])


def _quartiles(figure: Spread) -> str:
    return "-" if figure.low is None else f"{figure.low:.2f}-{figure.high:.2f}"


def _shared(fields: Mapping[str, int], repeats: int) -> list[str]:
    """Which fields all champions read, then which ones fewer of them do, a line each."""
    lines = []
    for count in range(repeats, 0, -1):
        names = [name for name, n in fields.items() if n == count]
        which = f"all {repeats}" if count == repeats else f"{count} of {repeats}"
        lines.append(f"Fields in {which} champions: {', '.join(names) or 'none'}")
    return lines
