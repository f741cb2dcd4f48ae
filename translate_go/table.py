"""Deployments as Go literals, and the Go file of them: a variable each, or a table that is searched by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from simulator.common.knots import PER_OCTAVE
from simulator.kernels.tables import tables
from simulator.serving.facts import Facts, curve_of
from translate_go.deployment import Deployment
from translate_go.naming import MARK, clean, columns, comment, curve_name, digits, fact, import_block, indented, quoted
from translate_go.target import EmitPlan
from translate_go.templates import sections

_TEXT = sections("deployments")

MOST_LISTED = 16  # names that an error lists


def deployment_literal(plan: EmitPlan, facts: Mapping[str, float], indent: str = "", kind: str | None = None) -> str:
    """The deployment's literal, with the facts and curves that are read.

    `indent` is that of the last line; `kind` is the type in front, by default the deployment's.
    """
    kind = f"{plan.name.exported}Deployment" if kind is None else kind
    inner = indent + "\t"
    parts = [f"{kind}{{"]
    rows = [(f"{fact(name)}:", f"{digits(facts[name])},") for name in plan.facts]
    for name in plan.curves:
        knots = curve_of(facts, name)
        if knots.any():
            opening = f"{inner}{curve_name(name)}: []float64{{"
            parts += [columns(rows, inner), opening, _octaves(knots, inner + "\t"), f"{inner}}},"]
            rows = []
        else:
            rows.append((f"{curve_name(name)}:", f"[]float64{{{len(knots) - 1}: 0}},"))
    return "\n".join([*filter(None, [*parts, columns(rows, inner)]), f"{indent}}}"])


def _octaves(knots: np.ndarray, indent: str) -> str:
    return number_rows([digits(x) for x in knots.tolist()], PER_OCTAVE, indent)


def number_rows(texts: Sequence[str], width: int, indent: str = "\t") -> str:
    """The lines of a Go list, with `width` elements each."""
    rows = (texts[i : i + width] for i in range(0, len(texts), width))
    return indented((f"{', '.join(row)}," for row in rows), indent)


def deployment_variable(plan: EmitPlan, deployment: Deployment) -> str:
    """The Go variable that holds a deployment with curves."""
    return plan.name.of(f"deployment{deployment.go_name}")


def curve_notice(deployed: Sequence[Mapping[str, float]]) -> str:
    """A comment on the curves of these facts: how to read them, and the source of the measurements."""
    gpus = {f.deployed.gpu.tables for f in deployed if isinstance(f, Facts) and f.deployed}
    return "\n".join([comment(_TEXT["curves"]), "//", comment(_TEXT["origin"]), *source_notices(sorted(gpus))])


def source_notices(gpus: Iterable[str]) -> list[str]:
    """Lines of a comment: the source, licence and copyright of the measured kernels of these GPUs."""
    sources: dict[tuple[str, str, str], list[str]] = {}
    for gpu in gpus:
        about = tables(gpu).about
        sources.setdefault((about["source"], about["license"], about["copyright"]), []).append(gpu)
    lines = []
    for (source, licence, holder), named in sources.items():
        lines += ["//", comment(f"Source: {source}, licence {licence}, tables of {', '.join(named)}."), comment(holder)]
    return lines


def deployments_file(plan: EmitPlan) -> str:
    """The text of the file of deployments with curves, or of more than get a constructor each."""
    parts = [f"// {MARK}\n\npackage {plan.package}"]
    if plan.many:
        parts.append(import_block(_TEXT["look_up"], ("fmt", "sort", "strings")))
    if plan.curves:
        parts.append(curve_notice([d.facts for d in plan.deployments]))
    if plan.many:
        parts += _table(plan)
    else:
        parts += [_variable(plan, deployment) for deployment in plan.deployments]
    return "\n\n".join(parts) + "\n"


def _variable(plan: EmitPlan, deployment: Deployment) -> str:
    variable = deployment_variable(plan, deployment)
    doc = comment(f"{variable} is {clean(deployment.name)}.")
    return f"{doc}\nvar {variable} = {deployment_literal(plan, deployment.facts)}"


def _table(plan: EmitPlan) -> list[str]:
    """The Go of the deployments by name, their other names, and the functions that look one up."""
    variable = plan.name.of("deployments")
    literals = {d.name.lower(): deployment_literal(plan, d.facts, "\t", "") for d in plan.deployments}
    rows = indented(f"{quoted(name)}: {literal}," for name, literal in literals.items())
    doc = f"// {variable} are by name, in lower case."
    table = f"{doc}\nvar {variable} = map[string]{plan.name.exported}Deployment{{\n{rows}\n}}"
    return [table, *_known(plan), plan.name.fill(_TEXT["look_up"], most=MOST_LISTED)]


def name_check(plan: EmitPlan) -> list[str]:
    """The Go of the function that refuses the host's names of any deployment but the first, and of what it needs."""
    deployment = plan.deployments[0]
    model, gpu, tp = clean(deployment.model.lower()), clean(deployment.host_gpu), deployment.tp
    check = plan.name.fill(
        _TEXT["refused"],
        doc=comment(plan.name.fill(_TEXT["about_refused"], deployment=clean(deployment.name))),
        model=quoted(deployment.model.lower()),
        gpu=quoted(deployment.hardware.lower()),
        tp=tp,
        made=quoted(f"--model {model} --hardware {gpu} --tp {tp}"),
    )
    return [*_known(plan), check]


def _known(plan: EmitPlan) -> list[str]:
    """The Go of other names of the deployments, and of the function that replaces them."""
    rows = [f"{{{quoted(other)}, {quoted(name)}}}," for other, name in sorted(_other_names(plan).items())]
    doc = comment(plan.name.fill(_TEXT["about_names"]))
    names = "\n".join([doc, f"var {plan.name.of('names')} = [][2]string{{", *(f"\t{row}" for row in rows), "}"])
    return [names, plan.name.fill(_TEXT["known"])]


def alike(plan: EmitPlan, deployments: Sequence[Deployment]) -> tuple[Deployment, Deployment] | None:
    """Two deployments of one model on the same GPUs, for the host, whose facts or curves differ; None without any."""
    firsts: dict[str, Deployment] = {}
    for deployment in deployments:
        first = firsts.setdefault(deployment.place.lower(), deployment)
        if first is not deployment and _read(plan, first.facts) != _read(plan, deployment.facts):
            return first, deployment
    return None


def _read(plan: EmitPlan, facts: Mapping[str, float]) -> tuple[list[float], list[list[float]]]:
    return [facts[name] for name in plan.facts], [curve_of(facts, name).tolist() for name in plan.curves]


def _other_names(plan: EmitPlan) -> dict[str, str]:
    """Other name -> name in the table, in lower case, of models, GPUs and MODEL/GPU/tpN, if that is not ambiguous."""
    names: dict[str, str] = {}
    places: dict[str, list[Deployment]] = {}
    for d in plan.deployments:
        names |= {other.lower(): d.model.lower() for other in d.model_names}
        names |= {other.lower(): d.hardware.lower() for other in d.gpu_names}
        if d.model and d.hardware:
            places.setdefault(d.place.lower(), []).append(d)
    names |= {place: there[0].name.lower() for place, there in places.items() if not alike(plan, there)}
    return {other: name for other, name in names.items() if other != name}
