"""docs/json.md has every key of every command's JSON, with its type."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from json_shapes import PAGE, documented, samples, sections, shapes

from evolve.cli import cli
from evolve.cli.entry import COMMANDS

# resume prints what the command that it continues prints, pilot what `run --repeats` prints; bench takes minutes.
ELSEWHERE = {"resume", "pilot", "bench"}


@pytest.mark.slow
def test_the_page_has_what_commands_print(tmp_path: Path) -> None:
    page, now = documented(PAGE.read_text()), sections(samples(tmp_path))
    assert set(page) == set(now), "run `make docs`"
    for section, rows in now.items():
        assert rows == page[section], f"{section}: run `make docs`"


def test_the_page_has_all_keys_of_what_quick_commands_print(tmp_path: Path) -> None:
    page, now = documented(PAGE.read_text()), sections(samples(tmp_path, quick=True))
    assert len(now) > len(page) / 2
    for section, rows in now.items():
        assert set(rows) <= set(page[section]), f"{section}: run `make docs`"


def test_every_command_with_json_is_on_the_page() -> None:
    page = documented(PAGE.read_text())
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        if any("--json" in option.opts for option in command.params) and name not in ELSEWHERE:
            assert f"evolve {name}" in page, name
    assert {"evolve model list", "evolve model show"} <= set(page)


def test_shapes_are_read_off_a_value() -> None:
    value = {
        "a": [1, None],
        "known": {"x": [{"e2e": 1.0}], "y": []},
        "s": {"median": 1, "low": 0, "high": 2, "values": []},
    }
    assert shapes([value, {"a": []}]) == {
        "a": "list of null or number", "known": "object by NAME", "known.NAME": "list", "known.NAME[]": "object",
        "known.NAME[].e2e": "number", "s": "spread", "spread": "object", "spread.median": "number",
        "spread.low": "number", "spread.high": "number", "spread.values": "list",
    }  # fmt: skip
