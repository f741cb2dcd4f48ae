"""The meaning of a missing method: the host's own alpha coefficients and overheads, to be fitted."""

from __future__ import annotations

from simulator.language.ir import METHODS, Const, Constant, Expr, Field, Function, Op, Program, with_returns
from simulator.language.measure import features
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


def for_host(program: Program) -> Program:
    """The complete program for the host, which composes every step as it begins.

    Where an engine composes steps ahead, a request misses one more (clock/exact.py). The host's interface can say that
    as a part of queueing_time alone, which does not see the load: as the time of the reference step. A program that
    reads no deployment is for engines that compose ahead, as vLLM does by default.
    """
    missed: Expr = Field("s", "reference_step_us")
    functions = complete(program).functions
    if any(name.startswith("s.") for name in features(program)):
        missed = Op("*", Field("s", "async_scheduling"), missed)
    late = (with_returns(f, lambda us: Op("+", us, missed)) if f.name == "queueing_time" else f for f in functions)
    return Program(tuple(late), program.doc, program.forest)
