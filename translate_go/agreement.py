"""Agreement of the emitted Go with the plain interpreter, on the same batches.

A small Go program reads the batches and prints the times of one or more emitted models.
"""

from __future__ import annotations

import math
import re
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from simulator.clock.fields import BatchFields
from simulator.clock.vm import MAX_TICKS, to_ticks
from simulator.common.secrets import without_secrets
from simulator.language.ir import Program
from translate_go.constructors import constructor, options_literal
from translate_go.deployment import Deployment
from translate_go.emit import emit
from translate_go.generic.known import Host
from translate_go.naming import DEFAULT, BackendName, indented
from translate_go.target import HOSTS, MODULE, EmitPlan, HostTarget, plan
from translate_go.templates import sections
from translate_go.toolchain import LIMIT_S, go, write_module
from translate_go.vectors import PROMPTS, Batch, batch_fields, batches, overhead_ticks, step_us

_TEXT = sections("probe")


@dataclass(frozen=True)
class Agreement:
    """The differences between Go and the interpreter in whole us, for the times of steps, prompts and overheads.

    worst: the time that differs most, in words, "" if none does; most_us: by how much. steps: how many of the times are
    step times. same_bits: step times equal to the last bit before truncation. inside: step times strictly between the
    clamps, 1 and 10^10 us. distinct: different step times.
    """

    equal: int
    off_by_one: int
    further: int
    worst: str
    most_us: int
    steps: int
    same_bits: int
    inside: int
    distinct: int

    @property
    def times(self) -> int:
        return self.equal + self.off_by_one + self.further

    def within(self, tolerance_us: int) -> bool:
        """True if no time differs by more than `tolerance_us`, which is 0 or 1. With 0, all steps must also be equal to
        the last bit: times of whole us hide most differences."""
        return self.further == 0 and (tolerance_us > 0 or (self.off_by_one == 0 and self.same_bits == self.steps))


def compare_all(
    programs: Mapping[str, Program], facts: Mapping[str, float], n_random: int, seed: int, *, target: str = "blis-4"
) -> dict[str, Agreement]:
    """Compare every method of the target on the deployment `facts`, with the edge cases and `n_random` random batches.

    All programs are in one build. Their names must be Go identifiers in lower case. Raises InputError without a
    toolchain, RuntimeError if the Go does not build.
    """
    cases, spec = batches(n_random, seed), HOSTS[target]
    packages = {
        name: emit(program, target=target, deployments=[Deployment("probe", facts)])
        for name, program in programs.items()
    }
    models = [_backend(program, spec, name, facts) for name, program in programs.items()]
    printed = _ask_go(packages, models, cases, spec, DEFAULT)
    forests = {program.forest for program in programs.values()}
    fields = {forest: [_CachedFields(batch_fields(batch, facts, forest)) for batch in cases] for forest in forests}
    names = _names(cases, spec)
    return {
        name: _agreement(program, facts, fields[program.forest], spec, names, printed[2 * i], printed[2 * i + 1])
        for i, (name, program) in enumerate(programs.items())
    }


def compare_deployments(
    program: Program,
    deployments: Sequence[Deployment],
    n_random: int,
    seed: int,
    *,
    target: str = "blis-4",
    name: BackendName = DEFAULT,
    host: Host | None = None,
) -> Agreement:
    """Compare as `compare_all` on all deployments of one emitted package, which divide the random batches among them.

    With a `host`, the Go makes each deployment of its `config`. For the newest host each is also compared through its
    kernel.
    """
    spec = HOSTS[target]
    needs = plan(program, spec, name, deployments, host)
    compared = needs.recorded
    cases = batches(math.ceil(n_random / len(compared)), seed)
    ways = [_ways(needs, deployment) for deployment in compared]
    models = [model for each in ways for model in each.values()]
    emitted = emit(program, target=target, deployments=deployments, name=name, host=host)
    printed = _ask_go({"p": emitted}, models, cases, spec, name)
    names = _names(cases, spec)
    agreements, answers = [], iter(printed)
    for deployment, each in zip(compared, ways, strict=True):
        fields = [_CachedFields(batch_fields(batch, deployment.facts, program.forest)) for batch in cases]
        whose = f"{deployment.name}: " if len(compared) > 1 else ""
        for way in each:
            where = [f"{whose}{way}{name}" for name in names]
            agreements.append(_agreement(program, deployment.facts, fields, spec, where, next(answers), next(answers)))
    return _together(agreements)


def _ways(plan: EmitPlan, deployment: Deployment) -> dict[str, str]:
    """The Go expressions of a deployment's model in package p: as it is and, for the newest host, through its kernel.

    The keys are words for messages.
    """
    ways = {"": constructor(plan, deployment, package="p")}
    if plan.target.kernel:
        kernel = f"p.New{plan.name.exported}KernelFor{deployment.go_name}()"
        ways["through the kernel, "] = f"p.Adapted({kernel})"
    return ways


def _backend(program: Program, target: HostTarget, package: str, facts: Mapping[str, float]) -> str:
    """The Go call of the factory in a package, with the settings of the engine among these facts."""
    needs = plan(program, target)
    options = f", {options_literal(needs, facts, package)}" if needs.options else ""
    return f"{package}.NewFittedBackend(sim.LatencyCoeffs{{}}, sim.ModelHardwareConfig{{}}{options})"


