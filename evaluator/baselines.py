"""Baselines: the errors of simple and published models on the same experiments, by the same fit and replay.

Every table of errors shows them for comparison; BASELINES says what each is. The published coefficients from which the
host's default form is fitted are believed within a share (`BELIEVED` of evaluator.fit.problem) until the runs say
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import groupby

from archive.score import Errors
from evaluator.fit.fit import BLACKBOX, fit, fit_set
from evaluator.judge.variants import KERNEL_STEP
from evaluator.score import SCORE_SEEDS, error_rows, score_set
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.parse import parse
from simulator.serving.bundled import published_errors
from simulator.serving.experiment import Experiment
from simulator.serving.facts import has_curves, has_latent_attention
from simulator.serving.gpu import Mfu

_NO_OVERHEADS = """
def queueing_time(r, s):
    return 0

def output_token_time(s):
    return 0

def completion_time(s):
    return 0
"""
_ROOFLINE = f"""
def step_time(b, s):
    return max(b.total_flops / s.flops_per_us, b.total_bytes / s.bytes_per_us)
{_NO_OVERHEADS}"""
_HOST_ROOFLINE = f"""
def step_time(b, s, *, mfu_prefill: one = {{prefill!r}}, mfu_decode: one = {{decode!r}}, wide: byte = 2.0):
    prefill = (b.prefill_gemm_us + b.prefill_attention_us) / mfu_prefill
    decode = (b.decode_gemm_us + b.decode_attention_us) / mfu_decode
    output_projection = wide * s.vocab * s.hidden / s.tp / s.bytes_per_us
    memory = b.weight_read_us - output_projection + b.kv_read_us + b.kv_write_us
    return max(prefill + decode, memory)
{_NO_OVERHEADS}"""
_FLOOR = """
def step_time(b, s, *, floor: us = 4000.0, compute: one[0, 100] = 1.0):
    return max(floor, compute * (b.weight_read_us + b.kv_read_us))
