"""The result of a plan: the cheapest deployments that keep the limits, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from evaluator.cells import precision_of
from evaluator.intervals import LEVELS
from evaluator.metrics import LATENCIES
from evolve import __version__
from evolve.output.columns import column, columns, number, row_class, several
from evolve.plan.axes import Axes, Setting, figure, rate_figure
from evolve.plan.by_stage import ByStage
from evolve.plan.deployment import Deployment
from evolve.plan.pictures import Pictures
from evolve.plan.prediction_rows import bands, figures_of, interval_bounds
from evolve.plan.replicas import MOST_TIMES
from evolve.plan.slo import SloLimit
from evolve.plan.sweep_result import SweepFigures
from evolve.plan.vllm import serve
from simulator.common.json import JsonObject
from simulator.common.records import to_json
from simulator.common.text import counted
from simulator.language.ir import Program
from simulator.language.key import key
from simulator.language.unparse import unparse
from simulator.serving.engine import STANDARD
from simulator.serving.gpu import gpu_names
from simulator.serving.observations import QUANTITIES
from simulator.serving.spec import Spec
from simulator.serving.workload import Profile, Workload, mean_rate, output_lengths, prompt_lengths

SHOWN = 15  # deployments of the table
HOUR_S, MILLION = 3600.0, 1e6
GPU_MINUTES, RUN_MINUTES, MOST_RUNS = 60, 4, 3  # of a test, and of one of its runs, about


def gpu_name(name: str) -> str:
    """The shortest name of a GPU: H100 of H100-SXM-80GB."""
    return min((name, *gpu_names(name)), key=len)


def _options(w: Workload, replicas: int) -> str:
    """The options of a replica's share of a load with a rate and constant lengths; "" for others."""
    rate, source = mean_rate(w), w.source
    if rate is None or len(w.stages) > 1 or not isinstance(source, Profile) or source.session:
        return ""
    prompt, output = source.question_len.fixed, source.output_len.fixed
    if prompt is None or output is None:
        return ""
    shared = f" --shared-prefix {source.system_prompt_len}:{source.groups}" if source.system_prompt_len else ""
    return f" --rate {rate / replicas:.4g} --prompt-len {prompt:g} --output-len {output:g}{shared}"


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@row_class
class PlanRow:
    """A deployment with the fewest replicas that keep the limits, and the figures of one of them.

    Of deployments that differ in the limits of a batch alone, the best.
    """

    rank: int = column("its place, the cheapest first")
    hardware: str = column("the GPU", paper=True)
    weights: str = column("type of the weights", paper=True)
    tp: int = column("tensor parallelism: GPUs", paper=True)
    data_parallel: int = column("ranks of `tp` GPUs")
    expert_parallel: int = column("GPUs over which whole experts are spread; 1: each expert is split")
    max_num_seqs: int = column("most requests in a batch")
    max_num_batched_tokens: int = column("most new tokens in a step")
    max_model_len: int = column("longest sequence, tokens")
    replicas: int = column("replicas that share the load", paper=True)
    gpus: int = column("GPUs of all replicas", paper=True)
    gpus_80: int | None = column(
        "GPUs with which everything holds at the upper ends of the 80 % intervals; missing: no intervals, or more than "
        "four times as many"
    )
    gpus_95: int | None = column("the same of the 95 % intervals")
    usd_per_hour: float | None = column("dollars per hour; missing: no prices", paper=True)
    usd_per_million_output_tokens: float | None = column("dollars per million tokens of the answers", paper=True)
    output_tokens_per_s: float = column("tokens per second of the answers of all replicas")
    headroom_pct: float | None = column("smallest distance to a limit, in percent of it; missing: no limits")
    figures: SweepFigures
    deployment: Deployment

    @classmethod
    def of(
        cls,
        rank: int,
        deployment: Deployment,
        figures: SweepFigures,
        replicas: int,
        sure: tuple[int | None, ...],
        headroom: float,
        prices: Mapping[str, float],
    ) -> PlanRow:
        """sure: the replicas for being sure, of LEVELS; () without intervals. headroom: a share of a limit."""
        s, e = deployment.setting, deployment.built
        tokens_per_s = figures.output_tokens_per_s * replicas
        usd = prices[s.hardware] * s.gpus * replicas if prices else None
        sure_gpus = [n * s.gpus if n else None for n in sure] or [None, None]
        return cls(
            rank=rank,
            hardware=s.hardware,
            weights=precision_of(e),
            tp=s.tp,
            data_parallel=s.data_parallel,
            expert_parallel=s.expert_parallel,
            max_num_seqs=e.engine.max_num_seqs,
            max_num_batched_tokens=e.engine.max_num_batched_tokens,
            max_model_len=int(e.facts["max_model_len"]),
            replicas=replicas,
            gpus=s.gpus * replicas,
            gpus_80=sure_gpus[0],
            gpus_95=sure_gpus[1],
            usd_per_hour=usd,
            usd_per_million_output_tokens=usd and usd / HOUR_S / tokens_per_s * MILLION,
            output_tokens_per_s=tokens_per_s,
            headroom_pct=100.0 * headroom if figures.holds else None,
            figures=figures,
            deployment=deployment,
        )

    @property
    def setting(self) -> Setting:
        return self.deployment.setting