def _together(agreements: Sequence[Agreement]) -> Agreement:
    furthest = max(agreements, key=lambda a: a.most_us)
    counts = ("equal", "off_by_one", "further", "steps", "same_bits", "inside", "distinct")
    totals = {name: sum(getattr(a, name) for a in agreements) for name in counts}
    return Agreement(worst=furthest.worst, most_us=furthest.most_us, **totals)


class _CachedFields(dict[tuple[str, str], float]):
    """The fields of a batch, each computed when first read and kept for the programs after that."""

    def __init__(self, fields: BatchFields) -> None:
        super().__init__()
        self.fields = fields

    def __missing__(self, field: tuple[str, str]) -> float:
        self[field] = value = self.fields[field]
        return value


def _ask_go(
    packages: Mapping[str, Mapping[str, str]],
    models: Sequence[str],
    cases: Sequence[Batch],
    target: HostTarget,
    name: BackendName,
) -> list[tuple[int, ...]]:
    """For each model its times, then the bits of its step times; both for steps, then prompts, then overheads.

    `models` are Go expressions of packages emitted under `name`. The input has counts, each batch as its number of rows
    and the rows, then the prompts.
    """
    counts = f"{len(cases)} {len(PROMPTS)}"
    rows = (" ".join(map(str, [len(batch), *(x for row in batch for x in row)])) for batch in cases)
    text = "\n".join([counts, *rows, *map(str, PROMPTS)]) + "\n"
    with TemporaryDirectory() as folder:
        workdir = Path(folder)
        write_module(_probe_files(packages, models, target, name), workdir, target.name)
        binary = workdir / "compare"
        built = go(workdir, "build", "-o", str(binary), "./sim/latency/cmd")
        if built.returncode:
            raise RuntimeError(f"the emitted Go does not build:\n{built.stderr}")
        env = without_secrets()
        ran = subprocess.run([binary], env=env, input=text, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return list(zip(*(map(int, line.split()) for line in ran.stdout.splitlines()), strict=True))


def _agreement(
    program: Program,
    facts: Mapping[str, float],
    fields: Sequence[_CachedFields],
    target: HostTarget,
    names: Sequence[str],
    times: Sequence[int],
    bits: Sequence[int],
) -> Agreement:
    """The agreement of the `times` and `bits` that Go printed with the interpreter."""
    exact = [step_us(program, f) for f in fields]
    steps = [int(to_ticks(x, 1)) for x in exact]
    expected = [*steps, *(overhead_ticks(program, "queueing_time", facts, n) for n in PROMPTS)]
    expected += [overhead_ticks(program, name, facts) for _, name in target.overheads]
    gaps = [abs(got - want) for got, want in zip(times, expected, strict=True)]
    far = gaps.index(max(gaps))
    off = gaps.count(1)
    return Agreement(
        equal=gaps.count(0),
        off_by_one=off,
        further=len(gaps) - gaps.count(0) - off,
        worst=f"{names[far]}: Go {times[far]} us, Python {expected[far]} us" if gaps[far] else "",
        most_us=gaps[far],
        steps=len(steps),
        same_bits=sum(b == _bits(x) for b, x in zip(bits, exact, strict=False)),
        inside=sum(1 < x < MAX_TICKS for x in exact),
        distinct=len(set(steps)),
    )


def _names(cases: Sequence[Batch], target: HostTarget) -> list[str]:
    steps = [f"StepTime of (count, prompt, progress, new) {list(batch)}" for batch in cases]
    return [*steps, *(f"QueueingTime of {n} tokens" for n in PROMPTS), *(method for method, _ in target.overheads)]


def _bits(x: float) -> int:
    """The 64 bits of a float, the same for 0 and -0 and for every NaN."""
    x = x + 0.0 if x == x else float("nan")
    return int(struct.unpack("<Q", struct.pack("<d", x))[0])


def _probe_files(
    packages: Mapping[str, Mapping[str, str]], models: Sequence[str], target: HostTarget, name: BackendName
) -> dict[str, str]:
    """The Go files: a folder for each package, with a method for the time before truncation, and the main program."""
    files: dict[str, str] = {}
    for package, sources in packages.items():
        sums = name.of("sumBatch")
        argument = f"{sums}(batch)" if f"func {sums}(" in sources[name.file()] else ""
        compiled = (file for file in sources if file.endswith(".go") and not file.endswith("_test.go"))
        files |= {f"{package}/{file}": sources[file] for file in compiled}
        (stated,) = re.findall(r"^package (\w+)$", sources[name.file()], re.MULTILINE)
        files[f"{package}/bits.go"] = name.fill(_TEXT["bits"], package=stated, argument=argument)
        if target.kernel:
            shapes = f"{name.of('sumShapes')}(a.batch(batch).Reqs)" if argument else ""
            files[f"{package}/kernel_bits.go"] = name.fill(_TEXT["kernel_bits"], package=stated, argument=shapes)
    files["cmd/main.go"] = name.fill(
        _TEXT["main"],
        imports=indented(f'{package} "{MODULE}/sim/latency/{package}"' for package in packages),
        models=indented((f"must({model})," for model in models), "\t\t"),
        overheads="\n".join(name.fill(_TEXT["overhead"], method=method) for method, _ in target.overheads),
    )
    return files
