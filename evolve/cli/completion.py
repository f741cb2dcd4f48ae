"""Shell completion of commands, options, choices, files, and names of programs, runs, models and GPUs.

The user waits for every answer, so no command is imported: click completes commands made from the table in `words.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml
from click.shell_completion import CompletionItem

import configs
import seeds
from evolve.cli.entry import COMMANDS, COMPLETION, CONTEXT
from evolve.cli.words import WORDS
from simulator.serving.model import own_models

PROG = "evolve"
NOT_A_CONFIG = ("experiments_", "models.", "hardware.", "llm_prices.", "leaderboard.")

Item = CompletionItem[str]


def respond() -> int:
    """Answer the shell's completion script on standard output; returns the exit status.

    An error prints nothing, because its text would appear in the line that the user types.
    """
    try:
        group().main([], prog_name=PROG, complete_var=COMPLETION)
    except SystemExit as e:
        return int(e.code or 0)
    except Exception:
        return 1
    return 0


def group() -> click.Group:
    """All commands with their parameters, without their functions."""
    top = click.Group(PROG, context_settings=CONTEXT)
    for name, *words in map(str.split, _lines(WORDS)):
        parent, _, below = name.partition(".")
        _, _, text = COMMANDS[parent]
        home = top
        if below:
            inner = top.commands.setdefault(parent, click.Group(parent, help=text))
            assert isinstance(inner, click.Group)
            home = inner
        params = [_parameter(i, word) for i, word in enumerate(words)]
        home.add_command(click.Command(below or name, params=params, help=None if below else text))
    return top


def _lines(text: str) -> Iterator[str]:
    """The lines of the table; an indented line continues the one before it."""
    yield from text.replace("\n    ", " ").strip().splitlines()


def _parameter(position: int, word: str) -> click.Parameter:
    """The parameter of a word: `KIND` or `KIND...`, `--flag`, `--option=KIND`, or `--option=one|two...`."""
    several = word.endswith("...")
    name, _, kind = word.removesuffix("...").partition("=")
    if not name.startswith("--"):
        return click.Argument([f"argument{position}"], type=_Kind(name), required=False, nargs=-1 if several else 1)
    if not kind:
        return click.Option([name], is_flag=True)
    return click.Option([name], type=_Kind(kind) if kind in KINDS else click.Choice(kind.split("|")), multiple=several)


class _Kind(click.ParamType):
    """A value of one of KINDS."""

    def __init__(self, kind: str) -> None:
        self.name = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
        path, *lists = KINDS[self.name]
        names = (name for names in lists for name in names() if name.startswith(incomplete))
        # bash forgets the names before an item for files, so that one comes first
        paths = [CompletionItem(incomplete, type=path)] if path else []
        return [*paths, *map(CompletionItem, names)]


def program_names() -> list[str]:
    """Names of the shipped programs."""
    return sorted(p.stem for p in Path(seeds.__path__[0]).glob("*.py") if p.name != "__init__.py")


def config_names() -> list[str]:
    """Names of the shipped configurations."""
    return sorted(p.stem for p in Path(configs.__path__[0]).glob("*.yaml") if not p.name.startswith(NOT_A_CONFIG))


def run_paths() -> list[str]:
    """The runs below runs/, as `evolve list` shows them."""
    home = Path("runs")
    return sorted(str(p.parent) for p in [*home.glob("*/run.json"), *home.glob("*/seed-*/run.json")])


def model_names() -> list[str]:
    """Aliases and ids of the shipped models, and of the user's own."""
    return [*_names("models", "id"), *own_models()]


def gpu_names() -> list[str]:
    """Names and aliases of the GPUs."""
    return _names("hardware", "name")


def _names(table: str, key: str) -> list[str]:
    """The aliases and names in a table of configs/, without those that a shell would have to quote."""
    entries = yaml.load((Path(configs.__path__[0]) / f"{table}.yaml").read_bytes(), _LOADER)[table]
    names = [name for entry in entries for name in (*entry["aliases"], entry[key])]
    return [name for name in names if " " not in name]


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# Kinds of values: "file" or "dir" if they are paths, and the functions that list names.
KINDS: dict[str, tuple[Any, ...]] = {
    "ANY": ("",),
    "FILE": ("file",),
    "FOLDER": ("dir",),
    "PROGRAM": ("file", program_names),
    "RUN": ("dir", run_paths),
    "RUN|PROGRAM": ("file", program_names, run_paths),
    "CONFIG": ("file", config_names),
    "MODEL": ("", model_names),
    "GPU": ("", gpu_names),
}
