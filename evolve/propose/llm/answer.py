"""The program texts in a model's answer, and what is wrong with those that cannot be read. Answers are never obeyed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import islice

from evolve.propose.llm.prose import motivation
from simulator.language.parse import parse
from simulator.language.source import MAX_BYTES, ProgramError
from simulator.language.unparse import unparse

LONGEST = 200_000  # characters of an answer that are read
LONGEST_IDEA = 160  # characters of a title
MOST_BLOCKS = 50  # SEARCH/REPLACE blocks of one proposal
MOST_LINES = 1000  # of the program that they change: finding a block takes up to lines x lines comparisons
# A heading has two or more #, because one # starts a comment in a program.
HEADING = re.compile(r"^[ \t]*#{2,6}[ \t]*Proposal\b[^\n]*$", re.MULTILINE | re.IGNORECASE)
# Possessive quantifiers (*+) keep a hostile answer from making this pattern slow by backtracking.
FENCE = re.compile(r"^[ \t]*(?:`{3,}+|~{3,}+)[ \t]*+(\w*+)[^\n`]*+$", re.MULTILINE)
MARK = re.compile(r"^```(python)?$", re.MULTILINE)  # a fence after `_plain_fence`
MARKERS = ["<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"]
MARKER = re.compile(rf"^[ \t]*({'|'.join(MARKERS)})[ \t]*$", re.MULTILINE)
DEFINES = re.compile(r"\bdef\s+(predict_)?step_time\b")


@dataclass(frozen=True, slots=True)
class Idea:
    """A proposal in an answer: its title, its program's text, and why it cannot be used ("" if it can).

    motivation: what the answer says about it besides the program.
    """

    title: str
    text: str
    complaint: str = ""
    motivation: str = field(default="", compare=False)


def ideas(answer: str, base: str, most: int, finish: str = "stop") -> list[Idea]:
    """Up to `most` proposals, in the order of the answer. SEARCH/REPLACE blocks change the program text `base`.

    If nothing in the answer is a proposal, a single Idea says so. `finish` is why the answer ended, `length` if it was
    cut off.
    """
    answer = FENCE.sub(_plain_fence, answer[:LONGEST].replace("\r\n", "\n").replace("\r", "\n"))
    cut = ": the answer was cut off, at its limit of tokens" if finish == "length" else ""
    read = ((_idea(title, text, base, cut), text) for title, text in _sections(answer))
    proposals = list(islice((replace(idea, motivation=motivation(text)) for idea, text in read if idea), most))
    if not proposals:
        why = "the answer is empty" if not answer.strip() else f"no program in the answer{cut}"
        return [Idea("", "", why)]
    return proposals


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


def plain(text: str, most: int) -> str:
    """The text as one line of at most `most` printable characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= most else line[: most - 3] + "..."


def _idea(title: str, section: str, base: str, cut: str) -> Idea | None:
    """The proposal in a section; None if the section has neither a title nor a program."""
    from openevolve.utils.code_utils import parse_full_rewrite

    marks = list(MARKER.finditer(section))
    if any(mark[1] == MARKERS[0] for mark in marks):
        return _changed(title, section, marks, base, cut)
    blocks, rest = _blocks(section)
    for block in blocks:
        if DEFINES.search(block):
            return _read(title, parse_full_rewrite(block) or "")
    if DEFINES.search(rest):
        return Idea(title, "", f"its program has no end{cut}")
    if DEFINES.search(section) and not blocks:
        return _read(title, section)
    return Idea(title, "", "no program in it: give one ```python block with step_time") if title else None


def _changed(title: str, section: str, marks: list[re.Match[str]], base: str, cut: str) -> Idea:
    """The program `base` after the SEARCH/REPLACE blocks of a section; `marks` are the blocks' marker lines."""
    from openevolve.utils.code_utils import apply_diff

    if [mark[1] for mark in marks] != MARKERS * (len(marks) // 3):
        return Idea(title, "", f"its blocks cannot be read: each has the lines {', '.join(MARKERS)}{cut}")
    if len(marks) > 3 * MOST_BLOCKS:
        return Idea(title, "", f"more than {MOST_BLOCKS} SEARCH blocks: give the whole program")
    text = base
    for a, b, c in zip(marks[::3], marks[1::3], marks[2::3], strict=True):
        search, put = section[a.end() + 1 : b.start()].rstrip(), section[b.end() + 1 : c.start()].rstrip()
        # one block at a time, because apply_diff silently skips a block that it cannot find
        block = "\n".join([MARKERS[0], search, MARKERS[1], put, MARKERS[2]])
        try:
            changed = apply_diff(text, block) if search else text
        except ValueError as e:
            return Idea(title, "", f"its blocks cannot be read: {e}")
        if changed == text:
            line = plain(search.strip().split("\n")[0], 60)
            return Idea(title, "", f"its SEARCH block of {line!r} changes nothing: it must have lines of program A")
        if len(changed) > MAX_BYTES or changed.count("\n") > MOST_LINES:
            return Idea(title, "", f"longer than {MAX_BYTES} bytes or {MOST_LINES} lines: shorten the program")
        text = changed
    return _read(title, text)


def _read(title: str, text: str) -> Idea:
    """A program in its standard spelling, without comments and docstrings. A text that is no program is kept."""
    try:
        program = parse(text)
    except ProgramError as e:
        kept = text.encode("utf-8", "replace")[: MAX_BYTES + 1].decode("utf-8", "ignore")
        return Idea(title, kept, plain(str(e), 300))
    bare = replace(program, doc="", functions=tuple(replace(f, doc="") for f in program.functions))
    return Idea(title, unparse(bare))
