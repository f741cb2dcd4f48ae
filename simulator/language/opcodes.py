"""Program -> opcodes: a flat table of three-address rows that the compiled clock runs as data.

The value vector holds the constants, then the raw batch fields, then input_len, the reference step and the unequal
tokens of other ranks, then deployment fields, literals and temporaries in the order in which they come up. Rows that
depend on constants and deployment only come first and run once per deployment; then the rows of step_time that change
with the batch; then those of queueing_time. Equal sub-expressions share a slot.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache

import numpy as np

from simulator.common.errors import InputError
from simulator.language import ir
from simulator.language.forest import Forest, block
from simulator.language.ir import Expr, Function, Program, rebuild, walk
from simulator.language.reader import Scope, expression
from simulator.language.source import ProgramError, syntax_tree
from simulator.schema import CURVES, RAW, READABLE, SPECIAL, TREES, marked

# The operations by name, and the number of each in a row. The compiled kernels use the numbers as constants.
OPERATIONS = (
    *("+", "-", "*", "/", "neg", "max", "min", "sqrt", "log", "log1p", "exp", "pow"),
    *("<", "<=", ">", ">=", "==", "!=", "select"),
    *("experts_fraction", "graph_batch", "graph_tokens", "curve", "softplus", "forest"),
)
ADD, SUB, MUL, DIV, NEG, MAX, MIN, SQRT, LOG, LOG1P, EXP, POW = range(12)
LT, LE, GT, GE, EQ, NE, SELECT = range(12, 19)
EXPERTS_FRACTION, GRAPH_BATCH, GRAPH_TOKENS, CURVE, SOFTPLUS, FOREST = range(19, 25)
_NUMBER = {name: number for number, name in enumerate(OPERATIONS)}
# How many operands of a row are values: the others are 0, or where the block of a curve or of a forest begins.
VALUES = (*(2,) * 4, 1, *(2,) * 2, *(1,) * 4, *(2,) * 7, *(3,) * 4, *(1,) * 3)

STATIC, STEP, REQUEST = 0, 1, 2  # when a row runs: once per deployment, once a step, once a prompt length

CONTEXT = tuple(f.name for f in marked("context"))  # raw fields that change as requests decode

# The methods that the search knows, in the order of `Code.results`, and the position of each there.
RESULTS = ("step_time", "queueing_time", "output_token_time", "completion_time")
STEP_TIME, QUEUEING_TIME, OUTPUT_TOKEN_TIME, COMPLETION_TIME = range(len(RESULTS))
REFERENCE = 1  # slots from `Code.request` to that of reference_step_us
# Slots from `Code.request` to that of the tokens by which b.all_tokens differs from its formula. It is 0 but in replays
# of several ranks, which know the batches of the others.
UNEQUAL = 2


@dataclass(frozen=True)
class Code:
    """A program's opcodes, and the layout of the value vector."""

    rows: np.ndarray  # uint32[n, 5]: operation, slot of the result, slots of the operands a, b, c
    static: int  # rows[:static] run once per deployment
    step: int  # rows[static:step] run once a step, rows[step:] once a prompt length
    slots: int  # length of the value vector
    constants: int  # how many there are, from slot 0 on
    statics: tuple[tuple[int, str], ...]  # (slot, name) of the s. fields
    literals: tuple[tuple[int, float], ...]  # (slot, value)
    curves: tuple[tuple[int, str], ...]  # (first slot, name): the number of knots, then the values at the knots
    forest: tuple[int, np.ndarray] | None  # first slot, and its block: simulator.language.forest.block
    raw: int  # first slot of the raw batch fields
    request: int  # slot of input_len; those of REFERENCE and UNEQUAL follow
    results: tuple[int, ...]  # slots of RESULTS, -1 where a method is missing
    uses: frozenset[str]  # raw fields that any row reads
    meets: bool  # True if any row reads b.all_tokens
    moving: np.ndarray  # bool[n]: rows that depend on the context of requests (CONTEXT)


