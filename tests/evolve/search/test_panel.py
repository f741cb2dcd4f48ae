"""Judges: the question to them, the candidates that go on by their marks, and the statistics of a run's reviews."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import llm_scripts
import pytest

from archive.elite import example
from archive.proposal import Outcome, Proposal, Rejected, Review
from archive.score import CellErrors, Errors, Score
from evaluator.assess import Scored
from evaluator.diagnose.describe import left_out_changes
from evaluator.diagnose.trial import Trial
from evolve.run.program import load
from evolve.search.llm import panel, prompt
from evolve.search.llm.client import count_tokens
from evolve.search.llm.panel import RUBRIC, TOGETHER, statistics
from evolve.search.llm.question import Candidate, Question
from evolve.search.llm.reading import Idea
from evolve.summary.llm import lines

PLAIN = "def step_time(b, s, *, w: one = 1.0):\n    return w * b.weight_read_us\n"
FP8 = PLAIN.replace("b.weight_read_us", "b.weight_read_us * (1 + s.is_fp8)")


def scored(
    text: str = PLAIN, mean_error: float = 4.0, group_out: float | None = 6.0, consistent: bool = True
) -> Scored:
    score = Score(worst3=9.0, mean_error=mean_error, e2e=4.0, ttft=5.0, itl=3.0, rows=())
    left_out = None if group_out is None else CellErrors((("run", group_out),))
    return Scored(text, score, left_out, consistent, operations=1, constants=1, features=1)


def marks(judge: str, mark: int, remark: str = "") -> Review:
    return Review(judge, tuple((name, mark) for name in RUBRIC), remark)


def judged(number: int, mark: int, text: str = PLAIN, judge: str = "a/b", **errors: Any) -> Candidate:
    trial = Trial(scored(text, **errors))
    return Candidate(Idea("t", text), "key", number=number, trial=trial, reviews=[marks(judge, mark)])


def chosen(*candidates: Candidate) -> dict[int, Rejected]:
    return panel.choose(candidates, {"s.is_fp8"})


# which go on


def test_of_two_that_the_data_cannot_tell_apart_the_judges_choose() -> None:
    first, second = judged(1, 6, FP8), judged(2, 8)  # both score 6
    refused = chosen(first, second)
    assert refused == chosen(second, first) and list(refused) == [1] and refused[1].stage == "judges"
    assert "prefer proposal 2, 8.0 to 6.0 of 10" in refused[1].why and "differ in s.is_fp8" in refused[1].why
    # an error within 5 % is as good
    assert list(chosen(first, judged(2, 8, group_out=6.2))) == [1]  # scores 6.0 and 6.2
    assert list(chosen(judged(1, 6, FP8, group_out=None), judged(2, 8, group_out=None))) == [1]
    # scores 6.0, 6.2, 6.4: the first is compared with the second, and the third with the second only
    best, middle, last = judged(1, 9, FP8), judged(2, 8, group_out=6.2), judged(3, 7, FP8, group_out=6.4)
    assert list(chosen(best, middle, last)) == [2]


def test_of_others_both_go_on() -> None:
    others = {
        "the judges have no preference": judged(2, 6),
        "scores 6.0 and 6.4 are 7 % apart": judged(2, 8, group_out=6.4),
        "and so are 6.0 and 5.6": judged(2, 8, group_out=5.6),
        "they read the same fields of one value": judged(2, 8, FP8),
        "the datasheets tell them apart": judged(2, 8, consistent=False),
        "marks of different judges are not compared": judged(2, 8, judge="c/d"),
    }
    for why, other in others.items():
        assert chosen(judged(1, 6, FP8), other) == {}, why


def test_verdicts_by_hand() -> None:
    mild, hard = marks("mild", 7, "fine"), marks("hard", 2, "no mechanism")
    assert panel.verdict([], 4.0) is None and panel.verdict([mild, hard], 4.5) is None  # (7 + 2) / 2
    why = "4.5 of 10 by 2 judges, 4.6 wanted: mild 7.0: fine; hard 2.0: no mechanism"
    assert panel.verdict([mild, hard], 4.6) == Rejected("judges", why)
    assert panel.verdict([marks("j", 0)], 1.0) == Rejected("judges", "0.0 of 10 by 1 judges, 1 wanted: j 0.0")


# the question to a judge


def test_left_out_rows_that_differ_from_the_parents() -> None:
    before = [Errors("D1 chat", 3.0, -20.0, 3.0), Errors("D2 chat", 1.0, 2.0, 1.0), Errors("D3 chat", 5.0, None, 5.0)]
    after = [Errors("D1 chat", 1.2, -18.4, 1.2), Errors("D2 chat", 1.4, 2.5, 1.4), Errors("D3 chat", 5.6, None, 5.6)]
    assert left_out_changes(before, after) == (
        "Left out, E2E TTFT %, parent's -> own, on 2 of 3: D1 chat +3.0 -20 -> +1.2 -18; D3 chat +5.0 - -> +5.6 -."
    )
    assert left_out_changes(before, before) == ("Left out: within 0.5 points of its parent's everywhere.")
    assert left_out_changes([], after) == left_out_changes(before, []) == ""
    many = [Errors(f"D{i} chat", float(i), 0.0, float(i)) for i in range(20)]
    text = left_out_changes(many, [row._replace(e2e=0.0, itl=0.0) for row in many])
    assert "on 19 of 20:" in text and text.endswith("; 16 more.")
    assert [f"D{i} chat" in text for i in (16, 17, 19)] == [False, True, True]  # the three that differ most


def asked(base: str, trials: Sequence[Trial], document: str = "", rows: Sequence[Errors] = (), title: str = "t") -> str:
    """The question about candidates with these trials, which change program 7."""
    question = Question(1, 9, 4, 4, 0, "a/b", example(id=7, text=base), (), ())
    group = [(question, Candidate(Idea(title, PLAIN), "key", trial=trial)) for trial in trials]
    known = panel.Known(document, {7: rows}, (), {"seed floor": frozenset({"step_time: s.tp"})}, lambda work: [work])
    [(role, text)] = panel.messages(prompt.bundled(), group, known)
    assert role == "user" and "$fields" not in text and "$candidates" not in text and "$document" not in text
    return text


def test_a_question_to_a_judge_of_eight_long_candidates_is_short() -> None:
    """8 programs of the champion's length on 40 runs, a long document: below 7,500 tokens."""
    champion = load("champion").text
    rows = tuple(Errors(f"D{i}* codegen-{i}", 10.0 + i, -20.0 - i, 10.0 + i) for i in range(40))
    moved = tuple(row._replace(e2e=-1.0, ttft=2.0, itl=-1.0) for row in rows)
    doubt = "At a bound: constant_{} = 1 (at its lower bound, which the runs would exceed).".format
    trial = Trial(scored(champion), "a table that judges are not shown", moved, "\n".join(map(doubt, range(9))))
    document = "Measured kernels of attention explain what is left of the decode error. " * 100
    text = asked(champion, [trial] * TOGETHER, document, rows)
    assert text.count("Parent, program 7: ") == 1
    assert text.count("\nFrom program 7, fitted: worst-3 E2E 9.00, mean error 4.00,") == 8
    assert "a table that" not in text and text.count("At a bound: constant_1") == 8 and "constant_2" not in text
    assert prompt.bare(champion).strip() in text
    assert count_tokens([("user", text)]) < 7500  # a quarter of them the document
    assert "kv_max" not in text  # only fields that they read are explained


