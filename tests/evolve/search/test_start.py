"""A user's own programs as the start of a search: read once, kept with the run, journalled, assessed like any seed."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import Capsys, evolve, refused
from tiny_world import ONE, write

from evolve.run.folder import RunFolder, open_run
from evolve.run.program import seed_texts

MINE = '''"""A floor and what every decode costs."""

def step_time(b, s, *, floor: us = 4000.0, decode: us/request = 20.0):
    return floor + decode * b.decode_reqs

def queueing_time(r, s, *, base: us = 9000.0):
    return base
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a program and a configuration, where commands are typed."""
    (tmp_path / "mine.py").write_text(MINE)
    write(tmp_path, ONE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def search(out: str, budget: int, *more: str) -> list[object]:
    return ["run", "--config", "tiny.yaml", "--budget", budget, "--workers", 1, "--quiet", "--out", out, *more]


def seeds_of(run: RunFolder) -> list[str]:
    return [o.proposal.operator for o in run.outcomes() if o.proposal.operator.startswith("seed:")]


def test_own_programs_come_before_the_shipped_ones(folder: Path) -> None:
    shipped = [f"seed:{name}" for name, _ in seed_texts()]
    assert evolve(*search("first", 3, "--start", "mine.py")) == 0
    run = open_run(folder / "first")
    assert seeds_of(run)[:3] == ["seed:mine", *shipped[:2]]
    assert (first := run.outcomes()[0].elite) and "decode * b.decode_reqs" in first.text
    # a program of a run starts another one, and alone if that is wanted
    number = run.outcomes()[0].proposal.id
    assert evolve(*search("second", 2, "--start", f"first:{number}", "--start", "mine.py", "--only-start")) == 0
    again = open_run(folder / "second")
    assert seeds_of(again)[:2] == [f"seed:first-{number}", "seed:mine"]
    assert again.config.search.only_start


def test_a_resumed_search_keeps_the_text_that_it_began_with(folder: Path) -> None:
    assert evolve(*search("whole", 3, "--start", "mine.py", "--only-start")) == 0
    whole = (folder / "whole" / "journal.jsonl").read_bytes()
    (folder / "mine.py").write_text(MINE.replace("decode_reqs", "batch_size"))
    (folder / "whole" / "journal.jsonl").write_bytes(b"")
    (folder / "whole" / "report.json").unlink()
    assert evolve("resume", "whole", "--workers", 1, "--quiet") == 0
    assert (folder / "whole" / "journal.jsonl").read_bytes() == whole


def test_a_configuration_can_name_programs(folder: Path) -> None:
    write(folder, ONE, search="{finalists: 0, start: [mine.py, floor], only_start: true}")
    assert evolve(*search("run", 2)) == 0
    # the shipped `floor` is among those left out, so its name would be free, but it still tells the two apart
    assert seeds_of(open_run(folder / "run")) == ["seed:mine", "seed:floor-2"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--only-start"], "--only-start leaves no program to start from: name one with --start"),
        (["--start", "none.py"], "none.py: cannot be read"),
        (["--start", "mine.py", "--max-constants", "1"], "constants"),
        (
            ["--start", "narrow.py"],
            "narrow.py: step_time: bounds [0.9, 1.1] give the value of kv within a factor of 10",
        ),
        (["--start", "made.py"], "made.py: the formulas come to the number 4, and only 0, 1, 2 and 0.5 may be fixed: "),
    ],
)
def test_what_cannot_be_started_from_is_one_line(folder: Path, capsys: Capsys, more: list[str], says: str) -> None:
    (folder / "narrow.py").write_text("def step_time(b, s, *, kv: one[0.9, 1.1] = 1): return kv * b.kv_read_us")
    (folder / "made.py").write_text("def step_time(b, s): return 2 * 2 * b.kv_read_us")
    assert says in refused(capsys, *search("run", 5, *more)) and not (folder / "run").exists()
