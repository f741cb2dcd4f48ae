"""Deployments as Go literals, and what a reader has to know of their curves of measured kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from simulator.common.knots import PER_OCTAVE
from simulator.kernels.tables import tables
from simulator.serving.facts import Facts, curve_of
from translate_go.deployment import Deployment
from translate_go.spelling import columns, comment, curve_name, digits, fact
from translate_go.target import EmitPlan

_LAYOUT = (
    "Each row of a curve is an octave of eight knots: 1, 1.125, ... 1.875, then 2, 2.25, ... 3.75, and so on; the last "
    "knot has a row to itself. []float64{112: 0} is a curve of 113 zeros: the deployment has no such kernel."
)
_ORIGIN = (
    "The curves are computed from published kernel latencies: interpolated between the measured shapes, smoothed, and "
    "summed over layers. Elementwise kernels, and shapes without a credible measurement, are estimated from the "
    "datasheet."
)


def deployment_literal(
    plan: EmitPlan, facts: Mapping[str, float], indent: str = "", kind: str | None = None
) -> list[str]:
    """The lines of the deployment's literal, with the facts and curves that are read.

    `indent` is that of the last line; `kind` is the type in front, by default the deployment's.
    """
    kind = f"{plan.name.exported}Deployment" if kind is None else kind
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


def deployment_variable(plan: EmitPlan, deployment: Deployment) -> str:
    """The Go variable that holds a deployment with curves."""
    return plan.name.of(f"deployment{deployment.go_name}")


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
