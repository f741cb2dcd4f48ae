"""An elite: a candidate that was fitted and scored, as numbers and text."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

UNMEASURED = 1e3  # percent


DIGITS = 6


def _round(x: float | None) -> float | None:
    return None if x is None else float(f"{x:.{DIGITS}g}")


@dataclass(frozen=True, slots=True)
class Elite:
    """A scored candidate. `id` is its proposal number (seeds: their position, negative), errors are in percent.

    worst3, joint, e2e, ttft, itl: see evaluator.score.Score; None where never observed.
    rows: (experiment, e2e, ttft, itl) signed errors. transfer: the joint error on models left out of the fit, None
    where it was not measured. sound: consistent with what is known of hardware.
    operator: what proposed it; parents: ids of the elites it was made from.
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

    @property
    def complexity(self) -> int:
        return self.operations + self.constants

    @property
    def worst_e2e(self) -> float:
        """The largest absolute E2E error of any experiment, percent."""
        return max((abs(row[1]) for row in self.rows if row[1] is not None), default=float("nan"))

    @property
    def objectives(self) -> tuple[float, float, float, float]:
        """(worst3, joint, complexity, transfer), all to be minimised; a transfer that was not measured is the worst."""
        transfer = UNMEASURED if self.transfer is None else self.transfer
        return (self.worst3, self.joint, float(self.complexity), transfer)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def rounded(self) -> Elite:
        """The elite with errors of DIGITS significant digits: the last bits are noise that a journal need not carry."""
        rows = tuple((name, _round(e2e), _round(ttft), _round(itl)) for name, e2e, ttft, itl in self.rows)
        errors = {name: _round(getattr(self, name)) for name in ("worst3", "joint", "e2e", "ttft", "itl", "transfer")}
        return replace(self, rows=rows, **errors)  # type: ignore[arg-type]

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Elite:
        rows = tuple((r[0], r[1], r[2], r[3]) for r in raw["rows"])
        return cls(**{**raw, "rows": rows, "parents": tuple(raw["parents"])})
