"""`evolve show --diagnose` in a terminal: errors, their correlations, worst steps, and terms to add or drop."""

from __future__ import annotations

from itertools import groupby

from evaluator.diagnose.describe import LABELS, STRONGEST, few
from evaluator.diagnose.diagnose import COMPONENT_FIELDS, Correlation, StageErrors, chance
from evolve.inspect.diagnose import Findings
from evolve.output.columns import figures, words, wrapped
from evolve.output.printing import NAMED, more, note, prose, show
from evolve.output.table import Row, Table, arrival_seeds, row, section
from evolve.output.terms import legend
from evolve.run.use import use
from simulator.common.text import listed

ERRORS_LEGEND = """\
signed errors of means in percent, (predicted - observed)/observed, {seeds}; use: fitted, the program was fitted on this
run, so its errors are in sample; new, it was not; before, only an ancestor was; % fitted, on so
much of it; -, that is not known"""
CORRELATIONS_LEGEND = """\
r: rank correlation of a signed error with a field over the load stages; above 0: predicted too long where the field is
large. step us: the step's error at the observed batch, which another term of step_time would have to change; TTFT us
likewise for queueing_time. |r| below {chance:.2f} may be chance, or more for an s. field, which has one value per
deployment. Fields in `like` have the same ranks in these stages."""
WORST_LEGEND = """\
Mean steps of the worst stages, in us. observed: the ITL less the program's overhead per token. Then the batch, and the
datasheet's times of its parts."""
CHANGES_LEGEND = """\
These terms are chosen from the residuals on these runs, without refitting; no other run has tested them. removes: the
share of the squared residuals that the term would remove, at the program's own constants. grows: the growth of the
residuals without the constant and its prior."""

MOST_ROWS = 4  # lines of rows of a table without -v


def print_findings(f: Findings, explain: bool = False, verbose: bool = False) -> None:
    """Print the first rows of the tables; all rows if `verbose`, what explains them, too, if `explain`."""
    left = list[str]()

    def first(name: str, table: Table) -> None:
        if show(table, None if verbose else MOST_ROWS):
            left.append(name)

    shown, effect = _shown(f), f.without_effect
    first("all errors", _errors_table(f))
    if f.add:
        first("all terms to add", _additions_table(f))
    else:
        prose("No term would remove any of the residuals.")
    first("all constants to drop", _removals_table(f))
    if effect:
        names = ", ".join(effect) if verbose else listed(effect, NAMED)
        prose(f"- without an effect on these runs, which say nothing of them: {names}")
    if not shown:
        prose("Too few load stages, or no field varies over them: nothing can be correlated.")
    elif verbose:
        show(_correlations_table(shown))
    if f.diagnosis.worst and verbose:
        show(_worst_table(f))
    left += [] if verbose else ["correlations", "the worst stages"]
    if explain:
        terms = ("in sample",) if any(f.fitted_share.values()) else ()
        legend(*terms, also=ERRORS_LEGEND.format(seeds=arrival_seeds(f.seeds)))
        if shown and verbose:
            note(f"Correlations: {CORRELATIONS_LEGEND.format(chance=chance(shown))}")
        if f.diagnosis.worst and verbose:
            note(WORST_LEGEND)
        note(CHANGES_LEGEND)
    more(left, explain)


def _errors_table(f: Findings) -> Table:
    runs = {r.experiment: r for r in f.diagnosis.runs}
    rows = list[Row]()
    for name, group in groupby(f.diagnosis.stages, key=lambda s: s.experiment):
        stages, run = list(group), runs[name]
        first = name, use(f.fitted_share[name], name in f.fitted_by_predecessor)
        if len(stages) > 1:
            whole = row(*first, "all", "", run.e2e, run.ttft, run.itl, short=True)
            rows += section([whole, *(_stage(("", ""), s) for s in stages)])
        else:
            rows += section([_stage(first, stages[0])])
    columns = [words("experiment"), words("use", "stage", names=True), figures("g", "load")]
    columns += [figures("+.1f", "E2E %", "TTFT %", "ITL %"), figures(".1f", "E2E ms", "TTFT ms", "ITL ms")]
    return Table.of(f"Errors of {f.name} by run and load stage; observed means", columns, rows)


def _stage(first: tuple[str, str], s: StageErrors) -> Row:
    return row(
        *first,
        str(s.stage + 1),
        s.rate,
        s.e2e_error_pct,
        s.ttft_error_pct,
        s.itl_error_pct,
        s.e2e_ms,
        s.ttft_ms,
        s.itl_ms,
    )


def _shown(f: Findings) -> list[Correlation]:
    """The strongest correlations of each residual; without E2E if there are others, because it is TTFT plus gaps."""
    by_residual = {name: [*group] for name, group in groupby(f.diagnosis.correlations, key=lambda c: c.residual)}
    if len(by_residual) > 1:
        by_residual.pop("e2e_error_pct", None)
    return [c for strongest in by_residual.values() for c in strongest[:STRONGEST]]


def _correlations_table(shown: list[Correlation]) -> Table:
    rows = [(LABELS[c.residual], c.field, c.r, c.unit, few(c.alike)) for c in shown]
    columns = [words("error of", "field"), figures("+.2f", "r"), words("unit"), wrapped("like")]
    return Table.of("Correlations of the errors", columns, rows)


def _worst_table(f: Findings) -> Table:
    rows = []
    for b in f.diagnosis.worst:
        times = b.step_us, b.observed_us, b.overhead_us
        batch = b.decode_reqs, b.prefill_tokens, b.kv_sum
        rows.append([b.experiment, b.stage + 1, b.of.upper(), b.error_pct, *times, *batch, *b.parts_us.values()])
    parts = (name.removesuffix("_us").replace("_", " ") for name in COMPONENT_FIELDS)
    columns = [words("experiment"), words("stage", "of", names=True), figures("+.1f", "error %")]
    columns += [figures(".0f", "step", "observed", "overhead"), figures(".1f", "decodes"), figures(".0f", "prefill")]
    columns.append(figures(",.0f", "KV tokens", *parts))
    return Table.of("The steps of the worst stages", columns, rows)


def _additions_table(f: Findings) -> Table:
    rows = [[a.method, a.term, f"{100.0 * a.gain:.1f} %", few(a.alike)] for a in f.add]
    title = "Terms that a probe of the residuals would add, by these runs alone"
    return Table.of(title, [words("method"), wrapped("term"), figures("", "removes"), wrapped("like")], rows)


def _removals_table(f: Findings) -> Table:
    rows = [[f"{r.method}.{r.constant}", f"{r.value:g}", f"{100.0 * r.cost:.1f} %"] for r in f.drop]
    columns = [words("constant"), figures("", "value", "grows")]
    return Table.of("Constants that matter least on these runs", columns, rows)
