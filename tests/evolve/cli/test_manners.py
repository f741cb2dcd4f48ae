"""What every command prints by default: at most 40 lines, none wider than the terminal; the rest waits for -v."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commands import Capsys, commands, printed
from rich.cells import cell_len

MOST_LINES = 40
# EXP: the experiments of the tiny world; ONE: one of them.
CASES = """
predict champion --model llama-3.1-8b --hardware H100 --rate 5 --prompt-len 1000 --output-len 300
predict floor EXP --against linear
predict floor EXP ONE --sweep rate=1:40:1
kernels llama-3.1-8b --hardware H100
sensitivity floor EXP
fit floor EXP
fit floor EXP --learning-curve
model show llama-3.1-8b
list
archive RUN
archive RUN --grid
archive RUN --by proposer
show floor
show linear --check
show champion --diagnose EXP
show linear --ablate EXP
score champion EXP
simulate EXP ONE --quiet
"""
COPIED = re.compile(r"\s*(evolve|- `evolve|python|def) ")  # lines that are never broken


@pytest.mark.parametrize("case", CASES.strip().splitlines())
def test_a_command_opens_with_a_screen_that_fits(
    case: str, tiny: Path, tiny_run: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"EXP": f"--experiments {tiny.parent / 'data.yaml'}", "ONE": "--id dense-chat", "RUN": str(tiny_run)}
    args = re.sub(r"\b(EXP|ONE|RUN)\b", lambda word: options[word[0]], case).split()
    for columns in (80, 100):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = printed(capsys, *args).splitlines()
        assert len(lines) <= MOST_LINES
        assert not [x for x in lines if cell_len(x.rstrip()) > columns and not COPIED.match(x)]


def flat(lines: list[str]) -> str:
    return " ".join(lines)


def test_what_a_command_leaves_out_waits_for_one_option(
    tiny: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """-v prints rows and no definitions, --explain definitions and no rows."""
    monkeypatch.setenv("COLUMNS", "80")
    diagnose = "show", "champion", "--diagnose", "--experiments", tiny.parent / "data.yaml"
    brief, every, explained = (printed(capsys, *diagnose, *more).splitlines() for more in ((), ("-v",), ("--explain",)))
    assert [way in flat(brief) for way in ("More: -v (all errors, ", "; --explain (definitions)")] == [True, True]
    assert every[-1] == "More: --explain (definitions)" and len(every) > len(brief)
    assert "More: -v (all errors, " in flat(explained) and "--explain" not in flat(explained)
    rows = [next(x.split() for x in lines if x.startswith("dense-chat ")) for lines in (brief, every, explained)]
    assert rows[0] == rows[1] == rows[2]


def test_whoever_prints_everything_with_v_explains_with_explain() -> None:
    flags = {name: {flag for option in c.params for flag in option.opts} for name, c in commands()}
    assert {name for name, of in flags.items() if "-v" in of and "--explain" not in of} == set()
    assert sum("-v" in of for of in flags.values()) >= 10
