"""`evolve emit`: a program as Go files in a folder, and the check that they build and agree with the interpreter."""

from __future__ import annotations

import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evaluator.judge.gates import complaints, deployments_of
from evaluator.metrics import mean_abs
from evaluator.score import MEANS
from evolve import __version__
from evolve.calibrate.coefficients import has_coefficients
from evolve.host.deployments import host_deployments, known_host, of_known
from evolve.output.columns import figures, words
from evolve.output.printing import plain, prose
from evolve.output.progress import Line
from evolve.output.table import Table
from evolve.output.terminal import say, warn
from evolve.run.program import Source
from evolve.run.ranges import Ranges, described
from evolve.run.records import Record
from evolve.run.trust import CLASSES, trust_of
from simulator.clock.bind import Deployments
from simulator.language.complete import for_host
from simulator.language.ir import Program
from simulator.language.key import key
from simulator.serving.bundled import bundled_experiments
from simulator.serving.experiment import Experiment
from simulator.serving.facts import left_out
from simulator.serving.gpu import gpu_names
from simulator.serving.known import GPU, measured_deployments
from translate_go import Deployment, benchmark, build_and_test, compare_deployments, emit, find_go, write
from translate_go.agreement import Agreement
from translate_go.deployment import EXAMPLE
from translate_go.generic.known import Host
from translate_go.gotest import falling
from translate_go.kernel_host.files import Fit
from translate_go.naming import BackendName
from translate_go.target import HOSTS, EmitPlan, FittedRange, plan, reads_kernels
from translate_go.vectors import last_bit_decides, tolerance

BATCHES = 10_000  # random batches of a check, drawn with SEED
SEED = 1
LISTED = 24  # runs whose errors the header lists each
WIDTH = 110  # of a line in a comment, and in an indented block
TITLE = "Mean absolute errors of the means, percent of what was measured:"
IN_SAMPLE = "in sample: on the runs it was fitted on"
# kind of fold -> the runs that search and fit did not see
WITHOUT = {
    "cells": "the model on that GPU in that precision",
    "models": "the model",
    "workloads": "the workload",
    "tp": "the TP degree",
    "architectures": "dense models or mixtures of experts",
    "hardware": "the GPU type",
    "precisions": "the type of weights",
    "parallelism": "the kind of parallelism",
    "versions": "the engine version",
    "files": "the runs of the same file",
    "stages": "the last load stage",
}
NOTHING = "No run was held out from this fit: expect larger errors on other models, loads and GPUs."


@dataclass(frozen=True)
class Emitted:
    """A program as Go files, name -> text, in the folder `out`.

    deployments: those that it was judged for, and is compared on. refused: complaints of the gates on them. cautions:
    reasons not to rely on the program. host: the names that the Go knows, if it takes every model of the host and has
    no deployment.
    """

    plan: EmitPlan
    out: Path | None
    files: Mapping[str, str]
    deployments: tuple[Deployment, ...]
    refused: tuple[str, ...]
    cautions: tuple[str, ...]
    host: Host | None = None


def provenance(source: Source) -> tuple[str, ...]:
    """Header lines of the Go file: the program, the data it was fitted on, its errors there, and cautions."""
    lines = [f"Program {source.name}, key {key(source.complete)}, emitted by engine {__version__}."]
    record = source.record
    if record is None:
        return (*lines, "There is no record of a fit.")
    return (
        *lines,
        f"Fitted {record.date} by engine {record.engine} on data {record.data}.",
        *(_errors(record) if len(record.errors) <= LISTED else ()),
        *accuracy(source),
        *(f"Caution: {text}." for text in record.cautions),
    )


def _errors(record: Record) -> Iterator[str]:
    """The lines of a table of the errors of each run."""
    rows = [(r.experiment, r.e2e, r.ttft, r.itl) for r in record.errors]
    errors = Table.of("", [words(""), figures("+.1f", "E2E", "TTFT", "ITL")], rows)
    yield "Signed errors of the means there, percent:"
    yield from (f"  {line}" for line in plain(errors, least=(0, 7, 7, 7)).splitlines())


