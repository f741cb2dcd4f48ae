"""The bounds within which the fit may move a constant: as annotated, else by physics.

No kernel beats the datasheet. So in step_time a pure number that multiplies a time over a datasheet peak is at least 1
(or its product with the number next to it is), and one that divides such a time, an efficiency, is at most 1. Where the
sum already has the bare time, a multiple added to it is at least 0. So is every other constant, except divisors: x/0 is
0, which is no limit of small values. A pure number that alone multiplies the time of a measured kernel corrects a
measurement: it is between 0.5 and 2. One that multiplies it and switches, such as a type of weights or a generation of
GPUs, adjusts it there: by -0.3 to 1 times that time, and in steps without a captured graph only upwards. The normal
form decides, not the spelling.

The author of a program's text may have seen runs that a fit does not. A search refuses narrow bounds (`too_narrow`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from functools import lru_cache

from simulator.language.guarded import POW_LIMIT
from simulator.language.infer import infer
from simulator.language.ir import Call, Const, Function, Program, nodes, walk
from simulator.language.normal import BRANCHES, Monomial, Normal, Polynomial, unexpanded
from simulator.schema import KERNELS, PHYSICAL, READABLE, marked

Bounds = tuple[float, float]

LEAST_SPAN = 10.0  # ratio of the bounds of a constant that a search accepts in a text
LEAST_EFFICIENCY = 0.01  # share of the datasheet
LEAST_DIVISOR = 1e-9  # in its own unit
KERNEL_FACTOR = (0.5, 2.0)  # of a measured kernel
ADJUSTMENT = (-0.3, 1.0)  # of a measured kernel's time, added where switches are 1
EAGER_ADJUSTMENT = (0.0, 1.0)  # in steps without a captured graph
UNCAPTURED, MIXED = "b.uncaptured", "b.mixed"
SWITCHES = frozenset((UNCAPTURED, MIXED, *(f.key for f in marked("switch"))))
# Prior of the factor of a measured kernel, as a standard deviation from 1, and of an adjustment from 0: captured graphs
# run a little faster than single calls, other versions of a kernel a little slower.
KERNEL_DEVIATION = 0.1
# The fields that make a time of a field per token or pair, and a datasheet time of a quantity of work.
_PER = {f.key: f.times for f in READABLE.values() if f.times}
_WORK = {f.key: f.peak for f in READABLE.values() if f.peak}


@dataclass(frozen=True, slots=True)
class BoundLimit:
    """The bounds of a constant, with the reason for each."""

    low: float
    high: float
    why_low: str
    why_high: str = ""


_DATASHEET = "the datasheet's peak, which no kernel beats"
_KERNEL = "{} the measured kernel's time"
_NOT_NEGATIVE = "what adds to a time is not negative"


def bounds(program: Program) -> tuple[Bounds, ...]:
    """(low, high) of every constant, in the order of `program.theta`."""
    return tuple((limit.low, limit.high) for f in program.functions for limit in _function_limits(f))


def at_bounds(program: Program, held: Container[str] | None = ()) -> dict[str, str]:
    """A sentence for each constant at one of its bounds, by `method.name`; none for a constant that its bounds fix.

    A fit took it there, unless its name is among those that were `held`; None: nothing was fitted.

    >>> at_bounds(parse("def step_time(b, s, *, w=1.0, c=2.0): return w * b.weight_read_us + c"), held=None)
    {'step_time.w': "w = 1 (at its lower bound: the datasheet's peak, which no kernel beats)"}
    """
    sentences = {}
    for f in program.functions:
        for c, limit in zip(f.constants, _function_limits(f), strict=True):
            if limit.low == limit.high:
                continue  # fixed, as a unit is
            if c.value == limit.low:
                side, why, wish = "lower", limit.why_low, "lower, or do not show it"
            elif c.value == limit.high:
                side, why, wish = "upper", limit.why_high, "higher"
            else:
                continue
            name = f"{f.name}.{c.name}"
            wished = f"; the fitted runs would take it {wish}" if held is not None and name not in held else ""
            sentences[name] = f"{c.name} = {c.value:g} (at its {side} bound: {why}{wished})"
    return sentences


def outside_bounds(program: Program) -> list[str]:
    """A sentence for each constant whose value lies outside its bounds."""
    constants = (c for f in program.functions for c in f.constants)
    return [
        f"{c.name} = {c.value:g} lies outside {low:g} to {high:g}: a fit of it moves it in"
        for c, (low, high) in zip(constants, bounds(program), strict=True)
        if not low <= c.value <= high
    ]


def clipped_exponents(program: Program) -> list[str]:
    """A sentence for each constant that is an exponent outside the range of `pow`."""
    sentences = []
    for f in program.functions:
        exponents = [n.args[1] for n in nodes(f) if isinstance(n, Call) and n.name == "pow"]
        names = {n.name for exponent in exponents for n in walk(exponent) if isinstance(n, Const)}
        sentences += [
            f"{c.name} = {c.value:g} (beyond {math.copysign(POW_LIMIT, c.value):g}, to which pow clips its exponent: "
            "any such value gives the same times)"
            for c in f.constants
            if c.name in names and abs(c.value) > POW_LIMIT
        ]
    return sentences


def too_narrow(program: Program) -> list[str]:
    """One line for each constant whose bounds in the text give its sign and, within a factor of 10, its size.

    Bounds that include 0 limit a constant but do not say what it is.

    >>> too_narrow(parse("def step_time(b, s, *, c: us[3, 4] = 3, d: us[0, 4] = 3): return c + d"))
    ['step_time: bounds [3, 4] give the value of c within a factor of 10: leave them out, widen them or include 0']
    """
    remedy = f"within a factor of {LEAST_SPAN:g}: leave them out, widen them or include 0"
    return [
        f"{f.name}: bounds [{c.bounds[0]:g}, {c.bounds[1]:g}] give the value of {c.name} {remedy}"
        for f in program.functions
        for c in f.constants
        if c.bounds and _narrow(*c.bounds)
    ]


def _narrow(low: float, high: float) -> bool:
    least, most = sorted((abs(low), abs(high)))
    return (low > 0.0 or high < 0.0) and most < LEAST_SPAN * least


def kernel_factors(program: Program) -> tuple[bool, ...]:
    """bool[theta]: True for a constant that is a factor of measured kernels and nothing else."""
    flags: list[bool] = []
    for f in program.functions:
        names = _kernel_factors(*unexpanded(f)) if f.name == "step_time" else set()
        flags += [c.name in names for c in f.constants]
    return tuple(flags)


def kernel_adjustments(program: Program) -> tuple[bool, ...]:
    """bool[theta]: True for a constant that only adjusts measured kernels where switches are 1."""
    flags: list[bool] = []
    for f in program.functions:
        names = _adjustments(*unexpanded(f)) if f.name == "step_time" else set()
        flags += [c.name in names for c in f.constants]
    return tuple(flags)


def _kernel_factors(normal: Normal, root: Polynomial) -> set[str]:
    """Constants that occur only as `constant * time of measured kernels`, where that time does not occur bare."""
    return _alone(normal, root, lambda m: _kernel_time(normal, m))


def _adjustments(normal: Normal, root: Polynomial, eager: bool = False) -> set[str]:
    """The same for `constant * time of measured kernels * switches`. `eager`: those with UNCAPTURED among these."""

    def adjusts(m: Monomial) -> bool:
        rest = tuple((i, power) for i, power in m if normal.atoms[i].name not in SWITCHES or power != 1)
        of = {normal.atoms[i].name for i, _ in m}
        return len(rest) < len(m) and _kernel_time(normal, rest) and (not eager or UNCAPTURED in of)

    return _alone(normal, root, adjusts)


def _alone(normal: Normal, root: Polynomial, wanted: Callable[[Monomial], bool]) -> set[str]:
    """Constants that occur only as `constant * a wanted product`, where that product does not occur bare."""
    factors: set[str] = set()
    others: set[str] = set()
    for p in (root, *(arg for atom in normal.atoms for arg in atom.args)):
        bare = {m for m, _ in p if all(normal.atoms[i].kind == "field" for i, _ in m)}
        for m, c in p:
            names = {normal.atoms[i].name for i, _ in m if normal.atoms[i].kind == "const"}
            rest = tuple((i, power) for i, power in m if normal.atoms[i].kind != "const")
            single = c == 1.0 and len(names) == 1 and all(power == 1 for _, power in m)
            (factors if single and rest not in bare and wanted(rest) else others).update(names)
    return factors - others


def _kernel_time(normal: Normal, m: Monomial) -> bool:
    """True if the product is the time of a measured kernel: a field, or a field per token or pair times those."""
    names = {normal.atoms[i].name: power for i, power in m}
    if any(power != 1 for power in names.values()):
        return False
    kernel = [name for name in names if name[2:] in KERNELS]
    if len(kernel) != 1:
        return False
    return set(names) == {kernel[0]} | ({_PER[kernel[0]]} if kernel[0] in _PER else set())


def _function_limits(function: Function) -> tuple[BoundLimit, ...]:
    """The limits of a method's constants, whatever their values."""
    return _limits_of(replace(function, constants=tuple(replace(c, value=0.0) for c in function.constants)))


