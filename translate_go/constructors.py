"""The constructors of the emitted Go: for any deployment, for the named ones, and the factory that the host calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.clock.bind import REFERENCE_DECODES
from simulator.schema import CURVES
from translate_go.deployment import Deployment, by_name, checks_names, least
from translate_go.literals import deployment_literal, deployment_variable
from translate_go.spelling import clean, comment, curve_name, digits, fact, quoted
from translate_go.table import name_check
from translate_go.target import EmitPlan

_BY_NAME = """\
// New<Name>For returns the model for a deployment of <stem>_deployments.go by its name, or by MODEL/GPU/tpN with any
// names of model and GPU, in upper or lower case. If there is none, the error lists what there is.
func New<Name>For(name string{parameter}) (*<Name>, error) {{
	d, ok := <name>Deployments[<name>Key(name)]
	if !ok {{
		return nil, <name>Missing(name)
	}}
	return New<Name>(d{argument})
}}
"""
_FACTORY = """\
{doc}
func New<Name>Backend(_ sim.LatencyCoeffs, {hardware} sim.ModelHardwareConfig{parameter}) (sim.LatencyModel, error) {{
{check}	m, err := {call}
	if err != nil {{
		return nil, err
	}}
	return m, nil
}}
"""
_FOR_HOST = (
    "New<Name>ForHost returns the model with the facts that follow from the host's configuration of model and GPU, or "
    "an error that says what is missing or not modelled."
)
_FACTORY_FOR_HOST = (
    "New<Name>Backend is the factory to register as a latency backend, for every model and GPU that New<Name>ForHost "
    "takes. It ignores the coefficients."
)
_FACTORY_BAKED = (
    "New<Name>Backend is the factory to register as a latency backend. Constants and facts are those of this file; it "
    "ignores coefficients and configuration."
)
_FACTORY_CHECKED = (
    "New<Name>Backend is the factory to register as a latency backend. Constants and facts are those of this file; it "
    "ignores the coefficients, and refuses a configuration for another deployment."
)
_CHECK = """\
	if err := <name>Refused(hw); err != nil {
		return nil, err
	}
