"""Grid, Pareto front, champion and journal: order, ties, and what a crash leaves behind."""

from __future__ import annotations

import json
import lzma
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from elites import dominates, elite

from archive.champion import Rule, champion, finalists
from archive.elite import UNMEASURED, Elite
from archive.grid import Added, Grid
from archive.journal import Damaged, Journal, Tail, cut, read_journal, unchecked
from archive.pareto import fitness, ranks
from archive.score import Errors
from simulator.common.json import JsonObject

MEAN = Rule("mean_error")


def test_an_inconsistent_program_comes_after_every_consistent_one() -> None:
    plain, better = elite(1), elite(2, worst3=1.0, mean_error=1.0, consistent=False)
    assert not dominates(better, plain) and not dominates(plain, better)
    assert dominates(elite(3), replace(plain, consistent=False))
    order = fitness([better, plain])
    assert order[1] < order[0]
    grid = Grid()
    assert [grid.add(better), grid.add(plain), grid.add(better)] == [Added.NEW, Added.BETTER, Added.NOT]


def test_ranks_prefer_the_first_front_and_the_less_crowded() -> None:
    points = [(0.0, 4.0, 1.0), (1.0, 3.0, 1.0), (1.1, 2.9, 1.0), (4.0, 0.0, 1.0), (5.0, 5.0, 2.0)]
    found = ranks(points)
    assert [r[0] for r in found] == [0, 0, 0, 0, 1]
    assert found[0][1] == found[3][1] == float("-inf")  # the ends of the front are never crowded
    assert found[1] > found[0] and found[4] > found[1]


def test_grid_keeps_the_lowest_mean_error_and_the_earlier_on_ties() -> None:
    grid = Grid()
    assert grid.add(elite(0, mean_error=3.0)) is Added.NEW
    assert grid.add(elite(1, mean_error=3.0)) is Added.NOT
    assert grid.add(elite(2, mean_error=2.0)) is Added.BETTER
    assert [e.id for e in grid.cells.values()] == [2]


def test_champion_is_the_simplest_consistent_one_near_the_best() -> None:
    good = elite(1, mean_error=2.0, operations=20)
    near = elite(2, mean_error=2.09, operations=8)  # within 5 % and simpler
    far = elite(3, mean_error=2.2, operations=1)  # simplest, but beyond 5 %
    one_above = (Errors("a", 10.1, 0.0, 0.0),)  # percent E2E
    beyond = elite(4, mean_error=0.5, operations=2, rows=one_above)
    assert champion([good, near, far, beyond], MEAN) == near
    assert champion([beyond, replace(beyond, id=5, score=replace(beyond.score, mean_error=0.4))], MEAN).id == 5  # type: ignore[union-attr]
    assert champion([], MEAN) is None
    assert champion([replace(near, consistent=False), far], MEAN) == far


def test_left_out_and_fitted_errors_weigh_the_same() -> None:
    fitted, general = elite(1, mean_error=1.0, group_out=6.0), elite(2, mean_error=2.0, group_out=3.0)
    assert champion([fitted, general], Rule("group_out")) == general  # 2.5 against 3.5
    assert champion([fitted, general], MEAN) == fitted
    unknown = elite(3, mean_error=0.1)
    assert unknown.objectives[3] == UNMEASURED and champion([general, unknown], Rule("group_out")) == general
    assert champion([unknown], Rule("group_out")) == unknown  # where nothing could be left out, the mean error decides


def test_finalists_are_champions_of_the_rest() -> None:
    pool = [elite(i, mean_error=mean_error, operations=20 - i) for i, mean_error in enumerate((2.0, 2.5, 3.5, 9.0))]
    assert [e.id for e in finalists(pool, MEAN, 3)] == [0, 1, 2]
    assert finalists(pool, MEAN, 0) == [] and len(finalists(pool, MEAN, 9)) == 4
    assert finalists(pool, MEAN, 1) == [champion(pool, MEAN)]


def test_elite_survives_json() -> None:
    e = elite(7)
    assert Elite.from_json(json.loads(json.dumps(e.to_json()))) == e


def test_journal_tolerates_a_torn_last_line_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append([{"id": i} for i in range(3)])
    journal.close()
    whole = path.read_bytes()
    for size in range(len(whole) - 8, len(whole)):
        path.write_bytes(whole[:size])
        assert read_journal(path) == [{"id": 0}, {"id": 1}]
        again = Journal(path)
        again.append([{"id": 2}])
        again.close()
        assert path.read_bytes() == whole


def written(path: Path, count: int) -> list[bytes]:
    """The lines, with their newlines, of a journal with this many entries."""
    journal = Journal(path)
    journal.append([{"id": i, "mean_error": 1.25} for i in range(count)])
    journal.close()
    return path.read_bytes().splitlines(keepends=True)


