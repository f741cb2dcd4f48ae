"""A plan in a terminal: the answer in a sentence, a table of deployments, what it stands on, and how to go on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial

from evaluator.intervals import LEVELS
from evolve.output.columns import Column, figures, words
from evolve.output.printing import NAMED, fits, more, note, points, prose, show
from evolve.output.table import Table, row
from evolve.output.terminal import say
from evolve.plan.by_stage import ByStage, StageNeed
from evolve.plan.plan_result import Plan, PlanRow, answer, asked, name_of
from evolve.plan.slo import SloLimit, on_few
from simulator.common.text import counted

LEGEND = """\
A row has the fewest replicas that keep the limits, averaged over arrival seeds, without a growing queue and with at
most 1 % of the requests refused or given up. Replicas share the load equally; a router that knows their queues does
better. Latencies: of one replica, with the 80 % interval of a new measurement. room: the smallest distance to a
limit. sure: GPUs with which the upper ends of the intervals keep the limits; -: not even four times as many do.
$/M tokens: dollars per million tokens of the answers. Of deployments that differ in the limits of a batch alone, the
best is shown."""
STAGES_LEGEND = """\
The fewest replicas with which everything holds for the requests that arrive in a stage, in a replay of the whole load
with so many. A queue from the stage before counts, so after a peak the number is on the safe side. Start-up times are
left out."""
# Latencies whose mean is shown where nothing of them is limited: a cheap row may hide a slow one.
UNLIMITED = ("ttft", "itl")
MOST_STAGES = 8  # that need no -v


def print_plan(plan: Plan, explain: bool = False, verbose: bool = False) -> None:
    """Print the answer, the table, at most NAMED cautions, and the commands to go on with, in about 40 lines.

    explain: the meanings of terms, too. verbose: intervals however wide the table, all stages, cautions and reasons.
    """
    prose(answer(plan), "bold")
    prose(asked(plan))
    left: list[str] = []
    if plan.rows:
        banded = _table(plan, plan.intervals)
        left += show(banded if verbose or fits(banded) else _table(plan, False))
        if explain:
            note(LEGEND)
    best = plan.best
    if best and plan.by_stage:
        left += _print_stages(plan, best, plan.by_stage, explain, verbose)
    cautions = list(dict.fromkeys((*plan.cautions, *plan.warnings)))
    left += _named(cautions, "caution", verbose)
    reasons = list(dict.fromkeys((*plan.failing, *plan.impossible)))
    if verbose or not plan.rows:
        left += _named(reasons, "reason", verbose)
    elif reasons:
        left.append(f"{counted(len(reasons), 'deployment')} that cannot run")
    for name, command in (("Deploy", plan.serve), ("Test", plan.probe)):
        if command:
            say(f"{name}:", "bold")
            say(f"  {command}")  # in one line, to be pasted
    more(left, explain)


def _named(texts: Sequence[str], noun: str, verbose: bool) -> list[str]:
    """Print the first texts as points, or all; return how many are left out."""
    shown = texts if verbose else texts[:NAMED]
    points(shown, noun)
    return [counted(len(texts) - len(shown), noun)] if len(texts) > len(shown) else []


def _table(plan: Plan, banded: bool) -> Table:
    """The rows; `banded`: latencies have their intervals."""
    usd = plan.best is not None and plan.best.usd_per_hour is not None
    unlimited = [x for x in UNLIMITED if not any(limit.latency == x for limit in plan.limits)]
    others = [(f"{x.upper()} mean", partial(_mean_ms, latency=x)) for x in unlimited]
    columns: list[Column | tuple[Column, ...]] = [
        words("deployment"),
        figures("d", "replicas", "GPUs"),
        figures(",.2f", *(("$/h", "$/M tokens") if usd else ())),
        figures("", *(limit.words for limit in plan.limits), *(head for head, _ in others)),
        figures("+.0f", *(("room, %",) if plan.limits else ())),
        figures("d", *(("80 % sure", "95 % sure") if plan.intervals else ())),
    ]
    rows = []
    for r in plan.rows:
        cells: list[object] = [name_of(plan, r), r.replicas, r.gpus]
        cells += [r.usd_per_hour, r.usd_per_million_output_tokens] if usd else []
        cells += [_latency(r, limit, banded) for limit in plan.limits]
        cells += [_short(ms) if (ms := of(r)) is not None else None for _, of in others]
        cells += [r.headroom_pct] if plan.limits else []
        cells += [r.gpus_80, r.gpus_95] if plan.intervals else []
        rows.append(row(*cells, style="bold" if r is plan.best else ""))
    times = (
        f"latencies in ms{' with 80 % intervals' if banded else ''}; sure: GPUs"
        if plan.intervals
        else "latencies in ms"
    )
    ranked = "cheapest" if usd else "fewest GPUs"
    ranked += " to be 80 % sure first" if plan.intervals else " first"
    return Table.of(f"Deployments, {ranked}; {times}", columns, rows)


def _mean_ms(r: PlanRow, latency: str) -> float | None:
    return getattr(r.figures.run, f"{latency}_ms").mean if r.figures.run else None


def _latency(r: PlanRow, limit: SloLimit, banded: bool) -> str:
    """The figure that a limit is on, and its 80 % interval: `640 (510-803)`."""
    value = limit.of(r.figures.run)
    if value is None:
        return "-"
    bands = r.figures.intervals.get(limit.figure) if banded else None
    if bands is None:
        return _short(value)
    low, high = bands.at[LEVELS[0]]
    return f"{_short(value)} ({_short(low)}-{_short(high)}){'' if bands.calibrated else '*'}"


def _short(ms: float) -> str:
    return f"{ms:,.0f}" if ms >= 100.0 else f"{ms:.3g}"


def _print_stages(plan: Plan, best: PlanRow, stages: ByStage, explain: bool, verbose: bool) -> list[str]:
    """Print what the stages of the load need of the first deployment, and its GPU hours. Return what is left out."""
    if stages.every != best.replicas:
        whole = f"{counted(best.replicas, 'replica')} keep the limits over the whole run, not in every stage"
        prose(f"{whole}: that takes {stages.every}." if stages.every else f"{whole}: no number does.", "bold")
    left = [] if verbose or len(stages.needs) <= MOST_STAGES else ["needs of the stages"]
    if not left:
        show(_stage_table(best, stages, plan.limits))
        if few := _few(plan.limits, stages):
            note(few)
    if explain:
        note(STAGES_LEGEND)
    if hours := stages.gpu_hours(best.setting.gpus):
        peak = f"{stages.hours:.3g} h with {counted(stages.every or 0, 'replica')}: {hours[0]:.4g} GPU hours"
        prose(f"{peak}; following the stages: {hours[1]:.4g}.", "bold")
    return left


def _stage_table(best: PlanRow, stages: ByStage, limits: Sequence[SloLimit]) -> Table:
    columns = [
        figures("d", "stage"),
        figures("", "begins, h:min:s"),
        figures(".2f", "requests/s"),
        figures("d", "replicas", "GPUs"),
        figures(".4g", *(f"{limit.words}, ms" for limit in limits)),
    ]
    return Table.of("Needs of the stages", columns, [_stage_cells(need, best, limits) for need in stages.needs])


def _stage_cells(need: StageNeed, best: PlanRow, limits: Sequence[SloLimit]) -> list[object]:
    begins = str(timedelta(seconds=round(need.begins_s)))
    counts = [need.replicas, need.replicas * best.setting.gpus] if need.replicas else ["none", None]
    return [need.number, begins, need.rate_rps, *counts, *(limit.of(need.run) for limit in limits)]


def _few(limits: Sequence[SloLimit], stages: ByStage) -> str:
    """A sentence for each limit on a percentile that depends on the slowest few requests of some stages."""
    runs = [need.run for need in stages.needs if need.run]
    counts = {limit.words: sum(on_few(limit, run.completed or 0) for run in runs) for limit in limits}
    return "".join(
        f"{name} depends on the slowest few requests in {count} of {len(stages.needs)} stages. "
        for name, count in counts.items()
        if count
    )
