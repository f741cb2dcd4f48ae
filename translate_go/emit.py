"""Emit a program in Go: a source file that reads as if written by hand, its test, and how to register it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile

from simulator.common.errors import InputError, unwritable
from simulator.common.files import draft_of
from simulator.common.text import visible
from simulator.language.ir import Program
from translate_go.coefficients import DEFAULTS, defaults_yaml
from translate_go.deployment import FEW, Deployment, check_deployments
from translate_go.generic.facts import FACTS, facts_file, host_use
from translate_go.generic.kernels import kernels_file, tables_file, tables_read
from translate_go.generic.known import Host
from translate_go.gotest import go_test
from translate_go.guide import integration
from translate_go.kernel_host.files import Fit, kernel_files
from translate_go.naming import DEFAULT, MARK, OPTIONAL_FILES, BackendName
from translate_go.source import source
from translate_go.table import deployments_file
from translate_go.target import HOSTS, EmitPlan, FittedRange, plan
from translate_go.trees import trees_file

_DIGEST = "Digest of what follows: "  # in the second line of a written file, so that a change by hand is noticed
GUIDE = "INTEGRATION.md"
_HEAD = 200  # bytes at the start of a file in which the mark is looked for


def emit(
    program: Program,
    *,
    target: str,
    deployments: Sequence[Deployment] = (),
    name: BackendName = DEFAULT,
    provenance: Sequence[str] = (),
    accuracy: Sequence[str] = (),
    cautions: Sequence[str] = (),
    host: Host | None = None,
    outside: Mapping[str, str] | None = None,
    fitted: FittedRange | None = None,
    again: str = "evolve emit PROGRAM",
    fit: Fit | None = None,
) -> dict[str, str]:
    """Translate a program: file name -> text of fitted.go, fitted_test.go, INTEGRATION.md, and sometimes others.

    fitted_deployments.go has deployments with curves of measured kernels, or more deployments than get a constructor
    each; fitted_trees.go has the program's ensemble of trees; defaults.yaml is for blis-5, whose host reads it.
    `target` is one of HOSTS. The facts and curves of `deployments` are baked in, in addition to the generic
    constructor; without any, the caller of NewFitted supplies them. `provenance` lines (program key, data, errors,
    date, engine version) go into the header. INTEGRATION.md has `cautions`, reasons not to rely on the program,
    `accuracy`, lines of a table, and the command `again`, without --out.

    With a `host`, the Go computes the facts and curves of any deployment from the host's configuration
    (fitted_facts.go, fitted_kernels.go, fitted_tables.go). Then `deployments` have a `config`, and only their times are
    recorded. `outside` and `fitted`: of which the Go warns at run time, see EmitPlan.

    For blis-kernel there are also fitted_kernel.go and fitted_adapter.go. Its deployments, 1 to 8, have a `source`, and
    `fit` says where the constants come from.

    Raises InputError for an unknown target, for deployments whose facts the program cannot use, for facts of the host's
    own form with a `host`, and for names used twice.
    """
    if target not in HOSTS:
        raise InputError(f"cannot emit for {target!r}: unknown host. Choose one of {', '.join(HOSTS)}.")
    if host and not HOSTS[target].main:
        raise InputError(f"--host-facts: the host {target} has no such configuration. Choose --host blis-4.")
    if HOSTS[target].kernel and not (0 < len(deployments) <= FEW and all(d.source for d in deployments)):
        raise InputError(
            f"cannot emit for {target}: its kernel is of 1 to {FEW} deployments that are baked in, and there are "
            f"{len(deployments)}. Name them by --id, --deployment, or --model, --hardware and --tp."
        )
    needs = plan(program, HOSTS[target], name, deployments, host, outside, fitted)
    if host and (own := [fact for fact in needs.facts if fact not in FACTS]):
        raise InputError(
            f"--host-facts: the program reads {own[0]}, which only the host's own trained-physics backend computes. "
            "Use that backend with --coefficients, or bake in a deployment."
        )
    check_deployments(deployments, (*needs.facts, *needs.settings), needs.curves, name)
    files = {
        name.file(): source(needs, provenance),
        name.file("test"): go_test(needs),
        GUIDE: f"<!-- {MARK} -->\n{integration(needs, again, cautions, accuracy)}",
    }
    if needs.target.kernel:
        files |= kernel_files(needs, fit or Fit())
    elif not needs.target.main:
        files[DEFAULTS] = f"# {MARK}\n{defaults_yaml(program, deployments, name)}"
    if needs.host:
        files |= _host_files(needs, needs.host)
    elif deployments and (needs.curves or (needs.facts and needs.many)):
        files[name.file("deployments")] = deployments_file(needs)
    if needs.batch.forest:
        files[name.file("trees")] = trees_file(needs.batch.forest, name, needs.package)
    return {file: visible(text, keep="\n\t") for file, text in files.items()}


def _host_files(needs: EmitPlan, host: Host) -> dict[str, str]:
    """The files that compute facts and curves from the host's configuration."""
    name = needs.name
    files = {name.file("facts"): facts_file(name, needs.facts, host_use(needs.facts, needs.curves), host, needs.fitted)}
    if needs.curves:
        gpus = sorted({gpu.kernels for gpu in host.measured})
        files[name.file("kernels")] = kernels_file(name, needs.curves)
        files[name.file("tables")] = tables_file(name, gpus, tables_read(needs.curves))
    return files


