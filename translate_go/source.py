"""name.go: header, types, constructors, methods and formulas, and the helpers that they call."""

from __future__ import annotations

import re
from collections.abc import Sequence

from simulator.clock.bind import REFERENCE_DECODES
from simulator.language.infer import infer
from simulator.language.ir import Field, Function, nodes
from simulator.language.unparse import unparse
from simulator.schema import CURVES, READABLE
from translate_go.batch import BatchUse, declare, host_requests, read_as, sum_function, sums_type
from translate_go.constructors import constructors
from translate_go.deployment import SETTINGS
from translate_go.generic.facts import host_options, host_use
from translate_go.lower import GoAtom, GoExpr, Lowering
from translate_go.naming import (
    HELPERS,
    MARK,
    GoNames,
    batch_name,
    clean,
    columns,
    comment,
    curve_name,
    digits,
    fact,
    import_block,
    joined,
)
from translate_go.target import LOGGER, MODULE, EmitPlan
from translate_go.templates import sections

_TEXT = sections("source")

# function of the language -> (Go function, what it computes)
_FORMULAS = {
    "step_time": ("stepMicros", "the duration of one step"),
    "queueing_time": ("queueingMicros", "the time from a request's arrival to the queue"),
    "output_token_time": ("outputTokenMicros", "the handling of one output token"),
    "completion_time": ("completionMicros", "the fixed overhead of a finished request"),
    "scheduling_time": ("schedulingMicros", "the handling of one admission"),
    "preemption_time": ("preemptionMicros", "the handling of one eviction"),
}
# the field at which a curve is read -> its words in a comment
_AT = {"b.graph_tokens": "padded tokens", "b.tokens": "tokens", "b.batch_size": "requests", "b.decode_reqs": "decodes"}
_FAR = re.compile("; .*|, padded tokens|, at the prompts' mean length")  # left out of comments in Go


def source(plan: EmitPlan, provenance: Sequence[str]) -> str:
    """The text of the file. `provenance`: lines on the program for the header."""
    name, helpers = plan.name, set[str]()
    formulas = [_formula(f, plan, helpers) for f in plan.functions.values()]
    ticks = _TEXT["host_ticks" if plan.target.main else "own_ticks"]
    parts = [
        *([deployment_type(plan)] if plan.reads_deployment else []),
        *([options_type(plan)] if plan.options else []),
        model_type(plan),
        *constructors(plan),
        *_methods(plan),
        *formulas,
    ]
    if plan.batch.sums:
        parts += [sums_type(plan.batch, name), sum_function(plan.batch, name, host_requests(plan.target.prompt_int64))]
    functions = (_TEXT["max_ticks"], ticks, *(text for helper, text in HELPERS.items() if helper in helpers))
    parts += [name.fill(text) for text in functions]
    body = "\n\n".join(parts) + "\n"
    own = (f"{MODULE}/sim", LOGGER) if plan.warns else (f"{MODULE}/sim",)
    imports = import_block(body, ("fmt", "math", "math/bits", "strings", "sync"), *own)
    return f"{_header(plan, provenance)}\n\npackage {plan.package}\n\n{imports}\n\n{body}"


def _header(plan: EmitPlan, provenance: Sequence[str]) -> str:
    notes = [clean(line) for text in provenance for line in text.splitlines()]
    if plan.host:
        notes.append("Deployments: any, by the host's configuration of model and GPU")
    elif plan.reads_deployment and plan.many:
        notes.append(f"Deployments: {len(plan.deployments)}, by name")
    elif plan.reads_deployment and plan.deployments:
        head = "Deployments" if len(plan.deployments) > 1 else "Deployment"
        notes.append(clean(f"{head}: {', '.join(d.name for d in plan.deployments)}"))
    text = [f"\t{clean(line)}" for line in unparse(plan.program).rstrip("\n").split("\n")]
    blank = [""] if notes else []
    lines = [*notes, *blank, *plan.target.remarks.split("\n"), "", *_TEXT["arithmetic"].split("\n"), "", *text]
    shown = (f"//{line}" if line.startswith("\t") else f"// {line}" for line in lines)
    return "\n".join([f"// {MARK}", "", *(line.rstrip() for line in shown)])


def deployment_type(plan: EmitPlan) -> str:
    """The struct of the facts and curves that are read, each with meaning and unit."""
    rows = [(fact(name), "float64", f"// {_meaning(name)}") for name in plan.facts] + _curve_fields(plan.curves)
    kind = f"{plan.name.exported}Deployment"
    doc = f"{kind} holds the static facts of a model on its GPUs, per GPU where each holds a share."
    if plan.curves:
        doc += " The curves of measured kernels are not copied: do not change them afterwards."
    return plan.name.fill(_TEXT["struct"], doc=comment(doc), kind=kind, fields=columns(rows))


def _meaning(name: str) -> str:
    spec = READABLE["s", name]
    unit = "" if spec.unit == "one" else f", {spec.unit.replace('**', '^')}"
    return f"{spec.meaning.split(': ')[0]}{unit}"


def _curve_fields(curves: Sequence[str]) -> list[tuple[str, str, str]]:
    """The fields of the Go struct for the curves, with unit and the quantity they are read at."""
    specs = {spec.curve: spec for spec in READABLE.values() if spec.curve}
    rows = []
    for name in curves:
        spec = specs[name]
        meaning = _FAR.sub("", spec.meaning.split(": ")[0])
        by, unit = _AT.get(spec.at, "length of a prompt"), spec.unit.replace("**", "^")
        rows.append((curve_name(name), "[]float64", f"// {CURVES[name]} knots by {by}: {meaning}, {unit}"))
    return rows


