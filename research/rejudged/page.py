"""docs/rejudged.md: a table of the verdicts, and each belief with its experiment, figures and command."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill

from evaluator.score import SCORE_SEEDS
from evolve.output.columns import figures, words
from evolve.output.printing import markdown
from evolve.output.table import Row, Table, number
from research.rejudged.claims import CLAIMS, Judgement
from research.rejudged.finding import Figure
from research.rejudged.verdict import KEPT, OVERTURNED, SEED, UNDECIDED, Estimate, Verdict
from research.rejudged.world import CAP_PCT, World
from simulator.common.text import counted
from simulator.serving.bundled import STEPS

TITLE = "# What earlier rounds believed, judged again"
WIDTH = 128
INTRODUCTION = f"""\
Before this project, people worked on the same runs by hand, in five rounds (the original exercise, public in
github.com/inference-sim/inference-sim, hypotheses/h-stepml). They eliminated approaches, and named constraints that
bound them. Much of that rested on figures that were not what they seemed
([results](results.md#what-the-measurements-taught)): output lengths of a client's re-tokenisation, an ITL that is half
the true one, `step.duration_us`, which is the CPU time of schedule() and not the step, and replays without the prefix
cache. Here each belief is one experiment on the corrected data: true output lengths, ITL = (E2E - TTFT)/(output_len -
1), cycles instead of durations, prefix cache, and two batches in flight.

`make rejudged` computes this page; `.venv/bin/python -m research rejudged NAME ...` a part of it, in the project's
folder. Each experiment has one estimate and one rule, written before its figures. What was changed when first figures
of cycles were there: a difference that is surely below the points that matter overturns a belief now, and did not
decide before (both beliefs on KV features and the logarithm of a step were undecided so); a ratio may be a tenth off;
fits of a single run keep what they leave open at its start; and floors are fitted from several starts (no verdict
changed by these three).

Intervals are 95 % bootstrap intervals: of runs by whole models, of cycles by blocks of consecutive ones, of trainings
and load stages one by one. Errors are absolute, and one beyond {CAP_PCT:g} % counts as {CAP_PCT:g} unless something
else is said. "Own protocol" is that of a method's authors, "our protocol" ours
([methods](concepts.md#methods-of-the-original-exercise))."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A sentence for who uses these beliefs, and the verdicts by belief that it rests on."""

    text: str
    rests_on: Mapping[str, Verdict]


ADVICE = (
    Advice(
        "Do not take a step as the larger of its work and a floor of 3.9 to 9.1 ms: of single steps a sum of overhead "
        "and work is closer, and a step at no load takes about twice those floors; by whole loads neither is surely "
        "better.",
        {"floor-or-sum": OVERTURNED, "step-floors": OVERTURNED, "additive-overhead": UNDECIDED},
    ),
    Advice(
        "Compose a step of analytic FLOPs and bytes, which does better than counts; a form in counts needs constants "
        "of each model, and whether a form that knows the model's size still does is undecided.",
        {"decomposition": OVERTURNED, "counts-for-all": KEPT, "sizes-for-all": UNDECIDED},
    ),
    Advice(
        "Fit the queueing, output token and completion times if TTFT matters, where they are worth many points; E2E "
        "changes by less than one, and scheduling and preemption times change nothing that was measured.",
        {"delays-ttft": OVERTURNED, "delays-e2e": KEPT, "scheduling-preemption": KEPT},
    ),
    Advice(
        "A mean TTFT error of tens of thousands of percent is a queue that runs away in a few runs, for want of the "
        "prefix cache or by steps that are too long, and no limit of replays from specifications: with the cache and "
        "measured kernels it is far below 100 %.",
        {"ttft": OVERTURNED},
    ),
)
LIMITS = """\
- **Mixed steps.** A cycle counts for a mixed batch only if that very batch was sampled, and few were. All of them have
  short prompts, because the cache holds the rest. What a prompt token costs, and how long prompts and decodes share a
  step, is for [measured kernels](plan.md#where-a-steps-time-goes) to say, not for these runs.
- **Two models.** Cycles are of two dense models at TP 2 and 4. Nothing here was measured step by step on Llama-2-7B, on
  a mixture of experts, or on another GPU.
- **Contexts** of the recorded batches were estimated from summaries and the workload, their maximum and spread above
  all.
- **Few models, one look at each belief.** Eight models are few for a bootstrap, whose intervals are then a little
  narrow, and of this many intervals one or two miss by chance. Forms were proposed with some of these runs in sight.
- **A verdict is about these runs**: one engine version, one GPU, loads below capacity. An approach whose elimination is
  kept failed here in this form and by this training, not in every one."""


def page(judgements: Sequence[Judgement], world: World) -> str:
    table = markdown(overview(judgements, linked=True), linked=True)
    parts = [TITLE, INTRODUCTION, _data(world), "## Verdicts", advice(judgements), _counts(judgements), table]
    for judgement in judgements:
        parts += _section(judgement)
    return "\n\n".join([*parts, "## What these runs cannot decide", LIMITS]) + "\n"


def advice(judgements: Iterable[Judgement]) -> str:
    """The sentences of ADVICE whose verdicts still hold."""
    verdicts = {j.claim.name: j.verdict for j in judgements}
    held = [a.text for a in ADVICE if all(verdicts.get(name) == v for name, v in a.rests_on.items())]
    return _wrapped(" ".join(["**In short, for an adopter.**", *held]), "")


def overview(judgements: Iterable[Judgement], linked: bool = False) -> Table:
    """A row for each belief: the verdict and the estimate that it rests on; `linked` to its section of the page."""
    rows = []
    for j in judgements:
        title = f"[{j.claim.title}](#{anchor(j.claim.title)})" if linked else j.claim.title
        rows.append(Row((title, j.claim.name, j.verdict, j.claim.estimate, *_cells(j.finding.estimate))))
    return Table.of(
        "Verdicts",
        [words("belief", "name", "verdict", "estimate"), figures("", "value", "95 %"), words("unit", "of")],
        rows,
    )


def anchor(title: str) -> str:
    """The anchor that a page of Markdown gives a heading.

    >>> anchor("Floors of 3.9 to 9.1 ms")
    'floors-of-39-to-91-ms'
    """
    return "".join(c for c in title.lower() if c.isalnum() or c in " -").replace(" ", "-")


def _section(judgement: Judgement) -> list[str]:
    claim, finding = judgement.claim, judgement.finding
    command = f"`.venv/bin/python -m research rejudged {claim.name}`"
    if claim.methods:
        command += f"; the trainings: `python -m research leaderboard {' '.join(claim.methods)} --steps {STEPS}`"
    facts = [
        f"**Belief.** {claim.belief} {claim.source}",
        f"**Experiment.** {claim.experiment}",
        f"**Rule.** {claim.estimate[0].upper()}{claim.estimate[1:]}: {claim.rule.text}; otherwise undecided.",
        f"**Verdict: {judgement.verdict}.** {_text(finding.estimate)}, from {finding.estimate.of}.",
    ]
    texts = ["\n".join(_wrapped(f"- {fact}", "  ") for fact in facts)]
    if finding.figures:
        texts.append(markdown(figures_table(finding.figures)))
    return [f"### {claim.title}", *texts, *map(_wrapped, finding.notes), f"Repeat: {command}."]


def _wrapped(text: str, indent: str = "") -> str:
    return fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def figures_table(shown: Sequence[Figure]) -> Table:
    """The figures around an estimate; columns that none of them has are left out."""
    medians, intervals = (any(f.median is not None for f in shown), any(f.low is not None for f in shown))
    columns = [words("figure"), figures("", "value")]
    if medians:
        columns.append(figures("", "median"))
    if intervals:
        columns.append(figures("", "95 %"))
    columns.append(words("unit"))
    rows = []
    for f in shown:
        digits = _digits(f.unit)
        spread = f"{_bound(f.low, f)} to {_bound(f.high, f)}" if f.low is not None else ""
        middle = "" if f.median is None else number(f.median, digits, signed=False)
        value = _bound(f.value, f)
        rows.append((f.name, value, *([middle] if medians else []), *([spread] if intervals else []), f.unit))
    return Table.of("", columns, rows)


def _data(world: World) -> str:
    clean = f"[{counted(len(world.experiments), 'clean run')}](results.md#the-data)"
    runs = f"{clean} of {len({e.model for e in world.experiments})} models"
    cycles = sum(len(t.step) for t in world.targets)
    named = ", ".join(t.run.experiment.id for t in world.targets)
    seeds = f"arrival seeds {', '.join(map(str, SCORE_SEEDS))}, bootstrap seed {SEED}"
    return fill(f"Data: {runs}; {cycles:,} cycles of {named}; {seeds}.", WIDTH)


def _counts(judgements: Sequence[Judgement]) -> str:
    counts = Counter(j.verdict for j in judgements)
    parts = f"{counts[KEPT]} are kept, {counts[OVERTURNED]} overturned, {counts[UNDECIDED]} undecided"
    return f"Of {len(judgements)} beliefs {parts}."


def _text(e: Estimate) -> str:
    value = f"{_bound(e.value, e)} {e.unit}".strip()
    return f"{value[0].upper()}{value[1:]} (95 % {_bound(e.low, e)} to {_bound(e.high, e)})"


def _cells(e: Estimate) -> tuple[str, ...]:
    return (_bound(e.value, e), f"{_bound(e.low, e)} to {_bound(e.high, e)}", e.unit, e.of)


def _bound(value: float | None, of: Estimate | Figure) -> str:
    """The value with the decimals of its unit; one at an end of the range that was searched is only a bound."""
    if value is not None and of.searched is not None:
        low, high = of.searched
        if math.isclose(value, high):
            return f"at least {high:g}"
        if math.isclose(value, low):
            return f"at most {low:g}"
    return number(value, _digits(of.unit), signed=False)


def _digits(unit: str) -> int:
    if unit.startswith("of ") and unit != "of the shorter":
        return 0  # a count
    return 1 if unit in ("%", "points", "ms", "tokens") else 2


def complete(judgements: Sequence[Judgement]) -> bool:
    """Return True if every belief was judged, in order."""
    return [j.claim.name for j in judgements] == [c.name for c in CLAIMS]
