"""Go against the plain interpreter at scale: shipped seeds, programs grown from them, and wild ones.

    python tools/parity.py --programs 500 --batches 10000 --seed 0

Prints a table by class of program. Exit status 1 if a time differs, by more than 1 us where a program calls a function
of the maths library; without one, also if a step differs in its last bit.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from random import Random

from grown import grown
from random_programs import OTHERS, random_program

from evolve.run.program import load, seed_names
from simulator.clock.fields import BatchFields
from simulator.clock.vm import MAX_TICKS
from simulator.language.ir import Call, Choose, Guard, Program, nodes
from simulator.language.unparse import unparse
from simulator.serving.bundled import bundled_experiments
from simulator.serving.facts import Facts
from translate_go import TARGETS
from translate_go.agreement import Agreement, compare_all
from translate_go.target import reads_kernels
from translate_go.vectors import LIBRARY, batch_fields, batches, step_us, tolerance

EXACT = tuple(name for name in OTHERS if name not in LIBRARY)  # beside max, min and sqrt
CLASSES = ("no calls", "max, min, conditionals", ", ".join(("sqrt", *EXACT)), ", ".join(LIBRARY))
MEASURED = "with measured kernels"
PACKAGES = 64  # most programs of one build


@dataclass(frozen=True)
class Job:
    """Programs by package name, to be compared on one deployment."""

    programs: dict[str, Program]
    facts: Facts
    batches: int
    seed: int
    target: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=500, help="random programs beside the shipped ones")
    parser.add_argument("--batches", type=int, default=10_000, help="random batches for each program")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    begun = time.monotonic()
    work = list(jobs(args.programs, args.batches, args.seed))
    programs = {name: program for job in work for name, program in job.programs.items()}
    found: dict[str, Agreement] = {}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for result in pool.map(run, work):
            found |= result
            progress(f"{len(found)} of {len(programs)} programs compared, {time.monotonic() - begun:.0f} s")
    print_table(programs, found)
    wrong = [name for name in programs if not found[name].within(tolerance(programs[name]))]
    for name in wrong:
        print(f"\n{name}: {found[name].worst}\n{unparse(programs[name])}")
    print(f"{len(wrong)} of {len(programs)} programs differ by more than they may")
    return 1 if wrong else 0


def jobs(count: int, n_batches: int, seed: int) -> Iterator[Job]:
    """The programs dealt to the deployments of the bundled experiments, the targets in turn."""
    deployments = list({tuple(sorted(e.facts.items())): e.facts for e in bundled_experiments()}.values())
    probes = [[batch_fields(batch, facts) for batch in batches(40, seed=0)] for facts in deployments]
    programs = {name: load(name).complete for name in seed_names()}
    rng = Random(seed)
    for i in range(count):
        wild, program = i % 2 == 0, None
        while program is None or not varies(program, probes[len(programs) % len(probes)]):
            functions = (*LIBRARY, *EXACT) if i % 4 else EXACT
            program = random_program(rng, functions) if wild else moved(grown(rng.getrandbits(32)), rng)
        programs[f"{'wild' if wild else 'grown'}{i}"] = program
        if i % 100 == 99:
            progress(f"{i + 1} of {count} programs made")
    for d, facts in enumerate(deployments):
        mine = list(programs.items())[d :: len(deployments)]
        for first in range(0, len(mine), PACKAGES):
            target = list(TARGETS)[(d + first // PACKAGES) % len(TARGETS)]
            yield Job(dict(mine[first : first + PACKAGES]), facts, n_batches, seed + d, target)


def moved(program: Program, rng: Random) -> Program:
    """The program with its constants moved off their round start values."""
    return program.with_theta(tuple(x * rng.lognormvariate(0.0, 0.3) for x in program.theta))


def varies(program: Program, probes: Sequence[BatchFields]) -> bool:
    """Whether the step time is mostly one that needs no clamping, and not the same for all."""
    inside = [x for x in (step_us(program, fields) for fields in probes) if 1 < x < MAX_TICKS]
    return 2 * len(inside) > len(probes) and len(set(map(int, inside))) >= 10


def run(job: Job) -> dict[str, Agreement]:
    return compare_all(job.programs, job.facts, job.batches, job.seed, target=job.target)


def kinds(program: Program) -> set[str]:
    """The rows of the table in which a program is counted."""
    return {"all", kind(program)} | ({MEASURED} if reads_kernels(program) else set())


def kind(program: Program) -> str:
    """The class of a program: the last of CLASSES of which it has something."""
    inside = [n for f in program.functions for n in nodes(f)]
    calls = {n.name for n in inside if isinstance(n, Call)}
    if calls & set(LIBRARY):
        return CLASSES[3]
    if calls & {"sqrt", *EXACT}:
        return CLASSES[2]
    branches = any(isinstance(n, Choose) for n in inside)
    guards = any(isinstance(part, Guard) for f in program.functions for part in f.body)
    return CLASSES[1] if calls or branches or guards else CLASSES[0]


def print_table(programs: Mapping[str, Program], found: Mapping[str, Agreement]) -> None:
    """Counts of times by class, of step times in the last three columns; `constant` counts programs."""
    head = ("programs", "times", "equal", "off by one", "further off", "to the bit", "unclamped", "constant")
    print(f"{'':24}" + "".join(f"{title:>13}" for title in head))
    for name in (*CLASSES, MEASURED, "all"):
        rows = [found[p] for p, program in programs.items() if name in kinds(program)]
        counts = [len(rows), *(sum(getattr(r, x) for r in rows) for x in ("times", "equal", "off_by_one", "further"))]
        steps = sum(r.steps for r in rows)
        shares = [100 * sum(getattr(r, x) for r in rows) / max(steps, 1) for x in ("same_bits", "inside")]
        constant = sum(r.distinct == 1 for r in rows)
        cells = [f"{n:,}" for n in counts] + [f"{share:.3f} %" for share in shares] + [f"{constant}"]
        print(f"{name:24}" + "".join(f"{cell:>13}" for cell in cells))


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
