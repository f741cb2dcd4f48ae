"""CPU seconds of assessments are read back, also after a crash."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from commands import room_for

from evolve.run.spent import FILE, Spent, read_spent


def test_cpu_seconds_are_read_back(tmp_path: Path) -> None:
    assert read_spent(tmp_path) == {}  # a run of an older release has none
    with closing(Spent(tmp_path)) as spent:
        spent.add(3, 0.25)
        assert read_spent(tmp_path) == {3: 0.25}  # while the file is still open
        spent.add(3, 0.5)
    assert read_spent(tmp_path) == {3: 0.5}  # the last assessment of a proposal counts


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("proposal,cpu_s\n1,0.5\n2")
    with closing(Spent(tmp_path)) as spent:  # as a resumed search opens it
        spent.add(2, 0.75)
    assert read_spent(tmp_path) == {1: 0.5, 2: 0.75}


def test_the_error_of_a_full_disk_names_the_file(tmp_path: Path) -> None:
    with room_for(0), pytest.raises(OSError, match="File too large") as caught:
        Spent(tmp_path)
    assert caught.value.filename == str(tmp_path / FILE)
