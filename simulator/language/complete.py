"""The meaning of a missing method: the host's own alpha coefficients and overheads, to be fitted."""

from __future__ import annotations

from simulator.language.ir import METHODS, Const, Constant, Field, Function, Op, Program
from simulator.language.units import read

_US = read("us")

DEFAULTS = (
    Function(
        "queueing_time",
        (Constant("alpha0", 5000.0, _US), Constant("alpha1", 0.0, read("us/token"))),
        (),
        Op("+", Const("alpha0"), Op("*", Const("alpha1"), Field("r", "input_len"))),
    ),
    Function("output_token_time", (Constant("per_token", 0.0, _US),), (), Const("per_token")),
    Function("completion_time", (Constant("completion", 0.0, _US),), (), Const("completion")),
)


def complete(program: Program) -> Program:
    """The program with every missing timed method written out. Scheduling and preemption remain 0."""
    functions = {f.name: f for f in (*DEFAULTS, *program.functions)}
    return Program(tuple(functions[name] for name in METHODS if name in functions), program.doc, program.forest)
