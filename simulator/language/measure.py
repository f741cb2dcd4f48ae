"""The size of a program in operations, conditionals, constants and features, and the caps on it."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.common.errors import InputError
from simulator.language.ir import FREE_LITERALS, Call, Choose, Compare, Field, Function, Guard, Node, Op, Program, nodes
from simulator.language.normal import reachable, unexpanded
from simulator.language.simplify import brief


@dataclass(frozen=True, slots=True)
class Caps:
    """The most that a program may have, counted over all functions."""

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
    """Arithmetic operations, calls (an n-ary max counts n - 1), comparisons and conditionals; unary minus counts 0.

    >>> operations(parse("def step_time(b, s): return max(b.tokens, -b.kv_sum, 1) + 2"))
    3
    """
    return sum(sum(map(_cost, nodes(f))) + _guards(f) for f in program.functions)


def conditionals(program: Program) -> int:
    """Conditional expressions and early returns."""
    return sum(sum(isinstance(n, Choose) for n in nodes(f)) + _guards(f) for f in program.functions)


def constants(program: Program) -> int:
    """Constants, numbers in formulas included except 0, 1, 2 and 0.5."""
    return sum(len(f.constants) for f in program.functions) + len(made_numbers(program))


def made_numbers(program: Program) -> list[float]:
    """The numbers other than 0, 1, 2 and 0.5 that formulas come to, by whatever operations. No fit changes them.

    >>> made_numbers(parse("def step_time(b, s): x = 2 * b.tokens; return 2 * x + sqrt(2) + max(pow(2, 2), b.kv_sum)"))
    [1.4142135623730951, 4.0, 4.0]
    """
    return sorted(number for f in program.functions for number in _made(f))


def _made(function: Function) -> list[float]:
    """The coefficients in the normal form, which computes with numbers: each once in every sum."""
    normal, root = unexpanded(function)
    sums = (root, *(arg for i in reachable(normal, root) for arg in normal.atoms[i].args))
    return [number for terms in sums for number in {abs(c) for _, c in terms}.difference(FREE_LITERALS)]


def features(program: Program) -> tuple[str, ...]:
    """The distinct fields that the program reads, sorted."""
    return tuple(sorted({f"{n.scope}.{n.name}" for f in program.functions for n in nodes(f) if isinstance(n, Field)}))


def complexity(program: Program) -> int:
    """Operations and constants together."""
    return operations(program) + constants(program)


def exceeded(program: Program, caps: Caps) -> dict[str, tuple[int, int]]:
    """Each cap that the program exceeds: the number that it has, and the cap. Overheads of 0 do not count."""
    program = brief(program)
    counted = {
        "operations": (operations(program), caps.operations),
        "conditionals": (conditionals(program), caps.conditionals),
        "constants": (constants(program), caps.constants),
    }
    return {what: (n, cap) for what, (n, cap) in counted.items() if n > cap}


def complaints(program: Program, caps: Caps) -> list[str]:
    """One line for each cap that the program exceeds."""
    return [
        f"{n} {what}, at most {cap} are allowed: shorten the program or raise --max-{what}"
        for what, (n, cap) in exceeded(program, caps).items()
    ]


def enforce(program: Program, caps: Caps, where: str) -> Program:
    """The program itself. Raises InputError with the caps that it exceeds."""
    if lines := complaints(program, caps):
        raise InputError(f"{where}: {'; '.join(lines)}")
    return program
