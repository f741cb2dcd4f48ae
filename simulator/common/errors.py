"""The one exception for wrong input, and the checked reading of mappings that raises it."""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from simulator.common.text import hidden

LARGEST_WHOLE = 2**53  # every whole number up to this one is exact in float64
LONGEST_MESSAGE = 4000  # characters of an error message
LONGEST_NAME = 4096  # characters of a name, a path or another short text
NO_COMMA = "write a number without commas, with a point for decimals"
OWN_MODEL = "keep your own with `evolve model add CONFIG`"
OWN_GPU = "describe your own as `hardware: {...}` in an experiments file (docs/plan.md)"
LARGEST_NUMBER = 1e300  # a larger number is a mistake, or an integer that float64 cannot hold


class InputError(ValueError):
    """Something the user supplied is wrong. The message is one line: file, place, problem, remedy. Exit status 2.

    A message that would fill the screen, because it quotes the user's input, keeps only its begin and end.
    """

    def __init__(self, message: str) -> None:
        if len(message) > LONGEST_MESSAGE:
            message = f"{message[: LONGEST_MESSAGE // 2]} ... {message[-LONGEST_MESSAGE // 2 :]}"
        super().__init__(message)


def is_number(value: object) -> TypeGuard[float]:
    """Return True for a number of a file that float64 can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_NUMBER


def reason(error: OSError) -> str:
    """Why a file cannot be read or written, as the system or a library says it, else the kind of error."""
    return error.strerror or " ".join(str(error).split()) or type(error).__name__


def unreadable(place: object, error: OSError, remedy: str) -> InputError:
    """The error about a file that cannot be read, to be raised."""
    return InputError(f"{place}: cannot be read ({reason(error)}): {remedy}")


def unwritable(place: object, error: OSError, remedy: str) -> InputError:
    """The error about a file that cannot be written, to be raised."""
    return InputError(f"{place}: cannot be written ({reason(error)}): {remedy}")


def shown(value: object) -> str:
    """A value as error messages show it: YAML's words for null and booleans, at most 60 characters.

    Of a large value, only the part that is shown is looked at.
    """
    words = {None: "null", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return words[value]
    text = ""
    for piece in _spelling(value):
        text += piece
        if len(text) > 60:
            return text[:57] + "..."
    return text


def _spelling(value: object) -> Iterator[str]:
    """The pieces of `repr`, one by one. Every level of nesting has a character, so 60 characters are 60 levels."""
    match value:
        case dict():
            yield "{"
            for i, (key, item) in enumerate(value.items()):
                yield ", " if i else ""
                yield from _spelling(key)
                yield ": "
                yield from _spelling(item)
            yield "}"
        case list():
            yield "["
            for i, item in enumerate(value):
                yield ", " if i else ""
                yield from _spelling(item)
            yield "]"
        case str() | bytes():
            yield repr(value[:100])
        case int() if value.bit_length() > 10_000:  # Python refuses to write thousands of digits
            yield f"a whole number of {value.bit_length():,} bits"
        case set() | tuple():
            yield f"a {type(value).__name__} of {len(value)}"
        case _:
            yield repr(value)


def _close(name: object, known: Collection[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Up to `most` known names that are close to a mistyped one, the closest first, whether in capitals or not.

    `cutoff`: the least similarity that is close, from 0 to 1 (difflib's ratio).
    """
    folded = {each.casefold(): each for each in known}
    return [folded[key] for key in difflib.get_close_matches(str(name)[:200].casefold(), folded, most, cutoff)]


def nearest(name: object, known: Sequence[str]) -> str:
    """`did you mean 'x'?` with the known name of the same words, misspelt, or the list of all known names."""
    meant = _meant(str(name), known)
    return f"did you mean '{meant}'?" if meant else f"known are {', '.join(sorted(known))}"


def _meant(name: str, known: Collection[str]) -> str | None:
    return next((each for each in _close(name, known, most=9) if _misspelt(name, each)), None)


def nearest_listed(name: str, known: Sequence[str], own: str) -> str:
    """The remedy for a name that `evolve list` does not have: the name that was likely meant, else the three closest
    ones, and `own`, how to give one's own. A similar name is often another model, or another GPU."""
    if meant := _meant(name, known):
        return f"did you mean '{meant}'? Or {own}"
    return f"the closest are {closest(name, known)}; `evolve list` has all, or {own}"


def _misspelt(name: str, known: str) -> bool:
    """True if two names differ in case, in marks between their parts or in a few letters, not in a number or a part.

    >>> _misspelt("lama-2-7", "llama-2-7b"), _misspelt("Qwen2.5-32B", "Qwen2.5-7B"), _misspelt("L40", "L40S")
    (True, False, False)
    >>> _misspelt("expert_parallel", "tensor_parallel"), _misspelt("max_num_sequences", "max_num_seqs")
    (False, True)
    """
    ours, theirs = ([part for part in re.split(r"[^a-z0-9]+", each.casefold()) if part] for each in (name, known))
    if "".join(ours) == "".join(theirs):
        return True
    return len(ours) == len(theirs) and all(map(_alike, ours, theirs))


def _alike(ours: str, theirs: str) -> bool:
    """True if two parts of names have the same digits, and at least three quarters of their letters in common or one
    letter of three or more mistyped, or if one is a word and the other its beginning."""
    short, long = sorted((ours.removesuffix("s"), theirs.removesuffix("s")), key=len)
    if len(short) > 2 and short.isalpha() and long.startswith(short):
        return True
    if re.sub(r"\D", "", ours) != re.sub(r"\D", "", theirs):
        return False
    if len(ours) == len(theirs) > 2 and sum(x != y for x, y in zip(ours, theirs, strict=True)) == 1:
        return True
    a, b = (Counter(re.sub(r"\d", "", part)) for part in (ours, theirs))
    return not a or not b or 2 * (a & b).total() >= 0.75 * (a.total() + b.total())


