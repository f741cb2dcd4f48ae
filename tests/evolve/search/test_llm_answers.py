"""How many of the scripted answers are accepted at first reading, and what is said of the others."""

from __future__ import annotations

import pytest
from llm_scripts import whole
from scripted_answers import A, Scripted, complaint, scripted, tokens_per_accepted

from archive.archive import Archive
from archive.elite import example
from archive.grid import Grid
from archive.proposal import DUPLICATE
from evolve.run.config import Config
from evolve.search.llm.answer import ideas
from evolve.search.llm.calls import LlmCall
from evolve.search.llm.question import Candidate, Question, Taken, checked, taken_forms
from simulator.language.complete import complete
from simulator.language.key import key
from simulator.language.parse import parse

# Refused at first reading, and how the complaint begins.
REFUSED = {
    "absolute value": "line 2: cannot call 'abs'",
    "a loop": "line 3: a loop is not part of the language",
    "a helper": "line 1: unknown function 'memory'",
    "a letter missing": "line 2: unknown field b.kv_read_u: did you mean b.kv_read_us?",
    "three wrong names": "line 2: unknown field b.weights_read_us: did you mean b.weight_read_us?; "
    "line 2: unknown field b.kv_reads_us: did you mean b.kv_read_us?; line 2: unknown field s.num_layers: did you mean",
    "of the wrong object": "line 2: unknown field b.layers: did you mean s.layers?",
    "a constant that was not declared": "line 2: unknown name 'layers': did you mean s.layers?; "
    "line 2: unknown name 'overhead': assign it first or make it a constant",
    "tokens and time": "line 2: units: cannot add base + weights * b.weight_read_us (us) and b.tokens (token)",
    "two clashes": "line 2: units: cannot add layer * s.layers (one) and weights * b.weight_read_us (us): multiply the first "
    "by a constant of us, or correct the unit of weights; line 3: units: cannot add fixed (us) and request * b.batch_size",
    "the exponential of a count": "line 2: units: exp takes a pure number",
    "an unknown unit": "line 1: 'ms' is not a unit",
    "narrow bounds": "step_time: bounds [1.1, 1.4] give the value of weights",
    "a number that is made": "line 2: the formulas come to the number 4",
    "two lines with a line between them left out": "its SEARCH has lines of program A that do not follow each other there",
    "a line that A does not have": "its SEARCH has 'memory = weights * b.weight_read_us + kv * b.kv_reed_us', which is not in "
    "program A; the nearest line there is 'memory = weights * b.weight_read_us + kv * b.kv_read_us'",
    "what is there twice": "its SEARCH of 'return' is in program A 2 times",
    "nothing changes": "its SEARCH of 'return base + steps * s.reference_step_us' changes nothing",
    "cut off": "its program has no end",
    "only words": "no program in it",
    "no end marker": "its blocks cannot be read",
    "program A again with other numbers": "this form was proposed before",
    "an unused constant and a wrong field": "line 3: unknown field b.kv_read: did you mean b.kv_read_us?",
}  # fmt: skip


@pytest.fixture(scope="module")
def complaints() -> dict[Scripted, str]:
    return {answer: complaint(answer) for answer in scripted()}


def test_which_answers_are_accepted_at_first_reading(complaints: dict[Scripted, str]) -> None:
    refused = {answer.name: why for answer, why in complaints.items() if why}
    assert len(complaints) == 69 and set(refused) == set(REFUSED)  # 47 are accepted; without kind reading it was 13
    for name, why in refused.items():
        assert why.startswith(REFUSED[name])


def test_tokens_of_answers_for_a_program(complaints: dict[Scripted, str]) -> None:
    assert tokens_per_accepted(complaints) == pytest.approx(87.6, abs=0.1)  # it was 317 without kind reading


def test_names_of_scripted_answers_are_unique() -> None:
    assert len({answer.name for answer in scripted()}) == len(scripted())


