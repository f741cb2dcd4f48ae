"""name.go: header, types, constructors, methods and formulas, and the helpers that they call."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.language.infer import infer
from simulator.language.ir import Field, Function, nodes
from simulator.language.unparse import unparse
from translate_go.batch import BatchUse, declare, sum_function, sums_type
from translate_go.constructors import constructors
from translate_go.deployment import SETTINGS, Deployment, by_name
from translate_go.fields import read_as
from translate_go.goexpr import GoAtom, GoExpr
from translate_go.gotypes import deployment_type, model_type, options_type
from translate_go.helpers import HELPERS, HOST_TICKS, MAX_TICKS, OWN_TICKS
from translate_go.lower import Lowering
from translate_go.spelling import MARK, GoNames, batch_name, clean, columns, comment, digits
from translate_go.target import MODULE, EmitPlan

# function of the language -> (Go function, what it computes)
_FORMULAS = {
    "step_time": ("stepMicros", "the duration of one step"),
    "queueing_time": ("queueingMicros", "the time from a request's arrival to the queue"),
    "output_token_time": ("outputTokenMicros", "the handling of one output token"),
    "completion_time": ("completionMicros", "the fixed overhead of a finished request"),
    "scheduling_time": ("schedulingMicros", "the handling of one admission"),
    "preemption_time": ("preemptionMicros", "the handling of one eviction"),
}


def source(plan: EmitPlan, deployments: Sequence[Deployment], provenance: tuple[str, ...]) -> str:
    """The text of the file."""
    helpers: set[str] = set()
    formulas = [_formula(f, plan, helpers) for f in plan.functions.values()]
    ticks = HOST_TICKS if plan.target.host_clamp else OWN_TICKS
    parts = [
        *([deployment_type(plan)] if plan.reads_deployment else []),
        *([options_type(plan)] if plan.options else []),
        model_type(plan),
        *constructors(plan, deployments),
        *_methods(plan),
        *formulas,
        *(
            [sums_type(plan.batch, plan.name), sum_function(plan.batch, plan.name, plan.target.prompt_int64)]
            if plan.batch.sums
            else []
        ),
        *(plan.name.fill(text).rstrip().split("\n") for text in (MAX_TICKS, ticks)),
        *(plan.name.fill(text).rstrip().split("\n") for name, text in HELPERS.items() if name in helpers),
    ]
    body = "\n\n".join("\n".join(part) for part in parts) + "\n"
    packages = {"fmt": "fmt.", "math": "math.", "math/bits": "bits.Mul64", "strings": "strings."}
    standard = [f'\t"{name}"' for name, used in packages.items() if used in body]
    imports = ["import (", *standard, "", f'\t"{MODULE}/sim"', ")"] if standard else [f'import "{MODULE}/sim"']
    return "\n".join([*_header(plan, deployments, provenance), "", "package latency", "", *imports, "", body])


def _header(plan: EmitPlan, deployments: Sequence[Deployment], provenance: tuple[str, ...]) -> list[str]:
    """The comment at the top, with the program's text."""
    notes = [clean(line) for text in provenance for line in text.splitlines()]
    if plan.host:
        notes.append("Deployments: any, by the host's configuration of model and GPU")
    elif deployments and plan.reads_deployment:
        listed = f"{len(deployments)}, by name" if by_name(deployments) else ", ".join(d.name for d in deployments)
        notes.append(clean(f"Deployment{'s' * (len(deployments) > 1)}: {listed}"))
    text = unparse(plan.program).rstrip("\n").split("\n")
    lines = [
        f"// {MARK}", "",
        *(f"// {line}".rstrip() for line in notes), *(["//"] if notes else []),
        *(f"// {line}" for line in plan.target.remarks), "//",
        "// Times are in microseconds (us). Sums over the batch are integers, everything else is float64 in the",
        "// written order; float64(x * y) keeps a product from being fused with a sum, so that every machine gives",
        "// the same bits.",
        "//",
        "// The program that this file translates:",
        "//",
    ]  # fmt: skip
    return [*lines, *(f"//\t{clean(line)}".rstrip() for line in text)]


