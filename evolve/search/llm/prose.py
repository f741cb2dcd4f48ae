"""The prose in an answer: what it says besides its programs, as printable lines. It is quoted, never obeyed."""

from __future__ import annotations

import re

LONGEST_MOTIVATION = 4000  # characters
# A fenced block, to its end or that of the text; fences are spelled as `evolve.search.llm.answer` spells them.
BLOCK = re.compile(r"^```.*?(?:^```$|\Z)", re.MULTILINE | re.DOTALL)
# Blocks of changes, or a program, without a fence: only the prose before them can be told apart.
BARE = re.compile(r"^[ \t]*(?:<{7} SEARCH|def\s+\w+\s*\(|CONSTANTS\s*=|import\s|from\s+\w+\s+import\s)", re.MULTILINE)


def motivation(section: str) -> str:
    """What a section of an answer says besides its program, at most LONGEST_MOTIVATION characters; "" if nothing."""
    text = BLOCK.sub("", section)
    bare = BARE.search(text)
    return without_fences(text[: bare.start()] if bare else text)[:LONGEST_MOTIVATION].strip()


def without_fences(text: str) -> str:
    """The printable characters of a text, without lines that open or close a fenced block."""
    lines = [_printable(line).rstrip() for line in text.splitlines()]
    return "\n".join(line for line in lines if not line.lstrip().startswith("```")).strip()


def _printable(line: str) -> str:
    return line if line.isprintable() else "".join(c for c in line if c.isprintable() or c == "\t")
