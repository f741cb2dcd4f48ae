"""Known answers: the errors of simple and published models on the same experiments, by the same fit and replay.

Every table of errors shows them for comparison. naive mean: one step time for everything. blackbox: the host's linear
form, with one set of constants for all, per model or per experiment. overhead floor: the larger of a floor and the
memory time. With nothing fitted: roofline, the datasheet alone; host roofline, the host's analytical model; kernel sum,
the measured kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from evaluator.experiments import published_errors
from evaluator.fit.fit import BLACKBOX, fit, fit_set
from evaluator.judge.kernel_sums import KERNEL_STEP
from evaluator.score import SCORE_SEEDS, Errors, error_rows, score_set
from simulator.experiment.experiment import Experiment, Mfu
from simulator.experiment.facts import has_curves
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.parse import parse

_NO_OVERHEADS = """
def queueing_time(r, s):
    return 0

def output_token_time(s):
    return 0

def completion_time(s):
    return 0
"""
_ROOFLINE = (
    """
def step_time(b, s):
    return max(b.total_flops / s.flops_per_us, b.total_bytes / s.bytes_per_us)
"""
    + _NO_OVERHEADS
)
_HOST_ROOFLINE = (
    """
def step_time(b, s, *, mfu_prefill: one = {prefill!r}, mfu_decode: one = {decode!r}, wide: byte = 2.0):
    prefill = (b.prefill_gemm_us + b.prefill_attention_us) / mfu_prefill
    decode = (b.decode_gemm_us + b.decode_attention_us) / mfu_decode
    output_projection = wide * s.vocab * s.hidden / s.tp / s.bytes_per_us
    memory = b.weight_read_us - output_projection + b.kv_read_us + b.kv_write_us
    return max(prefill + decode, memory)
"""
    + _NO_OVERHEADS
)
_FLOOR = """
def step_time(b, s, *, floor: us = 4000.0, compute: one[0, 100] = 1.0):
    return max(floor, compute * (b.weight_read_us + b.kv_read_us))
"""
HOST_ROOFLINE = "host roofline"
KERNEL_SUM = "kernel sum"
_KERNEL_SUM = KERNEL_STEP + _NO_OVERHEADS
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


# name -> (program, scope); experiments with equal values of the attribute `scope` share the constants, None: no fit
_ANSWERS = {
    "naive mean": (_NAIVE, "all"),
    "blackbox": (BLACKBOX, "all"),
    "blackbox per model": (BLACKBOX, "model"),
    "blackbox per experiment": (BLACKBOX, "id"),
    "roofline": (_ROOFLINE, None),
    HOST_ROOFLINE: (_HOST_ROOFLINE, None),
    KERNEL_SUM: (_KERNEL_SUM, None),
    "overhead floor": (_FLOOR, "all"),
}
NAMES = tuple(_ANSWERS)
SHARED = tuple(name for name, (_, scope) in _ANSWERS.items() if scope in (None, "all"))  # those that predict any run
UNFITTED = tuple(name for name, (_, scope) in _ANSWERS.items() if scope is None)


@dataclass(frozen=True, slots=True)
class Task:
    """One fit of a known answer, and the experiments that it then predicts."""

    name: str
    fitted: tuple[Experiment, ...]
    predicted: tuple[Experiment, ...]


def tasks(fitted: Sequence[Experiment], everything: Sequence[Experiment]) -> list[Task]:
    """The work of all known answers, in pieces that may run in any order."""
    tasks: list[Task] = []
    for name, (_, scope) in _ANSWERS.items():
        if name == HOST_ROOFLINE:  # every MFU has its own program
            mfus = dict.fromkeys(e.mfu for e in everything)
            tasks += [Task(name, (), tuple(e for e in everything if e.mfu == mfu)) for mfu in mfus]
        elif name == KERNEL_SUM:
            tasks.append(Task(name, (), tuple(e for e in everything if has_curves(e.facts))))
        elif scope is None or scope == "all":
            tasks.append(Task(name, tuple(fitted), tuple(everything)))
        else:
            ordered = sorted(fitted, key=lambda e: str(getattr(e, scope)))
            for value, group in groupby(ordered, key=lambda e: str(getattr(e, scope))):
                predicted = tuple(e for e in everything if getattr(e, scope) == value)
                tasks.append(Task(name, tuple(group), predicted))
    return tasks


def solve(task: Task, seeds: Sequence[int] = SCORE_SEEDS) -> list[Errors]:
    """The errors of one task; step times out of range are clamped, as the host does."""
    return error_rows(program_of(task), score_set(task.predicted, seeds))


def form(name: str, mfu: Mfu | None = None) -> Program:
    """The program of a known answer before any fit; the host's roofline is that of GPUs with this `mfu`."""
    text = host_roofline(mfu or Mfu()) if name == HOST_ROOFLINE else _ANSWERS[name][0]
    return complete(parse(text, name))


def program_of(task: Task) -> Program:
    """The program of one task, with its constants fitted if the task fits any."""
    program = form(task.name, task.predicted[0].mfu if task.name == HOST_ROOFLINE else None)
    return program if task.name in UNFITTED else fit(program, fit_set(task.fitted), allow_hostile=True).program


def published() -> dict[str, list[Errors]]:
    """The published absolute errors by system. Their ITL errors refer to the harness's ITL, half the true one."""
    by_system: dict[str, dict[str, dict[str, float]]] = {}
    for row in published_errors():
        by_system.setdefault(row.system, {}).setdefault(row.experiment, {})[row.metric] = row.abs_error_pct
    return {
        system: [Errors(name, m.get("e2e"), m.get("ttft"), m.get("itl")) for name, m in experiments.items()]
        for system, experiments in by_system.items()
    }
