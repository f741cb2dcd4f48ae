"""The types of evolved.go and how they are made: Deployment, Evolved, and the constructors."""

from __future__ import annotations

from simulator.bind import REFERENCE_DECODES
from simulator.schema import FIELDS
from translate_go.deployment import Deployment, least
from translate_go.plan import Plan
from translate_go.spelling import clean, columns, digits, fact


def deployment_type(plan: Plan) -> list[str]:
    """The struct of the facts that are used, each with meaning and unit."""
    if not plan.facts:
        return ["// Deployment is empty: the program reads no fact of the model, the GPU or the engine.",
                "type Deployment struct{}"]  # fmt: skip
    rows = []
    for name in plan.facts:
        spec = FIELDS["s", name]
        unit = "" if spec.unit == "one" else f", {spec.unit.replace('**', '^')}"
        rows.append((fact(name), "float64", f"// {spec.meaning}{unit}"))
    return [
        "// Deployment holds the static facts of a model on its GPUs, per GPU where each holds a share.",
        "type Deployment struct {",
        *columns(rows, "\t"),
        "}",
    ]


def model_type(plan: Plan) -> list[str]:
    """The model itself, and the proof that it has the methods of the host's interface."""
    fields = [("d", "Deployment")] if plan.facts else []
    lines = ["// Evolved is a latency model found by program search: its formulas are fixed, and its results depend on",
             "// nothing but the arguments and the deployment."]  # fmt: skip
    if plan.reference:
        lines += [
            "//",
            f"// referenceStepUs is its own step time for {REFERENCE_DECODES} decodes with progress 0,",
            "// before truncation.",
        ]
        fields.append(("referenceStepUs", "float64"))
    struct = ["type Evolved struct {", *columns(fields, "\t"), "}"] if fields else ["type Evolved struct{}"]
    return [*lines, *struct, "", "var _ sim.LatencyModel = (*Evolved)(nil)"]


def constructors(plan: Plan, deployment: Deployment | None) -> list[list[str]]:
    """NewEvolved for any facts; with a deployment also one with its facts, and the factory to register."""
    argument = "d" if plan.facts else "_"
    build = "&Evolved{d: d}" if plan.facts else "&Evolved{}"
    generic = ["// NewEvolved returns the model for a deployment, or an error naming the first fact that cannot be.",
               f"func NewEvolved({argument} Deployment) (*Evolved, error) {{"]  # fmt: skip
    if plan.facts:
        positive = any(0.0 < least(name) < 1.0 for name in plan.facts)
        bounds = {name: digits(least(name)) if least(name) in (0.0, 1.0) else "positive" for name in plan.facts}
        generic += ["\tconst positive = math.SmallestNonzeroFloat64"] if positive else []
        generic += [
            "\tfor _, fact := range []struct {",
            "\t\tname         string",
            "\t\tvalue, least float64",
            "\t}{",
            *(f'\t\t{{"{fact(name)}", d.{fact(name)}, {bounds[name]}}},' for name in plan.facts),
            "\t} {",
            "\t\tif !(fact.value >= fact.least) || math.IsInf(fact.value, 0) {",
            '\t\t\treturn nil, fmt.Errorf("evolved: %s must be finite and at least %g, got %g", '
            "fact.name, fact.least, fact.value)",
            "\t\t}",
            "\t}",
        ]
    parts = [[*generic, f"\treturn newEvolved({'d' if plan.facts else ''}), nil", "}"]]
    signature = "d Deployment" if plan.facts else ""
    if plan.reference:
        decodes = f"decodeReqs: {REFERENCE_DECODES}" if "decodeReqs" in plan.batch.sums else ""
        sums = f"batchSums{{{decodes}}}" if plan.batch.sums else ""
        inner = [f"\tm := {build}", f"\tm.referenceStepUs = m.stepMicros({sums})", "\treturn m"]
    else:
        inner = [f"\treturn {build}"]
    parts.append([f"func newEvolved({signature}) *Evolved {{", *inner, "}"])
    return [*parts, *_baked(plan, deployment)] if deployment else parts


def _baked(plan: Plan, deployment: Deployment) -> list[list[str]]:
    name = f"NewEvolvedFor{deployment.go_name}"
    inner = ["\treturn newEvolved()"]
    if plan.facts:
        rows = [(f"{fact(n)}:", digits(deployment.facts[n]) + ",") for n in plan.facts]
        inner = ["\treturn newEvolved(Deployment{", *columns(rows, "\t\t"), "\t})"]
    return [
        [f"// {name} returns the model with the facts of {clean(deployment.name)}.",
         f"func {name}() *Evolved {{", *inner, "}"],
        ["// NewEvolvedModel has the form in which a latency backend is registered. Constants and facts are those of",
         "// this file: neither coefficients nor configuration are consulted.",
         "func NewEvolvedModel(_ sim.LatencyCoeffs, _ sim.ModelHardwareConfig) (sim.LatencyModel, error) {",
         f"\treturn {name}(), nil", "}"],
    ]  # fmt: skip
