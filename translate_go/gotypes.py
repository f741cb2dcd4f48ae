"""The types of the emitted Go, Deployment and Evolved: their constructors and values, and evolved_deployments.go.

That file has the deployments with curves of measured kernels, or those that are too many for evolved.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from simulator.bind import REFERENCE_DECODES
from simulator.experiment.facts import Facts, curve_of
from simulator.kernels.tables import tables
from simulator.knots import PER_OCTAVE
from simulator.schema import CURVES, READABLE
from translate_go.deployment import Deployment, by_name, least
from translate_go.spelling import MARK, clean, columns, comment, curve_name, digits, fact, quoted
from translate_go.target import Plan

_LAYOUT = (
    "Each row of a curve is an octave of eight knots: 1, 1.125, ... 1.875, then 2, 2.25, ... 3.75, and so on; the last "
    "knot has a row to itself. []float64{112: 0} is a curve of 113 zeros: the deployment has no such kernel."
)
_ORIGIN = (
    "The curves are computed from published kernel latencies: interpolated between the measured shapes, smoothed, and "
    "summed over layers. Elementwise kernels, and shapes without a credible measurement, are estimated from the "
    "datasheet."
)
_AT = {
    "b.graph_tokens": "padded tokens",
    "b.tokens": "tokens",
    "b.batch_size": "requests",
    "b.decode_reqs": "decodes",
}
_FAR = re.compile("; .*|, padded tokens|, at the prompts' mean length")  # left out of comments in Go
_BY_NAME = """\
// NewEvolvedFor returns the model for a deployment of evolved_deployments.go by its name, in upper or lower case, or an
// error if there is none of that name.
func NewEvolvedFor(name string) (*Evolved, error) {
	d, ok := deployments[strings.ToLower(name)]
	if !ok {
		return nil, fmt.Errorf("evolved: no deployment %q in evolved_deployments.go", name)
	}
	return NewEvolved(d)
}
"""
_FACTORY_BY_NAME = """\
// NewEvolvedBackend is the factory to register as a latency backend. It selects the deployment by the configuration's
// model, GPU and tensor parallelism, "MODEL/GPU/tpN", and ignores the coefficients.
func NewEvolvedBackend(_ sim.LatencyCoeffs, hw sim.ModelHardwareConfig) (sim.LatencyModel, error) {
	return NewEvolvedFor(fmt.Sprintf("%s/%s/tp%d", hw.Model, hw.GPU, hw.TP))
}
"""


def deployment_type(plan: Plan) -> list[str]:
    """The struct of the facts and curves that are read, each with meaning and unit."""
    rows = []
    for name in plan.facts:
        spec = READABLE["s", name]
        unit = "" if spec.unit == "one" else f", {spec.unit.replace('**', '^')}"
        meaning = spec.meaning.split(": ")[0]  # what it is, without why it matters
        rows.append((fact(name), "float64", f"// {meaning}{unit}"))
    rows += curve_fields(plan.curves)
    doc = "Deployment holds the static facts of a model on its GPUs, per GPU where each holds a share."
    if plan.curves:
        doc += " The curves of measured kernels are not copied: do not change them afterwards."
    return [
        *comment(doc),
        "type Deployment struct {",
        *columns(rows, "\t"),
        "}",
    ]


def model_type(plan: Plan) -> list[str]:
    """The model, and the assertion that it has the methods of the host's interface."""
    rows = [("d", "Deployment")] if plan.reads_deployment else []
    if plan.reference:
        meaning = f"// step time of {REFERENCE_DECODES} decodes with progress 0, us before truncation"
        rows.append(("referenceStepUs", f"float64 {meaning}"))
    depends = "the arguments and the deployment" if plan.reads_deployment else "the arguments"
    doc = comment(
        "Evolved is a latency model found by program search: its formulas are fixed, and its results depend on nothing "
        f"but {depends}."
    )
    struct = ["type Evolved struct {", *columns(rows, "\t"), "}"] if rows else ["type Evolved struct{}"]
    return [*doc, *struct, "", "var _ sim.LatencyModel = (*Evolved)(nil)"]


