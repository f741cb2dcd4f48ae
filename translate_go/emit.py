"""Emit a program in Go: a source file that reads as if written by hand, its test, and how to register it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from simulator.errors import InputError
from simulator.language.ir import Program
from simulator.text import visible
from translate_go.coefficients import DEFAULTS, defaults_yaml
from translate_go.deployment import Deployment, by_name, check_deployments
from translate_go.gotest import go_test
from translate_go.gotypes import deployments_file
from translate_go.integration import integration
from translate_go.source import source
from translate_go.spelling import DEPLOYMENTS, MARK
from translate_go.target import BLIS_5, TARGETS, plan
from translate_go.trees import TREES_FILE, trees_file

_HEAD = 200  # bytes at the start of a file in which the mark is looked for


def emit(
    program: Program, *, target: str, deployments: Sequence[Deployment] = (), provenance: tuple[str, ...] = ()
) -> dict[str, str]:
    """File name -> text: evolved.go, evolved_test.go, INTEGRATION.md, and sometimes more.

    defaults.yaml, for the frozen branch only, has the program's coefficients.
    evolved_deployments.go has deployments with curves of measured kernels, or more deployments than get a constructor
    each; evolved_trees.go has the program's ensemble of trees.
    `target` is one of TARGETS. The facts and curves of `deployments` are baked in, in addition to the generic
    constructor; without any, the caller of NewEvolved supplies them. `provenance` lines (program key, data, errors,
    date, engine version) go into the header. Raises InputError for an unknown target, for deployments whose facts the
    program cannot use, and for names used twice.
    """
    if target not in TARGETS:
        raise InputError(f"emit: unknown target {target!r}: the targets are {', '.join(TARGETS)}")
    needs = plan(program, TARGETS[target])
    check_deployments(deployments, needs.facts, needs.curves)
    files = {
        "evolved.go": source(needs, deployments, provenance),
        "evolved_test.go": go_test(needs, deployments),
        "INTEGRATION.md": f"<!-- {MARK} -->\n{integration(needs, deployments)}",
    }
    if target == BLIS_5:
        files[DEFAULTS] = f"# {MARK}\n{defaults_yaml(program, deployments)}"
    if deployments and (needs.curves or (needs.facts and by_name(deployments))):
        files[DEPLOYMENTS] = deployments_file(needs, deployments)
    if needs.batch.forest:
        files[TREES_FILE] = trees_file(needs.batch.forest)
    return {name: visible(text, keep="\n\t") for name, text in files.items()}


def write(files: Mapping[str, str], out: Path) -> None:
    """Write the files, name -> text, into the folder `out`, which is created if necessary.

    An emitted file of deployments, trees or coefficients that is not among them is removed: Go would compile the first
    two, and the third would be of another program. Raises InputError, before anything is written, if `out` is a file or
    if a file of one of these names lacks the mark; and if something cannot be written.
    """
    try:
        if out.exists() and not out.is_dir():
            raise InputError(f"{out}: is a file, not a folder: choose another --out")
        for name in files:
            if not _may_replace(out / name):
                raise InputError(f"{out / name}: was not written by evolve emit: move it away, or choose another --out")
        out.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (out / name).write_text(text, encoding="utf-8", newline="\n")
        for name in {DEFAULTS, DEPLOYMENTS, TREES_FILE} - files.keys():
            if _may_replace(out / name):
                (out / name).unlink(missing_ok=True)
    except OSError as e:
        raise InputError(f"{out}: cannot be written ({e.strerror}): choose another --out") from None


def _may_replace(path: Path) -> bool:
    """Whether a file may be written there: none exists, or an emitted one. Raises OSError if it cannot be read."""
    if path.exists() and not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return MARK.encode() in file.read(_HEAD)
    except FileNotFoundError:
        return True