ROWS = (
    *columns(PlanRow),
    *(
        number(f"{latency.removesuffix('_ms')}_{q}_ms", f"predicted {q} {latency.removesuffix('_ms').upper()}")
        for latency in LATENCIES
        for q in QUANTITIES
    ),
    *bands(),
    several("warnings", "what to know before using the figures"),
)


def plan_row(row: PlanRow) -> dict[str, object]:
    """The row of ROWS of a deployment."""
    latencies = {name: v for name, v in figures_of(row.figures.run).items() if name.endswith("_ms")}
    said = {"warnings": (*row.figures.narrow, *row.figures.warnings)}
    return {
        **{c.name: getattr(row, c.name) for c in columns(PlanRow)},
        **latencies,
        **interval_bounds(row.figures.intervals),
        **said,
    }


@dataclass(frozen=True)
class Plan:
    """The answer to a plan.

    spec: the model, its engine and the load of the whole service. axes: what varied. prices: dollars per GPU hour by
    GPU. considered: candidates; others: those that hold with no number of replicas, or with more than the table has
    room for. impossible: why others cannot run. failing: without any row, what fails. by_stage: of the first row.
    cautions: what the first row stands on, the most important first. warnings: about the program. intervals: True if
    the program has any.
    """

    name: str
    program: Program
    data: str
    seeds: tuple[int, ...]
    spec: Spec
    axes: Axes
    limits: tuple[SloLimit, ...]
    prices: Mapping[str, float]
    considered: int
    rows: tuple[PlanRow, ...]
    others: int
    impossible: tuple[str, ...]
    failing: tuple[str, ...]
    by_stage: ByStage | None
    cautions: tuple[str, ...]
    warnings: tuple[str, ...]
    intervals: bool
    pictures: Pictures | None = None

    @property
    def best(self) -> PlanRow | None:
        """The first row."""
        return self.rows[0] if self.rows else None

    @property
    def serve(self) -> str | None:
        """vLLM's command line for a replica of the first row."""
        return serve(self.best.deployment.built) if self.best else None

    @property
    def probe(self) -> str | None:
        """The command that chooses runs of about an hour of a GPU to test the first row with; None without intervals,
        and of a model or GPU that is not known by name."""
        best = self.best
        spec = best.deployment.built.spec if best else None
        if best is None or spec is None or spec.pools or spec.model.given or not self.intervals:
            return None
        if not isinstance(spec.gpu.to_entry(), str):
            return None
        engine = spec.engine.to_entry()
        tp = engine.pop("tensor_parallel", 1)
        runs = max(1, GPU_MINUTES // (RUN_MINUTES * best.setting.gpus))
        own = {name: value for name, value in engine.items() if value != getattr(STANDARD, name)}
        options = "".join(f" --engine {name}={_plain(value)}" for name, value in own.items())
        replicas = (best.gpus_80 or best.gpus) // best.setting.gpus
        load = _options(self.spec.workload, replicas)
        what = f"--model {self.spec.model.called} --hardware {gpu_name(best.hardware)} --tp {tp}{options}{load}"
        return f"evolve probe {self.name} {what} --budget-runs {min(runs, MOST_RUNS)}"

    def to_json(self) -> JsonObject:
        workload, best, stages = self.spec.workload, self.best, self.by_stage
        hours = stages.gpu_hours(best.setting.gpus) if stages and best else None
        return {
            "engine": __version__,
            "data": self.data,
            "seeds": list(self.seeds),
            "program": unparse(self.program),
            "key": key(self.program),
            "model": self.spec.model.name,
            "rate_rps": mean_rate(workload),
            "concurrency": max(s.users or 0 for s in workload.stages) or None,
            "slo_ms": {limit.name: limit.most_ms for limit in self.limits},
            "usd_per_gpu_hour": dict(self.prices),
            "considered": self.considered,
            "others": self.others,
            "rows": [_row_json(self, row) for row in self.rows],
            "serve": self.serve,
            "probe": self.probe,
            "by_stage": [need.to_json(best.setting.gpus) for need in stages.needs] if stages and best else [],
            "gpu_hours": hours[0] if hours else None,
            "gpu_hours_by_stage": hours[1] if hours else None,
            "impossible": list(self.impossible),
            "failing": list(self.failing),
            "cautions": list(self.cautions),
            "warnings": list(self.warnings),
            "pictures": to_json(self.pictures) if self.pictures else None,
        }


def _row_json(plan: Plan, row: PlanRow) -> JsonObject:
    values: JsonObject = {"deployment": name_of(plan, row)} | {c.name: getattr(row, c.name) for c in columns(PlanRow)}
    run = row.figures.run
    values |= {name: asdict(getattr(run, name)) if run else None for name in LATENCIES}
    values["intervals_ms"] = {
        figure: {
            **{f"{100 * level:.0f}": list(band) for level, band in bands.at.items()},
            "calibrated": bands.calibrated,
        }
        for figure, bands in row.figures.intervals.items()
    }
    values["warnings"] = [*row.figures.narrow, *row.figures.warnings]
    return values


def answer(plan: Plan) -> str:
    """The answer in a sentence."""
    load = _load(plan)
    if plan.best is None:
        limits = " and ".join(f"{limit.words} <= {figure(limit.most_ms)} ms" for limit in plan.limits)
        return f"No deployment serves {load} of {plan.spec.model.called}{f' with {limits}' if limits else ''}."
    best = plan.best
    gpus = f"{counted(best.gpus, gpu_name(best.hardware))}{_usd(plan, best, best.gpus)}{_sure(plan, best)}"
    replicas = f"{counted(best.replicas, 'replica')} of {best.weights}, {_parallel(best)}"
    return f"{load} of {plan.spec.model.called} need {gpus}: {replicas}."


def _usd(plan: Plan, best: PlanRow, gpus: int) -> str:
    """The price of so many of its GPUs, as `, $20.00 an hour`; "" without prices."""
    return f", ${plan.prices[best.hardware] * gpus:,.2f} an hour" if plan.prices else ""


def _sure(plan: Plan, best: PlanRow) -> str:
    """How many GPUs it takes to be sure of the first row: ` (16 to be 80 % sure, 20 for 95 %)`."""
    low, high = (f"{100 * level:.0f} %" for level in LEVELS)
    if not plan.intervals:
        return ""
    if best.gpus_80 is None:
        return f" (the {low} interval exceeds a limit even with {MOST_TIMES} times as many)"
    usd = _usd(plan, best, best.gpus_80) if best.gpus_80 > best.gpus else ""
    if best.gpus_95 == best.gpus_80:
        return f" ({best.gpus_80} to be {low} and {high} sure{usd})"
    more = f", {best.gpus_95} for {high}" if best.gpus_95 else f"; no number is {high} sure"
    return f" ({best.gpus_80} to be {low} sure{usd}{more})"


def _load(plan: Plan) -> str:
    workload = plan.spec.workload
    rate, peak = mean_rate(workload), max(stage.rate for stage in workload.stages)
    if rate is None:
        return f"{max(stage.users or 0 for stage in workload.stages):,} clients"
    if len(workload.stages) > 1:
        return f"{rate:.4g} requests/s on average, {peak:.4g} at most,"
    return f"{rate_figure(rate)} requests/s"


def asked(plan: Plan) -> str:
    """The load and the limits in a sentence, as they were understood."""
    w, source = plan.spec.workload, plan.spec.workload.source
    lengths = [("prompts", prompt_lengths(w)), ("answers", output_lengths(w))]
    said = [f"{name} of {_tokens(x)}" for name, x in lengths]
    if isinstance(source, Profile) and source.system_prompt_len:
        said[0] += f", {source.system_prompt_len:,} of them shared in {counted(source.groups, 'group')}"
    limits = [f"{limit.words} at most {figure(limit.most_ms)} ms" for limit in plan.limits]
    prices = [f"{gpu_name(name)} ${usd:g}" for name, usd in plan.prices.items()]
    parts = [*said, *limits, *([f"a GPU hour of {', '.join(prices)}"] if prices else [])]
    return f"Asked: {'; '.join(parts)}."


def _tokens(lengths: np.ndarray) -> str:
    low, high = int(lengths.min()), int(lengths.max())
    return f"{low:,} tokens" if low == high else f"{low:,} to {high:,} tokens, {lengths.mean():,.0f} on average"


def _parallel(r: PlanRow) -> str:
    """The parallelism in words: `TP 4, DP 2, EP 8`."""
    if r.setting.decode is not None:
        return f"{r.setting.prefill} prefill and {r.setting.decode} decode instances"
    others = (("DP", r.data_parallel), ("EP", r.expert_parallel))
    return ", ".join([f"TP {r.tp}", *(f"{name} {value}" for name, value in others if value > 1)])


def name_of(plan: Plan, r: PlanRow) -> str:
    """A row of the table in few words, with the limits of a batch that vary."""
    parts = [gpu_name(r.hardware), r.weights, _parallel(r).replace(",", "")]
    parts += [f"seqs {r.max_num_seqs}"] if len(plan.axes.max_num_seqs) > 1 else []
    parts += [f"tokens {r.max_num_batched_tokens}"] if len(plan.axes.max_num_batched_tokens) > 1 else []
    return " ".join(parts)
