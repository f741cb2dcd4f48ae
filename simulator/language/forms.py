"""Units with unknowns: linear forms, the exponent of every base unit and of every unknown.

A product adds forms, a root halves one. The exponent of a base unit may have fitted constants as factors: the unit of
`pow(b.tokens, c)` is token**c, which no integer exponent spells.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from simulator.language import units

Dimension = tuple[str, ...]  # ("token",), or ("token", "c") for token**c with a fitted exponent c
Unknown = str  # the unit of a constant, by its name, or of a number in the text ("#3")
Key = Dimension | Unknown
Form = Mapping[Key, Fraction]

ONE: Form = {}
US: Form = {("us",): Fraction(1)}


def form_of(unit: units.Unit) -> Form:
    return {(name,): Fraction(n) for name, n in zip(units.BASES, unit, strict=True) if n}


def plus(left: Form, right: Form, sign: int) -> Form:
    out = dict(left)
    for key, n in right.items():
        out[key] = out.get(key, Fraction(0)) + sign * n
    return {key: n for key, n in out.items() if n}


def scaled(form: Form, factor: Fraction) -> Form:
    return {key: n * factor for key, n in form.items() if factor}


def spell_form(form: Form) -> str:
    """Annotation syntax as far as it reaches; an unknown's unit is `[name]`, a bare number's is left out."""
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
    return units.BASES.index(key[0]) if isinstance(key, tuple) else len(units.BASES)
