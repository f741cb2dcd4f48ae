"""A program in Go: one source file that reads as if written by hand, its test, and what it takes to register it."""

from __future__ import annotations

from simulator.errors import InputError
from simulator.language.ir import Program
from translate_go.coefficients import defaults_yaml
from translate_go.deployment import Deployment, checked
from translate_go.gotest import go_test
from translate_go.integration import integration
from translate_go.mark import MARK
from translate_go.plan import plan
from translate_go.source import source
from translate_go.target import TARGETS


def emit(
    program: Program, *, target: str, deployment: Deployment | None = None, provenance: tuple[str, ...] = ()
) -> dict[str, str]:
    """File name -> content: evolved.go, evolved_test.go, defaults.yaml, INTEGRATION.md.

    `target` is one of TARGETS. With a `deployment` its facts are baked in beside the generic constructor, else
    the caller of NewEvolved supplies them. `provenance` lines (program key, data, errors, date, engine version)
    go into the header. Raises InputError for an unknown target or facts that the program cannot work with.
    """
    if target not in TARGETS:
        raise InputError(f"emit: unknown target {target!r}: the targets are {', '.join(TARGETS)}")
    needs = plan(program, TARGETS[target])
    if deployment is not None:
        checked(deployment, needs.facts)
    return {
        "evolved.go": source(needs, deployment, provenance),
        "evolved_test.go": go_test(needs, deployment),
        "defaults.yaml": f"# {MARK}\n{defaults_yaml(program, deployment)}",
        "INTEGRATION.md": f"<!-- {MARK} -->\n{integration(needs, deployment)}",
    }
