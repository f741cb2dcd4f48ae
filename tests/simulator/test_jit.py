"""Compilation is told of when it happens, and only then."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import numba
import pytest
from paths import ROOT

from evolve.output.progress import tell_compilation
from simulator.common import jit
from simulator.common.jit import COMPILING
from simulator.serving import model

SCRIPT = """
from simulator.common.jit import njit, on_compilation

on_compilation(lambda loss: print(loss or "compiling"))

@njit
def one(x):
    return x + 1

@njit
def two(x):
    return x + 2

print(one(1), two(1))
"""


def test_what_is_cached_is_not_told_of(tmp_path: Path) -> None:
    assert [printed(tmp_path, tmp_path / "cache") for _ in range(2)] == ["compiling\n2 3\n", "2 3\n"]


def printed(tmp_path: Path, cache: Path, before: str = "") -> str:
    """What SCRIPT prints with this cache folder."""
    (tmp_path / "script.py").write_text(before + SCRIPT)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(tmp_path / "script.py")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


NO_ROOM = """
from numba.core.caching import IndexDataCacheFile
def full(*_):
    raise OSError(28, "No space left on device")
IndexDataCacheFile.save = full
"""


def test_without_room_code_is_compiled_all_the_same(tmp_path: Path) -> None:
    compiled, loss, result = printed(tmp_path, tmp_path / "cache", NO_ROOM).splitlines()
    assert (compiled, result) == ("compiling", "2 3") and str(tmp_path / "cache") in loss
    loss, result = printed(tmp_path, Path("/dev/null/cache")).splitlines()
    assert result == "2 3" and "/dev/null/cache" in loss


def test_a_cache_file_that_was_cut_is_written_again(tmp_path: Path) -> None:
    whole = printed(tmp_path, tmp_path / "cache")
    for file in (tmp_path / "cache").rglob("*.nb?"):
        file.write_bytes(file.read_bytes()[: 10 if file.suffix == ".nbc" else 0])
    assert [printed(tmp_path, tmp_path / "cache") for _ in range(2)] == [whole, "2 3\n"]


def test_compiled_code_comes_from_a_folder_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, shared = tmp_path / "home", tmp_path / "tmp"
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")  # the same as unset
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    shared.mkdir()
    folder = Path(jit._cache_folder())
    assert folder.parent == home / "evolve-latency"
    assert [stat.S_IMODE(each.stat().st_mode) for each in (folder, folder.parent)] == [0o700, 0o700]
    in_tmp = shared / f"evolve-latency-{os.geteuid()}" / folder.name
    for loose in (folder, folder.parent):
        loose.chmod(0o777)
        assert jit._cache_folder() == str(in_tmp)
        loose.chmod(0o700)
    folder.parent.rename(home / "kept")
    folder.parent.symlink_to(home / "kept")
    assert jit._cache_folder() == str(in_tmp)
    in_tmp.parent.chmod(0o770)
    monkeypatch.setattr(jit, "_loss", "")
    assert jit._cache_folder() == "" and str(in_tmp.parent) in jit._loss
    in_tmp.parent.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)  # another user made the folders
    assert jit._cache_folder() == ""


def test_a_user_without_a_home_has_no_models_and_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("XDG_CONFIG_HOME", "EVOLVE_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert model.folder() == Path("/.config/evolve/models")


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
