"""Short titles for what language models call their ideas, which are often whole sentences."""

from __future__ import annotations

import re

LONGEST = 60  # characters of a title
LEAST = 16  # characters of a clause that says enough by itself
CLAUSE = re.compile(r"[:;,.!?]\s|\s[-–—(]|[.!?]$")  # where a clause ends
CUT = "..."  # the end of an idea that was journalled in part
# Words that a title cannot end with, since they lead to the next one.
LEADING = re.compile(
    r"(?: (?:a|an|and|are|as|at|be|but|by|for|from|if|in|into|is|its|no|not|of|on|one|only|or|per|so|than|that|the"
    r"|their|to|under|when|where|which|while|with|without|\S+'s))+$",
    re.IGNORECASE,
)


def title_of(idea: str) -> str:
    """The first clause of an idea, in at most LONGEST characters and whole words; "" for an idea without words.

    >>> title_of("Launches overlap with reading the weights: the larger of both instead of their sum")
    'Launches overlap with reading the weights'
    >>> title_of("Steps with prompts launch their kernels one by one and each of these launches costs host time")
    'Steps with prompts launch their kernels one by one and each'
    """
    ends = [m.start() for m in CLAUSE.finditer(idea) if LEAST <= m.start() <= LONGEST]
    if ends:
        return idea[: ends[0]]
    if len(idea) <= LONGEST and not idea.endswith(CUT):
        return idea
    return LEADING.sub("", whole_words(idea, LONGEST)).rstrip(",;:.-–—(")


def whole_words(text: str, most: int) -> str:
    """The text in at most `most` characters, cut between words; a single word that is longer is cut."""
    text = text.removesuffix(CUT) + " " * (not text.endswith(CUT))
    return (text[: most + 1].rpartition(" ")[0] or text[:most]).rstrip()