def options_type(plan: EmitPlan) -> str:
    """The struct of the inputs that belong neither to the program nor to the host's configuration of the model."""
    rows = []
    if plan.target.main:
        rows.append(
            ("AdapterCost", "sim.AdapterCost", "// factor of a step's time for its adapters (LoRA); nil for none")
        )
    rows += [(fact(name), "float64", f"// {_meaning(name)}: {plan.target.flags[name]}") for name in plan.settings]
    if plan.host:
        rows += host_options(host_use(plan.facts, plan.curves), plan.name)
    doc = f"{plan.name.exported}Options holds the inputs that belong neither to the program nor to the deployment."
    if plan.settings:
        doc += " The settings of the engine have no defaults: all of them must be given."
    return plan.name.fill(_TEXT["struct"], doc=comment(doc), kind=f"{plan.name.exported}Options", fields=columns(rows))


def host_option(plan: EmitPlan) -> str:
    """The host's Option by which the options get to the factory; "" if they hold nothing but the cost of adapters.

    It needs the field `NAME NAMEOptions` in the host's latencyOptions, so it is no part of the emitted files, which
    compile in the host as it is.
    """
    if not plan.settings and not (plan.host and host_options(host_use(plan.facts, plan.curves), plan.name)):
        return ""
    what = "the settings of the engine that" if plan.settings else "what the host does not know and"
    doc = f"With<Name>Options passes {what} the backend <registered> reads."
    return plan.name.fill(_TEXT["option"], doc=comment(plan.name.fill(doc)))


def model_type(plan: EmitPlan) -> str:
    """The model, and the assertion that it has the methods of the host's interface."""
    name, depends = plan.name.exported, ["the arguments"]
    rows: list[tuple[str, ...]] = []
    if plan.reads_deployment:
        rows.append(("d", f"{name}Deployment"))
        depends.append("the deployment")
    if plan.options:
        rows.append(("options", f"{name}Options"))
        depends.append("the options")
    if plan.reference:
        meaning = f"// step time of {REFERENCE_DECODES} decodes with progress 0, us before truncation"
        rows.append(("referenceStepUs", f"float64 {meaning}"))
    doc = comment(
        f"{name} is a latency model found by program search: its formulas are fixed, and its results depend on nothing "
        f"but {joined(depends)}."
    )
    struct = f"{doc}\ntype {name} struct{{}}"
    if rows:
        struct = plan.name.fill(_TEXT["struct"], doc=doc, kind=name, fields=columns(rows))
    return f"{struct}\n\nvar _ sim.LatencyModel = (*{name})(nil)"


def _methods(plan: EmitPlan) -> list[str]:
    ticks = plan.name.of("ticks")
    sums = f"{plan.name.of('sumBatch')}(batch)" if plan.batch.sums else ""
    step = f"{ticks}(m.stepMicros({sums}), 1)"
    if plan.target.main:
        step = f"applyAdapterOverhead({step}, batch, m.options.AdapterCost)"
    queueing = plan.functions.get("queueing_time")
    reads = queueing is not None and any(isinstance(n, Field) and n.scope == "r" for n in nodes(queueing))
    length = plan.target.prompt_float64 if reads else ""
    methods = plan.name.fill(
        _TEXT["methods"],
        batch="batch" if "batch" in step else "_",
        step=step,
        request="req" if reads else "_",
        queueing=f"{ticks}(m.queueingMicros({length}), 0)" if queueing else "0",
    )
    overheads = []
    for method, function in plan.target.overheads:
        formula, meaning = _FORMULAS[function]
        value = f"{ticks}(m.{formula}(), 0)" if function in plan.functions else "0"
        overheads.append(plan.name.fill(_TEXT["overhead"], method=method, meaning=meaning, value=value))
    return [methods, *overheads]


def _formula(function: Function, plan: EmitPlan, helpers: set[str]) -> str:
    """The float64 formula of a method, with its constants in a block at the top."""
    name, meaning = _FORMULAS[function.name]
    use = plan.batch if function.name == "step_time" else BatchUse()
    taken = {*map(batch_name, use.fields), "inputLen"}
    if plan.reads_deployment:
        taken.add("d")
    if plan.settings:
        taken.add("o")
    names = GoNames(plan.name, taken)
    read: set[str] = {"d"} if use.curves else set()  # which of d, o and inputLen

    def field(node: Field) -> GoExpr:
        if node.scope == "r":
            read.add("inputLen")
        elif node.scope == "s" and node.name != "reference_step_us":
            read.add("o" if node.name in SETTINGS else "d")
        return read_as(node)

    lowering = Lowering(names, field, helpers)
    lowering.constants = {c.name: c.value for c in function.constants}
    rows, units = [], infer(function).units
    for c in function.constants:
        spelled = names.fresh(c.name)
        lowering.spelled[c.name] = GoAtom(spelled)
        unit = (units[c.name] or "unit left open").replace("**", "^")
        rows.append((spelled, "float64", f"= {digits(c.value)}", f"// {'dimensionless' if unit == 'one' else unit}"))
    declare(use, lowering)
    lowering.lines += [""] if use.fields else []
    lowering.body(function)
    body = [f"\tconst {' '.join(row)}" for row in rows]
    if len(rows) > 1:
        body = ["\tconst (", columns(rows, "\t\t"), "\t)"]
    body += ["\td := &m.d"] if "d" in read else []
    body += ["\to := &m.options"] if "o" in read else []
    argument = "inputLen float64" if "inputLen" in read else ""
    if use.sums:
        argument = f"b {plan.name.of('batchSums')}"
    doc, text = comment(f"{name} is {meaning}, in microseconds before truncation."), "\n".join([*body, *lowering.lines])
    return plan.name.fill(_TEXT["formula"], doc=doc, function=name, argument=argument, body=text)