def closest(name: object, known: Collection[str]) -> str:
    """The three known names closest to another, whether in capitals or not, with commas."""
    return ", ".join(_close(name, known, most=3, cutoff=0.0))


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping read from a file, with its place there, so that every error can name it.

    `where` names file and experiment; `path` is the dotted key of this mapping ("" at the top). Where a key may be left
    out, ask `has` first: null then means the same as leaving it out.
    """

    where: str
    path: str
    raw: Mapping[Any, Any]

    def at(self, key: object) -> str:
        """The full dotted name of a key of this section."""
        name = key if isinstance(key, str) and len(key) <= 60 else shown(key)
        return f"{self.path}.{name}" if self.path else name

    def error(self, key: object, problem: str, remedy: str) -> InputError:
        """The error about a key, to be raised. Line breaks are folded, so that the message is one line."""
        return InputError(" ".join(f"{self.where}: {self.at(key)} {problem}: {remedy}".split()))

    def only(
        self,
        known: Sequence[str],
        free: Sequence[str] = (),
        what: str = "a known key",
        remedies: Mapping[str, str] | None = None,
    ) -> None:
        """Raise InputError at the first key that is not known and does not begin with a `free` prefix.

        The message says that the key is not `what`. `remedies`: what to do instead, by key; for other keys it names
        the known key that is nearest.
        """
        for key in self.raw:
            if key not in known and not (isinstance(key, str) and key.startswith(tuple(free))):
                split = isinstance(key, int | float) and self.raw[key] is None  # YAML reads {mean: 1,850} so
                remedy = NO_COMMA if split else (remedies or {}).get(key) or nearest(key, known)
                raise self.error(key, f"is not {what}", remedy)

    def has(self, key: str) -> bool:
        """True if the key is present with a value other than null."""
        return self.raw.get(key) is not None

    def required(self, key: str, remedy: str) -> Any:
        """The raw value of a required key."""
        if key not in self.raw:
            raise self.error(key, "is missing", remedy)
        return self.raw[key]

    def text(self, key: str, remedy: str = "give it as text, in quotes if it looks like a number") -> str:
        """A required string that is not blank."""
        value = self.required(key, remedy)
        if not isinstance(value, str) or not value.strip():
            raise self.error(key, f"must be text, got {shown(value)}", remedy)
        if len(value) > LONGEST_NAME:
            raise self.error(key, f"has {len(value):,} characters, at most {LONGEST_NAME:,} are read", "shorten it")
        return value

    def name(self, key: str, remedy: str = "give it as text, in quotes if it looks like a number") -> str:
        """A required string that is not blank and is printed in one line, as it is: without control characters."""
        value = self.text(key, remedy)
        if any(map(hidden, value)):
            raise self.error(key, f"must be one line without control characters, got {shown(value)}", "rename it")
        return value

    def names(self, key: str, remedy: str) -> tuple[str, ...]:
        """A required list of strings."""
        values = self.required(key, remedy)
        if not isinstance(values, list) or not all(isinstance(name, str) for name in values):
            raise self.error(key, f"must be a list of names, got {shown(values)}", remedy)
        return tuple(values)

    def flag(self, key: str, default: bool) -> bool:
        """true or false; `default` if the key is left out."""
        value = self.raw.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, got {shown(value)}", "write true or false without quotes")
        return value

    def number(
        self, key: str, remedy: str, *, above: float = -math.inf, least: float = -math.inf, most: float = math.inf
    ) -> float:
        """A required finite number (not a boolean, not text), > `above`, >= `least` and <= `most`."""
        value = self.required(key, remedy)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, f"must be a number, got {shown(value)}", remedy)
        if not abs(value) <= LARGEST_NUMBER:
            raise self.error(key, f"must be finite, got {shown(value)}", remedy)
        bounds = {f"> {above:g}": value > above, f">= {least:g}": value >= least, f"<= {most:g}": value <= most}
        if wrong := [bound for bound, holds in bounds.items() if not holds]:
            raise self.error(key, f"must be {wrong[0]}, got {shown(value)}", remedy)
        return float(value)

    def whole(self, key: str, remedy: str, *, least: int = 0, most: int = LARGEST_WHOLE) -> int:
        """A required whole number, >= `least` and <= `most`."""
        value = self.required(key, remedy)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, f"must be a whole number, got {shown(value)}", remedy)
        if not least <= value <= most:
            bound = f">= {least}" if value < least else f"<= {most}"
            raise self.error(key, f"must be {bound}, got {shown(value)}", remedy)
        return value

    def section(self, key: str, remedy: str) -> Section:
        """A required mapping below this one."""
        value = self.required(key, remedy)
        if not isinstance(value, Mapping):
            raise self.error(key, f"must be a mapping, got {shown(value)}", remedy)
        return Section(self.where, self.at(key), value)

    def sections(self, key: str, remedy: str, *, most: int = LARGEST_WHOLE) -> tuple[Section, ...]:
        """A required, non-empty list of at most `most` mappings, named key[0], key[1], ..."""
        value = self.required(key, remedy)
        if not isinstance(value, list) or not value:
            raise self.error(key, f"must be a non-empty list, got {shown(value)}", remedy)
        if len(value) > most:
            raise self.error(key, f"has {len(value):,} entries, at most {most:,} are read", "give fewer")
        named = {f"{key}[{i}]": item for i, item in enumerate(value)}
        return tuple(Section(self.where, self.path, named).section(name, remedy) for name in named)
