"""Text that is printed: nothing in it is markup, nothing in it steers the terminal, and there is one way out."""

from __future__ import annotations

import ast
import os
import shlex
from pathlib import Path

import pytest
from commands import Capsys
from paths import ROOT

from evolve.output.terminal import command, rewrite, say, suggest, warn
from simulator.common.text import visible

# ESC, CSI, DEL, bell, a bidi override and an isolate, the separators of lines, a lone surrogate, a zero-width space
HOSTILE = "a\x1b[31mb\x9b1mc\x7f\x07\u202e\u2066\u2028\u2029\x85\udcff\u200bz"
SHOWN = r"a\x1b[31mb\x9b1mc\x7f\x07\u202e\u2066\u2028\u2029\x85\udcff\u200bz"


def test_pytests_own_lines_are_as_wide_as_its_terminal(request: pytest.FixtureRequest) -> None:
    """COLUMNS is for the commands under test alone. The workers of pytest-xdist print nothing."""
    config = request.config
    if not hasattr(config, "workerinput"):
        assert config.get_terminal_writer().fullwidth < int(os.environ["COLUMNS"])


def test_hidden_characters_become_visible_and_all_others_stay() -> None:
    assert visible(HOSTILE) == SHOWN
    assert visible("a\tb\nc\r") == r"a\tb\nc\r" and visible("a\tb\nc\r", keep="\n\t") == "a\tb\nc\\r"
    plain = "q[/x] [bold]x[/bold] :smile: é 漢字 \xa0 \\x1b"
    assert visible(plain) == plain


def test_lines_are_printed_as_they_are(capsys: Capsys) -> None:
    say(f"[bold]{HOSTILE}[/bold]\n:smile: [/x]", "bold")
    say("", err=True)
    warn(f"two\nlines {HOSTILE}")
    rewrite("so\nfar\x1b")
    out, err = capsys.readouterr()
    assert out == f"[bold]{SHOWN}[/bold]\n:smile: [/x]\n"
    separated = SHOWN.replace(r"\u2028\u2029\x85", " ")
    assert err == f"\nevolve: warning: two lines {separated}\n\rso\\nfar\\x1b"


@pytest.mark.parametrize("path", ["runs/0001", "my runs/0001", "runs/[x]", "it's", "a  b", "$HOME;rm", "*"])
def test_suggested_commands_can_be_copied_into_a_shell(path: str) -> None:
    text = command("show", f"{path}:3")
    assert shlex.split(text) == ["evolve", "show", f"{path}:3"]
    assert (text == f"evolve show {path}:3") == (path == "runs/0001")


def test_suggested_commands_begin_as_they_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    evolve = tmp_path / "evolve"
    evolve.write_text("#!/bin/sh\n")
    evolve.chmod(0o755)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sys.argv", [str(evolve)])
    assert command("list") == f"{evolve} list"
    monkeypatch.setattr("sys.argv", ["evolve/__main__.py"])  # as `python -m evolve` has it
    assert command("list") == "evolve list"
    monkeypatch.setattr("sys.argv", [str(evolve)])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command("list") == "evolve list"
    suggest("evolve show " + 50 * "long/", "evolve list")
    assert capsys.readouterr().out == f"Next:\n  evolve show {50 * 'long/'}\n  evolve list\n"


# Where rich draws: tables, and the bars of `evolve ingest`. The door prints one constant line.
PRINTERS = {
    "evolve/output/terminal.py": {"echo"},
    "evolve/output/printing.py": {"Console", "print"},
    "evolve/ingest/view.py": {"Console"},
    "evolve/__main__.py": {"print"},
    "evolve/search/llm/sources.py": {"print"},  # of a process that reads a file for another one
}


def test_there_is_one_way_to_print() -> None:
    """Found by the names that print: a call of any of them elsewhere is a second way."""
    for path in sorted((ROOT / "evolve").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                function = node.func
                called = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
                assert not ast.unparse(function).endswith(("stdout.write", "stderr.write")), f"{name}:{node.lineno}"
                if called in ("print", "echo", "secho", "Console", "from_markup", "render_str"):
                    assert called in PRINTERS.get(name, ()), (
                        f"{name}:{node.lineno} calls {called}: use evolve.output.terminal"
                    )
