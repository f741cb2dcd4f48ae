"""Comments and pages of a clone that count its backends or list them: true with one more."""

from __future__ import annotations

import re

from translate_go.clone.registered import Backend
from translate_go.clone.scan import GoFile, edited, read

# "two latency backends", which stays true of those that the host calls analytical
_COUNTED = re.compile(
    r"\b(?:two|both)\s+(?=(?:latency[ -](?:model |estimation )?(?:backends|modes|models)|backends)\b)", re.IGNORECASE
)
_ABOUT = re.compile(r"latency|roofline|trained-physics", re.IGNORECASE)
_MAPPED = re.compile(r'"[\w-]+" (?:→|->)\s+\w+')  # "roofline" → RooflineLatencyModel
_BULLET = re.compile(r"^- \*\*(?:trained-physics|roofline)\*\*.*(?:\n- \*\*.*)*", re.MULTILINE)
_GUIDE = "docs/guide/latency-models.md"


def with_comments(path: str, text: str, backend: Backend) -> str:
    """A Go file whose comments no longer say that there are two backends, and say which type a name gives."""
    go = read(path, text)
    edits = []
    for start, end in _blocks(go):
        block = text[start:end]
        edits += [(start + at, start + at, "analytical ") for at in _counts(block)]
        mapped = list(_MAPPED.finditer(block))
        if any("trained-physics" in m[0] for m in mapped):
            at = start + mapped[-1].end()
            edits.append((at, at, f", {backend.quoted} → {backend.name.exported}"))
    return edited(text, edits)


def _blocks(go: GoFile) -> list[tuple[int, int]]:
    """The places of comments, with those of the lines right below as one."""
    blocks: list[tuple[int, int]] = []
    for comment in go.comments:
        between = go.text[blocks[-1][1] : comment.start] if blocks else ""
        if blocks and not between.strip() and between.count("\n") == 1:
            blocks[-1] = (blocks[-1][0], comment.end)
        else:
            blocks.append((comment.start, comment.end))
    return blocks


def with_page(text: str, backend: Backend) -> str:
    """A Markdown page that no longer says that there are two backends, and whose list of them has this one."""
    edits = []
    paragraph = 0
    for part in re.split(r"(\n\s*\n)", text):
        edits += [(paragraph + at, paragraph + at, "analytical ") for at in _counts(part)]
        paragraph += len(part)
    if listed := _BULLET.search(text):
        name = backend.name.registered
        at = listed.end()
        edits.append((at, at, f"\n- **{name}**: fitted to measured runs; see [`{_GUIDE}`]({_GUIDE})."))
    return edited(text, edits)


def _counts(text: str) -> list[int]:
    """The places in a paragraph after a word that counts the backends."""
    if not _ABOUT.search(text):
        return []
    return [m.end() for m in _COUNTED.finditer(text)]
