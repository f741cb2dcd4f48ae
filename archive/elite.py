"""An elite: a candidate program that was fitted and scored, as text and numbers."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from simulator.common.json import JsonObject

UNMEASURED = 1e3  # percent; stands in for a transfer error that was not measured
DIGITS = 6  # significant digits of errors in a journal


@dataclass(frozen=True, slots=True)
class Elite:
    """A scored candidate. All errors are in percent.

    - id: the number of its proposal.
    - key: identifies the form that was proposed, without the values of its constants. text: the program, from which
      constants that do nothing are dropped, so that its own key may be another one.
    - operations, constants, features: the size of the program; features are the distinct fields it reads.
    - worst3, joint, e2e, ttft, itl: see evaluator.score.Score. The last three are None if they were never observed.
    - rows: signed errors (experiment, e2e, ttft, itl).
    - operator: what proposed it. parents: ids of the elites it was made from.
    - transfer: the error on runs that were left out of the fit (evaluator.transfer); None if it was not measured.
    - sound: whether it is consistent with what is known about the hardware.
    - worst_e2e: the largest absolute E2E error of any experiment, NaN if E2E was never observed. It follows from `rows`
      and is kept because every choice of a champion asks for it.

    >>> Elite(
    ...     id=7, key="3f2a", text="def step_time(b, s): ...", operations=4, constants=2, features=2,
    ...     worst3=9.0, joint=3.0, e2e=2.0, ttft=4.0, itl=3.0, rows=(("chat", -2.0, 4.0, 3.0),),
    ...     operator="add", parents=(1, 2),
    ... ).worst_e2e
    2.0
    """

    id: int
    key: str
    text: str
    operations: int
    constants: int
    features: int
    worst3: float
    joint: float
    e2e: float | None
    ttft: float | None
    itl: float | None
    rows: tuple[tuple[str, float | None, float | None, float | None], ...]
    operator: str
    parents: tuple[int, ...]
    transfer: float | None = None
    sound: bool = True
    worst_e2e: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        worst = max((abs(row[1]) for row in self.rows if row[1] is not None), default=float("nan"))
        object.__setattr__(self, "worst_e2e", worst)

    @property
    def complexity(self) -> int:
        """Operations plus constants.

        >>> example(operations=10, constants=5).complexity
        15
        """
        return self.operations + self.constants

    @property
    def charged_transfer(self) -> float:
        """The transfer error by which elites are compared: an unmeasured one counts as the worst.

        >>> example(transfer=4.0).charged_transfer, example(transfer=None).charged_transfer
        (4.0, 1000.0)
        """
        return UNMEASURED if self.transfer is None else self.transfer

    @property
    def objectives(self) -> tuple[float, float, float, float]:
        """(worst3, joint, complexity, transfer), all to be minimised. An unmeasured transfer error counts as the worst.

        >>> example(worst3=9.0, joint=3.0, operations=10, constants=5).objectives
        (9.0, 3.0, 15.0, 1000.0)
        """
        return (self.worst3, self.joint, float(self.complexity), self.charged_transfer)

    def rounded(self) -> Elite:
        """The elite with its errors rounded to DIGITS significant digits, because the last bits are only noise.

        >>> example(joint=2.123456789).rounded().joint
        2.12346
        """
        rows = tuple((name, _round(e2e), _round(ttft), _round(itl)) for name, e2e, ttft, itl in self.rows)
        errors = {name: _round(getattr(self, name)) for name in ("worst3", "joint", "e2e", "ttft", "itl", "transfer")}
        return replace(self, rows=rows, **errors)  # type: ignore[arg-type]

    def to_json(self) -> JsonObject:
        """The elite as a JSON object.

        >>> example(joint=3.0).to_json()["joint"]
        3.0
        """
        values = asdict(self)
        del values["worst_e2e"]
        return values

    @classmethod
    def from_json(cls, raw: JsonObject) -> Elite:
        """The elite of a JSON object.

        >>> Elite.from_json(example().to_json()) == example()
        True
        """
        # All elites have the same experiments: shared names take a fifth less memory.
        rows = tuple((_shared(r[0]), r[1], r[2], r[3]) for r in raw["rows"])
        return cls(**{**raw, "rows": rows, "parents": tuple(raw["parents"])})


def example(**changes: Any) -> Elite:
    """A made-up elite with some fields changed, for the examples in this package.

    >>> example(id=3, joint=2.5).joint
    2.5
    """
    elite = Elite(
        id=1, key="form", text="def step_time(b, s): ...", operations=10, constants=5, features=4,
        worst3=9.0, joint=3.0, e2e=2.0, ttft=4.0, itl=3.0, rows=(("chat", -2.0, 4.0, 3.0),),
        operator="add", parents=(),
    )  # fmt: skip
    return replace(elite, **changes)


def _shared(name: str) -> str:
    return sys.intern(name) if isinstance(name, str) else name  # a damaged journal is reported elsewhere


def _round(x: float | None) -> float | None:
    return None if x is None else float(f"{x:.{DIGITS}g}")