def test_programs_are_shown_as_fitted_with_their_ideas() -> None:
    text = prompt.bare(llm_scripts.program(Random(3)))
    shown = asked(PLAIN, [Trial(scored(text))], title="costs $money")
    assert text.strip() in shown and "w * b.weight_read_us" not in shown and "Candidate 1: costs $money\n" in shown
    assert "Nothing yet." in shown and "Left out," not in shown
    assert all(f'"{name}": ' in shown and f"- {name}: " in shown for name in RUBRIC)
    assert "Candidate 1: no idea given\n" in asked(PLAIN, [Trial(scored(text))], "$x", title="")


# the answer of a judge

GOOD = {"candidate": 1, "evidence": 7, "simplicity": 6, "physics": 8, "novelty": 10, "citations": 9, "remark": "fine"}


def marked(*rows: Any) -> list[Review | None]:
    return panel.reviews(json.dumps(rows), "m", 2)


def test_reviews_by_the_rubric() -> None:
    given = (("evidence", 7), ("simplicity", 6), ("physics", 8), ("novelty", 10), ("citations", 9))
    review = Review("m", given, "fine")
    assert marked(GOOD) == [review, None]
    assert marked({**GOOD, "candidate": 2}, GOOD) == [review, review]
    assert marked({**GOOD, "more": "x"}, "junk", None, 7, [GOOD]) == [review, None]
    last = replace(review, marks=(*given[:4], ("citations", 0)))
    assert marked(GOOD, {**GOOD, "citations": 0}) == [last, None]  # the last word counts
    assert review.mean == (7 + 6 + 8 + 10 + 9) / 5


@pytest.mark.parametrize("name", ["candidate", *RUBRIC])
def test_marks_that_are_none(name: str) -> None:
    numbers = (7.0, 7.5, -1, 11, 10**30, -(10**30), float("nan"), float("inf"))
    for value in ("7", True, None, [7], {}, *numbers):
        assert marked({**GOOD, name: value}) == [None, None]
    assert marked({k: v for k, v in GOOD.items() if k != name}) == [None, None]


