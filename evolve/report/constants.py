"""The constants of a program by what they are worth on another GPU, read off the fields that each multiplies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from simulator.language.affine import affine
from simulator.language.ir import (
    Call,
    Choose,
    Const,
    Expr,
    Field,
    Function,
    Neg,
    Number,
    Op,
    Program,
    inlined,
    nodes,
    walk,
)
from simulator.language.unparse import spell
from simulator.schema import KERNELS, READABLE

KERNEL, DATASHEET, OWN_STEP = "measured kernel", "datasheet", "own step"
STEP, HOST, SHAPE = "in a step", "host", "shape"
KINDS = {
    KERNEL: "a factor on measured kernels, whose times the other GPU's table brings; the factor is assumed to hold",
    DATASHEET: "a factor on times over a datasheet's peak, which the other GPU's scales; the factor is assumed to hold",
    OWN_STEP: "a factor on the program's own step time, which scales with the GPU",
    STEP: "a time in a step that no GPU field scales: to be fitted again on another GPU",
    HOST: "a time outside of steps that no GPU field scales, of host and engine: to be fitted again on another host",
    SHAPE: "not a factor: it bends or switches terms, and is worth elsewhere what it is worth here only by assumption",
}
NO_CONSTANT = "no constant"
WITHOUT = (
    "a time of measured kernels or over a datasheet's peak that no constant multiplies: the other GPU's table or "
    "datasheet brings it, and no fit can change it"
)
REFERENCE = "reference_step_us"


@dataclass(frozen=True, slots=True)
class Classified:
    """A constant, its value and unit, what kind of KINDS it is of, and the features that it multiplies."""

    method: str
    name: str
    value: float
    kind: str
    features: tuple[str, ...]
    position: int  # in `program.theta`


def classified(program: Program) -> list[Classified]:
    """The constants of a program in the order of `program.theta`, each with its kind.

    The kind is the first of measured kernels, datasheet and own step that a feature reads which the constant
    multiplies. If none is read, the constant is of the step in step_time, and of the host in other methods. Other than
    a factor it is a shape.
    """
    found: list[Classified] = []
    for function in program.functions:
        features = _features(function)
        for c in function.constants:
            mine = features.get(c.name, [])
            kind = _kind(mine, function.name) if mine else SHAPE
            found.append(Classified(function.name, c.name, c.value, kind, tuple(map(spell, mine)), len(found)))
    return found


def bare_terms(program: Program) -> list[str]:
    """The terms without a constant whose time another GPU's table of kernels or datasheet brings.

    The same field may be in a term with a constant too: then it counts in both.
    """
    bare = [
        (addend, f.name)
        for f in program.functions
        for piece in affine(f).pieces
        for t in piece.terms
        if t.constant is None
        for addend in _addends(t.feature)
    ]
    return list(dict.fromkeys(spell(feature) for feature, method in bare if _is_bare(feature, method)))


def bare_times(program: Program, factor: float) -> Program:
    """The program with its `bare_terms` times `factor`, and all else as it is."""

    def rewritten(f: Function) -> Function:
        linear = set(affine(f).linear)

        def with_constant(e: Expr) -> bool:
            return any(isinstance(n, Const) and n.name in linear for n in walk(e))

        def scaled(e: Expr) -> Expr:
            match e:
                case Op("+" | "-" as op, left, right):
                    return Op(op, scaled(left), scaled(right))
                case Neg(value):
                    return Neg(scaled(value))
                case Choose(condition, then, other):
                    return Choose(condition, scaled(then), scaled(other))
                case Call("max" | "min" as name, args):
                    return Call(name, tuple(map(scaled, args)))
                case Op("*", left, right) if with_constant(right) and not with_constant(left):
                    return Op("*", left, scaled(right))
                case Op("*" | "/" as op, left, right) if with_constant(left) and not with_constant(right):
                    return Op(op, scaled(left), right)
            return Op("*", Number(factor), e) if not with_constant(e) and _is_bare(e, f.name) else e

        return replace(f, body=(), result=scaled(inlined(f)))

    return replace(program, functions=tuple(map(rewritten, program.functions)))


def _addends(e: Expr) -> list[Expr]:
    """The terms of a sum, from left to right."""
    return [*_addends(e.left), *_addends(e.right)] if isinstance(e, Op) and e.op == "+" else [e]


def _is_bare(feature: Expr, method: str) -> bool:
    return _kind([feature], method) in (KERNEL, DATASHEET)


def kernel_fields(program: Program) -> list[str]:
    """The fields of measured kernels that the program reads."""
    read = {n.name for f in program.functions for n in nodes(f) if isinstance(n, Field) and n.scope == "b"}
    return [name for name in KERNELS if name in read]


def _features(function: Function) -> dict[str, list[Expr]]:
    """The factor of each affine constant of a method, on any choice of branches."""
    features: dict[str, list[Expr]] = {}
    for piece in affine(function).pieces:
        for term in piece.terms:
            if term.constant and term.feature not in (mine := features.setdefault(term.constant, [])):
                mine.append(term.feature)
    return features


def _kind(features: Iterable[Expr], method: str) -> str:
    fields = {(n.scope, n.name) for e in features for n in walk(e) if isinstance(n, Field)}
    if any(name in KERNELS for _, name in fields):
        return KERNEL
    # a unit with microseconds is a time over a peak of the GPU, or such a peak
    if any("us" in READABLE[field].unit.split("/") for field in fields if field != ("s", REFERENCE)):
        return DATASHEET
    if ("s", REFERENCE) in fields:
        return OWN_STEP
    return STEP if method == "step_time" else HOST