@lru_cache(maxsize=4096)  # a program is fitted several times: as a whole, in folds, from other values
def _limits_of(function: Function) -> tuple[BoundLimit, ...]:
    normal, root = unexpanded(function)
    everything = (root, *(arg for atom in normal.atoms for arg in atom.args))
    below = {normal.atoms[i].name for p in everything for m, _ in p for i, power in m if power < 0}
    limits = {
        c.name: BoundLimit(LEAST_DIVISOR, math.inf, "a divisor")
        if c.name in below
        else BoundLimit(0.0, math.inf, _NOT_NEGATIVE)
        for c in function.constants
    }
    if function.name == "step_time":
        factors, divisors = _physical(function, normal, root)
        for name in limits:
            if name in divisors:
                limits[name] = BoundLimit(
                    LEAST_EFFICIENCY, 1.0, f"{LEAST_EFFICIENCY:.0%} of the datasheet's peak", _DATASHEET
                )
            if name in factors:
                low = min(factors[name], limits[name].high)
                if low > limits[name].low:
                    limits[name] = replace(limits[name], low=low, why_low=_DATASHEET)
        kernel = BoundLimit(*KERNEL_FACTOR, _KERNEL.format("half"), _KERNEL.format("twice"))
        adjustment = BoundLimit(*ADJUSTMENT, "0.7 times the kernel's time", "a kernel's time once more")
        limits |= dict.fromkeys(_kernel_factors(normal, root), kernel)
        limits |= dict.fromkeys(_adjustments(normal, root), adjustment)
        eager = replace(adjustment, low=EAGER_ADJUSTMENT[0], why_low=_NOT_NEGATIVE)
        limits |= dict.fromkeys(_adjustments(normal, root, eager=True), eager)
    annotated = "as annotated"
    return tuple(
        limits[c.name] if c.bounds is None else BoundLimit(*c.bounds, annotated, annotated) for c in function.constants
    )


