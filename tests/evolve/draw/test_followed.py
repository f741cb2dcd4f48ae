"""A run is followed while its journal grows, is torn, cut, replaced, damaged or deleted; nothing is written into it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tiny_world
from seen import by_id, seen

from archive.journal import Damaged, Journal, Replaced, Tail, read_journal
from evolve.draw.view.document import run_json
from evolve.draw.view.followed import BEFORE, GONE, Followed
from evolve.run.lock import lock, locked
from simulator.common.errors import InputError


@pytest.fixture
def growing(tiny_run: Path, tmp_path: Path) -> tuple[Path, list[bytes]]:
    """A run without its report and with an empty journal, and the lines that are to come."""
    run = tiny_world.copy(tiny_run, tmp_path)
    (run / "report.json").unlink()
    lines = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (run / "journal.jsonl").write_bytes(b"")
    return run, lines


def append(run: Path, data: bytes) -> None:
    with (run / "journal.jsonl").open("ab") as file:
        file.write(data)


def test_a_growing_journal_gives_the_same_document_as_the_whole_one(growing: tuple[Path, list[bytes]]) -> None:
    run, lines = growing
    followed, versions = Followed(run), set()
    whole = b"".join(lines)
    for start in range(0, len(whole), 7001):  # most parts end in the middle of a line
        append(run, whole[start : start + 7001])
        followed.refresh()
        versions.add(followed.version)
        complete = (run / "journal.jsonl").read_bytes().count(b"\n")
        assert len(followed.story.rows) == complete
    assert run_json(followed) == run_json(Followed(run)) and len(versions) > 5
    before = followed.version
    followed.refresh()
    assert followed.version == before


def test_long_journals_are_read_in_parts(growing: tuple[Path, list[bytes]], monkeypatch: pytest.MonkeyPatch) -> None:
    run, lines = growing
    append(run, b"".join(lines))
    monkeypatch.setattr("archive.journal._AT_ONCE", 3 * len(lines[0]))
    tail, parts = Tail(run / "journal.jsonl"), []
    while part := tail.read():
        parts.append(part)
    assert len(parts) > 3 and [entry for part in parts for entry in part] == read_journal(run / "journal.jsonl")
    monkeypatch.setattr("archive.journal._AT_ONCE", 10)  # less than a line
    assert Tail(run / "journal.jsonl").read()


def test_a_tail_notices_what_is_no_longer_the_journal_it_read(growing: tuple[Path, list[bytes]]) -> None:
    run, lines = growing
    path = run / "journal.jsonl"
    append(run, b"".join(lines[:4]))
    tail = Tail(path)
    tail.read()
    append(run, lines[5])  # without the line before it
    with pytest.raises(Damaged, match=r"journal.jsonl:5: not the line that was written here"):
        tail.read()
    path.write_bytes(b"".join(lines[:2]))
    with pytest.raises(Replaced):
        tail.read()
    path.unlink()
    with pytest.raises(FileNotFoundError):
        tail.read()
    shutil.copy(run / "run.json", path)  # another file under the same name
    with pytest.raises(ValueError):
        tail.read()


def test_a_run_that_is_taken_back_is_told_again(growing: tuple[Path, list[bytes]]) -> None:
    run, lines = growing
    append(run, b"".join(lines))
    followed = Followed(run)
    (run / "journal.jsonl").write_bytes(b"".join(lines[:12]))  # as `evolve resume --to 12` does
    followed.refresh()
    assert run_json(followed) == run_json(Followed(run)) and len(followed.story.rows) == 12 and followed.notes == []


def test_damage_is_named_and_what_was_read_before_stays(growing: tuple[Path, list[bytes]]) -> None:
    run, lines = growing
    append(run, b"".join(lines[:9]))
    followed = Followed(run)
    before = by_id(run_json(followed))
    append(run, b'{"kind":"outcome","id":9}\n')
    followed.refresh()
    assert by_id(run_json(followed)) == before
    assert followed.notes == [f"{run}/journal.jsonl:10: the line has lost its check: it was changed or added; {BEFORE}"]
    (run / "journal.jsonl").write_bytes(b"".join(lines))
    followed.refresh()
    assert followed.notes == [] and len(followed.story.rows) == len(lines)


def test_a_deleted_run_is_shown_as_it_was(growing: tuple[Path, list[bytes]]) -> None:
    run, lines = growing
    append(run, b"".join(lines))
    followed = Followed(run)
    before = by_id(run_json(followed))
    shutil.rmtree(run)
    followed.refresh()
    assert by_id(run_json(followed)) == before
    assert followed.notes == [GONE] and followed.state == "stopped"
    followed.refresh()
    assert followed.notes == [GONE]


def test_the_states_of_a_search(growing: tuple[Path, list[bytes]], tiny_run: Path) -> None:
    run, lines = growing
    followed = Followed(run)
    assert followed.state == "stopped" and followed.champion is None
    with lock(run):
        append(run, b"".join(lines))
        followed.refresh()
        assert followed.state == "running" and locked(run)
    followed.refresh()
    assert followed.state == "stopped" and not locked(run)  # killed: its lock is gone with it
    shutil.copy(tiny_run / "report.json", run)
    followed.refresh()
    assert followed.state == "finished" and followed.report


def test_nothing_is_written_into_the_run(tiny_run: Path, tmp_path: Path) -> None:
    run = tiny_world.copy(tiny_run, tmp_path)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in [run, *run.rglob("*")]}
    followed = Followed(run)
    followed.refresh()
    run_json(followed)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in [run, *run.rglob("*")]} == before


def test_a_damaged_journal_is_refused_at_first_as_by_other_commands(growing: tuple[Path, list[bytes]]) -> None:
    run, lines = growing
    append(run, lines[0] + lines[2])
    with pytest.raises(
        InputError, match=r"journal.jsonl:2: .*restore the file from a copy, or go on from the last good"
    ):
        Followed(run)
    (run / "journal.jsonl").write_bytes(b'{"kind": "outcome", "id": 0}\n')  # of an older release, without a check
    with pytest.raises(InputError, match="cannot read"):
        Followed(run)
    (run / "journal.jsonl").unlink()
    with pytest.raises(InputError, match="is missing"):
        Followed(run)


def test_lines_of_older_releases_are_read(growing: tuple[Path, list[bytes]], tmp_path: Path) -> None:
    run, _ = growing
    assert seen(run)["totals"]["proposals"] == 0
    journal = Journal(run / "journal.jsonl")
    journal.append([])
    journal.close()
    line = '{"id":0,"island":null,"operator":"seed:a","parents":[],"verdict":"rejected","stage":"units","why":"w","text":"t"}'
    append(run, line.encode() + b"\n")
    assert by_id(seen(run))[0]["stage"] == "units"
