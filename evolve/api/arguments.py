"""Arguments of the Python interface: an InputError of one line for one that cannot be meant."""

from __future__ import annotations

from operator import index
from pathlib import Path
from typing import Any

from simulator.common.errors import InputError, shown


def whole(name: str, value: Any, least: int, most: int) -> int:
    """The whole number that an argument is, numpy's too. Raises InputError for another type, or outside the range.

    >>> whole("workers", 2, 1, 10)
    2
    """
    try:
        number = index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or not least <= number <= most:
        raise InputError(f"{name}: {shown(value)}: must be a whole number from {least:,} to {most:,}: give another one")
    return number


def path(name: str, value: object, what: str) -> Path:
    """The path that an argument is, of `what`. Raises InputError for another type, and for text that is no path.

    >>> path("path", "runs/0001", "a run's folder").name
    '0001'
    """
    if not isinstance(value, str | Path) or value == "" or "\0" in str(value):
        raise InputError(f"{name}: {spelled(value)}: give {what}")
    return Path(value)


def spelled(value: object) -> str:
    """A wrong argument in a message: as it is written where it is short, else what it is.

    >>> spelled(5), spelled(Path("x").stat)
    ('5', 'a method')
    """
    plain = value is None or isinstance(value, str | int | float | list | dict)
    kind = type(value).__name__
    return shown(value) if plain else f"an {kind}" if kind[0] in "AEIOU" else f"a {kind}"
