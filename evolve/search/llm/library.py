"""A user's library of papers, notes and BibTeX: the passages nearest to a question, and what citations point to in it.

Passages are ranked by BM25 (bm25s) over their words as they are. Nothing is downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from evolve.search.llm.client import count_tokens, not_installed
from evolve.search.llm.sources import MOST_FILES, Part, Source, SourceFile, read_source, source_files
from simulator.common.errors import InputError, reason
from simulator.common.text import counted, listed, plain

LONGEST = 900  # characters of a passage, about 200 tokens
MOST_TEXT = 10_000_000  # characters of all passages, about 150 papers
MOST_LOOKED_AT = 50  # passages, the nearest first, from which a question's are taken
MOST_NAMED = 5  # files that a line on what was left out names
DIGITS = 3  # of a score that count: processors differ in the last bits
LEAST_TITLE, LEAST_OF_TITLE = 3, 5  # words of a title, and of a part of one, by which it is known
LONGEST_CITED = 200  # characters of a citation
LONGEST_TITLE = 400  # characters of a title, or of the beginning of a paper
UNCHECKED = "not in the library, existence unchecked"

WORD = re.compile(r"[^\W_]*[^\W\d_][^\W_]*")  # letters and digits, with a letter: kv, decode, sum of kv_decode_sum
PLACE = re.compile(r"[\s,:(]*(page|pp?\.|line|l\.)\s*(\d{1,9})", re.IGNORECASE)  # what follows the name of a file
KEYS = re.compile(r"\[([^][]{1,500})\]")
KEY = re.compile(r"[^\W\d_]\S*")
LABEL = re.compile(r"^\W*related work[\s:.*_-]*", re.IGNORECASE)
SEPARATOR = re.compile(r"\n|;(?![^][]*\])|(?<=[)\]])(?:\s*,\s*(?:and\s+)?|\s+and\s+)", re.IGNORECASE)  # of citations
BEGIN, END = re.compile(r"\S"), re.compile(r"\n[ \t]*\n|[.!?]\s")  # of a passage
ENDS = re.compile(r"[\"“”*().,:?!]")  # of what may be a title


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text with its place, `paper.pdf, page 3`, `notes.md, line 12` or `[key]`; its tokens in a question."""

    place: str
    text: str
    tokens: int

    @property
    def line(self) -> str:
        """The passage as it is quoted: one line, in which no heading or fence can begin."""
        return f"> {self.place}: {self.text}"


@dataclass(frozen=True, slots=True)
class Title:
    """A title, or the beginning of a paper, as words; and its place."""

    words: str
    place: str
    whole: bool  # whether it is the title and nothing else


@dataclass(frozen=True, slots=True)
class Citation:
    """A cited thing, and its place in the library, "" if it is not there."""

    text: str
    place: str

    @property
    def line(self) -> str:
        return f"{self.text}: {self.place or UNCHECKED}"