def test_reviews_among_other_text() -> None:
    around = ("{}", "Here: {} Done.", "```json\n{}\n```", "```\n{}\n```", "I see [2].\n```json\n{}\n```\nBye [x].")
    more = ('```json\n{{"a": 1}}\n```\n```json\n{}\n```', '{{"reviews": {}}}', "```python\nx\n```\n{}")
    for answer in (*around, *more):
        [review] = panel.reviews(answer.format(json.dumps([GOOD])), "m", 1)
        assert review is not None and review.remark == "fine", answer
    none = ("", "no", "[", "]", "][", "[1", "```json\n[\n```", f"[{'9' * 9999}]", "null")
    for answer in (*none, "[" * 200_000, "[" * 100_000 + "]" * 100_000):
        assert panel.reviews(answer, "m", 2) == [None, None], answer[:9]
    # a remark is one short line
    remarks = {"a\nb\x1b[31m\r\u2028c\0": "a b [31m c", None: "", "": "", 7: "7"}
    for remark, kept in (remarks | {"x" * 999: "x" * (panel.LONGEST_REMARK - 3) + "..."}).items():
        [review, _] = marked({**GOOD, "remark": remark})
        assert review is not None and review.remark == kept


def test_what_is_wrong_with_reviews() -> None:
    both = [GOOD, {**GOOD, "candidate": 2}]
    assert panel.wrong(json.dumps(both), 2) == ""
    assert panel.wrong("I like all of them.", 2) == panel.wrong("[]", 2) == "it has no JSON array"
    assert panel.wrong(json.dumps(both), 3) == "candidate 3 is missing"
    bad = panel.wrong(json.dumps([{**GOOD, "simplicity": 11, "novelty": "9"}, "x"]), 2)
    assert "simplicity, novelty of candidate 1" in bad and "candidate 2 is missing" in bad
    # a later bad word does not take back an earlier good one
    assert panel.wrong(json.dumps([GOOD, {**GOOD, "novelty": -1}]), 1) == ""
    first, empty, request = panel.again((("user", "Q"),), "", "it has no JSON array", 2)
    assert (first, empty) == (("user", "Q"), ("assistant", "(empty)"))
    assert "cannot be used: it has no JSON array. " in request[1]


# statistics of reviews

PARENT = Outcome(Proposal(1, 0, "x", "seed:floor", ()), example(id=1, group_out=10.0), "k1")


def child(id: int, mark: int, group_out: float | None, judges: int = 1) -> dict[str, Any]:
    reviews = (marks("a/b", mark),)
    proposal = Proposal(id, 0, "x", "llm:a/b", (1,), "1/propose/2", "idea", reviews, judges=judges)
    return Outcome(proposal, example(id=id, group_out=group_out), f"k{id}").to_json()


def counts(journal: Sequence[dict[str, Any]], *names: str) -> list[Any]:
    found = statistics(journal)
    return [found[name] for name in names]


def test_high_marks_and_errors_that_fell_by_hand() -> None:
    """Marks 0 to 9; the errors fall with the marks but for one pair of neighbours: 1 - 6 * 2 / (10 * 99)."""
    errors = [12.0, 11.5, 11.0, 10.5, 10.0, 9.5, 9.0, 8.5, 7.5, 8.0]
    journal = [PARENT.to_json(), *(child(i + 2, i, error) for i, error in enumerate(errors))]
    assert counts(journal, "given", "asked_again", "missing", "programs") == [10, 0, 0, 10]
    assert counts(journal, "rank_correlation") == [pytest.approx(-(1 - 6 * 2 / 990))]
    assert counts(journal[:-1], "rank_correlation") == [None]  # nine
    assert counts([*journal, child(99, 5, None)], "given", "programs") == [11, 10]
    assert counts([line for line in journal if line["id"] != 1], "programs") == [0]  # the parent is unknown
    same = [PARENT.to_json(), *(child(i + 2, 5, float(i)) for i in range(12))]
    assert counts(same, "programs", "rank_correlation") == [12, None]  # equal marks


def test_missing_reviews_and_repeated_questions() -> None:
    unheard = Outcome(Proposal(9, 0, "x", "llm:a/b", (1,), "1/propose/2", judges=3), Rejected("fit", "why"))
    of_all = {"model": "a/b", "prompt": "p", "sample": 0, "tokens_at_most": 1, "usd_at_most": 0.0}
    sent = [
        {"kind": "sent", "call": f"1/{name}/0", "attempt": i, **of_all}
        for name, i in (("judge", 0), ("judge-2", 0), ("judge-2", 1))
    ]
    journal = [PARENT.to_json(), *sent, unheard.to_json(), child(3, 5, 1.0, judges=2)]
    assert counts(journal, "given", "asked_again", "missing") == [1, 1, 4]
    # journals of older runs do not say who was asked
    assert counts([child(3, 5, 1.0) | {"judges": 0}], "missing") == [0]


def test_the_report_says_what_may_be_chance() -> None:
    counts = {"given": 30, "asked_again": 2, "missing": 3, "programs": 24, "rank_correlation": -0.3}
    calls = {"replayed": "", "substitutes": 0, "stopped": "", "reviews": counts}
    text = "\n".join(lines(calls, "runs/1"))
    assert "Reviews: 30 given, 2 questions asked again, 3 missing." in text
    # 1.96 / sqrt(23)
    assert "rank correlation -0.30 over 24 programs" in text and "|r| < 0.41 may be chance" in text
    without = lines({**calls, "reviews": {**counts, "rank_correlation": None}}, "runs/1")
    assert not [line for line in without if "correlation" in line]
