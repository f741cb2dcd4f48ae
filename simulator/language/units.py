"""Units as integer exponents of the five base units; the algebra that annotations and operators need."""

from __future__ import annotations

BASES = ("us", "token", "request", "byte", "flop")

Unit = tuple[int, int, int, int, int]
ONE: Unit = (0, 0, 0, 0, 0)


def base(name: str) -> Unit:
    """The unit called `name`: a base unit or `one`. Raises KeyError for any other name."""
    if name == "one":
        return ONE
    if name not in BASES:
        raise KeyError(name)
    return tuple(int(name == b) for b in BASES)  # type: ignore[return-value]


def times(left: Unit, right: Unit) -> Unit:
    return tuple(a + b for a, b in zip(left, right, strict=True))  # type: ignore[return-value]


def over(left: Unit, right: Unit) -> Unit:
    return tuple(a - b for a, b in zip(left, right, strict=True))  # type: ignore[return-value]


def power(unit: Unit, exponent: int) -> Unit:
    return tuple(a * exponent for a in unit)  # type: ignore[return-value]


def spell(unit: Unit) -> str:
    """The annotation that reads back as `unit`, e.g. `us/token**2`."""
    above = [b if n == 1 else f"{b}**{n}" for b, n in zip(BASES, unit, strict=True) if n > 0]
    below = [b if n == -1 else f"{b}**{-n}" for b, n in zip(BASES, unit, strict=True) if n < 0]
    return "/".join(["*".join(above) or "one", *below])


def read(text: str) -> Unit:
    """A unit from schema text such as `us/token**2`; raises KeyError for an unknown base name."""
    unit, sign = ONE, 1
    for part in text.replace("**", "^").replace("/", "*/").split("*"):
        sign = -1 if part.startswith("/") else 1
        name, _, exponent = part.removeprefix("/").partition("^")
        unit = times(unit, power(base(name.strip()), sign * int(exponent or 1)))
    return unit
