"""Go source as tokens with their places, the parts that edits look for, and the refusal where one is not found."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from simulator.common.errors import InputError

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<string>`[^`]*`|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<word>[^\W\d]\w*)
    |(?P<number>\d[\w.]*)
    |(?P<mark>:=|==|!=|<=|>=|&&|\|\||<-|\.\.\.|[^\s\w])""",
    re.VERBOSE | re.DOTALL,
)
_CLOSES = {"(": ")", "[": "]", "{": "}"}


class Unreadable(ValueError):
    """The text is not Go whose brackets match."""


def moved(path: str, sought: str) -> InputError:
    """The refusal: this file has no such place."""
    return InputError(
        f"cannot edit {path}: it has no {sought}. This host is not as --into expects it: emit with --out, and follow "
        "INTEGRATION.md."
    )


def read(path: str, text: str) -> GoFile:
    """The file as tokens. Raises InputError for a file that is not Go."""
    try:
        return GoFile(text)
    except Unreadable as e:
        raise moved(path, f"readable Go ({e})") from None


def edited(text: str, edits: Sequence[tuple[int, int, str]]) -> str:
    """The text with each of its pieces text[start:end] replaced."""
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


@dataclass(frozen=True, slots=True)
class Token:
    """A token and its place: text[start:end]."""

    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Span:
    """The tokens `first` to `last` of a file, both among them."""

    first: int
    last: int

    def __contains__(self, i: int) -> bool:
        return self.first <= i <= self.last


class GoFile:
    """A Go file: `tokens` without comments, and `comments`. Its parts are found by token index. Raises Unreadable."""

    def __init__(self, text: str) -> None:
        self.text = text
        every = [Token(str(m.lastgroup), m.group(), *m.span()) for m in _TOKEN.finditer(text)]
        self.comments = [token for token in every if token.kind == "comment"]
        self.tokens = [token for token in every if token.kind != "comment"]
        self.closing: dict[int, int] = {}
        self.depth: list[int] = []
        opened: list[int] = []
        for i, token in enumerate(self.tokens):
            if token.kind == "mark" and token.text in _CLOSES.values():
                if not opened or _CLOSES[self.tokens[opened[-1]].text] != token.text:
                    raise Unreadable(f"line {self.line(i)} closes a bracket that is not open")
                self.closing[opened.pop()] = i
            self.depth.append(len(opened))
            if token.kind == "mark" and token.text in _CLOSES:
                opened.append(i)
        if opened:
            raise Unreadable(f"line {self.line(opened[-1])} opens a bracket that is not closed")

    @cached_property
    def whole(self) -> Span:
        """All tokens."""
        return Span(0, len(self.tokens) - 1)

    def line(self, i: int) -> int:
        """The line, from 1, of the token with this index."""
        return self.text.count("\n", 0, self.tokens[i].start) + 1

    def find(self, words: Sequence[str], inside: Span | None = None) -> list[int]:
        """The indices at which these tokens stand in a row."""
        span = inside or self.whole
        most = span.last + 2 - len(words)
        return [i for i in range(span.first, most) if all(self.tokens[i + k].text == w for k, w in enumerate(words))]

    def words(self, inside: Span) -> set[str]:
        """The texts of the tokens there."""
        return {self.tokens[i].text for i in range(inside.first, inside.last + 1)}

    def body(self, function: str) -> Span | None:
        """The body of a top-level function, braces among it."""
        for i in self.find(("func", function, "(")):
            if self.depth[i] == 0:
                return self._braces(self.closing[i + 2])
        return None

    def functions(self) -> Iterator[tuple[str, Span]]:
        """Name and body of each top-level function that is no method."""
        for i in self.find(("func",)):
            if self.depth[i] == 0 and self.tokens[i + 1].kind == "word" and self.tokens[i + 2].text in "([":
                body = self._braces(i + 2)
                if body:
                    yield self.tokens[i + 1].text, body

    def _braces(self, i: int) -> Span | None:
        """The next braces at the top level after this token that hold statements."""
        while i < len(self.tokens):
            if self.depth[i] == 0 and self.tokens[i].text == "{":
                kind = self.tokens[i - 1].text
                if kind not in ("interface", "struct"):
                    return Span(i, self.closing[i])
            if i in self.closing:
                i = self.closing[i]
            i += 1
        return None

    def struct(self, name: str) -> Span | None:
        """The braces of `type NAME struct {...}`, also in a group of types."""
        for i in self.find((name, "struct", "{")):
            return Span(i + 2, self.closing[i + 2])
        return None

    def fields(self, struct: Span) -> Iterator[tuple[tuple[str, ...], str]]:
        """The names of each field and its type; no name for an embedded one."""
        row: list[Token] = []
        for i in range(struct.first + 1, struct.last + 1):
            token = self.tokens[i]
            ends = i == struct.last or (row and self.text.count("\n", row[-1].end, token.start))
            if ends and row:
                yield _field(row)
                row = []
            if self.depth[i] == self.depth[struct.first] + 1 or row:
                row.append(token)

    def arguments(self, opening: int) -> list[Span]:
        """The arguments, or elements, between a bracket and its closing one."""
        spans, first, level = [], opening + 1, self.depth[opening] + 1
        for i in range(opening + 1, self.closing[opening] + 1):
            last = i == self.closing[opening]
            if last or (self.tokens[i].text == "," and self.depth[i] == level):
                if i > first:
                    spans.append(Span(first, i - 1))
                first = i + 1
        return spans

    def source(self, span: Span) -> str:
        """The text of these tokens, as it is written."""
        return self.text[self.tokens[span.first].start : self.tokens[span.last].end]

    def indent(self, i: int) -> str:
        """The white space at the start of the token's line."""
        start = self.text.rfind("\n", 0, self.tokens[i].start) + 1
        line = self.text[start : self.tokens[i].start]
        return line[: len(line) - len(line.lstrip())]

    def line_end(self, i: int) -> int:
        """The offset at which the line of the token ends, its comment among it."""
        end = self.text.find("\n", self.tokens[i].end)
        return len(self.text) if end < 0 else end


def _field(row: list[Token]) -> tuple[tuple[str, ...], str]:
    names = [row[0].text]
    at = 1
    while at + 1 < len(row) and row[at].text == ",":
        names.append(row[at + 1].text)
        at += 2
    kind = "".join(t.text for t in row[at:] if t.kind != "string")
    if not kind or kind.startswith("."):
        return (), "".join(t.text for t in row if t.kind != "string")
    return tuple(names), kind
