"""Texts that a program's reader may meet: valid ones, damaged ones, heaps and noise; the same for the same seed."""

from __future__ import annotations

import keyword
import random
import re
from ast import literal_eval
from collections.abc import Iterator, Sequence
from pathlib import Path

from complaints import COMPLAINTS
from written_programs import PROGRAMS, VALID

from evolve.run.program import CHAMPION, load, seed_texts
from simulator.language.ir import CALLS, COMPARISONS, METHODS
from simulator.language.source import MAX_BYTES
from simulator.schema import FIELDS

Text = str | bytes
_PARTS = re.split(r"^-- (\w+) --$", Path(__file__).with_suffix(".txt").read_text("utf-8"), flags=re.MULTILINE)[1:]
# Name -> entries of each section of hostile_texts.txt, which are Python literals.
_TEXTS = {name: literal_eval(f"[{text}]") for name, text in zip(_PARTS[::2], _PARTS[1::2], strict=True)}

UNARY = [name for name, (_, most) in CALLS.items() if most == 1]

# what a person, a model or an attacker may write where the language has something else
CHARACTERS = [*_TEXTS["CHARACTERS"], "x" * 65]
NUMBERS = [*_TEXTS["NUMBERS"], "9" * 400, "9" * 4301, "0x" + "f" * 300, "0x" + "f" * 8000]
EXPRESSIONS = [*_TEXTS["EXPRESSIONS"], "max(" + "1, " * 99 + "1)"]
STATEMENTS = _TEXTS["STATEMENTS"]
ARGUMENTS = _TEXTS["ARGUMENTS"]
FRAGMENTS = [*CHARACTERS, *NUMBERS, *EXPRESSIONS, *STATEMENTS, *ARGUMENTS]
PLAIN = ["a", "b.tokens", "s.tp", "r.input_len", "0", "1", "2", "0.5", "-3", "1e5", "k1", "b", "us", "max", "step_time"]
WORDS = [*METHODS, *CALLS, *COMPARISONS, *_TEXTS["WORDS"]]
OPENING = _TEXTS["OPENING"]
CLOSING = {"(": ")", "[": "]", "{": "}"}
AROUND = _TEXTS["AROUND"]
DOUBLING = _TEXTS["DOUBLING"]
HEADS = _TEXTS["HEADS"]
TOKEN = re.compile(r"\w+|\s+|[^\w\s]+")
ATOM = re.compile(rf"(?<![\w.'\"])(?!(?:{'|'.join(keyword.kwlist)})\b)\w[\w.]*")
LINE = re.compile(r"\n[ \t]*")


def texts(seed: int, count: int) -> Iterator[Text]:
    """The same texts for the same seed."""
    written = corpus()
    for i in range(count):
        rng = random.Random(f"{seed}/{i}")
        source = rng.choices((grown, damaged, heaped, nested, doubled, soup, noise), (40, 33, 9, 4, 4, 6, 4))[0]
        text = source(rng, written)
        yield as_bytes(text) if rng.random() < 0.2 else text


def as_bytes(text: Text) -> bytes:
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text


def corpus() -> list[str]:
    """The shipped programs, and those and the bad texts of the tests."""
    shipped = [load(CHAMPION).text, *(text for _, text in seed_texts())]
    bad = [text for text, _ in COMPLAINTS.values() if isinstance(text, str) and len(text) < 2000]
    return [*4 * [*shipped, *PROGRAMS, *VALID], *bad]


def damaged(rng: random.Random, written: Sequence[str]) -> str:
    """A written text with a few edits."""
    return damage(rng, rng.choice(written), written)


def damage(rng: random.Random, text: str, written: Sequence[str]) -> str:
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        text = rng.choice((torn, torn, swapped, swapped, swapped, widened))(rng, text, written)
    return text


def swapped(rng: random.Random, text: str, written: Sequence[str]) -> str:
    """Something else where a name or a number stands: most often still syntax."""
    begin, end = rng.choice([m.span() for m in ATOM.finditer(text)] or [(0, 0)])
    return text[:begin] + rng.choice(rng.choice((PLAIN, NUMBERS, EXPRESSIONS, CHARACTERS))) + text[end:]


def widened(rng: random.Random, text: str, written: Sequence[str]) -> str:
    """One more line, or one more constant."""
    if "*, " in text and rng.random() < 0.3:
        return text.replace("*, ", f"*, {rng.choice(ARGUMENTS)}, ", 1)
    at, line = rng.choice([(m.start(), m[0]) for m in LINE.finditer(text)] or [(0, "\n")])
    return text[:at] + line + rng.choice(STATEMENTS) + text[at:]


