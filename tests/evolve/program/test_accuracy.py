"""What goes with the Go on accuracy: the README's held-out figures for the champion, none where nothing was held out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tiny_world
from commands import evolve
from paths import ROOT

from evolve.program.accuracy import IN_SAMPLE, NOTHING, TITLE, accuracy
from evolve.run.program import load

README_ROWS = {  # the README's words for a row, and those here
    "without each model": "the model",
    "without each workload": "the workload",
    "without each TP degree": "the TP degree",
    "without dense models, without mixtures of experts": "dense models or mixtures of experts",
    "in sample: the shipped champion": IN_SAMPLE,
}


def figures(line: str) -> list[str]:
    """Runs, E2E, TTFT and ITL of a row in plain text."""
    return re.split("  +", line.strip())[-4:]


def test_the_champions_figures_are_the_readmes() -> None:
    title, _, *lines = accuracy(load("champion"))
    assert title == TITLE and NOTHING not in lines
    readme = (ROOT / "README.md").read_text().replace("**", "")
    for theirs, ours in README_ROWS.items():
        [row] = re.findall(rf"^\|[^|]*{re.escape(theirs)}[^|]*\|(.*)\|$", readme, re.MULTILINE)
        [line] = [line for line in lines if ours in line]
        assert figures(line) == [cell.strip() for cell in row.split("|")], theirs


def test_a_program_that_was_not_fitted_has_none() -> None:
    assert accuracy(load("floor")) == ()


@pytest.mark.parametrize("start", ["floor", "champion"])
def test_a_fit_to_own_runs_says_that_nothing_was_held_out(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The champion's held-out errors are of another fit, and so not shown. Four runs of the tiny world are clean."""
    monkeypatch.chdir(tmp_path)
    Path("data.yaml").write_text(tiny_world.DATA)
    assert evolve("fit", start, "--experiments", "data.yaml", "--out", "mine.py") == 0
    record = load("mine.py").record
    assert record is not None
    title, _, line, last = accuracy(load("mine.py"))
    e2e = sum(abs(r.e2e or 0.0) for r in record.errors) / len(record.errors)
    assert (title, last) == (TITLE, NOTHING) and IN_SAMPLE in line
    assert figures(line)[:2] == [str(len(record.fitted)), f"{e2e:.1f}"]
    assert evolve("emit", "mine.py", "--model", "llama-2-7b", "--hardware", "H100", "--tp", 1, "--out", "go") == 0
    page, source = Path("go/INTEGRATION.md").read_text(), Path("go/fitted.go").read_text()
    assert f"    {TITLE}\n" in page and f"    {NOTHING}\n" in page
    assert f"// {TITLE}\n" in source and f"// {line.rstrip()}\n" in source
