"""A sweep in a terminal: what each deployment serves, then a table with its knee for each."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from evaluator.intervals import LONGER, STATISTICS, WAITING
from evolve.output.columns import figures, words, wrapped
from evolve.output.printing import note, prose, say_once, show
from evolve.output.table import Row, Table, number, row
from evolve.output.terms import legend
from evolve.plan.axes import Setting, figure, rate_figure
from evolve.plan.by_stage_view import MARK, marked, print_by_stage
from evolve.plan.slo import SloLimit
from evolve.plan.sweep_result import COUNTS, IDLE, LOST, MOST_LOST, NOTHING, QUEUE, Block, Knee, Sweep, SweepFigures
from simulator.common.text import counted
from simulator.serving.observations import QUANTITIES

UNITS = "requests/s; TTFT, E2E and ITL: ms; tokens/s: of answers"
ITL_LEGEND = "ITL: a request's mean time per token after the first, so its p99 is over requests, not over tokens"
WAITING_LEGEND = (
    f"waiting: share of the mean E2E spent in the queue; queue: beyond {100 * WAITING:.0f} %, and the second half of "
    f"the requests waits {LONGER:g} times as long as the first, so the queue grows, or in a load of a minute or two "
    "may only begin so. running: most requests in a batch"
)
CAPACITY = "Each deployment is one replica: L requests/s need L / (holds up to) of them, rounded up (--load L)"
SHARES = (
    "Replicas share the load equally, each with arrivals and stages as in the experiments file. At least: only load / "
    "n for whole n was tried"
)
SEVERAL = "Each experiment is a service of its own with this load"
BUSIEST = "The load is the mean over the stages, of which the busiest may have more"
BY_SEED = "By seed: up to where all holds under each arrival seed alone"
RECORDED = " (-: a trace, the same under every seed)"
LIKELY = "80 % sure: up to where all holds at the upper ends of the 80 % intervals, too"
WHOLE = ', over the whole run: stages have no intervals, so "every stage" may need more GPUs'
NARROW = "; ?: these may be too narrow, for the reasons below"
NO_LIKELY = "Latencies have intervals in `evolve predict` without --sweep"
NO_LIMITS = "Without --slo only a queue that grows is too much, however long requests take"
LATENCIES = (("ttft", ("mean", "p50", "p90", "p99")), ("e2e", ("mean", "p99")), ("itl", ("mean", "p99")))
LOST_LEGEND = f"requests fail: more than {100 * MOST_LOST:.0f} % are refused or given up, and have no latencies"
NAMED = 3  # deployments, at most, that a warning names one by one
SHORT = {QUEUE: "queue", LOST: LOST, NOTHING: NOTHING}

Predicted = tuple[Setting, SweepFigures]


def print_sweep(result: Sweep, explain: bool = False) -> None:
    """Print the answer, the capacity of each deployment, the knees, impossible combinations, and every warning once.

    A sweep of one deployment shows all its rates. With several, their tables wait for `explain`, as definitions do.
    """
    every = [figures for block in result.blocks for _, figures in block.predicted]
    averaged = f", means over arrival seeds {list(result.seeds)}" if result.drawn else ""
    compared = bool(result.load_rps) or (result.rated and len(result.blocks) > 1)
    if result.load_rps:
        for line in _fewest(result):
            prose(line, "bold")
    prose(f"Predictions of {result.name}{averaged}{_slo(result.limits)}", "" if result.load_rps else "bold")
    if compared:
        show(_capacity(result))
        if explain:
            note(_capacity_legend(result))
        for line in _without_replicas(result):
            prose(line, "bold")
        print_by_stage(result, explain)
    counts = [name for name in COUNTS if any(getattr(figures.prediction, name) for figures in every)]
    for title, keys, blocks in _tables(result):
        predicted = [pair for block in blocks for pair in block.predicted]
        knee = blocks[0].knee
        if predicted and (explain or not compared):
            show(_table(result, title, keys, predicted, knee, counts))
        if knee:
            prose(f"Knee of {title}: {knee_text(knee)}", "bold")
        for why in dict.fromkeys(r.impossible for block in blocks for r in block.rows if r.impossible):
            prose(f"Impossible: {why}", "bold")
    if every and explain:
        _print_legend(result, every)
    elif compared:
        prose("`--explain` adds a table of every rate and the meanings of the columns.")
    blocks = [block for block in result.blocks if block.predicted]
    say_once({result.label(block).replace(", ", " "): [*_said(block), *result.warnings] for block in blocks}, NAMED)


def _fewest(result: Sweep) -> Iterator[str]:
    """For each experiment, the deployment that needs the fewest GPUs for the load."""
    load = f"{rate_figure(result.load_rps or 0.0)} requests/s"
    for ident in dict.fromkeys(block.experiment for block in result.blocks):
        needs = []
        for block in result.blocks:
            rate = block.knee.holds_up_to if block.knee else None
            gpus, replicas = result.gpus(block, rate), result.replicas(rate)
            if block.experiment == ident and gpus and replicas:
                needs.append((gpus, replicas, result.label(block)))
        if needs:
            gpus, replicas, label = min(needs)
            yield f"{load} need {counted(gpus, 'GPU')}: {counted(replicas, 'replica')} of {label}."
        else:
            yield f"{load}: no number of replicas of {ident} is enough."


def _print_legend(result: Sweep, every: Sequence[SweepFigures]) -> None:
    """The meanings of the words that occur in the tables."""
    rates = ["rate"] if result.rated else ["offered"]
    rates += ["done", "goodput"] if result.limits else ["done"]
    terms = [*(["goodput"] if result.limits else []), *(["knee"] if result.rated else [])]
    lost = [LOST_LEGEND] if any(LOST in figures.fails for figures in every) else []
    legend(*terms, also=". ".join([f"{', '.join(rates)}: {UNITS}", ITL_LEGEND, WAITING_LEGEND, *lost]))


def knee_text(knee: Knee) -> str:
    """The knee, the limit that fails there, and the last rate that holds."""
    if knee.rate is None:
        return f"none up to {rate_figure(knee.last)}"
    fails = ", ".join(name if name in SHORT else f"{_words(name)} fails" for name in knee.fails)
    if knee.holds_up_to is None:
        return f"rate {rate_figure(knee.rate)}, the lowest: {fails}"
    sure = "none" if knee.sure is None else rate_figure(knee.sure)
    by_seed = f" (under each arrival seed alone: {sure})" if knee.drawn and knee.sure != knee.holds_up_to else ""
    return f"rate {rate_figure(knee.rate)}: {fails}; holds up to {rate_figure(knee.holds_up_to)}{by_seed}"


def _capacity(result: Sweep) -> Table:
    """The last rate that holds on every deployment, as it is, per GPU, under every arrival seed and at the upper ends
    of intervals; with a load, how many replicas and GPUs share it, the fewest GPUs first."""
    blocks = list(result.blocks)
    if result.load_rps:
        blocks.sort(key=lambda b: result.gpus(b, b.knee.holds_up_to if b.knee else None) or math.inf)
    likely = ["80 % sure"] if result.intervals else []
    if not result.load_rps:
        heads = ["GPUs", "holds up to", "per GPU", "by seed", *likely]
        rows = [_served(result, block) for block in blocks]
        return Table.of(
            "Load that each deployment serves, requests/s", [words("deployment"), figures("", *heads)], rows
        )
    heads = ["GPUs each", "holds at least", "per GPU", "by seed", *likely, "replicas", "GPUs"]
    if result.staged:
        heads += ["every stage", "its GPUs"]
    if result.intervals:  # the columns before it are of every stage, and may be larger
        heads.append("GPUs 80 % sure, whole run" if result.staged else "GPUs 80 % sure")
    rows = [[*_served(result, block), *_needed(result, block)] for block in blocks]
    title = f"Deployments for {rate_figure(result.load_rps)} requests/s"
    return Table.of(title, [words("deployment"), figures("", *heads)], rows)


def _served(result: Sweep, block: Block) -> list[str]:
    """The cells of a deployment about the rates that it serves."""
    tp, knee = block.setting.tp, block.knee
    cells = [result.label(block), str(tp)]
    if knee is None:
        return [*cells, "impossible"]
    shown = _short if result.load_rps else rate_figure  # given rates are shown as they were given

    def text(rate: float | None) -> str:
        # all holds at the highest rate, too; with a load every rate is one that holds at least
        return f"{shown(rate)}{_or_more(result, knee, rate)}" if rate else "none"

    per_gpu = f"{_short(knee.holds_up_to / tp)}{_or_more(result, knee, knee.holds_up_to)}" if knee.holds_up_to else "-"
    likely = [_doubted(text(knee.likely), knee)] if result.intervals else []
    return [*cells, text(knee.holds_up_to), per_gpu, text(knee.sure) if knee.drawn else "-", *likely]


def _or_more(result: Sweep, knee: Knee, rate: float | None) -> str:
    return " or more" if rate == knee.last and not result.load_rps else ""


def _doubted(text: str, knee: Knee) -> str:
    return f"{text} ?" if knee.narrow else text


def _needed(result: Sweep, block: Block) -> list[str]:
    """The cells of a deployment about its replicas and GPUs; none where it is impossible."""
    knee = block.knee
    if knee is None:
        return []
    count, gpus = result.replicas(knee.holds_up_to), result.gpus(block, knee.holds_up_to)
    replicas = f"{count or '-'}{MARK}" if marked(block, count) else str(count or "-")
    stages = [block.by_stage.every, block.gpus_every_stage] if block.by_stage else []
    likely = [_doubted(str(result.gpus(block, knee.likely) or "-"), knee)] if result.intervals else []
    return [replicas, str(gpus or "-"), *(str(n or "-") for n in stages), *likely]


def _capacity_legend(result: Sweep) -> str:
    texts = [SHARES if result.load_rps else CAPACITY]
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
        if not (result.load_rps and knee and not knee.holds_up_to and knee.rate):
            continue
        where, alone = f"{result.label(block)}: no number of replicas is enough", _alone(block, knee)
        if alone:
            lines.append(f"{where}: an idle engine takes {alone}. Another GPU, TP degree or limit may help.")
        else:
            fails = ", ".join(name if name in SHORT else _words(name) for name in knee.fails)
            rate = f"{rate_figure(knee.rate)} requests/s each"
            lines.append(f"{where}: even {rate} are too much ({fails}). Another GPU, TP degree or limit may help.")
    return lines


def _alone(block: Block, knee: Knee) -> str:
    """The figures that break limits at the knee, as `2,631 ms for TTFT p99`, if its requests are alone; else ""."""
    run = next(f for setting, f in block.predicted if setting.rate == knee.rate).run
    if run is None or not knee.rate or knee.rate * (run.e2e_ms.mean or 0.0) / 1e3 >= IDLE:
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
    """Title, varied keys and blocks of every table: one for each block along the rate, else one for an experiment."""
    if result.rated:
        yield from ((result.label(block), ("rate",), [block]) for block in result.blocks)
        return
    for ident in dict.fromkeys(block.experiment for block in result.blocks):
        yield ident, result.axes.others, [block for block in result.blocks if block.experiment == ident]


def _table(
    result: Sweep, title: str, keys: Sequence[str], rows: Sequence[Predicted], knee: Knee | None, counts: Sequence[str]
) -> Table:
    columns = [words(name) if name == "hardware" else figures("", name) for name in keys]
    if result.load_rps:
        columns.append(figures("d", "replicas"))
    columns.append(wrapped("fails"))
    if result.intervals and not result.rated:
        columns.append(words("80 % sure"))
    rates = ["done", "tokens/s"] if "rate" in keys else ["offered", "done", "tokens/s"]
    if result.limits:
        rates.append("goodput")
    columns += [
        figures(_short, *(f"{name.upper()} {q}" for name, q in _quantities(result.limits)), *rates),
        figures("", "waiting"),
        figures("d", "running", *(name.replace("_", " ") for name in counts)),
    ]
    return Table.of(title, columns, (_row(result, keys, *row, knee, counts) for row in rows))


def _row(
    result: Sweep, keys: Sequence[str], setting: Setting, f: SweepFigures, knee: Knee | None, counts: Sequence[str]
) -> Row:
    times = (getattr(getattr(f.run, f"{name}_ms", None), q, None) for name, q in _quantities(result.limits))
    rates = [*([f.offered_rps] if "rate" not in keys else []), f.completed_rps, f.output_tokens_per_s]
    likely = None if f.likely is None else "holds" if f.likely else "may fail"
    return row(
        *(setting.shown(name) for name in keys),
        *([result.replicas(setting.rate)] if result.load_rps else []),
        ", ".join(SHORT.get(name) or _words(name) for name in f.fails),
        *([likely] if result.intervals and not result.rated else []),
        *times,
        *rates,
        *([f.goodput_rps] if result.limits else []),
        f"{100.0 * f.waiting_share:.1f} %",
        f.most_running,
        *(getattr(f.prediction, name) for name in counts),
        style="bold" if knee and setting.rate == knee.rate else "",
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
    rows = [(setting.rate, figures.warnings) for setting, figures in block.predicted]
    begun: dict[str, tuple[float | None, str]] = {}
    for rate, texts in rows:
        for text in texts:
            begun.setdefault(re.sub(r"[0-9.]+", "", text), (rate, text))
    narrow = dict.fromkeys(text for _, figures in block.predicted for text in figures.narrow)
    said = [
        text if rate is None or all(text in texts for _, texts in rows) else f"from rate {rate_figure(rate)}: {text}"
        for rate, text in begun.values()
    ]
    return [*said, *narrow]  # intervals are looked at for some rows only
