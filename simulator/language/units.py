"""Units: integer exponents of the five base units, and forms, in which the exponents of unknowns take part too.

A program's annotations and the schema's fields have units; what inference computes with are forms (infer.py). The
exponent of a base unit in a form may have fitted constants as factors: the unit of `pow(b.tokens, c)` is token**c,
which no integer exponent can spell.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

BASES = ("us", "token", "request", "byte", "flop")

Unit = tuple[int, int, int, int, int]
ONE: Unit = (0, 0, 0, 0, 0)

Dimension = tuple[str, ...]  # ("token",), or ("token", "c") for token**c with a fitted exponent c
Unknown = str  # the unit of a constant, by its name, or of a number in the text ("#3")
Key = Dimension | Unknown
Form = Mapping[Key, Fraction]

PURE: Form = {}
MICROSECONDS: Form = {("us",): Fraction(1)}


def base(name: str) -> Unit:
    """The unit called `name`: a base unit or `one`. Raises KeyError for any other name."""
    if name == "one":
        return ONE
    if name not in BASES:
        raise KeyError(name)
    return tuple(int(name == b) for b in BASES)  # type: ignore[return-value]


def times(left: Unit, right: Unit) -> Unit:
    """The unit of a product."""
    return tuple(a + b for a, b in zip(left, right, strict=True))  # type: ignore[return-value]


def over(left: Unit, right: Unit) -> Unit:
    """The unit of a quotient."""
    return tuple(a - b for a, b in zip(left, right, strict=True))  # type: ignore[return-value]


def power(unit: Unit, exponent: int) -> Unit:
    """The unit of a power."""
    return tuple(a * exponent for a in unit)  # type: ignore[return-value]


def spell(unit: Unit) -> str:
    """The annotation that reads back as `unit`."""
    above = [b if n == 1 else f"{b}**{n}" for b, n in zip(BASES, unit, strict=True) if n > 0]
    below = [b if n == -1 else f"{b}**{-n}" for b, n in zip(BASES, unit, strict=True) if n < 0]
    return "/".join(["*".join(above) or "one", *below])


def read(text: str) -> Unit:
    """The unit that a text such as `us/token**2` spells. Raises KeyError for an unknown base unit.

    >>> read("us/token**2")
    (1, -2, 0, 0, 0)
    """
    unit, sign = ONE, 1
    for part in text.replace("**", "^").replace("/", "*/").split("*"):
        sign = -1 if part.startswith("/") else 1
        name, _, exponent = part.removeprefix("/").partition("^")
        unit = times(unit, power(base(name.strip()), sign * int(exponent or 1)))
    return unit


def form_of(unit: Unit) -> Form:
    """The form of a unit."""
    return {(name,): Fraction(n) for name, n in zip(BASES, unit, strict=True) if n}


def unit_of_form(form: Form) -> Unit | None:
    """The unit of a form, or None if it has unknowns, fitted exponents or fractions."""
    if any(isinstance(key, str) or len(key) > 1 or n.denominator > 1 for key, n in form.items()):
        return None
    return tuple(int(form.get((name,), 0)) for name in BASES)  # type: ignore[return-value]


def plus(left: Form, right: Form, sign: int) -> Form:
    """The form of a product (`sign` 1) or quotient (-1)."""
    total = dict(left)
    for key, n in right.items():
        m = n if sign > 0 else -n
        total[key] = total[key] + m if key in total else m
    return {key: n for key, n in total.items() if n}


def scaled(form: Form, factor: Fraction) -> Form:
    """The form of a power with a known exponent."""
    return {key: n * factor for key, n in form.items() if factor}


def spell_form(form: Form) -> str:
    """The form in the syntax of annotations, and beyond it: the unknown unit of a constant is `[name]`.

    The unknown unit of a bare number is left out.

    >>> spell_form({("us",): Fraction(1), ("token", "c"): Fraction(-1), "a": Fraction(1)})
    'us*[a]/token**c'
    """
    above: list[str] = []
    below: list[str] = []
    order = sorted(form.items(), key=lambda item: (isinstance(item[0], str), _rank(item[0]), str(item[0])))
    for key, n in order:
        if isinstance(key, str):
            if key.startswith("#"):
                continue
            name, power = f"[{key}]", ""
        else:
            name, power = key[0], "*".join(key[1:])
        size = "" if abs(n) == 1 else str(abs(n)) if abs(n).denominator == 1 else f"({abs(n)})"
        exponent = f"({size}*{power})" if power and size else power or size
        (above if n > 0 else below).append(f"{name}**{exponent}" if exponent else name)
    return "/".join(["*".join(above) or "one", *below])


def _rank(key: Key) -> int:
    return BASES.index(key[0]) if isinstance(key, tuple) else len(BASES)
