"""The results of a sweep: figures of every combination of load and engine settings, and knees along the load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import takewhile

from evaluator.metrics import LATENCIES
from evaluator.score import Prediction
from evolve import __version__
from evolve.output.columns import column, columns, row_class
from evolve.plan.axes import Axes, Setting
from evolve.plan.by_stage import StageRun
from evolve.plan.forecast import Intervals
from evolve.plan.slo import SloLimit
from simulator.common.json import JsonObject
from simulator.language.ir import Program
from simulator.language.key import key
from simulator.language.unparse import unparse
from simulator.serving.observations import Observation

QUEUE = "queue grows"
LOST = "requests fail"
NOTHING = "nothing completes"
COUNTS = ("preemptions", "refused", "gave_up")  # of a prediction
MOST_LOST = 0.01  # of the requests may be refused or given up: their latencies would be beyond any p99


def _share(share: float) -> str:
    return f"{100.0 * share:.1f} %"


@row_class
class SweepFigures:
    """The predictions for one combination, averaged over arrival seeds. Its columns are keys of JSON, too, and those
    with a `brief` head are in the terminal.

    holds: True for each limit that holds; None where no request has such a latency. fails: the limits that do not
    hold, and QUEUE, LOST or NOTHING. likely, likely_95: True if everything holds at the upper ends of the 80 and the
    95 % intervals, too; None without a judgement or intervals. narrow: reasons why these may be too narrow. stages:
    every load stage, if there are several.
    """

    offered_rps: float = column("requests per second that arrive, while they arrive", brief="offered")
    completed_rps: float = column(
        "requests per second that complete, until the last one has ended", paper=True, brief="done"
    )
    output_tokens_per_s: float = column("tokens per second of the answers of these", paper=True, brief="tokens/s")
    goodput_rps: float | None = column(
        "requests per second that complete within every limit of `--slo`; missing: no limits", brief="goodput"
    )
    waiting_share: float = column("share of the mean E2E spent in the queue", brief="waiting", format=_share)
    queue_grows: bool = column("whether requests wait longer and longer")
    most_running: int = column("the most requests in a batch at once", brief="running")
    seeds_holding: int = column("number of arrival seeds under which, alone, everything holds")
    prediction: Prediction
    holds: Mapping[str, bool | None]
    fails: tuple[str, ...]
    seeds: int
    warnings: tuple[str, ...]
    likely: bool | None = None
    likely_95: bool | None = None
    intervals: Intervals = field(default_factory=dict)
    narrow: tuple[str, ...] = ()
    stages: tuple[StageRun, ...] = ()

    @property
    def run(self) -> Observation | None:
        """The predicted latencies and counts."""
        return self.prediction.predicted.summary


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One combination: its figures, or why it is impossible."""

    setting: Setting
    figures: SweepFigures | None = None
    impossible: str | None = None


@dataclass(frozen=True, slots=True)
class Knee:
    """The first load that does not hold, and what `fails` there; None and nothing if all do. Loads are requests/s, or
    clients at once; all below are loads.

    holds_up_to: the last rate before it, None if it is the first. sure: the last rate up to which all hold under every
    arrival seed alone; None for a trace, too, which is the same under every seed (not `drawn`). likely: the highest
    rate up to holds_up_to at which all hold at the upper ends of the 80 % intervals, too; None if there is none, or no
    intervals. narrow: True if these may be too narrow there. last: the highest rate that was predicted.
    """

    load: float | None
    fails: tuple[str, ...]
    holds_up_to: float | None
    sure: float | None
    drawn: bool
    likely: float | None
    narrow: bool
    last: float


@dataclass(frozen=True, slots=True)
class Block:
    """The rows of an experiment with the same engine settings, in ascending order of load; `setting` has no load.

    drawn: True if its requests differ between arrival seeds.
    """

    experiment: str
    model: str
    setting: Setting
    rows: tuple[SweepRow, ...]
    drawn: bool = True

    @property
    def predicted(self) -> list[tuple[Setting, SweepFigures]]:
        """The figures of every combination that is possible."""
        return [(row.setting, row.figures) for row in self.rows if row.figures]

    @property
    def rank(self) -> tuple[float, ...]:
        """Ascending from the best: by the last load that holds; of a load that is not varied by whether it holds, then
        by its goodput or what completes. Deployments with fewer GPUs come first among equal ones."""
        knee, last = self.knee, self.predicted[-1][1] if self.predicted else None
        held = (knee.holds_up_to or 0.0) if knee else float(bool(last and not last.fails))
        good = 0.0
        if last:
            good = last.completed_rps if last.goodput_rps is None else last.goodput_rps
        return -float(last is not None), -held, -good, self.setting.gpus

    @property
    def knee(self) -> Knee | None:
        """The knee along the load; None if the load is not varied, or nothing was predicted."""
        rated = [(setting.level, figures) for setting, figures in self.predicted if setting.level is not None]
        if not rated:
            return None
        held = [load for load, _ in takewhile(lambda pair: not pair[1].fails, rated)]
        every = [load for load, _ in takewhile(lambda pair: pair[1].seeds_holding == pair[1].seeds, rated)]
        likely = [(load, bool(figures.narrow)) for load, figures in rated[: len(held)] if figures.likely]
        up_to, sure = (loads[-1] if loads else None for loads in (held, every))
        surest, narrow = likely[-1] if likely else (None, False)
        load, fails = (None, ()) if len(held) == len(rated) else (rated[len(held)][0], rated[len(held)][1].fails)
        return Knee(load, fails, up_to, sure if self.drawn else None, self.drawn, surest, narrow, rated[-1][0])