def write(files: Mapping[str, str], out: Path, name: BackendName = DEFAULT) -> None:
    """Write the files, name -> text, into the folder `out`, which is created if necessary.

    On a full disk none is replaced. Any other emitted file of this backend is removed. Raises InputError, before
    anything is written, if `out` is a file, if a file of one of these names lacks the mark or was changed by hand, and
    if another backend was emitted there, whose INTEGRATION.md and coefficients have the same names; and if something
    cannot be written.
    """
    try:
        optional = (DEFAULTS, *map(name.file, OPTIONAL_FILES))
        left = [file for file in optional if file not in files and _may_replace(out / file)]
        check_out(out, name, (*files, *left))
        out.mkdir(parents=True, exist_ok=True)
        with ExitStack() as drafts:  # all are written before the first is replaced
            for file, text in files.items():
                draft = drafts.enter_context(draft_of(out / file, kept=True))
                draft.write_text(_with_digest(text), encoding="utf-8", newline="\n")
        for file in left:
            (out / file).unlink(missing_ok=True)
    except OSError as e:
        raise unwritable(out, e, "choose another --out") from None


def check_out(out: Path, name: BackendName = DEFAULT, files: Iterable[str] = ()) -> None:
    """Raise InputError unless these files, and those that every backend has, can be written into the folder `out`."""
    try:
        if out.exists() and not out.is_dir():
            raise InputError(f"cannot write to {out}: a file, not a folder. Choose another --out.")
        if other := _other_backend(out, name):
            raise InputError(
                f"cannot write to {out}: it has another backend, {other}. Choose another --out, or delete its files."
            )
        for file in dict.fromkeys((name.file(), name.file("test"), GUIDE, *files)):
            if not _may_replace(out / file):
                raise InputError(
                    f"cannot replace {out / file}: evolve emit did not write it. Move it away, or choose another --out."
                )
            if _edited(out / file):
                raise InputError(
                    f"cannot replace {out / file}: it was changed by hand. Move it away, or choose another --out."
                )
        with TemporaryFile(dir=next(place for place in (out, *out.absolute().parents) if place.exists())):
            pass
    except OSError as e:
        raise unwritable(out, e, "choose another --out") from None


def _with_digest(text: str) -> str:
    """The text with the digest of what follows its first line, as a line of the same kind."""
    mark, rest = text.split("\n", 1)
    return f"{mark}\n{mark.replace(MARK, _DIGEST + _digest(rest))}\n{rest}"


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


def _edited(path: Path) -> bool:
    """True if an emitted file was changed by hand. False where that is not known, as of older releases."""
    if not path.exists():
        return False
    text = path.read_text("utf-8", errors="replace")  # with any line ends
    _, line, rest = [*text.split("\n", 2), "", ""][:3]
    if _DIGEST in line:
        return _DIGEST + _digest(rest) not in line
    return _DIGEST in text  # the line has moved


def _other_backend(out: Path, name: BackendName) -> str:
    """The Go file of a backend of another name in that folder, "" if there is none."""
    for test in sorted(out.glob("*_test.go")):
        backend = test.name.replace("_test.go", ".go")
        if test.name != name.file("test") and (out / backend).exists() and _may_replace(test):
            return backend
    return ""


def _may_replace(path: Path) -> bool:
    """True if there is no file, or an emitted one. Raises OSError if it cannot be read."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        return False
    try:
        with path.open("rb") as file:
            return MARK.encode() in file.read(_HEAD)
    except FileNotFoundError:
        return True
