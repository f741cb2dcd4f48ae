"""The constructors of the emitted Go: for any deployment, for the named ones, and the factory that the host calls."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.clock.bind import REFERENCE_DECODES
from simulator.schema import CURVES
from translate_go.deployment import Deployment, least
from translate_go.naming import clean, columns, comment, curve_name, digits, fact, indented, quoted
from translate_go.table import deployment_literal, deployment_variable, name_check
from translate_go.target import FORMULAS, EmitPlan
from translate_go.templates import sections

_TEXT = sections("constructors")


def options_literal(plan: EmitPlan, facts: Mapping[str, float], package: str = "") -> str:
    """The Go literal of the options with these settings of the engine, of the Go package if one is given."""
    values = ", ".join(f"{fact(name)}: {digits(facts[name])}" for name in plan.settings)
    return f"{_of(package)}{plan.name.exported}Options{{{values}}}"


def constructors(plan: EmitPlan) -> list[str]:
    """The constructor for any deployment, those of the named ones, and the factory if it is clear which to make."""
    return [*_constructors(plan), *_warnings(plan)]


def _constructors(plan: EmitPlan) -> list[str]:
    new = f"New{plan.name.exported}"
    parts = [_constructor(plan)]
    if not plan.reads_deployment:
        factory = _factory(plan, f"{new}({_arguments(plan)})", _TEXT["about_baked"], "_")
        return [*parts, factory] if plan.has_factory else parts
    if plan.host:
        factory = _factory(plan, f"{new}ForHost(hw, options)", _TEXT["about_for_host"])
        warn = f"{plan.name.fill(_TEXT['warn_host'])}\n" if plan.warns else ""
        return [*parts, plan.name.fill(_TEXT["for_host"], warn=warn), factory]
    if plan.many:
        key = 'fmt.Sprintf("%s/%s/tp%d", hw.Model, hw.GPU, hw.TP)'
        call = f"{new}For({_arguments(plan, key)})"
        parameters, arguments = _parameters(plan, "name string"), _arguments(plan, "d")
        warn = f"{plan.name.fill(_TEXT['warn_named'])}\n" if plan.warned else ""
        lookup = plan.name.fill(_TEXT["by_name"], parameters=parameters, arguments=arguments, warn=warn)
        return [*parts, lookup, _factory(plan, call, _TEXT["about_by_name"])]
    parts += [_baked(plan, deployment) for deployment in plan.deployments]
    if not plan.has_factory:
        return parts
    call = f"{new}For{plan.deployments[0].go_name}({_arguments(plan)})"
    if not plan.checks_names:
        return [*parts, _factory(plan, call, _TEXT["about_baked"], "_")]
    check = f"{plan.name.fill(_TEXT['refuse'])}\n"
    return [*parts, _factory(plan, call, _TEXT["about_checked"], check=check), *name_check(plan)]


def constructor(plan: EmitPlan, deployment: Deployment, package: str = "", options: str | None = None) -> str:
    """The Go call that makes the model of a named deployment, or returns an error.

    `options` is the Go expression of the options, by default a literal with the deployment's own settings.
    """
    given = options_literal(plan, deployment.facts, package) if options is None else options
    new = f"{_of(package)}New{plan.name.exported}"
    if not plan.reads_deployment:
        return f"{new}({_arguments(plan, options=given)})"
    if plan.host:
        assert deployment.config, deployment.name
        return f"{new}ForHost({deployment.config.literal()}, {given})"
    if plan.many:
        return f"{new}For({_arguments(plan, quoted(deployment.name), options=given)})"
    return f"{new}For{deployment.go_name}({_arguments(plan, options=given)})"


def _of(package: str) -> str:
    return f"{package}." if package else ""


def _parameters(plan: EmitPlan, *before: str) -> str:
    """The parameters of a constructor, the options last if it takes them."""
    return ", ".join([*before, f"options {plan.name.exported}Options"] if plan.options else before)


def _arguments(plan: EmitPlan, *before: str, options: str = "options") -> str:
    """The arguments of a call of a constructor, the options last if it takes them."""
    return ", ".join([*before, options] if plan.options else before)


def _baked(plan: EmitPlan, deployment: Deployment) -> str:
    name = f"New{plan.name.exported}For{deployment.go_name}"
    if plan.curves:
        given, literal = "facts and curves", deployment_variable(plan, deployment)
    else:
        given, literal = "facts", deployment_literal(plan, deployment.facts, "\t")
    return plan.name.fill(
        _TEXT["baked"],
        doc=comment(f"{name} returns the model with the {given} of {clean(deployment.name)}."),
        constructor=name,
        parameters=_parameters(plan),
        arguments=_arguments(plan, literal),
    )


def _constructor(plan: EmitPlan) -> str:
    """The constructor for any deployment, which checks facts, curves and settings."""
    name = plan.name.exported
    checks = {"fact": _fact_checks(plan), "curve": _curve_checks(plan), "setting": _setting_checks(plan)}
    kinds = [kind for kind, check in checks.items() if check]
    doc = f"New{name} returns the model, which reads no facts"
    before = []
    if plan.reads_deployment:
        doc = f"New{name} returns the model for a deployment"
        before = [f"d {name}Deployment"]
    invalid = f", or an error naming the first {' or '.join(kinds)} that is invalid."
    doc += invalid if kinds else ": its error is always nil."
    values = ["d: d"] if plan.reads_deployment else []
    values += ["options: options"] if plan.options else []
    built = f"&{name}{{{', '.join(values)}}}"
    end = f"\treturn {built}, nil"
    if plan.reference:
        decodes = f"decodeReqs: {REFERENCE_DECODES}" if "decodeReqs" in plan.batch.sums else ""
        sums = f"{plan.name.of('batchSums')}{{{decodes}}}" if plan.batch.sums else ""
        end = f"\tm := {built}\n\tm.referenceStepUs = m.stepMicros({sums})\n\treturn m, nil"
    body = "\n".join([*filter(None, checks.values()), end])
    return plan.name.fill(_TEXT["constructor"], doc=comment(doc), parameters=_parameters(plan, *before), body=body)


def _fact_checks(plan: EmitPlan) -> str:
    bounds = {0.0: ">= 0", 1.0: ">= 1"}
    names = [(fact(name), bounds.get(least(name), "> 0")) for name in plan.facts]
    rows = indented((f'{{"{name}", d.{name}, d.{name} {bound}}},' for name, bound in names), "\t\t")
    return plan.name.fill(_TEXT["facts"], rows=rows) if rows else ""


def _curve_checks(plan: EmitPlan) -> str:
    names = [(curve_name(name), CURVES[name]) for name in plan.curves]
    rows = indented((f'{{"{name}", d.{name}, {knots}}},' for name, knots in names), "\t\t")
    return plan.name.fill(_TEXT["curves"], rows=rows) if rows else ""


def _setting_checks(plan: EmitPlan) -> str:
    derived = ", in the host by --max-num-seqs" if plan.target.main else ""
    flags = {name: plan.target.flags[name] + (derived if name in FORMULAS else "") for name in plan.settings}
    names = [(name, fact(name), flag) for name, flag in flags.items()]
    rows = indented((f'{{"{name}", "{field}", "{flag}", options.{field}}},' for name, field, flag in names), "\t\t")
    return plan.name.fill(_TEXT["settings"], rows=rows) if rows else ""


def _factory(plan: EmitPlan, call: str, doc: str, hardware: str = "hw", check: str = "") -> str:
    """The factory that makes the model by `call`, after the `check`. `hardware` is its name for the host's
    configuration, "_" if neither reads it."""
    alone = all(d.facts.get("dp", 1) == d.facts.get("ep", 1) == 1 for d in plan.deployments)
    if plan.target.main and plan.deployments and plan.reads_deployment and not plan.host and alone:
        hardware, check = "hw", f"{plan.name.fill(_TEXT['one_rank'])}\n{check}"
    parameters = _parameters(plan, "_ sim.LatencyCoeffs", f"{hardware} sim.ModelHardwareConfig")
    first = plan.first.name if plan.first else ""
    warn = f"\t{plan.name.of('warn')}({quoted(first)}, {quoted(plan.warned[first])})\n" if first in plan.warned else ""
    if plan.many:
        warn = ""  # where the deployment is looked up
    return plan.name.fill(
        _TEXT["factory"], doc=comment(plan.name.fill(doc)), parameters=parameters, check=check, call=call, warn=warn
    )


def _warnings(plan: EmitPlan) -> list[str]:
    """The function that warns of a deployment outside the fitted runs, and the table of those that are."""
    parts = [plan.name.fill(_TEXT["warn"])] if plan.warns else []
    if plan.many and plan.warned:
        rows = [(f"{quoted(name.lower())}:", f"{quoted(respects)},") for name, respects in plan.warned.items()]
        parts.append(plan.name.fill(_TEXT["outside"], rows=columns(rows)))
    return parts
