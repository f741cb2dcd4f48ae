"""Options that take one value are refused when they are given twice, in every command; the others may be repeated."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from commands import Capsys, commands, refused

from evolve.cli import cli
from evolve.cli.values import NAMING, check_values

OPTIONS = [(name, command, p) for name, command in commands() for p in command.params if isinstance(p, click.Option)]
FLAGS = [each for each in OPTIONS if each[2].is_flag]
LISTS = [each for each in OPTIONS if each[2].multiple]
NAMED = [each for each in OPTIONS if isinstance(each[2].type, NAMING) and not each[2].is_flag and not each[2].callback]
SINGLE = [each for each in OPTIONS if not each[2].is_flag and not each[2].multiple]


def of(options: list[tuple[str, click.Command, click.Option]]) -> pytest.MarkDecorator:
    params = [pytest.param(*each, id=f"{each[0]} {each[2].opts[0]}") for each in options]
    return pytest.mark.parametrize(("name", "command", "option"), params)


def test_the_options_are_found() -> None:
    """As many as there were when this was written: the other tests are not empty."""
    assert len(SINGLE) >= 180 and len(FLAGS) >= 60 and len(LISTS) >= 37 and len(NAMED) >= 80
    assert {"simulate --id", "emit --name", "model add --id"} <= {f"{name} {o.opts[0]}" for name, _, o in SINGLE}


@of(SINGLE)
def test_an_option_of_one_value_is_given_once(
    name: str, command: click.Command, option: click.Option, capsys: Capsys
) -> None:
    given = [option.opts[0], *["1"] * option.nargs]
    problem = f"{option.opts[0]} is given twice: it takes one value, give it once: see `evolve {name} --help`"
    assert problem in refused(capsys, *name.split(), *given, *given)
    check_values(click.Context(command), given)


@of(NAMED)
def test_an_empty_name_is_not_taken_for_an_option_that_was_left_out(
    name: str, command: click.Command, option: click.Option, capsys: Capsys
) -> None:
    """As of a shell variable that is not set."""
    said = refused(capsys, *name.split(), option.opts[0], *[""] * option.nargs)
    assert f"evolve: {option.opts[0]} '': names nothing: give " in said
    assert ("leave it out" in said) != option.required


@pytest.mark.parametrize("args", [("ingest", "", "--out", "o"), ("view", " "), ("predict", "")])
def test_an_empty_argument_names_nothing_either(args: tuple[str, ...], capsys: Capsys) -> None:
    assert " '': names nothing: give a name" in refused(capsys, *args)


@of([*FLAGS, *LISTS])
def test_flags_and_lists_may_be_repeated(name: str, command: click.Command, option: click.Option) -> None:
    given = [option.opts[0], *([] if option.is_flag else ["1"] * option.nargs)]
    check_values(click.Context(command, click.Context(cli), name), [*given, *given])


def test_both_ways_to_write_a_value_are_the_same_option(capsys: Capsys) -> None:
    assert "--id is given twice" in refused(capsys, "simulate", "--id=a", "--seed", "1", "--id", "b")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["predict", "--cluster", "x"], "No such option '--cluster': see `evolve predict --help`"),  # not --latex
        (["predict", "--experiment", "x"], "No such option '--experiment'. Did you mean '--experiments'?: see"),
        (["predict", "--prompt-len", "1k"], "--prompt-len '1k': is no length: write TOKENS, or a distribution such as"),
        (["predict", "--rate", "1k"], "Invalid value for '--rate': '1k' is not a number: see"),
        (
            ["run", "--cluster", "http://127.0.0.1:8787"],
            "is not an address of a scheduler. Write it like tcp://HOST:8786",
        ),
    ],
)
def test_what_is_refused_is_said_in_plain_words(
    args: list[str], said: str, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "http" in said:
        pytest.importorskip("distributed")
    assert said in refused(capsys, *args)
