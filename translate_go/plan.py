"""What of a program a target needs."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.language.ir import Field, Function, Program, nodes
from simulator.schema import KERNELS
from translate_go.batch import BatchUse, batch_use
from translate_go.deployment import FACTS
from translate_go.lower import without_dead_lets
from translate_go.target import Target


@dataclass(frozen=True)
class Plan:
    """What of a program a target needs: its functions, its use of the batch, and the facts, in schema order.

    `reference` says whether a function reads the program's own reference step.
    """

    program: Program
    target: Target
    functions: dict[str, Function]
    batch: BatchUse
    facts: tuple[str, ...]
    reference: bool

    @property
    def curves(self) -> tuple[str, ...]:
        """The curves of measured kernels that the step time reads."""
        return self.batch.curves

    @property
    def reads_deployment(self) -> bool:
        return bool(self.facts or self.curves)


def reads_kernels(program: Program) -> bool:
    """Whether the program has a field of measured kernels in it, so that it needs a deployment with curves."""
    return any(
        isinstance(n, Field) and n.scope == "b" and n.name in KERNELS for f in program.functions for n in nodes(f)
    )


def plan(program: Program, target: Target) -> Plan:
    """The parts of the program that the target calls, without dead lets."""
    wanted = ("step_time", "queueing_time", *(name for _, name in target.overheads))
    functions = {f.name: without_dead_lets(f) for f in program.functions if f.name in wanted}
    use = batch_use(functions["step_time"])
    read = {n.name for f in functions.values() for n in nodes(f) if isinstance(n, Field) and n.scope == "s"}
    facts = tuple(name for name in FACTS if name in read | use.facts)
    return Plan(program, target, functions, use, facts, "reference_step_us" in read)
