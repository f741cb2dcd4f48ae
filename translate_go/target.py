"""The two interfaces of the host simulator, BLIS, for latency models, and the parts of a program that each needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simulator.language.ir import Field, Function, Program, nodes, walk
from simulator.language.opcodes import feature
from simulator.language.simplify import without_dead_lets
from simulator.schema import KERNELS
from translate_go.batch import BatchUse, batch_use
from translate_go.deployment import FACTS, SETTINGS
from translate_go.generic.known import Host
from translate_go.naming import DEFAULT, BackendName


@dataclass(frozen=True, slots=True)
class HostTarget:
    """A branch of the host, and the interface of its latency model."""

    name: str
    branch: str
    overheads: tuple[
        tuple[str, str], ...
    ]  # (Go method, the program's function), in addition to StepTime and QueueingTime
    token_type: str  # of the elements of a request's prompt
    prompt: str  # the Go expression of a request's prompt length
    prompt_type: Literal["int", "int64"]  # its type in Go
    flags: dict[str, str]  # the engine's setting -> the host's flag for it
    remarks: tuple[str, ...]  # what a reader of the file has to know about this host
    adapter_cost: bool  # whether the host hands its backends a cost of adapters
    host_clamp: bool  # whether the host's package has a saturating conversion to int64
    reads_coefficients: bool  # whether its defaults.yaml has coefficients of models

    @property
    def prompt_int64(self) -> str:
        """The prompt length as an int64."""
        return self.prompt if self.prompt_type == "int64" else f"int64({self.prompt})"

    @property
    def prompt_float64(self) -> str:
        """The prompt length as a float64."""
        return f"float64({self.prompt})"


MODULE = "github.com/inference-sim/inference-sim"  # the host's Go module
# the engine's setting -> the field of the main branch's sim.SimConfig that holds it, and its names in other versions
CONFIG_FIELDS = {
    "max_num_seqs": ("MaxNumSeqs", "MaxRunningReqs"),
    "kv_blocks": ("TotalKVBlocks",),
    "max_num_batched_tokens": ("MaxNumBatchedTokens", "MaxScheduledTokens"),
    "block_size": ("BlockSizeTokens", "BlockSize"),
    "max_model_len": ("MaxModelLen",),
}

# How the blis-5 host keeps time differently from the replay, whose rules are those of blis-4.
BLIS_5_DIFFERS = (
    "a completed request gets one more inter-token entry (last step + per-token time)",
    "there is no overhead at completion: the program's completion_time is not used",
    "requests queued in the same microsecond at an idle instance start parallel chains of steps",
    "after an eviction a batch may hold requests that the step does not reach, with their last token counts",
)

# functions of the main branch's package latency that emitted files call, with what they take and return
HOST_FUNCTIONS = {
    "clampToInt64": "clampToInt64(v float64) int64",
    "applyAdapterOverhead": "applyAdapterOverhead(us int64, batch []*sim.Request, cost sim.AdapterCost) int64",
}

THRESHOLD = "--long-prefill-token-threshold"  # the host's flag, of which no program reads the value
_FLAGS = {
    "kv_blocks": "--total-kv-blocks",
    "block_size": "--block-size-in-tokens",
    "max_model_len": "--max-model-len",
}

_BLIS_4 = HostTarget(
    "blis-4",
    "main",
    (("OutputTokenProcessingTime", "output_token_time"), ("PostDecodeFixedOverhead", "completion_time")),
    "TokenID",
    "req.InputLen()",
    "int64",
    {**_FLAGS, "max_num_seqs": "--max-num-seqs", "max_num_batched_tokens": "--max-num-batched-tokens"},
    ("Target blis-4: the four methods of the latency model of BLIS, main branch. Its rules of time are those of the",
     "replay in which the program was scored."),
    adapter_cost=True, host_clamp=True, reads_coefficients=False,
)  # fmt: skip

_BLIS_5 = HostTarget(
    "blis-5",
    "stepml-experiments",
    (
        ("OutputTokenProcessingTime", "output_token_time"),
        ("SchedulingProcessingTime", "scheduling_time"),
        ("PreemptionProcessingTime", "preemption_time"),
    ),
    "int",
    "len(req.InputTokens)",
    "int",
    {**_FLAGS, "max_num_seqs": "--max-num-running-reqs", "max_num_batched_tokens": "--max-num-scheduled-tokens"},
    ("Target blis-5: the five methods of the latency model of BLIS, stepml-experiments branch. Each method agrees",
     "with the program, but this host keeps time differently, so request times differ from the scored replay:",
     *(f"  - {text};" for text in BLIS_5_DIFFERS[:-1]),
     f"  - {BLIS_5_DIFFERS[-1]}.",
     "Parity of whole runs is claimed for blis-4 only."),
    adapter_cost=False, host_clamp=False, reads_coefficients=True,
)  # fmt: skip

TARGETS = {t.name: t for t in (_BLIS_4, _BLIS_5)}


@dataclass(frozen=True)
class EmitPlan:
    """The parts of a program that a target needs."""

    program: Program
    target: HostTarget
    name: BackendName
    functions: dict[str, Function]
    batch: BatchUse
    facts: tuple[str, ...]  # the deployment facts that are read, without the engine's settings, in schema order
    settings: tuple[str, ...]  # the engine's settings that are read, in schema order
    reference: bool  # whether a function reads the program's own reference step
    host: Host | None = None  # if facts or curves are computed from the host's configuration

    @property
    def curves(self) -> tuple[str, ...]:
        """The curves of measured kernels that the step time reads."""
        return self.batch.curves

    @property
    def reads_deployment(self) -> bool:
        """Whether any fact or curve of the deployment is read, so that the Go has a type for them."""
        return bool(self.facts or self.curves)

    @property
    def differs(self) -> bool:
        """Whether deployments have times of their own, by facts, curves or the engine's settings."""
        return bool(self.reads_deployment or self.settings)

    @property
    def options(self) -> bool:
        """Whether the constructors take options: a cost of adapters, or the engine's settings."""
        return bool(self.target.adapter_cost or self.settings)


def reads_kernels(program: Program) -> bool:
    """Whether the program reads a field of measured kernels, so that it needs a deployment with curves."""
    read = [n for f in program.functions for n in nodes(f)]
    if program.forest and program.reads_trees:
        read += [n for text in program.forest.features for n in walk(feature(text))]
    return any(isinstance(n, Field) and n.scope == "b" and n.name in KERNELS for n in read)


def plan(program: Program, target: HostTarget, name: BackendName = DEFAULT, host: Host | None = None) -> EmitPlan:
    """The parts of the program that the target needs, without dead lets.

    With a `host`, the Go computes the facts and curves that are read from the host's configuration of any model.
    """
    wanted = ("step_time", "queueing_time", *(name for _, name in target.overheads))
    functions = {f.name: without_dead_lets(f) for f in program.functions if f.name in wanted}
    use = batch_use(functions["step_time"], program.forest)
    read = {n.name for f in functions.values() for n in nodes(f) if isinstance(n, Field) and n.scope == "s"}
    known = [fact for fact in FACTS if fact in read | use.facts]
    facts = tuple(fact for fact in known if fact not in SETTINGS)
    settings = tuple(fact for fact in known if fact in SETTINGS)
    by_host = host if facts or use.curves else None
    return EmitPlan(program, target, name, functions, use, facts, settings, "reference_step_us" in read, by_host)
