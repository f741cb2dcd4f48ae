"""The interfaces of the host simulator, BLIS, for latency models, and what each needs of a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator.language.ir import Field, Function, Program, nodes, walk
from simulator.language.opcodes import feature
from simulator.language.simplify import without_dead_lets
from simulator.schema import KERNELS
from translate_go.batch import BatchUse, batch_use
from translate_go.deployment import EXAMPLE, FACTS, FEW, SETTINGS, Deployment
from translate_go.generic.known import Host
from translate_go.naming import DEFAULT, BackendName

MODULE = "github.com/inference-sim/inference-sim"  # the host's Go module
SCHEMAS = "github.com/inference-sim/blis-schemas"  # the newest host's module of interfaces
KERNEL_HOST = "blis-kernel"
THRESHOLD = "--long-prefill-token-threshold"  # the host's flag, of which no program reads the value
# the engine's setting -> the field of sim.SimConfig that holds it: on the main branch, and its older name
CONFIG_FIELDS = {
    "max_num_seqs": ("MaxNumSeqs", "MaxRunningReqs"),
    "kv_blocks": ("TotalKVBlocks",),
    "max_num_batched_tokens": ("MaxNumBatchedTokens", "MaxScheduledTokens"),
    "block_size": ("BlockSizeTokens", "BlockSize"),
    "max_model_len": ("MaxModelLen",),
    "cudagraph_capture_max": ("MaxNumSeqs", "MaxRunningReqs"),
}
# a setting that the host lacks -> vLLM's default for it, from the field of CONFIG_FIELDS
FORMULAS = {"cudagraph_capture_max": "min(2*{}, 512)"}
# functions of the main branch's package latency that emitted files call, with what they take and return
HOST_FUNCTIONS = {
    "clampToInt64": "clampToInt64(v float64) int64",
    "applyAdapterOverhead": "applyAdapterOverhead(us int64, batch []*sim.Request, cost sim.AdapterCost) int64",
}
# Differences of the blis-5 host's clock from the replay, which follows blis-4.
BLIS_5_DIFFERS = (
    "a completed request gets one more inter-token entry (last step + per-token time)",
    "there is no overhead at completion: the program's completion_time is not used",
    "requests queued in the same microsecond at an idle instance start parallel chains of steps",
    "after an eviction a batch may hold requests that the step does not reach, with their last token counts",
)
_BLIS_4_REMARKS = """\
Target blis-4: the four methods of the latency model of BLIS, main branch. Its rules of time are those of the
replay in which the program was scored."""
_BLIS_5_REMARKS = """\
Target blis-5: the five methods of the latency model of BLIS, stepml-experiments branch. Each method agrees
with the program, but this host keeps time differently, so request times differ from the scored replay:
  - {}.
