"""What `evolve ingest` prints: a row per run, why runs are overloaded, and what else there is to know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from evolve.ingest.output import EXPERIMENTS
from evolve.ingest.sources.findings import Finding
from evolve.report.table import console, new_table, number, show

LEGEND = """\
steps: sampled by the engine (share of all); batches: of these, how many are put together from journeys just as the
engine recorded them; naive: how many if prompts are taken as never cached, as this format's owners publish it; cycles:
usable pairs of consecutive sampled steps, of all such pairs, and the mean of the usable ones. cached: prompt tokens
found in the prefix cache at first admission; known: admissions by how that is known, recorded by the engine, inferred,
or not at all (taken as not cached); to queue: arrival to queue, mean and sd; after: finish to departure, mean."""
FEW = 20  # kinds of findings printed; quality.json has all


def print_ingested(reports: Sequence[dict[str, Any]], said: Sequence[Finding], out: Path) -> None:
    """The table of runs, reasons, findings, and what to do next."""
    to = console()

    def line(text: str, style: str | None = None) -> None:
        to.print(text, markup=False, soft_wrap=True, style=style)

    for finding in said:
        line(f"{finding.source}: {finding.text}")
    traced = any("journeys" in r["requests"] for r in reports)
    show(to, _runs(reports, traced))
    if traced:
        show(to, _traced([r for r in reports if "journeys" in r["requests"]]))
        line(LEGEND, "dim")
    for r in reports:
        for reason in r["reasons"]:
            line(f"{r['run']}: overloaded, not fitted by default: {reason}")
    missing = _by_text((r["run"], f"no {name}: {text}", 1) for r in reports for name, text in r["missing"].items())
    for text, (runs, _) in missing.items():
        line(f"{_where(runs, reports)}: {text}", "dim")
    found = [(r["run"], f) for r in reports for f in r["findings"]]
    warnings = _by_text(
        (run, f"{f['source']}: {f['text']}", f["count"]) for run, f in found if f["severity"] == "warning"
    )
    for text, (runs, count) in list(warnings.items())[:FEW]:
        line(
            f"{_where(runs, reports)}: {text}"
            + (f" ({count:,} times)" if count > len(runs) and f"{count:,}" not in text else "")
        )
    rest = len(warnings) - FEW
    more = [f"{rest} more kinds of warnings"] * (rest > 0) + ["notes"] * any(f["severity"] == "note" for _, f in found)
    if more:
        line(f"More in quality.json: {' and '.join(more)}", "dim")
    _next(line, reports, out)


def _next(line: Any, reports: Sequence[dict[str, Any]], out: Path) -> None:
    tables = sorted({table for r in reports for table in r["tables"]})
    line(f"Written below {out}: quality.json of every run" + (f", tables {', '.join(tables)}" if tables else ""))
    if not (out / EXPERIMENTS).exists():
        line("No run holds enough for an experiment: see the warnings")
        return
    line(f"Written: {out / EXPERIMENTS}")
    line(f"Next: `evolve predict champion --experiments {out / EXPERIMENTS}`")
    if any(r["cycles"] and r["cycles"]["usable"] and r["batches"] and r["experiment"] for r in reports):
        line(f"Next: `evolve score-steps champion --steps {out}`")


def _runs(reports: Sequence[dict[str, Any]], traced: bool) -> Any:
    heads = "run|quality|>completed|>failed"
    table = new_table("Ingested", heads + "|>journeys|>steps|>batches|>naive|>cycles|>mean, ms" * traced)
    for r in reports:
        q, sampling, batches, cycles = r["requests"], r["sampling"], r["batches"], r["cycles"]
        completed, failed = q["reported_completed"], q["reported_failed"]
        if completed is None and "client_rows" in q:
            failed = sum(q["client_errors"].values())
            completed = q["client_rows"] - failed
        cells = [
            r["run"],
            r["quality"] + ("" if r["was"] == "made" else f" ({r['was']})"),
            _count(completed),
            _count(failed),
        ]
        if traced:
            cells += [
                f"{q['usable_journeys']:,}/{q['journeys']:,}" if "journeys" in q else "-",
                f"{sampling['sampled_steps']:,} ({100 * sampling['step_rate']:.1f} %)" if sampling else "-",
                f"{batches['summaries_reproduced']:,}/{batches['summaries']:,}" if batches else "-",
                f"{batches['summaries_reproduced_as_published']:,}" if batches else "-",
                f"{cycles['usable']:,}/{cycles['pairs']:,}" if cycles else "-",
                number(cycles["mean_cycle_us"] / 1e3 if cycles and cycles["mean_cycle_us"] else None, 2, signed=False),
            ]
        table.add_row(*cells)
    return table


def _traced(reports: Sequence[dict[str, Any]]) -> Any:
    table = new_table("From journeys", "run|>cached|>of tokens|>known|>inferred|>not|>to queue, ms|>sd|>after, ms|>of")
    for r in reports:
        b, alpha = r["batches"], r["alpha_targets"]
        cells = ["-"] * 5
        if b:
            found = b["admissions_by_evidence"]
            every, none = sum(found.values()), found.get("none", 0)
            share = f"{100 * b['cached_prompt_tokens'] / b['prompt_tokens']:.1f} %" if b["prompt_tokens"] else "-"
            known = b["exact_admissions"], every - b["exact_admissions"] - none, none
            cells = [share, f"{b['prompt_tokens']:,}", *map(_count, known)]
        times = ["-"] * 4
        if alpha:
            before, after = alpha["arrival_to_queue_us"], alpha["finish_to_departure_us"]
            figures = before["mean"], before["sd"], after["mean"]
            times = [*(number(us / 1e3, 2, signed=False) for us in figures), f"{alpha['requests']:,}"]
        table.add_row(r["run"], *cells, *times)
    return table


def _by_text(rows: Iterable[tuple[str, str, int]]) -> dict[str, tuple[list[str], int]]:
    """Runs of which the same is said, and how often in all."""
    out: dict[str, tuple[list[str], int]] = {}
    for run, text, count in rows:
        runs, before = out.get(text, ([], 0))
        out[text] = ([*runs, run], before + count)
    return out


def _where(runs: Sequence[str], reports: Sequence[dict[str, Any]]) -> str:
    if len(runs) == len(reports) > 1:
        return f"all {len(runs)} runs"
    return ", ".join(runs) if len(runs) < 3 else f"{len(runs)} runs ({runs[0]}, ...)"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
