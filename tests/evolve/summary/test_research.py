"""RUN/RESEARCH.md as a function of outcomes: its table, what holds, the judges' issues, what judges are shown, its end."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from elites import elite
from hypothesis import given
from hypothesis import strategies as st

from archive.champion import Rule
from archive.elite import SEED, Elite
from archive.proposal import GATE, MODEL, POLISH, Outcome, Proposal, Rejected, Review
from archive.score import CellErrors
from evolve.output.printing import page
from evolve.summary.finding import GONE, HOLDS, OPEN, SEEN, WORSE, change, contradicted, paired, precedents, terms_of
from evolve.summary.recommendation import conclusions
from evolve.summary.research import (
    LONGEST_ANSWER,
    LONGEST_MOTIVATION,
    MOST_ISSUES,
    Research,
    prose,
    title_of,
)
from evolve.summary.result import RunReport
from simulator.language.parse import parse

TEXT = (
    "def step_time(b, s, *, layer: us = 9.0, token: us/token = 0.1):\n    return layer * s.layers + token * b.tokens\n"
)
MODEL_A = MODEL + "openai/a"


def review(judge: str, mark: int, remark: str) -> Review:
    return Review(judge, (("physics", mark), ("novelty", mark + 1)), remark)


def idea(id: int, call: str, verdict: Elite | Rejected, *reviews: Review, motivation: str = "") -> Outcome:
    """The outcome of an idea that changes program 0."""
    proposed = TEXT
    if isinstance(verdict, Elite):
        verdict = replace(verdict, id=id, operator=MODEL_A, parents=(0,), text=TEXT)
        proposed = TEXT.replace("b.tokens", "b.tokens * s.tp")  # as before the fit
    proposal = Proposal(id, 0, proposed, MODEL_A, (0,), call, f"idea number {id}", reviews, motivation=motivation)
    return Outcome(proposal, verdict, f"form {id}")


ROOFLINE = elite(0, mean_error=3.0, group_out=5.0, operator=SEED + "roofline", parents=())
SEEDED = Outcome(Proposal(0, None, "text", SEED + "roofline", ()), ROOFLINE, "form 0")
WHY = (
    "Launches cost a layer.\n\nRelated work: CUDA graphs\nin vLLM\n\nIssue 2: it scales with layers now.\nIssue 7: no."
)
REVIEWS = review("x/one", 6, "too many terms"), review("y/two", 3, "b.tokens hides <two> effects")
FIRST = idea(8, "1/propose/8", elite(8, mean_error=2.5, group_out=4.8), *REVIEWS)
SECOND = idea(9, "2/propose/9", Rejected("growth", "3 times [at most]"), motivation=WHY)
THIRD = idea(12, "2/round-2/9", elite(12, mean_error=3.5, group_out=None, consistent=False), review("x/one", 8, ""))
ALL = [SEEDED, FIRST, SECOND, THIRD]


def told(outcomes: list[Outcome]) -> Research:
    research = Research()
    research.tell(outcomes)
    return research


def document(outcomes: list[Outcome]) -> str:
    return told(outcomes).document()


def rows(text: str) -> list[list[str]]:
    """The rows about ideas in a document."""
    return [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines() if re.match(r"\| \d+: ", line)]


def test_every_idea_has_a_row_best_first_and_follows_from_the_journal() -> None:
    text = document(ALL)
    assert rows(text) == [
        # marks 6.5 and 3.5
        ["8: idea number 8", "not measured", "4.80", "-", "-", "2.50", "2.50", "2.50", "10+5", "5.0"],
        [
            "12: idea number 12",
            "not consistent, same form as idea 8",
            "-",
            "-",
            "-",
            "3.50",
            "3.50",
            "3.50",
            "10+5",
            "8.5",
        ],
        ["9: idea number 9", "refused: growth", "-", "-", "-", "-", "-", "-", "-", "-"],
    ]
    assert "To beat: seed `roofline`, group-out 5.00." in text
    lines = [json.loads(json.dumps(outcome.to_json())) for outcome in ALL]
    assert [line.get("motivation") for line in lines] == [None, None, WHY, None]
    assert document([Outcome.from_json(line) for line in lines]) == text
    # operators and answers without a program are no ideas
    offline = Outcome(Proposal(20, 0, TEXT, "add", (0, 0)), elite(20), "form 20")
    empty = Outcome(Proposal(21, 0, "", MODEL_A, (0,), "3/propose/21"), Rejected("answer", "1 of 2 were given"))
    assert document([*ALL, offline, empty]) == text


def test_many_ideas_make_at_most_300_lines() -> None:
    many = [idea(i, f"{i}/propose/{i}", elite(i, group_out=float(i))) for i in range(1, 400)]
    text = told([SEEDED, *many]).document(ending_blocks([SEEDED, *many], many[0].elite))
    assert text.count("\n") <= 300 and "and 199 more, with larger errors" in text


# findings


def of_cells(id: int, *errors: float, text: str = TEXT) -> Elite:
    cells = tuple((f"cell {i}", error) for i, error in enumerate(errors))
    return replace(elite(id, group_out=sum(errors) / len(errors)), cells=cells, text=text)


BEFORE = "def step_time(b, s, *, layer: us = 9.0):\n    return layer * s.layers\n"
BASE = replace(of_cells(0, 5.0, 6.0, 7.0, text=BEFORE), operator=SEED + "roofline", parents=())


@pytest.mark.parametrize(
    ("errors", "verdict"),
    # differences of -1, -1.1, -0.9: -1 +- 4.30 * 0.1 / sqrt 3; then the same above 0; then both signs
    [((4.0, 4.9, 6.1), HOLDS), ((6.0, 7.1, 7.9), WORSE), ((4.0, 6.5, 7.0), OPEN)],
)
def test_an_idea_holds_if_its_interval_on_groups_left_out_is_below_zero(
    errors: tuple[float, ...], verdict: str
) -> None:
    first = idea(8, "1/propose/8", of_cells(8, *errors))
    outcome = replace(first, verdict=replace(of_cells(8, *errors), operator=MODEL_A, parents=(0,)))
    research = told([replace(SEEDED, verdict=BASE), outcome])
    found = research.findings[8]
    assert found.verdict == verdict and found.cells == 3
    assert found.change.added == ("step_time: b.tokens",) and found.change.dropped == ()
    assert ("## What holds" in research.document()) == (verdict == HOLDS)
    assert [f.idea for f in research.settled()] == ([] if verdict == OPEN else [8])


def test_an_idea_holds_only_if_it_does_on_hidden_cells_too() -> None:
    better = of_cells(8, 4.0, 4.9, 6.1)
    outcome = idea(8, "1/propose/8", better)
    outcome = replace(outcome, verdict=replace(better, operator=MODEL_A, parents=(0,)))
    for base, verdict, difference in (
        (BASE, HOLDS, -0.9),
        (replace(BASE, cells=(*BASE.cells[:2], ("cell 2", 6.0))), OPEN, 0.1),
    ):
        research = Research({"cell 2"})
        research.tell([replace(SEEDED, verdict=base), outcome])
        found = research.findings[8]
        assert (found.verdict, found.hidden_pct) == (verdict, pytest.approx(difference))
    # -1, -1.1, -0.9, -1 and +0.01: all of the interval is below 0, but the last cell is hidden and worse
    cells = [4.0, 4.9, 6.1, *[4.0] * 9, 5.01]
    base = replace(of_cells(0, 5.0, 6.0, 7.0, *[5.0] * 10, text=BEFORE), operator=SEED + "roofline", parents=())
    better = replace(of_cells(8, *cells), operator=MODEL_A, parents=(0,))
    research = Research({"cell 12"})
    research.tell([replace(SEEDED, verdict=base), replace(outcome, verdict=better)])
    assert research.findings[8].verdict == SEEN
    assert "Hidden from all questions: cell 12." in research.document()


def test_paired_differences_by_hand() -> None:
    ours, theirs = (CellErrors((("x", a), ("y", b))) for a, b in ((1.0, 3.0), (2.0, 3.0)))
    points, interval, cells = paired(ours, theirs)
    # -1 and 0: -0.5, standard error 0.5, Student's t of one degree of freedom 12.706
    assert (points, cells) == (-0.5, 2) and interval == pytest.approx((-0.5 - 6.353, -0.5 + 6.353), abs=1e-3)
    assert paired(ours, CellErrors(())) == (None, None, 0)


def test_what_the_fit_drops_is_no_finding() -> None:
    left = replace(of_cells(8, 4.0, 4.9, 6.1, text=BEFORE), operator=MODEL_A, parents=(0,))
    outcome = replace(idea(8, "1/propose/8", left), verdict=left)
    assert told([replace(SEEDED, verdict=BASE), outcome]).findings[8].verdict == GONE


def test_a_finding_is_contradicted_by_its_repetition_or_reversal() -> None:
    a, b = parse(BEFORE), parse(TEXT)
    adds, drops = change(a, b), change(b, a)
    assert (adds.added, drops.dropped) == (("step_time: b.tokens",),) * 2 and adds.fields == {"b.tokens"}
    outcome = replace(idea(8, "1/propose/8", of_cells(8, 6.0, 7.1, 7.9)))
    worse = told([replace(SEEDED, verdict=BASE), outcome]).findings[8]
    assert worse.verdict == WORSE and contradicted(adds, [worse]) is worse and contradicted(drops, [worse]) is None
    holds = replace(worse, verdict=HOLDS)
    assert contradicted(drops, [holds]) is holds and contradicted(adds, [holds]) is None


def test_terms_inside_max_and_conditionals_count_and_constants_do_not() -> None:
    text = (
        "def step_time(b, s, *, x: one = 1.0, y: us = 2.0, n: request = 4.0):\n"
        "    return max(x * b.kv_read_us + y, b.weight_read_us if b.batch_size > n else y * s.layers)\n"
    )
    step = {term for term in terms_of(parse(text)) if term.startswith("step_time")}
    assert step == {
        f"step_time: {t}" for t in ("b.kv_read_us", "a constant", "b.weight_read_us", "s.layers", "if b.batch_size ? c")
    }
    assert terms_of(parse(text.replace("x:", "w:").replace("x *", "w *"))) == terms_of(parse(text))


def test_precedents_name_the_programs_that_have_a_term() -> None:
    known = {"method nrrl": terms_of(parse(TEXT)), "seed floor": terms_of(parse(BEFORE))}
    adds = change(parse(BEFORE), parse(TEXT))
    assert precedents(adds, known) == "New terms: `step_time: b.tokens`: also in method nrrl."
    assert precedents(adds, {}) == "New terms: `step_time: b.tokens`: in no known program."
    assert precedents(change(parse(TEXT), parse(TEXT)), known) == "No new term."


def test_a_title_is_a_clause_or_whole_words() -> None:
    whole = "Crossover: measured kernels"  # the first clause says too little
    long = "Decodes that share a step with a prompt lose their tuned"
    titles = {"one cost a layer": "one cost a layer", "": "", whole: whole, f"{long} split of work": long}
    titles |= {"A's cost a layer, but only where no graph covers the step": "A's cost a layer", "x" * 70: "x" * 60}
    assert {idea: title_of(idea) for idea in titles} == titles


def test_a_model_cannot_write_headings_html_or_links() -> None:
    evil = "<img src=x> ![a](http://b)"
    outcome = idea(9, "1/propose/9", Rejected(GATE, "<i>"))
    text = document([SEEDED, replace(outcome, proposal=replace(outcome.proposal, idea=evil))])
    assert r"\<img" in text and r"![a\](http" in text and "1 sent back before a fit" in text


def test_answers_to_issues_are_found_however_they_are_marked() -> None:
    marked = ("Issue 3:", "issue 3.", "- **Issue 3:**", "* Issue #3 -", "> Issue 3)", "**Issue 3**:")
    for mark in marked:
        about = prose(f"Why.\n{mark} less\nof it\n\nMore.")
        assert (about.why, about.work, about.answers) == ("Why. More.", "", {3: "less of it"}), mark
    about = prose("x" * 9999 + "\nIssue 1: " + "y" * 9999)
    assert (len(about.why), len(about.answers[1])) == (LONGEST_MOTIVATION, LONGEST_ANSWER)


# issues


def test_issues_are_those_of_the_latest_reviews_the_gravest_first() -> None:
    research = Research()
    research.tell(ALL)
    assert research.issues(1) == []
    # those of generation 1; in generation 2 the only review has no remark
    assert [issue.line for issue in research.issues(2)] == [
        'y/two on idea 8 ("idea number 8"): b.tokens hides <two> effects',
        'x/one on idea 8 ("idea number 8"): too many terms',
    ]
    assert research.issues(3) == []
    refused = Research()
    refused.tell(ALL[:3])  # the idea of generation 2 was not reviewed: what was said before is still open
    assert refused.issues(3) == refused.issues(2)
    crowded, marks = Research(), [9 - i % 9 for i in range(3 * MOST_ISSUES)]
    many = [review(f"x/{i}", mark, f"remark {i}") for i, mark in enumerate(marks)]
    crowded.tell([SEEDED, idea(8, "1/propose/8", elite(8), *many)])
    assert [issue.mark for issue in crowded.issues(2)] == sorted(mark + 0.5 for mark in marks)[:MOST_ISSUES]


# what judges are shown


@given(st.integers(60, 20_000))
def test_what_judges_are_shown_fits(most: int) -> None:
    research = told([SEEDED, *(idea(i, f"{i}/propose/{i}", elite(i)) for i in range(1, 40))])
    shown = research.recent(most)
    assert len(shown) <= most + len("\nand 39 more")
    kept = shown.count("- idea ")
    assert kept == 39 or f"and {39 - kept} more" in shown
    assert kept == 0 or shown.startswith("- idea 39: idea number 39: ")  # the latest first


# the end

REPORT = RunReport(
    **{"engine": "1", "data": "d", "run": "runs/0007", "seed": 0, "seeds": (1,), "search_seeds": (1,), "rule": Rule()},
    **{"fitted": ("a",), "candidates": 4, "proposals": 4, "accepted": 2, "champion": None, "best": (), "rejected": ()},
    **{"verdicts": {}, "cpu_s": {}, "best_seed": SEEDED.elite, "calls": {"usd": 0.126, "stopped": ""}},
)


def ending_blocks(outcomes: list[Outcome], champion: Elite | None) -> list[object]:
    members = [o.elite for o in outcomes if o.elite and o.elite.consistent]
    return [*conclusions(replace(REPORT, champion=champion, front=members), outcomes, members)]


def ending(outcomes: list[Outcome], champion: Elite | None) -> str:
    return page(ending_blocks(outcomes, champion))


def test_the_end_summarises() -> None:
    _, _, text = ending(ALL, FIRST.elite).partition("## Conclusions\n\n")
    assert text.split("\n\n")[0].split("\n") == [
        "- 3 ideas by openai/a in 2 generations: 2 scored, 1 refused (1 at growth).",
        "- 3 reviews by 2 judges, with a mean mark of 6.2.",  # (6.5 + 3.5 + 8.5) / 3
        "- The champion is idea 8 (idea number 8): mean error 2.50, leave-group-out error 4.80.",
        "- The best starting program is roofline: mean error 3.00, leave-group-out error 5.00.",
        "- The answers of the models cost 0.13 USD.",
    ]


def test_the_end_recommends_the_champion_and_says_what_that_costs() -> None:
    smaller = idea(13, "3/propose/13", elite(13, mean_error=2.55, group_out=4.85, operations=4))
    text = ending([*ALL, smaller], smaller.elite).partition("## Recommendation\n\n")[2]
    assert text.startswith(
        "**Program 13**: idea 13 (idea number 13), with 4 operations and 5 constants. It goes back to program 0 (the "
        "starting program roofline).\n"
    )
    # 4.80, 4.85 and the seed's 5.00 are within 5 %
    assert "Of 3 programs in the archive 3 compete, and none of these" in text
    assert "its group-out error is 4.85; the lowest, 4.80, is that of program 8, with 10 op" in text
    assert "evolve emit .:13 --host blis-4 --out go/ --check\n```\n" in text


def test_a_polished_champion_is_traced_to_its_idea_and_a_starting_program_may_remain_champion() -> None:
    polished = elite(14, mean_error=2.4, group_out=5.0, operator=POLISH, parents=(8,))
    outcomes = [*ALL, Outcome(Proposal(14, None, TEXT, POLISH, (8,)), polished)]
    text = ending(outcomes, polished)
    assert "**Program 14**: idea 8 (idea number 8), its constants polished, with" in text
    text = ending(ALL, SEEDED.elite)
    assert "**Program 0**: the starting program roofline, with" in text and "goes back" not in text
    assert "nothing to recommend" in ending([SECOND], None)
    # the end says why a search stopped even if no model was asked
    stopped = replace(REPORT, champion=SEEDED.elite, calls={"stopped": "max_usd 0.01 is reached"})
    text = page(conclusions(stopped, [SEEDED], [ROOFLINE]))
    assert "- 0 ideas by no model in 0 generations: 0 scored, 0 refused.\n" in text
    assert "- The search stopped before its end: max_usd 0.01 is reached.\n" in text and "USD" not in text
