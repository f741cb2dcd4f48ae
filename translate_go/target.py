"""The two interfaces of the host simulator, BLIS, for latency models, and the parts of a program that each needs."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.language.ir import Field, Function, Program, nodes, walk
from simulator.language.opcodes import feature
from simulator.language.simplify import without_dead_lets
from simulator.schema import KERNELS
from translate_go.batch import BatchUse, batch_use
from translate_go.deployment import FACTS


@dataclass(frozen=True, slots=True)
class Target:
    """A branch of the host, and the interface of its latency model."""

    name: str
    branch: str
    overheads: tuple[
        tuple[str, str], ...
    ]  # (Go method, the program's function), in addition to StepTime and QueueingTime
    token_type: str  # of the elements of a request's prompt
    remarks: tuple[str, ...]  # what a reader of the file has to know about this host


MODULE = "github.com/inference-sim/inference-sim"  # the host's Go module

# How the blis-5 host keeps time differently from the replay, whose rules are those of blis-4.
BLIS_5_DIFFERS = (
    "a completed request gets one more inter-token entry (last step + per-token time)",
    "there is no overhead at completion: the program's completion_time is not used",
    "requests queued in the same microsecond at an idle instance start parallel chains of steps",
    "after an eviction a batch may hold requests that the step does not reach, with their last token counts",
)

_BLIS_4 = Target(
    "blis-4",
    "main",
    (("OutputTokenProcessingTime", "output_token_time"), ("PostDecodeFixedOverhead", "completion_time")),
    "TokenID",
    ("Target blis-4: the four methods of the latency model of BLIS, main branch. Its rules of time are those of the",
     "replay in which the program was scored."),
)  # fmt: skip

BLIS_5 = "blis-5"
_BLIS_5 = Target(
    BLIS_5,
    "stepml-experiments",
    (
        ("OutputTokenProcessingTime", "output_token_time"),
        ("SchedulingProcessingTime", "scheduling_time"),
        ("PreemptionProcessingTime", "preemption_time"),
    ),
    "int",
    ("Target blis-5: the five methods of the latency model of BLIS, stepml-experiments branch. Each method agrees",
     "with the program, but this host keeps time differently, so request times differ from the scored replay:",
     *(f"  - {text};" for text in BLIS_5_DIFFERS[:-1]),
     f"  - {BLIS_5_DIFFERS[-1]}.",
     "Parity of whole runs is claimed for blis-4 only."),
)  # fmt: skip

TARGETS = {t.name: t for t in (_BLIS_4, _BLIS_5)}


@dataclass(frozen=True)
class Plan:
    """The parts of a program that a target needs."""

    program: Program
    target: Target
    functions: dict[str, Function]
    batch: BatchUse
    facts: tuple[str, ...]  # the deployment facts that are read, in schema order
    reference: bool  # whether a function reads the program's own reference step

    @property
    def curves(self) -> tuple[str, ...]:
        """The curves of measured kernels that the step time reads."""
        return self.batch.curves

    @property
    def reads_deployment(self) -> bool:
        """Whether any fact or curve of the deployment is read."""
        return bool(self.facts or self.curves)


def reads_kernels(program: Program) -> bool:
    """Whether the program reads a field of measured kernels, so that it needs a deployment with curves."""
    read = [n for f in program.functions for n in nodes(f)]
    if program.forest and program.reads_trees:
        read += [n for text in program.forest.features for n in walk(feature(text))]
    return any(isinstance(n, Field) and n.scope == "b" and n.name in KERNELS for n in read)


def plan(program: Program, target: Target) -> Plan:
    """The parts of the program that the target needs, without dead lets."""
    wanted = ("step_time", "queueing_time", *(name for _, name in target.overheads))
    functions = {f.name: without_dead_lets(f) for f in program.functions if f.name in wanted}
    use = batch_use(functions["step_time"], program.forest)
    read = {n.name for f in functions.values() for n in nodes(f) if isinstance(n, Field) and n.scope == "s"}
    facts = tuple(name for name in FACTS if name in read | use.facts)
    return Plan(program, target, functions, use, facts, "reference_step_us" in read)
