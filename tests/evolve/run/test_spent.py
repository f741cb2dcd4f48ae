"""CPU seconds of assessments are read back, also after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from evolve.run.spent import FILE, Spent, read_spent


def test_cpu_seconds_are_read_back(tmp_path: Path) -> None:
    spent = Spent(tmp_path)
    spent.add(3, 0.25)
    assert read_spent(tmp_path) == {3: 0.25}  # while the file is still open
    spent.close()


def test_a_run_of_an_older_release_has_none(tmp_path: Path) -> None:
    assert read_spent(tmp_path) == {}


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("proposal,cpu_s\n1,0.5\n2")
    spent = Spent(tmp_path)  # as a resumed search opens it
    spent.add(2, 0.75)
    spent.close()
    assert read_spent(tmp_path) == {1: 0.5, 2: 0.75}


def test_the_last_assessment_of_a_proposal_counts(tmp_path: Path) -> None:
    spent = Spent(tmp_path)
    spent.add(1, 0.5)
    spent.add(1, 0.25)
    spent.close()
    assert read_spent(tmp_path) == {1: 0.25}


def test_the_error_of_a_full_disk_names_the_file(tmp_path: Path) -> None:
    (tmp_path / FILE).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        Spent(tmp_path)
    assert caught.value.filename == str(tmp_path / FILE)
