"""Counts of reviews, and the rank correlation of marks with transfer errors, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from archive.elite import example
from archive.proposal import Outcome, Proposal, Rejected, Review
from evolve.search.llm.evidence import Reviews, reviews
from evolve.search.llm.judges import RUBRIC
from evolve.summary.llm import lines

PARENT = Outcome(Proposal(1, 0, "x", "seed:floor", ()), example(id=1, transfer=10.0), "k1")


def child(id: int, mark: int, transfer: float | None, judges: int = 1) -> dict[str, Any]:
    review = Review("a/b", **dict.fromkeys(RUBRIC, mark), remark="")
    proposal = Proposal(id, 0, "x", "llm:a/b", (1,), "1/propose/2", "idea", (review,), judges=judges)
    return Outcome(proposal, replace(example(id=id), transfer=transfer), f"k{id}").to_json()


def test_high_marks_and_errors_that_fell_by_hand() -> None:
    """Marks 0 to 9; the errors fall with the marks but for one pair of neighbours: 1 - 6 * 2 / (10 * 99)."""
    errors = [12.0, 11.5, 11.0, 10.5, 10.0, 9.5, 9.0, 8.5, 7.5, 8.0]
    journal = [PARENT.to_json(), *(child(i + 2, i, error) for i, error in enumerate(errors))]
    found = reviews(journal)
    assert found == Reviews(10, 0, 0, 10, pytest.approx(-(1 - 6 * 2 / 990)))
    assert reviews(journal[:-1]).rank_correlation is None  # nine
    without = [*journal, child(99, 5, None)]
    assert (reviews(without).given, reviews(without).programs) == (11, 10)
    unknown_parent = [line for line in journal if line["id"] != 1]
    assert reviews(unknown_parent).programs == 0


def test_equal_marks_have_no_correlation() -> None:
    same = [PARENT.to_json(), *(child(i + 2, 5, float(i)) for i in range(12))]
    assert (reviews(same).programs, reviews(same).rank_correlation) == (12, None)


def test_missing_reviews_and_repeated_questions() -> None:
    unheard = Outcome(Proposal(9, 0, "x", "llm:a/b", (1,), "1/propose/2", judges=3), Rejected("fit", "why"))
    sent = [
        {"kind": "sent", "call": f"1/{name}/0", "attempt": i, "model": "a/b", "prompt": "p", "sample": 0,
         "tokens_at_most": 1, "usd_at_most": 0.0}
        for name, i in (("judge", 0), ("judge-2", 0), ("judge-2", 1))
    ]  # fmt: skip
    found = reviews([PARENT.to_json(), *sent, unheard.to_json(), child(3, 5, 1.0, judges=2)])
    assert (found.given, found.asked_again, found.missing) == (1, 1, 4)
    older = [child(3, 5, 1.0) | {"judges": 0}]  # journals of older runs do not say who was asked
    assert reviews(older).missing == 0


def test_the_report_says_what_may_be_chance() -> None:
    counts = {"given": 30, "asked_again": 2, "missing": 3, "programs": 24, "rank_correlation": -0.3}
    calls = {"replayed": "", "substitutes": 0, "stopped": "", "reviews": counts}
    text = "\n".join(lines(calls, "runs/1"))
    assert "Reviews: 30 given, 2 questions asked again, 3 missing." in text
    # 1.96 / sqrt(23)
    assert "rank correlation -0.30 over 24 programs" in text and "|r| < 0.41 may be chance" in text
    without = lines({**calls, "reviews": {**counts, "rank_correlation": None}}, "runs/1")
    assert not [line for line in without if "correlation" in line]
