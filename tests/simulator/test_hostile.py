"""Bad texts: one line that says where, what and how to fix it, at once, and nothing is ever run."""

from __future__ import annotations

import ast
import ctypes
import os
import pickle
import re
import socket
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from complaints import COMPLAINTS, DEEP, HEAD, body
from fuzz_language import follow, nothing_but_computation, read, warm
from hostile_texts import texts
from hypothesis import example, given
from hypothesis import strategies as st
from written_programs import VALID

from simulator.common.errors import InputError
from simulator.language.infer import check_units
from simulator.language.ir import CALLS, METHODS, Program
from simulator.language.parse import parse
from simulator.language.source import ProgramError
from simulator.language.unparse import unparse
from translate_go import TARGETS, emit


def generic(message: str) -> str:
    """Without the parser's own words, which change between versions of Python."""
    return re.sub(r"not valid syntax \(.*\)", "not valid syntax (...)", message)


@pytest.mark.parametrize("name", COMPLAINTS)
def test_complaints(name: str) -> None:
    text, complaint = COMPLAINTS[name]
    with pytest.raises(ProgramError) as error:
        parse(text, "p.py")
    message = str(error.value)
    assert generic(message) == generic(f"p.py:{complaint}")
    assert isinstance(error.value, InputError)
    assert len(message.splitlines()) == 1 and message.isprintable() and len(message) < 250
    line, _, why = complaint.partition(": ")
    assert line.isdigit() and ": " in why, "a place, a reason and a remedy"


# nothing but ProgramError, whatever comes in

WORDS = """import os|return |def |if |else |elif |lambda |class |for | in |not | and |async |await |yield |match |case
b|s|r|.|tokens|layers|b.tokens|s.tp|b['tokens']|CONSTANTS|predict_step_time|(b, s):|(b, s, *, a=1):|(b):|(|)|[|]|{|}|,|:|;|=|==
<|>|:=|*|**|/|//|+|-|%|@|~|->|\\|#|'|"|f'{|rb'|0|1|2.5|1e9|1j|0x|0b2|1_0|1__0|é|ﬁ|True|None|us|one|us/token[0, 5]|_|type |print("""
BLANKS = [*" \n\t\r\f\0\x1b\u2028\ud800\ufeff", "\n    ", "\n        ", "\\\n", '"""']
PIECES = [*METHODS, *CALLS, *re.split(r"[|\n]", WORDS), *BLANKS]


def survives(text: str | bytes) -> None:
    """Either a program, which then survives its own text, or one line of complaint."""
    try:
        program = parse(text)
    except ProgramError as e:
        assert "\n" not in str(e) and str(e).isprintable() and str(e).startswith("program:")
        return
    assert isinstance(program, Program)
    assert parse(unparse(program)) == program