def accuracy(source: Source) -> tuple[str, ...]:
    """The lines of a table of errors, and the range of the fitted runs; none for a program without a record of them.

    For rows of held-out runs, the whole search was repeated without these runs, and its choice predicted them: they
    evaluate the search procedure. A program that was fitted to other runs afterwards has none.
    """
    record, trust = source.record, trust_of(source)
    if record is None or not record.errors:
        return ()
    rows = [(IN_SAMPLE, len(record.errors), [[getattr(r, mean) for r in record.errors] for mean in MEANS])]
    residuals = [r for name in CLASSES for r in trust.residuals(name)] if trust and trust.data is None else []
    for kind, what in WITHOUT.items():
        if of_kind := [r for r in residuals if r.kind == kind]:
            errors = [[r.error_pct(mean) for r in of_kind] for mean in MEANS]
            rows.append((f"held out: searched and fitted without {what}", len({r.experiment for r in of_kind}), errors))
    columns = [words(""), figures("d", "runs"), figures(".1f", "E2E", "TTFT", "ITL")]
    cells = [(name, runs, *map(mean_abs, errors)) for name, runs, errors in rows]
    lines = plain(Table.of("", columns, cells), least=(0, 6, 6, 6, 6)).splitlines()
    fits = [("Fitted on", record.ranges)] if record.ranges else []
    fits += [("The fit started from constants that were fitted on", ranges) for ranges in record.ranges_before]
    spans = [f"{how}: {text}." for how, ranges in fits if (text := described(ranges))]
    wrapped = [line for text in spans for line in textwrap.wrap(text, WIDTH)]
    none = [NOTHING] if len(rows) == 1 else []
    timed = sum(r.e2e is not None for r in record.errors)
    part = [f"E2E is that of {timed} of these runs: the others have none."] if 0 < timed < len(record.errors) else []
    return (TITLE, *(f"  {line}" for line in lines), *part, *none, *wrapped)


def fit_of(source: Source, program: Program) -> Fit:
    """Where the constants of the program, as the host runs it, come from: those count as measured that the fitted runs
    decided more than their priors did. Older records do not say that, so theirs all do."""
    record, names = source.record, [f"{f.name}.{c.name}" for f in program.functions for c in f.constants]
    if record is None:
        return Fit(source.name)
    known = record.constants
    if known is None:
        return Fit(source.name, frozenset(names), _scope(record.ranges))
    shares = {name: of.data_share for name, of in known.items()}
    measured = {name for name in names if name in shares and ((share := shares[name]) is None or share > 0.5)}
    return Fit(source.name, frozenset(measured), _scope(record.ranges))


def _scope(ranges: Ranges | None) -> str:
    """The fitted runs in the registry's words."""
    if ranges is None:
        return "unscoped"
    size = ranges.model_params_b
    parts = (
        ("hardware", ", ".join(ranges.hardware or ())),
        ("model", f"{size[0]:.4g} to {size[1]:.4g} billion parameters" if size else ""),
        ("tp", ", ".join(map(str, ranges.tp or ()))),
    )
    return "; ".join(f"{key}: {text}" for key, text in parts if text) or "unscoped"


def program_for(source: Source) -> Program:
    """The program as the host runs it; the host's own form stays as it is."""
    return source.complete if has_coefficients(source.complete) else for_host(source.program)


def emit_to(
    source: Source, target: str, out: Path | None, deployments: Sequence[Deployment], name: BackendName, again: str
) -> Emitted:
    """Emit the Go files of a backend, into the folder `out` if there is one.

    `again` is the command without that folder. Without deployments, a program that reads measured kernels gets all
    `measured_deployments`. Raises InputError if `out` cannot be written, has another backend, or holds a file of one of
    these names that was not emitted.
    """
    if deployments or HOSTS[target].kernel or not reads_kernels(source.complete):
        each = (beyond_fit(source, d.name, d.facts, d.hardware, ("GPU",)) for d in deployments)
        far = (*_other_gpus(source, deployments), *(line for lines in each for line in lines))
    else:
        deployments = [of_known(known) for known in measured_deployments()]
        far = _some_beyond(source, deployments)
    beyond = {d.name: source.kinds_beyond(d.facts, d.hardware) for d in deployments}
    outside = {name: " and ".join(kinds) for name, kinds in beyond.items() if kinds}
    needs = plan(program_for(source), HOSTS[target], name, deployments, outside=outside)
    return _emitted(source, needs, out, again, deployments, far)


