"""The source of an export: the champion and Pareto front of a run, or a single program."""

from __future__ import annotations

from dataclasses import dataclass

from archive.elite import Elite
from evolve.run.program import load, with_true_names
from evolve.summary.searched import Searched
from simulator.language.ir import Program
from simulator.language.measure import Caps


@dataclass(frozen=True, slots=True)
class ExportSource:
    """A program to write, and its elite if it is of a run. name: its number in the run, or the program's name."""

    name: str
    program: Program
    elite: Elite | None = None


def entries(searched: Searched) -> tuple[ExportSource, ...]:
    """The champion of a run, then the other programs of its front by size."""
    best = searched.champion
    elites = [best, *(e for e in searched.archive.front_by_size() if e.id != best.id)]
    return tuple(ExportSource(str(e.id), e.program, e) for e in map(with_true_names, elites))


def program_entry(spec: str, caps: Caps) -> ExportSource:
    """The program that `spec` names. Raises InputError if it is none."""
    source = load(spec, caps)
    return ExportSource(source.name, source.program)
