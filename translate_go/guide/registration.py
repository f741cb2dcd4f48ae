"""The names by which the host is to know the emitted backends, and the Go call that makes each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from translate_go.constructors import constructor, has_factory, options_literal
from translate_go.deployment import Deployment
from translate_go.guide.command import settings_of
from translate_go.target import EmitPlan


@dataclass(frozen=True, slots=True)
class Registration:
    """A backend under its name in the host, and the Go expression that makes it or returns an error."""

    name: str
    call: str


def registrations(plan: EmitPlan, deployments: Sequence[Deployment]) -> list[Registration]:
    """The one backend that the factory makes; one for each deployment if nothing else says which of them is meant."""
    if deployments and not has_factory(plan, deployments):
        return [
            Registration(
                f"{plan.name.registered}-{'-'.join(d.words)}", constructor(plan, d, deployments, _options(plan, d))
            )
            for d in deployments
        ]
    options = _options(plan, deployments[0] if deployments else None) if plan.options else ""
    call = f"New{plan.name.exported}Backend(coeffs, hw{options and f', {options}'})"
    return [Registration(plan.name.registered, call)]


def _options(plan: EmitPlan, deployment: Deployment | None) -> str:
    """The Go expression of the options where the host makes its backends."""
    if not plan.target.adapter_cost:
        return options_literal(plan, settings_of(deployment))
    return "options" if plan.settings else f"{plan.name.exported}Options{{AdapterCost: o.adapterCost}}"
