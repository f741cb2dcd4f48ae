"""How things are called in Go: fields, facts, local names, numbers, comments."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Sequence

from simulator.schema import FIELDS
from translate_go.goexpr import Atom, GoExpr, Minus


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


KEYWORDS = words(
    "break case chan const continue default defer else fallthrough for func go goto if import interface map package "
    "range return select struct switch type var"
)
PREDECLARED = words(
    "any append bool byte cap clear close comparable complex complex64 complex128 copy delete error false float32 "
    "float64 imag int int8 int16 int32 int64 iota len make max min new nil panic print println real recover rune "
    "string true uint uint8 uint16 uint32 uint64 uintptr"
)
# names that the file itself uses inside formulas, or everywhere
OWN = words("b m n math fmt strings sim toTicks maxTicks batchSums sumBatch")
HELPERS = words(
    "safeDiv safeSqrt safeLog safeLog1p safeExp safePow expertsTouched capturedBatch capturedTokens curveAt newEvolved "
    "deployments"
)


def camel(name: str) -> str:
    """`kv_read_us` -> `kvReadUs`."""
    first, *rest = [part for part in name.split("_") if part] or ["x"]
    return first[0].lower() + first[1:] + "".join(part[0].upper() + part[1:] for part in rest)


def fact(name: str) -> str:
    """The exported name of a deployment fact: `kv_us_per_token` -> `KvUsPerToken` (schema: `d.KvUsPerToken`)."""
    return FIELDS["s", name].go.removeprefix("d.")


def curve_name(name: str) -> str:
    """The exported name of a deployment's curve: `lm_head` -> `LmHeadCurve`."""
    return "".join(part.capitalize() for part in name.split("_")) + "Curve"


def batch_name(name: str) -> str:
    """The local variable that holds a batch field: `kv_sum` -> `kvSum` (schema: `b.KvSum`)."""
    exported = FIELDS["b", name].go.removeprefix("b.")
    return exported[0].lower() + exported[1:]


class Names:
    """The identifiers of one Go function: every one of them new and none of them reserved."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.taken = {*KEYWORDS, *PREDECLARED, *OWN, *HELPERS, *taken}

    def fresh(self, wish: str) -> str:
        """`wish` in camel case, or the first of wish2, wish3, ... that is free."""
        name = candidate = camel(wish)
        n = 2
        while candidate in self.taken:
            candidate = f"{name}{n}"
            n += 1
        self.taken.add(candidate)
        return candidate


def digits(value: float) -> str:
    """The shortest Go literal that reads back as the finite number `value`."""
    if value == math.floor(value) and abs(value) < 1e15:
        return str(int(value))
    return repr(float(value))


def literal(value: float, *, alone: bool = False) -> GoExpr:
    """A number in an expression; `alone` where its type is inferred from it, so that 2 must be written 2.0."""
    if math.isnan(value):
        return Atom("math.NaN()")
    if math.isinf(value):
        return Atom("math.Inf(1)" if value > 0 else "math.Inf(-1)")
    text = digits(abs(value))
    if alone and text.isdigit():
        text += ".0"
    return Minus(Atom(text)) if value < 0 else Atom(text)


def clean(text: str) -> str:
    """One line that may stand in a Go comment: printable, without trailing blanks."""
    return "".join(c if c.isprintable() else " " if c == "\t" else "?" for c in text).rstrip()


def quoted(text: str) -> str:
    """A Go string literal of one line."""
    return json.dumps(clean(text))


def comment(text: str, indent: str = "") -> list[str]:
    """A comment of whole lines, wrapped."""
    return [f"{indent}// {line}" for line in textwrap.wrap(text, 98 - 4 * len(indent))]


def columns(rows: Sequence[tuple[str, ...]], indent: str) -> list[str]:
    """Rows of cells under each other as gofmt aligns declarations; every row as many cells as the first."""
    if not rows:
        return []
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    padded = [[c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in rows]
    return [(indent + " ".join(row)).rstrip() for row in padded]
