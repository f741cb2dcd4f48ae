"""What judges are told about candidates, and which of these go on, by hand and on shipped runs."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import llm_scripts
import pytest

from archive.elite import example
from archive.proposal import Rejected, Review
from evaluator.assess import Scored
from evaluator.diagnose.describe import left_out_changes
from evaluator.diagnose.trial import Trial
from evaluator.score import Errors, Score
from evolve.run.program import load
from evolve.search.llm import panel, prompt, templates
from evolve.search.llm.answer import Idea
from evolve.search.llm.client import count_tokens
from evolve.search.llm.judges import RUBRIC, TOGETHER
from evolve.search.llm.panel import Background, JudgedProposal, choose
from evolve.search.llm.question import Candidate, Question

PLAIN = "def step_time(b, s, *, w: one = 1.0):\n    return w * b.weight_read_us\n"


def scored(text: str = PLAIN, joint: float = 4.0, transfer: float | None = 6.0, sound: bool = True) -> Scored:
    score = Score(worst3=9.0, joint=joint, e2e=4.0, ttft=5.0, itl=3.0, rows=())
    return Scored(text, score, transfer, sound, operations=1, constants=1, features=1)


def judged(number: int, mark: int, *fields: str, judge: str = "a/b", **errors: float | bool) -> JudgedProposal:
    review = Review(judge, **dict.fromkeys(RUBRIC, mark), remark="")
    return JudgedProposal(number, scored(**errors), [review], frozenset(fields))


# which go on


def test_of_two_that_the_data_cannot_tell_apart_the_judges_choose() -> None:
    first, second = judged(1, 6, "s.is_fp8"), judged(2, 8)  # merits (4 + 6) / 2 = 5
    assert choose([first, second]) == {1: Rejected("judges",
        "the judges prefer proposal 2, 8.0 to 6.0 of 10: its errors are within 5 % of these, and they differ in s.is_fp8, "
        "of which the data have one value only")}  # fmt: skip
    assert choose([second, first]) == choose([first, second])


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (judged(2, 6, "s.is_fp8"), "the judges have no preference"),
        (judged(2, 8, joint=4.6), "merits 5.0 and 5.3 are 6 % apart"),
        (judged(2, 8, joint=3.4), "and so are 5.0 and 4.7"),
        (judged(2, 8, "s.is_fp8"), "they read the same fields of one value"),
        (judged(2, 8, sound=False), "the datasheets tell them apart"),
        (judged(2, 8, judge="c/d"), "marks of different judges are not compared"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_of_others_both_go_on(other: JudgedProposal, why: str) -> None:
    assert choose([judged(1, 6, "s.is_fp8"), other]) == {}


def test_an_error_within_five_percent_is_as_good() -> None:
    assert list(choose([judged(1, 6, "s.is_fp8"), judged(2, 8, joint=4.4)])) == [1]  # merits 5.0 and 5.2
    assert list(choose([judged(1, 6, "s.is_fp8", transfer=None), judged(2, 8, transfer=None)])) == [1]


def test_who_is_refused_refuses_no_other() -> None:
    """Merits 5.0, 5.2, 5.4: the first is compared with the second, and the third with the second only."""
    best, middle, last = judged(1, 9, "s.a"), judged(2, 8, joint=4.4), judged(3, 7, "s.a", joint=4.8)
    assert list(choose([best, middle, last])) == [2]


# what judges are told


def test_left_out_rows_that_differ_from_the_parents() -> None:
    before = [Errors("D1 chat", 3.0, -20.0, 3.0), Errors("D2 chat", 1.0, 2.0, 1.0), Errors("D3 chat", 5.0, None, 5.0)]
    after = [Errors("D1 chat", 1.2, -18.4, 1.2), Errors("D2 chat", 1.4, 2.5, 1.4), Errors("D3 chat", 5.6, None, 5.6)]
    assert left_out_changes(before, after) == (
        "Left out, E2E TTFT %, parent's -> own, on 2 of 3 runs: D1 chat +3.0 -20 -> +1.2 -18; D3 chat +5.0 - -> +5.6 -."
    )
    assert left_out_changes(before, before) == ("Left out: within 0.5 points of its parent's on every run.")
    assert left_out_changes([], after) == left_out_changes(before, []) == ""
    many = [Errors(f"D{i} chat", float(i), 0.0, float(i)) for i in range(20)]
    text = left_out_changes(many, [replace(row, e2e=0.0, itl=0.0) for row in many])
    assert "on 19 of 20 runs" in text and text.endswith("; 16 more.")
    assert [f"D{i} chat" in text for i in (16, 17, 19)] == [False, True, True]  # the three that differ most


def test_a_question_to_a_judge_of_eight_long_candidates_is_short() -> None:
    """8 programs of the champion's length on 40 runs, a long document: below 6,000 tokens."""
    champion = load("champion").text
    base = example(id=7, text=champion)
    rows = tuple(Errors(f"D{i}* codegen-{i}", 10.0 + i, -20.0 - i, 10.0 + i) for i in range(40))
    moved = tuple(replace(row, e2e=-1.0, ttft=2.0, itl=-1.0) for row in rows)
    doubts = "\n".join(
        f"At a bound: constant_{i} = 1 (at its lower bound, which the runs would exceed)." for i in range(9)
    )
    question = Question(1, 9, 4, 4, 0, "a/b", base, (), ())
    trial = Trial(scored(champion), "a table that judges are not shown", moved, doubts)
    group = [(question, (0, i), Candidate(Idea("another scaling", PLAIN), "c", "k", trial)) for i in range(TOGETHER)]
    background = Background(
        "Measured kernels of attention explain what is left of the decode error. " * 100, {7: rows}, ()
    )
    [(_, text)] = panel._messages(templates.bundled(), group, background)
    assert (
        text.count("Parent, program 7: ") == 1
        and text.count("\nFrom program 7, fitted: worst 3 9.00, joint 4.00,") == 8
    )
    assert "a table that" not in text and text.count("At a bound: constant_1") == 8 and "constant_2" not in text
    assert prompt.bare(champion).strip() in text
    assert count_tokens([("user", text)]) < 7000  # a quarter of them the document
    assert "sampling_sort" not in text  # only fields that they read are explained


def test_programs_are_shown_as_fitted() -> None:
    text = prompt.bare(llm_scripts.program(Random(3)))
    question = Question(1, 9, 4, 4, 0, "a/b", example(id=7, text=PLAIN), (), ())
    candidate = Candidate(Idea("t", PLAIN), "c", "k", Trial(scored(text)))
    [(_, asked)] = panel._messages(templates.bundled(), [(question, (0, 0), candidate)], Background("", {}, ()))
    assert text.strip() in asked and "w * b.weight_read_us" not in asked
    assert "Nothing yet." in asked and "Left out," not in asked
