"""What `evolve ingest` prints: progress while it reads, then a row per run, findings, and what to do next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from evolve.ingest.batch import IngestedRun
from evolve.ingest.output import EXPERIMENTS
from evolve.ingest.read.sources import shown_path
from evolve.ingest.read.values import Finding
from evolve.ingest.report import AlphaTargets, BatchCounts, QualityReport, RequestCounts
from evolve.ingest.trace import EXPERIMENTS as TRACES
from evolve.ingest.trace import Converted, assuming
from evolve.output.printing import note, prose, show
from evolve.output.progress import Line
from evolve.output.table import Table, number
from evolve.output.terminal import command, say, suggest
from simulator.common.text import visible

LEGEND = """\
steps: sampled by the engine (share of all); batches: how many of these are reconstructed from journeys exactly as the
engine recorded them; naive: how many if no prompt is ever taken as cached, as published with this format; cycles:
usable pairs of consecutive sampled steps, of all such pairs, and the mean of the usable ones. cached: prompt tokens
found in the prefix cache at first admission; known, inferred, not: admissions of which the engine recorded this, of
which it follows from other records, or of which nothing shows it (taken as not cached); to queue: arrival to queue,
mean and sd; after: finish to departure, mean."""
TRACES_LEGEND = """\
repeated: the share of prompt tokens that an earlier prompt began with, which a large enough prefix cache holds;
windows: the time windows that stand for load stages; measured: requests whose latencies the file has."""
MOST_WARNINGS = 20  # kinds of warnings printed; quality.json has all


@dataclass
class Watch:
    """Shows how far each folder is: bars in a terminal, elsewhere a line now and then. `sizes` are in bytes."""

    sizes: Mapping[str, int]
    bars: Progress | None
    quiet: bool
    read: dict[str, int] = field(default_factory=dict)
    tasks: dict[str, TaskID] = field(default_factory=dict)
    done: int = 0
    line: Line = field(default_factory=Line)

    def on_read(self, run: str, count: int) -> None:
        self.read[run] = self.read.get(run, 0) + count
        if self.bars is not None:
            if run not in self.tasks:
                self.tasks[run] = self.bars.add_task(visible(run), total=self.sizes[run])
            self.bars.advance(self.tasks[run], count)
            if self.read[run] >= self.sizes[run]:
                self.bars.update(self.tasks[run], description=visible(f"{run}: tables"))
        elif not self.quiet:
            self.line.update(self._text)

    def _text(self) -> str:
        mb, of = (sum(x.values()) / 1e6 for x in (self.read, self.sizes))
        return f"{self.done} of {len(self.sizes)} folders, {mb:.0f} of {of:.0f} MB read"

    def on_done(self, run: str) -> None:
        self.done += 1
        if self.bars is not None and run in self.tasks:
            self.bars.remove_task(self.tasks[run])


@contextmanager
def watching(sizes: Mapping[str, int], quiet: bool) -> Iterator[Watch]:
    """A Watch of folders with `sizes` bytes to read; its bars go away at the end."""
    errors = Console(stderr=True, markup=False, emoji=False, highlight=False)
    if quiet or not errors.is_terminal:
        yield Watch(sizes, None, quiet)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=errors, transient=True) as bars:
        yield Watch(sizes, bars, quiet)


def print_runs(runs: Sequence[IngestedRun], findings: Sequence[Finding], out: Path) -> None:
    """Print the runs, why runs are overloaded, findings about them and about the call, and what to do next."""
    reports = [run.report for run in runs]
    for finding in findings:
        prose(f"{finding.source}: {finding.text}")
    traced = [report for report in reports if report.requests.journeys is not None]
    if traced:
        note(LEGEND)
    show(_runs(runs, bool(traced)))
    if traced:
        show(_traced(traced))
    for report in reports:
        for reason in report.reasons:
            prose(f"{report.run}: overloaded, not fitted by default: {reason}")
    missing = _by_text((r.run, f"no {name}: {text}", 1) for r in reports for name, text in r.missing.items())
    for text, (names, _) in missing.items():
        prose(f"{_where(names, reports)}: {text}", "dim")
    of_runs = [(report.run, f) for report in reports for f in report.findings]
    warnings = _by_text((run, f"{f.source}: {f.text}", f.count) for run, f in of_runs if f.severity == "warning")
    for text, (names, count) in list(warnings.items())[:MOST_WARNINGS]:
        times = f" ({count:,} times)" if count > len(names) and f"{count:,}" not in text else ""
        prose(f"{_where(names, reports)}: {text}{times}")
    rest = len(warnings) - MOST_WARNINGS
    notes = any(f.severity == "note" for _, f in of_runs)
    if more := [f"{rest} more kinds of warnings"] * (rest > 0) + ["notes"] * notes:
        prose(f"More in quality.json: {' and '.join(more)}", "dim")
    _print_next(reports, out)


def _print_next(reports: Sequence[QualityReport], out: Path) -> None:
    tables = sorted({table for report in reports for table in report.tables})
    prose(f"Written below {out}: quality.json of every run" + (f", tables {', '.join(tables)}" if tables else ""))
    if not (out / EXPERIMENTS).exists():
        prose("No run has enough for an experiment: see the warnings")
        return
    prose(f"Written: {out / EXPERIMENTS}")
    stepped = any(r.cycles and r.cycles.usable and r.batches and r.experiment for r in reports)
    predict = command("predict", "champion", "--experiments", out / EXPERIMENTS)
    suggest(predict, *[command("score-steps", "champion", "--steps", out)] * stepped)


def _runs(runs: Sequence[IngestedRun], traced: bool) -> Table:
    heads = "run|quality|>completed|>failed"
    rows = []
    for run in runs:
        report = run.report
        cells = [report.run, report.quality + ("" if run.was == "made" else f" ({run.was})")]
        cells += map(_count, _completed_and_failed(report.requests))
        rows.append([*cells, *(_traced_cells(report) if traced else ())])
    return Table.of("Ingested", heads + "|>journeys|>steps|>batches|>naive|>cycles|>mean, ms" * traced, rows)


def _completed_and_failed(requests: RequestCounts) -> tuple[int | None, int | None]:
    """As the load generator reports them, or counted in its rows."""
    if requests.reported_completed is None and requests.client_rows and requests.client_errors is not None:
        failed = sum(requests.client_errors.values())
        return requests.client_rows - failed, failed
    return requests.reported_completed, requests.reported_failed


def _traced_cells(report: QualityReport) -> list[str]:
    requests, sampling, batches, cycles = report.requests, report.sampling, report.batches, report.cycles
    return [
        "-" if requests.journeys is None else f"{requests.usable_journeys:,}/{requests.journeys:,}",
        f"{sampling.sampled_steps:,} ({100 * sampling.step_rate:.1f} %)" if sampling else "-",
        f"{batches.summaries_reproduced:,}/{batches.summaries:,}" if batches else "-",
        f"{batches.summaries_reproduced_as_published:,}" if batches else "-",
        f"{cycles.usable:,}/{cycles.pairs:,}" if cycles else "-",
        number(cycles.mean_cycle_us / 1e3 if cycles and cycles.mean_cycle_us else None, 2, signed=False),
    ]


def _traced(reports: Sequence[QualityReport]) -> Table:
    heads = "run|>cached|>of tokens|>known|>inferred|>not|>to queue, ms|>sd|>after, ms|>of"
    rows = [[report.run, *_cached_cells(report.batches), *_alpha_cells(report.alpha_targets)] for report in reports]
    return Table.of("From journeys", heads, rows)


def _cached_cells(batches: BatchCounts | None) -> list[str]:
    if not batches:
        return ["-"] * 5
    admissions, exact = sum(batches.admissions_by_evidence.values()), batches.exact_admissions
    none = batches.admissions_by_evidence.get("none", 0)
    share = f"{100 * batches.cached_prompt_tokens / batches.prompt_tokens:.1f} %" if batches.prompt_tokens else "-"
    return [share, f"{batches.prompt_tokens:,}", *map(_count, (exact, admissions - exact - none, none))]


def _alpha_cells(alpha: AlphaTargets | None) -> list[str]:
    if not alpha:
        return ["-"] * 4
    before, after = alpha.arrival_to_queue_us, alpha.finish_to_departure_us
    figures = before["mean"], before["sd"], after["mean"]
    return [*(number(us and us / 1e3, 2, signed=False) for us in figures), f"{alpha.requests:,}"]


def _by_text(rows: Iterable[tuple[str, str, int]]) -> dict[str, tuple[list[str], int]]:
    """From (run, text, count): the runs with each text, and its total count."""
    by_text: dict[str, tuple[list[str], int]] = {}
    for run, text, count in rows:
        runs, before = by_text.get(text, ([], 0))
        by_text[text] = ([*runs, run], before + count)
    return by_text


def _where(runs: Sequence[str], reports: Sequence[QualityReport]) -> str:
    if len(runs) == len(reports) > 1:
        return f"all {len(runs)} runs"
    return ", ".join(runs) if len(runs) < 3 else f"{len(runs)} runs ({runs[0]}, ...)"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def print_converted(converted: Iterable[Converted], out: Path) -> None:
    """A row per trace, its notes, and what to do next."""
    rows = []
    every = list(converted)
    for c in every:
        j = c.to_json()
        prompts, answers = (f"{j[k]['mean']:.0f} / {j[k]['p99']:.0f}" for k in ("prompt_tokens", "output_tokens"))
        rate = f"{j['requests'] / j['duration_s']:.2f}" if j["duration_s"] else "-"
        rows.append([c.name, f"{j['requests']:,}", f"{j['duration_s']:,.0f}", rate, prompts, answers,
                     f"{100 * j['repeated_share']:.0f} %", str(j["windows"]), f"{j['measured']:,}"])  # fmt: skip
    heads = "~trace|>requests|>seconds|>requests/s|>prompt mean / p99|>answer mean / p99|>repeated|>windows|>measured"
    prose(TRACES_LEGEND)
    show(Table.of("Traces, lengths in tokens", heads, rows))
    for c in every:
        for text in c.notes:
            note(f"{c.name}: {text}")
        if c.assumed:
            note(f"{c.name}: {assuming(c.source, '')}")
            say(f"  {c.assumed}")  # a line of its own, so that it can be copied
        for reason in c.source.overloaded:
            note(f"{c.name}: overloaded, not fitted by default: {reason}")
        if c.replaced:
            note(f"{c.name}: replaces another trace, or other settings, of that name in {shown_path(out)}")
        if c.experiment and c.experiment.id != c.name:
            note(f"{c.name}: its experiment is {c.experiment.id}, because commas separate ids")
    if any(c.experiment for c in every):
        file = str(out / TRACES)
        fit = [command("fit", "champion", "--experiments", file, "--split", "--out", "mine.py")]
        measured = all(
            c.trace.recorded and not (c.source.overloaded or c.source.simulated) for c in every if c.experiment
        )
        suggest(command("predict", "champion", "--experiments", file), *(fit if measured else []))
    else:
        lacking = "--hardware says" if all(c.source.model for c in every) else "--model and --hardware say"
        note(f"no experiment: {lacking} where the trace is replayed")