def constructors(plan: Plan, deployments: Sequence[Deployment]) -> list[list[str]]:
    """NewEvolved for any deployment, constructors of the named ones, and the factory if it is clear which to make."""
    if not plan.reads_deployment:
        return [_without_facts(plan), _factory("NewEvolved")]
    parts = [_with_facts(plan)]
    if plan.reference:
        doc = "// newEvolved returns the model for valid facts, with its reference step computed."
        parts.append([doc, "func newEvolved(d Deployment) *Evolved {", *_referring("&Evolved{d: d}", plan), "}"])
    if by_name(deployments):
        return [*parts, _BY_NAME.rstrip().split("\n"), _FACTORY_BY_NAME.rstrip().split("\n")]
    parts += [_baked(plan, deployment) for deployment in deployments]
    return [*parts, _factory(f"NewEvolvedFor{deployments[0].go_name}")] if len(deployments) == 1 else parts


def constructor(plan: Plan, deployment: Deployment, deployments: Sequence[Deployment]) -> str:
    """The Go call that makes the model of a named deployment. It returns an error too if it `may_fail`."""
    if not plan.reads_deployment:
        return "NewEvolved()"
    if by_name(deployments):
        return f"NewEvolvedFor({quoted(deployment.name)})"
    return f"NewEvolvedFor{deployment.go_name}()"


def may_fail(plan: Plan, deployments: Sequence[Deployment]) -> bool:
    """Whether the constructors of named deployments return an error."""
    return plan.reads_deployment and by_name(deployments)


def _baked(plan: Plan, deployment: Deployment) -> list[str]:
    """The constructor of a named deployment."""
    name = f"NewEvolvedFor{deployment.go_name}"
    opening, closing = ("newEvolved(", ")") if plan.reference else ("&Evolved{d: ", "}")
    if plan.curves:
        what, lines = "facts and curves", [deployment_variable(deployment)]
    else:
        what, lines = "facts", deployment_literal(plan, deployment.facts, "\t")
    lines[0] = f"\treturn {opening}{lines[0]}"
    lines[-1] += closing
    doc = comment(f"{name} returns the model with the {what} of {clean(deployment.name)}.")
    return [*doc, f"func {name}() *Evolved {{", *lines, "}"]


def _without_facts(plan: Plan) -> list[str]:
    """The constructor of a model that reads no deployment."""
    inner = _referring("&Evolved{}", plan) if plan.reference else ["\treturn &Evolved{}"]
    doc = "// NewEvolved returns the model, which reads no facts and is the same for all deployments."
    return [doc, "func NewEvolved() *Evolved {", *inner, "}"]


def _with_facts(plan: Plan) -> list[str]:
    """The constructor for any deployment, which checks facts and curves."""
    kinds = " or ".join(["fact"] * bool(plan.facts) + ["curve"] * bool(plan.curves))
    return [
        f"// NewEvolved returns the model for a deployment, or an error naming the first {kinds} that is invalid.",
        "func NewEvolved(d Deployment) (*Evolved, error) {",
        *(_fact_checks(plan) if plan.facts else []),
        *(_curve_checks(plan) if plan.curves else []),
        f"\treturn {'newEvolved(d)' if plan.reference else '&Evolved{d: d}'}, nil",
        "}",
    ]


def _fact_checks(plan: Plan) -> list[str]:
    bound = {0.0: ">= 0", 1.0: ">= 1"}
    rows = [(fact(name), bound.get(least(name), "> 0")) for name in plan.facts]
    return [
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
    ]


def _curve_checks(plan: Plan) -> list[str]:
    return [
        "\tfor _, curve := range []struct {",
        "\t\tname  string",
        "\t\tknots []float64",
        "\t\twant  int",
        "\t}{",
        *(f'\t\t{{"{curve_name(name)}", d.{curve_name(name)}, {CURVES[name]}}},' for name in plan.curves),
        "\t} {",
        "\t\tif len(curve.knots) != curve.want {",
        '\t\t\treturn nil, fmt.Errorf("evolved: Deployment.%s has %d knots, needs %d", curve.name, len(curve.knots), '
        "curve.want)",
        "\t\t}",
        "\t\tfor i, us := range curve.knots {",
        "\t\t\tif !(us >= 0) || math.IsInf(us, 0) { // unlike us < 0, this rejects NaN",
        '\t\t\t\treturn nil, fmt.Errorf("evolved: Deployment.%s[%d] cannot be %g", curve.name, i, us)',
        "\t\t\t}",
        "\t\t}",
        "\t}",
    ]


