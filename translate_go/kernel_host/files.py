"""NAME_kernel.go: the program as a kernel.Kernel of the newest host. NAME_adapter.go: a latency model over any."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

from simulator.language.ir import Expr, Field, Function, Op, nodes
from simulator.schema import READABLE
from simulator.serving.engine import AUTO, Engine
from translate_go.batch import GoRequests, batch_use, declare, read_as, sum_function
from translate_go.constructors import constructor
from translate_go.deployment import SETTINGS, Deployment
from translate_go.guide import limits_of
from translate_go.kernel_host.rank import Rank, Source, rank_of
from translate_go.lower import Lowering, rounded
from translate_go.naming import MARK, GoNames, batch_name, clean, columns, comment, digits, indented, quoted
from translate_go.target import EmitPlan
from translate_go.templates import sections

_TEXT = sections("kernel_host")
_SHAPES = GoRequests(
    "sumShapes", "reqs", "[]kernel.ReqShape", "req.Scheduled", "int64(req.Computed)", "int64(req.PromptLen)"
)
_DECODES = ("decode_launch", "decode_per_token", "window_per_token")  # curves of attention that reads the KV cache
_REDUCES = ("allreduce",)
COUNTS = ("one", "token", "request")  # units of what a deployment is, not of what it costs
TREES_OF = "step_time.trees"  # the program's ensemble
MEASURED, DATASHEET, ASSUMED = "measured", "vendor_spec", "assumed"  # blis-schemas' words for evidence


@dataclass(frozen=True, slots=True)
class Fit:
    """Where the program's constants come from.

    name: of the program. measured: the constants, by `method.name`, that fitted runs decided more than priors did.
    scope: of those runs.
    """

    name: str = "program"
    measured: frozenset[str] = field(default_factory=frozenset)
    scope: str = "unscoped"


def kernel_files(plan: EmitPlan, fit: Fit) -> dict[str, str]:
    """The files of the kernel and of the adapter."""
    adapter = plan.name.fill(_TEXT["adapter"], mark=MARK)
    return {plan.name.file("kernel"): _kernel(plan, fit), plan.name.file("adapter"): f"{adapter}\n"}


def ranks(plan: EmitPlan) -> list[Rank]:
    """A GPU of each deployment. Raises InputError for one whose memory is not known."""
    return [rank_of(_source(d), d.facts, f"cannot emit {d.name} for {plan.target.name}") for d in plan.deployments]


def constants(plan: EmitPlan) -> list[str]:
    """The names of the program's constants by `method.name`."""
    return [f"{f.name}.{c.name}" for f in plan.functions.values() for c in f.constants]


def _source(deployment: Deployment) -> Source:
    assert deployment.source, deployment.name
    return deployment.source


def _kernel(plan: EmitPlan, fit: Fit) -> str:
    name, parts = plan.name, _kernel_fields(plan)
    sums = f"{name.of('sumShapes')}(b.Reqs)" if plan.batch.sums else ""
    step = name.fill(_TEXT["step_one"], sums=sums)
    if parts:
        assign = f"sums := {sums}\n\t" if sums else ""
        step = name.fill(_TEXT["step_parts"], assign=assign, sums="sums" if sums else "")
    more = [*([_kernel_micros(plan, parts)] if parts else [])]
    if plan.batch.sums:
        more.append(sum_function(plan.batch, name, _SHAPES))
    flags = any(
        e.async_scheduling is not None or _says_caching(e) for e in (_source(d).engine for d in plan.deployments)
    )
    more += [name.fill(_TEXT["flag"])] if flags else []
    for deployment, rank in zip(plan.deployments, ranks(plan), strict=True):
        more += [_rank(plan, deployment, rank), _constructor(plan, deployment)]
    queueing = plan.functions.get("queueing_time")
    reads = queueing is not None and any(isinstance(n, Field) and n.scope == "r" for n in nodes(queueing))
    about = comment(f"StepTime prices a step. {_TEXT['about_parts' if parts else 'about_one']}")
    text = name.fill(
        _TEXT["kernel"],
        mark=MARK,
        parts=about,
        step=step,
        prompt="promptTokens" if reads else "_",
        queueing=_duration(plan, "queueing_time", "queueingMicros", "float64(promptTokens)" if reads else ""),
        output=_duration(plan, "output_token_time", "outputTokenMicros"),
        completion=_duration(plan, "completion_time", "completionMicros"),
        set=quoted(fit.name),
        scope=quoted(fit.scope),
        origins=indented(_origins(plan, fit)),
        more="\n\n".join(more),
    )
    return f"{text}\n"


def _duration(plan: EmitPlan, function: str, formula: str, argument: str = "") -> str:
    if function not in plan.functions:
        return "0"
    return f"{plan.name.of('duration')}(k.model.{formula}({argument}), 0)"


