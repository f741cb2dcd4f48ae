"""Answers as models give them, right and wrong, and what becomes of each at first reading.

No model gave them: they were written by hand after the kinds of mistakes that the reader is meant to take, so shares of
accepted ones say what the reader does with such mistakes, not how often a model makes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evolve.run.config import Config
from evolve.search.llm.answer import ideas
from evolve.search.llm.prompt import bare
from evolve.search.llm.question import checked
from simulator.language.complete import complete
from simulator.language.key import key
from simulator.language.parse import parse

A = bare("""
def step_time(b, s, *, floor: us = 4750.0, weights: one = 1.36, kv: one = 1.2, gemm: one = 1.75, layer: us = 40.0,
              request: us/request = 26.6):
    memory = weights * b.weight_read_us + kv * b.kv_read_us
    compute = gemm * (b.prefill_gemm_us + b.decode_gemm_us)
    return max(floor, memory + compute) + layer * s.layers + request * b.batch_size

def queueing_time(r, s, *, base: us = 8897.0, steps: one = 1.81):
    return base + steps * s.reference_step_us
""")
CHARACTERS = 4  # of an answer, about, to a token


@dataclass(frozen=True)
class Scripted:
    """An answer with one proposal: the kind of its mistake, what it does, its text."""

    kind: str
    name: str
    text: str


def scripted() -> list[Scripted]:
    """All answers of scripted_answers.txt."""
    answers = []
    for part in Path(__file__).with_suffix(".txt").read_text("utf-8").split("%% ")[1:]:
        head, _, body = part.partition("\n")
        kind, form, name = head.split(" | ")
        fence = {"program": "```python\n", "change": "```\n"}.get(form)
        text = f"### Proposal 1: {name}\n\n{fence}{body}```\n" if fence else body
        answers.append(Scripted(kind, name, text))
    return answers


def complaint(answer: Scripted) -> str:
    """Why the answer's proposal is refused at first reading, "" if it is accepted. Program A was proposed before."""
    [idea] = ideas(answer.text, A, 4)
    refused = checked(idea, Config(), {key(complete(parse(A))): None}).refused
    return refused.why if refused else ""


def tokens_per_accepted(complaints: dict[Scripted, str]) -> float:
    """Tokens of all answers, about, over the number of programs accepted."""
    accepted = sum(not why for why in complaints.values())
    return sum(len(answer.text) for answer in complaints) / CHARACTERS / accepted
