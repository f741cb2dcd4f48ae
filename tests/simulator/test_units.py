"""Units: what a program's constants must be measured in, and what cannot be added to what."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from grown import grown

from evolve.run.program import load as load_program
from evolve.run.program import seed_names
from simulator.language import units
from simulator.language.evaluate import evaluate
from simulator.language.infer import UnitError, check_units, infer
from simulator.language.ir import Program
from simulator.language.parse import parse
from simulator.schema import FIELDS


def step(body: str, **constants: str) -> Program:
    """A step_time with one `return`, or with statements before it; constants by name with their annotation or ''."""
    head = ", ".join(f"{name}{': ' + unit if unit else ''} = 2.0" for name, unit in constants.items())
    lines = body.replace("; ", "\n    ") if "return" in body else f"return {body}"
    return parse(f"def step_time(b, s{', *, ' + head if head else ''}):\n    {lines}")


# formula (or statements) | units of its constants as given, "" for none | as found
FOUND = """
a * b.tokens | a: | a: us/token
a / b.tokens | a: | a: us*token
b.total_bytes / a + b.total_flops / c | a:, c: | a: byte/us, c: flop/us
a * (b.weight_read_us + b.kv_read_us) | a: | a: one
a * b.tokens * c | a:, c: | a: None, c: None
a * b.tokens * c + a * b.kv_var | a:, c: | a: us/token**2, c: token
a * b.tokens * c + a | a:, c: | a: us, c: one/token
max(a, c * b.decode_reqs) | a:, c: us/request | a: us, c: us/request
a if b.tokens > c else b.weight_read_us | a:, c: | a: us, c: token
x = a + b.kv_max; return c * x | a:, c: | a: token, c: us/token
if b.tokens >= a: return c; return 2 | a:, c: | a: token, c: us
a * sqrt(b.kv_var) | a: | a: us/token
a * sqrt(b.tokens) | a: | a: us/token**(1/2)
a * log1p(b.tokens / c) | a:, c: | a: us, c: token
a * softplus(b.tokens / c) | a:, c: | a: us, c: token
a * exp(-c) | a:, c: | a: us, c: one
a * pow(b.tokens, 2) | a: | a: us/token**2
a * pow(b.tokens, -0.5) | a: | a: us*token**(1/2)
a * pow(b.tokens, c) | a:, c: | a: us/token**c, c: one
a * pow(b.tokens / c, d) | a: us, c:, d: | a: us, c: token, d: one
a * pow(b.tokens, c) / pow(b.kv_max, c) | a: us, c: | a: us, c: one
3 * b.tokens | | k1: us/token
# a bare 1 is of whatever it stands beside, 0 of anything, a factor 2 of nothing
a * max(1, b.tokens) + 0 | a: | a: us/token
a if b.batch_size > 1 else 0 | a: | a: us
2 * a + 0.5 * b.weight_read_us | a: | a: us
a * (b.tokens - 1) * -1 + 0 * b.kv_sum | a: | a: us/token
"""


def units_of(cell: str) -> dict[str, str]:
    return {name.strip(): unit.strip() for name, unit in (pair.split(":") for pair in cell.split(",") if ":" in pair)}


def lines(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")] for line in table.strip().splitlines() if line[0] != "#"]


@pytest.mark.parametrize(("body", "constants", "expected"), lines(FOUND))
def test_the_units_of_constants_are_found(body: str, constants: str, expected: str) -> None:
    program = step(body, **units_of(constants))
    assert check_units(program, "p.py") is program
    found = {name: str(unit) for name, unit in infer(program.functions[0]).units.items()}
    assert found == units_of(expected)


# formula (or statements) | units of its constants as given | the problem | the remedy, of some
REFUSED = """
b.tokens | | 2: units: step_time returns us, b.tokens is token | multiply it by a constant of us/token
b.tokens + b.weight_read_us | | 2: units: cannot add b.tokens (token) and b.weight_read_us (us) | multiply the first by a constant of us/token
a * (b.prefill_tokens + b.decode_reqs) | a: | 2: units: cannot add b.prefill_tokens (token) and b.decode_reqs (request)
x = a * b.tokens; return x - b.kv_read_us | a: one | 3: units: cannot subtract x (token) and b.kv_read_us (us)
max(a, b.tokens, c) | a: us, c: us | 2: units: cannot take the larger or smaller of a (us) and b.tokens (token) | multiply the second by a constant of us/token, or correct the unit of a
if b.tokens > s.layers: return a; return 2 * a | a: us | 2: units: cannot compare b.tokens (token) and s.layers (one)
if b.tokens > 1: return b.tokens; return a | a: us | 2: units: step_time returns us, b.tokens is token
a if b.tokens > 1 else b.kv_sum | a: us | 2: units: cannot choose between a (us) and b.kv_sum (token)
a * log(b.tokens) | a: us | 2: units: log takes a pure number (one), b.tokens is token | divide it by a constant of token
a * exp(b.kv_read_us) | a: us | 2: units: exp takes a pure number (one), b.kv_read_us is us
a * softplus(b.kv_read_us) | a: us | 2: units: softplus takes a pure number (one), b.kv_read_us is us
softplus(b.tokens / b.kv_max) | | 2: units: step_time returns us, softplus(b.tokens / b.kv_max) is one
a * pow(b.tokens / b.kv_max, c) | a: us, c: token | 2: units: the exponent of pow takes a pure number (one), c is token
a * pow(b.tokens, c) | a: us/token, c: | 2: units: step_time returns us, a * pow(b.tokens, c) is us*token**c/token | a constant without a unit, or leave out the unit of a
a * b.tokens + 4000 | a: us/request | 2: units: step_time returns us, a * b.tokens + 4000 is us*token/request
b.weight_read_us + sqrt(b.kv_read_us) | | 2: units: cannot add b.weight_read_us (us) and sqrt(b.kv_read_us) (us**(1/2))
a * b.tokens + a * b.kv_var | a: | 2: units: cannot add a * b.tokens (token*[a]) and a * b.kv_var (token**2*[a])
"""


@pytest.mark.parametrize("cells", lines(REFUSED))
def test_units_that_do_not_fit_are_refused(cells: list[str]) -> None:
    body, constants, problem, *remedy = cells
    with pytest.raises(UnitError) as error:
        check_units(step(body, **units_of(constants)), "p.py")
    assert str(error.value).startswith(f"p.py:{problem}: ") and str(error.value).endswith(*remedy or [""])


def test_every_method_returns_microseconds() -> None:
    head = "def step_time(b, s, *, a=1.0): return a\n"
    for method, formula in (("queueing_time(r, s)", "r.input_len"), ("completion_time(s)", "s.block_size")):
        with pytest.raises(UnitError, match=rf"^p.py:2: units: {method.split('(')[0]} returns us"):
            check_units(parse(f"{head}def {method}: return {formula}"), "p.py")


def test_units_of_shipped_programs_and_of_the_original_dialect_fit() -> None:
    for name in seed_names():
        check_units(load_program(name).complete, name)
    text = "CONSTANTS = {'c': 5.0, 'base': 7}\ndef predict_step_time(b): return CONSTANTS['c'] * b['kv_sum'] + CONSTANTS['base']"
    assert infer(parse(text).functions[0]).units == {"c": "us/token", "base": "us"}


class Rescaled(Mapping[tuple[str, str], float]):
    """Random positive fields, each in units of which one base unit is `factors` old ones."""

    def __init__(self, seed: int, factors: Mapping[str, float]) -> None:
        self.seed, self.factors = seed, factors

    def __getitem__(self, field: tuple[str, str]) -> float:
        rng = np.random.default_rng([self.seed, list(FIELDS).index(field)])
        return float(rng.uniform(1.0, 100.0)) * scale(FIELDS[field].unit, self.factors)

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(FIELDS)

    def __len__(self) -> int:
        return len(FIELDS)


def scale(unit: str, factors: Mapping[str, float]) -> float:
    size = 1.0
    for base, exponent in zip(units.BASES, units.read(unit), strict=True):
        size *= factors[base] ** exponent
    return size


def test_a_consistent_formula_has_one_value_in_any_units() -> None:
    plain = dict.fromkeys(units.BASES, 1.0)
    other = {"us": 1e-3, "token": 7.0, "request": 0.25, "byte": 8.0, "flop": 3.0}
    checked = 0
    for seed in range(60):
        program = grown(seed)
        for function in program.functions:
            found = infer(function)
            assert not found.clashes, found.clashes
            if any(unit is None or "(" in unit for unit in found.units.values()):
                continue  # a root of a unit: no annotation spells it
            values = [c.value * scale(found.units[c.name] or "one", other) for c in function.constants]
            rescaled = Program((function,)).with_theta(tuple(values)).functions[0]
            old, new = evaluate(function, Rescaled(seed, plain)), evaluate(rescaled, Rescaled(seed, other))
            assert new == pytest.approx(old * other["us"], rel=1e-9)
            checked += 1
    assert checked > 120