class _Assembler:
    """Collects rows. An operation and its operands identify a slot, so that equal ones coincide."""

    def __init__(self, constants: int, forest: Forest | None) -> None:
        self.constants = constants
        self.forest = forest
        self.block: tuple[int, np.ndarray] | None = None
        self.when: dict[int, int] = {}  # slot -> STATIC | STEP | REQUEST
        self.slots: dict[tuple[object, ...], int] = {}  # literal, or operation and operands -> slot
        self.rows: list[tuple[int, int, int, int, int]] = []
        self.statics: list[tuple[int, str]] = []
        self.literals: list[tuple[int, float]] = []
        self.curves: dict[str, int] = {}
        self.inputs: dict[tuple[str, str], int] = {}
        self.derived: dict[str, int] = {}  # batch field with a formula -> slot
        self.unequal = -1  # the slot that UNEQUAL names
        self.next = constants
        for i in range(constants):
            self.when[i] = STATIC
        if not constants:  # unused operands refer to slot 0, which must never depend on the batch
            self.fresh(STATIC)

    def fresh(self, when: int) -> int:
        self.when[self.next] = when
        self.next += 1
        return self.next - 1

    def literal(self, value: float) -> int:
        if ("literal", value) not in self.slots:
            self.slots["literal", value] = slot = self.fresh(STATIC)
            self.literals.append((slot, value))
        return self.slots["literal", value]

    def input(self, scope: str, name: str) -> int:
        """The slot of a deployment, raw batch or request field."""
        if (scope, name) not in self.inputs:
            if scope == "s" and name != "reference_step_us":
                slot = self.fresh(STATIC)
                self.statics.append((slot, name))
            else:
                slot = self.fresh(STEP if scope == "b" else REQUEST)
            self.inputs[scope, name] = slot
        return self.inputs[scope, name]

    def curve(self, name: str) -> int:
        """The first slot of the deployment's curve."""
        if name not in self.curves:
            self.curves[name] = self.fresh(STATIC)
            self.next += CURVES[name]  # slots that no row names: only the operation `curve` reads them
        return self.curves[name]

    def emit(self, op: str, a: int, b: int = 0, c: int = 0) -> int:
        identity = (op, a, b, c)
        if identity not in self.slots:
            when = max(self.when[slot] for slot in (a, b, c))
            if op == "graph_batch":
                when = STEP
            slot = self.slots[identity] = self.fresh(when)
            self.rows.append((_NUMBER[op], slot, a, b, c))
        return self.slots[identity]


def assemble(program: Program) -> Code:
    """The opcodes of the four timed methods; scheduling and preemption change nothing that is measured.

    Raises InputError for a program that reads `b.trees` and has no ensemble.
    """
    assembler = _Assembler(len(program.theta), program.forest)
    raw = [assembler.input("b", name) for name in RAW]
    request = assembler.input("r", "input_len")
    assembler.input("s", "reference_step_us")
    assembler.unequal = assembler.fresh(STEP)
    results, first = dict.fromkeys(RESULTS, -1), 0
    for function in program.functions:
        if function.name in results:
            results[function.name] = _function(function, first, assembler)
        first += len(function.constants)
    ordered = sorted(assembler.rows, key=lambda row: assembler.when[row[1]])  # stable: operands stay before their use
    counts = [sum(assembler.when[row[1]] <= when for row in ordered) for when in (STATIC, STEP)]
    moved, moving = {slot for name, slot in zip(RAW, raw, strict=True) if name in CONTEXT}, []
    for _, slot, *operands in ordered:
        moving.append(not moved.isdisjoint(operands))
        if moving[-1]:
            moved.add(slot)
    read = {slot for row in ordered for slot in row[2:]} | set(results.values())
    return Code(
        rows=np.array(ordered, dtype=np.uint32).reshape(-1, 5),
        static=counts[0],
        step=counts[1],
        slots=assembler.next,
        constants=assembler.constants,
        statics=tuple(assembler.statics),
        literals=tuple(assembler.literals),
        curves=tuple((slot, name) for name, slot in assembler.curves.items()),
        forest=assembler.block,
        raw=raw[0],
        request=request,
        results=tuple(results.values()),
        uses=frozenset(name for name, slot in zip(RAW, raw, strict=True) if slot in read),
        meets=assembler.unequal in read,
        moving=np.array(moving, dtype=np.bool_),
    )


@cache
def formula(name: str) -> Expr:
    """The expression of a derived batch field over other fields; of a field with a curve, where the curve is read."""
    field = READABLE["b", name]
    text = field.at or field.formula
    assert text is not None, name
    return _formula(text, f"schema field b.{name}")


@cache
def operands(name: str) -> tuple[ir.Field, ...]:
    """The operands of a batch field that is an operation (schema.SPECIAL)."""
    return tuple(ir.Field(*key.split(".")) for key in READABLE["b", name].operands)


