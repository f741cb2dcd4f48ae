"""The same batches through the emitted Go and through the plain interpreter."""

from __future__ import annotations

import math
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from simulator.fields import BatchFields
from simulator.language.ir import Program
from simulator.vm import MAX_TICKS, to_ticks
from translate_go.deployment import Deployment
from translate_go.emit import emit
from translate_go.gotypes import constructor, may_fail
from translate_go.plan import plan
from translate_go.probe import probe_files, probe_input
from translate_go.target import TARGETS, Target
from translate_go.toolchain import LIMIT_S, go, write_module
from translate_go.vectors import PROMPTS, Batch, batch_fields, batches, overhead_ticks, step_us


@dataclass(frozen=True)
class Agreement:
    """How far Go is from the interpreter.

    `equal`, `off_by_one`, `further` count times in whole microseconds, of steps, prompts and overheads together;
    `worst` says in words which time is furthest off, "" if none is. Of the `steps` step times, `same_bits` are equal
    to the last bit before truncation; `inside` lie strictly between the clamps, 1 and 10^10 us; `distinct` is how
    many different ones there are.
    """

    equal: int
    off_by_one: int
    further: int
    worst: str
    steps: int
    same_bits: int
    inside: int
    distinct: int

    @property
    def times(self) -> int:
        return self.equal + self.off_by_one + self.further

    def within(self, tolerance_us: int) -> bool:
        """Whether no time is further off than `tolerance_us`, 0 or 1."""
        return self.further == 0 and (tolerance_us > 0 or self.off_by_one == 0)


def compare(
    program: Program, facts: Mapping[str, float], n_random: int, seed: int, *, target: str = "blis-4"
) -> Agreement:
    """Every method of the target on the deployment `facts`: the edge cases and `n_random` seeded random batches.

    Raises InputError without a toolchain, RuntimeError if the Go does not build.
    """
    return compare_all({"p": program}, facts, n_random, seed, target=target)["p"]


def compare_all(
    programs: Mapping[str, Program], facts: Mapping[str, float], n_random: int, seed: int, *, target: str = "blis-4"
) -> dict[str, Agreement]:
    """`compare` for several programs with one build; names must be Go identifiers in lower case."""
    cases, spec = batches(n_random, seed), TARGETS[target]
    probe = [Deployment("probe", facts)]
    packages = {name: emit(program, target=target, deployments=probe) for name, program in programs.items()}
    arguments = "sim.LatencyCoeffs{}, sim.ModelHardwareConfig{}"
    models = [f"must({name}.NewEvolvedBackend({arguments}))" for name in programs]
    asked = _ask_go(packages, models, cases, spec)
    fields = [_Remembered(batch_fields(batch, facts)) for batch in cases]
    names = _names(cases, spec)
    return {
        name: _agreement(program, facts, fields, spec, names, asked[2 * i], asked[2 * i + 1])
        for i, (name, program) in enumerate(programs.items())
    }


def compare_deployments(
    program: Program, deployments: Sequence[Deployment], n_random: int, seed: int, *, target: str = "blis-4"
) -> Agreement:
    """`compare` on all the deployments of one emitted package together, which share the random batches out."""
    spec = TARGETS[target]
    needs = plan(program, spec)
    asked_of = deployments if needs.reads_deployment else deployments[:1]
    cases = batches(math.ceil(n_random / len(asked_of)), seed)
    calls = [f"p.{constructor(needs, d, deployments)}" for d in asked_of]
    models = [f"must({call})" for call in calls] if may_fail(needs, deployments) else calls
    asked = _ask_go({"p": emit(program, target=target, deployments=deployments)}, models, cases, spec)
    names = _names(cases, spec)
    found = []
    for i, deployment in enumerate(asked_of):
        fields = [_Remembered(batch_fields(batch, deployment.facts)) for batch in cases]
        where = [f"{deployment.name}: {name}" for name in names] if len(asked_of) > 1 else names
        found.append(_agreement(program, deployment.facts, fields, spec, where, asked[2 * i], asked[2 * i + 1]))
    return _together(found)


def _together(found: Sequence[Agreement]) -> Agreement:
    """The sums, and the worst time of the deployment that is furthest off."""
    furthest = max(found, key=lambda a: (a.further > 0, a.off_by_one > 0))
    counts = ("equal", "off_by_one", "further", "steps", "same_bits", "inside", "distinct")
    totals = {name: sum(getattr(a, name) for a in found) for name in counts}
    return Agreement(worst=furthest.worst, **totals)


class _Remembered(dict[tuple[str, str], float]):
    """The fields of one batch, each computed when first read and then kept for the programs that follow."""

    def __init__(self, fields: BatchFields) -> None:
        super().__init__()
        self.fields = fields

    def __missing__(self, field: tuple[str, str]) -> float:
        self[field] = value = self.fields[field]
        return value


def _ask_go(
    packages: Mapping[str, Mapping[str, str]], models: Sequence[str], cases: list[Batch], target: Target
) -> list[tuple[int, ...]]:
    """For each model its times, and the bits of its step times: steps, then prompts, then overheads."""
    with TemporaryDirectory() as folder:
        workdir = Path(folder)
        write_module(probe_files(packages, models, target), workdir, target.name)
        binary = workdir / "compare"
        built = go(workdir, "build", "-o", str(binary), "./sim/latency/cmd")
        if built.returncode:
            raise RuntimeError(f"the emitted Go does not build:\n{built.stderr}")
        text = probe_input(cases, PROMPTS)
        ran = subprocess.run([binary], input=text, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return list(zip(*(map(int, line.split()) for line in ran.stdout.splitlines()), strict=True))


def _agreement(
    program: Program,
    facts: Mapping[str, float],
    fields: list[_Remembered],
    target: Target,
    names: list[str],
    told: tuple[int, ...],
    bits: tuple[int, ...],
) -> Agreement:
    exact = [step_us(program, f) for f in fields]
    steps = [int(to_ticks(x, 1)) for x in exact]
    expected = [*steps, *(overhead_ticks(program, "queueing_time", facts, n) for n in PROMPTS)]
    expected += [overhead_ticks(program, name, facts) for _, name in target.overheads]
    gaps = [abs(got - want) for got, want in zip(told, expected, strict=True)]
    far = gaps.index(max(gaps))
    off = gaps.count(1)
    return Agreement(
        equal=gaps.count(0),
        off_by_one=off,
        further=len(gaps) - gaps.count(0) - off,
        worst=f"{names[far]}: Go {told[far]} us, Python {expected[far]} us" if gaps[far] else "",
        steps=len(steps),
        same_bits=sum(b == _bits(x) for b, x in zip(bits, exact, strict=False)),
        inside=sum(1 < x < MAX_TICKS for x in exact),
        distinct=len(set(steps)),
    )


def _names(cases: list[Batch], target: Target) -> list[str]:
    """What each compared time is, in words."""
    steps = [f"StepTime of (count, prompt, progress, new) {list(batch)}" for batch in cases]
    return [*steps, *(f"QueueingTime of {n} tokens" for n in PROMPTS), *(method for method, _ in target.overheads)]


def _bits(x: float) -> int:
    """The 64 bits of a float, 0 and -0 alike, every NaN alike."""
    x = x + 0.0 if x == x else float("nan")
    return int(struct.unpack("<Q", struct.pack("<d", x))[0])
