"""A sweep in a terminal: what each deployment serves, then a table with its knee for each."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta

from evaluator.intervals import STATISTICS
from evaluator.metrics import LONGER, WAITING
from evolve.output.columns import NUMBER, Column, figures, words, wrapped
from evolve.output.columns import columns as declared
from evolve.output.printing import LINES, NAMED, ROWS, more, note, prose, say_once, show
from evolve.output.table import Row, Table, number, row
from evolve.output.terms import legend
from evolve.plan.axes import Setting, figure, rate_figure
from evolve.plan.by_stage import ByStage, StageNeed
from evolve.plan.slo import SloLimit, on_few
from evolve.plan.sweep_result import COUNTS, IDLE, LOST, MOST_LOST, NOTHING, QUEUE, Block, Knee, Sweep, SweepFigures
from simulator.common.text import counted
from simulator.serving.observations import QUANTITIES

UNITS = "requests/s; TTFT, E2E and ITL: ms; tokens/s: of answers"
ITL_LEGEND = "ITL: a request's mean time per token after the first, so its p99 is over requests, not over tokens"
WAITING_LEGEND = (
    f"waiting: share of the mean E2E spent in the queue; queue: beyond {100 * WAITING:.0f} %, and the second half of "
    f"the requests waits {LONGER:g} times as long as the first, in the whole run and in a stage: the queue grows. "
    "running: most requests in a batch"
)
CAPACITY = "Each deployment is one replica: L requests/s need L / (holds up to) of them, rounded up (--load L)"
CLOSED = "Each deployment is one replica, and each client waits for its answer before it asks again"
SHARES = (
    "Replicas share the load equally, each with arrivals and stages as in the experiments file. At least: only "
    "rates of whole numbers of replicas were tried"
)
SEVERAL = "Each experiment is a service of its own with this load"
BUSIEST = "The load is the mean over the stages, of which the busiest may have more"
BY_SEED = "By seed: the highest rate that meets all limits under each arrival seed alone"
RECORDED = " (-: a trace, the same under every seed)"
LIKELY = "80 % sure: the highest rate that meets all limits even at the upper ends of the 80 % intervals"
WHOLE = ', over the whole run: stages have no intervals, so "every stage" may need more GPUs'
NARROW = "; ?: the intervals may be too narrow, see below"
NO_LIKELY = "Latencies have intervals in `evolve predict` without --sweep"
NO_LIMITS = "Without --slo only a queue that grows is too much, however long requests take"
LATENCIES = (("ttft", ("mean", "p50", "p90", "p99")), ("e2e", ("mean", "p99")), ("itl", ("mean", "p99")))
RATES = 24  # of a deployment, that need no -v
LOST_LEGEND = f"requests fail: more than {100 * MOST_LOST:.0f} % are refused or given up, and have no latencies"
MARK = " *"
FEW_STAGED, MOST_STAGES = 4, 8  # deployments, and stages of each, that need no -v
STAGES_LEGEND = (
    "The fewest replicas with which everything holds for the requests that arrive in a stage, in a replay of the whole "
    "load with so many. A queue from the stage before counts, so after a peak the number is on the safe side. "
)
OTHERS = "Other deployments: --json or --csv. "
SHORT = {QUEUE: "queue", LOST: LOST, NOTHING: NOTHING}

Predicted = tuple[str, Setting, SweepFigures]  # the first is the experiment


def print_sweep(result: Sweep, explain: bool = False, verbose: bool = False) -> None:
    """Print the answer, the capacity of each deployment, the knees, impossible combinations, and warnings.

    A sweep of one deployment shows its rates. With several, their tables wait for `verbose`.
    """
    most, rates = (None, None) if verbose else (ROWS, RATES)
    left: list[str] = []

    def say_lines(lines: Sequence[str], name: str, least: int = 0) -> None:
        """Print the lines, or `least` of them if they are more than that, and than a few if it is 0."""
        shown = len(lines) if verbose or len(lines) <= (least or NAMED) else least
        for line in lines[:shown]:
            prose(line, "bold")
        if shown < len(lines):
            left.append(f"{len(lines) - shown} {name}")

    every = [figures for block in result.blocks for _, figures in block.predicted]
    averaged = f", means over arrival seeds {list(result.seeds)}" if result.drawn else ""
    compared = bool(result.load_rps) or (result.rated and len(result.blocks) > 1)
    if result.load_rps:
        say_lines(_fewest(result), "services")
    prose(f"Predictions of {result.name}{averaged}{_slo(result.limits)}", "" if result.load_rps else "bold")
    if compared:
        left += show(_capacity(result), most)
        if explain:
            note(_capacity_legend(result))
        say_lines(_without_replicas(result), "deployments that are too slow", NAMED)
        left += _print_by_stage(result, explain, verbose)
    counts = [name for name in COUNTS if any(getattr(figures.prediction, name) for figures in every)]
    knees = []
    for title, keys, blocks in _tables(result):
        predicted = [(block.experiment, *pair) for block in blocks for pair in block.predicted]
        knee = blocks[0].knee
        if predicted and (verbose or not compared):
            left += show(_table(result, title, keys, _near(predicted, knee, rates), knee, counts), most)
            if rates and len(predicted) > rates and knee:
                left.append(f"{len(predicted) - rates} {'rates' if result.axes.load == 'rate' else 'loads'}")
        if knee:
            knees.append(f"Knee of {title}: {knee_text(knee, result.axes.load)}")
    say_lines(knees, "knees")
    reasons, impossible = _impossible(result)
    say_lines(impossible, "impossible combinations", min(reasons, NAMED))
    if every and explain:
        _print_legend(result, every)
    if compared and not verbose:
        left.append("every rate")
    said = {
        result.label(block).replace(", ", " "): [*result.warnings, *_said(block)]
        for block in result.blocks
        if block.predicted
    }
    lines = LINES - 2 * min(reasons, 2)  # a reason takes two
    left += say_once(said, NAMED, None if verbose else lines)
    more(left, explain)


def _impossible(result: Sweep) -> tuple[int, list[str]]:
    """How many reasons there are, figures apart, and a line for each impossible combination: first one of each."""
    every = dict.fromkeys(row.impossible for block in result.blocks for row in block.rows if row.impossible)
    first: dict[str, str] = {}
    for text in every:
        first.setdefault(re.sub(r"[\d,.]+", "", text.partition(": ")[2]), text)
    return len(first), [f"Impossible: {text}" for text in dict.fromkeys((*first.values(), *every))]


def _near(predicted: list[Predicted], knee: Knee | None, most: int | None) -> list[Predicted]:
    """So many of the rates, with the knee in their middle."""
    if most is None or knee is None or len(predicted) <= most:
        return predicted
    at = next((i for i, (_, setting, _) in enumerate(predicted) if setting.level == knee.load), len(predicted))
    first = min(max(0, at - most // 2), len(predicted) - most)
    return predicted[first : first + most]


def _fewest(result: Sweep) -> list[str]:
    """For each experiment, the deployment that needs the fewest GPUs for the load."""
    lines = []
    load = f"{rate_figure(result.load_rps or 0.0)} requests/s"
    for ident in dict.fromkeys(block.experiment for block in result.blocks):
        needs = []
        for block in result.blocks:
            rate = block.knee.holds_up_to if block.knee else None
            gpus, replicas = result.gpus(block, rate), result.replicas(rate)
            if block.experiment == ident and gpus and replicas:
                likely = _likely_gpus(result, block) if result.intervals else ""
                needs.append((gpus, replicas, result.label(block), likely and f" (80 % sure: {likely})"))
        if needs:
            gpus, replicas, label, likely = min(needs)
            lines.append(f"{load} need {counted(gpus, 'GPU')}{likely}: {counted(replicas, 'replica')} of {label}.")
        else:
            lines.append(f"{load}: no number of replicas of {ident} is enough.")
    return lines


def _print_legend(result: Sweep, every: Sequence[SweepFigures]) -> None:
    """The meanings of the words that occur in the tables."""
    rates = ["rate"] if result.axes.rate or result.load_rps else ["offered"]
    rates += ["done", "goodput"] if result.limits else ["done"]
    terms = [*(["goodput"] if result.limits else []), *(["knee"] if result.rated else [])]
    lost = [LOST_LEGEND] if any(LOST in figures.fails for figures in every) else []
    legend(*terms, also=". ".join([f"{', '.join(rates)}: {UNITS}", ITL_LEGEND, WAITING_LEGEND, *lost]))


def knee_text(knee: Knee, key: str = "rate") -> str:
    """The knee, the limit that fails there, and the last load that holds. `key`: what the load is."""
    if knee.load is None:
        return f"none up to {rate_figure(knee.last)}"
    fails = ", ".join(name if name in SHORT else f"{_words(name)} fails" for name in knee.fails)
    if knee.holds_up_to is None:
        return f"{key} {rate_figure(knee.load)}, the lowest: {fails}"
    sure = "none" if knee.sure is None else rate_figure(knee.sure)
    by_seed = f" (under each arrival seed alone: {sure})" if knee.drawn and knee.sure != knee.holds_up_to else ""
    return f"{key} {rate_figure(knee.load)}: {fails}; holds up to {rate_figure(knee.holds_up_to)}{by_seed}"


def _capacity(result: Sweep) -> Table:
    """The last rate that holds on every deployment, as it is, per GPU, under every arrival seed and at the upper ends
    of intervals; with a load, how many replicas and GPUs share it, the fewest GPUs first."""
    blocks = list(result.blocks)
    if result.load_rps:
        blocks.sort(key=lambda b: result.gpus(b, b.knee.holds_up_to if b.knee else None) or math.inf)
    likely = ["80 % sure"] if result.intervals else []
    unit = "requests/s" if result.axes.load == "rate" else "clients at once"
    title = f"Load that each deployment serves, {unit}"
    heads = ["GPUs", "holds up to", "per GPU", "by seed", *likely]
    if result.load_rps:
        title = f"Deployments for {rate_figure(result.load_rps)} requests/s"
        heads = ["GPUs each", "holds at least", "per GPU", "by seed", *likely, "replicas", "GPUs"]
        heads += ["every stage", "its GPUs"] if result.staged else []
        if result.intervals:  # the columns before it are of every stage, and may be larger
            heads.append("GPUs 80 % sure, whole run" if result.staged else "GPUs 80 % sure")
    rows = [row(*_served(result, block), *_needed(result, block), short=block.knee is None) for block in blocks]
    return Table.of(title, [words("deployment"), figures("", *heads)], rows)


def _served(result: Sweep, block: Block) -> list[str]:
    """The cells of a deployment about the rates that it serves."""
    gpus, knee = block.setting.gpus, block.knee
    cells = [result.label(block), str(gpus)]
    if knee is None:
        return [*cells, "impossible"]
    shown = _short if result.load_rps else rate_figure  # given rates are shown as they were given

    def text(rate: float | None) -> str:
        # all holds at the highest rate, too; with a load every rate is one that holds at least
        return f"{shown(rate)}{_or_more(result, knee, rate)}" if rate else "none"

    per_gpu = (
        f"{_short(knee.holds_up_to / gpus)}{_or_more(result, knee, knee.holds_up_to)}" if knee.holds_up_to else "-"
    )
    likely = [_doubted(text(knee.likely), knee)] if result.intervals else []
    return [*cells, text(knee.holds_up_to), per_gpu, text(knee.sure) if knee.drawn else "-", *likely]


def _or_more(result: Sweep, knee: Knee, rate: float | None) -> str:
    return " or more" if rate == knee.last and not result.load_rps else ""


def _doubted(text: str, knee: Knee) -> str:
    return f"{text} ?" if knee.narrow else text


def _needed(result: Sweep, block: Block) -> list[str]:
    """The cells of a deployment about its replicas and GPUs; none without a load, or where it is impossible."""
    knee = block.knee
    if knee is None or not result.load_rps:
        return []
    count, gpus = result.replicas(knee.holds_up_to), result.gpus(block, knee.holds_up_to)
    replicas = f"{count or '-'}{MARK}" if _marked(block, count) else str(count or "-")
    stages = ["", ""] if result.staged else []
    if block.by_stage:
        stages = [str(n or "-") for n in (block.by_stage.every, block.gpus_every_stage)]
    likely = [_likely_gpus(result, block)] if result.intervals else []
    return [replicas, str(gpus or "-"), *stages, *likely]


def _likely_gpus(result: Sweep, block: Block) -> str:
    """How many GPUs hold at the upper ends of intervals; `-` where none do."""
    knee = block.knee
    return _doubted(str(result.gpus(block, knee.likely) or "-"), knee) if knee else "-"


def _capacity_legend(result: Sweep) -> str:
    texts = [SHARES if result.load_rps else CAPACITY if result.axes.load == "rate" else CLOSED]
    if result.load_rps is not None and len({block.experiment for block in result.blocks}) > 1:
        texts.append(SEVERAL)
    if result.load_rps is not None and result.uneven:
        texts.append(BUSIEST)
    knees = [block.knee for block in result.blocks if block.knee]
    texts.append(BY_SEED if all(knee.drawn for knee in knees) else BY_SEED + RECORDED)
    texts.append(_likely_legend(result, any(knee.narrow for knee in knees)) if result.intervals else NO_LIKELY)
    if not result.limits:
        texts.append(NO_LIMITS)
    return "".join(f"{text}. " for text in texts).strip()


def _likely_legend(result: Sweep, narrow: bool) -> str:
    unsaid = [_words(limit.name) for limit in result.limits if limit.figure not in STATISTICS]
    likely = LIKELY + WHOLE if result.staged else LIKELY
    if unsaid:
        likely += f" ({', '.join(unsaid)}: as predicted, without an interval)"
    return likely + NARROW if narrow else likely


def _without_replicas(result: Sweep) -> list[str]:
    """A line for each deployment of which no number of replicas is enough."""
    lines = []
    for block in result.blocks:
        knee = block.knee
        if not (result.load_rps and knee and not knee.holds_up_to and knee.load):
            continue
        where, alone = f"{result.label(block)}: no number of replicas is enough", _alone(block, knee)
        if alone:
            lines.append(f"{where}: an idle engine takes {alone}. Another GPU, TP degree or limit may help.")
        else:
            fails = ", ".join(name if name in SHORT else _words(name) for name in knee.fails)
            rate = f"{rate_figure(knee.load)} requests/s each"
            lines.append(f"{where}: even {rate} are too much ({fails}). Another GPU, TP degree or limit may help.")
    return lines


def _alone(block: Block, knee: Knee) -> str:
    """The figures that break limits at the knee, as `2,631 ms for TTFT p99`, if its requests are alone; else ""."""
    run = next(f for setting, f in block.predicted if setting.level == knee.load).run
    if run is None or not knee.load or knee.load * (run.e2e_ms.mean or 0.0) / 1e3 >= IDLE:
        return ""
    limits = [name.split("_") for name in knee.fails if name not in SHORT]
    times = [getattr(getattr(run, f"{latency}_ms"), quantity) for latency, quantity in limits]
    named = zip(times, (name for name in knee.fails if name not in SHORT), strict=True)
    return " and ".join(f"{_short(ms)} ms for {_words(name)}" for ms, name in named if ms is not None)


def _slo(limits: Sequence[SloLimit]) -> str:
    return "".join(f", {_words(limit.name)} <= {figure(limit.most_ms)} ms" for limit in limits)


def _words(limit: str) -> str:
    """The name of a limit as tables have it: `TTFT p99`."""
    latency, quantity = limit.split("_")
    return f"{latency.upper()} {quantity}"


def _tables(result: Sweep) -> Iterator[tuple[str, tuple[str, ...], list[Block]]]:
    """Title, varied keys and blocks of every table: one for each block along the load, else one of all."""
    if result.rated:
        yield from ((result.label(block), (result.axes.load,), [block]) for block in result.blocks)
        return
    idents = dict.fromkeys(block.experiment for block in result.blocks)
    if len(idents) > 1:
        yield counted(len(idents), "experiment"), ("experiment", *result.axes.others), list(result.blocks)
    else:
        yield from ((ident, result.axes.others, list(result.blocks)) for ident in idents)


def _table(
    result: Sweep, title: str, keys: Sequence[str], rows: Sequence[Predicted], knee: Knee | None, counts: Sequence[str]
) -> Table:
    columns = [words(name) if name in ("experiment", "hardware", "weights") else figures("", name) for name in keys]
    if result.load_rps:
        columns.append(figures("d", "replicas"))
    columns.append(wrapped("fails"))
    if result.intervals and not result.rated:
        columns.append(words("80 % sure"))
    brief = _brief(result, keys)
    columns += [
        figures(_short, *(f"{name.upper()} {q}" for name, q in _quantities(result.limits))),
        tuple(replace(c, head=c.brief, format=c.format or (_short if c.kind == NUMBER else "")) for c in brief),
        figures("d", *(name.replace("_", " ") for name in counts)),
    ]
    return Table.of(title, columns, (_row(result, keys, of_one, knee, counts) for of_one in rows))


def _brief(result: Sweep, keys: Sequence[str]) -> list[Column]:
    """The columns of SweepFigures that the terminal has."""
    said = {"offered_rps": "rate" in keys, "goodput_rps": not result.limits}  # by the rate, or for want of limits
    return [c for c in declared(SweepFigures) if c.brief and not said.get(c.name)]


def _row(result: Sweep, keys: Sequence[str], predicted: Predicted, knee: Knee | None, counts: Sequence[str]) -> Row:
    ident, setting, f = predicted
    times = (getattr(getattr(f.run, f"{name}_ms", None), q, None) for name, q in _quantities(result.limits))
    likely = None if f.likely is None else "holds" if f.likely else "may fail"
    return row(
        *(ident if name == "experiment" else setting.shown(name) for name in keys),
        *([result.replicas(setting.rate)] if result.load_rps else []),
        ", ".join(SHORT.get(name) or _words(name) for name in f.fails),
        *([likely] if result.intervals and not result.rated else []),
        *times,
        *(getattr(f, c.name) for c in _brief(result, keys)),
        *(getattr(f.prediction, name) for name in counts),
        style="bold" if knee and setting.level == knee.load else "",
    )


def _quantities(limits: Sequence[SloLimit]) -> list[tuple[str, str]]:
    """The columns of latencies: those of every table, and the figures that limits are on."""
    limited = {(limit.latency, limit.quantity) for limit in limits}
    return [(name, q) for name, qs in LATENCIES for q in QUANTITIES if q in qs or (name, q) in limited]


def _short(value: float | None) -> str:
    """A figure with a digit after the point only below 1000, two below 100, and two that are not zeros below 0.1."""
    if value and value < 0.1:
        return number(value, 1 - math.floor(math.log10(value)), signed=False)
    return number(value, 0 if value and value >= 1000.0 else 1 if value and value >= 100.0 else 2, signed=False)


def _said(block: Block) -> list[str]:
    """The warnings of a block. Those that differ in figures alone, or begin at a higher rate, are said once, with the
    rate at which they begin."""
    rows = [(setting, figures.warnings) for setting, figures in block.predicted]
    begun: dict[str, tuple[Setting, str]] = {}
    for setting, texts in rows:
        for text in texts:
            begun.setdefault(re.sub(r"[0-9.]+", "", text), (setting, text))
    narrow = dict.fromkeys(text for _, figures in block.predicted for text in figures.narrow)
    said = [
        text if at.level is None or all(text in texts for _, texts in rows) else f"from {_load(at)}: {text}"
        for at, text in begun.values()
    ]
    return [*said, *narrow]  # intervals are looked at for some rows only


def _load(setting: Setting) -> str:
    key = "rate" if setting.concurrency is None else "concurrency"
    return f"{key} {setting.shown(key)}"


def _marked(block: Block, count: int | None) -> bool:
    """Return True if so many replicas are enough over the whole run, but not in every stage."""
    return bool(count and block.by_stage and block.by_stage.every != count)


def _print_by_stage(result: Sweep, explain: bool, verbose: bool) -> list[str]:
    """Print the deployments that need more in a stage, the stages of each experiment, and GPU hours.

    The stages are those of the deployment that needs the fewest GPU hours. Return what waits for `verbose`.
    """
    blocks = [(block, block.by_stage) for block in result.blocks if block.by_stage]
    if not verbose and (len(blocks) > FEW_STAGED or any(len(stages.needs) > MOST_STAGES for _, stages in blocks)):
        return ["needs of the stages"]
    for block, stages in blocks:
        count = result.replicas(block.knee.holds_up_to if block.knee else None)
        if count and _marked(block, count):
            prose(_whole_run_only(result, block, stages, count), "bold")
    for ident in dict.fromkeys(block.experiment for block, _ in blocks):
        of_one = [(block, stages) for block, stages in blocks if block.experiment == ident]
        least, stages = min(of_one, key=lambda pair: (pair[1].gpu_hours(pair[0].setting.gpus) or (0.0, math.inf))[1])
        show(_stage_table(result, least, stages))
        if few := _few(result.limits, stages):
            note(few)
        if explain:
            note(STAGES_LEGEND if len(of_one) == 1 else STAGES_LEGEND + OTHERS)
    for block, stages in blocks:
        if hours := stages.gpu_hours(block.setting.gpus):
            peak = f"{stages.hours:.3g} h with {counted(stages.every or 0, 'replica')}: {hours[0]:.4g} GPU hours"
            prose(f"{result.label(block)}: {peak}; following the stages: {hours[1]:.4g}.", "bold")
    return []


def _whole_run_only(result: Sweep, block: Block, stages: ByStage, count: int) -> str:
    enough = f"{counted(count, 'replica')} {'is' if count == 1 else 'are'} enough over the whole run"
    if stages.every:
        more = f"but not in every stage: that takes {stages.every}, {counted(block.gpus_every_stage or 0, 'GPU')}"
    else:
        never = ", ".join(str(need.number) for need in stages.needs if not need.replicas)
        more = f"but no number is enough in every stage{f' (none in {never})' if never else ''}"
    return f"*: {result.label(block)}: {enough}, {more}."


def _stage_table(result: Sweep, block: Block, stages: ByStage) -> Table:
    columns = [
        figures("d", "stage"),
        figures("", "begins, h:min:s"),
        figures(".2f", "requests/s"),
        figures("d", "replicas", "GPUs"),
        figures(".4g", *(f"{limit.latency.upper()} {limit.quantity}" for limit in result.limits)),
    ]
    rows = [_stage_cells(need, block.setting.gpus, result.limits) for need in stages.needs]
    return Table.of(f"Needs of the stages of {result.label(block)}", columns, rows)


def _stage_cells(need: StageNeed, gpus: int, limits: Sequence[SloLimit]) -> list[object]:
    begins = str(timedelta(seconds=round(need.begins_s)))
    counts = [need.replicas, need.replicas * gpus] if need.replicas else ["none", None]
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
