"""A user's git clone of the host: checked, edited, built and tested in a copy, and given a branch at the end."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from subprocess import PIPE, STDOUT

from simulator.common.errors import InputError
from simulator.common.files import write_text
from simulator.common.secrets import without_secrets
from simulator.common.text import listed
from translate_go.toolchain import gofmt_of, needed_go

HOST = "https://github.com/inference-sim/inference-sim"
MARKS = ("go.mod", "sim/latency/latency.go")  # files that every version of the host has
LIMIT_S = 3600  # seconds for one call of go
STEPS = (("build", "./..."), ("vet", "./..."), ("test", "./sim/...", "./cmd/..."))
_FAILED = re.compile(r"^--- FAIL: (\S+)|^FAIL\t(\S+)", re.MULTILINE)
_DIFF = ("diff", "--cached", "--no-color", "--no-ext-diff")
# a hook that runs this command has these, and they name another repository
_OTHER = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY")


@dataclass(frozen=True)
class Checkout:
    """A clone at `root` without uncommitted changes, on the branch `on`, or `detached` at that commit. It may have
    files that git does not track."""

    root: Path
    on: str
    detached: bool

    @property
    def back(self) -> str:
        """The command that returns to where the clone is now."""
        switch = "switch --detach" if self.detached else "switch"
        return f"git -C {quote(str(self.root))} {switch} {self.on}"


def checkout(root: Path) -> Checkout:
    """The clone at `root`. Raises InputError if it is no clone of the host, or has uncommitted changes."""
    remedy = f"Give the folder of a clone: git clone {HOST}."
    if not root.is_dir():
        raise InputError(f"cannot emit into {root}: no such folder. {remedy}")
    try:
        top = _git(root, "rev-parse", "--show-toplevel")
    except FileNotFoundError:
        raise InputError("--into needs git. Put it on PATH.") from None
    above = None if top.returncode else Path(top.stdout.strip())
    if above and not above.samefile(root) and not _missing(above):
        raise InputError(f"cannot emit into {root}: a folder in a clone. Give --into {quote(str(above))}.")
    if missing := _missing(root):
        raise InputError(f"cannot emit into {root}: no clone of the host, {missing} is missing. {remedy}")
    if above is None or not above.samefile(root):
        raise InputError(f"cannot emit into {root}: it has the host's files, but is no git clone. {remedy}")
    if _git(root, "rev-parse", "--verify", "--quiet", "HEAD").returncode:
        raise InputError(f"cannot emit into {root}: it has no commit yet. Give --into a clone of the host.")
    changed = _out(root, "status", "--porcelain", "--untracked-files=no").splitlines()
    if changed:
        files, stash = listed([line[3:] for line in changed], 1), f"git -C {quote(str(root))} stash"
        raise InputError(f"cannot emit into {root}: uncommitted changes, {files}. Commit or stash them ({stash}).")
    on = _out(root, "branch", "--show-current").strip()
    return Checkout(root, on or _out(root, "rev-parse", "--short", "HEAD").strip(), detached=not on)


def check_untracked(clone: Checkout, touched: Iterable[str]) -> None:
    """Raise InputError for files that git does not track in the folders of the touched files.

    They would be built with these on the branch, but are not in the copy that is tested.
    """
    folders = {Path(path).parent for path in touched if path.endswith(".go")}
    others = _out(clone.root, "ls-files", "--others", "--exclude-standard", "-z").split("\0")
    if untracked := [path for path in others if path and Path(path).parent in folders]:
        files, stash = listed(untracked, 1), f"git -C {quote(str(clone.root))} stash -u"
        raise InputError(
            f"cannot emit into {clone.root}: uncommitted files where the backend goes, {files}. Commit or stash them "
            f"({stash})."
        )


def _missing(root: Path) -> str | None:
    return next((path for path in MARKS if not (root / path).is_file()), None)


def has_branch(clone: Checkout, branch: str) -> bool:
    """True if the clone has a branch of this name."""
    return not _git(clone.root, "show-ref", "--verify", "--quiet", f"refs/heads/{branch}").returncode


def deleting(clone: Checkout, branch: str) -> str:
    """The command that deletes a branch of the clone; git does not delete the one that it is on."""
    git = f"git -C {quote(str(clone.root))}"
    delete = f"{git} branch -D {branch}"
    if clone.on != branch:
        return delete
    others = [name for name in _out(clone.root, "branch", "--format=%(refname:short)").split() if name != branch]
    home = next((name for name in ("main", "master") if name in others), others[0] if others else "-c main")
    return f"{git} switch {home} && {delete}"


def check_author(clone: Checkout) -> None:
    """Raise InputError if git knows no author for a commit."""
    if _git(clone.root, "var", "GIT_AUTHOR_IDENT").returncode:
        how = f"git -C {quote(str(clone.root))} config user.name NAME"
        raise InputError(f"cannot commit in {clone.root}: git knows no author. Set user.name and user.email ({how}).")


@contextmanager
def copied(clone: Checkout, apart: bool = False) -> Iterator[Path]:
    """A working tree of the clone's commit in a temporary folder, on no branch. It is removed at the end.

    apart: as a clone of its own, of which nothing is written in the user's clone, not even for a while.
    """
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "host"
        if apart:
            _out(clone.root, "clone", "--quiet", "--shared", "--no-checkout", str(clone.root.resolve()), str(tree))
            _out(tree, "checkout", "--quiet", "--detach", _out(clone.root, "rev-parse", "HEAD").strip())
            yield tree
            return
        _out(clone.root, "worktree", "add", "--quiet", "--detach", str(tree), "HEAD")
        try:
            yield tree
        finally:
            _git(clone.root, "worktree", "remove", "--force", str(tree))


def write_changes(tree: Path, changed: Mapping[str, str]) -> None:
    """Write the files, path -> text, into the tree."""
    for path, text in changed.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        write_text(tree / path, text)


def stage(tree: Path, paths: Iterable[str]) -> None:
    _out(tree, "add", "--", *paths)


def staged_diff(tree: Path, without: Sequence[str] = ()) -> str:
    """The diff of the staged files of the tree, except these."""
    return _out(tree, *_DIFF, "--", ".", *(f":(exclude){path}" for path in without))


def staged_stat(tree: Path) -> str:
    """The staged files of the tree, a line each with the numbers of lines added and removed, and their sum."""
    return _out(tree, *_DIFF, "--stat=200", "--stat-graph-width=20")  # wide enough for every path


def commit(clone: Checkout, tree: Path, branch: str, message: str) -> None:
    """Commit the staged files of the tree, make it the branch, and switch the clone to it."""
    made = _git(tree, "commit", "--quiet", "-m", message)
    if made.returncode:  # a hook, say, which may print many lines
        said = _line(made.stderr or made.stdout)
        raise InputError(f"cannot commit in {clone.root}: git or a hook says: {said}. Nothing was changed.")
    _out(clone.root, "branch", branch, _out(tree, "rev-parse", "HEAD").strip())
    switched = _git(clone.root, "switch", "--quiet", branch)
    if switched.returncode:
        _git(clone.root, "branch", "-D", branch)
        raise InputError(f"cannot switch {clone.root} to {branch}: {_line(switched.stderr)}")


def run_go(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `go` in the tree with the user's own settings; its output and errors are one text. Raises InputError without
    a toolchain."""
    return run(tree, needed_go(), *arguments)