@dataclass(frozen=True)
class Library:
    """The passages and titles of a library, and a line on each file that was not read whole. The empty one has none."""

    passages: tuple[Passage, ...] = ()
    titles: tuple[Title, ...] = ()
    left_out: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Library:
        """The library in a folder. Raises InputError if nothing in it can be read, or if a package is missing."""
        try:
            if not folder.is_dir():
                raise NotADirectoryError(20, "it is no folder")
            files = source_files(folder)
        except OSError as e:
            raise InputError(
                f"cannot read --library {folder}: {reason(e)}. Name a folder of PDFs, notes (.md, .txt) and .bib files."
            ) from None
        _bm25s()  # before the run begins, and not with its first question
        library = _read(tuple(files))
        if not library.passages:
            why = f"; {library.said.partition('; ')[2]}" if library.left_out else ""
            raise InputError(
                f"cannot read --library {folder}: it has no text{why}. Put PDFs, notes (.md, .txt) or .bib files there."
            )
        return library

    @property
    def said(self) -> str:
        """What was read and what was left out, in a line."""
        left_out = f"; left out: {listed(self.left_out, MOST_NAMED)}" if self.left_out else ""
        return f"library: {counted(len(self.passages), 'passage')}{left_out}"

    def nearest(self, text: str, most_tokens: int) -> tuple[Passage, ...]:
        """The passages that share the rarest words with a text, the nearest first, as far as their tokens fit."""
        words = (
            [word for word in dict.fromkeys(_words(text)) if word in self._index.vocab_dict] if self.passages else []
        )
        if not words:
            return ()
        scores = np.round(self._index.get_scores(words), DIGITS)
        chosen = list[Passage]()
        for i in np.argsort(-scores, kind="stable")[:MOST_LOOKED_AT]:
            passage = self.passages[i]
            if scores[i] > 0 and passage.tokens + sum(p.tokens for p in chosen) <= most_tokens:
                chosen.append(passage)
        return tuple(chosen)

    @cached_property
    def _index(self) -> Any:
        index = _bm25s().BM25()
        index.index([_words(passage.text) for passage in self.passages], show_progress=False)
        return index

    # citations

    def citations(self, text: str) -> tuple[Citation, ...]:
        """What a text on related work cites, in its order, each with its place in the library, if it is there.

        Known are keys of BibTeX in brackets, names of files, perhaps with page or line, and titles.
        """
        if _words(text)[:1] == ["none"]:
            return ()
        cited: dict[str, Citation] = {}
        for item in SEPARATOR.split(LABEL.sub("", text)):
            for citation in self._cited(item) if _words(item) not in ([], ["none"]) else ():
                cited.setdefault(citation.place or citation.text, citation)
        return tuple(cited.values())

    def _cited(self, item: str) -> Iterator[Citation]:
        insides = [inside for inside in KEYS.findall(item) if not list(self._files(inside))]
        parts = [part.strip(" @`'\"") for inside in insides for part in re.split("[,;]", inside)]
        keys = [f"[{key}]" for key in parts if KEY.fullmatch(key) and not PLACE.fullmatch(key)]
        yield from (Citation(plain(key, LONGEST_CITED), key if key in self._lines else "") for key in keys)
        rest = KEYS.sub(" ", item) if keys else item
        files = list(self._files(rest))
        yield from files
        if not files and (_words(rest) or not keys):
            place = self._titled(rest)
            if place or not keys:
                yield Citation(plain(rest.strip(" .,-*\n"), LONGEST_CITED), place)

    @cached_property
    def _lines(self) -> dict[str, list[tuple[str, int]]]:
        """The pages or lines of every file, `page` or `line` and its number in their order; none of a key."""
        found: dict[str, list[tuple[str, int]]] = {}
        for passage in self.passages:
            name, _, place = passage.place.rpartition(", ")
            kind, _, number = place.partition(" ")
            if passage.place.startswith("[") or not number.isdigit():
                found.setdefault(passage.place, [])
            else:
                found.setdefault(name, []).append((kind, int(number)))
        return found

    def _files(self, text: str) -> Iterator[Citation]:
        """The files of the library that a text names; without a place where it names a page that is not there."""
        for name, lines in self._lines.items():
            if name.startswith("[") or name.casefold() not in text.casefold():
                continue
            at = re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w-])", text, re.IGNORECASE)
            if not at:
                continue
            told = PLACE.match(text, at.end())
            if not told:
                yield Citation(name, name)
                continue
            kind, number = ("page" if told[1][0].lower() == "p" else "line"), int(told[2])
            # a passage goes on to the next one's line
            found = max((n for k, n in lines if k == kind and n <= number), default=0)
            there = found == number or (kind == "line" and found)
            yield Citation(f"{name}, {kind} {number}", f"{name}, {kind} {found}" if there else "")

    def _titled(self, text: str) -> str:
        """The place of the first title that a text has, whole or a part of it between marks; "" if it has none."""
        words, parts = _spaced(text), [_spaced(part) for part in ENDS.split(text)]
        parts = [part for part in parts if len(part.split()) >= LEAST_OF_TITLE]
        for title in self.titles:
            whole = title.whole and len(title.words.split()) >= LEAST_TITLE and title.words in words
            if whole or any(part in title.words for part in parts):
                return title.place
        return ""


def _bm25s() -> Any:
    try:
        import bm25s  # optional
    except ModuleNotFoundError as e:
        raise not_installed(e) from None
    return bm25s


def _words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def _spaced(text: str) -> str:
    """The words of a text with a space before and after each."""
    return " ".join(["", *re.findall(r"[^\W_]+", text.lower()), ""])


# reading


@lru_cache(maxsize=1)  # the repeats of a search have one library, which takes minutes to read
def _read(files: Sequence[SourceFile]) -> Library:
    passages, titles, left_out, size = list[Passage](), list[Title](), list[str](), 0
    for file in files[:MOST_FILES]:
        source = read_source(file) if size < MOST_TEXT else Source(file.name, (), f"beyond {MOST_TEXT:,} characters")
        new = [Passage(place, text, 0) for part in source.parts for place, text in _split(part)]
        passages += [Passage(p.place, p.text, tokens_of(p.line + "\n")) for p in new]
        titles += [title for part in source.parts for title in _titles(part)]
        left_out += [f"{source.name} ({source.left_out})"] if source.left_out else []
        size += sum(len(p.text) for p in new)
    left_out += [f"{counted(len(files) - MOST_FILES, 'file')} beyond {MOST_FILES:,}"] if len(files) > MOST_FILES else []
    return Library(tuple(passages), tuple(titles), tuple(left_out))


def tokens_of(text: str) -> int:
    """The tokens of a text within a message."""
    return count_tokens([("user", text)]) - _frame()


@cache
def _frame() -> int:
    """The tokens of a message without a text."""
    return count_tokens([("user", "")])


def _split(part: Part) -> Iterator[tuple[str, str]]:
    """(place, text) of the pieces of a part: at most LONGEST characters, to the end of a paragraph or a sentence."""
    text, line, counted_to = part.text, 1, 0
    begin = BEGIN.search(text)
    while begin:
        start, end = begin.start(), begin.start() + LONGEST
        if end < len(text):
            ends = [m.end() for m in END.finditer(text, start + LONGEST // 2, end)]
            space = text.rfind(" ", start, end)
            end = ends[-1] if ends else space if space > start else end
        line, counted_to = line + text.count("\n", counted_to, start), start
        yield part.place + (f", line {line}" if part.by_line else ""), " ".join(text[start:end].split())
        begin = BEGIN.search(text, end)


def _titles(part: Part) -> Iterator[Title]:
    if part.title:
        yield Title(_spaced(part.title[:LONGEST_TITLE]), part.place, True)
    if part.place.endswith(", page 1"):
        yield Title(_spaced(part.text[:LONGEST_TITLE]), part.place, False)