def _referring(build: str, plan: Plan) -> list[str]:
    """The body of a constructor that also computes the reference step."""
    decodes = f"decodeReqs: {REFERENCE_DECODES}" if "decodeReqs" in plan.batch.sums else ""
    sums = f"batchSums{{{decodes}}}" if plan.batch.sums else ""
    return [f"\tm := {build}", f"\tm.referenceStepUs = m.stepMicros({sums})", "\treturn m"]


def _factory(name: str) -> list[str]:
    return [
        "// NewEvolvedBackend is the factory to register as a latency backend. Constants and facts are those of this",
        "// file; it ignores coefficients and configuration.",
        "func NewEvolvedBackend(_ sim.LatencyCoeffs, _ sim.ModelHardwareConfig) (sim.LatencyModel, error) {",
        f"\treturn {name}(), nil",
        "}",
    ]


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


def deployment_literal(plan: Plan, facts: Mapping[str, float], indent: str = "", kind: str = "Deployment") -> list[str]:
    """The lines of `Deployment{...}` with the facts and curves that are read. `indent` is that of the last line."""
    inner = indent + "\t"
    lines: list[str] = []
    rows = [(f"{fact(name)}:", digits(facts[name]) + ",") for name in plan.facts]
    for name in plan.curves:
        knots = curve_of(facts, name)
        if not knots.any():
            rows.append((f"{curve_name(name)}:", f"[]float64{{{len(knots) - 1}: 0}},"))
            continue
        lines += [*columns(rows, inner), f"{inner}{curve_name(name)}: []float64{{", *_octaves(knots, inner + "\t")]
        lines.append(f"{inner}}},")
        rows = []
    return [f"{kind}{{", *lines, *columns(rows, inner), f"{indent}}}"]


def deployments_file(plan: Plan, deployments: Sequence[Deployment]) -> str:
    """The text of evolved_deployments.go."""
    lines = [f"// {MARK}", "", "package latency"]
    if plan.curves:
        lines += ["", *curve_notice([d.facts for d in deployments])]
    if by_name(deployments):
        lines += ["", "// deployments by name, in lower case.", "var deployments = map[string]Deployment{"]
        for d in deployments:
            opening, *rest = deployment_literal(plan, d.facts, "\t", "")
            lines += [f"\t{quoted(d.name.lower())}: {opening}", *rest[:-1], f"{rest[-1]},"]
        return "\n".join([*lines, "}", ""])
    for d in deployments:
        opening, *rest = deployment_literal(plan, d.facts)
        variable = deployment_variable(d)
        lines += ["", *comment(f"{variable} is {clean(d.name)}."), f"var {variable} = {opening}", *rest]
    return "\n".join([*lines, ""])


def deployment_variable(deployment: Deployment) -> str:
    """The Go variable that holds a deployment with curves."""
    return f"deployment{deployment.go_name}"


def curve_notice(deployed: Sequence[Mapping[str, float]]) -> list[str]:
    """A comment on the curves of these facts: how to read them, and the source of the measurements."""
    names = {f.deployed.gpu.tables for f in deployed if isinstance(f, Facts) and f.deployed}
    sources: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(names):
        about = tables(name).about
        sources.setdefault((about["source"], about["license"], about["copyright"]), []).append(name)
    lines = [*comment(_LAYOUT), "//", *comment(_ORIGIN)]
    for (source, licence, copyright_line), gpus in sources.items():
        lines += ["//", *comment(f"Source: {source}, licence {licence}, tables of {', '.join(gpus)}."),
                  *comment(copyright_line)]  # fmt: skip
    return lines


def _octaves(knots: np.ndarray, indent: str) -> list[str]:
    """The values at the knots, a line per octave."""
    values = [digits(x) for x in knots.tolist()]
    starts = range(0, len(values), PER_OCTAVE)
    return [f"{indent}{', '.join(values[i : i + PER_OCTAVE])}," for i in starts]
