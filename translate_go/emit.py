"""A program in Go: one source file that reads as if written by hand, its test, and what it takes to register it."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.errors import InputError
from simulator.language.ir import Program
from translate_go.coefficients import defaults_yaml
from translate_go.curves import deployments_file
from translate_go.deployment import Deployment, by_name, check_deployments
from translate_go.gotest import go_test
from translate_go.integration import integration
from translate_go.mark import DEPLOYMENTS, MARK
from translate_go.plan import plan
from translate_go.source import source
from translate_go.target import TARGETS


def emit(
    program: Program, *, target: str, deployments: Sequence[Deployment] = (), provenance: tuple[str, ...] = ()
) -> dict[str, str]:
    """File name -> content: evolved.go, evolved_test.go, defaults.yaml, INTEGRATION.md; and evolved_deployments.go
    for deployments with curves of measured kernels, or more deployments than get a constructor each.

    `target` is one of TARGETS. The facts and curves of `deployments` are baked in beside the generic constructor;
    without any, the caller of NewEvolved supplies them. `provenance` lines (program key, data, errors, date, engine
    version) go into the header. Raises InputError for an unknown target, and for deployments that the program cannot
    work with or that are named twice.
    """
    if target not in TARGETS:
        raise InputError(f"emit: unknown target {target!r}: the targets are {', '.join(TARGETS)}")
    needs = plan(program, TARGETS[target])
    check_deployments(deployments, needs.facts, needs.curves)
    files = {
        "evolved.go": source(needs, deployments, provenance),
        "evolved_test.go": go_test(needs, deployments),
        "defaults.yaml": f"# {MARK}\n{defaults_yaml(program, deployments)}",
        "INTEGRATION.md": f"<!-- {MARK} -->\n{integration(needs, deployments)}",
    }
    if deployments and (needs.curves or (needs.facts and by_name(deployments))):
        files[DEPLOYMENTS] = deployments_file(needs, deployments)
    return files
