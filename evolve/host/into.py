"""`evolve emit --into`: an emitted backend on a new branch of a clone of the host, built and tested there."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess

from evolve import __version__
from evolve.host.emit import TITLE, Emitted, accuracy, print_emitted
from evolve.output.printing import prose
from evolve.output.progress import Line
from evolve.output.terminal import say, warn
from evolve.run.program import Source
from simulator.common.errors import InputError
from simulator.common.text import listed
from simulator.serving.bundled import sources_of
from translate_go.clone import checkout as clones
from translate_go.clone.changes import PACKAGE, changes
from translate_go.clone.registered import backend as registration
from translate_go.clone.registered import check_factory, registered_test
from translate_go.gotest import OF_MANY, RECORDED
from translate_go.naming import BackendName, joined
from translate_go.vectors import EDGES

LINTER = "golangci-lint"  # the host's, with the host's settings
LONGEST_SHOWN = 100_000  # characters of a new file that the printed diff shows


def emit_into(
    clone: clones.Checkout, source: Source, emitted: Emitted, again: str, notes: Sequence[str], dry_run: bool
) -> bool:
    """Commit the backend on branch `latency-NAME` of the clone (see `place_of`). Returns True if the clone is on it.

    Files that are not Go stay behind. `again`: the command, without the place, for the commit's message. The warnings
    about the backend and the `notes` are printed first. The work is done in a copy: the clone changes only if
    everything builds and passes, and never with `dry_run`. Raises InputError if the clone cannot take it, before
    anything is built.
    """
    needs, root, branch = emitted.plan, clone.root, branch_of(emitted.plan.name)
    check_factory(needs)
    backend = registration(needs)
    files = {name: text for name, text in emitted.files.items() if name.endswith(".go")}
    files |= registered_test(needs)
    with clones.copied(clone, apart=dry_run) as tree:
        changed = changes(tree, backend, files)
        clones.check_untracked(clone, changed)
        print_emitted(emitted, notes)
        untidy = clones.unformatted(tree, (path for path in changed if (tree / path).exists()))
        clones.write_changes(tree, changed)
        clones.format_files(tree, changed.keys() - set(untidy))
        clones.stage(tree, changed)
        if dry_run:
            long = [f"{PACKAGE}/{name}" for name, text in files.items() if len(text) > LONGEST_SHOWN]
            say(clones.staged_diff(tree, long).rstrip("\n"))
            for path in long:
                say(f"new file {path}: {changed[path].count(chr(10)):,} lines, not shown")
            prose(f"dry run: {root} is unchanged; without --dry-run, branch {branch} gets these {len(changed)} files")
            return True
        say(clones.staged_stat(tree).rstrip("\n"))
        tested = _proven(clone, tree)
        if tested is None:
            return False
        clones.commit(clone, tree, branch, message(source, emitted, again, tested))
    prose(f"{root}: is on the new branch {branch} now, one commit after {clone.on}; nothing was pushed")
    say(f"back: {clone.back}")
    return True


def message(source: Source, emitted: Emitted, again: str, tested: Sequence[str]) -> str:
    """The commit's message, in the form that the host asks for.

    `tested`: what was run, with its result, a line each.
    """
    needs, record, name = emitted.plan, source.record, emitted.plan.name
    if needs.host:
        gpus = joined([gpu.names[0] for gpu in needs.host.measured])
        serves = f"It serves the models of the host on {gpus}, but for those that its error says it cannot count"
    elif needs.deployments:
        serves = f"It serves {listed([d.name for d in needs.deployments], 3)}"
    else:
        serves = "It reads no facts of model and GPU"
    constants = sum(len(f.constants) for f in needs.functions.values())
    what = (
        f"`--latency-model {name.registered}` selects a fitted latency model: a short program with {constants} "
        f"constants, in the head of {PACKAGE}/{name.file()}. {serves}. A deployment that it refuses is a fatal error "
        "of the command, before anything is simulated."
    )
    lines = [what, ""]
    if record:
        sources = sources_of(record.fitted) or ["runs that are not public"]
        errors = accuracy(source)
        table = [line for line in errors if line == TITLE or line.startswith(" ")]
        said = " ".join(line for line in errors if line not in table)
        lines += [f"Fitted to {len(record.fitted)} measured runs of vLLM. Sources:", *(f"- {text}" for text in sources)]
        lines += ["", *table, said, ""]
    else:
        lines += ["Its constants were not fitted to measured runs.", ""]
    lines += [f"Caution: {text}." for text in emitted.cautions] + ([""] if emitted.cautions else [])
    lines += ["Tested:", *(f"- {line}" for line in tested)]
    batches = RECORDED + len(EDGES) if not needs.many else len(OF_MANY)
    recorded = f"{batches} recorded batches of {len(needs.recorded)} deployments"
    lines.append(f"- {recorded}: times equal to the interpreter's to the microsecond")
    lines += ["", f"Emitted by evolve-latency {__version__}: {again}"]
    return "\n".join([f"feat(latency): add {name.registered} backend", "", *map(_wrapped, lines)]) + "\n"


def _wrapped(line: str) -> str:
    """The line as a commit's message has it; a row of a table as it is."""
    if line.startswith(" "):
        return line
    indent = "  " if line.startswith("- ") else ""
    return textwrap.fill(line, 72, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _proven(clone: clones.Checkout, tree: Path) -> list[str] | None:
    """Print a line for each step, and the whole output of one that fails. Returns the lines, None if one failed."""
    lines = []
    for step in clones.STEPS:
        words = f"go {' '.join(step)}"
        ran = _shown(words, clones.run_go, tree, *step)
        known = _failing_before(clone, ran.stdout) if ran.returncode and step[0] == "test" else frozenset()
        if ran.returncode and not (known and clones.failures(ran.stdout) <= known):
            _say_failed(clone, words, ran.stdout)
            return None
        lines.append(f"{words}: ok")
        prose(lines[-1])
        if known:
            warn(f"{clone.root}: fails without the new backend too: {', '.join(sorted(known))}")
    linter = shutil.which(LINTER)
    if linter is None:
        prose(f"{LINTER}: not on PATH, not run")
        return lines
    words = f"{LINTER} run"
    linted = _shown(words, clones.run, tree, linter, "run", "--new-from-rev=HEAD", "./sim/...", "./cmd/...")
    if linted.returncode:
        _say_failed(clone, words, linted.stdout)
        return None
    lines.append(f"{words}: ok")
    prose(lines[-1])
    return lines


def _shown(words: str, run: Callable[..., CompletedProcess[str]], tree: Path, *arguments: str) -> CompletedProcess[str]:
    """What the command in the tree gave; its words stand on a line while it runs."""
    progress = Line()
    progress.show(f"{words} ...")
    ran = run(tree, *arguments)
    progress.close()
    return ran


def _say_failed(clone: clones.Checkout, words: str, output: str) -> None:
    say(output.rstrip("\n"))
    prose(f"{words}: failed; {clone.root} is as it was, on {clone.on}")


def _failing_before(clone: clones.Checkout, output: str) -> frozenset[str]:
    """The failures in the clone's own commit, of the packages that fail in this output of `go test`."""
    packages = sorted(name for name in clones.failures(output) if "/" in name and not name.startswith("Test"))
    if not packages:
        return frozenset()
    with clones.copied(clone) as before:
        return clones.failures(clones.run_go(before, "test", *packages).stdout)


def branch_of(name: BackendName) -> str:
    return f"latency-{name.registered}"


def place_of(
    target: str, out: Path | None, into: Path | None, dry_run: bool, check: bool, name: BackendName
) -> clones.Checkout | None:
    """The clone that --into names, which can take the branch; None with --out.

    Raises InputError unless there is one place for the files, and the other options go with it.
    """
    if out is None and into is None:
        raise InputError("emit needs a place for the files. Give --out FOLDER or --into CHECKOUT.")
    if out is not None and into is not None:
        raise InputError("emit takes --out FOLDER or --into CHECKOUT, not both. Leave one of them out.")
    if into is None:
        if dry_run:
            raise InputError("--dry-run goes with --into: it prints the diff of a clone. Leave it out.")
        return None
    if check:
        raise InputError("--check goes with --out: --into always builds and tests. Leave it out.")
    if target != "blis-4":
        raise InputError(f"--into goes with --host blis-4. For {target}, emit with --out and follow INTEGRATION.md.")
    clone, branch = clones.checkout(into), branch_of(name)
    if clones.has_branch(clone, branch):
        remedy = f"Delete it ({clones.deleting(clone, branch)}), or choose another --name."
        if not dry_run:
            raise InputError(f"cannot make branch {branch} in {into}: it exists. {remedy}")
        warn(f"{into}: branch {branch} exists; without --dry-run this is refused. {remedy}")
    if not dry_run:
        clones.check_author(clone)
    return clone
