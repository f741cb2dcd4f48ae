"""The text output of `evolve ingest`: progress, then a row per run, findings, and the next commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich import progress
from rich.console import Console

from evolve.ingest.batch import IngestedRun
from evolve.ingest.output import EXPERIMENTS
from evolve.ingest.read.sources import shown_path
from evolve.ingest.read.values import Finding
from evolve.ingest.report import AlphaTargets, BatchCounts, QualityReport, RequestCounts
from evolve.ingest.trace import EXPERIMENTS as TRACES
from evolve.ingest.trace import Converted, assuming
from evolve.output.columns import figures, integers, words, wrapped
from evolve.output.printing import note, prose, show
from evolve.output.progress import Line
from evolve.output.table import Table
from evolve.output.terminal import command, say, suggest
from simulator.common.json import JsonObject
from simulator.common.text import visible

LEGEND = """\
steps: sampled by the engine (share of all); batches: those of them that are reconstructed from journeys exactly as the
engine recorded them; naive: the same if no prompt counts as cached, as published with this format; cycles:
usable pairs of consecutive sampled steps, of all such pairs, and the mean of the usable ones. cached: prompt tokens
found in the prefix cache at first admission; known, inferred, not: admissions whose cached tokens the engine
recorded, that follow from other records, or that have no evidence (taken as not cached); to queue: arrival to queue,
mean and sd; after: finish to departure, mean."""
TRACES_LEGEND = """\
repeated: the share of prompt tokens that a large enough prefix cache holds, from earlier prompts;
windows: time windows as load stages; measured: requests with latencies in the file."""
MOST_WARNINGS = 20  # kinds of warnings printed; quality.json has all


@dataclass
class Watch:
    """Shows the progress of each folder: bars in a terminal, elsewhere a line now and then. `sizes` are in bytes."""

    sizes: Mapping[str, int]
    bars: progress.Progress | None
    quiet: bool
    read: dict[str, int] = field(default_factory=dict)
    tasks: dict[str, progress.TaskID] = field(default_factory=dict)
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
    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=errors, transient=True) as bars:
        yield Watch(sizes, bars, quiet)


def print_runs(runs: Sequence[IngestedRun], findings: Sequence[Finding], out: Path, explain: bool = False) -> None:
    """Print the runs, reasons of overload, findings about them and about the call, and the next commands."""
    reports = [run.report for run in runs]
    for finding in findings:
        prose(f"{finding.source}: {finding.text}")
    traced = [report for report in reports if report.requests.journeys is not None]
    show(_runs(runs, bool(traced)))
    if traced:
        show(_traced(traced))
    if traced and explain:
        note(LEGEND)
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
    more = [f"{rest} more kinds of warnings"] if rest > 0 else []
    if any(f.severity == "note" for _, f in of_runs):
        more.append("notes")
    if more:
        prose(f"quality.json also has {' and '.join(more)}.", "dim")
    _print_next(reports, out)


def _print_next(reports: Sequence[QualityReport], out: Path) -> None:
    tables = sorted({table for report in reports for table in report.tables})
    prose(f"Written below {out}: quality.json of every run" + (f", tables {', '.join(tables)}" if tables else ""))
    if not (out / EXPERIMENTS).exists():
        prose("No experiment is written: the lines above name what each run lacks.", "bold")
        return
    prose(f"Written: {out / EXPERIMENTS}")
    stepped = any(r.cycles and r.cycles.usable and r.batches and r.experiment for r in reports)
    predict = command("predict", "champion", "--experiments", out / EXPERIMENTS)
    score_steps = command("fit", "champion", "--score-steps", "--steps", out)
    suggest(predict, *([score_steps] if stepped else []))


def _runs(runs: Sequence[IngestedRun], traced: bool) -> Table:
    columns = [words("run", "quality"), integers("completed", "failed")]
    if traced:
        columns += [figures("", "journeys", "steps", "batches"), integers("naive"), figures("", "cycles")]
        columns += [figures(".2f", "mean, ms")]
    rows = []
    for run in runs:
        report = run.report
        quality = report.quality if run.was == "made" else f"{report.quality} ({run.was})"
        cells = [report.run, quality, *_completed_and_failed(report.requests)]
        rows.append([*cells, *(_traced_cells(report) if traced else ())])
    return Table.of("Ingested", columns, rows)


def _completed_and_failed(requests: RequestCounts) -> tuple[int | None, int | None]:
    """The counts that the load generator reports; without a report, those of its rows."""
    if requests.reported_completed is None and requests.client_rows and requests.client_errors is not None:
        failed = sum(requests.client_errors.values())
        return requests.client_rows - failed, failed
    return requests.reported_completed, requests.reported_failed


def _traced_cells(report: QualityReport) -> list[object]:
    requests, sampling, batches, cycles = report.requests, report.sampling, report.batches, report.cycles
    return [
        None if requests.journeys is None else f"{requests.usable_journeys:,}/{requests.journeys:,}",
        f"{sampling.sampled_steps:,} ({100 * sampling.step_rate:.1f} %)" if sampling else None,
        f"{batches.summaries_reproduced:,}/{batches.summaries:,}" if batches else None,
        batches and batches.summaries_reproduced_as_published,
        f"{cycles.usable:,}/{cycles.pairs:,}" if cycles else None,
        cycles.mean_cycle_us / 1e3 if cycles and cycles.mean_cycle_us else None,
    ]


def _traced(reports: Sequence[QualityReport]) -> Table:
    columns = [words("run"), figures("", "cached"), integers("of tokens", "known", "inferred", "not")]
    columns += [figures(".2f", "to queue, ms", "sd", "after, ms"), integers("of")]
    rows = [[report.run, *_cached_cells(report.batches), *_alpha_cells(report.alpha_targets)] for report in reports]
    return Table.of("From journeys", columns, rows)


def _cached_cells(batches: BatchCounts | None) -> list[object]:
    if not batches:
        return [None] * 5
    admissions, exact = sum(batches.admissions_by_evidence.values()), batches.exact_admissions
    none = batches.admissions_by_evidence.get("none", 0)
    share = f"{100 * batches.cached_prompt_tokens / batches.prompt_tokens:.1f} %" if batches.prompt_tokens else None
    return [share, batches.prompt_tokens, exact, admissions - exact - none, none]


def _alpha_cells(alpha: AlphaTargets | None) -> list[object]:
    if not alpha:
        return [None] * 4
    before, after = alpha.arrival_to_queue_us, alpha.finish_to_departure_us
    return [*(us and us / 1e3 for us in (before["mean"], before["sd"], after["mean"])), alpha.requests]


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


def _lengths(spread: JsonObject) -> str:
    """The mean and p99 of lengths, of which some results have the mean alone."""
    return f"{spread['mean']:.0f}" + (f" / {spread['p99']:.0f}" if "p99" in spread else "")


def print_converted(converted: Iterable[Converted], out: Path, explain: bool = False) -> None:
    """A row per trace, its notes, and the next commands."""
    rows = []
    every = list(converted)
    for c in every:
        j = c.to_json()
        prompts, answers = (_lengths(j[k]) for k in ("prompt_tokens", "output_tokens"))
        seconds, repeated = j.get("duration_s"), j.get("repeated_share")
        load = j["requests"], seconds, j["requests"] / seconds if seconds else None
        shared = None if repeated is None else f"{100 * repeated:.0f} %"
        rows.append([c.name, *load, prompts, answers, shared, j.get("windows"), j["measured"]])
    columns = [wrapped("trace"), integers("requests"), figures(",.0f", "seconds"), figures(".2f", "requests/s")]
    columns += [figures("", "prompt mean / p99", "answer mean / p99", "repeated"), integers("windows", "measured")]
    show(Table.of("Traces, lengths in tokens", columns, rows))
    if explain:
        note(TRACES_LEGEND)
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
        fitted = [c for c in every if c.experiment]
        split = ["--split"] if all(c.table for c in fitted) else []  # means have no later part
        fit = [command("fit", "champion", "--experiments", file, *split, "--out", "mine.py")]
        measured = all(c.source.measured and not (c.source.overloaded or c.source.simulated) for c in fitted)
        suggest(command("predict", "champion", "--experiments", file), *(fit if measured else []))
    else:
        lacking = "--hardware says" if all(c.source.model for c in every) else "--model and --hardware say"
        note(f"no experiment: {lacking} where the trace is replayed")
