"""A user's git clone of the host: refused unless what is tracked is clean, worked on in a copy, and given a branch at
the end."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from simulator.common.errors import InputError
from simulator.common.text import listed

HOST = "https://github.com/inference-sim/inference-sim"
STAT = ("--stat=200", "--stat-graph-width=20")  # lines wide enough for every path
MARKS = ("go.mod", "sim/latency/latency.go")  # files that every version of the host has
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
        return f"git -C {quote(str(self.root))} switch {'--detach ' * self.detached}{self.on}"


def checkout(root: Path) -> Checkout:
    """The clone at `root`. Raises InputError if it is no clone of the host, or has uncommitted changes."""
    remedy = f"git clone {HOST} first, and give its folder"
    if not root.is_dir():
        raise InputError(f"{root}: is no folder: {remedy}")
    try:
        top = _git(root, "rev-parse", "--show-toplevel")
    except FileNotFoundError:
        raise InputError("--into needs git: put it on PATH") from None
    above = None if top.returncode else Path(top.stdout.strip())
    if above and not above.samefile(root) and not _missing(above):
        raise InputError(f"{root}: is a folder in a clone of the host: give --into {quote(str(above))}")
    if missing := _missing(root):
        raise InputError(f"{root}: is no clone of the host: {missing} is missing: {remedy}")
    if above is None or not above.samefile(root):
        raise InputError(f"{root}: has the host's files, but is no git clone, which gets a branch: {remedy}")
    if _git(root, "rev-parse", "--verify", "--quiet", "HEAD").returncode:
        raise InputError(f"{root}: has no commit yet: give --into a clone of the host")
    changed = _out(root, "status", "--porcelain", "--untracked-files=no").splitlines()
    if changed:
        raise InputError(
            f"{root}: has changes that are not committed, {_first([line[3:] for line in changed])}: commit or stash "
            f"them (git -C {quote(str(root))} stash)"
        )
    on = _out(root, "branch", "--show-current").strip()
    return Checkout(root, on or _out(root, "rev-parse", "--short", "HEAD").strip(), detached=not on)


def check_untracked(clone: Checkout, touched: Iterable[str]) -> None:
    """Raise InputError for files that git does not track in the folders of the touched files.

    They would be built with these on the branch, but are not in the copy that is tested.
    """
    folders = {Path(path).parent for path in touched}
    listed = _out(clone.root, "ls-files", "--others", "--exclude-standard", "-z").split("\0")
    if untracked := [path for path in listed if path and Path(path).parent in folders]:
        raise InputError(
            f"{clone.root}: has files that are not committed where the backend goes, {_first(untracked)}: commit or "
            f"stash them (git -C {quote(str(clone.root))} stash -u)"
        )


def _first(paths: Sequence[str]) -> str:
    """The first of the paths, and how many more there are."""
    return listed(paths, 1)


def _missing(root: Path) -> str | None:
    """The first file of the host that the folder has not."""
    return next((path for path in MARKS if not (root / path).is_file()), None)


def has_branch(clone: Checkout, branch: str) -> bool:
    """Whether the clone has a branch of this name."""
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
    """Raise InputError if git does not know whose name a commit has."""
    if _git(clone.root, "var", "GIT_AUTHOR_IDENT").returncode:
        how = f"git -C {quote(str(clone.root))} config user.name NAME, and user.email"
        raise InputError(f"{clone.root}: git does not know who commits: set user.name and user.email ({how})")


@contextmanager
def copied(clone: Checkout) -> Iterator[Path]:
    """A working tree of the clone's commit in a temporary folder, on no branch. It is removed at the end."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "host"
        _out(clone.root, "worktree", "add", "--quiet", "--detach", str(tree), "HEAD")
        try:
            yield tree
        finally:
            _git(clone.root, "worktree", "remove", "--force", str(tree))


def write_changes(tree: Path, changed: Mapping[str, str]) -> None:
    """Write the files, path -> text, into the tree."""
    for path, text in changed.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text, encoding="utf-8", newline="")


def stage(tree: Path, paths: Iterable[str]) -> None:
    """Stage these files of the tree."""
    _out(tree, "add", "--", *paths)


def staged_diff(tree: Path, without: Sequence[str] = ()) -> str:
    """The diff of what is staged in the tree, but of these files."""
    return _out(
        tree, "diff", "--cached", "--no-color", "--no-ext-diff", "--", ".", *(f":(exclude){p}" for p in without)
    )


def staged_stat(tree: Path) -> str:
    """The files that are staged in the tree, a line each with how many lines are added and removed, and their sum."""
    return _out(tree, "diff", "--cached", "--no-color", "--no-ext-diff", *STAT)


def commit(clone: Checkout, tree: Path, branch: str, message: str) -> None:
    """Commit what is staged in the tree, make it the branch, and switch the clone to it."""
    made = _git(tree, "commit", "--quiet", "-m", message)
    if made.returncode:  # a hook, say: what it prints may be many lines, and the copy is of no interest
        said = _line(made.stderr or made.stdout)
        raise InputError(f"{clone.root}: git commit fails, and nothing was changed; git or a hook says: {said}")
    _out(clone.root, "branch", branch, _out(tree, "rev-parse", "HEAD").strip())
    switched = _git(clone.root, "switch", "--quiet", branch)
    if switched.returncode:
        _git(clone.root, "branch", "-D", branch)
        raise InputError(f"{clone.root}: cannot switch to {branch}: {_line(switched.stderr)}")


def _git(where: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in _OTHER}
    command = ["git", "-C", str(where), *arguments]
    return subprocess.run(command, env=env, capture_output=True, encoding="utf-8", errors="replace", check=False)


def _out(where: Path, *arguments: str) -> str:
    """What git prints. Raises InputError with its message if it fails."""
    ran = _git(where, *arguments)
    if ran.returncode:
        raise InputError(f"{where}: git {arguments[0]} fails: {_line(ran.stderr or ran.stdout)}: nothing was changed")
    return ran.stdout


def _line(text: str) -> str:
    return " ".join(text.split())
