"""A diagnosis as compact plain text: for a person, or for the prompt of a model that is to propose a better form."""

from __future__ import annotations

from collections.abc import Sequence

from evaluator.diagnose.diagnose import PARTS, Correlation, Diagnosis

STRONGEST = 5  # fields shown per residual
LABELS = {"step_us": "step us", "ttft_us": "TTFT us", "itl_pct": "ITL %", "ttft_pct": "TTFT %", "e2e_pct": "E2E %"}
ALIKE = 3  # fields named as like another one; the rest are counted


def describe(diagnosis: Diagnosis) -> str:
    """Tables: errors by experiment and stage, correlations with fields, the mean steps of the worst stages.

    Leaves out correlations of E2E if there are others, because E2E is TTFT plus the gaps between tokens.
    """
    parts = (_errors(diagnosis), _correlations(diagnosis), _worst(diagnosis))
    return "\n\n".join(part for part in parts if part)


def _errors(diagnosis: Diagnosis) -> str:
    """A line for every run, and one for each of its stages below it."""
    rows: list[tuple[str, ...]] = [("stage", "req/s", "E2E %", "TTFT %", "ITL %", "E2E ms", "TTFT ms", "ITL ms")]
    for s in diagnosis.stages:
        errors, means = (s.e2e_pct, s.ttft_pct, s.itl_pct), (s.e2e_ms, s.ttft_ms, s.itl_ms)
        rows.append((str(s.stage), f"{s.rate:g}", *map(_signed, errors), *map(_number, means)))
    head, *table = _table(rows).split("\n")
    title = "Signed errors of means, (predicted - observed)/observed, after a run's name over the whole run (* MoE):"
    lines = [title, head]
    for run in diagnosis.runs:
        stages = [i for i, s in enumerate(diagnosis.stages) if s.experiment == run.experiment]
        moe = "*" if diagnosis.stages[stages[0]].is_moe else ""
        whole = f": {_signed(run.e2e)} {_signed(run.ttft)} {_signed(run.itl)}" if len(stages) > 1 else ""
        lines += [f"{run.experiment}{moe}{whole}", *(table[i] for i in stages)]
    return "\n".join(lines)


def _correlations(diagnosis: Diagnosis) -> str:
    by_residual: dict[str, list[Correlation]] = {}
    for c in diagnosis.correlations:
        by_residual.setdefault(c.residual, []).append(c)
    if len(by_residual) > 1:
        by_residual.pop("e2e_pct", None)
    shown = [c for strongest in by_residual.values() for c in strongest[:STRONGEST]]
    if not shown:
        return ""
    rows = []
    for c in shown:
        more = f" and {len(c.alike) - ALIKE} more" if len(c.alike) > ALIKE else ""
        alike = f"like {', '.join(c.alike[:ALIKE])}{more}" if c.alike else ""
        rows.append((LABELS[c.residual], c.field, f"{c.r:+.2f}", f"[{c.unit}] {alike}".rstrip()))
    # For independent ranks r is about normal with variance 1/(n - 1); 5 % lie beyond 1.96 deviations.
    chance = min(1.96 / (min(c.stages for c in shown) - 1) ** 0.5, 1.0)
    title = (
        "Rank correlation of signed errors with fields over the stages; r > 0: predicted too long where the field is"
        f" large. |r| < {chance:.2f} may be chance, or more for an s. field, which has one value per deployment:"
    )
    return f"{title}\n{_table(rows, left=(0, 1, 3))}"


def _worst(diagnosis: Diagnosis) -> str:
    if not diagnosis.worst:
        return ""
    names = (name.removesuffix("_us") for name in PARTS)
    columns = ("step", "observed", "overhead", "decodes", "prefill_tokens", "kv_sum", "batch")
    rows: list[tuple[str, ...]] = [("experiment", "stage", "error %", *columns, *names)]
    for b in diagnosis.worst:
        times, batch = (b.step_us, b.observed_us, b.overhead_us), (b.decode_reqs, b.prefill_tokens, b.kv_sum)
        numbers = (*times, *batch, b.batch_size, *b.parts_us.values())
        rows.append((b.experiment, str(b.stage), f"{b.of.upper()} {_signed(b.error_pct)}", *map(_number, numbers)))
    title = "Mean step of the worst stages, times in us (observed: the ITL less the program's overhead per token):"
    return f"{title}\n{_table(rows)}"


def _table(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Rows with aligned columns, flush right but for those at `left`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        " ".join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _signed(x: float | None) -> str:
    return "-" if x is None else f"{x:+.1f}"


def _number(x: float | None) -> str:
    """Three significant digits, whole above 100."""
    return "-" if x is None else f"{x:.0f}" if abs(x) >= 100 else f"{x:.3g}"