"""
HOST_ROOFLINE = "host roofline"
TRAINED_PHYSICS = "trained physics"
TRAINED_PHYSICS_PUBLISHED = "trained physics published"
_KERNEL_SUM = KERNEL_STEP + _NO_OVERHEADS
_TRAINED_PHYSICS = resources.files("seeds").joinpath("trained_physics.py").read_text("utf-8")
_NAIVE = "def step_time(b, s, *, mean: us = 10000.0): return mean"


def datasheet() -> Program:
    """The unfitted roofline, which no deployment can beat."""
    return complete(parse(_ROOFLINE, "roofline"))


def host_roofline(mfu: Mfu) -> str:
    """The text of the host's own roofline for GPUs with these shares of the peak.

    Compute is the sum over both phases of FLOPs / (peak x MFU of the phase). Memory is the weights, read once, and the
    KV cache read and written, over bandwidth. A step takes the larger of the two; layers, steps and requests add no
    overhead. Like the host, it counts the layers without the output projection. Unlike the host, it ignores softmax,
    rotary embeddings and activations, which are small, and it always counts three matrices in a feed-forward block,
    while later versions of the host count two.

    Source: github.com/inference-sim/inference-sim, rooflineStepTime in sim/latency/roofline.go; the defaults of `Mfu`
    are those of its first hardware_config.json.
    """
    return _HOST_ROOFLINE.format(prefill=mfu.prefill, decode=mfu.decode)


def _in_form(facts: Mapping[str, float]) -> bool:
    """True if the host's trained-physics form counts the deployment's work.

    It has no term for the projections of latent attention. It has none for data parallelism either, which no experiment
    has: an experiment is one engine.
    """
    return not has_latent_attention(facts)


ONE_SET = "fitted here, one set for all"
# Seed programs that a search has to beat, in the same folds.
SEEDS = {
    "kernels": "the measured kernels with a factor each, by hand",
    "terms": "these and what a study of public runs named, by hand",
}


def _seed(name: str) -> str:
    return resources.files("seeds").joinpath(f"{name}.py").read_text("utf-8")


@dataclass(frozen=True, slots=True)
class Baseline:
    """A simple or published model.

    what: what it is, in words. short: its name as the head of a column. scope: experiments with equal values of this
    attribute share the constants; None: nothing is fitted. constants: how they were determined. citations: of its form.
    fitted_before: as in `fit`. candidate: fitted as a search fits its candidates. serves: whether it can be fitted to
    and predict a deployment with these facts.
    """

    what: str
    short: str
    program: str
    scope: str | None
    constants: str = ONE_SET
    citations: tuple[str, ...] = ()
    fitted_before: bool = False
    candidate: bool = False
    serves: Callable[[Mapping[str, float]], bool] = lambda facts: True


_HOST = ("github.com/inference-sim/inference-sim",)
ROOFLINE_PAPER = "Williams, Waterman and Patterson 2009, CACM 52(4)"
_PAPER, _KERNELS = (ROOFLINE_PAPER,), ("AIConfigurator (configs/kernels)",)
_PER_MODEL, _PER_RUN = "fitted here, one set per model", "fitted here, one set per experiment"
_BY_MFU, _MEASURED = "none: datasheet, MFU of the hardware table", "none: measured kernels"
_REFITTED = "fitted here from the published constants, one set for all"
_PUBLISHED = "none: published by the host, whose default backend it is"
BASELINES = {
    "naive mean": Baseline("one step time for everything", "naive", _NAIVE, "all"),
    "blackbox": Baseline("the host's linear form", "bbox", BLACKBOX, "all", citations=_HOST),
    "blackbox per model": Baseline(
        "the host's linear form for each model alone", "bbox-m", BLACKBOX, "model", _PER_MODEL, _HOST
    ),
    "blackbox per experiment": Baseline(
        "the host's linear form for each run alone", "bbox-e", BLACKBOX, "id", _PER_RUN, _HOST
    ),
    "roofline": Baseline("the datasheet alone", "roof", _ROOFLINE, None, "none: datasheet", _PAPER),
    HOST_ROOFLINE: Baseline("the host's analytical model", "host", _HOST_ROOFLINE, None, _BY_MFU, _HOST),
    "kernel sum": Baseline(
        "the measured kernels, nothing around them", "kern", _KERNEL_SUM, None, _MEASURED, _KERNELS, serves=has_curves
    ),
    **{
        f"seed {name}": Baseline(what, name, _seed(name), "all", citations=_KERNELS, candidate=True, serves=has_curves)
        for name, what in SEEDS.items()
    },
    "overhead floor": Baseline("the larger of a floor and the memory time", "floor", _FLOOR, "all", citations=_PAPER),
    TRAINED_PHYSICS: Baseline(
        "the host's default form",
        "phys",
        _TRAINED_PHYSICS,
        "all",
        _REFITTED,
        _HOST,
        fitted_before=True,
        serves=_in_form,
    ),
    TRAINED_PHYSICS_PUBLISHED: Baseline(
        "the host's default form as published", "phys-p", _TRAINED_PHYSICS, None, _PUBLISHED, _HOST, serves=_in_form
    ),
}
NAMES = tuple(BASELINES)
SHARED = tuple(name for name, a in BASELINES.items() if a.scope in (None, "all"))  # those that predict any run
UNFITTED = tuple(name for name, a in BASELINES.items() if a.scope is None)


@dataclass(frozen=True, slots=True)
class BaselineTask:
    """One fit of a baseline, and the experiments that it then predicts."""

    name: str
    fitted: tuple[Experiment, ...]
    predicted: tuple[Experiment, ...]


def tasks(fitted: Sequence[Experiment], everything: Sequence[Experiment]) -> list[BaselineTask]:
    """The work of all baselines, in pieces that may run in any order."""
    tasks: list[BaselineTask] = []
    for name, answer in BASELINES.items():
        fittable = tuple(e for e in fitted if answer.serves(e.facts))
        predictable = tuple(e for e in everything if answer.serves(e.facts))
        if name == HOST_ROOFLINE:  # every MFU has its own program
            mfus = dict.fromkeys(e.mfu for e in predictable)
            tasks += [BaselineTask(name, (), tuple(e for e in predictable if e.mfu == mfu)) for mfu in mfus]
        elif answer.scope is None:
            tasks.append(BaselineTask(name, (), predictable))
        elif answer.scope == "all":
            if fittable:
                tasks.append(BaselineTask(name, fittable, predictable))
        else:
            scope = answer.scope
            ordered = sorted(fittable, key=lambda e: str(getattr(e, scope)))
            for value, group in groupby(ordered, key=lambda e: str(getattr(e, scope))):
                predicted = tuple(e for e in predictable if getattr(e, scope) == value)
                tasks.append(BaselineTask(name, tuple(group), predicted))
    return tasks


def solve(task: BaselineTask, seeds: Sequence[int] = SCORE_SEEDS) -> list[Errors]:
    """The errors of one task; step times out of range are clamped, as the host does."""
    return error_rows(program_of(task), score_set(task.predicted, seeds))


def form(name: str, mfu: Mfu | None = None) -> Program:
    """The program of a baseline before any fit; the host's roofline is that of GPUs with this `mfu`."""
    text = host_roofline(mfu or Mfu()) if name == HOST_ROOFLINE else BASELINES[name].program
    return complete(parse(text, name))


def program_of(task: BaselineTask) -> Program:
    """The program of one task, with its constants fitted if the task fits any."""
    program = form(task.name, task.predicted[0].mfu if task.name == HOST_ROOFLINE else None)
    if task.name in UNFITTED:
        return program
    of = BASELINES[task.name]
    data, before = fit_set(task.fitted, in_steps=True), of.fitted_before
    return fit(program, data, allow_hostile=True, reset_to_prior=of.candidate, fitted_before=before).program


def published() -> dict[str, list[Errors]]:
    """The published absolute errors by system. Their ITL errors refer to the harness's ITL, half the true one."""
    by_system: dict[str, dict[str, dict[str, float]]] = {}
    for row in published_errors():
        by_system.setdefault(row.system, {}).setdefault(row.experiment, {})[row.metric] = row.abs_error_pct
    return {
        system: [Errors(name, m.get("e2e"), m.get("ttft"), m.get("itl")) for name, m in experiments.items()]
        for system, experiments in by_system.items()
    }
