"""A copy of the host built, vetted, formatted and tested with the user's own Go settings."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from simulator.common.errors import InputError
from translate_go.toolchain import find_go

LIMIT_S = 3600  # seconds for one call
STEPS = (("build", "./..."), ("vet", "./..."), ("test", "./sim/...", "./cmd/..."))
_FAILED = re.compile(r"^--- FAIL: (\S+)|^FAIL\t(\S+)", re.MULTILINE)


def run_go(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `go` in the tree; its output and errors are one text. Raises InputError without a toolchain."""
    executable = find_go()
    if executable is None:
        raise InputError("--into needs a Go toolchain: put go on PATH, or .venv/bin/pip install 'evolve-latency[go]'")
    return _run(tree, executable, *arguments)


def failures(output: str) -> frozenset[str]:
    """The tests and packages that fail in the output of `go test`."""
    return frozenset(test or package for test, package in _FAILED.findall(output))


def unformatted(tree: Path, paths: Iterable[str]) -> tuple[str, ...]:
    """The files of these that gofmt would change."""
    return tuple(_gofmt(tree, "-l", paths).splitlines())


def format_files(tree: Path, paths: Iterable[str]) -> None:
    """Write these files as gofmt does."""
    _gofmt(tree, "-w", paths)


def _gofmt(tree: Path, action: str, paths: Iterable[str]) -> str:
    listed = sorted(path for path in paths if path.endswith(".go"))
    own = Path(run_go(tree, "env", "GOROOT").stdout.strip()) / "bin" / "gofmt"
    executable = str(own) if own.exists() else shutil.which("gofmt")
    if executable is None:
        raise InputError("--into needs gofmt, which belongs to a Go toolchain: put it on PATH")
    ran = _run(tree, executable, action, *listed) if listed else None
    if ran and ran.returncode:
        raise InputError(f"gofmt {action} fails: {' '.join(ran.stdout.split())}")
    return ran.stdout if ran else ""


def _run(tree: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace",
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