def test_a_mistake_in_a_change_is_told_by_its_block() -> None:
    blocks = """```
<<<<<<< SEARCH
    request: us/request = 26.6,
=======
    request: us/request = 26.6,
    rank: us = 90.0,
>>>>>>> REPLACE
<<<<<<< SEARCH
    return base + steps * s.reference_step_us
=======

    wait = base * s.tp_log
    return wait + steps * s.reference_step_us
>>>>>>> REPLACE
<<<<<<< SEARCH
kv * b.kv_read_us
=======
kv * b.kv_read_u + rank * s.tp_log2
>>>>>>> REPLACE
```"""
    [idea] = ideas(blocks, A, 1)
    assert idea.complaint == (
        "line 1 of REPLACE 3: unknown field b.kv_read_u: did you mean b.kv_read_us?; "
        "line 2 of REPLACE 2: unknown field s.tp_log: did you mean s.tp_log2?"
    )
    [right] = ideas(blocks.replace("tp_log\n", "tp_log2\n").replace("read_u +", "read_us +"), A, 1)
    assert right.complaint == ""
    [wrong] = ideas(blocks, A.replace("b.decode_gemm_us", "b.decode_gem_us"), 1)
    assert "; line 11 of program A: unknown field b.decode_gem_us" in wrong.complaint


def candidate(text: str, taken: Taken) -> Candidate:
    [idea] = ideas(whole(text), A, 1)
    return checked(idea, "1/propose/4", Config(), taken)


def answered(candidates: list[Candidate]) -> Question:
    """A question with these candidates in its only answer."""
    call = LlmCall(1, "propose", 4, "m", ())
    return Question(4, 8, 4, 4, 0, "m", example(), (), (), calls=[call], rounds=[candidates])


def test_a_duplicate_names_the_program_that_has_the_form() -> None:
    archive = Archive(Grid())
    archive.add(example(id=41, key=key(complete(parse(A))), joint=1.92, transfer=2.6))
    archive.keys.add("of a form that failed")
    taken = taken_forms(archive)
    small = "def step_time(b, s, *, weights: one = 1.0):\n    return weights * b.weight_read_us\n"
    wrong = small.replace("weight_read_us", "weight_read")
    candidates = [candidate(text, taken) for text in (A, small, small, wrong)]
    question = answered(candidates)
    assert [c.idea.complaint for c in candidates[:3]] == [
        "the form of program 41: joint 1.92, transfer 2.60", "", "this form was proposed before"
    ]  # fmt: skip
    assert question.lines()[0] == "- Proposal 1: refused: the form of program 41: joint 1.92, transfer 2.60"
    refused = [proposal.refused for k in range(4) if (proposal := question.proposal(0, k))]
    assert [r and r.stage for r in refused] == [DUPLICATE, None, DUPLICATE, "parse"]


def test_what_was_left_out_is_kept_with_the_idea() -> None:
    unused = "def step_time(b, s, *, weights: one = 1.0, c: us = 2.0):\n    return weights * b.weight_read_us\n"
    proposal = answered([candidate(unused, {})]).proposal(0, 0)
    assert proposal and proposal.refused is None
    assert proposal.idea == "other terms; step_time: 'c' is never used and was left out"


@pytest.mark.parametrize(
    ("answer", "why", "given"),
    [
        ("", "the answer is empty", 0),
        ("More physics, please.", "no program in the answer", 0),
        ("### Proposal 1: words", "no program in it: give one ```python block with step_time", 1),
    ],
)
def test_places_without_a_proposal_say_how_many_were_given(answer: str, why: str, given: int) -> None:
    question = answered([checked(idea, "1/propose/4", Config(), {}) for idea in ideas(answer, A, 4)])
    refused = [proposal.refused for k in range(4) if (proposal := question.proposal(0, k))]
    assert [r and r.why for r in refused] == [why] + [f"{given} of 4 proposals were given"] * 3