def emit_for_host(
    source: Source, target: str, out: Path | None, name: BackendName, again: str, gpus: Sequence[str]
) -> Emitted:
    """Emit the Go files of a backend for every model and GPU of the host, into `out` if given.

    A program that reads measured kernels gets those of `gpus`, names of the hardware table. `again` is the command
    without that folder. Raises InputError like `emit_to`, for another target than blis-4, and for a program whose facts
    no host gives.
    """
    deployments, host = host_deployments(gpus), known_host(gpus)
    fewest: dict[str, Deployment] = {}  # every model on the fewest of one kind of GPU: its times are recorded
    first = GPU if GPU in gpus else gpus[0]
    for deployment in deployments:
        if deployment.hardware == first:
            fewest.setdefault(deployment.model, deployment)
    needs = plan(program_for(source), HOSTS[target], name, list(fewest.values()), host, fitted=fitted_range(source))
    return _emitted(source, needs, out, again, deployments, _some_beyond(source, deployments), host)


def fitted_range(source: Source) -> FittedRange | None:
    """The runs of the last fit, as the Go compares deployments with them; None where the record does not say."""
    ranges = source.record.ranges if source.record else None
    if not (ranges and ranges.hardware and ranges.tp and ranges.mixture_of_experts):
        return None
    if not (ranges.model_params_b and ranges.active_params_b):
        return None
    names = {name.lower() for gpu in ranges.hardware for name in (gpu, *gpu_names(gpu))}
    sizes = ranges.model_params_b, ranges.active_params_b
    return FittedRange(tuple(sorted(names)), ranges.tp, ranges.mixture_of_experts, *sizes)


def _emitted(
    source: Source,
    needs: EmitPlan,
    out: Path | None,
    again: str,
    deployments: Sequence[Deployment],
    far: tuple[str, ...],
    host: Host | None = None,
) -> Emitted:
    """The emitted program, its files written to `out` if there is one.

    The gates judge it on `deployments`, or on those of the shipped runs if there are none. `far`: cautions about
    deployments beyond the fitted runs.
    """
    program, cautions = program_for(source), (*source.cautions, *far)
    files = emit(
        program,
        target=needs.target.name,
        deployments=needs.deployments,
        name=needs.name,
        provenance=provenance(source),
        accuracy=accuracy(source),
        cautions=cautions,
        host=host,
        outside=needs.outside,
        fitted=needs.fitted,
        again=again,
        fit=fit_of(source, program),
    )
    if out is not None:
        write(files, out, needs.name)
    judged = Deployments({d.name: d.facts for d in deployments})
    refused = complaints(program, judged if deployments else deployments_of(bundled_experiments()))
    return Emitted(needs, out, files, tuple(deployments), tuple(refused), cautions, host)


def _other_gpus(source: Source, deployments: Sequence[Deployment]) -> tuple[str, ...]:
    known = source.record.all_gpus if source.record else set()
    others = dict.fromkeys(d.hardware for d in deployments if known and d.hardware not in known)
    if not others:
        return ()
    fitted = ", ".join(sorted(known))
    return (f"no fitted run was on {', '.join(others)}, only on {fitted}: the program's errors there are not known",)


def beyond_fit(
    source: Source, name: str, facts: Mapping[str, float], hardware: str, but: Sequence[str] = ()
) -> tuple[str, ...]:
    """Warn, in one line, if the deployment `name` is beyond the fitted range in any kind except `but`."""
    far = [kind for kind in source.kinds_beyond(facts, hardware) if kind not in but]
    if not far:
        return ()
    return (f"{name}: beyond the fitted runs in {' and '.join(far)}: the program's errors there are not known",)


def _some_beyond(source: Source, deployments: Sequence[Deployment]) -> tuple[str, ...]:
    far = sum(bool(source.kinds_beyond(d.facts, d.hardware)) for d in deployments)
    if not far:
        return ()
    return (
        f"{far} of the {len(deployments)} deployments are beyond the fitted runs, by GPU, TP degree, architecture or "
        "size: the program's errors there are not known",
    )


def alike(deployments: Sequence[Deployment]) -> tuple[str, ...]:
    """A line for each deployment that is the same as one before it, under another name."""
    first: list[Deployment] = []
    lines = []
    for d in deployments:
        same = next((one.name for one in first if replace(one, name=d.name) == d), None)
        if same is None:
            first.append(d)
        else:
            lines.append(f"{d.name} is the same deployment as {same}, so the Go has it twice: leave one of the two out")
    return tuple(lines)


