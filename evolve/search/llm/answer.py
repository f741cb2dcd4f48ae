"""The program texts in a model's answer, and what is wrong with those that cannot be read. Answers are never obeyed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import islice
from textwrap import dedent

from evolve.search.llm.changes import WrittenChange, changed, whole
from evolve.search.llm.prose import motivation
from evolve.search.llm.reading import understood
from simulator.common.text import plain
from simulator.language.ir import Program

LONGEST = 200_000  # characters of an answer that are read
LONGEST_IDEA = 160  # characters of a title
MOST_BLOCKS = 50  # SEARCH/REPLACE blocks of one proposal
# A heading has two or more #, because one # starts a comment in a program.
HEADING = re.compile(r"^[ \t]*#{2,6}[ \t]*Proposal\b[^\n]*$", re.MULTILINE | re.IGNORECASE)
# Possessive quantifiers (*+) keep a hostile answer from making this pattern slow by backtracking.
FENCE = re.compile(r"^[ \t]*(?:`{3,}+|~{3,}+)[ \t]*+(\w*+)[^\n`]*+$", re.MULTILINE)
MARK = re.compile(r"^```(python)?$", re.MULTILINE)  # a fence after `_plain_fence`
MARKERS = ["<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"]
MARKER = re.compile(rf"^[ \t]*({'|'.join(MARKERS)})[ \t]*$", re.MULTILINE)
ANSWER, PARSE = "answer", "parse"  # the stages at which a proposal without a program is refused, see Rejected
DEFINES = re.compile(r"\bdef\s+(predict_)?step_time\b")


@dataclass(frozen=True, slots=True)
class Idea:
    """A proposal in an answer: its title, its program's text, and why it cannot be used ("" if it can).

    stage: at which it is refused. notes: what its reader left out. program: what the text says, None if it cannot be
    read; its lines are those of the text as the model wrote it, which complaints call by their `places`.
    motivation: what the answer says about it besides the program. given: whether it is a proposal; if not, it says why
    there is none in the answer.
    """

    title: str
    text: str
    complaint: str = ""
    stage: str = field(default=ANSWER, compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)
    program: Program | None = field(default=None, compare=False)
    places: tuple[str, ...] = field(default=(), compare=False)
    motivation: str = field(default="", compare=False)
    given: bool = field(default=True, compare=False)


def ideas(answer: str, base: str, most: int, finish: str = "stop") -> list[Idea]:
    """Up to `most` proposals, in the order of the answer. SEARCH/REPLACE blocks change the program text `base`.

    If nothing in the answer is a proposal, a single Idea says so. `finish` is why the answer ended, `length` if it was
    cut off.
    """
    cut = ": the answer was cut off, at its limit of tokens" if finish == "length" else ""
    proposals = _proposals(answer, base, most, cut)
    if not proposals:
        why = "the answer is empty" if not answer[:LONGEST].strip() else f"no program in the answer{cut}"
        return [Idea("", "", why, given=False)]
    return proposals


def proposed(answer: str, most: int) -> int:
    """How many proposals are in an answer, up to `most`."""
    return len(_proposals(answer, "", most, ""))


def _proposals(answer: str, base: str, most: int, cut: str) -> list[Idea]:
    """Up to `most` proposals, in the order of the answer."""
    answer = FENCE.sub(_plain_fence, answer[:LONGEST].replace("\r\n", "\n").replace("\r", "\n"))
    read = ((_idea(title, text, base, cut), text) for title, text in _sections(answer))
    return list(islice((replace(idea, motivation=motivation(text)) for idea, text in read if idea), most))


def _plain_fence(fence: re.Match[str]) -> str:
    """The standard spelling of a fence of any length, indented or not; only whether it names Python is kept."""
    return "```python" if fence[1].lower().startswith("py") else "```"


def _sections(answer: str) -> list[tuple[str, str]]:
    """(title, text) below every heading `### Proposal N: title`.

    Without headings the sections are the fenced blocks, or the whole answer if there is at most one.
    """
    heads = list(HEADING.finditer(answer))
    if heads:
        ends = [head.start() for head in heads[1:]] + [len(answer)]
        return [(_title(head.group()), answer[head.end() : end]) for head, end in zip(heads, ends, strict=True)]
    blocks, rest = _blocks(answer)
    pieces = [*blocks, rest] if rest else blocks
    return [("", piece) for piece in (pieces if len(pieces) > 1 else [answer])]


def _blocks(text: str) -> tuple[list[str], str]:
    """The fenced blocks, and the text from a fence that is never closed ("" if all are).

    A fence that names Python always opens a block.
    """
    blocks, opened = [], -1
    for mark in MARK.finditer(text):
        if mark[1] or opened < 0:
            opened = mark.start()
        else:
            blocks.append(text[opened : mark.end()])
            opened = -1
    return blocks, text[opened:] if opened >= 0 else ""


def _title(heading: str) -> str:
    text = re.sub(r"^[ \t]*#+[ \t]*Proposal[ \t]*\d*[ \t]*[:.-]*", "", heading, flags=re.IGNORECASE)
    return plain(text, LONGEST_IDEA)


def _idea(title: str, section: str, base: str, cut: str) -> Idea | None:
    """The proposal in a section; None if the section has neither a title nor a program."""
    marks = list(MARKER.finditer(section))
    if any(mark[1] == MARKERS[0] for mark in marks):
        return _changed(title, section, marks, base, cut)
    blocks, rest = _blocks(section)
    for block in blocks:
        if DEFINES.search(block):
            # The lines of a program are counted from the one after its fence.
            return _read(title, whole(dedent("\n".join(block.split("\n")[1:-1]))))
    if DEFINES.search(rest):
        return Idea(title, "", f"its program has no end{cut}")
    if DEFINES.search(section) and not blocks:
        return _read(title, whole(section.lstrip("\n")))
    return Idea(title, "", "no program in it: give one ```python block with step_time") if title else None


def _changed(title: str, section: str, marks: list[re.Match[str]], base: str, cut: str) -> Idea:
    """The program `base` after the SEARCH/REPLACE blocks of a section; `marks` are the blocks' marker lines."""
    if [mark[1] for mark in marks] != MARKERS * (len(marks) // 3):
        return Idea(title, "", f"its blocks cannot be read: each has the lines {', '.join(MARKERS)}{cut}")
    if len(marks) > 3 * MOST_BLOCKS:
        return Idea(title, "", f"more than {MOST_BLOCKS} SEARCH blocks: give the whole program")
    pairs = [
        (section[a.end() + 1 : b.start()].rstrip(), section[b.end() + 1 : c.start()].rstrip())
        for a, b, c in zip(marks[::3], marks[1::3], marks[2::3], strict=True)
    ]
    after = changed(base, pairs)
    return Idea(title, "", after) if isinstance(after, str) else _read(title, after)


def _read(title: str, written: WrittenChange) -> Idea:
    read = understood(written)
    return Idea(title, read.text, read.complaint, PARSE, read.notes, read.program, written.places)
