"""The table of evolve/cli/words.py, generated from the commands. `make docs` writes it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import click
from paths import ROOT

from evolve.cli import entry

FILE = ROOT / "evolve" / "cli" / "words.py"
HEAD = '''"""The arguments and options of every command, for completion. `make docs` writes this file from the commands.

A line is a command: `KIND` is an argument, `--option=KIND` an option, `--flag` one without a value; `...` may be given
again. A value is one of completion.KINDS, or one of the words between `|`.
"""

WORDS = """
'''
KIND_OF_METAVAR = {
    "PROGRAM": "PROGRAM",
    "RUN": "RUN",
    "RUN|PROGRAM": "RUN|PROGRAM",
    "NAME|FILE": "CONFIG",
    "FILE": "FILE",
    "FILE|-": "FILE",
    "CONFIG": "FILE",
    "DIR": "FOLDER",
    "FILE|DIR": "FILE",
    "FOLDER...": "FOLDER",
    "GPU": "GPU",
}
KIND_OF_NAME = {"program": "PROGRAM", "model": "MODEL", "hardware": "GPU"}


def table() -> str:
    """The text of words.py."""
    lines = [line for name, command in commands() for line in _lines(name, command)]
    return "\n".join([HEAD + "\n".join(lines), '"""', ""])


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its name; that of a command within a group as `group.command`."""
    context = click.Context(entry.cli, info_name="evolve")
    for name in entry.COMMANDS:
        command = entry.cli.get_command(context, name)
        assert command
        if isinstance(command, click.Group):
            inner = click.Context(command, parent=context)
            for below in command.list_commands(inner):
                found = command.get_command(inner, below)
                assert found
                yield f"{name}.{below}", found
        else:
            yield name, command


def _lines(name: str, command: click.Command) -> list[str]:
    words = " ".join([name, *(_word(name, p) for p in command.params if not getattr(p, "hidden", False))])
    return textwrap.wrap(words, 110, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def _word(command: str, param: click.Parameter) -> str:
    again = "..." if param.nargs == -1 or getattr(param, "multiple", False) else ""
    if isinstance(param, click.Argument):
        return kind(command, param) + again
    long = next(o for o in param.opts if o.startswith("--"))
    return long if getattr(param, "is_flag", False) else f"{long}={kind(command, param)}{again}"


def kind(command: str, param: click.Parameter) -> str:
    """The kind of a parameter's value, or its choices."""
    if isinstance(param.type, click.Choice):
        return "|".join(map(str, param.type.choices))
    if param.name == "ident" and command.startswith("model."):
        return "MODEL"
    by_name = KIND_OF_NAME.get(param.name or "") or KIND_OF_METAVAR.get(str(param.metavar))
    return by_name or ("FILE" if isinstance(param.type, click.Path) else "ANY")


def write() -> None:
    """Write words.py."""
    FILE.write_text(table(), "utf-8")
