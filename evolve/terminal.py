"""The one way by which text leaves for standard output and standard error.

Most of it comes from files: ids, models, paths, program texts, answers of language models. So nothing is read as
markup, styles are arguments, and control characters are visible. `evolve.report.table` prints tables by the same rule.
"""

from __future__ import annotations

from typing import Any

import click

from simulator.text import visible

LAYOUT = "\n\t"  # the control characters that lines of text need


def say(text: str = "", style: str = "", *, err: bool = False, end: str = "\n") -> None:
    """Print text, on standard error if `err`. `style`: "bold", "dim" or "", shown in a terminal only."""
    styles: dict[str, Any] = {style: True} if style else {}
    click.echo(click.style(visible(text, LAYOUT), **styles) + end, nl=False, err=err)


def warn(text: str) -> None:
    """Print a warning as one line on standard error."""
    say(f"evolve: warning: {' '.join(text.split())}", err=True)


def rewrite(text: str) -> None:
    """Replace the line that the cursor is in, on standard error."""
    click.echo("\r" + visible(text), nl=False, err=True)
