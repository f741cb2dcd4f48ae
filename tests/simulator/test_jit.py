"""Compilation is told of when it happens, and only then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest
from paths import ROOT

from evolve.output.progress import tell_compilation
from simulator.common.jit import COMPILING

SCRIPT = """
from simulator.common.jit import njit, on_first_compilation

on_first_compilation(lambda: print("compiling"))

@njit
def one(x):
    return x + 1

@njit
def two(x):
    return x + 2

print(one(1), two(1))
"""


def test_what_is_cached_is_not_told_of(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    printed = [
        subprocess.run(
            [sys.executable, str(tmp_path / "script.py")], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert printed == ["compiling\n2 3\n", "2 3\n"]


@pytest.mark.parametrize(("terminal", "quiet"), [(True, False), (True, True), (False, False)])
def test_a_terminal_is_told_once_unless_quiet(
    terminal: bool, quiet: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    numba.njit(lambda x: x + 2)(1)  # whoever in this process waits for a compilation is served
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    tell_compilation(lambda: quiet)
    for _ in range(2):
        assert numba.njit(lambda x: x + 3)(1) == 4
    assert capsys.readouterr().err == (f"{COMPILING} ...\n" if terminal and not quiet else "")
