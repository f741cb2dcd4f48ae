"""`evolve emit`: a program as Go files in a folder, and the check that they build and agree with the interpreter."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evaluator.judge.gates import complaints, deployments_of
from evolve import __version__
from evolve.host.accuracy import accuracy
from evolve.host.deployments import host_deployments, known_host, of_known
from evolve.output.printing import plain, prose
from evolve.output.progress import Line
from evolve.output.table import Column, Row, Table, number
from evolve.output.terminal import say, warn
from evolve.run.program import Source
from simulator.clock.bind import Deployments
from simulator.language.ir import Program
from simulator.language.key import key
from simulator.serving.bundled import bundled_experiments
from simulator.serving.experiment import Experiment
from simulator.serving.facts import left_out
from simulator.serving.known import GPU, measured_deployments
from translate_go import Deployment, benchmark, build_and_test, compare_deployments, emit, find_go, write
from translate_go.agreement import Agreement
from translate_go.behaviour import falling
from translate_go.deployment import EXAMPLE
from translate_go.generic.known import Host
from translate_go.gotest import recorded_deployments
from translate_go.naming import BackendName
from translate_go.target import TARGETS, EmitPlan, plan, reads_kernels
from translate_go.vectors import last_bit_decides, tolerance

BATCHES = 10_000  # random batches of a check, drawn with SEED
SEED = 1


@dataclass(frozen=True)
class Emitted:
    """A program as Go files, name -> text, in the folder `out`. refused: complaints of the gates on these deployments.
    cautions: reasons not to rely on the program. recorded: the deployments whose times the Go's test has. host: what
    the Go knows by name, if it takes every model of the host; then it is compared on the deployments, but none is in
    it."""

    program: Program
    target: str
    name: BackendName
    out: Path | None
    files: Mapping[str, str]
    deployments: tuple[Deployment, ...]
    refused: tuple[str, ...]
    cautions: tuple[str, ...]
    recorded: tuple[Deployment, ...]
    host: Host | None = None

    @property
    def plan(self) -> EmitPlan:
        """What the target needs of the program."""
        return plan(self.program, TARGETS[self.target], self.name, self.host)

    @property
    def untested(self) -> tuple[str, ...]:
        """What the host asks of a backend and the program does not do, so that the Go has no test of it."""
        return falling(self.plan, recorded_deployments(self.plan, self.recorded))


def provenance(source: Source) -> tuple[str, ...]:
    """Header lines of the Go file: what the program is, what it was fitted on, what it reached there, and cautions."""
    lines = [f"Program {source.name}, key {key(source.complete)}, emitted by engine {__version__}."]
    record = source.record
    if record is None:
        return (*lines, "No record of what it was fitted on.")
    columns = Column(""), *(Column(name, right=True, width=7) for name in ("E2E", "TTFT", "ITL"))
    rows = tuple(Row((r.experiment, *map(number, (r.e2e, r.ttft, r.itl)))) for r in record.errors)
    return (
        *lines,
        f"Fitted {record.date} by engine {record.engine} on data {record.data}.",
        "Signed errors of the means there, percent:",
        *(f"  {line}" for line in plain(Table("", columns, rows)).splitlines()),
        *accuracy(source),
        *(f"Caution: {text}." for text in record.cautions),
    )


def emit_to(
    source: Source, target: str, out: Path | None, deployments: Sequence[Deployment], name: BackendName, again: str
) -> Emitted:
    """The Go files for a backend of this `name`, written to the folder `out` if there is one.

    `again` is the command without that folder. Without deployments, a program that reads measured kernels gets all
    `measured_deployments`. Raises InputError if `out` cannot be written, has another backend, or holds a file of one of
    these names that was not emitted.
    """
    if deployments or not reads_kernels(source.complete):
        far = (*_other_gpus(source, deployments), *_each_beyond(source, deployments))
    else:
        deployments = [of_known(known) for known in measured_deployments()]
        far = _some_beyond(source, deployments)
    return _emitted(source, target, out, name, again, deployments, deployments, far)


def _other_gpus(source: Source, deployments: Sequence[Deployment]) -> tuple[str, ...]:
    """A line if one of these deployments is on a GPU that no fitted run had."""
    known = source.record.all_gpus if source.record else set()
    others = dict.fromkeys(d.hardware for d in deployments if known and d.hardware not in known)
    if not others:
        return ()
    fitted = ", ".join(sorted(known))
    return (f"no run on {', '.join(others)} was fitted, only on {fitted}: how far off it is there is not known",)


def _each_beyond(source: Source, deployments: Sequence[Deployment]) -> tuple[str, ...]:
    """A line for each deployment that is beyond what the fitted runs span in more than its GPU."""
    return tuple(line for d in deployments for line in beyond_fit(source, d.name, d.facts, d.hardware, ("GPU",)))


def beyond_fit(
    source: Source, name: str, facts: Mapping[str, float], hardware: str, but: Sequence[str] = ()
) -> tuple[str, ...]:
    """A line if the deployment `name` is beyond what the fitted runs span, in more than what `but` lists."""
    far = [what for what in source.kinds_beyond(facts, hardware) if what not in but]
    if not far:
        return ()
    return (f"{name}: beyond the fitted runs in {' and '.join(far)}: how far off the program is there is not known",)


def _some_beyond(source: Source, deployments: Sequence[Deployment]) -> tuple[str, ...]:
    """A line if any of the deployments that nobody named is beyond what the fitted runs span."""
    far = [d for d in deployments if source.kinds_beyond(d.facts, d.hardware)]
    if not far:
        return ()
    return (f"{len(far)} of the {len(deployments)} deployments are beyond the fitted runs, by GPU, TP degree, "
            "architecture or size: how far off it is there is not known",)  # fmt: skip


def emit_for_host(source: Source, target: str, out: Path | None, name: BackendName, again: str) -> Emitted:
    """The Go files for a backend that takes every model and GPU of the host, written to `out` if there is one.

    `again` is the command without that folder. Raises InputError like `emit_to`, for another target than blis-4, and
    for a program whose facts no host gives.
    """
    deployments = host_deployments()
    far = _some_beyond(source, deployments)
    return _emitted(source, target, out, name, again, deployments, _recorded(deployments), far, known_host())


def _recorded(deployments: Sequence[Deployment]) -> list[Deployment]:
    """Every model on the fewest of the shipped runs' GPUs."""
    fewest: dict[str, Deployment] = {}
    for deployment in deployments:
        if deployment.hardware == GPU:
            fewest.setdefault(deployment.model, deployment)
    return list(fewest.values())