@dataclass(frozen=True)
class Sweep:
    """The predictions of a program for all combinations of `axes`, averaged over arrival `seeds`.

    data: hash of the experiments as their file has them. drawn: True if any requests differ between seeds. intervals:
    True if the program has any. warnings: about the program.
    """

    name: str
    program: Program
    data: str
    seeds: tuple[int, ...]
    drawn: bool
    axes: Axes
    limits: tuple[SloLimit, ...]
    blocks: tuple[Block, ...]
    warnings: tuple[str, ...]
    intervals: bool = False

    @property
    def rated(self) -> bool:
        """True if deployments are predicted at several loads, so that they have a knee."""
        return bool(self.axes.levels)

    @property
    def all_impossible(self) -> bool:
        """True if no combination could be predicted."""
        return not any(block.predicted for block in self.blocks)

    @property
    def any_hopeless(self) -> bool:
        """True if no combination of an experiment keeps the limits, without a queue that grows or requests that
        fail."""
        kept = {block.experiment for block in self.blocks for _, figures in block.predicted if not figures.fails}
        return any(block.experiment not in kept for block in self.blocks)

    def in_unit(self, name: str, load: float | None) -> dict[str, float | None]:
        """A load by the name of its figure, which ends with its unit."""
        unit = "concurrency" if self.axes.concurrency else "rps" if name != "{}" else "rate_rps"
        return {name.format(unit): load}

    def label(self, block: Block) -> str:
        """The name of a deployment in tables: the experiment, and the settings that vary besides the load."""
        return block.setting.label(block.experiment, self.axes.others)

    def to_json(self) -> JsonObject:
        return {
            "engine": __version__,
            "data": self.data,
            "seeds": list(self.seeds),
            "program": unparse(self.program),
            "key": key(self.program),
            "sweep": {name: list(values) for name, values in self.axes.values.items()},
            "slo_ms": {limit.name: limit.most_ms for limit in self.limits},
            "intervals": self.intervals,
            "rows": [_row_json(self, block, row) for block in self.blocks for row in block.rows],
            "knees": [_knee_json(self, block, knee) for block in self.blocks if (knee := block.knee)],
            "warnings": list(self.warnings),
        }


def _row_json(result: Sweep, block: Block, row: SweepRow) -> JsonObject:
    f = row.figures
    run = f.run if f else None
    figures: JsonObject = {
        **{name: asdict(getattr(run, name)) if run else None for name in LATENCIES},
        "completed": run.completed if run else None,
        "failed": run.failed if run else None,
        **{c.name: getattr(f, c.name, None) for c in columns(SweepFigures)},
        **{name: getattr(f.prediction, name) if f else None for name in COUNTS},
        "holds": dict(f.holds) if f else {},
        "fails": list(f.fails) if f else [],
        "likely": f.likely if f else None,
        "warnings": [*f.warnings, *f.narrow] if f else [],
    }
    rate = {"rate_rps": row.setting.rate, "concurrency": row.setting.concurrency}
    about = {"experiment": block.experiment, "model": block.model, **rate, **row.setting.deployed}
    return {**about, "impossible": row.impossible, **figures}


def _knee_json(result: Sweep, block: Block, knee: Knee) -> JsonObject:
    return {
        "experiment": block.experiment,
        **block.setting.deployed,
        **result.in_unit("{}", knee.load),
        "fails": list(knee.fails),
        **result.in_unit("holds_up_to_{}", knee.holds_up_to),
        **result.in_unit("holds_under_every_seed_up_to_{}", knee.sure),
        **result.in_unit("likely_holds_up_to_{}", knee.likely),
        "narrow": knee.narrow,
        **result.in_unit("last_{}", knee.last),
    }
