"""Options that name several things: every one of every command may be repeated and takes commas, both together."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest
import tiny_world
from commands import Capsys, commands, evolve, refused

from evolve.run.config_file import load_config
from evolve.run.data import known_experiment
from simulator.common.errors import InputError

ONE_ID = {"simulate", "model add"}  # whose --id names one thing
NO_LISTS = {"--price": "MODEL=IN,OUT", "--deployment": "MODEL,HARDWARE[,TP]"}  # one thing, of several parts
# What a command needs before it looks for experiments.
NEEDED = {
    "show": ("champion", "--explain"),
    "plot": ("champion", "--kind", "fit", "--out", "x.svg"),
    "emit": ("champion", "--out", "go"),
}


OPTIONS = [
    pytest.param(command, option, id=f"{name} {option.opts[0]}")
    for name, command in commands()
    for option in command.params
    if isinstance(option, click.Option)
    and (
        ("," in str(option.metavar) and option.opts[0] not in NO_LISTS)
        or (option.opts[0] == "--id" and name not in ONE_ID)
    )
]
OF_EXPERIMENTS = [name for name, c in commands() if any("--id" in p.opts for p in c.params) and name not in ONE_ID]


def test_the_options_are_found() -> None:
    """As many as there were when this was written: the other tests are not empty."""
    assert len(OPTIONS) >= 20 and len(OF_EXPERIMENTS) >= 9


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_a_list_may_be_repeated_and_takes_commas(command: click.Command, option: click.Option) -> None:
    context = click.Context(command)
    name = option.opts[0]
    words, _, _ = command.make_parser(context).parse_args([name, "a, b", name, "c", name, "b,,d"])
    value, _ = option.handle_parse_result(context, words, [])
    assert value == ("a", "b", "c", "d")
    assert option.help and "(repeatable)" in option.help
    nothing, _ = option.handle_parse_result(context, {}, [])
    assert nothing == ()


@pytest.mark.parametrize("name", OF_EXPERIMENTS)
def test_no_id_is_dropped(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    """An unknown one is refused, wherever it is."""
    monkeypatch.chdir(tmp_path)
    Path("data.yaml").write_text(tiny_world.DATA)
    given = (*name.split(), *NEEDED.get(name, ()), "--experiments", "data.yaml")
    for ids in (["nobody", "dense-chat"], ["dense-chat", "nobody"], ["dense-chat,nobody", "dense-code"]):
        line = refused(capsys, *given, *(word for text in ids for word in ("--id", text)))
        assert (
            "--id nobody: no such experiment: there are dense-chat, dense-code, sparse-chat, dense-overloaded" in line
        )


@pytest.mark.parametrize(
    ("files", "listed"),
    [
        (["mine.yaml"], "`evolve predict champion --experiments mine.yaml` shows all"),
        (
            ["experiments_h100.yaml", "mine.yaml"],
            "`evolve list` and `evolve predict champion --experiments mine.yaml` show all",
        ),
        (["experiments_h100.yaml"], "`evolve list` shows all that ship, --experiments FILE reads others"),
    ],
)
def test_of_many_experiments_the_commands_that_list_their_files_are_named(
    files: list[str], listed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["evolve"])
    monkeypatch.setattr("shutil.which", lambda _name: "/usr/bin/evolve")
    offered = [f"chat-{i}" for i in range(11)]
    with pytest.raises(InputError) as error:
        known_experiment("--id", "chat-77", offered, files)
    assert (
        str(error.value) == f"--id chat-77: no such experiment: the closest of 11 are chat-7, chat-9, chat-8: {listed}"
    )
    known_experiment("--id", "chat-7", offered, files)


def test_ids_that_are_repeated_are_all_used_in_the_order_of_the_file(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "data.yaml").write_text(tiny_world.DATA)
    given = ("--id", "sparse-chat", "--id", "dense-code,dense-chat", "--json")
    assert evolve("predict", "floor", "--experiments", tmp_path / "data.yaml", *given) == 0
    found = json.loads(capsys.readouterr().out)["experiments"]
    assert [e["id"] for e in found] == ["dense-chat", "dense-code", "sparse-chat"]


def test_filters_of_a_run_that_are_repeated_are_all_in_its_configuration(tmp_path: Path, capsys: Capsys) -> None:
    config = tiny_world.write(tmp_path)
    out = tmp_path / "run"
    args = ("run", "--config", config, "--budget", 3, "--workers", 1, "--out", out, "--quiet")
    given = (*args, "--models", "llama-2-7b", "--models", "mixtral-8x7b", "--exclude", "dense-chat")
    assert evolve(*given, "--exclude", "dense-overloaded", "--workloads", "chat", "--workloads", "code") == 0
    data = load_config(str(out / "config.yaml")).data
    assert (data.models, data.workloads) == (("llama-2-7b", "mixtral-8x7b"), ("chat", "code"))
    assert data.exclude == ("dense-chat", "dense-overloaded")


@pytest.mark.slow
def test_the_commands_in_a_report_name_every_id(tmp_path: Path, capsys: Capsys) -> None:
    file = tmp_path / "data.yaml"
    file.write_text(tiny_world.DATA)
    given = ("--experiments", file, "--id", "dense-code", "--id", "dense-chat", "--only", "accuracy")
    assert evolve("report", "floor", *given, "--md", "--quiet") == 0
    lines = re.findall(r"evolve (?:report|predict) floor [^`\n]*", capsys.readouterr().out)
    assert lines and all("--id dense-code,dense-chat" in line for line in lines)
