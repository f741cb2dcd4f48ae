"""The types of evolved.go and how they are made: Deployment, Evolved, and the constructors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.bind import REFERENCE_DECODES
from simulator.schema import FIELDS
from translate_go.deployment import Deployment, least
from translate_go.plan import Plan
from translate_go.spelling import clean, columns, comment, digits, fact


def deployment_type(plan: Plan) -> list[str]:
    """The struct of the facts that are used, each with meaning and unit."""
    rows = []
    for name in plan.facts:
        spec = FIELDS["s", name]
        unit = "" if spec.unit == "one" else f", {spec.unit.replace('**', '^')}"
        meaning = spec.meaning.split(": ")[0]  # what it is; why it matters stands in the schema
        rows.append((fact(name), "float64", f"// {meaning}{unit}"))
    return [
        "// Deployment holds the static facts of a model on its GPUs, per GPU where each holds a share.",
        "type Deployment struct {",
        *columns(rows, "\t"),
        "}",
    ]


def model_type(plan: Plan) -> list[str]:
    """The model itself, and the proof that it has the methods of the host's interface."""
    rows = [("d", "Deployment")] if plan.facts else []
    if plan.reference:
        meaning = f"// step time of {REFERENCE_DECODES} decodes with progress 0, us before truncation"
        rows.append(("referenceStepUs", f"float64 {meaning}"))
    depends = "the arguments and the deployment" if plan.facts else "the arguments"
    doc = comment(
        "Evolved is a latency model found by program search: its formulas are fixed, and its results depend on nothing "
        f"but {depends}."
    )
    struct = ["type Evolved struct {", *columns(rows, "\t"), "}"] if rows else ["type Evolved struct{}"]
    return [*doc, *struct, "", "var _ sim.LatencyModel = (*Evolved)(nil)"]


def constructors(plan: Plan, deployment: Deployment | None) -> list[list[str]]:
    """NewEvolved for any facts, with a deployment also one with its facts, and the factory where no facts are open."""
    if not plan.facts:
        return [_without_facts(plan), _factory("NewEvolved")]
    parts = [_with_facts(plan)]
    if plan.reference:
        doc = "// newEvolved returns the model for facts that can be, its reference step computed."
        parts.append([doc, "func newEvolved(d Deployment) *Evolved {", *_referring("&Evolved{d: d}", plan), "}"])
    if deployment is None:
        return parts
    name = f"NewEvolvedFor{deployment.go_name}"
    literal = deployment_literal(plan.facts, deployment.facts)
    opening, closing = ("newEvolved(", ")") if plan.reference else ("&Evolved{d: ", "}")
    baked = [
        *comment(f"{name} returns the model with the facts of {clean(deployment.name)}."),
        f"func {name}() *Evolved {{", f"\treturn {opening}{literal[0]}", *literal[1:-1], f"{literal[-1]}{closing}", "}",
    ]  # fmt: skip
    return [*parts, baked, _factory(name)]


def deployment_literal(used: Sequence[str], facts: Mapping[str, float]) -> list[str]:
    """The lines of `Deployment{...}` with the facts that are used, to stand one tab deep."""
    rows = [(f"{fact(name)}:", digits(facts[name]) + ",") for name in used]
    return ["Deployment{", *columns(rows, "\t\t"), "\t}"]


def _without_facts(plan: Plan) -> list[str]:
    inner = _referring("&Evolved{}", plan) if plan.reference else ["\treturn &Evolved{}"]
    doc = "// NewEvolved returns the model, which reads no fact of a deployment and is the same for all."
    return [doc, "func NewEvolved() *Evolved {", *inner, "}"]


def _with_facts(plan: Plan) -> list[str]:
    bound = {0.0: ">= 0", 1.0: ">= 1"}
    rows = [(fact(name), bound.get(least(name), "> 0")) for name in plan.facts]
    return [
        "// NewEvolved returns the model for a deployment, or an error naming the first fact that cannot be.",
        "func NewEvolved(d Deployment) (*Evolved, error) {",
        "\tfor _, fact := range []struct {",
        "\t\tname  string",
        "\t\tvalue float64",
        "\t\tok    bool",
        "\t}{",
        *(f'\t\t{{"{name}", d.{name}, d.{name} {holds}}},' for name, holds in rows),
        "\t} {",
        "\t\tif !fact.ok || math.IsInf(fact.value, 0) {",
        '\t\t\treturn nil, fmt.Errorf("evolved: Deployment.%s cannot be %g", fact.name, fact.value)',
        "\t\t}",
        "\t}",
        f"\treturn {'newEvolved(d)' if plan.reference else '&Evolved{d: d}'}, nil",
        "}",
    ]


def _referring(build: str, plan: Plan) -> list[str]:
    """The body of a constructor that computes the reference step."""
    decodes = f"decodeReqs: {REFERENCE_DECODES}" if "decodeReqs" in plan.batch.sums else ""
    sums = f"batchSums{{{decodes}}}" if plan.batch.sums else ""
    return [f"\tm := {build}", f"\tm.referenceStepUs = m.stepMicros({sums})", "\treturn m"]


def _factory(name: str) -> list[str]:
    return [
        "// NewEvolvedBackend has the form in which a latency backend is registered. Constants and facts are those of",
        "// this file: neither coefficients nor configuration are consulted.",
        "func NewEvolvedBackend(_ sim.LatencyCoeffs, _ sim.ModelHardwareConfig) (sim.LatencyModel, error) {",
        f"\treturn {name}(), nil",
        "}",
    ]
