"""Records are written as JSON and read back by their fields; a damaged one is named with its place."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import yaml

from simulator.common.errors import InputError
from simulator.common.records import DamagedRecord, derived, from_json, stored, to_json


class Pair(NamedTuple):
    low: float
    high: float | None


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    share: float | None = None


@dataclass(frozen=True)
class Whole:
    ident: int = stored(key="id")
    error: float = stored(old=("joint",))
    kind: Literal["a", "b"]
    rows: tuple[tuple[str, float | None, float | None], ...]
    parts: Sequence[Part]
    by_number: Mapping[int, float]
    pair: Pair
    seen: bool = stored(lacking=False)
    count: int = stored(default=1, limits=(1, 9))
    notes: tuple[str, ...] = stored(default=(), brief=True)
    spelled: float = stored(default=0.0, read=float, write=str)
    free: Any = None
    largest: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "largest", max(row[1] or 0.0 for row in self.rows))

    @derived
    def size(self) -> int:
        return len(self.rows)


_PARTS = (Part("p"), Part("q", 0.5))
EXAMPLE = Whole(
    *(7, 2.5, "a", (("x", 1.0, None), ("y", None, 2.0)), _PARTS, {3: 1.5}, Pair(1.0, None), True),
    *(2, ("n",), 0.25, {"k": [1]}),
)
WRITTEN = yaml.safe_load("""{id: 7, error: 2.5, kind: a, rows: [[x, 1.0, null], [y, null, 2.0]],
    parts: [{name: p, share: null}, {name: q, share: 0.5}], by_number: {"3": 1.5}, pair: [1.0, null], seen: true,
    count: 2, notes: [n], spelled: "0.25", free: {k: [1]}, size: 2}""")


def changed(**values: Any) -> dict[str, Any]:
    return {**json.loads(json.dumps(to_json(EXAMPLE))), **values}


def test_a_record_is_written_by_its_fields() -> None:
    assert to_json(EXAMPLE) == WRITTEN and list(to_json(EXAMPLE)) == list(WRITTEN)
    assert "notes" not in to_json(Whole(7, 2.5, "a", (("x", 1.0, None),), (), {}, Pair(1.0, 2.0), True))


def test_a_record_reads_itself_back() -> None:
    for _ in range(2):  # the second time, its types are known
        again = from_json(Whole, changed(), "whole.json")
        assert again == EXAMPLE
        assert again.largest == 1.0


def test_files_of_older_releases_are_read() -> None:
    old = changed(joint=3.5)
    for key in ("error", "seen", "count", "notes"):
        del old[key]
    read = from_json(Whole, old, "whole.json")
    assert (read.error, read.seen, read.count, read.notes) == (3.5, False, 1, ())


def test_keys_of_later_releases_are_ignored() -> None:
    assert from_json(Whole, changed(later=1), "whole.json") == EXAMPLE


def test_whole_numbers_are_numbers() -> None:
    read = from_json(Whole, changed(error=3, rows=[["x", 1, None]]), "whole.json")
    assert isinstance(read.error, float)
    assert isinstance(read.rows[0][1], float)


# place ~ damaged value (YAML)
DAMAGED = """
id ~ id: "7" ; id ~ id: true ; id ~ id: null ; id ~ id: 7.0 ; error ~ error: .nan ; error ~ error: .inf
error ~ error: "2.5" ; kind ~ kind: c ; kind ~ kind: [a] ; rows ~ rows: xy ; rows ~ rows: {} ; rows[0] ~ rows: [{}]
rows[1] ~ rows: [[x, 1.0, null], [y, 2.0]] ; rows[0][0] ~ rows: [[3, 1.0, null]] ; rows[0] ~ rows: [abc]
rows[0][2] ~ rows: [[x, 1.0, .nan]] ; rows[0][1] ~ rows: [[x, "", null]] ; parts[0].name ~ parts: [{}]
parts[1].share ~ parts: [{name: p}, {name: q, share: true}] ; parts[0] ~ parts: [[]] ; by_number.x ~ by_number: {x: 1.0}
by_number.3 ~ by_number: {"3": "1"} ; pair ~ pair: [1.0] ; pair.low ~ pair: ["1", 2.0] ; seen ~ seen: 1
count ~ count: 0 ; count ~ count: 10 ; id ~ id: 9007199254740993 ; by_number.3 ~ by_number: {"3": 1.0e+308} ; notes[0] ~ notes: [1] ; spelled ~ spelled: x
"""


@pytest.mark.parametrize("case", re.split(" ; |\n", DAMAGED.strip()))
def test_a_damaged_value_is_named(case: str) -> None:
    place, change = case.split(" ~ ")
    changes = yaml.safe_load(change)
    from_json(Whole, changed(), "whole.json")
    with pytest.raises(DamagedRecord) as error:
        from_json(Whole, changed(**changes), "whole.json")
    assert str(error.value).startswith(f"cannot read whole.json, {place}: ")


@pytest.mark.parametrize("raw", [None, [], "text", 3, {}, {1: 2}])
def test_what_is_no_record_is_refused(raw: object) -> None:
    with pytest.raises(InputError, match=r"cannot read whole.json.*\. Make it again\.$"):
        from_json(Whole, raw, "whole.json", "make it again")


@pytest.mark.parametrize("value", [np.float64(1.0), np.int64(1), np.zeros(2), {1, 2}, {(1, 2): 3}, object()])
def test_other_values_have_no_form_in_json(value: object) -> None:
    with pytest.raises(TypeError):
        to_json([value])


def test_a_class_may_write_and_read_itself() -> None:
    @dataclass(frozen=True)
    class Own:
        text: str

        def to_json(self) -> str:
            return self.text

        @classmethod
        def from_json(cls, raw: Any) -> Own:
            return cls(raw["text"])

    assert to_json({"own": Own("x")}) == {"own": "x"}
    assert from_json(Own, {"text": "x"}, "own.json") == Own("x")
    with pytest.raises(DamagedRecord):
        from_json(Own, {}, "own.json")


def test_threads_read_rows_side_by_side() -> None:
    """The names of rows recur and are shared, but not between files that are read at the same time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:

        def wrong(n: int) -> int:
            rows = [[f"{n} {i}", 1.0, 2.0] for i in range(1 + n)]
            expected = tuple(map(tuple, rows))
            raw = changed(rows=rows)
            return sum(from_json(Whole, raw, "whole.json").rows != expected for _ in range(2000))

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(wrong, range(4))) == 0
    finally:
        sys.setswitchinterval(before)
