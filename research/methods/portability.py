"""What the host simulator needs to use a program: delays that it covers, what it must know, and the way to its Go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.language.complete import complete
from simulator.language.ir import Field, Function, nodes
from simulator.language.parse import parse
from translate_go.target import reads_kernels

# The five delays of the host's latency model. Nothing that was measured depends on admissions and evictions, which are
# one of the five here.
DELAYS = (
    ("step_time",), ("queueing_time",), ("output_token_time",), ("completion_time",),
    ("scheduling_time", "preemption_time"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Portability:
    """covered: how many of DELAYS are not always 0. host: what the host must know, `datasheet`, or `kernels` for the
    curves of measured kernels of its GPU. go: `generic`, or `trees` with a file of its ensemble next to it. programs:
    how many there are, one for each model or run unless it is 1."""

    covered: int
    host: str
    go: str
    programs: int


def portability(texts: Sequence[str]) -> Portability | None:
    """That of an entry with these programs; None without any."""
    if not texts:
        return None
    program = complete(parse(texts[0]))
    told = {f.name for f in program.functions if _says_something(f)}
    return Portability(
        covered=sum(any(name in told for name in names) for names in DELAYS),
        host="kernels" if reads_kernels(program) else "datasheet",
        go="trees" if program.reads_trees else "generic",
        programs=len(texts),
    )


def _says_something(function: Function) -> bool:
    """Whether it has a constant or reads a field; what does neither is 0 in every form of ours."""
    return bool(function.constants) or any(isinstance(node, Field) for node in nodes(function))
