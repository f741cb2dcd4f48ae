"""`evolve emit`: a program as Go files in a folder, and whether they build and agree."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from evaluator.deployments import Known, measured_deployments, named_deployment
from evaluator.experiments import bundled_experiments
from evaluator.judge.gates import complaints, deployments_of
from evolve import __version__
from evolve.report.progress import Line
from evolve.run.program import Source
from simulator.errors import InputError
from simulator.experiment.experiment import Experiment
from simulator.language.ir import Program
from simulator.language.key import key
from translate_go import Deployment, benchmark, build_and_test, compare_deployments, emit, find_go, write
from translate_go.agreement import Agreement
from translate_go.deployment import EXAMPLE
from translate_go.target import reads_kernels
from translate_go.vectors import tolerance

BATCHES = 10_000  # random batches of a check, drawn with SEED
SEED = 1


def of_experiment(experiment: Experiment) -> Deployment:
    """The deployment that an experiment ran on."""
    return Deployment(experiment.id, experiment.facts, experiment.model, experiment.hardware)


def of_names(model: str, hardware: str, tp: int, option: str = "") -> Deployment:
    """A known model on a known GPU with the engine's defaults. Raises InputError for an unknown name."""
    return _of_known(named_deployment(model, hardware, tp, option))


def _of_known(known: Known) -> Deployment:
    return Deployment(known.name, known.facts, known.model, known.hardware)


def of_text(text: str) -> Deployment:
    """The deployment that `MODEL,HARDWARE` or `MODEL,HARDWARE,TP` names. Raises InputError for anything else."""
    parts = [part.strip() for part in text.split(",")]
    tp = parts[2] if len(parts) == 3 else "1"
    if len(parts) not in (2, 3) or not all(parts) or not (tp.isascii() and tp.isdigit() and int(tp) > 0):
        raise InputError(f"--deployment {text}: is not MODEL,HARDWARE,TP: for example llama-2-7b,H100-SXM-80GB,1")
    return of_names(parts[0], parts[1], int(tp), f"--deployment {text}")


def provenance(source: Source) -> tuple[str, ...]:
    """Header lines: what the program is, what it was fitted on and what it reached there."""
    lines = [f"Program {source.name}, key {key(source.complete)}, emitted by engine {__version__}."]
    record = source.record
    if record is None:
        return (*lines, "No record of what it was fitted on.")
    errors = record["errors_pct"]
    width = max(map(len, errors), default=0)
    lines += [
        f"Fitted {record['date']} by engine {record['engine']} on data {record['data']}.",
        "Signed errors of the means there, percent:",
        f"  {'':{width}}     E2E    TTFT     ITL",
    ]
    for name, row in errors.items():
        figures = " ".join(f"{'-' if row[x] is None else format(row[x], '+.1f'):>7}" for x in ("e2e", "ttft", "itl"))
        lines.append(f"  {name:{width}} {figures}")
    return tuple(lines)


def emit_to(source: Source, target: str, out: Path, deployments: Sequence[Deployment], verify: bool) -> int:
    """Write the Go files to `out`; with `verify` check them. Returns the exit status.

    Without deployments a program that reads measured kernels gets all `measured_deployments`. Raises InputError if
    `out` cannot be written or holds a file of one of these names that was not emitted.
    """
    program = source.complete
    if not deployments and reads_kernels(program):
        deployments = [_of_known(known) for known in measured_deployments()]
    files = emit(program, target=target, deployments=deployments, provenance=provenance(source))
    write(files, out)
    print(f"{out}: {', '.join(sorted(files))}")
    if len(deployments) > 1:
        print(f"{len(deployments)} deployments")
    here = {d.name: d.facts for d in deployments} or deployments_of(bundled_experiments())
    refused = complaints(program, here)
    for warning in (*refused, *source.assumed):
        print(f"evolve: warning: {warning}", file=sys.stderr)
    if not verify:
        return 0
    ok = _check(program, files, target, deployments)
    if refused:
        print("check: gates: refused, see the warning")
    return 0 if ok and not refused else 1


def _check(program: Program, files: Mapping[str, str], target: str, deployments: Sequence[Deployment]) -> bool:
    """Whether the files build, pass and agree with the interpreter; says what was found, a line for each."""
    if find_go() is None:
        print("check: failed: there is no Go toolchain: put go on PATH, or pip install evolve-latency[go]")
        return False
    progress = Line()
    with tempfile.TemporaryDirectory() as folder:
        progress.show("check: gofmt, go vet, go test ...")
        checked = build_and_test(files, Path(folder), target=target)
        if not checked.ok:
            progress.close()
            print(f"check: gofmt, go vet, go test: failed\n{checked.log.rstrip()}")
            return False
        progress.show("check: benchmark ...")
        timing = benchmark(Path(folder))
    progress.show(f"check: {BATCHES:,} random batches ...")
    here = deployments or [Deployment("example", EXAMPLE)]
    found = compare_deployments(program, here, BATCHES, SEED, target=target)
    progress.close()
    print("check: gofmt, go vet, recorded batches and prompts: ok")
    ok = _print_agreement(found, tolerance(program))
    print(f"check: StepTime of a batch of 128: {timing.ns:,.0f} ns/op, {timing.allocs} allocs/op")
    return ok


def _print_agreement(found: Agreement, tolerance_us: int) -> bool:
    """Whether Go agrees with the interpreter to within the tolerance, and the lines that say so."""
    print(f"check: times equal to Python's, {BATCHES:,} random batches among them: {found.equal:,} of {found.times:,}")
    if tolerance_us == 0:
        print(f"check: step times equal to the last bit: {found.same_bits:,} of {found.steps:,}")
    else:
        share = 100 * found.off_by_one / found.times
        print(f"check: off by one: {found.off_by_one:,} of {found.times:,} times ({share:.2f} %)")
    if found.within(tolerance_us):
        return True
    print(f"check: failed: further off than {tolerance_us} us, the furthest: {found.worst}")
    return False
