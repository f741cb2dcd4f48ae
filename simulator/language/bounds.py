"""Between which values the fit may move a constant: as annotated, else by physics.

Nothing beats the datasheet. So in step_time a pure number that multiplies a time of bytes or FLOPs over a datasheet
peak is at least 1 (with a number beside it: their product is), and one that divides it, an efficiency, at most 1. Where
the sum holds the bare time already, what is added to it in proportion may be anything from 0; so may every other
constant, but a divisor, of which 0 is no limit: x/0 is 0. Judged on the normal form, not on the spelling.
"""

from __future__ import annotations

import math

from simulator.language.infer import infer
from simulator.language.ir import Function, Program
from simulator.language.normal import BRANCHES, Monomial, Normal, Polynomial
from simulator.schema import PHYSICAL

Bounds = tuple[float, float]

LEAST_EFFICIENCY = 0.01  # share of the datasheet
LEAST_DIVISOR = 1e-9  # in its own unit

# quantities of work, and the peak that makes a datasheet time of them
_WORK = {
    "b.total_flops": "s.flops_per_us", "b.attention_flops": "s.flops_per_us",
    "b.total_bytes": "s.bytes_per_us", "s.kv_bytes_per_token": "s.bytes_per_us",
}  # fmt: skip


def bounds(program: Program) -> tuple[Bounds, ...]:
    """(low, high) of every constant, in the order of `program.theta`."""
    return tuple(b for f in program.functions for b in _function_bounds(f))


def _function_bounds(function: Function) -> list[Bounds]:
    normal = Normal(expand=False)
    root = normal.function(function)
    everything = (root, *(arg for atom in normal.atoms for arg in atom.args))
    below = {normal.atoms[i].name for p in everything for m, _ in p for i, power in m if power < 0}
    limits = {c.name: (LEAST_DIVISOR if c.name in below else 0.0, math.inf) for c in function.constants}
    if function.name == "step_time":
        factors, divisors = _physical(function, normal, root)
        for name in limits:
            if name in divisors:
                limits[name] = (LEAST_EFFICIENCY, 1.0)
            if name in factors:
                low = min(factors[name], limits[name][1])
                limits[name] = (max(low, limits[name][0]), limits[name][1])
    return [limits[c.name] if c.bounds is None else c.bounds for c in function.constants]


def _physical(function: Function, normal: Normal, root: Polynomial) -> tuple[dict[str, float], set[str]]:
    """The pure numbers that multiply a datasheet time somewhere in the function, each with its least value, and those
    that divide one."""
    timed, constants = _atoms(normal)
    factors: dict[str, float] = {}
    divisors: set[str] = set()
    for p in _times(normal, root):
        bare = {m for m, c in p if c >= 1.0 and all(normal.atoms[i].kind == "field" for i, _ in m)}
        for m, c in p:
            if c <= 0.0 or not _datasheet_time(normal, m, timed):
                continue
            basis = tuple((i, power) for i, power in m if normal.atoms[i].kind in _VALUES)
            for i, power in m:
                if power == 1 and basis not in bare:
                    factors |= {name: max(factors.get(name, 0.0), 1.0 / c) for name in constants[i]}
                elif power == -1:
                    divisors |= constants[i]
    units = infer(function).units
    pure = {name for name, unit in units.items() if unit in ("one", None)}
    return {name: least for name, least in factors.items() if name in pure}, divisors & pure


_VALUES = ("field", "max", "positive", "zero")


def _atoms(normal: Normal) -> tuple[list[bool], list[set[str]]]:
    """Of every atom, operands first: whether it is a max or a choice that may be a datasheet time; and the constants
    that it may be."""
    timed: list[bool] = []
    constants: list[set[str]] = []
    for atom in normal.atoms:
        branches = _branches(atom.kind, atom.args) if atom.kind in ("max", "positive", "zero") else ()
        timed.append(any(_datasheet_time(normal, m, timed) for arg in branches for m, _ in arg))
        alone = [i for p in branches if len(p) == 1 for i, power in p[0][0] if power == 1]
        constants.append({atom.name} if atom.kind == "const" else set().union(*(constants[i] for i in alone)))
    return timed, constants


def _times(normal: Normal, root: Polynomial) -> list[Polynomial]:
    """The method's result and what it is made of by max, min, choice and product: not conditions, not arguments."""
    found, seen = [root], {root}
    for p in found:
        for i in {i for m, _ in p for i, _ in m}:
            atom = normal.atoms[i]
            if atom.kind in (*BRANCHES, "product"):
                new = [arg for arg in _branches(atom.kind, atom.args) if arg not in seen]
                seen.update(new)
                found += new
    return found


def _datasheet_time(normal: Normal, m: Monomial, timed: list[bool]) -> bool:
    """Whether the product has a datasheet time as a factor."""
    powers = {normal.atoms[i].name: power for i, power in m if normal.atoms[i].kind == "field"}
    if any(power > 0 and name[2:] in PHYSICAL for name, power in powers.items()):
        return True
    if any(powers.get(work, 0) > 0 and powers.get(peak, 0) < 0 for work, peak in _WORK.items()):
        return True
    return any(power > 0 and timed[i] for i, power in m)


def _branches(kind: str, args: tuple[Polynomial, ...]) -> tuple[Polynomial, ...]:
    """The operands that are values: of a choice not the condition."""
    return args[1:] if kind in ("positive", "zero") else args
