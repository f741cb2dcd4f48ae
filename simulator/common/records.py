"""Frozen dataclasses as JSON values, and back, by their fields and type hints.

A field is a key of the JSON object; `stored` gives it another key, the keys of older releases, or limits. A hint is
bool, int, float, str, None, Any, a Literal, a tuple, Sequence, list, Mapping, dataclass or NamedTuple of hints, or a
union of them. A NamedTuple is a JSON array; a tuple or a Sequence becomes a tuple. Keys that a class does not have are
ignored, because later releases write more. A class that defines `to_json` or `from_json` itself is asked for it.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING
from functools import cache
from math import isfinite
from typing import Any, Literal, TypeVar, Union

from simulator.common.errors import LARGEST_NUMBER, LARGEST_WHOLE, InputError, shown
from simulator.common.json import JsonObject

RESTORE = "restore it from a copy"  # the remedy for a damaged file that only commands write
T = TypeVar("T")
_Reader = Callable[[Any], Any]
_LIMITS = -LARGEST_NUMBER, LARGEST_NUMBER  # of a number
_OPTIONS = "stored"  # the key of a field's options in its metadata


class DamagedRecord(InputError):
    """A file of ours that no command can have written. The message names the file and the place in it."""


def damaged(file: object, place: str, problem: str, remedy: str = RESTORE) -> DamagedRecord:
    """The error about a damaged file, to be raised. `place`: a dotted key, "" for the whole file.

    >>> str(damaged("run.json", "ranges.tp", "must be a whole number, got 'x'"))
    "cannot read run.json, ranges.tp: must be a whole number, got 'x'. Restore it from a copy."
    """
    where = f"{file}, {place}" if place else str(file)
    return DamagedRecord(f"cannot read {where}: {problem}. {remedy[:1].upper()}{remedy[1:]}.")


@dataclasses.dataclass(frozen=True, slots=True)
class _Stored:
    """The options of a field, see `stored`."""

    key: str = ""
    old: tuple[str, ...] = ()
    lacking: Any = ...
    brief: bool = False
    hidden: bool = False
    limits: tuple[float, float] = _LIMITS
    read: _Reader | None = None
    write: _Reader | None = None


def stored(
    *, default: Any = MISSING, default_factory: Any = MISSING, metadata: Mapping[str, Any] | None = None, **options: Any
) -> Any:
    """A dataclass field with options for its key.

    - key: the key, if it is not the field's name. old: its names in files of older releases.
    - lacking: the value in files that lack the key, if the field has no default.
    - brief: the key is left out where the value is the default. hidden: the field is not in the JSON at all.
    - limits: the least and the most that a number may be; of a mapping, each of its numbers.
    - read, write: functions from and to the JSON value, instead of those by the hint. `read` may raise ValueError,
      TypeError, KeyError or AttributeError.
    """
    about = {**(metadata or {}), _OPTIONS: _Stored(**options)}
    field: Any = dataclasses.field(default=default, default_factory=default_factory, metadata=about)
    return field


@typing.dataclass_transform(frozen_default=True, field_specifiers=(stored, dataclasses.field))
def record_class(cls: type[T]) -> type[T]:
    """A frozen dataclass with slots, some of whose fields are `stored`."""
    return dataclasses.dataclass(frozen=True, slots=True)(cls)


class derived(property):
    """A property of a dataclass that is a key of its JSON, after those of the fields. It is not read back."""


# Writing

_PLAIN = frozenset((str, int, float, bool, type(None)))


def to_json(value: Any) -> Any:
    """The value as JSON values. Raises TypeError for what JSON has no form of, numpy's scalars among it."""
    kind = type(value)
    return value if kind in _PLAIN else _writer(kind)(value)  # type: ignore[arg-type]


def fields_to_json(value: Any) -> JsonObject:
    """A dataclass as a JSON object by its fields, for a `to_json` of its own that adds to it."""
    written: JsonObject = _object_writer(type(value))(value)  # type: ignore[arg-type]
    return written


@cache
def _writer(kind: type) -> _Reader:
    if callable(method := getattr(kind, "to_json", None)):
        return typing.cast("_Reader", method)
    if dataclasses.is_dataclass(kind):
        return _object_writer(kind)
    if issubclass(kind, Mapping):
        return lambda value: {_key(key): to_json(item) for key, item in value.items()}
    if issubclass(kind, list | tuple):
        return lambda value: [to_json(item) for item in value]
    raise TypeError(f"{kind.__module__}.{kind.__qualname__} has no form in JSON")


