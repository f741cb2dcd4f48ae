"""What models write beyond the language is read without a change of its meaning: CPython computes the same."""

from __future__ import annotations

import pytest
from hostile_texts import texts
from hypothesis import given
from hypothesis import strategies as st
from oracle import Fields
from oracle import run as cpython

from evolve.search.llm.reading import Idea, understood, whole
from simulator.language.evaluate import evaluate
from simulator.language.parse import parse, read
from simulator.language.source import ProgramError

HEAD = "def step_time(b, s, *, c: one = 3.0, d: one = 5.0, e: one = 0.25):\n"
READ = {("b", "tokens"): 0.0, ("b", "decode_reqs"): 0.0, ("b", "kv_sum"): 0.0, ("s", "layers"): 0.0}
FIELD_NAMES = [f"{scope}.{name}" for scope, name in READ]
NAMES = ["x", "y", "c"]  # two variables, and a constant that is assigned to
VALUES = st.sampled_from([0.0, 1.0, 2.0, 3.0, 5.0, 7.5, 100.0])  # few, so that comparisons of equal ones occur
FIELDS = st.fixed_dictionaries(dict.fromkeys(READ, VALUES))


def of(body: str) -> Idea:
    return understood("", whole(HEAD + "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))))


# programs at random

ATOMS = st.sampled_from([*FIELD_NAMES, *NAMES, "d", "e", "0", "1", "2", "0.5", "7.5"])
NUMBERS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*/"), inner),
        st.builds("max({}, {})".format, inner, inner),
        st.builds("({} if {} else {})".format, inner, st.deferred(lambda: TESTS), inner),
    ),
    max_leaves=4,
)
SIGNS = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
TESTS: st.SearchStrategy[str] = st.recursive(
    st.one_of(
        st.builds("{} {} {}".format, ATOMS, SIGNS, ATOMS),
        st.builds("{} {} {} {} {}".format, ATOMS, SIGNS, NUMBERS, SIGNS, ATOMS),
    ),
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("({} or {} or {})".format, inner, inner, inner),
        st.builds("(not {})".format, inner),
    ),
    max_leaves=3,
)
ASSIGNMENTS = st.one_of(
    st.builds("{} = {}".format, st.sampled_from(NAMES), NUMBERS),
    st.builds("{} {}= {}".format, st.sampled_from(NAMES), st.sampled_from("+-*/"), NUMBERS),
)


def indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for text in lines for line in text.split("\n")]


def conditional(test: str, then: list[str], other: list[str]) -> str:
    return "\n".join([f"if {test}:", *indented(then), *(["else:", *indented(other)] if other else [])])


BRANCHES = st.lists(ASSIGNMENTS, min_size=1, max_size=2)
RETURNING = st.builds(lambda lines, value: [*lines, f"return {value}"], st.lists(ASSIGNMENTS, max_size=2), NUMBERS)
STATEMENTS = st.one_of(
    ASSIGNMENTS,
    st.builds(
        conditional,
        TESTS,
        st.lists(st.one_of(ASSIGNMENTS, st.builds(conditional, TESTS, BRANCHES, BRANCHES)), min_size=1, max_size=2),
        st.lists(ASSIGNMENTS, max_size=2),
    ),
    st.builds(conditional, TESTS, RETURNING, st.lists(ASSIGNMENTS, max_size=1)),
    st.builds(
        conditional, TESTS, st.builds(lambda a, b, c: [conditional(a, b, c)], TESTS, RETURNING, RETURNING), st.just([])
    ),
)
BODIES = st.builds(
    lambda lines, value: "\n".join(["x = b.tokens", "y = 1", *lines, f"return {value}"]),
    st.lists(STATEMENTS, max_size=4),
    NUMBERS,
)


@pytest.mark.slow
@given(BODIES, st.lists(FIELDS, min_size=4, max_size=4))
def test_programs_mean_what_they_mean_in_python(body: str, batches: list[Fields]) -> None:
    understanding = of(body)
    assert understanding.complaint == "" and understanding.program is not None
    written = HEAD + "\n".join(indented([body])) + "\n"
    for fields in batches:
        ours = evaluate(understanding.program.functions[0], fields)
        assert ours == pytest.approx(cpython(written, fields)["step_time"], nan_ok=True)


# one thing at a time


# what a model may write, and the same within the language; ; is a new line and > an indent
SAME = """
x = b.tokens; x = x + d; return x ~ x = b.tokens; x_2 = x + d; return x_2
x = b.tokens; x *= d; return x ~ x = b.tokens; x_2 = x * d; return x_2
c = 2 * c; return c + d ~ c_2 = 2 * c; return c_2 + d
d += b.tokens; d /= 2; return d ~ d_2 = d + b.tokens; d_3 = d_2 / 2; return d_3
max = c * b.tokens; return max ~ max_2 = c * b.tokens; return max_2
x_2 = c; x = d; x = x + x_2; return x ~ x_2 = c; x = d; x_3 = x + x_2; return x_3
x: us = c * b.tokens; return x ~ x = c * b.tokens; return x
return c if b.tokens > d and b.kv_sum > e else 2 ~ return (c if b.kv_sum > e else 2) if b.tokens > d else 2
return c if b.tokens > d or b.kv_sum > e else 2 ~ return c if b.tokens > d else c if b.kv_sum > e else 2
return c if not b.tokens > d else 2 ~ return 2 if b.tokens > d else c
return c if 0 < b.tokens <= d else 2 ~ return (c if b.tokens <= d else 2) if 0 < b.tokens else 2
if b.tokens > c and b.kv_sum > d:; > return e; return 2 ~ return (e if b.kv_sum > d else 2) if b.tokens > c else 2
if b.tokens > c:; > x = d; else:; > x = e; return x ~ x_2 = d; x_3 = e; x = x_2 if b.tokens > c else x_3; return x
x = c; if b.tokens > d:; > x += 1; return x ~ x = c; x_2 = x + 1; x_3 = x_2 if b.tokens > d else x; return x_3
if b.tokens > c:; > x = d + 1; > return x; return e ~ x_2 = d + 1; if b.tokens > c:; > return x_2; return e
return c ** 2 ~ return c * c
return c ** 0.5 ~ return pow(c, 0.5)
return (c - d) ** 2 ~ part_2 = c - d; return part_2 * part_2
return c if s.is_moe else 2 ~ return c if s.is_moe != 0 else 2
if not s.is_moe:; > return c; return 2 ~ return 2 if s.is_moe != 0 else c
return c * b['tokens'] / b['layers'] ~ return c * b.tokens / s.layers
return math.sqrt(c) + np.log1p(d) ~ return sqrt(c) + log1p(d)
"""