def torn(rng: random.Random, text: str, written: Sequence[str]) -> str:
    """An edit that knows no syntax."""
    parts = TOKEN.findall(text) or [""]
    i = rng.randrange(len(parts))
    j = i + rng.choice((1, 1, 2, 5, 20))
    match rng.randrange(7):
        case 0:
            parts[i:j] = []
        case 1:
            parts[i:i] = parts[i:j] * rng.choice((1, 1, 2, 20, 150))
        case 2:
            other = rng.randrange(len(parts))
            parts[i], parts[other] = parts[other], parts[i]
        case 3:
            others = TOKEN.findall(rng.choice(written))
            begin = rng.randrange(len(others) or 1)
            parts[i:j] = others[begin : begin + rng.choice((1, 3, 20))]
        case 4:
            parts[i] = rng.choice(WORDS)
        case 5:
            parts[i] = parts[i][: rng.randrange(len(parts[i]) + 1)] + chr(rng.randrange(1, 0x300))
        case _:
            parts[i:i] = [rng.choice(FRAGMENTS)]
    return "".join(parts)


def soup(rng: random.Random, written: Sequence[str]) -> str:
    """Words in no order."""
    some = rng.choice((WORDS, FRAGMENTS, WORDS + FRAGMENTS))
    return rng.choice(HEADS) + "".join(rng.choices(some, k=rng.choice((3, 10, 40, 400))))[:MAX_BYTES]


