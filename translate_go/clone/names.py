"""The edits for a backend's name: the table of names, its test, the help and the conditions of the command."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from translate_go.clone.registered import Backend, already
from translate_go.clone.scan import GoFile, Span, edited, moved, read

BUILT_IN = ("roofline", "trained-physics")  # the host's own backends
TABLE = "validLatencyBackends"
TEST = "TestValidLatencyBackendNames_ExcludesRemoved"
FLAG = '"latency-model"'
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def with_name(path: str, text: str, backend: Backend) -> str:
    """sim/bundle.go with the name in the table of valid backends."""
    go = read(path, text)
    braces = _table(go, path)
    if backend.quoted in go.words(braces):
        raise already(path, backend)
    return edited(text, [_added(go, braces.first, f"{backend.quoted}: true")])


def known_names(path: str, text: str) -> tuple[str, ...]:
    """The names in that table, as Go strings, without the empty one."""
    go = read(path, text)
    entries = [go.tokens[span.first].text for span in go.arguments(_table(go, path).first)]
    return tuple(entry for entry in entries if entry != '""')


def _table(go: GoFile, path: str) -> Span:
    for i in go.find((TABLE,)):
        for opening in range(i + 1, min(i + 14, len(go.tokens))):
            if go.tokens[opening].text == "{" and go.tokens[i + 1].text in ("=", "map"):
                kind = [t.text for t in go.tokens[opening - 5 : opening]]
                if kind == ["map", "[", "string", "]", "bool"]:
                    return Span(opening, go.closing[opening])
    raise moved(path, f"map[string]bool {TABLE}, the table of valid backends")


def _added(go: GoFile, opening: int, element: str) -> tuple[int, int, str]:
    """The edit that adds an element at the end of a composite literal, on a line of its own if it has such lines."""
    last = go.closing[opening] - 1
    at = go.tokens[last].end
    if last == opening:
        return at, at, element
    comma = "" if go.tokens[last].text == "," else ","
    if go.line(last) == go.line(go.closing[opening]):
        return at, at, f"{comma} {element}"
    end = go.line_end(last)  # Go wants a comma where the bracket closes on a line of its own
    return end, end, f"\n{go.indent(last)}{element},"


def with_counted_name(path: str, text: str, backend: Backend, known: Sequence[str]) -> str:
    """sim/bundle_test.go whose tests of the list of names expect one more. `known`: the names, as Go strings."""
    go = read(path, text)
    edits = []
    for _, body in go.functions():
        if "ValidLatencyBackendNames" not in go.words(body):
            continue
        for i in go.find(("[", "]", "string", "{"), body):
            opening = i + 3
            listed = [go.source(span) for span in go.arguments(opening)]
            if len(listed) == len(known) and set(listed) == set(known):
                edits += [_in_order(go, opening, listed, backend), *_counts(go, body, len(known))]
    if not edits:
        raise moved(path, f"list of all names ({', '.join(known)}) in {TEST}")
    return edited(text, sorted(set(edits)))


def _in_order(go: GoFile, opening: int, listed: list[str], backend: Backend) -> tuple[int, int, str]:
    """The edit that adds the name: in its place if the list is in order, otherwise at the end."""
    later = [k for k, name in enumerate(listed) if name > backend.quoted]
    if listed != sorted(listed) or not later:
        return _added(go, opening, backend.quoted)
    before = go.arguments(opening)[later[0]].first
    at = go.tokens[before].start
    one_line = go.line(before) == go.line(opening)
    return at, at, f"{backend.quoted}, " if one_line else f"{backend.quoted},\n{go.indent(before)}"


def _counts(go: GoFile, body: Span, count: int) -> Iterator[tuple[int, int, str]]:
    """The edits of `len(names) != 2` and of `exactly 2` in a comment."""
    for i in go.find(("len", "("), body):
        after = go.closing[i + 1] + 1
        if go.tokens[after].text in ("==", "!=") and go.tokens[after + 1].text == str(count):
            yield go.tokens[after + 1].start, go.tokens[after + 1].end, str(count + 1)
    start, end = go.tokens[body.first].start, go.tokens[body.last].end
    spelled = {str(count): str(count + 1), _NUMBERS[count]: _NUMBERS[count + 1]} if count < 10 else {}
    for comment in go.comments:
        for m in re.finditer(r"(?<=\bexactly )\w+", comment.text) if start < comment.start < end else ():
            if m.group() in spelled:
                yield comment.start + m.start(), comment.start + m.end(), spelled[m.group()]


def with_help(path: str, text: str, backend: Backend) -> str:
    """A file of the command whose flag --latency-model names the backend in its help; unchanged without the flag."""
    go = read(path, text)
    edits = []
    for spans in _definitions(go):
        if "ValidLatencyBackendNames" in go.words(spans[-1]):
            continue  # its help lists all names itself
        last = go.tokens[spans[-1].last]
        if last.kind != "string":
            raise moved(path, f"help of the flag {FLAG} that ends with a string")
        edits.append((last.end - 1, last.end - 1, f", {backend.name.registered}"))
    return edited(text, edits)


def has_flag(path: str, text: str) -> bool:
    """True if the file defines the flag --latency-model."""
    return any(_definitions(read(path, text)))


def _definitions(go: GoFile) -> Iterator[list[Span]]:
    """The arguments of each call that defines the flag, rather than looks it up."""
    for i in go.find((FLAG,)):
        opening = next((k for k in range(i, -1, -1) if k in go.closing and go.closing[k] > i), None)
        spans = go.arguments(opening) if opening is not None else []
        if len(spans) >= 3:
            yield spans


@dataclass(frozen=True)
class _Comparison:
    """`operand == "name"`, tokens `first` to `last`."""

    operand: str
    sign: str
    name: str
    first: int
    last: int


def with_parsing(path: str, text: str, backend: Backend) -> str:
    """A file of the command in which each comparison of the backend with both built-in names has the third.

    Unchanged without any. Raises InputError where a model's config is read for one of the names alone.
    """
    go = read(path, text)
    compared = list(_comparisons(go))
    edits, paired = [], set()
    for one, other in pairwise(compared):
        joint = {"==": "||", "!=": "&&"}[one.sign]
        both = {one.name, other.name} == set(BUILT_IN) and (one.operand, one.sign) == (other.operand, other.sign)
        if both and other.first == one.last + 2 and go.tokens[one.last + 1].text == joint:
            around = {go.tokens[one.first - 1].text, go.tokens[other.last + 1].text}
            if joint == "||" and "&&" in around:
                raise moved(path, f"brackets around the comparison of {one.operand} in line {go.line(one.first)}")
            at = go.tokens[other.last].end
            edits.append((at, at, f" {joint} {one.operand} {one.sign} {backend.quoted}"))
            paired |= {one, other}
    for one in compared:
        if one not in paired and "ParseHFConfig" in go.words(_guarded(go, one)):
            names = " and ".join(BUILT_IN)
            raise moved(path, f"comparison with both {names} where line {go.line(one.first)} guards ParseHFConfig")
    for i in go.find(("case", f'"{BUILT_IN[0]}"', ",", f'"{BUILT_IN[1]}"', ":")):
        at = go.tokens[i + 3].end
        edits.append((at, at, f", {backend.quoted}"))
    return edited(text, edits)


def with_resolution(path: str, text: str, backend: Backend) -> str:
    """A file of the command that finds the model's config for this backend, as for the first built-in one alone.

    Unchanged where it does not find a config.
    """
    go = read(path, text)
    edits = []
    for one in _comparisons(go):
        first = go.tokens[one.first - 1].text == "if" and (one.name, one.sign) == (BUILT_IN[0], "==")
        last = _alternatives(go, one)
        alone = go.tokens[last + 1].text == "{" and f'"{BUILT_IN[1]}"' not in go.words(Span(one.first, last))
        if first and alone and "resolveModelConfig" in go.words(_guarded(go, one)):
            at = go.tokens[last].end
            edits.append((at, at, f" || {one.operand} == {backend.quoted}"))
    return edited(text, edits)


def _alternatives(go: GoFile, one: _Comparison) -> int:
    """The last token of `one || operand == "name" || ...`, as other backends have added them."""
    last = one.last
    operand = [go.tokens[i].text for i in range(one.first, one.last)]  # with the sign
    while [go.tokens[i].text for i in range(last + 1, last + 2 + len(operand))] == ["||", *operand]:
        last += 2 + len(operand)
    return last


def _guarded(go: GoFile, one: _Comparison) -> Span:
    """The block whose condition has this comparison; the comparison itself if it is in no condition."""
    level = go.depth[one.first]
    for i in range(one.last, len(go.tokens)):
        level = min(level, go.depth[i])
        if go.tokens[i].text == "{" and go.depth[i] == level:
            return Span(i, go.closing[i])
        if go.tokens[i].text in ("}", ";", ":=", "="):
            break
    return Span(one.first, one.last)


def _comparisons(go: GoFile) -> Iterator[_Comparison]:
    for i, token in enumerate(go.tokens):
        sign = go.tokens[i - 1].text
        if token.text.strip('"') in BUILT_IN and token.kind == "string" and sign in ("==", "!="):
            first = i - 2
            while go.tokens[first - 1].text == "." and go.tokens[first - 2].kind == "word":
                first -= 2
            yield _Comparison(go.source(Span(first, i - 2)), sign, token.text.strip('"'), first, i)
