"""Judges: models that review proposed programs independently, by a rubric, before the programs are fitted."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from archive.proposal import JUDGES, Rejected, Review
from evolve.propose.llm.answer import LONGEST
from evolve.propose.llm.calls import Messages
from evolve.propose.llm.templates import Templates, fill
from simulator.text import plain

RUBRIC = ("mechanism", "transfer", "identifiable", "economy")
BEST = 10  # the highest mark
TOGETHER = 8  # candidates in one question
LONGEST_REMARK = 240  # characters


def question(texts: Templates, fields: str, candidates: Sequence[tuple[str, str]]) -> Messages:
    """The question to a judge about candidates (idea, program text)."""
    shown = "\n\n".join(
        f"Candidate {i}: {idea or 'no idea given'}\n\n```python\n{text.strip()}\n```"
        for i, (idea, text) in enumerate(candidates, 1)
    )
    return (("user", fill(texts["judge"], fields=fields, candidates=shown)),)


def reviews(answer: str, model: str, count: int) -> list[Review | None]:
    """A judge's review of each of `count` candidates; None for one without a review that follows the rubric."""
    by_candidate: list[Review | None] = [None] * count
    for raw in _json_array(answer[:LONGEST]):
        if not isinstance(raw, dict) or not _is_mark(raw.get("candidate"), 1, count):
            continue
        marks: dict[str, Any] = {name: raw.get(name) for name in RUBRIC}
        if all(_is_mark(mark, 0, BEST) for mark in marks.values()):
            remark = plain(str(raw.get("remark") or ""), LONGEST_REMARK)
            by_candidate[raw["candidate"] - 1] = Review(model, **marks, remark=remark)
    return by_candidate


def mean(review: Review) -> float:
    """The mean of a review's marks, 0 to 10."""
    return float(sum(getattr(review, name) for name in RUBRIC)) / len(RUBRIC)


def verdict(given: Sequence[Review], below: float) -> Rejected | None:
    """The rejection of a candidate whose mean mark over its reviews is less than `below`.

    None if it passes, or has no reviews.
    """
    if not given:
        return None
    marks = [mean(review) for review in given]
    average = sum(marks) / len(marks)
    if average >= below:
        return None
    lines = [f"{r.judge} {mark:.1f}: {r.remark}" for r, mark in zip(given, marks, strict=True)]
    remarks = "; ".join(line.removesuffix(": ") for line in lines)
    return Rejected(JUDGES, f"{average:.1f} of {BEST} by {len(marks)} judges, {below:g} wanted: {remarks}")


def _json_array(answer: str) -> list[Any]:
    """The JSON array in an answer, fenced or bare; [] if there is none."""
    fenced = re.findall(r"```(?:json)?[ \t]*\n(.*?)```", answer, re.DOTALL)
    start, end = answer.find("["), answer.rfind("]")
    for text in (*fenced, answer[start : end + 1]):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, list):
            return value
    return []


def _is_mark(value: Any, least: int, most: int) -> bool:
    """Whether a JSON value is a whole number in this range."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
