"""Deployments as Go values, and evolved_deployments.go: deployments with curves, or too many for evolved.go."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from simulator.experiment.facts import Facts, curve_of
from simulator.kernels.tables import tables
from simulator.knots import PER_OCTAVE
from simulator.schema import CURVES, FIELDS
from translate_go.deployment import Deployment, by_name
from translate_go.mark import MARK
from translate_go.plan import Plan
from translate_go.spelling import clean, columns, comment, curve_name, digits, fact, quoted

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
_FAR = re.compile("; .*|, padded tokens|, at the prompts' mean length")  # what a comment in Go need not repeat


def curve_fields(curves: Sequence[str]) -> list[tuple[str, str, str]]:
    """The fields of the Go struct that hold the curves, with what they are read at and the unit."""
    specs = {spec.curve: spec for spec in FIELDS.values() if spec.curve}
    rows = []
    for name in curves:
        spec = specs[name]
        meaning = _FAR.sub("", spec.meaning.split(": ")[0])
        by, unit = _AT.get(spec.at, "length of a prompt"), spec.unit.replace("**", "^")
        rows.append((curve_name(name), "[]float64", f"// {CURVES[name]} knots by {by}: {meaning}, {unit}"))
    return rows


def deployment_literal(plan: Plan, facts: Mapping[str, float], indent: str = "", kind: str = "Deployment") -> list[str]:
    """The lines of `Deployment{...}` with the facts and curves that are read; `indent` is that of the last line."""
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
    """The whole of evolved_deployments.go."""
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
        lines += ["", *comment(f"{variable(d)} is {clean(d.name)}."), f"var {variable(d)} = {opening}", *rest]
    return "\n".join([*lines, ""])


def variable(deployment: Deployment) -> str:
    """The Go variable that holds a deployment with curves."""
    return f"deployment{deployment.go_name}"


def curve_notice(deployed: Sequence[Mapping[str, float]]) -> list[str]:
    """A comment about the curves of these facts: how to read them, and whose measurements they come from."""
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
    values = [digits(x) for x in knots.tolist()]
    starts = range(0, len(values), PER_OCTAVE)
    return [f"{indent}{', '.join(values[i : i + PER_OCTAVE])}," for i in starts]