def _key(key: object) -> str:
    if type(key) not in (str, int):
        raise TypeError(f"{key!r} is no key in JSON")
    return str(key)


@cache
def _object_writer(cls: type) -> _Reader:
    rows = [(f.name, o.key or f.name, o.write or to_json, _default(f) if o.brief else ...) for f, o in _fields(cls)]
    also = [name for base in reversed(cls.__mro__) for name, value in vars(base).items() if isinstance(value, derived)]

    def write(value: Any) -> JsonObject:
        written: JsonObject = {}
        for name, key, convert, unless in rows:
            item = getattr(value, name)
            if unless is ... or item != unless:
                written[key] = convert(item)
        for name in also:
            written[name] = to_json(getattr(value, name))
        return written

    return write


def _fields(cls: type) -> list[tuple[dataclasses.Field[Any], _Stored]]:
    return [(f, _options(f)) for f in dataclasses.fields(cls) if f.init and not _options(f).hidden]


def _options(field: dataclasses.Field[Any]) -> _Stored:
    options: _Stored = field.metadata.get(_OPTIONS) or _Stored()
    return options


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


# Reading


class _Wrong(Exception):
    """A value that its hint does not allow: its place below the value at hand, and the problem."""

    def __init__(self, problem: str, place: str = "") -> None:
        super().__init__(problem)
        self.problem, self.place = problem, place

    def below(self, key: object) -> _Wrong:
        """The error as seen from the value that has this one at `key`."""
        here = f"[{key}]" if isinstance(key, int) else str(key) if len(str(key)) <= 60 else shown(key)
        rest = f".{self.place}" if self.place and not self.place.startswith("[") else self.place
        return _Wrong(self.problem, here + rest)


def from_json(cls: type[T], raw: object, file: object, remedy: str = RESTORE) -> T:
    """The value of class `cls` in the JSON value of a file. Raises DamagedRecord."""
    try:
        value: T = _reader(cls)(raw)  # type: ignore[arg-type]
    except _Wrong as wrong:
        raise damaged(file, wrong.place, wrong.problem, remedy) from None
    return value


def read_by(read: Callable[[Any], T], raw: object, file: object, remedy: str = RESTORE) -> T:
    """The value that the function makes of the JSON value of a file. It may fail as `read` of `stored` may. Raises
    DamagedRecord."""
    try:
        value: T = _guarded(read)(raw)
    except _Wrong as wrong:
        raise damaged(file, wrong.place, wrong.problem, remedy) from None
    return value


def reader_of(hint: Any) -> Callable[[Any], Any]:
    """The function that makes a value of the hint of a JSON value, to be called by a `read` of `stored`."""
    return _reader(hint)  # type: ignore[arg-type]


