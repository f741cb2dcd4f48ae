"""Shell completion of commands, options, choices, files, and names of programs, runs, models and GPUs.

The user waits for every answer, so no command is imported: click completes commands made from the table in `words.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

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
        # bash forgets the names before an item for files, so that one comes first
        return sorted(KINDS[self.name](incomplete), key=lambda item: item.type == "plain")


def _named(names: Iterable[str], incomplete: str) -> Iterator[Item]:
    return (CompletionItem(name) for name in names if name.startswith(incomplete))


def _files(incomplete: str) -> Iterator[Item]:
    yield CompletionItem(incomplete, type="file")


def _folders(incomplete: str) -> Iterator[Item]:
    yield CompletionItem(incomplete, type="dir")


def _programs(incomplete: str) -> Iterator[Item]:
    yield from _files(incomplete)
    yield from _named(program_names(), incomplete)


def _runs(incomplete: str) -> Iterator[Item]:
    yield from _folders(incomplete)
    yield from _named(run_paths(), incomplete)


def _runs_or_programs(incomplete: str) -> Iterator[Item]:
    yield from _programs(incomplete)
    yield from _named(run_paths(), incomplete)


def _configs(incomplete: str) -> Iterator[Item]:
    yield from _files(incomplete)
    yield from _named(config_names(), incomplete)


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

# Kinds of values, with the completions of a prefix.
KINDS: dict[str, Callable[[str], Iterable[Item]]] = {
    "ANY": lambda incomplete: [],
    "FILE": _files,
    "FOLDER": _folders,
    "PROGRAM": _programs,
    "RUN": _runs,
    "RUN|PROGRAM": _runs_or_programs,
    "CONFIG": _configs,
    "MODEL": lambda incomplete: _named(model_names(), incomplete),
    "GPU": lambda incomplete: _named(gpu_names(), incomplete),
}