"""
_FACTORY_BY_NAME = (
    "New<Name>Backend is the factory to register as a latency backend. It selects the deployment by the "
    'configuration\'s model, GPU and tensor parallelism, "MODEL/GPU/tpN", and ignores the coefficients.'
)


def options_literal(plan: EmitPlan, facts: Mapping[str, float], package: str = "") -> str:
    """The Go literal of the options with these settings of the engine, of the Go package if one is given."""
    values = ", ".join(f"{fact(name)}: {digits(facts[name])}" for name in plan.settings)
    return f"{_of(package)}{plan.name.exported}Options{{{values}}}"


def constructors(plan: EmitPlan, deployments: Sequence[Deployment]) -> list[list[str]]:
    """The constructor for any deployment, those of the named ones, and the factory if it is clear which to make."""
    name = plan.name
    parts = [_constructor(plan)]
    if not plan.reads_deployment:
        return [*parts, _factory(plan, f"New{name.exported}({_arguments(plan)})")]
    if plan.host:
        call = f"New{name.exported}ForHost(hw, options)"
        return [*parts, _for_host(plan), _factory(plan, call, _FACTORY_FOR_HOST, "hw")]
    if by_name(deployments):
        text = name.fill(_BY_NAME).format(parameter=_parameter(plan), argument=", options" * plan.options)
        key = 'fmt.Sprintf("%s/%s/tp%d", hw.Model, hw.GPU, hw.TP)'
        call = f"New{name.exported}For({_arguments(plan, key)})"
        return [*parts, text.rstrip().split("\n"), _factory(plan, call, _FACTORY_BY_NAME, "hw")]
    parts += [_baked(plan, deployment) for deployment in deployments]
    if not has_factory(plan, deployments):
        return parts
    call = f"New{name.exported}For{deployments[0].go_name}({_arguments(plan)})"
    if not checks_names(deployments):
        return [*parts, _factory(plan, call)]
    return [*parts, _factory(plan, call, _FACTORY_CHECKED, "hw", _CHECK), name_check(plan, deployments[0])]


def has_factory(plan: EmitPlan, deployments: Sequence[Deployment]) -> bool:
    """Whether the files have a factory, because it is clear which model it makes."""
    return not plan.reads_deployment or bool(plan.host) or len(deployments) == 1 or by_name(deployments)


def constructor(
    plan: EmitPlan,
    deployment: Deployment,
    deployments: Sequence[Deployment],
    options: str | None = None,
    package: str = "",
) -> str:
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
    if by_name(deployments):
        return f"{new}For({_arguments(plan, quoted(deployment.name), given)})"
    return f"{new}For{deployment.go_name}({_arguments(plan, options=given)})"


def _of(package: str) -> str:
    return f"{package}." if package else ""


def _parameter(plan: EmitPlan, before: str = ", ") -> str:
    """The parameter of a constructor for the options, if it takes them."""
    return f"{before}options {plan.name.exported}Options" if plan.options else ""


def _arguments(plan: EmitPlan, first: str = "", options: str = "options") -> str:
    """The arguments of a call of a constructor: the first, if any, and the options, if it takes them."""
    return ", ".join(argument for argument in (first, options * plan.options) if argument)


def _baked(plan: EmitPlan, deployment: Deployment) -> list[str]:
    """The constructor of a named deployment."""
    new = f"New{plan.name.exported}"
    name = f"{new}For{deployment.go_name}"
    if plan.curves:
        what, lines = "facts and curves", [deployment_variable(plan, deployment)]
    else:
        what, lines = "facts", deployment_literal(plan, deployment.facts, "\t")
    lines[0] = f"\treturn {new}({lines[0]}"
    lines[-1] += f"{', options' * plan.options})"
    doc = comment(f"{name} returns the model with the {what} of {clean(deployment.name)}.")
    return [*doc, f"func {name}({_parameter(plan, '')}) (*{plan.name.exported}, error) {{", *lines, "}"]


def _for_host(plan: EmitPlan) -> list[str]:
    """The constructor for any deployment of the host."""
    name = plan.name
    return [
        *comment(name.fill(_FOR_HOST)),
        f"func New{name.exported}ForHost(hw sim.ModelHardwareConfig, options {name.exported}Options) "
        f"(*{name.exported}, error) {{",
        f"\tm, err := {name.of('modelOf')}(hw, options)",
        "\tif err != nil {", "\t\treturn nil, err", "\t}",
        f"\treturn New{name.exported}(m.deployment(), options)", "}",
    ]  # fmt: skip


def _constructor(plan: EmitPlan) -> list[str]:
    """The constructor for any deployment, which checks facts, curves and settings."""
    name = plan.name.exported
    deployment = f"d {name}Deployment" if plan.reads_deployment else ""
    checked = ["fact"] * bool(plan.facts) + ["curve"] * bool(plan.curves) + ["setting"] * bool(plan.settings)
    if plan.reads_deployment:
        doc = f"New{name} returns the model for a deployment"
    else:
        doc = f"New{name} returns the model, which reads no facts"
    kinds = " or ".join(checked)
    doc += f", or an error naming the first {kinds} that is invalid." if checked else ": its error is always nil."
    rows = [("d", plan.reads_deployment), ("options", plan.options)]
    values = ", ".join(f"{field}: {field}" for field, given in rows if given)
    built = f"&{name}{{{values}}}"
    if plan.reference:
        decodes = f"decodeReqs: {REFERENCE_DECODES}" if "decodeReqs" in plan.batch.sums else ""
        sums = f"{plan.name.of('batchSums')}{{{decodes}}}" if plan.batch.sums else ""
        end = [f"\tm := {built}", f"\tm.referenceStepUs = m.stepMicros({sums})", "\treturn m, nil"]
    else:
        end = [f"\treturn {built}, nil"]
    return [
        *comment(doc),
        f"func New{name}({deployment}{_parameter(plan, ', ' if deployment else '')}) (*{name}, error) {{",
        *(_fact_checks(plan) if plan.facts else []),
        *(_curve_checks(plan) if plan.curves else []),
        *(_setting_checks(plan) if plan.settings else []),
        *end,
        "}",
    ]


def _setting_checks(plan: EmitPlan) -> list[str]:
    return [
        "\tfor _, setting := range []struct {",
        "\t\tname, field, flag string",
        "\t\tvalue             float64",
        "\t}{",
        *(f'\t\t{{"{n}", "{fact(n)}", "{plan.target.flags[n]}", options.{fact(n)}}},' for n in plan.settings),
        "\t} {",
        "\t\tif !(setting.value >= 1) || math.IsInf(setting.value, 0) { // unlike setting.value < 1, this rejects NaN",
        f'\t\t\treturn nil, fmt.Errorf("{plan.name.registered}: the program reads %s: set '
        f"{plan.name.exported}Options.%s to the engine's %s (it is %g)\",",
        "\t\t\t\tsetting.name, setting.field, setting.flag, setting.value)",
        "\t\t}",
        "\t}",
    ]


def _kind(plan: EmitPlan) -> str:
    """The beginning of an error about a deployment."""
    return f"{plan.name.registered}: {plan.name.exported}Deployment"


def _fact_checks(plan: EmitPlan) -> list[str]:
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
        f'\t\t\treturn nil, fmt.Errorf("{_kind(plan)}.%s cannot be %g", fact.name, fact.value)',
        "\t\t}",
        "\t}",
    ]


def _curve_checks(plan: EmitPlan) -> list[str]:
    return [
        "\tfor _, curve := range []struct {",
        "\t\tname  string",
        "\t\tknots []float64",
        "\t\twant  int",
        "\t}{",
        *(f'\t\t{{"{curve_name(name)}", d.{curve_name(name)}, {CURVES[name]}}},' for name in plan.curves),
        "\t} {",
        "\t\tif len(curve.knots) != curve.want {",
        f'\t\t\treturn nil, fmt.Errorf("{_kind(plan)}.%s has %d knots, needs %d", curve.name, '
        "len(curve.knots), curve.want)",
        "\t\t}",
        "\t\tfor i, us := range curve.knots {",
        "\t\t\tif !(us >= 0) || math.IsInf(us, 0) { // unlike us < 0, this rejects NaN",
        f'\t\t\t\treturn nil, fmt.Errorf("{_kind(plan)}.%s[%d] cannot be %g", curve.name, i, us)',
        "\t\t\t}",
        "\t\t}",
        "\t}",
    ]


def _factory(plan: EmitPlan, call: str, doc: str = _FACTORY_BAKED, hardware: str = "_", check: str = "") -> list[str]:
    """The factory that makes the model by `call`, after the `check`. `hardware` is the host's configuration, if either
    reads it."""
    head = "\n".join(comment(plan.name.fill(doc)))
    text = plan.name.fill(_FACTORY).format(
        doc=head, hardware=hardware, parameter=_parameter(plan), call=call, check=plan.name.fill(check)
    )
    return text.rstrip().split("\n")