def _kernel_fields(plan: EmitPlan) -> list[str]:
    """The fields of single measured kernels that the step time reads, if their multiples are read too."""
    read = set(plan.batch.fields)
    names = [name for name in plan.batch.fields if READABLE["b", name].curve]
    return [name for name in names if _times(name) is None or _times(name) in read]


def _times(name: str) -> str | None:
    """The field that a kernel's time is counted by; None for a time as it is."""
    return READABLE["b", name].times.removeprefix("b.") or None


def _kernel_micros(plan: EmitPlan, fields: Sequence[str]) -> str:
    """The Go method with the kernels' times by resource."""
    by_resource: dict[str, list[Expr]] = {"sm": [], "hbm": [], "reduce": []}
    for name in fields:
        curve, times = READABLE["b", name].curve, _times(name)
        resource = "hbm" if curve in _DECODES else "reduce" if curve in _REDUCES else "sm"
        kernel = Field("b", name)
        by_resource[resource].append(Op("*", kernel, Field("b", times)) if times else kernel)
    totals = {resource: reduce(_plus, parts) for resource, parts in by_resource.items() if parts}
    use = batch_use(Function("step_time", (), (), reduce(_plus, totals.values())), None)
    lowering = Lowering(GoNames(plan.name, {*map(batch_name, use.fields), *by_resource, "d", "o"}), read_as, set())
    declare(use, lowering)
    for resource, total in totals.items():
        lowering.add(f"{resource} = ", rounded(lowering.lower(total)))
    body = ["\td := &m.d"] + (["\to := &m.options"] if use.facts & SETTINGS else [])
    argument = f"b {plan.name.of('batchSums')}" if plan.batch.sums else ""
    return plan.name.fill(_TEXT["kernel_micros"], argument=argument, body="\n".join([*body, *lowering.lines]))


def _plus(left: Expr, right: Expr) -> Expr:
    return Op("+", left, right)


def _origins(plan: EmitPlan, fit: Fit) -> list[str]:
    """The elements of the Go list of the program's constants."""
    rows = [_origin(name, MEASURED if name in fit.measured else ASSUMED) for name in constants(plan)]
    return rows + ([_origin(TREES_OF, MEASURED if fit.measured else ASSUMED)] if plan.batch.forest else [])


def _origin(name: str, method: str) -> str:
    return f'{{"{name}", "{method}"}},'


def _variable(plan: EmitPlan, deployment: Deployment) -> str:
    return plan.name.of(f"rank{deployment.go_name}")


def _constructor(plan: EmitPlan, deployment: Deployment) -> str:
    return plan.name.fill(
        _TEXT["new_kernel"],
        deployment=deployment.go_name,
        about=clean(deployment.name),
        call=constructor(plan, deployment),
        variable=_variable(plan, deployment),
    )


def _rank(plan: EmitPlan, deployment: Deployment, rank: Rank) -> str:
    """The Go variable of a deployment's GPU."""
    engine, facts = _source(deployment).engine, deployment.facts
    reduces = "SM" if rank.custom_reduce else "NVLink"
    backend = "" if engine.tensor_parallel == 1 else "custom" if rank.custom_reduce else "nccl"
    resolved = [
        ("TensorParallelWidth:", f"{engine.tensor_parallel},"),
        ("DataParallelWidth:", f"{engine.data_parallel},"),
        ("ExpertParallelWidth:", f"{engine.expert_parallel},"),
        ("AllReduceBackend:", f'"{backend}",'),
        ("AsyncScheduling:", f"{json.dumps(bool(facts['async_scheduling']))},"),
    ]
    rows = [
        ("usable:", f"{rank.usable},"),
        ("weights:", f"{rank.weights},"),
        ("other:", f"{rank.other},"),
        ("blockBytes:", f"{rank.block_bytes},"),
        ("block:", f"{rank.block},"),
        ("tokenBytes:", f"{digits(rank.token_bytes)},"),
        ("link:", f"{digits(rank.link)},"),
        ("hostLink:", f"{digits(rank.host_link)},"),
        ("hostLeast:", f"{max(rank.host_least_us, 1)},"),
        ("reduces:", f"kernel.Resource{reduces},"),
    ]
    variable, origins = _variable(plan, deployment), indented(_deployed_origins(plan, deployment), "\t\t")
    return "\n".join(
        [
            comment(f"{variable} is a GPU of {clean(deployment.name)}."),
            f"var {variable} = {plan.name.of('rank')}{{",
            columns(rows),
            f"\tpool: {_pool(plan, deployment, rank)},",
            f"\tresolved: kernel.Resolution{{\n{columns(resolved, chr(9) * 2)}\n\t}},",
            columns([("name:", f"{quoted(deployment.name)},"), ("scope:", f"{quoted(_scope(deployment))},")]),
            f"\torigins: [][2]string{{\n{origins}\n\t}},",
            "}",
        ]
    )


