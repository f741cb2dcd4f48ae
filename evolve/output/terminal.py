"""The one way by which text leaves for standard output and standard error.

Most of it comes from files: ids, models, paths, program texts, answers of language models. So nothing is read as
markup, styles are arguments, and control characters are visible. `evolve.output.printing` prints tables by the same
rule.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from simulator.common.text import visible

PIPED = 120  # characters of a line that is not for a terminal
LEAST = 40  # a narrower terminal breaks lines itself
GO_FOLDER = "go"  # to which suggestions have Go written
LAYOUT = "\n\t"  # the control characters that lines of text need


def say(text: str = "", style: str = "", *, err: bool = False, end: str = "\n") -> None:
    """Print text, on standard error if `err`. `style`: "bold", "dim" or "", shown in a terminal only."""
    shown = visible(text, LAYOUT)
    styles: dict[str, Any] = {style: True}
    stream = sys.stderr if err else sys.stdout  # named, because click would write UTF-8 to one that is ASCII
    click.echo((click.style(shown, **styles) if style else shown) + end, stream, nl=False)


def warn(text: str) -> None:
    """Print a warning as one line on standard error."""
    say(f"evolve: warning: {' '.join(text.split())}", err=True)


_TOLD = set[str]()  # of `warn_once`


def warn_once(text: str) -> None:
    """Warn, unless this command has said it before."""
    if text not in _TOLD:
        _TOLD.add(text)
        warn(text)


def begin() -> None:
    """Forget what another command in this process said."""
    _TOLD.clear()


def rewrite(text: str) -> None:
    """Replace the line that the cursor is in, on standard error."""
    click.echo("\r" + visible(text), nl=False, err=True)


def command(*words: object) -> str:
    """The command line `evolve WORDS`, quoted so that it can be copied into the shell that this one came from."""
    return shlex.join([_called(), *map(str, words)])


def research(*words: object) -> str:
    """The command line `python -m research WORDS`, for use in a clone of the project."""
    return shlex.join(["python", "-m", "research", *map(str, words)])


def _called() -> str:
    """`evolve`, or the path that it was called by if a shell would not find it by its name."""
    called = sys.argv[0]
    return called if Path(called).name == "evolve" and not shutil.which("evolve") else "evolve"


def suggest(*commands: str) -> None:
    """Print command lines to go on with. Each is a line of its own, however long, so that it can be copied."""
    say("\n".join(["Next:", *(f"  {line}" for line in commands)]))


def width() -> int:
    """The characters that a line has room for: those of the terminal, or COLUMNS if it is set."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS"):
        return max(shutil.get_terminal_size().columns, LEAST)
    return PIPED
