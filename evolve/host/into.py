"""`evolve emit --into`: an emitted backend on a new branch of a clone of the host, built and tested there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evolve.host.emit import Emitted, print_emitted
from evolve.output.printing import prose
from evolve.output.progress import Line
from evolve.output.terminal import say, warn
from simulator.common.errors import InputError
from translate_go.clone.changes import PACKAGE, changes
from translate_go.clone.checkout import (
    Checkout,
    check_author,
    check_untracked,
    checkout,
    commit,
    copied,
    deleting,
    has_branch,
    stage,
    staged_diff,
    staged_stat,
    write_changes,
)
from translate_go.clone.proof import STEPS, failures, format_files, run_go, unformatted
from translate_go.clone.registered import backend as registration
from translate_go.clone.registered import check_factory, registered_test
from translate_go.naming import BackendName

LONGEST_SHOWN = 100_000  # characters of a new file that the printed diff shows


def emit_into(clone: Checkout, emitted: Emitted, about: str, notes: Sequence[str], dry_run: bool) -> bool:
    """Whether the backend stands on branch `latency-NAME` of the clone (see `place_of`), which then is on that branch.

    Files that are not Go stay behind. `about` goes into the commit's message. What to know before using the backend,
    with these notes, is printed first. The work is done in a copy: unless
    everything builds and passes, and always with `dry_run`, the clone stays as it was. Raises InputError if the clone
    cannot take it, before anything is built.
    """
    needs, root, branch = emitted.plan, clone.root, branch_of(emitted.name)
    check_factory(needs, emitted.deployments)
    backend = registration(needs, emitted.recorded)
    files = {name: text for name, text in emitted.files.items() if name.endswith(".go")}
    files |= registered_test(needs, emitted.recorded)
    with copied(clone) as tree:
        changed = changes(tree, backend, files)
        check_untracked(clone, changed)
        print_emitted(emitted, notes)
        untidy = unformatted(tree, (path for path in changed if (tree / path).exists()))
        write_changes(tree, changed)
        format_files(tree, changed.keys() - set(untidy))
        stage(tree, changed)
        if dry_run:
            long = [f"{PACKAGE}/{name}" for name, text in files.items() if len(text) > LONGEST_SHOWN]
            say(staged_diff(tree, long).rstrip("\n"))
            for path in long:
                say(f"new file {path}: {changed[path].count(chr(10)):,} lines, not shown")
            prose(f"dry run: {root} is unchanged; without --dry-run these are {len(changed)} files of branch {branch}")
            return True
        say(staged_stat(tree).rstrip("\n"))
        if not _proven(clone, tree):
            return False
        commit(clone, tree, branch, f"Add latency model {backend.registered}\n\n{about}\n")
    prose(f"{root}: is on the new branch {branch} now, one commit after {clone.on}; nothing was pushed")
    say(f"back: {clone.back}")
    return True


def _proven(clone: Checkout, tree: Path) -> bool:
    """Whether the tree builds and passes; prints a line for each step, and the whole output of one that fails."""
    progress = Line()
    for step in STEPS:
        words = f"go {' '.join(step)}"
        progress.show(f"{words} ...")
        ran = run_go(tree, *step)
        progress.close()
        known = _failing_before(clone, ran.stdout) if ran.returncode and step[0] == "test" else frozenset()
        if ran.returncode and not (known and failures(ran.stdout) <= known):
            say(ran.stdout.rstrip("\n"))
            prose(f"{words}: failed; {clone.root} is as it was, on {clone.on}")
            return False
        prose(f"{words}: ok")
        if known:
            warn(f"{clone.root}: fails without the new backend too: {', '.join(sorted(known))}")
    return True


def _failing_before(clone: Checkout, output: str) -> frozenset[str]:
    """What fails in the clone's own commit, of the packages that fail in this output of `go test`."""
    packages = sorted(name for name in failures(output) if "/" in name and not name.startswith("Test"))
    if not packages:
        return frozenset()
    with copied(clone) as before:
        return failures(run_go(before, "test", *packages).stdout)


def branch_of(name: BackendName) -> str:
    """The branch of a clone that gets the backend of this name."""
    return f"latency-{name.registered}"


def place_of(
    target: str, out: Path | None, into: Path | None, dry_run: bool, check: bool, name: BackendName
) -> Checkout | None:
    """The clone that --into names, which can take the branch; None with --out.

    Raises InputError unless there is one place for the files, and what goes with it.
    """
    if out is None and into is None:
        raise InputError("emit needs --out FOLDER, or --into CHECKOUT: give one of the two")
    if out is not None and into is not None:
        raise InputError("emit takes --out FOLDER or --into CHECKOUT, not both: leave one of them out")
    if dry_run and into is None:
        raise InputError("--dry-run goes with --into: it prints the diff of a clone")
    if check and into is not None:
        raise InputError("--check goes with --out: --into always builds and tests")
    if into is not None and target != "blis-4":
        raise InputError(f"--into goes with --target blis-4: for {target} emit with --out, and follow INTEGRATION.md")
    if into is None:
        return None
    clone, branch = checkout(into), branch_of(name)
    if has_branch(clone, branch):
        taken, remedy = f"{into}: already has a branch {branch}", deleting(clone, branch)
        if not dry_run:
            raise InputError(f"{taken}: delete it ({remedy}), or choose another --name")
        warn(f"{taken}: without --dry-run this is refused, unless you delete it ({remedy}) or choose another --name")
    if not dry_run:
        check_author(clone)
    return clone
