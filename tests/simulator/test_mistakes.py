"""All mistakes of a text are found, each once, and none that only follows from another."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pytest

from simulator.language.infer import UnitError, check_units, infer
from simulator.language.parse import parse, read
from simulator.language.reader import MOST_MISTAKES
from simulator.language.source import ProgramError

HEAD = "def step_time(b, s, *, c: us = 1.0, d: one = 2.0):\n"


def mistakes(text: str) -> list[str]:
    """Lines and reasons, without the remedies."""
    return [f"{mistake.line} {mistake.why.split(': ')[0]}" for mistake in read(text).mistakes]


# the text after the head, and the mistakes on its lines, without their remedies
MISTAKES = {
    "    return c * b.tokenz + d * s.layerz": "2 unknown field b.tokenz; 2 unknown field s.layerz",
    "    x = ceil(b.tokenz, y)\n    return x": (
        "2 cannot call 'ceil'; 2 unknown field b.tokenz; 2 unknown name 'y'; 1 step_time; 1 step_time"
    ),
    "    x = c ** d\n    return x // s.tpp": ("3 operator FloorDiv is not part of the language; 3 unknown field s.tpp"),
    # what a statement that cannot be read assigns and uses is not complained of again
    "    for i in d:\n        x = c * i\n    return x + i": "2 a loop is not part of the language",
    "    c = d\n    c = d\n    return c": "1 step_time",
    "    if c > 1 and d > 2:\n        return q\n    return c": "3 unknown name 'q'",
    "    if c > 1 and d > 2:\n        return c": "2 and, or, not are not part of the language; 1 no return at the end",
    "    return c + d\n    x = 1": "3 nothing may follow a return",
    "    x = c + d": "1 no return at the end; 1 step_time",
    # a wrong head has constants all the same
    "def step_time(b, s, c, *, d: sec = 2.0, e):\n    return c + d + e + b.x": (
        "1 step_time takes (b, s, *, constants...); 1 'sec' is not a unit; 1 constant 'e' has no value; 2 unknown field b.x"
    ),
    "import os\ndef other(b): return 1\ndef queueing_time(r, s): return r.x": (
        "1 only functions are allowed here, not an import; 2 unknown function 'other'; 3 unknown field r.x; 1 no step_time"
    ),
    "CONSTANTS = {'a': 'x', 'if': 1.0, 'z': 2.0}\ndef predict_step_time(b):\n"
    "    return CONSTANTS['a'] + CONSTANTS['y'] + b['token']": (
        "1 a name in CONSTANTS is not a plain quoted identifier; 1 'x' is not a number; 3 CONSTANTS has no 'y'; "
        "3 unknown field b.token; 1 constant 'z' is never used"
    ),
}


@pytest.mark.parametrize(("body", "found"), list(MISTAKES.items()))
def test_all_mistakes_are_found(body: str, found: str) -> None:
    text = (HEAD if body.startswith(" ") else "") + body + "\n"
    assert "; ".join(mistakes(text)) == found
    with pytest.raises(ProgramError) as error:
        parse(text)
    assert str(error.value) == str(read(text).mistakes[0])


def test_mistakes_are_not_counted_beyond_a_limit() -> None:
    text = HEAD + "".join(f"    x{i} = b.f{i}\n" for i in range(300)) + "    return c + d\n"
    assert len(mistakes(text)) == MOST_MISTAKES


def clashes(text: str) -> Sequence[str]:
    return [clash.why for function in read(text).program.functions for clash in infer(function).clashes]


def test_a_mistake_has_any_unit() -> None:
    assert clashes(f"{HEAD}    return c + b.tokenz + c * exp(b.tokenz)\n") == []
    [other] = clashes(f"{HEAD}    x = b.tokenz\n    return c + x + d\n")
    assert other.startswith("cannot add c + x (us) and d (one)")


def test_a_clash_is_told_once_where_the_time_is_known() -> None:
    [only] = clashes(f"{HEAD}    return d * s.layers + c\n")
    assert only.startswith("cannot add d * s.layers (one) and c (us): multiply the first by a constant of us")


def test_errors_can_be_sent_between_processes() -> None:
    for error in (ProgramError("mine.py", 3, "why"), UnitError("mine.py", 4, "units: why")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.line, again.why) == (type(error), str(error), error.line, error.why)
    with pytest.raises(UnitError, match=r"^mine\.py:2: units: "):
        check_units(parse(f"{HEAD}    return c + d\n"), "mine.py")
