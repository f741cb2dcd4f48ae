"""Does the emitted Go build, is it clean, does it pass its own tests, and how long does a step's estimate take?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from translate_go.gotest import BENCHMARK
from translate_go.toolchain import go, gofmt, write_module

TIMED = ("-benchtime=100ms", "-count=5")  # short runs, so that one of them has the processor to itself


@dataclass(frozen=True)
class Checked:
    """Whether gofmt, vet and test all passed, and what they said."""

    ok: bool
    log: str


@dataclass(frozen=True)
class Timing:
    """One call of StepTime for the batch of the emitted benchmark: nanoseconds in the fastest of a few runs, and
    allocations on the heap."""

    ns: float
    allocs: int


def build_and_test(files: Mapping[str, str], workdir: Path, *, target: str, token_type: str | None = None) -> Checked:
    """Put emitted files beside a stand-in for the host in `workdir` and run gofmt -l, go vet and go test there.

    Names may have a folder (`a/evolved.go`), so that one call can check many programs. Raises InputError without a
    toolchain.
    """
    write_module(files, workdir, target, token_type)
    badly = gofmt(workdir)
    steps = [badly] if badly.returncode or badly.stdout else []
    for action in ("vet", "test"):
        done = go(workdir, action, "./sim/...")
        steps += [done] if done.returncode else []
    log = "".join(f"{' '.join(map(str, s.args))}:\n{s.stdout}{s.stderr}" for s in steps)
    return Checked(not steps, log)


def benchmark(workdir: Path) -> Timing:
    """Run the benchmark of the program that `build_and_test` put into `workdir`.

    Raises InputError without a toolchain, RuntimeError if the benchmark fails.
    """
    ran = go(workdir, "test", "-run=^$", f"-bench=^{BENCHMARK}$", "-benchmem", *TIMED, "./sim/latency")
    found = re.findall(rf"^{BENCHMARK}\S*\s+\d+\s+(\S+) ns/op\s+\d+ B/op\s+(\d+) allocs/op", ran.stdout, re.MULTILINE)
    if ran.returncode or not found:
        raise RuntimeError(f"the benchmark of the emitted Go fails:\n{ran.stdout}{ran.stderr}")
    return Timing(min(float(ns) for ns, _ in found), max(int(allocs) for _, allocs in found))