def _methods(plan: EmitPlan) -> list[list[str]]:
    """The methods of the host's interface."""
    model, ticks = plan.name.exported, plan.name.of("ticks")
    sums = f"{plan.name.of('sumBatch')}(batch)" if plan.batch.sums else ""
    step = f"{ticks}(m.stepMicros({sums}), 1)"
    if plan.target.adapter_cost:
        step = f"applyAdapterOverhead({step}, batch, m.options.AdapterCost)"
    parts = [[
        "// StepTime estimates the duration of one step of the batch, empty or not, in microseconds, at least 1.",
        f"func (m *{model}) StepTime({'batch' if 'batch' in step else '_'} []*sim.Request) int64 {{",
        f"\treturn {step}", "}",
    ]]  # fmt: skip
    queueing = "queueing_time" in plan.functions
    reads = queueing and any(isinstance(n, Field) and n.scope == "r" for n in nodes(plan.functions["queueing_time"]))
    argument = plan.target.prompt_float64 if reads else ""
    parts.append([
        "// QueueingTime estimates the time from a request's arrival to the queue in microseconds.",
        f"func (m *{model}) QueueingTime({'req' if reads else '_'} *sim.Request) int64 {{",
        f"\treturn {ticks}(m.queueingMicros({argument}), 0)" if queueing else "\treturn 0", "}",
    ])  # fmt: skip
    for method, name in plan.target.overheads:
        value = f"{ticks}(m.{_FORMULAS[name][0]}(), 0)" if name in plan.functions else "0"
        parts.append([
            f"// {method} estimates {_FORMULAS[name][1]} in microseconds.",
            f"func (m *{model}) {method}() int64 {{", f"\treturn {value}", "}",
        ])  # fmt: skip
    return parts


def _formula(function: Function, plan: EmitPlan, helpers: set[str]) -> list[str]:
    """The float64 formula of a method, with its constants in a block at the top."""
    name, meaning = _FORMULAS[function.name]
    use = plan.batch if function.name == "step_time" else BatchUse()
    reserved = ["d"] * plan.reads_deployment + ["o"] * bool(plan.settings)
    names = GoNames(plan.name, {*map(batch_name, use.fields), "inputLen", *reserved})
    seen: set[str] = {"deployment"} if use.curves else set()

    def field(node: Field) -> GoExpr:
        seen.add(node.scope)
        if node.scope == "s" and node.name != "reference_step_us":
            seen.add("options" if node.name in SETTINGS else "deployment")
        return read_as(node)

    lowering = Lowering(names, field, helpers)
    lowering.constants = {c.name: c.value for c in function.constants}
    rows, measured = [], infer(function).units
    for c in function.constants:
        spelled = names.fresh(c.name)
        lowering.spelled[c.name] = GoAtom(spelled)
        unit = (measured[c.name] or "unit left open").replace("**", "^")
        rows.append((spelled, "float64", f"= {digits(c.value)}", f"// {'dimensionless' if unit == 'one' else unit}"))
    declare(use, lowering)
    lowering.lines += [""] if use.fields else []
    lowering.body(function)
    block = ["\tconst (", *columns(rows, "\t\t"), "\t)"] if len(rows) > 1 else [f"\tconst {' '.join(r)}" for r in rows]
    read = ["\td := &m.d"] * ("deployment" in seen) + ["\to := &m.options"] * ("options" in seen)
    argument = f"b {plan.name.of('batchSums')}" if use.sums else "inputLen float64" if "r" in seen else ""
    return [
        *comment(f"{name} is {meaning}, in microseconds before truncation."),
        f"func (m *{plan.name.exported}) {name}({argument}) float64 {{",
        *block, *read, *lowering.lines, "}",
    ]  # fmt: skip
