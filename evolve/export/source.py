"""What is exported: the champion and the Pareto front of a run, or a single program."""

from __future__ import annotations

from dataclasses import dataclass

from archive.elite import Elite
from evolve.run.program import load
from evolve.summary.searched import Searched
from simulator.language.ir import Program
from simulator.language.measure import Caps
from simulator.language.parse import parse


@dataclass(frozen=True, slots=True)
class ExportSource:
    """A program to write, with what its run knows of it. name: its number in the run, or the program's name."""

    name: str
    program: Program
    elite: Elite | None = None


def entries(searched: Searched) -> tuple[ExportSource, ...]:
    """The champion of a run, then the other programs of its front by size."""
    best = searched.champion
    elites = [best, *(e for e in searched.archive.front_by_size() if e.id != best.id)]
    return tuple(ExportSource(str(e.id), parse(e.text), e) for e in elites)


def program_entry(spec: str, caps: Caps) -> ExportSource:
    """The program that `spec` names. Raises InputError if it is none."""
    source = load(spec, caps)
    return ExportSource(source.name, source.program)
