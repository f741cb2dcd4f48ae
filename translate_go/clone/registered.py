"""A backend as a clone of the host registers it, and the test that the host's own factory makes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simulator.common.errors import InputError
from translate_go.constructors import options_literal
from translate_go.guide import example_command, settings_of
from translate_go.naming import MARK, BackendName, fact, import_block, quoted
from translate_go.source import host_option
from translate_go.table import alike
from translate_go.target import MODULE, EmitPlan
from translate_go.templates import sections

_TEXT = sections("tests")

FactsSource = Literal["host", "table", "baked", "none"]


@dataclass(frozen=True)
class Backend:
    """A backend to register under its `name`.

    command: the host's command line that runs it. facts: the source of its deployments' facts: the host's configuration
    of model and GPU, a table in the code, one deployment in the code, or none are read. settings: the engine settings
    that its options hold, as fields of the options type. option: the Go of the host's Option that passes them, whose
    field of latencyOptions is `name.private`; "" if the options hold nothing but the cost of adapters. defaults: the Go
    of that Option with the host's own limits.
    """

    name: BackendName
    command: str
    facts: FactsSource = "none"
    settings: tuple[str, ...] = ()
    option: str = ""
    defaults: str = ""

    @property
    def quoted(self) -> str:
        """The registered name as a Go string."""
        return f'"{self.name.registered}"'


def already(path: str, backend: Backend) -> InputError:
    """The refusal of a name that is there."""
    return InputError(
        f"cannot edit {path}: it already has a backend {backend.quoted}. Choose another --name, or a branch without it."
    )


def backend(plan: EmitPlan) -> Backend:
    """The backend of a program, with the plan's deployments: those that are baked in, or recorded."""
    facts: FactsSource = "none"
    if plan.reads_deployment:
        facts = "host" if plan.host else "table" if plan.many else "baked"
    literal = options_literal(plan, settings_of(None))
    defaults = f"With{plan.name.exported}Options({literal})" if plan.settings else ""
    return Backend(
        plan.name, example_command(plan), facts, tuple(map(fact, plan.settings)), host_option(plan), defaults
    )


def check_factory(plan: EmitPlan) -> None:
    """Raise InputError unless the emitted files have a factory, which needs a deployment that is clear."""
    if plan.has_factory:
        looked_up = plan.reads_deployment and plan.many and not plan.host
        if same := alike(plan, plan.deployments) if looked_up else None:
            raise InputError(
                f"cannot register deployments {same[0].name} and {same[1].name}: the host cannot tell them apart by "
                "--model, --hardware and --tp. Leave one of them out."
            )
    elif plan.deployments:
        raise InputError(
            f"--into takes one deployment, or a table of more than eight, not {len(plan.deployments)}. Give "
            "--host-facts, or emit each with a --name of its own."
        )
    else:
        raise InputError(
            "--into needs a deployment, because the program reads its facts. Give --host-facts, --id or --model."
        )


def registered_test(plan: EmitPlan) -> dict[str, str]:
    """The test file, name -> text, for the deployments that are baked in, or recorded if the host gives the facts."""
    recorded = plan.recorded[0]
    option = f", With{plan.name.exported}Options({options_literal(plan, recorded.facts)})" if plan.settings else ""
    named = plan.named and not plan.host
    if plan.host and recorded.config:
        config = recorded.config.literal()
    elif named:
        model, gpu = quoted(recorded.model), quoted(recorded.host_gpu)
        config = f"sim.ModelHardwareConfig{{Model: {model}, GPU: {gpu}, TP: {recorded.tp}}}"
    else:
        config = 'sim.ModelHardwareConfig{Model: "any", GPU: "any", TP: 1}'
    refused = []
    if plan.reads_deployment and not plan.host:
        refused.append(plan.name.fill(_TEXT["registered_ranks"], option=option))
    if plan.settings:
        refused.append(plan.name.fill(_TEXT["registered_settings"], flag=plan.target.flags[plan.settings[0]]))
    if named:
        refused.append(plan.name.fill(_TEXT["registered_name"], option=option))
    text = plan.name.fill(
        _TEXT["registered"],
        mark=MARK,
        imports=import_block("".join([_TEXT["registered"], *refused]), ("strings", "testing"), f"{MODULE}/sim"),
        config=config,
        option=option,
        refused="".join(f"{text}\n" for text in refused),
    )
    return {plan.name.file("factory_test"): f"{text}\n"}
