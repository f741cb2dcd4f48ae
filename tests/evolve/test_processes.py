"""How many processes there are, and how one is prepared for linear algebra."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

from evolve import processes


@pytest.mark.skipif(not processes.has_avx2(), reason="nothing is chosen for this processor")
@pytest.mark.parametrize(
    "code, expected",
    [
        ("processes.settle()", "True Haswell"),
        ("processes.settle(); import numpy; processes.settle()", "True Haswell"),
        ("import numpy; processes.settle(); processes.settle()", "False Haswell"),  # workers are settled all the same
        ("os.environ['OPENBLAS_CORETYPE'] = 'Zen'; import numpy; processes.settle()", "True Zen"),  # the user's choice
    ],
)
def test_a_process_knows_whether_it_was_prepared_in_time(code: str, expected: str) -> None:
    code = f"""
import os
os.environ.pop("OPENBLAS_CORETYPE", None)
from evolve import processes
{code}
print(processes.settled(), os.environ["OPENBLAS_CORETYPE"])
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert out.stdout.strip() == expected


@pytest.mark.parametrize(
    "group, limits, workers",
    [
        ("0::/", {"memory.max": 1 << 30}, 1),  # a container, version 2: it sees its own group as the root
        ("0::/", {"memory.max": "max"}, 8),
        ("0::/a/b", {"a/memory.max": 1500 << 20, "a/b/memory.max": "max"}, 2),  # (1500 - 400) / 450
        ("7:memory:/docker/1", {"memory/memory.limit_in_bytes": 2 << 30}, 3),  # version 1, seen from inside
        ("7:memory:/s\n0::/s", {"memory/s/memory.limit_in_bytes": 100 << 20, "s/memory.max": "max"}, 1),
        ("3:cpu:/s", {"cpu/s/memory.limit_in_bytes": 1 << 30}, 8),  # no group of memory
        (None, {}, 8),  # not Linux
    ],
)
def test_a_container_gets_as_many_workers_as_its_memory_has_room_for(
    group: str | None, limits: dict[str, object], workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes.os, "sched_getaffinity", lambda pid: range(8), raising=False)
    monkeypatch.setattr(processes.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1 << 24}.__getitem__)
    files = {f"sys/fs/cgroup/{name}": limit for name, limit in limits.items()}
    for name, text in (files | ({"proc/self/cgroup": group} if group else {})).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert processes.default_workers(tmp_path) == workers