@cache
def _reader(hint: Any) -> _Reader:
    """The function that turns a JSON value into one of the hint, or raises _Wrong."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in (Any, object):
        return lambda raw: raw
    if origin is Literal:
        return _one_of(arguments)
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is tuple and arguments[-1:] != (...,):
        return _row(tuple, None, arguments)
    if origin in (tuple, list, Sequence):
        return _items(list if origin is list else tuple, arguments[0])
    if origin in (dict, Mapping):
        return _mapping(*arguments)
    if isinstance(hint, type):
        return _of_class(hint)
    raise TypeError(f"{hint} is no hint of a record")


def _of_class(cls: type) -> _Reader:
    if cls in _SCALARS:
        return _scalar(cls)
    if method := getattr(cls, "from_json", None):
        return _guarded(method)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        hints = typing.get_type_hints(cls)
        return _row(cls._make, cls._fields, [hints[name] for name in cls._fields])  # type: ignore[attr-defined]
    if dataclasses.is_dataclass(cls):
        return _object(cls)
    raise TypeError(f"{cls} is no hint of a record")


_SCALARS: dict[type, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    type(None): "null",
}


def _scalar(kind: type) -> _Reader:
    if kind is float:
        return _number(*_LIMITS)
    if kind is int:
        return _number(-LARGEST_WHOLE, LARGEST_WHOLE, int)

    def read(raw: Any) -> Any:
        if type(raw) is kind:
            return raw
        raise _Wrong(f"must be {_SCALARS[kind]}, got {shown(raw)}")

    return read


def _number(least: float, most: float, kind: type = float) -> _Reader:
    """The reader of a number between two limits; of kind int, a whole one."""
    kinds = (int,) if kind is int else (float, int)

    def read(raw: Any) -> Any:
        if type(raw) not in kinds:
            raise _Wrong(f"must be {_SCALARS[kind]}, got {shown(raw)}")
        if not least <= raw <= most:
            bound = "finite" if (least, most) == _LIMITS else f"from {least:g} to {most:g}"
            raise _Wrong(f"must be {bound}, got {shown(raw)}")
        return kind(raw)

    return read


def _one_of(values: tuple[Any, ...]) -> _Reader:
    def read(raw: Any) -> Any:
        if any(type(raw) is type(value) and raw == value for value in values):
            return raw
        raise _Wrong(f"must be one of {', '.join(map(shown, values))}, got {shown(raw)}")

    return read


def _union(hints: tuple[Any, ...]) -> _Reader:
    """The reader of the first hint that allows the value; of a single one beside null, with its message."""
    readers = [_reader(hint) for hint in hints if hint is not type(None)]
    optional = len(readers) < len(hints)
    first, *others = readers

    def read(raw: Any) -> Any:
        if optional and raw is None:
            return None
        if not others:
            return first(raw)
        for reader in readers:
            try:
                return reader(raw)
            except _Wrong as wrong:
                last = wrong
        raise last

    return read


def _guarded(method: _Reader) -> _Reader:
    """A reader of a class's own, or of a field's. Its errors become those of a record."""

    def read(raw: Any) -> Any:
        try:
            return method(raw)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            problem = str(error) if isinstance(error, InputError) else "is not what this release writes"
            raise _Wrong(problem) from None

    return read


def _items(kind: type, hint: Any) -> _Reader:
    reader, fast = _reader(hint), _fast_items(hint)

    def read(raw: Any) -> Any:
        if not isinstance(raw, list | tuple):
            raise _Wrong(f"must be a list, got {shown(raw)}")
        if fast and (right := fast(raw)) is not None:
            return kind(right)
        values = []
        for i, item in enumerate(raw):
            try:
                values.append(reader(item))
            except _Wrong as wrong:
                raise wrong.below(i) from None
        return kind(values)

    return read


def _fast_items(hint: Any) -> Callable[[Sequence[Any]], Iterable[Any] | None] | None:
    """A function that takes all items at once; it returns None for items that are not right as they are, which the
    careful reader then judges. None where there is no such function."""
    kind, arguments = _as_they_are(hint), typing.get_args(hint)
    if kind and not kind & {int, float}:
        return lambda raw: raw if kind.issuperset(map(type, raw)) else None
    if typing.get_origin(hint) is tuple and ... not in arguments:
        return _fast_rows(arguments)
    return None


def _fast_rows(hints: tuple[Any, ...]) -> Callable[[Sequence[Any]], Iterable[Any] | None] | None:
    """As `_fast_items`, of rows that are a text and then numbers of one hint. Texts are shared, because rows begin with
    names that recur."""
    kinds = [_as_they_are(hint) for hint in hints]
    if kinds[:1] != [{str}] or len(set(kinds[1:])) != 1 or float not in kinds[1]:
        return None
    kind, names = kinds[1], tuple[str, ...]()

    def read(raw: Sequence[Any]) -> Iterable[Any] | None:
        nonlocal names
        try:
            first, *others = zip(*raw, strict=True)
            shared = names  # other threads read rows, too
            if first != shared:
                names = shared = tuple(map(sys.intern, first))
        except (TypeError, ValueError):
            return None
        numbers = sum(others, ())
        if len(others) != len(hints) - 1 or not kind.issuperset(map(type, numbers)):
            return None
        return zip(shared, *others, strict=True) if isfinite(sum(filter(None, numbers))) else None

    return read


def _as_they_are(hint: Any) -> frozenset[type]:
    """The types of values that are right for a hint of one scalar, optional or not; none for another hint.

    A number must be finite, too.
    """
    kinds = frozenset(typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else [hint])
    right = kinds & _SCALARS.keys()
    return kinds if right == kinds and len(kinds - {type(None)}) == 1 else frozenset()


def _bounds(kinds: frozenset[type], limits: tuple[float, float]) -> tuple[float, float] | None:
    """The limits of a field of these types, None if they are no numbers."""
    whole = -LARGEST_WHOLE, LARGEST_WHOLE
    return limits if float in kinds or limits != _LIMITS else whole if int in kinds else None


def _mapping(key: Any, hint: Any, reader: _Reader | None = None) -> _Reader:
    reader = reader or _reader(hint)

    def read(raw: Any) -> Any:
        if not isinstance(raw, dict):
            raise _Wrong(f"must be a mapping, got {shown(raw)}")
        found = {}
        for name, item in raw.items():
            try:
                found[_named(key, name)] = reader(item)
            except _Wrong as wrong:
                raise wrong.below(name) from None
        return found

    return read


def _named(kind: type, name: Any) -> Any:
    """The key of a mapping: JSON writes every key as text."""
    try:
        return kind(name)
    except ValueError:
        raise _Wrong(f"must have {_SCALARS[kind]} as key") from None


def _row(make: Callable[[Any], Any], names: Sequence[str] | None, hints: Sequence[Any]) -> _Reader:
    """The reader of an array of so many values."""
    readers = [_reader(hint) for hint in hints]

    def read(raw: Any) -> Any:
        if not isinstance(raw, list | tuple) or len(raw) != len(readers):
            raise _Wrong(f"must be a list of {len(readers)} values, got {shown(raw)}")
        values = []
        for i, (reader, item) in enumerate(zip(readers, raw, strict=True)):
            try:
                values.append(reader(item))
            except _Wrong as wrong:
                raise wrong.below(names[i] if names else i) from None
        return make(values)

    return read


def _object(cls: type) -> _Reader:
    """The reader of a dataclass. Scalars whose types were right once in this combination are not looked at one by one
    again."""
    hints = typing.get_type_hints(cls)
    fields = _fields(cls)
    named = [f.name for f in dataclasses.fields(cls) if f.init]
    if named[: len(fields)] != [f.name for f, _ in fields]:
        raise TypeError(f"{cls} has fields that are not written before others, so it cannot be read back")
    readers = [_field_reader(hints[f.name], o) for f, o in fields]
    keys = [o.key or f.name for f, o in fields]
    plain = [i for i, (f, o) in enumerate(fields) if not o.read and _as_they_are(hints[f.name])]
    bounds = {i: _bounds(_as_they_are(hints[fields[i][0].name]), fields[i][1].limits) for i in plain}
    numbers = [(i, limits[0], limits[1]) for i, limits in bounds.items() if limits]
    absent = [_absent(f, o, i in plain) for i, (f, o) in enumerate(fields)]
    nested = [(i, keys[i], readers[i]) for i in range(len(fields)) if i not in plain]
    right: set[tuple[type, ...]] = set()

    def read(raw: Any) -> Any:
        if type(raw) is not dict:
            return careful(raw)
        values: list[Any] = [*map(raw.get, keys, absent)]
        if tuple(map(type, values)) not in right:
            return careful(raw)
        for i, least, most in numbers:
            if not (values[i] is None or least <= values[i] <= most):
                return careful(raw)
        for i, key, reader in nested:
            try:
                values[i] = reader(values[i])
            except _Wrong as wrong:
                raise wrong.below(key) from None
        return cls(*values)

    def careful(raw: Any) -> Any:
        if not isinstance(raw, dict):
            raise _Wrong(f"must be a mapping, got {shown(raw)}")
        values = []
        for (field, options), key, reader in zip(fields, keys, readers, strict=True):
            item = raw.get(key, MISSING)
            for name in options.old if item is MISSING else ():
                item = raw.get(name, item)
            if item is MISSING or (item is None and not _allows_none(hints[field.name])):
                values.append(_in_place_of(field, options, key, item))
                continue
            try:
                values.append(reader(item))
            except _Wrong as wrong:
                raise wrong.below(key) from None
        found = [*map(raw.get, keys, absent)]
        if MISSING not in found and all(type(found[i]) is type(values[i]) for i in plain):
            right.add(tuple(map(type, found)))
        return cls(*values)

    return read


def _absent(field: dataclasses.Field[Any], options: _Stored, plain: bool) -> Any:
    """What a reader takes where a key is missing; MISSING where that must be looked at."""
    value = _default(field) if options.lacking is ... else options.lacking
    return value if not options.old and (plain or value == ()) else MISSING


def _allows_none(hint: Any) -> bool:
    return hint in (Any, object) or type(None) in typing.get_args(hint)


def _field_reader(hint: Any, options: _Stored) -> _Reader:
    if options.read:
        return _guarded(options.read)
    if options.limits != _LIMITS:
        optional = _allows_none(hint)
        kind = int if int in (hint, *typing.get_args(hint)) else float
        reader = _number(*options.limits, kind)
        if typing.get_origin(hint) is Mapping:
            return _mapping(typing.get_args(hint)[0], float, reader)
        return (lambda raw: None if raw is None else reader(raw)) if optional else reader
    return _reader(hint)


def _in_place_of(field: dataclasses.Field[Any], options: _Stored, key: str, item: Any) -> Any:
    """The value of a field whose key is missing, or null."""
    value = _default(field) if options.lacking is ... else options.lacking
    if value is MISSING:
        raise _Wrong("is missing" if item is MISSING else "must not be null", key)
    return value
