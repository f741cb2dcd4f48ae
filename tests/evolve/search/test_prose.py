"""What an answer says about an idea besides its program."""

from __future__ import annotations

import json

import pytest

from evolve.search.llm import tools
from evolve.search.llm.answer import ideas
from evolve.search.llm.prose import LONGEST_MOTIVATION

SMALL = "def step_time(b, s, *, weights: one = 1.0):\n    return weights * b.weight_read_us\n"
FENCED = f"```python\n{SMALL}```\n"
CHANGED = "<<<<<<< SEARCH\n    return weights * b.weight_read_us\n=======\n    return weights\n>>>>>>> REPLACE\n"


def motivation(answer: str) -> str:
    [idea] = ideas(answer, SMALL, 4)
    return idea.motivation


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            f"Hello.\n\n### Proposal 1: x\n\nWhy.\nIssue 1: so.\n\n{FENCED}\nAfter.\n",
            "Why.\nIssue 1: so.\n\n\n\nAfter.",
        ),
        (f"### Proposal 1: x\n{FENCED}", ""),
        (f"### Proposal 1: x\r\nWhy.\r\n~~~~py\r\n{SMALL}~~~~\r\n", "Why."),
        (f"### Proposal 1: x\nWhy.\n\n```\n{CHANGED}```\n", "Why."),
        (f"### Proposal 1: x\nWhy.\n{CHANGED}\nAfter.", "Why."),  # without a fence: the end of a change is not known
        (f"### Proposal 1: x\nWhy.\n{SMALL}", "Why."),
        (f"### Proposal 1: x\nWhy.\n```python\n{SMALL}", "Why."),  # cut off
        (f"Why.\n{FENCED}", "Why."),  # no heading
        (f"### Proposal 1: x\nWhy\x1b[2J\u202e.\t\n{FENCED}", "Why[2J."),
        ("### Proposal 1: x\nNo program.", "No program."),
        (f"### Proposal 1: x\n{'y' * 9999}\n{FENCED}", "y" * LONGEST_MOTIVATION),
    ],
)
def test_the_motivation_is_what_stands_outside_the_program(answer: str, expected: str) -> None:
    assert motivation(answer) == expected


def test_every_proposal_has_its_own() -> None:
    two = f"### Proposal 1: x\nOne.\n{FENCED}\n### Proposal 2: y\nTwo.\n{FENCED}"
    assert [idea.motivation for idea in ideas(two, SMALL, 4)] == ["One.", "Two."]
    bare = f"Both.\n{FENCED}\nand\n{FENCED}"  # without headings nobody knows what belongs to which
    assert [idea.motivation for idea in ideas(bare, SMALL, 4)] == ["", ""]


def test_a_tool_call_says_it_too() -> None:
    two = [{"title": "x", "motivation": "Why.\nIssue 1: so.", "program": SMALL}, {"title": "y", "program": SMALL}]
    answer = tools.as_text([json.dumps({"proposals": two})])
    assert [(idea.motivation, idea.complaint) for idea in ideas(answer, SMALL, 4)] == [
        ("Why.\nIssue 1: so.", ""),
        ("", ""),
    ]
