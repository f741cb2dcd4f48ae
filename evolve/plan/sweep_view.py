"""A sweep in a terminal: what each deployment serves, then a table with its knee for each."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from evaluator.metrics import LONGER, WAITING
from evolve.output.columns import NUMBER, Column, figures, words, wrapped
from evolve.output.columns import columns as declared
from evolve.output.printing import LINES, NAMED, ROWS, more, note, prose, say_once, show
from evolve.output.table import Row, Table, number, row
from evolve.output.terms import legend
from evolve.plan.axes import Setting, figure, rate_figure
from evolve.plan.slo import SloLimit
from evolve.plan.sweep_result import COUNTS, LOST, MOST_LOST, NOTHING, QUEUE, Block, Knee, Sweep, SweepFigures
from simulator.common.text import counted
from simulator.serving.observations import QUANTITIES

UNITS = "requests/s; TTFT, E2E and ITL: ms; tokens/s: of answers"
ITL_LEGEND = "ITL: a request's mean time per token after the first, so its p99 is over requests, not over tokens"
WAITING_LEGEND = (
    f"waiting: share of the mean E2E spent in the queue; queue: beyond {100 * WAITING:.0f} %, and the second half of "
    f"the requests waits {LONGER:g} times as long as the first, in the whole run and in a stage: the queue grows. "
    "running: most requests in a batch"
)
CAPACITY = "Each deployment is one replica; `evolve plan` counts those that a load needs"
CLOSED = "Each deployment is one replica, and each client waits for its answer before it asks again"
BY_SEED = "By seed: the highest rate that meets all limits under each arrival seed alone"
RECORDED = " (-: a trace, the same under every seed)"
LIKELY = "80 % sure: the highest rate that meets all limits even at the upper ends of the 80 % intervals"
NARROW = "; ?: the intervals may be too narrow, see below"
NO_LIKELY = "Latencies have intervals in `evolve predict` without --sweep"
NO_LIMITS = "Without --slo only a queue that grows is too much, however long requests take"
LATENCIES = (("ttft", ("mean", "p50", "p90", "p99")), ("e2e", ("mean", "p99")), ("itl", ("mean", "p99")))
RATES = 24  # of a deployment, that need no -v
LOST_LEGEND = f"requests fail: more than {100 * MOST_LOST:.0f} % are refused or given up, and have no latencies"
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
    compared = result.rated and len(result.blocks) > 1
    prose(f"Predictions of {result.name}{averaged}{_slo(result.limits)}", "bold")
    if compared:
        left += show(_capacity(result), most)
        if explain:
            note(_capacity_legend(result))
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


def _print_legend(result: Sweep, every: Sequence[SweepFigures]) -> None:
    """The meanings of the words that occur in the tables."""
    rates = ["rate"] if result.axes.rate else ["offered"]
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
    """The last load that holds on every deployment, as it is, per GPU, under every arrival seed and at the upper ends
    of intervals."""
    likely = ["80 % sure"] if result.intervals else []
    unit = "requests/s" if result.axes.load == "rate" else "clients at once"
    heads = ["GPUs", "holds up to", "per GPU", "by seed", *likely]
    rows = [row(*_served(result, block), short=block.knee is None) for block in result.blocks]
    return Table.of(f"Load that each deployment serves, {unit}", [words("deployment"), figures("", *heads)], rows)


def _served(result: Sweep, block: Block) -> list[str]:
    """The cells of a deployment about the loads that it serves."""
    gpus, knee = block.setting.gpus, block.knee
    cells = [result.label(block), str(gpus)]
    if knee is None:
        return [*cells, "impossible"]

    def text(load: float | None) -> str:
        return f"{rate_figure(load)}{more_than(load)}" if load else "none"

    def more_than(load: float | None) -> str:
        return " or more" if load == knee.last else ""

    per_gpu = f"{_short(knee.holds_up_to / gpus)}{more_than(knee.holds_up_to)}" if knee.holds_up_to else "-"
    likely = [f"{text(knee.likely)}{' ?' if knee.narrow else ''}"] if result.intervals else []
    return [*cells, text(knee.holds_up_to), per_gpu, text(knee.sure) if knee.drawn else "-", *likely]


def _capacity_legend(result: Sweep) -> str:
    texts = [CAPACITY if result.axes.load == "rate" else CLOSED]
    knees = [block.knee for block in result.blocks if block.knee]
    texts.append(BY_SEED if all(knee.drawn for knee in knees) else BY_SEED + RECORDED)
    texts.append(_likely_legend(any(knee.narrow for knee in knees)) if result.intervals else NO_LIKELY)
    if not result.limits:
        texts.append(NO_LIMITS)
    return "".join(f"{text}. " for text in texts).strip()


def _likely_legend(narrow: bool) -> str:
    return LIKELY + NARROW if narrow else LIKELY


def _slo(limits: Sequence[SloLimit]) -> str:
    return "".join(f", {limit.words} <= {figure(limit.most_ms)} ms" for limit in limits)


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
