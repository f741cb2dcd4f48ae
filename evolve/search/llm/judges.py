"""Judges: models that review proposed programs and what these reached, independently and by a rubric."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from archive.proposal import JUDGES, Rejected, Review
from evolve.search.llm.answer import LONGEST
from evolve.search.llm.calls import Messages
from evolve.search.llm.templates import Templates, fill
from simulator.common.text import plain

RUBRIC = ("mechanism", "transfer", "identifiable", "economy")
BEST = 10  # the highest mark
TOGETHER = 8  # candidates in one question
LONGEST_REMARK = 240  # characters
LONGEST_DOCUMENT = 6000  # characters of what is written about the run so far
LONGEST_ECHO = 4000  # characters of an unusable answer that are sent back


@dataclass(frozen=True, slots=True)
class Case:
    """A candidate as judges see it: its idea, its fitted program, and lines on what it reached and what is doubtful."""

    idea: str
    text: str
    known: Sequence[str]


def question(texts: Templates, fields: str, document: str, parents: Sequence[str], cases: Sequence[Case]) -> Messages:
    """The question to a judge. `parents`: a line on what each program reached that the candidates change."""
    shown = [
        "\n".join(
            [f"Candidate {i}: {case.idea or 'no idea given'}", *case.known, f"\n```python\n{case.text.strip()}\n```"]
        )
        for i, case in enumerate(cases, 1)
    ]
    candidates = "\n\n".join(["\n".join(parents), *shown])
    written = document[:LONGEST_DOCUMENT].strip() or "Nothing yet."
    return (("user", fill(texts["judge"], fields=fields, document=written, candidates=candidates)),)


def again(asked: Messages, answer: str, wrong: str, count: int) -> Messages:
    """The same question once more, after an answer with which something is wrong."""
    request = (
        f"Your answer cannot be used: {wrong}. Answer once more, with one JSON array in a ```json block that has every "
        f"candidate, 1 to {count}, and nothing else."
    )
    return (*asked, ("assistant", answer[:LONGEST_ECHO].strip() or "(empty)"), ("user", request))


def reviews(answer: str, model: str, count: int) -> list[Review | None]:
    """A judge's review of each of `count` candidates; None for one without a review that follows the rubric."""
    by_candidate: list[Review | None] = [None] * count
    for raw in _json_array(answer[:LONGEST]):
        if not isinstance(raw, dict) or not _is_candidate(raw, count):
            continue
        marks: dict[str, Any] = {name: raw.get(name) for name in RUBRIC}
        if all(_is_mark(mark, 0, BEST) for mark in marks.values()):
            remark = plain(str(raw.get("remark") or ""), LONGEST_REMARK)
            by_candidate[raw["candidate"] - 1] = Review(model, **marks, remark=remark)
    return by_candidate


def wrong(answer: str, count: int) -> str:
    """What is wrong with a judge's answer about so many candidates, in words for the judge; "" if it is complete."""
    array = _json_array(answer[:LONGEST])
    if not array:
        return "it has no JSON array"
    of_candidate = {raw["candidate"]: raw for raw in array if isinstance(raw, dict) and _is_candidate(raw, count)}
    faults = []
    for i, review in enumerate(reviews(answer, "", count), 1):
        if review is None and i not in of_candidate:
            faults.append(f"candidate {i} is missing")
        elif review is None:
            bad = [name for name in RUBRIC if not _is_mark(of_candidate[i].get(name), 0, BEST)]
            faults.append(f"{', '.join(bad)} of candidate {i} must be a whole number from 0 to {BEST}")
    return "; ".join(faults)


def mean(review: Review) -> float:
    """The mean of a review's marks, 0 to 10."""
    return float(sum(getattr(review, name) for name in RUBRIC)) / len(RUBRIC)


def average(given: Sequence[Review]) -> float:
    """The mean mark over one or more reviews, 0 to 10."""
    return sum(map(mean, given)) / len(given)


def verdict(given: Sequence[Review], below: float) -> Rejected | None:
    """The rejection of a candidate whose mean mark over its reviews is less than `below`.

    None if it passes, or has no reviews.
    """
    if not given:
        return None
    mark = average(given)
    if mark >= below:
        return None
    lines = [f"{review.judge} {mean(review):.1f}: {review.remark}" for review in given]
    remarks = "; ".join(line.removesuffix(": ") for line in lines)
    return Rejected(JUDGES, f"{mark:.1f} of {BEST} by {len(given)} judges, {below:g} wanted: {remarks}")


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


def _is_candidate(raw: dict[str, Any], count: int) -> bool:
    """Whether a JSON object is about one of so many candidates."""
    return _is_mark(raw.get("candidate"), 1, count)


def _is_mark(value: Any, least: int, most: int) -> bool:
    """Whether a JSON value is a whole number in this range."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