def spread(body: str) -> str:
    return "\n".join(line.replace("> ", "    ", 1) if line.startswith("> ") else line for line in body.split("; "))


@pytest.mark.parametrize("line", SAME.strip().split("\n"))
def test_what_is_read_as_what(line: str) -> None:
    body, same = map(spread, line.split(" ~ "))
    assert of(body).text == of(same).text and of(same).complaint == ""
    assert all("is never used" in mistake.why for mistake in read(HEAD + "\n".join(indented([same]))).mistakes)


def test_what_is_never_used_is_left_out_and_said() -> None:
    text = of("return c if b.tokens > d and b.kv_sum > e else 7 * b.tokens * s.layers").text
    assert text.count("s.layers") == 1 and text.count("7.0") == 1  # a part that stands twice is computed once
    understanding = of("x = b.tokens * d\nreturn c")
    assert understanding.notes == tuple(f"step_time: {name!r} is never used and was left out" for name in "xde")
    assert understanding.text == "def step_time(b, s, *, c: one = 3.0):\n    return c\n"
    table = "CONSTANTS = {'a': 1.5, 'z': 2.5}\ndef predict_step_time(b): return CONSTANTS['a'] * b['tokens']\n"
    assert understood("", whole(table)).notes == ("CONSTANTS: 'z' is never used and was left out",)
    with pytest.raises(ProgramError, match="never used"):  # the user's own files are held to it
        parse(table)


REFUSED = """
if b.tokens > c:; > x = d; return x ~ line 4: unknown name 'x'
for i in s.layers:; > c += 1; return c ~ line 2: a loop is not part of the language
if b.tokens > c:; > while d:; >     pass; > return e; return 2 ~ line 2: an if may hold one return
x, y = c, d; return x + y ~ line 2: only a single name
x = y = c; return x ~ line 2: only a single name
if c and b.tokens > d:; > return e; return 2 ~ line 2: a condition must be a comparison
b = b.tokens; return b.kv_sum ~ line 3: only fields of b and s can be read
return scipy.log(c) ~ line 2: cannot call
return math.ceil(c) ~ line 2: cannot call
"""


@pytest.mark.parametrize("line", REFUSED.strip().split("\n"))
def test_what_is_not_understood(line: str) -> None:
    body, complaint = line.split(" ~ ")
    assert complaint in of(spread(body)).complaint


def test_all_mistakes_with_the_lines_of_the_text() -> None:
    text = """
# A program with a line of its own above.

def step_time(b, s, *, c: one = 1.0, d: sec = 2.0, e: us = 3.0):
    x = c * b.kv_read_u

    y = x + b.tokens
    return max(e, y, flor) + ceil(x) * d
"""
    begin = [
        "4: 'sec' is not a unit",
        "5: unknown field b.kv_read_u",
        "8: unknown name 'flor'",
        "8: cannot call 'ceil'",
    ]
    begin += ["8: units: cannot take the larger or smaller of e (us) and y (token)"]
    found = understood("", whole(text)).complaint.split("; ")
    assert [line[len("line ") :][: len(start)] for line, start in zip(found, begin, strict=True)] == begin


HEAPS = ["if c > d and d > e:\n        return 1\n    ", "c = c if c > d or d > e else 2\n    "]
HEAPS += ["c += 1\n    ", "if c > d:\n        c = 1\n    "]


@pytest.mark.parametrize("piece", HEAPS)
def test_heaps_of_what_is_rewritten(piece: str) -> None:
    for times in (30, 200, 600):
        assert understood("", whole(f"{HEAD}    {piece * times}return c + d + e\n")).text
    deep = "c > d and (" * 60 + "d > e" + ")" * 60
    assert of(f"return 1 if {deep} else 2").text
    nested = "".join(f"{'    ' * i}if c > d and d > e:\n" for i in range(1, 45)) + "    " * 45 + "c = 1\n"
    assert understood("", whole(f"{HEAD}{nested}    return c\n")).text


@pytest.mark.slow
def test_hostile_texts_are_read_or_complained_of() -> None:
    for text in texts(seed=7, count=500):
        understanding = understood("", whole(text if isinstance(text, str) else text.decode("utf-8", "replace")))
        assert bool(understanding.complaint) != (understanding.program is not None)
        if not understanding.complaint:
            assert parse(understanding.text)  # its standard spelling is a program by the rules for users