@given(st.text() | st.binary() | st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
@example("def step_time(b, s):\f return 1")
@example("\\")
@example("x = '''\\")
def test_random_texts(text: str | bytes) -> None:
    survives(text)


@given(st.sampled_from(VALID), st.data())
def test_damaged_programs(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        begin = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(begin, min(len(text), begin + 6)))
        text = text[:begin] + data.draw(st.sampled_from(["", *PIECES]) | st.text(max_size=2)) + text[end:]
    survives(text)


OPENINGS = "(|[|{|-|1+|1<|lambda:|a(|a[|f(a=|b.|{1:|*|~|max(1,|f'{|not |x if |[a for |(yield |await |1 if 1<1 else "
REPEATED = [*OPENINGS.split("|"), "'\\", "\n if 1<1:", "\\\n"]


@given(st.sampled_from(REPEATED), st.integers(1, 20_000), st.sampled_from(["", "1", ")", "]", ":"]))
def test_repeated_pieces(piece: str, times: int, end: str) -> None:
    survives((HEAD + piece * (min(times, 19_900) // len(piece)) + end)[:20_000])
    survives((HEAD + piece * (min(times, 150) // len(piece)) + end)[:20_000])


def test_a_program_as_deep_as_can_be_survives() -> None:
    depths = []
    for n in range(80, 120):
        text = HEAD + "-" * n + "9"  # the number becomes a constant's name
        survives(text)
        try:
            parse(text)
            depths.append(n)
        except ProgramError as e:
            assert str(e) == f"program:2: {DEEP}"
    assert 90 < max(depths) < 100


# nothing is run, nothing is opened, nothing is printed


@pytest.mark.parametrize(
    "action",
    [
        lambda: print("text"),
        lambda: warnings.warn("text", stacklevel=2),
        lambda: os.listdir("."),
        lambda: eval("1"),
        lambda: ast.parse("(", "text"),
        lambda: socket.socket(socket.AF_INET),
        lambda: pickle.loads(b"cos\nsystem\n."),
        lambda: ctypes.string_at(b"x"),
        lambda: sys.modules.update(text=os),
    ],
)
def test_the_watch_sees(action: Callable[[], object]) -> None:
    try:
        with pytest.raises(AssertionError), nothing_but_computation():
            action()
    finally:
        sys.modules.pop("text", None)


def test_texts_of_the_fuzzing() -> None:
    warm()
    for text in [text for text, _ in COMPLAINTS.values()]:
        assert read(text)[1] is None
    verdicts = []
    for text in texts(0, 300):
        verdict, program = read(text)
        verdicts.append(verdict)
        if program is not None:
            follow(program)
    assert verdicts.count("accepted") > 50 and len(set(verdicts)) > 20, "consistent ones, and bad ones of many kinds"


def assigned(first: str, each: str, n: int, last: str, head: str = ", *, a: one = 1.5") -> str:
    """x0 = first, x1 = each(x0), ..., return last(xn)."""
    lines = [f"x0 = {first}", *(f"x{i} = {each.format(f'x{i - 1}')}" for i in range(1, n + 1))]
    return f"def step_time(b, s{head}):\n    " + "\n    ".join([*lines, f"return {last.format(f'x{n}')}"])


# sound or not, each once took minutes or broke something behind the parser
FOUND = {
    "max in max": HEAD + "max(" * 19 + "b.tokens" + ", 1, 1)" * 19,
    "a max of what it was": assigned("b.tokens", "max({0}, -{0})", 39, "a * {0}"),
    "a sum that branches": assigned("b.tokens", "max({0}, b.kv_sum) + {0}", 19, "a * {0}"),
    "a large product": HEAD + "b.total_flops * b.total_bytes * b.kv_var * b.tokens",
    "squares of squares": assigned("a", "{0} * {0}", 11, "{0} * s.layers", ", *, a: one = 10"),
    "a branch of what it was": assigned("a", "{0} if {0} < 1 else -{0}", 39, "{0}", ", *, a=1.0"),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_the_fuzzing_found(name: str) -> None:
    program = parse(FOUND[name])
    follow(program)
    for target in TARGETS:
        assert emit(program, target=target)


def test_a_program_that_is_long_once_written_out_is_refused() -> None:
    with pytest.raises(
        ProgramError, match=r"^program:1: written out it has \d+ bytes, at most 20000 are read: shorten"
    ):
        parse("'''" + '"' * 12_000 + "'''\n" + HEAD + "1")


def test_a_unit_of_long_names_is_cut_short() -> None:
    names = [c * 64 for c in "abcdefgh"]
    head = ", ".join(f"{n}=1" for n in names)
    text = f"def step_time(b, s, *, {head}):\n p = {' * '.join(names)}\n return p * b.tokens + p * s.layers"
    with pytest.raises(ProgramError) as error:
        check_units(parse(text), "program")
    assert len(str(error.value)) < 300


# EFFECT stands for code with an effect, "; " for a new line of a body, " ;" for another line
PLACES = """
EFFECT
import os ;os.system('touch mark')
HEADEFFECT
HEADb.tokens + EFFECT
HEADf'{EFFECT}'
HEADb[EFFECT]
HEADsqrt(EFFECT)
HEAD1 if EFFECT else 2
HEAD[EFFECT for x in (1,)]
HEAD(lambda: EFFECT)()
HEAD1 ;EFFECT
def step_time(b, s, *, a=EFFECT): return a
def step_time(b, s, *, a: EFFECT = 1): return a
def step_time(b, s, *, a: us[EFFECT, 1] = 1): return a
def step_time(b, s=EFFECT): return 1
def step_time(b: EFFECT, s): return 1
def step_time(b, s) -> EFFECT: return 1
@EFFECT ;def step_time(b, s): return 1
def step_time(b, s):; EFFECT; return 1
def step_time(b, s):; x = EFFECT; return x
def step_time(b, s):; x: EFFECT = 1; return x
def step_time(b, s):; if EFFECT: return 1; return 2
class A:; EFFECT
CONSTANTS = {'a': EFFECT} ;def predict_step_time(b): return CONSTANTS['a']
CONSTANTS = {EFFECT: 1} ;def predict_step_time(b): return CONSTANTS['a']
def predict_step_time(b): return b[EFFECT]
def predict_step_time(b=EFFECT): return 1
"""


def test_nothing_is_ever_executed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mark = tmp_path / "mark"
    effect = f"(print(1), __import__('pathlib').Path({str(mark)!r}).touch())"
    for place in PLACES.strip().splitlines():
        text = (
            place.replace("EFFECT", effect)
            .replace("touch mark", f"touch {mark}")
            .replace("HEAD", HEAD)
            .replace("; ", "\n    ")
            .replace(" ;", "\n")
        )
        with pytest.raises(ProgramError):
            parse(text)
    harmless = f"# -*- coding: rot13 -*-\n'''{effect}'''\n" + body(f"{effect!r}\n    return a # {effect}")
    assert parse(harmless).functions[0].doc == effect
    assert not mark.exists()
    assert capfd.readouterr() == ("", "")


def test_no_warning_is_ever_shown(capfd: pytest.CaptureFixture[str]) -> None:
    texts = ["'\\d'\n" + HEAD + "1", *(HEAD + end for end in ("1if 1<2else 2", "1 if 1 is 1 else 2", "1()", "0x1for"))]
    for behaviour in ("error", "always"):
        with warnings.catch_warnings():
            warnings.simplefilter(behaviour)
            for text in texts:
                survives(text)
    assert capfd.readouterr() == ("", "")
