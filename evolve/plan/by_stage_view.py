"""The needs of the stages of a load, in a terminal: a table by stage, and GPU hours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta

from evolve.output.columns import figures
from evolve.output.printing import note, prose, show
from evolve.output.table import Table
from evolve.plan.by_stage import ByStage, StageNeed
from evolve.plan.slo import SloLimit, on_few
from evolve.plan.sweep_result import Block, Sweep
from simulator.common.text import counted

MARK = " *"
LEGEND = (
    "The fewest replicas with which everything holds for the requests that arrive in a stage, in a replay of the whole "
    "load with so many. A queue from the stage before counts, so after a peak the number is on the safe side. "
)
OTHERS = "Other deployments: --json or --csv. "


def marked(block: Block, count: int | None) -> bool:
    """Whether so many replicas are enough over the whole run, but not in every stage."""
    return bool(count and block.by_stage and block.by_stage.every != count)


def print_by_stage(result: Sweep, explain: bool = False) -> None:
    """Where the headline holds over the whole run only; the stages of the deployment of every experiment that needs the
    fewest GPU hours; and the GPU hours of all."""
    blocks = [(block, block.by_stage) for block in result.blocks if block.by_stage]
    for block, stages in blocks:
        count = result.replicas(block.knee.holds_up_to if block.knee else None)
        if count and marked(block, count):
            prose(_whole_run_only(result, block, stages, count), "bold")
    for ident in dict.fromkeys(block.experiment for block, _ in blocks):
        of_one = [(block, stages) for block, stages in blocks if block.experiment == ident]
        least, stages = min(of_one, key=lambda pair: (pair[1].gpu_hours(pair[0].setting.tp) or (0.0, math.inf))[1])
        show(_table(result, least, stages))
        if few := _few(result.limits, stages):
            note(few)
        if explain:
            note(LEGEND if len(of_one) == 1 else LEGEND + OTHERS)
    for block, stages in blocks:
        if hours := stages.gpu_hours(block.setting.tp):
            peak = f"{stages.hours:.3g} h with {counted(stages.every or 0, 'replica')}: {hours[0]:.4g} GPU hours"
            prose(f"{result.label(block)}: {peak}; following the stages: {hours[1]:.4g}.", "bold")


def _whole_run_only(result: Sweep, block: Block, stages: ByStage, count: int) -> str:
    enough = f"{counted(count, 'replica')} {'is' if count == 1 else 'are'} enough over the whole run"
    if stages.every:
        more = f"but not in every stage: that takes {stages.every}, {counted(block.gpus_every_stage or 0, 'GPU')}"
    else:
        never = ", ".join(str(need.number) for need in stages.needs if not need.replicas)
        more = f"but no number is in every stage{f' (none in {never})' if never else ''}"
    return f"*: {result.label(block)}: {enough}, {more}."


def _table(result: Sweep, block: Block, stages: ByStage) -> Table:
    columns = [
        figures("d", "stage"),
        figures("", "begins, h:min:s"),
        figures(".2f", "requests/s"),
        figures("d", "replicas", "GPUs"),
        figures(".4g", *(f"{limit.latency.upper()} {limit.quantity}" for limit in result.limits)),
    ]
    rows = [_cells(need, block.setting.tp, result.limits) for need in stages.needs]
    return Table.of(f"Needs of the stages of {result.label(block)}", columns, rows)


def _cells(need: StageNeed, tp: int, limits: Sequence[SloLimit]) -> list[object]:
    begins = str(timedelta(seconds=round(need.begins_s)))
    counts = [need.replicas, need.replicas * tp] if need.replicas else ["none", None]
    return [need.number, begins, need.rate_rps, *counts, *(limit.of(need.run) for limit in limits)]


def _few(limits: Sequence[SloLimit], stages: ByStage) -> str:
    """A sentence for each limit on a percentile that depends on the slowest few requests of some stages."""
    runs = [need.run for need in stages.needs if need.run]
    counts = {limit.name: sum(on_few(limit, run.completed or 0) for run in runs) for limit in limits}
    return "".join(
        f"{name} depends on the slowest few requests in {count} of {len(stages.needs)} stages. "
        for name, count in counts.items()
        if count
    )