@cache
def feature(text: str) -> Expr:
    """The expression of a feature of an ensemble. Raises ProgramError for what is none."""
    parsed = _formula(text, "feature")
    if ir.Field("b", TREES.name) in walk(parsed):
        raise ProgramError("feature", 1, "b.trees cannot be read by its own ensemble: use another field")
    return parsed


def _formula(text: str, where: str) -> Expr:
    """The expression of a formula with its numbers fixed: no fit changes them. Raises ProgramError for other texts."""
    scope = Scope(("b", "s"), {}, where)
    match syntax_tree(text, where).body:
        case [ast.Expr(value=node)]:
            parsed = expression(node, scope)
        case _:
            raise ProgramError(where, 1, f"{text[:60]!r} is not a formula: write one over b. and s. fields")
    numbers = {c.name: ir.Number(c.value) for c in scope.constants.values()}
    return rebuild(parsed, lambda n: numbers[n.name] if isinstance(n, ir.Const) else n)


def _function(function: Function, first: int, assembler: _Assembler) -> int:
    names = {c.name: first + i for i, c in enumerate(function.constants)}
    guards: list[tuple[int, int]] = []
    for statement in function.body:
        match statement:
            case ir.Let(name, value):
                names[name] = _lower(value, names, assembler)
            case ir.Guard(condition, value):
                guards.append((_compare(condition, names, assembler), _lower(value, names, assembler)))
    result = _lower(function.result, names, assembler)
    for test, early in reversed(guards):
        result = assembler.emit("select", test, early, result)
    return result


def _compare(node: ir.Compare, names: dict[str, int], assembler: _Assembler) -> int:
    return assembler.emit(node.op, _lower(node.left, names, assembler), _lower(node.right, names, assembler))


def _lower(node: Expr, names: dict[str, int], assembler: _Assembler) -> int:
    match node:
        case ir.Number(value):
            return assembler.literal(value)
        case ir.Const(name) | ir.Local(name):
            return names[name]
        case ir.Field("b", name) if name in SPECIAL:
            return assembler.emit(name, *(_lower(operand, names, assembler) for operand in operands(name)))
        case ir.Field("b", TREES.name):
            return _trees(assembler)
        case ir.Field("b", name) if name not in RAW:
            if name not in assembler.derived:
                value, curve = _lower(formula(name), {}, assembler), READABLE["b", name].curve
                if name == "all_tokens":
                    value = assembler.emit("+", value, assembler.unequal)
                assembler.derived[name] = assembler.emit("curve", value, assembler.curve(curve)) if curve else value
            return assembler.derived[name]
        case ir.Field(scope, name):
            return assembler.input(scope, name)
        case ir.Neg(value):
            return assembler.emit("neg", _lower(value, names, assembler))
        case ir.Op(op, left, right):
            return assembler.emit(op, _lower(left, names, assembler), _lower(right, names, assembler))
        case ir.Call(name, args):
            slot = _lower(args[0], names, assembler)
            if len(args) == 1:
                return assembler.emit(name, slot)
            for arg in args[1:]:
                slot = assembler.emit(name, slot, _lower(arg, names, assembler))
            return slot
        case ir.Choose(condition, then, other):
            test = _compare(condition, names, assembler)
            return assembler.emit("select", test, _lower(then, names, assembler), _lower(other, names, assembler))


NO_FOREST = "b.trees: the program reads an ensemble of trees and has none: give its file, with the ensemble next to it"


def _trees(assembler: _Assembler) -> int:
    """The slot of exp(leaves + correction of the phase). Raises InputError without an ensemble.

    The operation that walks the trees has the sum of the features as an operand: it runs whenever one of them changes.
    """
    forest = assembler.forest
    if forest is None:
        raise InputError(NO_FOREST)
    if assembler.block is None:
        slots = [_lower(feature(text), {}, assembler) for text in forest.features]
        total = slots[0]
        for slot in slots[1:]:
            total = assembler.emit("+", total, slot)
        first = assembler.fresh(STATIC)
        assembler.block = first, block(forest, slots)
        assembler.next = first + len(assembler.block[1])  # slots that no row names, as those of curves
        phases = forest.corrections
        decode, mixed, prefill = map(assembler.literal, (phases.decode, phases.mixed, phases.prefill))
        with_prefill = assembler.emit("select", assembler.input("b", "decode_reqs"), mixed, prefill)
        correction = assembler.emit("select", assembler.input("b", "prefill_reqs"), with_prefill, decode)
        leaves = assembler.emit("forest", total, first)
        assembler.derived[TREES.name] = assembler.emit("exp", assembler.emit("+", leaves, correction))
    return assembler.derived[TREES.name]