DAMAGE: dict[str, tuple[Callable[[list[bytes]], list[bytes]], int]] = {  # what happens to 6 lines, and the line named
    "removed": (lambda lines: lines[:2] + lines[3:], 3),
    "first removed": (lambda lines: lines[1:], 1),
    "repeated": (lambda lines: lines[:3] + lines[2:], 4),
    "swapped": (lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]], 3),
    "digit changed": (lambda lines: [*lines[:4], lines[4].replace(b"1.25", b"1.26"), lines[5]], 5),
    "last changed": (lambda lines: [*lines[:5], lines[5].replace(b"1.25", b"1.26")], 6),
    "check changed": (lambda lines: [*lines[:1], lines[1][:-4] + b'x"}\n', *lines[2:]], 2),
    "check removed": (lambda lines: [*lines[:1], lines[1].split(b',"check"')[0] + b"}\n", *lines[2:]], 2),
    "added": (lambda lines: [*lines[:3], b'{"id":9}\n', *lines[3:]], 4),
    "cut": (lambda lines: [*lines[:3], lines[3][:9] + b"\n", *lines[4:]], 4),
    "zeros": (lambda lines: [*lines[:3], b"\0" * 99 + b"\n", *lines[4:]], 4),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_journal_names_the_line_that_is_not_as_it_was_written(what: str, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    change, line = DAMAGE[what]
    path.write_bytes(b"".join(change(written(path, 6))))
    for opened in (read_journal, Journal):
        with pytest.raises(Damaged, match=rf"journal.jsonl:{line}: ") as raised:
            opened(path)
        assert raised.value.good == line - 1
    kept = cut(path, line - 1)
    assert kept and kept.name == f"journal.after-{line - 1}.jsonl"
    assert [entry["id"] for entry in read_journal(path)] == list(range(line - 1))
    written(path, 1)  # the chain goes on
    assert len(read_journal(path)) == line


def test_journal_of_an_older_release_is_read_unchecked_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"id":0}\n{"id":1}\n')
    assert len(read_journal(path)) == unchecked(path) == 2
    lines = written(path, 2)
    assert (len(read_journal(path)), unchecked(path)) == (4, 2)
    path.write_bytes(b"".join(lines[1:]))  # the lines after it vouch for the old ones
    with pytest.raises(Damaged, match=r"journal.jsonl:2: "):
        read_journal(path)


def test_a_cut_journal_keeps_what_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    lines = written(path, 5)
    kept = [cut(path, good) for good in (3, 3, 2)]
    assert [file and file.name for file in kept] == ["journal.after-3.jsonl", None, "journal.after-2.jsonl"]
    assert (tmp_path / "journal.after-3.jsonl").read_bytes() == b"".join(lines[3:])
    written(path, 3)
    again = cut(path, 2)
    assert again and again.name == "journal.after-2.2.jsonl"
    with pytest.raises(ValueError, match="has 2 lines only"):
        cut(path, 3)


def test_journal_damaged_before_its_end_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for bad in (b'{"id":', b"[1]", b"[" * 20_000):
        path.write_bytes(b'{"id":0}\n' + bad + b'\n{"id":2}\n')
        with pytest.raises(Damaged, match=r"journal.jsonl:2: not a JSON object"):
            read_journal(path)


def test_journals_have_limits_packed_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, packed = tmp_path / "journal.jsonl", tmp_path / "journal.jsonl.xz"
    lines = written(path, 30)
    packed.write_bytes(lzma.compress(path.read_bytes()))
    whole = read_journal(path)
    assert read_journal(packed) == whole and len(whole) == 30
    monkeypatch.setattr("archive.journal.MOST_BYTES", max(map(len, lines)))
    assert read_journal(path) == whole and unchecked(path) == 0
    monkeypatch.setattr("archive.journal._AT_ONCE", 10)

    def followed(path: Path) -> list[JsonObject]:
        tail = Tail(path)
        return [entry for _ in lines for entry in tail.read()]

    assert followed(path) == whole
    with pytest.raises(ValueError, match=r"journal.jsonl.xz: more than 0 MiB of journal"):
        read_journal(packed)
    monkeypatch.setattr("archive.journal.MOST_BYTES", max(map(len, lines)) - 1)
    for read in (read_journal, Journal, followed):
        with pytest.raises(ValueError, match=r"journal.jsonl: more than 0 MiB of a line of a journal"):
            read(path)


@pytest.mark.parametrize("lost", ["deleted", "moved", "replaced"])
def test_journal_does_not_write_to_a_file_that_is_gone(lost: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    journal = Journal(folder / "journal.jsonl")
    journal.append([{"id": 0}])
    if lost == "moved":
        folder.rename(tmp_path / "elsewhere")
    else:
        (folder / "journal.jsonl").unlink()
        if lost == "replaced":
            (folder / "journal.jsonl").touch()
    with pytest.raises(OSError, match=r"journal\.jsonl"):
        journal.append([{"id": 1}])
    journal.close()


def test_journal_names_itself_when_it_cannot_grow(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append([{"id": 0}])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large.*journal\.jsonl"):
            journal.append([{"id": 1}])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    journal.close()
    assert read_journal(path) == [{"id": 0}]  # what was written in part is a torn line


def test_journal_refuses_nan(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    with pytest.raises(ValueError):
        journal.append([{"mean_error": float(np.nan)}])
    journal.close()