def _physical(function: Function, normal: Normal, root: Polynomial) -> tuple[dict[str, float], set[str]]:
    """The pure numbers that multiply a datasheet time in the function, with their least values, and those that divide
    one."""
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
    """For every atom: True for a max or choice that may be a datasheet time, and the constants it may equal."""
    timed: list[bool] = []
    constants: list[set[str]] = []
    for atom in normal.atoms:
        branches = _branches(atom.kind, atom.args) if atom.kind in ("max", "positive", "zero") else ()
        timed.append(any(_datasheet_time(normal, m, timed) for arg in branches for m, _ in arg))
        alone = [i for p in branches if len(p) == 1 for i, power in p[0][0] if power == 1]
        constants.append({atom.name} if atom.kind == "const" else set().union(*(constants[i] for i in alone)))
    return timed, constants


def _times(normal: Normal, root: Polynomial) -> list[Polynomial]:
    """The method's result and the operands of its max, min, choices and products, without conditions and arguments."""
    times, seen = [root], {root}
    for p in times:  # grows while it is walked
        for i in {i for m, _ in p for i, _ in m}:
            atom = normal.atoms[i]
            if atom.kind in (*BRANCHES, "product"):
                new = [arg for arg in _branches(atom.kind, atom.args) if arg not in seen]
                seen.update(new)
                times += new
    return times


def _datasheet_time(normal: Normal, m: Monomial, timed: list[bool]) -> bool:
    """True if the product has a datasheet time as a factor."""
    powers = {normal.atoms[i].name: power for i, power in m if normal.atoms[i].kind == "field"}
    if any(power > 0 and name[2:] in PHYSICAL for name, power in powers.items()):
        return True
    if any(powers.get(work, 0) > 0 and powers.get(peak, 0) < 0 for work, peak in _WORK.items()):
        return True
    return any(power > 0 and timed[i] for i, power in m)


def _branches(kind: str, args: tuple[Polynomial, ...]) -> tuple[Polynomial, ...]:
    """The operands that are values: not the condition of a choice."""
    return args[1:] if kind in ("positive", "zero") else args
