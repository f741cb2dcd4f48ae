"""`evolve show --explain` as text: terms in words, parts of the E2E, terms in steps, and provenance."""

from __future__ import annotations

from collections.abc import Sequence

from evaluator.metrics import PARTS
from evolve.inspect.explain import MIXED, Explanation, RunParts, Step
from evolve.inspect.provenance import Provenance
from evolve.output.columns import figures, words, wrapped
from evolve.output.printing import note, prose, show
from evolve.output.table import Table, row, section
from evolve.output.terminal import command
from evolve.run.use import use
from simulator.common.text import counted

FEW = 4  # experiments of which the steps are shown; of more, only what their E2E is made of
LINES = 6  # of the lineage, from the program on
TERMS_LEGEND = """\
PI: a request's tokens done before the step. The table: the measured kernels of the GPU. A term inside max, min or a
choice counts only where it is the one that holds."""
PARTS_LEGEND = """\
Parts of the mean E2E in ms, with their percentages: queueing is from arrival to the queue, waiting is in it. use:
whether the program was fitted on the run (fitted), on a part of it (% fitted) or not (new; before: only a program that
it was fitted from was), - if that is not known."""
STEPS_LEGEND = """\
us of a mean step of each load stage as the tokens of its answers meet it, and percentages of the step. The pace is
the observed one, if there is one. with prefill: of the steps that also carry prompts, so many percent of the tokens. ms
of E2E: at the predicted batches, so that all terms add up to it. Terms that are 0 in all of it are left out."""


def print_explanation(e: Explanation) -> None:
    """The terms, the parts of every run, the steps of up to FEW runs, and the provenance besides that of constants."""
    note(TERMS_LEGEND)
    rows = [(_method(t.method), t.term, t.meaning) for t in e.terms]
    show(Table.of(f"What the terms of {e.name} mean", [words("method"), wrapped("term", "meaning")], rows))
    note(PARTS_LEGEND)
    show(_parts_table(e.runs))
    if len(e.runs) <= FEW:
        note(STEPS_LEGEND)
        for run in e.runs:
            show(_steps_table(e, run))
    else:
        prose(f"The steps of a run: {command('show', e.name, '--explain', '--id', e.runs[0].id)}")
    _print_provenance(e.provenance)


def _method(name: str) -> str:
    return name.removesuffix("_time")


def _parts_table(runs: Sequence[RunParts]) -> Table:
    shown = [part for part in PARTS if any(r.parts_ms[part] for r in runs)]
    rows = []
    for r in runs:
        total = sum(r.parts_ms.values())
        cells = [_with_percent(r.parts_ms[part], total) for part in shown]
        rows.append([r.id, use(r.fitted_share, r.fitted_by_predecessor), r.e2e_ms, r.observed_e2e_ms, *cells])
    parts = (part.replace("_", " ") for part in shown)
    columns = [words("experiment", "use"), figures(".1f", "E2E", "observed"), figures("", *parts)]
    return Table.of("Parts of the predicted E2E", columns, rows)


def _with_percent(x: float, total: float) -> str:
    return f"{x:,.1f} ({100.0 * x / total if total else 0.0:.0f} %)"


def _steps_table(e: Explanation, run: RunParts) -> Table:
    rows, place = [], iter(range(len(e.step_terms)))
    for term, share in zip(e.terms, run.terms_pct, strict=True):
        at = next(place) if term.method == "step_time" else None
        us = [step.us[at] for step in run.steps] if at is not None else []
        if abs(share) >= 0.05 or any(us):
            cells = [_with_percent(x, step.step_us) for x, step in zip(us, run.steps, strict=True)] if us else []
            of_e2e = None if run.e2e_ms is None else f"{share / 100.0 * run.e2e_ms:,.1f} ({share:.1f} %)"
            rows.append(row(_method(term.method), term.term, of_e2e, *cells, short=not us))
    columns = [words("method"), wrapped("term", names=True), figures(".1f", "ms of E2E")]
    columns.append(figures(",.1f", *map(_head, run.steps)))
    total = row("all", "", run.e2e_ms, *(step.step_us for step in run.steps))
    return Table.of(f"{run.id}: terms", columns, [*section(rows), total])


def _head(step: Step) -> str:
    text = f"stage {step.stage + 1}: {step.decode_reqs:.1f} decodes"
    if step.kind == MIXED:
        text += f" + {step.prefill_tokens:,.0f} prefill ({100.0 * step.share:.0f} %)"
    return text


def _print_provenance(p: Provenance) -> None:
    if p.record and p.record.fitted_from:
        prose(f"Constants fitted from: {p.record.fitted_from}")
    if p.kernels:
        show(_kernels_table(p))
        for table, source in p.sources.items():
            prose(f"{table}: {source} (configs/kernels/README.md)")
    if p.lineage:
        show(_lineage_table(p))


def _kernels_table(p: Provenance) -> Table:
    """A row for each kernel field: how its operations were timed, the least certain way of all deployments."""
    kinds: dict[str, dict[str, float]] = {}
    for k in p.kernels:
        of_field = kinds.setdefault(k.field, {})
        for o in k.operations:
            of_field[o.kind] = max(of_field.get(o.kind, 0.0), o.off_octaves)
    rows = []
    for field, by_kind in kinds.items():
        texts = (f"{kind} {off:.1f}" if off >= 0.05 else kind for kind, off in by_kind.items())
        rows.append([field, ", ".join(texts)])
    caption = "nearest shape: octaves to the closest timed size; `evolve kernels` has every operation"
    return Table.of("Where the times of measured kernels come from", [words("field"), wrapped("times")], rows, caption)


def _lineage_table(p: Provenance) -> Table:
    rows = list[tuple[object, ...]]()
    for a in p.lineage:
        rows.append((a.id, a.generation, a.operator, a.parents or None, a.mean_error))
    if len(rows) > LINES + 1:
        rows = [*rows[:LINES], (f"... {len(rows) - LINES - 1} more", *[""] * 4), rows[-1]]
    title = f"How it came about in {p.run}: always the first parent, of {counted(p.ancestors, 'ancestor')}"
    columns = [figures("d", "proposal", "generation"), words("operator"), figures("", "parents")]
    columns.append(figures(".2f", "mean error"))
    return Table.of(title, columns, rows)
