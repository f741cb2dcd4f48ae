"""What the emitter writes for a field: the variable that formulas read, and the expression that gives its value."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.language.ir import Field
from simulator.schema import RAW, READABLE, TREES
from translate_go.batch import sum_update, value_of, variable
from translate_go.deployment import SETTINGS
from translate_go.goexpr import GoAtom, GoExpr, show
from translate_go.lower import Lowering
from translate_go.naming import DEFAULT
from translate_go.spelling import GoNames, batch_name, fact
from translate_go.target import TARGETS
from translate_go.trees import call_of_trees


@dataclass(frozen=True, slots=True)
class GoField:
    """A field in Go. variable: in formulas. expression: its value, from fields, sums over the batch (b.), facts of the
    deployment (d.) and settings of the engine (o.). update: the statement by which a request adds to that sum, "" for
    other fields."""

    variable: str
    expression: str
    update: str


def read_as(field: Field) -> GoExpr:
    """The Go expression by which formulas read a field. Raises KeyError for a field that does not exist."""
    if field.scope == "b":
        return GoAtom(batch_name(variable(field.name)))
    if field.scope == "r":
        return GoAtom(READABLE["r", field.name].go)
    if field.name == "reference_step_us":
        return GoAtom("m.referenceStepUs")
    return GoAtom(f"{'o' if field.name in SETTINGS else 'd'}.{fact(field.name)}")


def go_field(scope: str, name: str) -> GoField:
    """The field as the emitter writes it for blis-4 under the default name, each expression on one line.

    >>> go_field("b", "kv_read_us")
    GoField(variable='kvReadUs', expression='float64(d.KvUsPerToken * kvSum)', update='')
    """
    read = show(read_as(Field(scope, name)))
    if scope == "r":
        return GoField(read, TARGETS["blis-4"].prompt_float64, "")
    if scope == "s":
        return GoField(read, read, "")
    real = variable(name)  # a second name for a field is that field in Go
    update = sum_update(real) if real in RAW else ""
    if real == TREES.name:
        return GoField(read, show(call_of_trees(DEFAULT)), "")
    return GoField(read, show(value_of(real, Lowering(GoNames(DEFAULT), read_as, set()))), update)