def failures(output: str) -> frozenset[str]:
    """The tests and packages that fail in the output of `go test`."""
    return frozenset(test or package for test, package in _FAILED.findall(output))


def unformatted(tree: Path, paths: Iterable[str]) -> tuple[str, ...]:
    """The files of these that gofmt would change."""
    return tuple(_gofmt(tree, "-l", paths).splitlines())


def format_files(tree: Path, paths: Iterable[str]) -> None:
    """Write these files as gofmt does."""
    _gofmt(tree, "-w", paths)


def _gofmt(tree: Path, action: str, paths: Iterable[str]) -> str:
    files = sorted(path for path in paths if path.endswith(".go"))
    executable = gofmt_of(run_go(tree, "env", "GOROOT").stdout.strip())
    if not files:
        return ""
    ran = run(tree, executable, action, *files)
    if ran.returncode:
        raise InputError(f"cannot format the clone: gofmt {action} says: {_line(ran.stdout)}")
    return ran.stdout


def run(tree: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the tree, without secrets; its output and errors are one text."""
    return subprocess.run(
        command,
        cwd=tree,
        env=without_secrets(),  # tests of a clone run what its authors wrote
        stdout=PIPE,
        stderr=STDOUT,
        encoding="utf-8",
        errors="replace",
        timeout=LIMIT_S,
        check=False,
    )


def _git(where: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {n: value for n, value in without_secrets().items() if n not in _OTHER} | {"GIT_OPTIONAL_LOCKS": "0"}
    command = ["git", "-C", str(where), *arguments]
    return subprocess.run(command, env=env, capture_output=True, encoding="utf-8", errors="replace", check=False)


def _out(where: Path, *arguments: str) -> str:
    """The output of git. Raises InputError with its message if it fails."""
    ran = _git(where, *arguments)
    if ran.returncode:
        said = _line(ran.stderr or ran.stdout)
        raise InputError(f"cannot run git {arguments[0]} in {where}: {said}. Nothing was changed.")
    return ran.stdout


def _line(text: str) -> str:
    return " ".join(text.split())
