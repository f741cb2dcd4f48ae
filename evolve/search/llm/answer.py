"""The programs in a model's answer: whole ones, or SEARCH/REPLACE blocks that change program A. It is never obeyed.

A SEARCH need not be whole lines: any part of A that is there once is found, whatever its white space.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from itertools import islice
from textwrap import dedent

from evolve.search.llm.reading import Idea, Written, understood, whole
from simulator.common.text import plain
from simulator.language.source import MAX_BYTES

LONGEST = 200_000  # characters of an answer that are read
LONGEST_IDEA = 160  # characters of a title
LONGEST_MOTIVATION = 4000  # characters
MOST_BLOCKS = 50  # SEARCH/REPLACE blocks of one proposal
MOST_LINES = 1000  # of the program: looking for a line that is near takes time
LONGEST_LINE = 200  # characters of a line that are compared with those of program A
SHOWN = 80  # characters of a line in a complaint
ALIKE = 0.4  # a line of program A that is less like a SEARCH is not shown
# A heading has two or more #, because one # starts a comment in a program.
HEADING = re.compile(r"^[ \t]*#{2,6}[ \t]*Proposal\b[^\n]*$", re.MULTILINE | re.IGNORECASE)
TITLE = re.compile(r"^[ \t]*#+[ \t]*Proposal[ \t]*\d*[ \t]*[:.-]*", re.IGNORECASE)  # what stands before one
# Possessive quantifiers (*+) keep a hostile answer from making this pattern slow by backtracking.
FENCE = re.compile(r"^[ \t]*(?:`{3,}+|~{3,}+)[ \t]*+(\w*+)[^\n`]*+$", re.MULTILINE)
MARK = re.compile(r"^```(python)?$", re.MULTILINE)  # a fence after `_plain_fence`
BLOCK = re.compile(r"^```.*?(?:^```$|\Z)", re.MULTILINE | re.DOTALL)  # a fenced block, to its end or that of the text
MARKERS = ["<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"]
MARKER = re.compile(rf"^[ \t]*({'|'.join(MARKERS)})[ \t]*$", re.MULTILINE)
DEFINES = re.compile(r"\bdef\s+(predict_)?step_time\b")
# Blocks of changes, or a program, without a fence: only the prose before them can be told apart.
BARE = re.compile(r"^[ \t]*(?:<{7} SEARCH|def\s+\w+\s*\(|CONSTANTS\s*=|import\s|from\s+\w+\s+import\s)", re.MULTILINE)


def ideas(answer: str, base: str, most: int, finish: str = "stop") -> list[Idea]:
    """Up to `most` proposals, in the order of the answer, or a single Idea that says there is none.

    SEARCH/REPLACE blocks change the program text `base`. `finish`: why the answer ended, `length` if it was cut off.
    """
    cut = ": the answer was cut off, at its limit of tokens" if finish == "length" else ""
    answer = FENCE.sub(_plain_fence, answer[:LONGEST].replace("\r\n", "\n").replace("\r", "\n"))
    read = ((_idea(title, text, base, cut), text) for title, text in _sections(answer))
    proposals = list(islice((replace(idea, motivation=motivation(text)) for idea, text in read if idea), most))
    if not proposals:
        why = f"no program in the answer{cut}" if answer.strip() else "the answer is empty"
        return [Idea("", "", why, given=False)]
    return proposals


def _plain_fence(fence: re.Match[str]) -> str:
    """The standard spelling of a fence of any length, indented or not."""
    return "```python" if fence[1].lower().startswith("py") else "```"


def _sections(answer: str) -> list[tuple[str, str]]:
    """(title, text) below every heading `### Proposal N: title`.

    Without headings the sections are the fenced blocks, or the whole answer if there is at most one.
    """
    heads = list(HEADING.finditer(answer))
    if heads:
        ends = [head.start() for head in heads[1:]] + [len(answer)]
        titles = [plain(TITLE.sub("", head.group()), LONGEST_IDEA) for head in heads]
        return [(title, answer[head.end() : end]) for title, head, end in zip(titles, heads, ends, strict=True)]
    blocks, rest = _blocks(answer)
    pieces = [*blocks, rest] if rest else blocks
    return [("", piece) for piece in (pieces if len(pieces) > 1 else [answer])]


def _blocks(text: str) -> tuple[list[str], str]:
    """The fenced blocks, and the text from an unclosed fence. A fence that names Python always opens a block."""
    blocks, opened = [], -1
    for mark in MARK.finditer(text):
        if mark[1] or opened < 0:
            opened = mark.start()
        else:
            blocks.append(text[opened : mark.end()])
            opened = -1
    return blocks, text[opened:] if opened >= 0 else ""


def _idea(title: str, section: str, base: str, cut: str) -> Idea | None:
    """The proposal in a section; None if the section has neither a title nor a program."""
    marks = list(MARKER.finditer(section))
    if any(mark[1] == MARKERS[0] for mark in marks):
        after = _changed(section, marks, base, cut)
        return Idea(title, "", after) if isinstance(after, str) else understood(title, after)
    blocks, rest = _blocks(section)
    for block in blocks:
        if DEFINES.search(block):
            # The lines of a program are counted from the one after its fence.
            return understood(title, whole(dedent("\n".join(block.split("\n")[1:-1]))))
    if DEFINES.search(rest):
        return Idea(title, "", f"its program has no end{cut}")
    if DEFINES.search(section) and not blocks:
        return understood(title, whole(section.lstrip("\n")))
    return Idea(title, "", "no program in it: give one ```python block with step_time") if title else None


# the prose in an answer, which is quoted and never obeyed


def motivation(section: str) -> str:
    """The prose of a section outside its program, at most LONGEST_MOTIVATION characters; "" if there is none."""
    text = BLOCK.sub("", section)
    bare = BARE.search(text)
    return without_fences(text[: bare.start()] if bare else text)[:LONGEST_MOTIVATION].strip()


def without_fences(text: str) -> str:
    """The printable characters of a text, without lines that open or close a fenced block."""
    lines = ["".join(c for c in line if c.isprintable() or c == "\t").rstrip() for line in text.splitlines()]
    return "\n".join(line for line in lines if not line.lstrip().startswith("```")).strip()


# changes of program A


def _changed(section: str, marks: list[re.Match[str]], base: str, cut: str) -> Written | str:
    """The program `base` after the SEARCH/REPLACE blocks of a section, or a complaint; `marks`: their marker lines."""
    if [mark[1] for mark in marks] != MARKERS * (len(marks) // 3):
        return f"its blocks cannot be read: each has the lines {', '.join(MARKERS)}{cut}"
    if len(marks) > 3 * MOST_BLOCKS:
        return f"more than {MOST_BLOCKS} SEARCH blocks: give the whole program"
    now, complaints = whole(base, " of program A"), list[str]()
    for n, (a, b, c) in enumerate(zip(marks[::3], marks[1::3], marks[2::3], strict=True), 1):
        search, put = section[a.end() + 1 : b.start()].rstrip(), section[b.end() + 1 : c.start()].rstrip()
        name, by = (f"SEARCH {n}", f"REPLACE {n}") if len(marks) > 3 else ("its SEARCH", "its REPLACE")
        spans = occurrences(now.text, search) if search.strip() else []
        if len(spans) != 1:
            complaints.append(_missing(name, now.text, search, len(spans)))
            continue
        after = _replaced(now, spans[0], search, put, by)
        if after.text == now.text:
            complaints.append(f"{name} of {_first(search)!r} changes nothing: its REPLACE is the same")
        if len(after.text) > MAX_BYTES or len(after.places) > MOST_LINES + 1:
            return f"longer than {MAX_BYTES} bytes or {MOST_LINES} lines: shorten the program"
        now = after
    return "; ".join(complaints) or now


def occurrences(text: str, search: str) -> list[tuple[int, int]]:
    """The places of `search` in the text, as (start, end). A place never begins or ends within a name or a number.

    Exact occurrences come before those that differ in white space, and whole lines before parts of lines.
    """
    letters, wanted = _letters(text), _letters(search)
    squeezed, sought = ("".join(of[i] for i in at) for of, at in ((text, letters), (search, wanted)))
    part = search.strip("\n")
    exactly = [(i, i + len(part)) for i in range(len(text)) if text.startswith(part, i)]
    starts = [i for i in range(len(squeezed)) if squeezed.startswith(sought, i)]
    loosely = [(letters[i], letters[i + len(sought) - 1] + 1) for i in starts]
    for spans in (exactly, loosely):
        starts_of_lines = {span: text.rfind("\n", 0, span[0]) + 1 for span in spans if not _cuts(text, *span)}
        # what is left and right of a span in its lines
        margins = {
            (start, end): text[line:start] + text[end:].partition("\n")[0]
            for (start, end), line in starts_of_lines.items()
        }
        if margins:
            lines_whole = [span for span, margin in margins.items() if not margin]
            without_indent = [span for span, margin in margins.items() if not margin.strip()]
            return lines_whole or without_indent or list(margins)
    return []


def _letters(text: str) -> list[int]:
    """The positions of characters that count: no white space, and no comma before a closing bracket."""
    letters: list[int] = []
    for i, c in enumerate(text):
        if c == ")" and letters and text[letters[-1]] == ",":
            letters.pop()
        if not c.isspace():
            letters.append(i)
    return letters


def _cuts(text: str, start: int, end: int) -> bool:
    sides = (text[max(start - 1, 0) : start + 1], text[end - 1 : end + 1])
    return any(len(side) == 2 and all(c.isalnum() or c in "_." for c in side) for side in sides)


def _replaced(now: Written, span: tuple[int, int], search: str, put: str, name: str) -> Written:
    """The text with `put` instead of a span. If the span begins a line, `put` is indented as the line was."""
    start, end = span
    indent = now.text[:start].rpartition("\n")[2]
    if not indent.strip():
        wanted = next(line for line in search.split("\n") if line.strip())
        shift = len(indent) + _indent(now.text[start:]) - _indent(wanted)
        put = "\n".join(
            " " * max(shift, 0) + line[min(max(-shift, 0), _indent(line)) :] if line.strip() else line
            for line in put.split("\n")
        )
        start -= len(indent)
    first, last = now.text.count("\n", 0, start), now.text.count("\n", 0, end)
    places = (*now.places[:first], *whole(put, f" of {name}").places, *now.places[last + 1 :])
    return Written(now.text[:start] + put + now.text[end:], places)


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip(" \t"))


def _missing(name: str, text: str, search: str, times: int) -> str:
    if not search.strip():
        return f"{name} is empty: it must have a part of program A"
    if times:
        return f"{name} of {_first(search)!r} is in program A {times} times: give more of the text around it"
    squeezed = "".join(text.split())
    lines = [line.strip() for line in search.split("\n") if line.strip()]
    unknown = [line for line in lines if "".join(line.split()) not in squeezed]
    if not unknown:
        if len(lines) > 1:
            return f"{name} has lines of program A that do not follow each other there, from {_first(search)!r} on"
        return f"{name} of {_first(search)!r} begins or ends within a name of program A: give whole names"
    theirs = {line.strip()[:LONGEST_LINE]: plain(line, SHOWN) for line in text.split("\n") if line.strip()}
    near = difflib.get_close_matches(unknown[0][:LONGEST_LINE], theirs, n=1, cutoff=ALIKE)
    nearest = f"; the nearest line there is {theirs[near[0]]!r}" if near else ""
    return f"{name} has {plain(unknown[0], SHOWN)!r}, which is not in program A{nearest}"


def _first(search: str) -> str:
    return plain(search.strip().split("\n")[0], SHOWN)
