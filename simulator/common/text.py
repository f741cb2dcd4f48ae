"""Text from files, made fit to be printed: characters that steer a terminal or reorder a line become visible."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

# Unicode categories: control characters, format characters (bidi overrides among them), lone surrogates, and the
# separators of lines and paragraphs.
HIDDEN = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
ACTIVE = re.compile(r"(\\*)(<(?=[A-Za-z/!?])|\](?=[(\[:]))")  # what begins HTML, or ends the text of a link


def hidden(character: str) -> bool:
    """True if a character has no glyph but an effect."""
    return unicodedata.category(character) in HIDDEN


def plain(text: str, most: int) -> str:
    r"""The text as one line of at most `most` printable characters.

    >>> plain("a\n b\x1b c", 9), plain("abcdefg", 6)
    ('a b c', 'abc...')
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= most else line[: most - 3] + "..."


def visible(text: str, keep: str = "") -> str:
    r"""The text with every hidden character spelled as in a Python string; those in `keep` are left as they are.

    >>> visible("a\x1b[31mb\u202e\n")
    'a\\x1b[31mb\\u202e\\n'
    """
    # each distinct character is looked at once: texts may have a million
    spelled = {ord(c): c.encode("unicode_escape").decode() for c in set(text) - set(keep) if hidden(c)}
    return text.translate(spelled) if spelled else text


def inert(text: str) -> str:
    r"""The text as one line of Markdown in which nothing is HTML, a link or a picture.

    >>> print(inert("<b>[x](y) a < b[0]"))
    \<b>[x\](y) a < b[0]
    """
    return ACTIVE.sub(r"\1\1\\\2", visible(text))


def listed(names: Sequence[str], most: int) -> str:
    """The first `most` of the names, and how many more there are.

    >>> listed(["a", "b", "c"], 2), listed(["a", "b"], 2)
    ('a, b and 1 more', 'a, b')
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def counted(n: int, noun: str) -> str:
    """`1 constant`, `2 constants`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
