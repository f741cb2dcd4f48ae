"""Judges: models that look at proposed programs before these are fitted, by a rubric, each on its own."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from archive.proposal import JUDGES, Rejected, Review
from evolve.propose.llm.answer import LONGEST, plain
from evolve.propose.llm.calls import Messages
from evolve.propose.llm.templates import Templates, fill

RUBRIC = ("mechanism", "transfer", "identifiable", "economy")
BEST = 10
TOGETHER = 8  # candidates in one question
LONGEST_REMARK = 240


def question(texts: Templates, fields: str, candidates: Sequence[tuple[str, str]]) -> Messages:
    """What a judge is asked of (idea, program text) candidates."""
    shown = "\n\n".join(
        f"Candidate {i}: {idea or 'no idea given'}\n\n```python\n{text.strip()}\n```"
        for i, (idea, text) in enumerate(candidates, 1)
    )
    return (("user", fill(texts["judge"], fields=fields, candidates=shown)),)


def reviews(answer: str, model: str, count: int) -> list[Review | None]:
    """A judge's review of each of `count` candidates, None where the answer has none that follows the rubric."""
    out: list[Review | None] = [None] * count
    for raw in _rows(answer[:LONGEST]):
        if not isinstance(raw, dict) or not _mark(raw.get("candidate"), 1, count):
            continue
        marks: dict[str, Any] = {name: raw.get(name) for name in RUBRIC}
        if all(_mark(mark, 0, BEST) for mark in marks.values()):
            remark = plain(str(raw.get("remark") or ""), LONGEST_REMARK)
            out[raw["candidate"] - 1] = Review(model, **marks, remark=remark)
    return out


def mean(review: Review) -> float:
    """Of its marks, 0 to 10."""
    return float(sum(getattr(review, name) for name in RUBRIC)) / len(RUBRIC)


def verdict(found: Sequence[Review], below: float) -> Rejected | None:
    """The rejection of a candidate whose mean mark over the judges that reviewed it is below; None if it passes, or if
    nobody reviewed it."""
    if not found:
        return None
    marks = [mean(review) for review in found]
    average = sum(marks) / len(marks)
    if average >= below:
        return None
    told = [f"{r.judge} {mark:.1f}: {r.remark}" for r, mark in zip(found, marks, strict=True)]
    said = "; ".join(line.removesuffix(": ") for line in told)
    return Rejected(JUDGES, f"{average:.1f} of {BEST} by {len(marks)} judges, {below:g} wanted: {said}")


def _rows(answer: str) -> list[Any]:
    """The JSON array of an answer, in a fence or bare; [] if there is none."""
    fenced = re.findall(r"```(?:json)?[ \t]*\n(.*?)```", answer, re.DOTALL)
    start, end = answer.find("["), answer.rfind("]")
    for text in (*fenced, answer[start : end + 1]):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, list):
            return found
    return []


def _mark(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
