"""defaults.yaml: the alpha and beta coefficients of a program that is one affine formula, and a remark for others."""

from __future__ import annotations

import json
from collections.abc import Mapping

from simulator.language.evaluate import value
from simulator.language.ir import Expr, Field, Function, Let, Local, Neg, Number, Op, Program, rebuild, walk
from simulator.language.opcodes import formula
from simulator.schema import FIELDS
from translate_go.deployment import Deployment
from translate_go.spelling import clean

Affine = dict[str, float]  # field as written, "" for the intercept -> coefficient in microseconds per unit

_ELSEWHERE = """\
# Nothing to merge: this program is not one affine formula of its fields, so it has no alpha and beta coefficients.
# Its constants live in evolved.go.
"""
_NOTE = """\
# Entry for the `models` list of the host's defaults.yaml. The generated backend does not read it: its constants are
# those of evolved.go. alpha: queueing = alpha[0] + alpha[1] * input length; alpha[2] per output token.
"""


class NotAffine(Exception):
    """The expression is not a weighted sum of fields."""


def defaults_yaml(program: Program, deployment: Deployment | None) -> str:
    """The fragment; the deployment's facts, if given, are numbers in it."""
    facts = deployment.facts if deployment else {}
    try:
        step = affine(program.function("step_time"), facts)
        queueing = affine(program.function("queueing_time"), facts)
        token = affine(program.function("output_token_time"), facts)
    except NotAffine:
        return _ELSEWHERE
    if set(queueing) - {"", "r.input_len"} or set(token) - {""}:
        return _ELSEWHERE
    alpha = [
        (queueing.get("", 0.0), "us"),
        (queueing.get("r.input_len", 0.0), "us/token of the prompt"),
        (token.get("", 0.0), "us per output token"),
    ]
    host = {"", "b.prefill_tokens", "b.decode_reqs"}
    if set(step) <= host:
        order = ["", "b.prefill_tokens", "b.decode_reqs"]
        remark = "# beta: the host's own order: intercept, prefill tokens, decode tokens.\n"
    else:
        order = ["", *(name for name in step if name)]
        remark = "# beta: intercept, then one coefficient for each field named beside it.\n"
    beta = [(step.get(name, 0.0), f"{name or 'intercept'}, {_unit(name)}") for name in order]
    label = deployment or Deployment("", {})
    lines = [
        f"  - id: {json.dumps(clean(label.model or label.name) or 'MODEL')}",
        f"    GPU: {json.dumps(clean(label.hardware) or 'GPU')}",
        f"    tensor_parallelism: {int(facts.get('tp', 1))}",
    ]
    for name, coefficients in (("alpha_coeffs", alpha), ("beta_coeffs", beta)):
        lines += [f"    {name}:", *(f"      - {number!r}  # {what}" for number, what in coefficients)]
    return _NOTE + remark + "models:\n" + "\n".join(lines) + "\n"


def affine(function: Function | None, facts: Mapping[str, float]) -> Affine:
    """The function as coefficients of fields; {} where it is missing. Raises NotAffine."""
    if function is None:
        return {}
    names = {c.name: c.value for c in function.constants}
    lets: dict[str, Expr] = {}
    for part in function.body:
        if not isinstance(part, Let):
            raise NotAffine
        lets[part.name] = _unfold(part.value, lets)
    return _affine(_unfold(function.result, lets), names, facts)


def _unfold(node: Expr, lets: Mapping[str, Expr]) -> Expr:
    result = rebuild(node, lambda n: lets[n.name] if isinstance(n, Local) else n)
    if sum(1 for _ in walk(result)) > 2000:
        raise NotAffine  # lets that double each other
    return result


def _affine(node: Expr, names: Mapping[str, float], facts: Mapping[str, float]) -> Affine:
    if not any(isinstance(n, Field) for n in walk(node)):
        return {"": value(node, names, {})}
    match node:
        case Field("s", name) if name in facts:
            return {"": float(facts[name])}
        case Field("b", name) if FIELDS["b", name].formula:
            try:
                return _affine(formula(name), {}, facts)
            except NotAffine:
                return {f"b.{name}": 1.0}
        case Field(scope, name):
            return {f"{scope}.{name}": 1.0}
        case Neg(inner):
            return _scaled(_affine(inner, names, facts), -1.0)
        case Op("+" | "-" as op, left, right):
            a, b = _affine(left, names, facts), _affine(right, names, facts)
            b = b if op == "+" else _scaled(b, -1.0)
            return {k: a.get(k, 0.0) + b.get(k, 0.0) for k in {**a, **b}}
        case Op("*" | "/" as op, left, right):
            a, b = _affine(left, names, facts), _affine(right, names, facts)
            if set(b) <= {""}:
                number = Number(b.get("", 0.0))
                return {k: value(Op(op, Number(x), number), {}, {}) for k, x in a.items()}
            if op == "*" and set(a) <= {""}:
                return _scaled(b, a.get("", 0.0))
    raise NotAffine


def _scaled(terms: Affine, factor: float) -> Affine:
    return {k: factor * x for k, x in terms.items()}


def _unit(name: str) -> str:
    if not name:
        return "us"
    unit = FIELDS[name[0], name[2:]].unit
    return "us" if unit == "one" else f"us/({unit})" if "/" in unit or "*" in unit else f"us/{unit}"