def _emitted(
    source: Source, target: str, out: Path | None, name: BackendName, again: str, deployments: Sequence[Deployment],
    recorded: Sequence[Deployment], far: tuple[str, ...], host: Host | None = None,
) -> Emitted:  # fmt: skip
    """The emitted program, its files written to `out` if there is one.

    The gates judge it on `deployments`, or on those of the shipped runs if there are none. `recorded`: the deployments
    whose times the Go's test has. `far`: cautions about deployments beyond the fitted runs.
    """
    program, cautions = source.complete, (*source.cautions, *far)
    files = emit(
        program, target=target, deployments=recorded, name=name, provenance=provenance(source),
        accuracy=accuracy(source), cautions=cautions, host=host, again=again,
    )  # fmt: skip
    if out is not None:
        write(files, out, name)
    own = Deployments({d.name: d.facts for d in deployments})
    refused = tuple(complaints(program, own if deployments else deployments_of(bundled_experiments())))
    return Emitted(program, target, name, out, files, tuple(deployments), refused, cautions, tuple(recorded), host)


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


def unlike_host(experiments: Sequence[Experiment]) -> tuple[str, ...]:
    """A line for each of these experiments whose engine has a setting that the host has not."""
    text = "the host always has chunked prefill: it splits prompts that chunked_prefill: false keeps whole"
    return tuple(f"{e.id}: {text}" for e in experiments if not e.engine.chunked_prefill)


def print_emitted(emitted: Emitted, notes: Sequence[str]) -> None:
    """The names of the files; on stderr, what to know before using them, with these notes."""
    if emitted.out is not None:
        prose(f"{emitted.out}: {', '.join(sorted(emitted.files))}")
    if emitted.host:
        prose("deployments: any, by the host's configuration of model and GPU")
    elif len(emitted.deployments) > 1:
        prose(f"{len(emitted.deployments)} deployments")
    omitted = left_out((d.name, d.facts) for d in emitted.deployments)
    undecided = last_bit_decides(emitted.program)
    for warning in (*emitted.refused, *emitted.cautions, *emitted.untested, *undecided, *omitted, *notes):
        warn(warning)


def verify(emitted: Emitted) -> bool:
    """Whether the files build, pass their tests, agree with the interpreter, and the gates pass. Prints a line for each
    check."""
    ok = _check(emitted)
    if emitted.refused:
        prose("check: gates: refused, see the warning")
    return ok and not emitted.refused


def _check(emitted: Emitted) -> bool:
    if find_go() is None:
        prose("check: failed: there is no Go toolchain: put go on PATH, or .venv/bin/pip install 'evolve-latency[go]'")
        return False
    progress = Line()
    with tempfile.TemporaryDirectory() as folder:
        progress.show("check: gofmt, go vet, go test ...")
        checked = build_and_test(emitted.files, Path(folder), target=emitted.target)
        if not checked.ok:
            progress.close()
            say(f"check: gofmt, go vet, go test: failed\n{checked.log.rstrip()}")
            return False
        progress.show("check: benchmark ...")
        timing = benchmark(Path(folder), emitted.name)
    progress.show(f"check: {BATCHES:,} random batches ...")
    compared = emitted.deployments or [Deployment("example", EXAMPLE)]
    agreement = compare_deployments(
        emitted.program, compared, BATCHES, SEED, target=emitted.target, name=emitted.name, host=emitted.host
    )
    progress.close()
    prose("check: gofmt, go vet, recorded batches and prompts: ok")
    ok = _print_agreement(agreement, tolerance(emitted.program))
    prose(f"check: StepTime of a batch of 128: {timing.ns:,.0f} ns/op, {timing.allocs} allocs/op")
    return ok


def _print_agreement(agreement: Agreement, tolerance_us: int) -> bool:
    """Whether Go agrees with the interpreter to within the tolerance. Prints how far."""
    equal = f"{agreement.equal:,} of {agreement.times:,}"
    prose(f"check: times equal to Python's, {BATCHES:,} random batches among them: {equal}")
    if tolerance_us == 0:
        prose(f"check: step times equal to the last bit: {agreement.same_bits:,} of {agreement.steps:,}")
    else:
        share = 100 * agreement.off_by_one / agreement.times
        prose(f"check: off by one: {agreement.off_by_one:,} of {agreement.times:,} times ({share:.2f} %)")
    if agreement.within(tolerance_us):
        return True
    prose(f"check: failed: {_disagreement(agreement, tolerance_us)}")
    return False


def _disagreement(agreement: Agreement, tolerance_us: int) -> str:
    if agreement.worst:
        return f"further off than {tolerance_us} us, the furthest: {agreement.worst}"
    unequal = f"{agreement.steps - agreement.same_bits:,} of {agreement.steps:,} step times differ by less than 1 us"
    return f"{unequal}, though no function differs between maths libraries by LIBRARY of translate_go/vectors.py"
