"""A run and its champion, with and without a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_world
from commands import Capsys, evolve
from paths import ROOT

from evolve.draw.view.followed import Followed
from evolve.run.program import load
from evolve.summary.searched import searched

SHIPPED = ROOT / "seeds" / "champion"


def test_a_champion_is_that_of_a_report_that_covers_the_journal(tiny_run: Path, tmp_path: Path) -> None:
    """Here the report names the earliest elite, which no rule would choose."""
    run = tiny_world.copy(tiny_run, tmp_path)
    first = next(line["elite"] for line in tiny_world.lines(run) if "elite" in line)
    chosen_by_rule = searched(run).champion.id
    assert first["id"] != chosen_by_rule
    report = json.loads((run / "report.json").read_text())
    (run / "report.json").write_text(json.dumps(report | {"champion": first}))
    assert searched(run).champion.id == first["id"]
    (run / "report.json").write_text(json.dumps(report | {"champion": first, "proposals": report["proposals"] - 1}))
    assert searched(run).champion.id == chosen_by_rule


def test_a_journal_whose_end_is_missing_has_a_warning(tiny_run: Path, tmp_path: Path, capsys: Capsys) -> None:
    """Silently, another program would be the champion; resuming searches the lost proposals again."""
    run = tiny_world.copy(tiny_run, tmp_path)
    whole = (run / "journal.jsonl").read_bytes()
    proposals = json.loads((run / "report.json").read_text())["proposals"]
    (run / "journal.jsonl").write_bytes(b"".join(whole.splitlines(keepends=True)[:9]))
    said = f"journal.jsonl: has 9 of the {proposals} proposals that report.json counts: restore it from a copy, or let"
    assert evolve("archive", run) == 0 and said in capsys.readouterr().err
    assert any(said in note for note in Followed(run).notes)
    assert evolve("resume", run, "--workers", 1, "--quiet") == 0 and said in capsys.readouterr().err
    assert (run / "journal.jsonl").read_bytes() == whole
    assert evolve("archive", run) == 0 and not capsys.readouterr().err
    assert evolve("resume", run, "--to", 9, "--workers", 1, "--quiet") == 0 and said not in capsys.readouterr().err


def test_nothing_is_printed_of_a_run_with_a_damaged_report(tiny_run: Path, tmp_path: Path, capsys: Capsys) -> None:
    run = tiny_world.copy(tiny_run, tmp_path)
    (run / "report.json").write_text("[]")
    assert evolve("archive", run) == 2
    out, err = capsys.readouterr()
    assert not out and err.endswith("Restore it from a copy, or remove it: `evolve resume` writes it again.\n")
    (run / "report.json").unlink()
    assert evolve("resume", run, "--workers", 1, "--quiet") == 0
    assert (run / "report.json").exists()


@pytest.mark.slow
def test_what_a_run_has_before_its_search_has_ended_is_shown_with_a_warning(
    tiny_run: Path, tmp_path: Path, capsys: Capsys
) -> None:
    run = tiny_world.copy(tiny_run, tmp_path)
    plot = ("plot", run, "--kind", "front", "--out", tmp_path / "front.svg")
    commands = [("archive", run), ("archive", run, "--json"), ("export", run, "--to", "json"), plot]
    for ended in (True, False):
        for words in commands:
            evolve(*words)
            err = capsys.readouterr().err
            said = f"{run}: its search has not ended" in err and f"`evolve resume {run}` goes on" in err
            assert said != ended, words
        (run / "report.json").unlink(missing_ok=True)
    evolve("archive", SHIPPED)
    assert "has not ended" not in capsys.readouterr().err


def test_the_shipped_runs_champion_is_the_one_that_the_rule_chooses() -> None:
    shipped, record = searched(SHIPPED), load("champion").record
    assert shipped.report is None and shipped.run.shipped
    assert record and record.found and shipped.champion.id == record.found.proposal
