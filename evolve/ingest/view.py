"""What `evolve ingest` prints: a row per run, why runs are overloaded, and what else there is to know."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evolve.ingest.many import EXPERIMENTS
from evolve.ingest.sources.findings import Finding
from evolve.report import console, new_table, number, show

LEGEND = """\
steps: sampled by the engine (share of all); batches: of these, how many the corrected reconstruction gives as the
engine recorded them, and how many the published one; cycles: usable pairs of consecutive sampled steps, of all such."""
FEW = 12  # findings printed of a run; quality.json has all


def print_ingested(reports: Sequence[dict[str, Any]], said: Sequence[Finding], out: Path) -> None:
    """The table of runs, reasons, findings, and what to do next."""
    to = console()
    for finding in said:
        to.print(f"{finding.source}: {finding.text}", markup=False, soft_wrap=True)
    show(to, _table(reports))
    if any(r["sampling"] for r in reports):
        to.print(LEGEND, style="dim", markup=False)
    for r in reports:
        for reason in r["reasons"]:
            to.print(f"{r['run']}: overloaded, not fitted by default: {reason}", markup=False, soft_wrap=True)
    for r in reports:
        _findings(to, r)
    written = (out / EXPERIMENTS).exists()
    if written:
        to.print(f"Written: {out / EXPERIMENTS}, tables and quality.json below {out}", markup=False, soft_wrap=True)
        to.print(f"Next: `evolve predict champion --experiments {out / EXPERIMENTS}`", markup=False, soft_wrap=True)
    else:
        to.print(f"No run holds enough for an experiment; tables and quality.json are below {out}", markup=False)
    if any(r["cycles"] and r["cycles"]["usable"] for r in reports):
        to.print(f"Next: `evolve score-steps champion --steps {out}`", markup=False, soft_wrap=True)


def _table(reports: Sequence[dict[str, Any]]) -> Any:
    table = new_table("Ingested", "run|quality|>completed|>failed|>journeys|>steps|>batches|>published|>cycles|"
                      ">mean cycle ms|tables")  # fmt: skip
    for r in reports:
        q, sampling, batches, cycles = r["requests"], r["sampling"], r["batches"], r["cycles"]
        completed, failed = q["reported_completed"], q["reported_failed"]
        if completed is None and "client_rows" in q:
            failed = sum(q["client_errors"].values())
            completed = q["client_rows"] - failed
        steps = f"{sampling['sampled_steps']:,} ({100 * sampling['step_rate']:.1f} %)" if sampling else "-"
        of = f"{batches['summaries_reproduced']:,}/{batches['summaries']:,}" if batches else "-"
        plain = f"{batches['summaries_reproduced_as_published']:,}" if batches else "-"
        pairs = f"{cycles['usable']:,}/{cycles['pairs']:,}" if cycles else "-"
        mean = cycles["mean_cycle_us"] / 1e3 if cycles and cycles["mean_cycle_us"] else None
        journeys = f"{q['usable_journeys']:,}/{q['journeys']:,}" if "journeys" in q else "-"
        table.add_row(
            r["run"], r["quality"] + (" (as before)" if r["reused"] else ""), _count(completed), _count(failed),
            journeys, steps, of, plain, pairs, number(mean, 2, signed=False), ", ".join(r["tables"]) or "none",
        )  # fmt: skip
    return table


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _findings(to: Any, r: dict[str, Any]) -> None:
    for source, text in r["missing"].items():
        to.print(f"{r['run']}: no {source}: {text}", markup=False, soft_wrap=True, style="dim")
    warnings = [f for f in r["findings"] if f["severity"] == "warning"]
    for f in warnings[:FEW]:
        count = f"{f['count']:,} x " if f["count"] > 1 else ""
        to.print(f"{r['run']}: {f['source']}: {count}{f['text']}", markup=False, soft_wrap=True)
    rest = len(r["findings"]) - len(warnings[:FEW])
    if rest:
        to.print(f"{r['run']}: {rest} more notes in {r['out']}/quality.json", markup=False, soft_wrap=True, style="dim")
