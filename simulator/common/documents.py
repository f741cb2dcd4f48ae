"""JSON and YAML as plain values: the one reader of each for every file that a user supplies.

Size and shape are checked before anything is expanded, printed or compared, so that no file can exhaust time or memory:
a few lines of YAML aliases can stand for billions of values. Every message is one line: file, line, problem, remedy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

import yaml

from simulator.common.errors import InputError, shown
from simulator.common.files import plain_file

MOST_BYTES = 64 << 20  # of a file; the largest that the project writes itself is a run's report, which may be longer
MOST_VALUES = 1_000_000  # of a file, with aliases expanded; 100 characters of text count as a value
DEEPEST = 50  # levels of nesting; files of people have about eight
LONGEST_TEXT = 1_000_000  # characters of one text
LONGEST_NUMBER = 400  # characters of one number: float64 needs no more
RIGHT_FILE = "check that it is the right file"

_PIECE_BYTES = 1 << 20
_SAFE_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Possessive repeats: a text of millions of characters leaves no backtracking state.
_TEXT, _BRACKET, _NUMBER = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', r"[][{},]", rf"[-+.\w]{{{LONGEST_NUMBER + 1},}}"
_JSON_TOKEN = re.compile(f"{_TEXT}|{_BRACKET}|{_NUMBER}", re.DOTALL)
_NUMERIC = re.compile(r"[-+.]?[0-9]")


def read_bytes(path: Path, most: int = MOST_BYTES, where: str | None = None, *, kept: bool = False) -> bytes:
    """The bytes of a file. Raises OSError if it cannot be read, InputError if it has more than `most` bytes.

    kept: the file is in a folder that a command keeps, see `plain_file`.
    """
    data = bytearray()
    with open(path, "rb", opener=plain_file if kept else None) as file:
        while piece := file.read(_PIECE_BYTES):  # `read(most)` would take all that memory for a small file too
            data += piece
            if len(data) > most:
                raise InputError(f"{where or path}: is larger than {most:,} bytes: {RIGHT_FILE}")
    return bytes(data)


def read_json(path: Path, remedy: str, times: int = 1, *, kept: bool = False, foreign: bool = False) -> Any:
    """The JSON value in a file. Raises OSError, and InputError like `parse_json`. kept: see `read_bytes`."""
    return parse_json(read_bytes(path, times * MOST_BYTES, kept=kept), str(path), remedy, times, foreign)


def parse_json(data: str | bytes, where: str, remedy: str, times: int = 1, foreign: bool = False) -> Any:
    """The JSON value of a text. In a file of another program (`foreign`), which Python may have written, NaN and
    Infinity become floats, for the caller to judge.

    Raises InputError for a text that is not JSON, names a key twice, or exceeds a limit of this module; it may have
    `times` as many values.
    """
    try:
        text = data if isinstance(data, str) else data.decode(json.detect_encoding(data))
    except UnicodeDecodeError:
        raise InputError(f"{where}: not valid JSON, it is not UTF-8 text: {remedy}") from None
    _check_json(text, where, times * MOST_VALUES)
    try:
        constant = float if foreign else no_constant
        return json.loads(text.removeprefix("\ufeff"), object_pairs_hook=_distinct, parse_constant=constant)
    except json.JSONDecodeError as e:
        place, problem = f"line {e.lineno}: ", e.msg
    except ValueError as e:
        place, problem = "", str(e)
    raise InputError(" ".join(f"{where}: {place}not valid JSON, {problem}: {remedy}".split()))


def no_constant(word: str) -> float:
    """Refuse NaN, Infinity and -Infinity, which Python's json reads although JSON has no such numbers."""
    raise ValueError(f"{word} is no number")


def _check_json(text: str, where: str, most: int) -> None:
    """Raises InputError for JSON that exceeds a limit. A text that is not JSON may pass."""
    depth = values = 0
    for token in _JSON_TOKEN.finditer(text):
        start = token.start()
        length = token.end() - start
        problem = ""
        match text[start]:
            case "[" | "{":
                depth, values = depth + 1, values + 1
                problem = _too_deep(depth)
            case "]" | "}":
                depth -= 1
            case ",":
                values += 1
            case '"':
                values += length // 100
                problem = _too_long(length - 2)
            case _:
                problem = _TOO_MANY_DIGITS
        if problem := problem or _too_many(values, most):
            raise InputError(f"{where}: line {_line(text, start)}: {problem}: {RIGHT_FILE}")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The mapping of these pairs. Raises ValueError for a key that occurs twice: json lets the last one win."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {shown(twice)} twice")
    return mapping


_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0b[01_]+)\Z")
_REAL = re.compile(
    r"(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
)