def _scope(deployment: Deployment) -> str:
    source = _source(deployment)
    return f"hardware: {source.gpu.name}; model: {source.model.called}; tp: {source.engine.tensor_parallel}"


def _says_caching(engine: Engine) -> bool:
    return "prefix_caching" in engine.given or not engine.prefix_caching


def _pool(plan: EmitPlan, deployment: Deployment, rank: Rank) -> str:
    """The Go literal of the pool, with those settings that decide its times and its memory, and those that were
    given."""
    engine, limits = _source(deployment).engine, limits_of(deployment)
    flag = plan.name.of("flag")
    parallel = f"TP: {engine.tensor_parallel}, PP: {engine.pipeline_parallel}, DP: {engine.data_parallel}"
    parallel += f", EnableExpertParallel: {json.dumps(engine.expert_parallel > 1)}"
    rows = [
        ("BlockSize:", f"{rank.block},"),
        ("MaxNumBatchedTokens:", f"{limits.max_num_batched_tokens},"),
        ("MaxNumSeqs:", f"{limits.max_num_seqs},"),
        ("MaxModelLen:", f"{limits.max_model_len},"),
        ("GPUMemoryUtilization:", f"{digits(engine.gpu_memory_utilization)},"),
    ]
    if engine.quantization:
        rows.append(("Quantization:", f'"{engine.quantization}",'))
    if engine.kv_cache_dtype != AUTO:
        rows.append(("CacheDType:", f'"{engine.kv_cache_dtype}",'))
    if mode := "none" if engine.enforce_eager else engine.cudagraph_mode:
        rows.append(("CUDAGraphMode:", f'"{mode.upper()}",'))
    if engine.async_scheduling is not None:
        rows.append(("AsyncScheduling:", f"{flag}({json.dumps(engine.async_scheduling)}),"))
    if _says_caching(engine):
        rows.append(("EnablePrefixCaching:", f"{flag}({json.dumps(engine.prefix_caching)}),"))
    if engine.num_speculative_tokens:
        drafts = f'Method: "{engine.speculative_method}", NumSpecTokens: {engine.num_speculative_tokens}'
        rows.append(("Speculative:", f"&deployment.Speculative{{{drafts}}},"))
    lines = [
        "deployment.Pool{",
        columns(
            [
                ("Role:", "deployment.RoleColocated,"),
                ("Nodes:", f"{rank.nodes},"),
                ("Parallel:", f"deployment.Parallelism{{{parallel}}},"),
            ],
            "\t\t",
        ),
        f"\t\tEngine: deployment.Engine{{\n{columns(rows, chr(9) * 3)}\n\t\t}},",
        "\t}",
    ]
    return "\n".join(lines)


def _deployed_origins(plan: EmitPlan, deployment: Deployment) -> list[str]:
    """The elements of the Go list of the deployment's times, rates and sizes."""
    engine = _source(deployment).engine
    specs = [(name, READABLE["s", name]) for name in (*plan.facts, *plan.settings)]
    methods = {
        f"s.{name}": ASSUMED if "prior" in spec.meaning else DATASHEET
        for name, spec in specs
        if spec.unit not in COUNTS
    }
    methods |= {f"kernels.{curve}": MEASURED for curve in plan.curves}
    methods["memory.weights"] = methods["memory.kv_block"] = DATASHEET
    methods["memory.other"] = MEASURED if engine.total_kv_blocks is not None else ASSUMED
    methods["transfer.link"] = DATASHEET
    methods["transfer.host_link"] = MEASURED if "kv_offload_gb_per_s" in engine.given else ASSUMED
    return [_origin(name, method) for name, method in methods.items()]


def tests(plan: EmitPlan) -> str:
    """The Go tests of the kernel and the adapter."""
    must, forest = plan.name.of("mustKernel"), [TREES_OF] if plan.batch.forest else []
    rows = (
        f"{{{must}(New{plan.name.exported}KernelFor{d.go_name}()), {rank.blocks}}},"
        for d, rank in zip(plan.deployments, ranks(plan), strict=True)
    )
    overheads = (
        f'{plan.name.of("check")}(t, "{method}", m.{method}(), record.overheads[{i}])'
        for i, (method, _) in enumerate(plan.target.overheads)
    )
    return plan.name.fill(
        _TEXT["tests"],
        kernels=indented(rows),
        overheads=indented(overheads, "\t\t\t"),
        names=indented((f'"{name}",' for name in (*constants(plan), *forest)), "\t\t"),
    )