def heaped(rng: random.Random, written: Sequence[str]) -> str:
    """One thing very many times: nested, closed again or not, or as many statements."""
    piece = "".join(rng.choices(OPENING, k=rng.choice((1, 1, 2, 3))))
    times = rng.choice((30, 90, 100, 110, 500, MAX_BYTES // len(piece)))
    closing = "".join(CLOSING.get(c, "") for c in reversed(piece)) if rng.random() < 0.7 else ""
    nest = piece * times + rng.choice(("", "1", "b.tokens", "a")) + closing * times
    head = rng.choice(HEADS)
    if rng.random() < 0.3:
        nest = rng.choice((nest + "\n    x=", f"max({nest},", f"({nest})+")) * rng.choice((2, 10, 90))
    room = MAX_BYTES - len(head.encode()) + rng.choice((0, 0, 0, 1))
    whole = nest.encode("utf-8", "surrogatepass")[:room].decode("utf-8", "ignore")
    return head + whole + rng.choice(("", ")", ": return 1", "\n    return 1", "}\ndef predict_step_time(b): return 1"))


def nested(rng: random.Random, written: Sequence[str]) -> str:
    """A consistent program, one expression within the other."""
    around = [rng.choice(AROUND) for _ in range(rng.choice((1, 1, 2, 3)))]
    layers = [rng.choice(around) for _ in range(rng.choice((5, 12, 19, 38, 60, 90)))]
    inside = "".join(before for before, _ in layers) + "b.tokens" + "".join(after for _, after in reversed(layers))
    return f"def step_time(b, s, *, a=1.5, c: us/token = 2):\n    return a + c * ({inside})"


def doubled(rng: random.Random, written: Sequence[str]) -> str:
    """A consistent program of assignments, each of which reads those before it more than once."""
    forms = rng.choices(DOUBLING, k=rng.choice((1, 1, 2)))
    count = rng.choice((5, 12, 19, 38, 150))
    lets = [f"x{i} = {rng.choice(forms).format(f'x{i - 1}', f'x{max(i - 2, 0)}', i)}" for i in range(1, count + 1)]
    body = "\n    ".join(["x0 = b.tokens", *lets, f"return a + c * x{count}"])
    return f"def step_time(b, s, *, a=1.5, c: us/token = 2):\n    {body}"


def noise(rng: random.Random, written: Sequence[str]) -> Text:
    """Bytes or characters at random, alone or within a text."""
    size = rng.choice((1, 3, 30, 3000, MAX_BYTES))
    match rng.randrange(4):
        case 0:
            return rng.randbytes(size)
        case 1:
            return "".join(chr(rng.choice((128, 0x3000, 0x11000)) * rng.randrange(256) // 256) for _ in range(size))
        case 2:
            return chr(rng.choice((rng.randrange(128), rng.randrange(0x110000)))) * (size // 4 + 1)
        case _:
            text = bytearray(as_bytes(rng.choice(written)))
            for _ in range(rng.choice((1, 2, 10))):
                text[rng.randrange(len(text) or 1) : 1] = rng.randbytes(1)
            return bytes(text)


def grown(rng: random.Random, written: Sequence[str]) -> str:
    """A program by the grammar, most often a consistent one; sometimes a large one."""
    text = Growth(rng).program()
    return damage(rng, text, written) if rng.random() < 0.3 else text


class Growth:
    """Writes one program at random, in the language's own spelling or the original proposal's."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.dialect = rng.random() < 0.25
        self.depth = rng.choice((1, 2, 3, 4, 5, 8))
        self.hostile = rng.choice((0, 0, 0, 0.01, 0.03))
        self.fields: list[str] = []
        self.constants: list[str] = []
        self.locals: list[str] = []

    def program(self) -> str:
        rng = self.rng
        others = [m for m in METHODS if m != "step_time" and rng.random() < 0.2]
        functions = [self.function(m) for m in ("step_time", *others)]
        rng.shuffle(functions)
        doc = rng.choice(("", "", '"""A doc."""\n', "'''é \\x00 \"\"\" \\\\'''\n", "'x' 'y'\n"))
        table = ""
        if self.dialect and self.constants:
            table = f"CONSTANTS = {{{', '.join(f'{c!r}: {self.number()}' for c in self.constants)}}}\n"
        return doc + table + "\n".join(functions)

    def function(self, method: str) -> str:
        rng, seen = self.rng, METHODS[method]
        self.fields = [self.field(o, n) for o, n in FIELDS if o in seen and n != "reference_step_us"]
        self.locals = []
        if not self.dialect:
            self.constants = []
        lines = []
        for i in range(rng.choice((0, 0, 1, 2, 3, 30))):
            if rng.random() < 0.25:
                lines.append(f"if {self.condition(2)}: return {self.expression(2)}")
            else:
                lines.append(f"x{i} = {self.expression(rng.choice((0, 1, 3)))}")
                self.locals.append(f"x{i}")
        # every local is read
        lines.append(f"return {' + '.join(['(' + self.expression(self.depth) + ')', *self.locals])}")
        body = "".join(f"\n    {line}" for line in lines)
        if self.dialect:
            return f"def predict_{method}({seen[0]}):{body}"
        head = [*seen, *(["*", *map(self.constant, self.constants)] if self.constants else [])]
        return f"def {method}({', '.join(head)}):{body}"

    def field(self, owner: str, name: str) -> str:
        if not self.dialect:
            return f"{owner}.{name}"
        return f"{owner}[{name!r}]"

    def constant(self, name: str) -> str:
        unit = self.rng.choice(("", "", ": us", ": us/token", ": one[0.8, 3]", ": (byte/us)[-1, 1e9]", ": us**2/flop"))
        return f"{name}{unit} = {self.number()}"

    def number(self) -> str:
        rng = self.rng
        some = ("0", "1", "2", "0.5", "-1", "3", "1e5", "+2.5", "1_0", "0x10", repr(rng.uniform(-10, 1e6)), "1e-300")
        return rng.choice(some)

    def condition(self, depth: int) -> str:
        return f"{self.expression(depth - 1)} {self.rng.choice(COMPARISONS)} {self.expression(depth - 1)}"

    def expression(self, depth: int) -> str:
        rng = self.rng
        if rng.random() < self.hostile:
            return rng.choice(rng.choice((NUMBERS, EXPRESSIONS, CHARACTERS)))
        if depth <= 0 or rng.random() < 0.15:
            return self.leaf()
        a = self.expression(depth - 1)
        match rng.randrange(12):
            case 0:
                return f"-{a}" if a[0] not in "-+" and " " not in a else f"-({a})"
            case 1:
                return f"({a} if {self.condition(depth - 1)} else {self.expression(depth - 1)})"
            case 2:
                rest = [self.expression(depth - 1) for _ in range(rng.choice((1, 1, 2, 5)))]
                return f"{rng.choice(('max', 'min'))}({', '.join([a, *rest])})"
            case 3:
                return f"{rng.choice(UNARY)}({a})"
            case 4:
                return f"pow({a}, {rng.choice(('2', '-0.5', '3', '--1'))})"
            case _:
                return f"({a} {rng.choice('+-*/')} {self.expression(depth - 1)})"

    def leaf(self) -> str:
        rng = self.rng
        match rng.randrange(6):
            case 0:
                return self.number()
            case 1 if self.locals:
                return rng.choice(self.locals)
            case 2 | 3:
                name = rng.choice(("a", "c", "floor", "Long_Name_1", "k1", "k2", "us", "_", "per_token"))
                if name not in self.constants:
                    self.constants.append(name)
                return f"CONSTANTS[{name!r}]" if self.dialect else name
            case _:
                return rng.choice(self.fields)
