"""RUN/RESEARCH.md as a function of outcomes: its entries, the judges' issues, what judges are shown of it, its end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from elites import elite
from hypothesis import given
from hypothesis import strategies as st

from archive.champion import Rule
from archive.elite import SEED, Elite
from archive.proposal import MODEL, POLISH, Outcome, Proposal, Rejected, Review
from evolve.summary.recommendation import conclusions
from evolve.summary.research import (
    FILE,
    HEAD,
    LONGEST_ANSWER,
    LONGEST_MOTIVATION,
    MOST_ISSUES,
    Research,
    document,
    fields_read,
    prose,
    title_of,
    write,
)
from evolve.summary.result import RunReport

TEXT = (
    "def step_time(b, s, *, layer: us = 9.0, token: us/token = 0.1):\n    return layer * s.layers + token * b.tokens\n"
)
MODEL_A = MODEL + "openai/a"


def review(judge: str, mark: int, remark: str) -> Review:
    return Review(judge, mechanism=mark, transfer=mark, identifiable=mark, economy=mark + 2, remark=remark)


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

ENTRIES = r"""
## Idea 8: idea number 8

Generation 1, by openai/a, a change of program 0.

**Features.** `b.tokens` (token), `s.layers` (one).

**Result.** Mean error 2.50 (-0.50), group-out 4.80 (-0.20); worst-3 E2E 5.00, E2E 2.50, TTFT 2.50, ITL 2.50; 10 operations, 5 constants.

**Reviews.**

- x/one: mechanism 6, transfer 6, identifiable 6, economy 8 (mean 6.5): too many terms
- y/two: mechanism 3, transfer 3, identifiable 3, economy 5 (mean 3.5): b.tokens hides \<two> effects

## Idea 9: idea number 9

Generation 2, by openai/a, a change of program 0.

**Motivation.** Launches cost a layer.

**Related work.** CUDA graphs in vLLM

**Features.** `b.tokens` (token), `s.layers` (one).

**Result.** Refused at growth: 3 times \[at most]

**Answers to the reviews.**

- Issue 2, x/one on idea 8 ("idea number 8"): too many terms
  - it scales with layers now.

## Idea 12: idea number 12

Generation 2, round 2, by openai/a, a change of program 0.

**Features.** `b.tokens` (token), `s.layers` (one).

**Result.** Mean error 3.50 (+0.50), group-out not measured; worst-3 E2E 5.00, E2E 3.50, TTFT 3.50, ITL 3.50; 10 operations, 5 constants. It contradicts the datasheet. Same form as idea 8.

**Reviews.**