def unlike_host(experiments: Sequence[Experiment], target: str) -> tuple[str, ...]:
    """A line for each setting of these experiments' engines that the host has not."""
    whole = "the host always has chunked prefill: it splits prompts that chunked_prefill: false keeps whole"
    ranks = "the host's backend sees the batch of one rank, and counts its tokens for each of the others too"
    drafts = "the host counts the accepted tokens of a decode against the budget of a step, not all that it verifies"
    offload = "the host offloads KV blocks by rules of its own, where loads take no time; the Go says nothing of it"
    offloaded = [e for e in experiments if e.engine.kv_offloading_size and not HOSTS[target].kernel]
    return (
        *(f"{e.id}: {offload}" for e in offloaded),
        *(f"{e.id}: {drafts}" for e in experiments if e.engine.num_speculative_tokens),
        *(f"{e.id}: {whole}" for e in experiments if not e.engine.chunked_prefill),
        *(f"{e.id}: {ranks}" for e in experiments if e.engine.data_parallel > 1),
        *(f"{e.id}: the host has no pipeline stages" for e in experiments if e.engine.pipeline_parallel > 1),
    )


def print_emitted(emitted: Emitted, notes: Sequence[str]) -> None:
    """Print the names of the files and, on stderr, what to know before using them, with these notes."""
    if emitted.out is not None:
        prose(f"{emitted.out}: {', '.join(sorted(emitted.files))}")
    if emitted.host:
        prose("deployments: any, by the host's configuration of model and GPU")
    elif len(emitted.deployments) > 1:
        prose(f"{len(emitted.deployments)} deployments")
    warnings = *emitted.refused, *emitted.cautions, *falling(emitted.plan), *last_bit_decides(emitted.plan.program)
    omitted = left_out((d.name, d.facts) for d in emitted.deployments)
    for warning in (*warnings, *omitted, *notes):
        warn(warning)


def verify(emitted: Emitted) -> bool:
    """Print a line for each check. Returns True if the files build, pass their tests and agree with the interpreter,
    and the gates pass."""
    ok = _check(emitted)
    if emitted.refused:
        prose("check: gates: failed, see the warning")
    return ok and not emitted.refused


def _check(emitted: Emitted) -> bool:
    if find_go() is None:
        prose("check: failed: no Go toolchain. Put go on PATH, or .venv/bin/pip install 'evolve-latency[go]'")
        return False
    program, target, name = emitted.plan.program, emitted.plan.target.name, emitted.plan.name
    progress = Line()
    with tempfile.TemporaryDirectory() as folder:
        progress.show("check: gofmt, go vet, go test ...")
        checked = build_and_test(emitted.files, Path(folder), target=target)
        if not checked.ok:
            progress.close()
            say(f"check: gofmt, go vet, go test: failed\n{checked.log.rstrip()}")
            return False
        progress.show("check: benchmark ...")
        timing = benchmark(Path(folder), name)
        by_kernel = benchmark(Path(folder), name, "Kernel") if emitted.plan.target.kernel else None
    progress.show(f"check: {BATCHES:,} random batches ...")
    compared = emitted.deployments or [Deployment("example", EXAMPLE)]
    agreement = compare_deployments(program, compared, BATCHES, SEED, target=target, name=name, host=emitted.host)
    progress.close()
    prose("check: gofmt, go vet, recorded batches and prompts: ok")
    ok = _print_agreement(agreement, tolerance(program))
    prose(f"check: StepTime of a batch of 128: {timing.ns:,.0f} ns/op, {timing.allocs} allocs/op")
    if by_kernel:
        prose(f"check: the same through the kernel: {by_kernel.ns:,.0f} ns/op, {by_kernel.allocs} allocs/op")
    return ok


def _print_agreement(agreement: Agreement, tolerance_us: int) -> bool:
    """Print how far Go agrees with the interpreter. Returns True if it does within the tolerance."""
    equal = f"{agreement.equal:,} of {agreement.times:,}"
    prose(f"check: times equal to Python's, {BATCHES:,} random batches among them: {equal}")
    if tolerance_us == 0:
        prose(f"check: step times equal to the last bit: {agreement.same_bits:,} of {agreement.steps:,}")
    else:
        share = 100 * agreement.off_by_one / agreement.times
        prose(f"check: off by one: {agreement.off_by_one:,} of {agreement.times:,} times ({share:.2f} %)")
    if agreement.within(tolerance_us):
        return True
    if agreement.worst:
        prose(f"check: failed: a time differs by more than {tolerance_us} us. Largest difference: {agreement.worst}")
    else:
        unequal = f"{agreement.steps - agreement.same_bits:,} of {agreement.steps:,}"
        prose(
            f"check: failed: {unequal} step times differ by less than 1 us. But the program calls no function that "
            "differs between maths libraries (LIBRARY in translate_go/vectors.py)"
        )
    return False
