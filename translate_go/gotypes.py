"""The types of the emitted Go: NameDeployment, NameOptions and Name, and the host's Option that passes the options."""

from __future__ import annotations

import re
from collections.abc import Sequence

from simulator.clock.bind import REFERENCE_DECODES
from simulator.schema import CURVES, READABLE
from translate_go.generic.facts import host_options, host_use
from translate_go.spelling import columns, comment, curve_name, fact
from translate_go.target import EmitPlan

_AT = {
    "b.graph_tokens": "padded tokens",
    "b.tokens": "tokens",
    "b.batch_size": "requests",
    "b.decode_reqs": "decodes",
}
_FAR = re.compile("; .*|, padded tokens|, at the prompts' mean length")  # left out of comments in Go


def deployment_type(plan: EmitPlan) -> list[str]:
    """The struct of the facts and curves that are read, each with meaning and unit."""
    rows = [(fact(name), "float64", f"// {_meaning(name)}") for name in plan.facts] + curve_fields(plan.curves)
    kind = f"{plan.name.exported}Deployment"
    doc = f"{kind} holds the static facts of a model on its GPUs, per GPU where each holds a share."
    if plan.curves:
        doc += " The curves of measured kernels are not copied: do not change them afterwards."
    return [
        *comment(doc),
        f"type {kind} struct {{",
        *columns(rows, "\t"),
        "}",
    ]


def _meaning(name: str) -> str:
    """What a fact is, without why it matters, and its unit."""
    spec = READABLE["s", name]
    unit = "" if spec.unit == "one" else f", {spec.unit.replace('**', '^')}"
    return f"{spec.meaning.split(': ')[0]}{unit}"


def options_type(plan: EmitPlan) -> list[str]:
    """The struct of what neither the program nor the host's configuration of the model holds."""
    rows = [("AdapterCost", "sim.AdapterCost", "// factor of a step's time for its adapters (LoRA); nil for none")]
    rows = rows if plan.target.adapter_cost else []
    rows += [(fact(name), "float64", f"// {_meaning(name)}: {plan.target.flags[name]}") for name in plan.settings]
    if plan.host:
        rows += host_options(host_use(plan.facts, plan.curves), plan.name)
    doc = f"{plan.name.exported}Options holds what is neither the program's nor the deployment's."
    if plan.settings:
        doc += " The settings of the engine have no defaults: all of them must be given."
    return [*comment(doc), f"type {plan.name.exported}Options struct {{", *columns(rows, "\t"), "}"]


def host_option(plan: EmitPlan) -> list[str]:
    """The host's Option by which the options get from its flags to the factory.

    It needs the field `NAME NAMEOptions` in the host's latencyOptions, so it is no part of the emitted files, which
    compile in the host as it is.
    """
    name = plan.name
    doc = f"With{name.exported}Options passes the settings of the engine that the backend {name.registered} reads."
    return [
        *comment(doc),
        f"func With{name.exported}Options(options {name.exported}Options) Option {{",
        f"\treturn func(o *latencyOptions) {{ o.{name.private} = options }}",
        "}",
    ]


def model_type(plan: EmitPlan) -> list[str]:
    """The model, and the assertion that it has the methods of the host's interface."""
    name = plan.name.exported
    rows = [("d", f"{name}Deployment")] if plan.reads_deployment else []
    rows += [("options", f"{name}Options")] if plan.options else []
    if plan.reference:
        meaning = f"// step time of {REFERENCE_DECODES} decodes with progress 0, us before truncation"
        rows.append(("referenceStepUs", f"float64 {meaning}"))
    depends = ["the arguments"] + ["the deployment"] * plan.reads_deployment + ["the options"] * plan.options
    doc = comment(
        f"{name} is a latency model found by program search: its formulas are fixed, and its results depend on nothing "
        f"but {', '.join(depends[:-1])}{' and ' * (len(depends) > 1)}{depends[-1]}."
    )
    struct = [f"type {name} struct {{", *columns(rows, "\t"), "}"] if rows else [f"type {name} struct{{}}"]
    return [*doc, *struct, "", f"var _ sim.LatencyModel = (*{name})(nil)"]


def curve_fields(curves: Sequence[str]) -> list[tuple[str, str, str]]:
    """The fields of the Go struct for the curves, with unit and the quantity they are read at."""
    specs = {spec.curve: spec for spec in READABLE.values() if spec.curve}
    rows = []
    for name in curves:
        spec = specs[name]
        meaning = _FAR.sub("", spec.meaning.split(": ")[0])
        by, unit = _AT.get(spec.at, "length of a prompt"), spec.unit.replace("**", "^")
        rows.append((curve_name(name), "[]float64", f"// {CURVES[name]} knots by {by}: {meaning}, {unit}"))
    return rows