- x/one: mechanism 8, transfer 8, identifiable 8, economy 10 (mean 8.5)
"""


def test_every_idea_has_an_entry_and_follows_from_the_journal() -> None:
    assert document(ALL) == HEAD + ENTRIES
    lines = [json.loads(json.dumps(outcome.to_json())) for outcome in ALL]
    assert [line.get("motivation") for line in lines] == [None, None, WHY, None]
    assert document(map(Outcome.from_json, lines)) == document(ALL)
    # operators and answers without a program are no ideas
    offline = Outcome(Proposal(20, 0, TEXT, "add", (0, 0)), elite(20), "form 20")
    empty = Outcome(Proposal(21, 0, "", MODEL_A, (0,), "3/propose/21"), Rejected("answer", "1 of 2 were given"))
    assert document([*ALL, offline, empty]) == document(ALL)
    text = document([SEEDED, replace(FIRST, dropped=("launch", "b.kv_sum"))])
    assert "5 constants. The fit dropped: `launch`, `b.kv_sum`.\n" in text
    assert fields_read("def step_time(b, s): return 5.0 * b.toks") == ""  # an unreadable program


def test_a_long_idea_has_a_short_title_and_is_quoted_below_it() -> None:
    """The journal has it in 160 characters, cut in a word."""
    whole = "Steps launch each layer [twice]: " + "the larger of both instead of their sum, " * 3 + "so..."
    text = document([SEEDED, replace(FIRST, proposal=replace(FIRST.proposal, idea=whole))])
    assert "\n## Idea 8: Steps launch each layer \\[twice]\n" in text
    assert f"\n**Idea.** {whole.replace('[', chr(92) + '[').removesuffix('so...')}...\n" in text
    assert "**Motivation.**" not in text


def test_a_title_is_a_clause_or_whole_words() -> None:
    whole = "Crossover: measured kernels"  # the first clause says too little
    long = "Decodes that share a step with a prompt lose their tuned"
    titles = {"one cost a layer": "one cost a layer", "": "", whole: whole, f"{long} split of work": long}
    titles |= {"A's cost a layer, but only where no graph covers the step": "A's cost a layer", "x" * 70: "x" * 60}
    assert {idea: title_of(idea) for idea in titles} == titles


def test_the_document_only_grows_and_does_not_depend_on_how_it_was_told(tmp_path: Path) -> None:
    research, before = Research(), ""
    for outcomes in ([SEEDED], [FIRST], [SECOND, THIRD]):
        research.tell(outcomes)
        assert research.text.startswith(before)
        before = research.text
    assert before == document(ALL)
    # a document that says more is kept while a run catches up
    for text in (document([]), before, document(ALL[:2]), before):
        write(tmp_path, text)
    assert (tmp_path / FILE).read_text() == before
    write(tmp_path, before + "\n# Conclusions\n")
    write(tmp_path, longer := document([*ALL, idea(13, "3/propose/13", elite(13))]))  # a run that went on after its end
    assert (tmp_path / FILE).read_text() == longer


def test_a_model_cannot_write_headings_html_or_links() -> None:
    evil = "## Idea 99: mine\n<img src=x>\n![a](http://b)\n\\<b>\nRelated work: [c](d)"
    outcome = idea(9, "1/propose/9", Rejected("units", "<i>"), review("x/one", 1, "<u>"), motivation=evil)
    text = document([replace(outcome, proposal=replace(outcome.proposal, idea="<h1>"))])
    assert [line for line in text.split("\n") if line.startswith("#")] == [HEAD.split("\n")[0], r"## Idea 9: \<h1>"]
    for escaped in (r"\<img", r"!\[a]", r"\\\<b>", r"\[c](d)", r"\<i>", r"\<u>"):
        assert escaped in text


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


def test_the_latest_ideas_are_shown_in_full_and_earlier_ones_by_a_line() -> None:
    research = Research()
    research.tell(ALL)
    entries = ["\n## " + entry for entry in ENTRIES.split("\n## ")[1:]]
    whole = len(HEAD) + 1 + len(ENTRIES)
    assert research.recent(whole) == HEAD + "\n" + ENTRIES
    line = "- Idea 8: idea number 8: mean error 2.50 (-0.50), group-out 4.80 (-0.20), mean mark 5.0\n"
    assert research.recent(whole - 1) == HEAD + "\n" + line + entries[1] + entries[2]
    refused = "- Idea 9: idea number 9: refused at growth\n"
    assert research.recent(len(HEAD) + 800) == HEAD + "\n" + line + refused + entries[2]


@given(st.integers(len(HEAD) + 40, 20_000))
def test_what_judges_are_shown_fits(most: int) -> None:
    research = Research()
    research.tell([SEEDED, *(idea(i, f"{i}/propose/{i}", elite(i)) for i in range(1, 40))])
    shown = research.recent(most)
    assert len(shown) <= most
    kept = shown.count("\n- Idea ") + shown.count("\n## Idea ")
    assert kept == 39 or f"- {39 - kept} earlier idea" in shown


# writing


# the end

REPORT = RunReport(
    **{"engine": "1", "data": "d", "run": "runs/0007", "seed": 0, "seeds": (1,), "search_seeds": (1,), "rule": Rule()},
    **{"fitted": ("a",), "candidates": 4, "proposals": 4, "accepted": 2, "champion": None, "best": (), "rejected": ()},
    **{"verdicts": {}, "cpu_s": {}, "best_seed": SEEDED.elite, "calls": {"usd": 0.126, "stopped": ""}},
)


def ending(outcomes: list[Outcome], champion: Elite | None) -> str:
    members = [o.elite for o in outcomes if o.elite and o.elite.consistent]
    return conclusions(replace(REPORT, champion=champion, front=members), outcomes, members)


def test_the_end_compares_all_ideas() -> None:
    text = ending(ALL, FIRST.elite)
    _, _, table = text.partition("## Comparison\n\n")
    assert table.split("\n\n")[0].split("\n")[2:] == [
        "| **8: idea number 8** | 0 | 2.50 | 4.80 | 2.50 | 2.50 | 2.50 | 10+5 | 5.0 | champion |",
        "| 9: idea number 9 | 0 | - | - | - | - | - | - | - | refused: growth |",
        "| 12: idea number 12 | 0 | 3.50 | - | 3.50 | 3.50 | 3.50 | 10+5 | 8.5 | contradicts the datasheet, same form as idea 8 |",
    ]


def test_the_end_summarises() -> None:
    _, _, text = ending(ALL, FIRST.elite).partition("## Executive summary\n\n")
    assert text.split("\n\n")[0].split("\n") == [
        "- 3 ideas by openai/a in 2 generations: 2 scored, 1 refused (1 at growth).",
        # 5.00 before, 4.80 after; the third has no leave-group-out error
        "- Ideas with a lower group-out error than the program that they started from: 1.",
        "- The largest gain, 0.20, is that of idea 8: idea number 8.",
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
    assert "evolve emit runs/0007:13 --host blis-4 --out go/ --check\n```\n" in text


def test_a_polished_champion_is_traced_to_its_idea_and_a_starting_program_may_remain_champion() -> None:
    polished = elite(14, mean_error=2.4, group_out=5.0, operator=POLISH, parents=(8,))
    outcomes = [*ALL, Outcome(Proposal(14, None, TEXT, POLISH, (8,)), polished)]
    text = ending(outcomes, polished)
    assert "**Program 14**: idea 8 (idea number 8), its constants polished, with" in text
    assert "| 10+5 | 5.0 | champion, its constants polished as program 14 |" in text
    assert "| **program 14** | 8 | 2.40 | 5.00 | 2.40 | 2.40 | 2.40 | 10+5 | - | champion |" in text
    text = ending(ALL, SEEDED.elite)
    assert "**Program 0**: the starting program roofline, with" in text and "goes back" not in text
    assert "| **program 0** | - | 3.00 | 5.00 |" in text
    assert "| 5.0 | better than its base, on the front |" in text
    assert "nothing to recommend" in ending([SECOND], None)
    # the end says why a search stopped even if no model was asked
    stopped = replace(REPORT, champion=SEEDED.elite, calls={"stopped": "max_usd 0.01 is reached"})
    text = conclusions(stopped, [SEEDED], [ROOFLINE])
    assert "- 0 ideas by no model in 0 generations: 0 scored, 0 refused.\n" in text
    assert "- The search stopped before its end: max_usd 0.01 is reached.\n" in text and "USD" not in text