class _Loader(_SAFE_LOADER):  # type: ignore[misc]
    """YAML's safe loader, except for numbers and for a duplicate key in a mapping.

    Numbers are those of YAML 1.2, and so of JSON: 1e3 is one. PyYAML follows YAML 1.1, in which it is a text, 0144 is
    100 and 1:40 is also 100; here these two are texts. A duplicate key is an error; PyYAML lets the last one win.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {
        first: [(tag, pattern) for tag, pattern in each if tag not in (_INT, _FLOAT)]
        for first, each in _SAFE_LOADER.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                    problem = f"the key {shown(key.value)} twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)  # type: ignore[no-any-return]


class Dumper(yaml.SafeDumper):
    """YAML's safe dumper, which quotes texts that `parse_yaml` would read as numbers."""


_Loader.add_implicit_resolver(_INT, _WHOLE, list("-+0123456789"))
_Loader.add_implicit_resolver(_FLOAT, _REAL, list("-+.0123456789"))
Dumper.add_implicit_resolver(_FLOAT, _REAL, list("-+.0123456789"))


def yaml_text(value: object, width: int = 120) -> str:
    """Plain values as YAML that `parse_yaml` reads back, with keys in their order."""
    text: str = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=width)
    return text


def parse_yaml(data: bytes, where: str, empty: str) -> Any:
    """The plain values of safe YAML; `empty` is the remedy for an empty file.

    Raises InputError, with the line if it is known, for a text that is not YAML, names a key twice, or exceeds a limit
    of this module.
    """
    return _parsed(data, where, empty, yaml.load)


def parse_documents(data: bytes, where: str, empty: str) -> list[Any]:
    """`parse_yaml` of every document of a file that may have several."""
    documents: list[Any] = _parsed(data, where, empty, lambda text, loader: list(yaml.load_all(text, loader)))
    return documents


def _parsed(data: bytes, where: str, empty: str, load: Callable[[str, Any], Any]) -> Any:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{where}: line {line}: not UTF-8 text: save the file as UTF-8") from None
    if not text.strip():
        raise InputError(f"{where}: is empty: {empty}")
    try:
        _check_yaml(text, where)
        return load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}: " if mark else ""
        problem = error.problem or "unreadable"
        lines = text.split("\n")
        if mark and mark.line < len(lines) and lines[mark.line][: mark.column + 1].endswith("\t"):
            problem = "a tab where spaces must indent"
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else 1
        place, problem = f"line {line}: ", "a character that text must not contain (is it a binary file?)"
    except InputError:
        raise
    except ValueError as error:
        place, problem = "", str(error)
    except (KeyError, AttributeError):  # what PyYAML raises for `!!bool perhaps` and `!!timestamp perhaps`
        place, problem = "", "a tag that its value does not match"
    raise InputError(" ".join(f"{where}: {place}not valid YAML, {problem}: correct the syntax".split()))


def shipped(name: str) -> Any:
    """The plain values of a YAML file of configs/."""
    data = resources.files("configs").joinpath(name).read_bytes()
    return parse_yaml(data, f"configs/{name}", "install this version again")


def _check_yaml(text: str, where: str) -> None:
    """Raises InputError for YAML that exceeds a limit once its aliases are expanded, and yaml's errors of syntax.

    Aliases count as what they refer to. The sizes of anchors are remembered, so counting is linear in the text.
    """
    sizes: dict[str, int] = {}  # expanded values under each anchor
    open_: list[tuple[str | None, int]] = []  # anchor of every enclosing collection, and the total before it
    total = 0
    events: Any = yaml.parse(text, _SAFE_LOADER)  # of many types
    for event in events:
        problem = ""
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append((event.anchor, total))
            total += 1
            problem = _too_deep(len(open_))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_.pop()
            if anchor:
                sizes[anchor] = total - before
        elif isinstance(event, yaml.AliasEvent):
            if any(event.anchor == anchor for anchor, _ in open_):
                problem = f"the alias *{event.anchor} is inside of what it stands for"
            total += sizes.get(event.anchor or "", 1)
        elif isinstance(event, yaml.ScalarEvent):
            size = 1 + len(event.value) // 100
            total += size
            if event.anchor:
                sizes[event.anchor] = size
            problem = _too_long(len(event.value))
            # A text without quotes, or with a tag, may be read as a number.
            if len(event.value) > LONGEST_NUMBER and (event.implicit[0] or event.tag) and _NUMERIC.match(event.value):
                problem = _TOO_MANY_DIGITS
        if problem := problem or _too_many(total, MOST_VALUES):
            raise InputError(f"{where}: line {event.start_mark.line + 1}: {problem}: {RIGHT_FILE}")


_TOO_MANY_DIGITS = f"has a number of more than {LONGEST_NUMBER} characters"


def _too_deep(depth: int) -> str:
    return f"is nested too deeply, at most {DEEPEST} levels are read" if depth > DEEPEST else ""


def _too_many(values: int, most: int) -> str:
    return f"has more than {most:,} values" if values > most else ""


def _too_long(length: int) -> str:
    return f"has a text of more than {LONGEST_TEXT:,} characters" if length > LONGEST_TEXT else ""


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
