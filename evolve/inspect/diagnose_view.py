"""What `evolve diagnose` prints: errors, what they go along with, worst steps, and terms to add or drop."""

from __future__ import annotations

from itertools import groupby

from evaluator.diagnose.describe import LABELS, STRONGEST, few
from evaluator.diagnose.diagnose import COMPONENT_FIELDS, Correlation, StageErrors, chance
from evolve.inspect.diagnose import Findings
from evolve.output.printing import note, prose, show
from evolve.output.table import Row, Table, arrival_seeds, number, row, section
from evolve.output.terms import legend
from evolve.run.use import use

ERRORS_LEGEND = """\
signed errors of means in percent, (predicted - observed)/observed, {seeds}; use: fitted, the program was fitted on this
run, so its errors are in sample; new, it was not; before, only a program that it was fitted from was; % fitted, on so
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
From the residuals on these runs at the program's constants, without refitting, and chosen with these errors in sight:
no other run has tested it. removes: the share of the squared residuals that the term would remove beyond what other
values of the program's own constants can, which `evolve fit` finds; grows: how much they would grow without the
constant, and with them the prior, which holds factors of measured kernels near 1."""


def print_findings(f: Findings) -> None:
    """The tables, each after what explains it."""
    terms = ("in sample",) if any(f.fitted_share.values()) else ()
    legend(*terms, also=ERRORS_LEGEND.format(seeds=arrival_seeds(f.seeds)))
    show(_errors_table(f))
    shown = _shown(f)
    if shown:
        note(CORRELATIONS_LEGEND.format(chance=chance(shown)))
        show(_correlations_table(shown))
    else:
        prose("Too few load stages, or no field varies over them: nothing can be correlated.")
    if f.diagnosis.worst:
        note(WORST_LEGEND)
        show(_worst_table(f))
    note(CHANGES_LEGEND)
    if f.add:
        show(_additions_table(f))
    else:
        prose("No term would remove any of the residuals.")
    show(_removals_table(f))
    for name in f.without_effect:
        prose(f"- {name} has no effect on these runs: they say nothing about it")


def _errors_table(f: Findings) -> Table:
    """A row for every run, and one for each of its stages if it has several."""
    runs = {r.experiment: r for r in f.diagnosis.runs}
    rows = list[Row]()
    for name, group in groupby(f.diagnosis.stages, key=lambda s: s.experiment):
        stages, run = list(group), runs[name]
        first = name, use(f.fitted_share[name], name in f.fitted_by_predecessor)
        whole = row(*first, "all", "", *map(number, (run.e2e, run.ttft, run.itl)))
        several = len(stages) > 1
        rows += section([*[whole] * several, *(_stage(("", "") if several else first, s) for s in stages)])
    heads = "experiment|=use|=stage|>req/s|>E2E %|>TTFT %|>ITL %|>E2E ms|>TTFT ms|>ITL ms"
    return Table.of(f"Errors of {f.name} by run and load stage; observed means", heads, rows)


def _stage(first: tuple[str, str], s: StageErrors) -> Row:
    errors = map(number, (s.e2e_pct, s.ttft_pct, s.itl_pct))
    means = (number(x, 1, False) for x in (s.e2e_ms, s.ttft_ms, s.itl_ms))
    return row(*first, str(s.stage + 1), f"{s.rate:g}", *errors, *means)


def _shown(f: Findings) -> list[Correlation]:
    """The strongest correlations of each residual; without E2E if there are others, because it is TTFT plus gaps."""
    by_residual = {name: [*group] for name, group in groupby(f.diagnosis.correlations, key=lambda c: c.residual)}
    if len(by_residual) > 1:
        by_residual.pop("e2e_pct", None)
    return [c for strongest in by_residual.values() for c in strongest[:STRONGEST]]


def _correlations_table(shown: list[Correlation]) -> Table:
    rows = [[LABELS[c.residual], c.field, f"{c.r:+.2f}", c.unit, few(c.alike)] for c in shown]
    return Table.of("What the errors go along with", "error of|field|>r|unit|~like", rows)


def _worst_table(f: Findings) -> Table:
    rows = []
    for b in f.diagnosis.worst:
        times = (number(x, 0, False) for x in (b.step_us, b.observed_us, b.overhead_us))
        batch = (f"{b.decode_reqs:.1f}", f"{b.prefill_tokens:.0f}", f"{b.kv_sum:,.0f}")
        parts = (f"{us:,.0f}" for us in b.parts_us.values())
        rows.append([b.experiment, str(b.stage + 1), b.of.upper(), f"{b.error_pct:+.1f}", *times, *batch, *parts])
    names = "|".join(f">{name.removesuffix('_us').replace('_', ' ')}" for name in COMPONENT_FIELDS)
    heads = f"experiment|=>stage|=of|>error %|>step|>observed|>overhead|>decodes|>prefill|>KV tokens|{names}"
    return Table.of("The steps of the worst stages", heads, rows)


def _additions_table(f: Findings) -> Table:
    rows = [[a.method, a.term, f"{100.0 * a.gain:.1f} %", few(a.alike)] for a in f.add]
    title = "Terms that a probe of the residuals would add, by these runs alone"
    return Table.of(title, "method|~term|>removes|~like", rows)


def _removals_table(f: Findings) -> Table:
    rows = [[f"{r.method}.{r.constant}", f"{r.value:g}", f"{100.0 * r.cost:.1f} %"] for r in f.drop]
    return Table.of("Constants that these runs would miss least", "constant|>value|>grows", rows)
