"""A user's git clone of the host: refused unless it is clean, worked on in a copy, and given a branch at the end."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from simulator.errors import InputError

# a hook that runs this command has these, and they name another repository
_OTHER = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY")


@dataclass(frozen=True)
class Checkout:
    """A clean clone at `root`, on the branch `on` (a commit if it is on none)."""

    root: Path
    on: str


def checkout(root: Path, branch: str) -> Checkout:
    """The clone at `root`, which has no branch of this name. Raises InputError if it cannot take one."""
    if not root.is_dir():
        raise InputError(f"{root}: is no folder: give --into a clone of the host")
    try:
        top = _git(root, "rev-parse", "--show-toplevel")
    except FileNotFoundError:
        raise InputError("--into needs git: put it on PATH") from None
    if top.returncode or not os.path.samefile(top.stdout.strip(), root):
        raise InputError(f"{root}: is not the top of a git checkout: give --into a clone of the host")
    if _git(root, "rev-parse", "--verify", "--quiet", "HEAD").returncode:
        raise InputError(f"{root}: has no commit yet: give --into a clone of the host")
    changed = _out(root, "status", "--porcelain").splitlines()
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise InputError(
            f"{root}: has changes that are not committed, {changed[0][3:]}{more}: commit or stash them (git stash -u)"
        )
    if not _git(root, "show-ref", "--verify", "--quiet", f"refs/heads/{branch}").returncode:
        raise InputError(
            f"{root}: already has a branch {branch}: delete it (git branch -D {branch}), or choose another --name"
        )
    on = _out(root, "branch", "--show-current").strip()
    return Checkout(root, on or _out(root, "rev-parse", "--short", "HEAD").strip())


def check_author(clone: Checkout) -> None:
    """Raise InputError if git does not know whose name a commit has."""
    if _git(clone.root, "var", "GIT_AUTHOR_IDENT").returncode:
        raise InputError(f"{clone.root}: git does not know who commits: set user.name and user.email (git config)")


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


def commit(clone: Checkout, tree: Path, branch: str, message: str) -> None:
    """Commit what is staged in the tree, make it the branch, and switch the clone to it."""
    _out(tree, "commit", "--quiet", "-m", message)
    made = _out(tree, "rev-parse", "HEAD").strip()
    _out(clone.root, "branch", branch, made)
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