Parity of whole runs is claimed for blis-4 only.""".format(";\n  - ".join(BLIS_5_DIFFERS))
_KERNEL_REMARKS = """\
Host blis-kernel: the four methods of the latency model of BLIS, newest branch, which takes any value of this
interface. The host itself lengthens a step for its adapters (LoRA)."""


LOGGER = "github.com/sirupsen/logrus"  # the main branch's


@dataclass(frozen=True, slots=True)
class FittedRange:
    """The runs that the constants were fitted to: all names of their GPUs, in lower case, TP degrees, whether models
    have experts, and billions of parameters, all of them and those active per token, from the least to the most."""

    gpus: tuple[str, ...]
    tp: tuple[int, ...]
    moe: tuple[bool, ...]
    params_b: tuple[float, float]
    active_b: tuple[float, float]


@dataclass(frozen=True, slots=True)
class HostTarget:
    """A branch of the host, and the interface of its latency model.

    overheads: (Go method, the program's function), in addition to StepTime and QueueingTime. token_type: Go type of a
    token of a prompt. prompt: the Go expression of a prompt's length. flags: the engine's setting -> the host's flag.
    remarks: notes on this host for readers of the Go file.
    """

    name: str
    branch: str
    overheads: tuple[tuple[str, str], ...]
    token_type: str
    prompt: str
    flags: dict[str, str]
    remarks: str

    @property
    def main(self) -> bool:
        """True for the main branch: it hands its backends a cost of adapters, and its package has a saturating
        conversion to int64. The other branch has a defaults.yaml with coefficients of models instead."""
        return self.branch == "main"

    @property
    def kernel(self) -> bool:
        """True for the newest branch: it has no package of backends, and prices a deployment by a kernel.Kernel."""
        return self.name == KERNEL_HOST

    @property
    def selector(self) -> str:
        return "--latency-model" if self.main else "--latency-backend"

    @property
    def prompt_int64(self) -> str:
        """The prompt length as an int64."""
        return f"int64({self.prompt})" if self.prompt.startswith("len(") else self.prompt

    @property
    def prompt_float64(self) -> str:
        """The prompt length as a float64."""
        return f"float64({self.prompt})"


_OUTPUT = ("OutputTokenProcessingTime", "output_token_time")
_FLAGS = {
    **{"kv_blocks": "--total-kv-blocks", "block_size": "--block-size-in-tokens", "max_model_len": "--max-model-len"},
    "cudagraph_capture_max": "--max-cudagraph-capture-size",  # vLLM's: the host has no CUDA graphs
}
_BLIS_4 = HostTarget(
    name="blis-4",
    branch="main",
    overheads=(_OUTPUT, ("PostDecodeFixedOverhead", "completion_time")),
    token_type="TokenID",
    prompt="req.InputLen()",
    flags={**_FLAGS, "max_num_seqs": "--max-num-seqs", "max_num_batched_tokens": "--max-num-batched-tokens"},
    remarks=_BLIS_4_REMARKS,
)
_BLIS_5 = HostTarget(
    name="blis-5",
    branch="stepml-experiments",
    overheads=(
        _OUTPUT,
        ("SchedulingProcessingTime", "scheduling_time"),
        ("PreemptionProcessingTime", "preemption_time"),
    ),
    token_type="int",
    prompt="len(req.InputTokens)",
    flags={**_FLAGS, "max_num_seqs": "--max-num-running-reqs", "max_num_batched_tokens": "--max-num-scheduled-tokens"},
    remarks=_BLIS_5_REMARKS,
)
_KERNEL = HostTarget(
    name=KERNEL_HOST,
    branch="kernel-exclusive",
    overheads=_BLIS_4.overheads,
    token_type="TokenID",
    prompt="req.InputLen()",
    flags={**{name: name for name in CONFIG_FIELDS}, "kv_blocks": "number of KV blocks"},
    remarks=_KERNEL_REMARKS,
)
TARGETS = {t.name: t for t in (_BLIS_4, _BLIS_5)}  # with a package of backends, of which each is registered
HOSTS = {**TARGETS, _KERNEL.name: _KERNEL}


@dataclass(frozen=True)
class EmitPlan:
    """A program's needs on a target, and the deployments that the Go is for.

    facts, settings: of the deployment and of the engine, as far as they are read, in schema order. reference: True if a
    function reads the program's own reference step. deployments: those that are baked in, or, with a `host`, those
    whose times are recorded. host: given if facts or curves are computed from the host's configuration. outside: the
    respects in which a deployment is outside the fitted runs, by its name. fitted: these runs, with a `host`.
    """

    program: Program
    target: HostTarget
    name: BackendName
    functions: dict[str, Function]
    batch: BatchUse
    facts: tuple[str, ...]
    settings: tuple[str, ...]
    reference: bool
    deployments: tuple[Deployment, ...]
    host: Host | None
    outside: Mapping[str, str]
    fitted: FittedRange | None

    @property
    def warned(self) -> Mapping[str, str]:
        """`outside` of the deployments that the factory can make, if the host has a logger to say it."""
        if not self.target.main or not self.has_factory or self.host or not self.reads_deployment:
            return {}
        return {d.name: self.outside[d.name] for d in self.deployments if d.name in self.outside}

    @property
    def warns(self) -> bool:
        """True if the Go warns at run time of deployments outside the fitted runs."""
        return bool(self.warned or (self.host and self.fitted))

    @property
    def package(self) -> str:
        """The Go package of the files: the host's own where it has one for backends."""
        return self.name.stem if self.target.kernel else "latency"

    @property
    def curves(self) -> tuple[str, ...]:
        """The curves of measured kernels that the step time reads."""
        return self.batch.curves

    @property
    def reads_deployment(self) -> bool:
        """True if any fact or curve of the deployment is read, so that the Go has a type for them."""
        return bool(self.facts or self.curves)

    @property
    def options(self) -> bool:
        """True if the constructors take options: a cost of adapters, or the engine's settings."""
        return bool(self.target.main or self.settings)

    @property
    def many(self) -> bool:
        """True if the Go has a table of the deployments by name, because they are too many for a constructor each."""
        return len(self.deployments) > FEW

    @property
    def checks_names(self) -> bool:
        """True if the factory compares the host's names of model and GPU with those of the deployments: of a table, or
        of the only one if it says which it is for."""
        if len(self.deployments) == 1:
            return bool(self.deployments[0].model and self.deployments[0].hardware)
        return self.many

    @property
    def named(self) -> bool:
        """True if the host's command names the deployment by model, GPU and tensor parallelism."""
        return self.reads_deployment and (bool(self.host) or self.checks_names)

    @property
    def has_factory(self) -> bool:
        """True if the files have a factory, because it is clear which model it makes."""
        if self.target.kernel:
            return False
        return not self.reads_deployment or bool(self.host) or len(self.deployments) == 1 or self.many

    @property
    def first(self) -> Deployment | None:
        """The first of the deployments, None without any."""
        return self.deployments[0] if self.deployments else None

    @property
    def recorded(self) -> tuple[Deployment, ...]:
        """The deployments whose times are recorded: an example if there are none, or if the times are the same for
        all."""
        differ = self.reads_deployment or self.settings or self.target.kernel
        return self.deployments if differ and self.deployments else (Deployment("example", EXAMPLE),)


def plan(
    program: Program,
    target: HostTarget,
    name: BackendName = DEFAULT,
    deployments: Sequence[Deployment] = (),
    host: Host | None = None,
    outside: Mapping[str, str] | None = None,
    fitted: FittedRange | None = None,
) -> EmitPlan:
    """Find the parts of the program that the target needs, without dead lets.

    With a `host`, the Go computes the facts and curves that are read from the host's configuration of any model.
    `outside`, `fitted`: see EmitPlan.
    """
    wanted = ("step_time", "queueing_time", *(name for _, name in target.overheads))
    functions = {f.name: without_dead_lets(f) for f in program.functions if f.name in wanted}
    use = batch_use(functions["step_time"], program.forest)
    read = {n.name for f in functions.values() for n in nodes(f) if isinstance(n, Field) and n.scope == "s"}
    known = [fact for fact in FACTS if fact in read | use.facts]
    facts = tuple(fact for fact in known if fact not in SETTINGS)
    settings = tuple(fact for fact in known if fact in SETTINGS)
    by_host = host if facts or use.curves else None
    reference = "reference_step_us" in read
    baked = tuple(deployments)
    return EmitPlan(
        program, target, name, functions, use, facts, settings, reference, baked, by_host, outside or {}, fitted
    )


def reads_kernels(program: Program) -> bool:
    """True if the program reads a field of measured kernels, so that it needs a deployment with curves."""
    read = [n for f in program.functions for n in nodes(f)]
    if program.forest and program.reads_trees:
        read += [n for text in program.forest.features for n in walk(feature(text))]
    return any(isinstance(n, Field) and n.scope == "b" and n.name in KERNELS for n in read)
