"""An elite: a candidate program that was fitted and scored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from archive.score import CellErrors, Errors, Score, rounded
from simulator.common.errors import LARGEST_NUMBER, LARGEST_WHOLE
from simulator.common.json import JsonObject, renamed
from simulator.common.records import reader_of, record_class, stored
from simulator.language.ir import Program
from simulator.language.parse import parse

OLD_KEYS = {"joint": "mean_error", "transfer": "group_out", "sound": "consistent"}  # of releases up to 0.3
SEED = "seed:"  # prefix of a starting program's name, its operator
UNMEASURED = 1e3  # percent; stands in for a leave-group-out error that was not measured
OBJECTIVES = 5  # of an elite


@dataclass(frozen=True, slots=True)
class Elite:
    """A scored candidate. All errors are in percent.

    - id: the number of its proposal.
    - key: identifies the form that was proposed, without the values of its constants. text: the program, from which
      constants that do nothing are dropped, so that its own key may be another one.
    - operations, constants, features: the size of the program; features are the distinct fields it reads.
    - operator: what proposed it. parents: ids of the elites it was made from.
    - group_out: the error on runs that were left out of the fit (evaluator.group_out); None if it was not measured.
      cells: the errors of cells that it is the mean of.
    - consistent: True if it contradicts nothing that is known about the hardware.
    """

    id: int
    key: str
    text: str
    operations: int
    constants: int
    features: int
    score: Score
    operator: str
    parents: tuple[int, ...]
    group_out: float | None = None
    consistent: bool = True
    cells: tuple[tuple[str, float], ...] = ()

    @property
    def program(self) -> Program:
        """The program, parsed when it is asked for (`parse` remembers texts): most elites of a journal never are."""
        return parse(self.text)

    @property
    def mean_error(self) -> float:
        return self.score.mean_error

    @property
    def worst3(self) -> float:
        return self.score.worst3

    @property
    def complexity(self) -> int:
        """Operations plus constants."""
        return self.operations + self.constants

    @property
    def charged_group_out(self) -> float:
        """The leave-group-out error by which elites are compared: an unmeasured one counts as the worst."""
        return UNMEASURED if self.group_out is None else self.group_out

    @property
    def objectives(self) -> tuple[float, float, float, float, float]:
        """(worst3, mean error, complexity, charged group-out, error of the TTFT's p99), all to be minimised."""
        s = self.score
        return (s.worst3, s.mean_error, float(self.complexity), self.charged_group_out, s.ttft_p99 or 0.0)

    def above(self, other: Elite) -> tuple[float, float]:
        """(mean difference of the errors left out to another elite, its standard error); NaN without these."""
        return CellErrors(self.cells).above(CellErrors(other.cells))

    def rounded(self) -> Elite:
        """The elite with its errors rounded as in a journal."""
        cells, group_out = CellErrors(self.cells).rounded().cells, rounded(self.group_out)
        return replace(self, score=self.score.rounded(), group_out=group_out, cells=cells)

    def to_json(self) -> JsonObject:
        """The elite as a JSON object, in which the figures of its score stand beside its own."""
        entry: JsonObject = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "score":
                entry |= {name: getattr(self.score, name) for name in ("worst3", "mean_error", "e2e", "ttft", "itl")}
                entry["rows"] = [list(row) for row in self.score.rows]
                if self.score.ttft_p99 is not None:  # lines of older releases, and of data without any, have none
                    entry["ttft_p99"] = self.score.ttft_p99
            elif f.name != "cells":
                entry[f.name] = value
            elif value:  # lines of older releases have none
                entry[f.name] = dict(value)
        return entry | {"parents": list(self.parents)}

    @classmethod
    def from_json(cls, raw: JsonObject) -> Elite:
        """The elite of a JSON object; those of older releases have other names for some keys. Called by records."""
        k: _Kept = reader_of(_Kept)(renamed(raw, OLD_KEYS) if "joint" in raw else raw)
        new = tuple.__new__  # a long journal has millions of rows: this is the fastest way to make them
        score = Score(
            tuple([new(Errors, row) for row in k.rows]), k.e2e, k.ttft, k.itl, k.mean_error, k.worst3, k.ttft_p99
        )
        sizes, cells = (k.operations, k.constants, k.features), tuple(k.cells.items())
        return cls(k.id, k.key, k.text, *sizes, score, k.operator, k.parents, k.group_out, k.consistent, cells)


_COUNT, _ERROR = (0, LARGEST_WHOLE), (0.0, LARGEST_NUMBER)


@record_class
class _Kept:
    """The JSON object of an elite."""

    id: int = stored(limits=_COUNT)
    key: str
    text: str
    operations: int = stored(limits=_COUNT)
    constants: int = stored(limits=_COUNT)
    features: int = stored(limits=_COUNT)
    worst3: float = stored(limits=_ERROR)
    mean_error: float = stored(limits=_ERROR)
    e2e: float | None = stored(limits=_ERROR)
    ttft: float | None = stored(limits=_ERROR)
    itl: float | None = stored(limits=_ERROR)
    rows: tuple[tuple[str, float | None, float | None, float | None], ...]
    operator: str
    parents: tuple[int, ...]
    cells: Mapping[str, float] = stored(lacking={}, limits=_ERROR)
    group_out: float | None = stored(default=None, limits=_ERROR)
    ttft_p99: float | None = stored(default=None, limits=_ERROR)
    consistent: bool = True


def example(**changes: Any) -> Elite:
    """A made-up elite with some fields, or figures of its score, changed: for examples and tests."""
    score = Score((Errors("chat", -2.0, 4.0, 3.0),), 2.0, 4.0, 3.0, mean_error=3.0, worst3=9.0)
    elite = Elite(1, "form", "def step_time(b, s): return b.kernel_us", 10, 5, 4, score, "add", ())
    figures = {f.name: changes.pop(f.name) for f in fields(Score) if f.name in changes}
    return replace(elite, **{"score": replace(score, **figures), **changes})
