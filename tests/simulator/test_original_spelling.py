"""The original proposal's spelling is read by the one reader: seeds, an evolved program, units, seconds, mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simulator.language.evaluate import evaluate
from simulator.language.infer import check_units
from simulator.language.key import key
from simulator.language.parse import parse, read
from simulator.language.source import ProgramError
from simulator.language.unparse import unparse

CASES = Path(__file__).parents[3] / "shared" / "data" / "cases" / "original-spelling"

# a body of predict_step_time, with ; for a new line and > for an indent, and the same in the language's own spelling
SAME = """
return b['o'] + b['p'] * b['prefill_tokens'] ~ (o=100, p=1) return o + p * b.prefill_tokens
x = b['kv_max'] * b['decode_reqs'] * 0.004; return b['o'] + x ~ (o=100, k=1) return o + k * b.kv_max * b.decode_reqs
return max(b['w'] * b['decode_reqs'], b['kv_mean'] * b['k']) ~ (w=1, k=1) return max(w * b.decode_reqs, k * b.kv_mean)
x = b['total_flops'] / b['peak_throughput']; y = b['total_bytes'] / b['peak_bandwidth']; return max(x, y) * 1e6 + b['o'] ~
  (o=100) return max(b.total_flops / s.flops_per_us, b.total_bytes / s.bytes_per_us) + o
if b['prefill_tokens'] > 64:; > return b['u'] * b['kv_max']; else:; > return b['v'] * b['kv_mean'] + b['w'] ~
  (u=1, v=1, w=1, limit=64) return u * b.kv_max if b.prefill_tokens > limit else v * b.kv_mean + w
return b['o'] * math.log1p(b['kv_mean']) ~ (o=1, k=1) return o * log1p(k * b.kv_mean)
return b['o'] * math.log(1 + b['kv_mean']) ~ (o=1, k=1) return o * log(1 + k * b.kv_mean)
return c * (b['prefill_tokens'] + b['decode_reqs']) ~ (c=3, k=1) return c * (b.prefill_tokens + k * b.decode_reqs)
x = c * b['tokens']; return math.sqrt(x**2 + x ** 2) ~ (c=1) x = c * b.tokens; return sqrt(x * x + x * x)
if b['is_moe']:; > return c * b['tokens']; return b['d'] ~ (c=1, d=1) return c * b.tokens if s.is_moe != 0 else d
c = c * b['tokens']; return c + CONSTANTS['c'] * b['kv_max'] ~ (c=1) return c * b.tokens + c * b.kv_max
"""


def lines(text: str) -> str:
    return "".join(f"    {re.sub('^> ', '    ', line)}\n" for line in text.split("; "))


@pytest.mark.parametrize("line", SAME.strip().replace("~\n ", "~").split("\n"))
def test_what_is_read_as_what(line: str) -> None:
    theirs, ours = line.split(" ~ ")
    table = "CONSTANTS = {'c': 3.0}\n" if "c " in theirs.replace("'", " ") else ""
    text = f"import math\ndef predict_step_time(b):\n{lines(theirs)}"
    for whole in {table + text, text + table}:  # the table may stand above or below
        program = check_units(parse(whole), "mine.py")
        head, body = ours[1:].split(") ", 1)
        same = parse(f"def step_time(b, s, *, {head}):\n{lines(body)}")
        assert key(program) == key(same)
        assert parse(unparse(program)) == program
        assert len(program.theta) == len(same.theta)


def test_seconds_become_microseconds() -> None:
    text = "def predict_step_time(b): return b['total_flops'] / b['peak_throughput'] * 1e6"
    assert unparse(parse(text)) == "def step_time(b, s):\n    return b.total_flops / s.flops_per_us\n"
    fields = {("b", "total_flops"): 3e12, ("s", "flops_per_us"): 1e9}
    assert evaluate(parse(text).functions[0], fields) == 3e12 / (1e9 * 1e6) * 1e6


@pytest.mark.parametrize(
    "formula",
    [
        "b['total_flops'] / b['peak_throughput']",
        "b['total_flops'] / b['peak_throughput'] * 1e6 * 1e6",
        "b['c'] + b['total_flops'] / b['peak_throughput']",
        "max(1, b['total_flops'] / b['peak_throughput']) * 1e6",
        "(b['total_flops'] if b['tokens'] > 1e6 else 0) / b['peak_throughput'] * 1e6",
    ],
)
def test_times_in_seconds_are_refused(formula: str) -> None:
    with pytest.raises(ProgramError, match=r"^mine.py:1: b\['peak_throughput'\] counts per second"):
        parse(f"def predict_step_time(b): return {formula}", "mine.py")


REFUSED = """
b['prefil_tokens'] ~ unknown field b.prefil_tokens: did you mean b.prefill_tokens?
b['if'] ~ a subscript of something else
b['max'] ~ the name 'max' is taken
CONSTANTS['c'] ~ CONSTANTS has no 'c'
c1 ~ unknown name 'c1'
math.floor(b['c']) ~ cannot call
b.peak_throughput ~ unknown field b.peak_throughput
"""


@pytest.mark.parametrize("line", REFUSED.strip().split("\n"))
def test_what_is_no_name_of_a_constant(line: str) -> None:
    formula, why = line.split(" ~ ")
    assert why in read(f"def predict_step_time(b): return {formula}").mistakes[0].why


def test_seconds_are_of_the_original_spelling_alone() -> None:
    assert "unknown field" in str(read("def step_time(b, s): return b.tokens / s.peak_throughput").mistakes[0])


@pytest.mark.skipif(not CASES.is_dir(), reason="no cases of the original spelling")
def test_the_cases_are_read() -> None:
    for path in sorted(CASES.glob("*.py")):
        program = check_units(parse(path.read_bytes(), path.name), path.name)
        assert parse(unparse(program)) == program
