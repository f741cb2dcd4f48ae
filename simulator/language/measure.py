"""How large a program is: operations, conditionals, constants, features; and the caps on them."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.errors import InputError
from simulator.language.ir import Call, Choose, Compare, Field, Function, Guard, Node, Op, Program, nodes


@dataclass(frozen=True, slots=True)
class Caps:
    """What a program may have at most, counted over all functions."""

    operations: int = 40
    conditionals: int = 4
    constants: int = 16


def _cost(node: Node) -> int:
    match node:
        case Op() | Compare() | Choose():
            return 1
        case Call(name, args):
            return len(args) - 1 if name in ("max", "min") else 1
        case _:
            return 0


def _guards(function: Function) -> int:
    return sum(isinstance(statement, Guard) for statement in function.body)


def operations(program: Program) -> int:
    """Arithmetic, calls (an n-ary max counts n - 1), comparisons, conditionals; unary minus counts 0."""
    return sum(sum(map(_cost, nodes(f))) + _guards(f) for f in program.functions)


def conditionals(program: Program) -> int:
    return sum(sum(isinstance(n, Choose) for n in nodes(f)) + _guards(f) for f in program.functions)


def constants(program: Program) -> int:
    return sum(len(f.constants) for f in program.functions)


def features(program: Program) -> tuple[str, ...]:
    """The distinct fields that the program reads, sorted, as `b.tokens`."""
    found = {f"{n.scope}.{n.name}" for f in program.functions for n in nodes(f) if isinstance(n, Field)}
    return tuple(sorted(found))


def complexity(program: Program) -> int:
    return operations(program) + constants(program)


def complaints(program: Program, caps: Caps) -> list[str]:
    """What exceeds the caps, a line each; empty when nothing does."""
    counted = (
        ("operations", operations(program), caps.operations),
        ("conditionals", conditionals(program), caps.conditionals),
        ("constants", constants(program), caps.constants),
    )
    return [
        f"{n} {what}, at most {cap} are allowed: shorten the program or raise --max-{what}"
        for what, n, cap in counted
        if n > cap
    ]


def enforce(program: Program, caps: Caps, where: str) -> Program:
    """The program itself, or InputError naming the caps that it exceeds."""
    if exceeded := complaints(program, caps):
        raise InputError(f"{where}: {'; '.join(exceeded)}")
    return program
