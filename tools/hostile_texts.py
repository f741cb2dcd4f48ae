"""Texts that a program's reader may meet: sound ones, damaged ones, heaps and noise; the same for the same seed."""

from __future__ import annotations

import keyword
import random
import re
from collections.abc import Iterator, Sequence

from complaints import COMPLAINTS
from written_programs import PROGRAMS, VALID

from evolve.run.program import CHAMPION, load, seed_texts
from simulator.language.ir import CALLS, COMPARISONS, METHODS
from simulator.language.source import MAX_BYTES
from simulator.schema import FIELDS

Text = str | bytes

UNARY = [name for name, (_, most) in CALLS.items() if most == 1]

# what a person, a model or an attacker may write where the language has something else
CHARACTERS = [
    "ﬁeld", "ﬂoor", "ｍａｘ", "ｂ", "ſ", "b.ﬁll", "b.ｔｏｋｅｎｓ", "𝐛", "𝟙", "１", "²", "é", "ª", "−", "µs", "x" * 65,
    "\ufeff", "\u200b", "\u00a0", "\u2028", "\x85", "\0", "\x0b", "\x0c", "\x1a", "\x1b[2J", "\x7f", "\ud800",
    "\udcff", "\U0001f600", "\t", "\r", "\r\n", "\\", "\\\n", "\\\r\n", "\\\x0c", "# -*- coding: utf-7 -*-\n",
    "# -*- coding: rot13 -*-\n", "#!python\n", "# type: ignore\n", "# a comment\n", "'", '"', "'''", '"""', "f'{",
]  # fmt: skip
NUMBERS = [
    "1e999", "-1e999", "1e-999", "1j", "0j", "9" * 400, "9" * 4301, "0x" + "f" * 300, "0x" + "f" * 8000, "0xdead",
    "0o17", "0b1", "0o8", "007", "1_000", "1__0", "1_", "0x", "1.e5", ".5", "5.", "1.5.2", "1if 1<2else 2", "0x1for",
    "1e", "1_0", "nan", "inf", "-0.0", "0.30000000000000004", "1e308", "5e-324", "2.", "0.5", "True", "False", "None",
    "...", "NotImplemented", "(-8)**(1/3)", "2**-1", "2**10**10**10", "9**9**9", "-2**2", "1//0", "1%0", "1@1", "~1",
    "1<<9",
]  # fmt: skip
EXPRESSIONS = [
    "'a'", "''", "b'x'", "r'\\'", "u'x'", "rb'\\d'", "'\\d'", "'\\777'", "'\\x4'", "'\\N{DIGIT ONE}'", "'\\N{x}'",
    "'\\ud800'", "f'{b}'", "f'{b!r:{s}}'", "f'{'", "f'}'", "f'{b=}'", "f'{lambda:1}'", "f'''{\n1}'''", "f'{f\"{1}\"}'",
    "t'{b}'", "rf'{b}\\d'", "'a' 'b'", "'a' b'b'", "'%s' % b", "'x'.join(b)", "__import__('os')", "__builtins__",
    "__debug__", "b.__class__", "b.__dict__['x']", "().__class__.__bases__[0].__subclasses__()",
    "s.__init__.__globals__", "(x := 1)", "x := 1", "lambda: 1", "lambda *a, **k: a", "(lambda: 1)()", "max(*b)",
    "max(**b)", "max(1, 2, key=1)", "max(x for x in b)", "[x for x in b]", "{x: 1 for x in b}", "{*b}", "{**b}",
    "[*b]", "(1, 2)", "1,", "()", "[]", "{}", "(yield)", "(yield from b)", "(await b)", "await b", "b[0]", "b[:]",
    "b[1:2, ::3]", "b[...]", "b['tokens']", "b['__class__']", "CONSTANTS['k']", "CONSTANTS", "b.tokens.real",
    "b.tokens()", "s.reference_step_us", "r.input_len", "b", "s", "r", "not b", "b and s", "b or 1",
    "0 < b.tokens < 2", "b.tokens is 1", "b.tokens in s", "1 < 2", "(1 if b.tokens else 2)", "1 if 1 < 2",
    "pow(2, b.tokens)", "pow(b.tokens, --2)", "max(1)", "sqrt()", "abs(1)", "math.sqrt(1)", "eval('1')", "exec('1')",
    "print('hi')", "open('x')", "exit()", "breakpoint()", "1()", "max(" + "1, " * 99 + "1)",
]  # fmt: skip
STATEMENTS = [
    "import os", "from os import *", "from . import x", "from __future__ import annotations", "import os as step_time",
    "class A: pass", "class step_time: pass", "for i in b: pass", "while 1: pass", "try:\n  pass\nexcept: pass",
    "try:\n  pass\nexcept* E: pass", "with b: pass", "match b:\n  case 1: pass", "global x", "nonlocal x", "del b",
    "pass", "raise", "assert 0", "break", "continue", "return", "return 1", "yield 1", "x = y = 1", "x, y = 1",
    "*x, = b", "x += 1", "x: int = 1", "x: us", "b.x = 1", "b[0] = 1", "type X = int", "async def f(): pass",
    "async with b: pass", "async for i in b: pass", "@f\n", "@print(1)\n", "@(x := 1)\n",
    "def step_time(b, s): return 1", "def f(): pass", "def step_time[T](b, s): return 1",
    "def step_time(b, s) -> print(1): return 1", "def step_time(b, /, s, *a, **k): pass",
    "def step_time(b: print(1), s=print(1)): return 1", "lambda b, s: 1", "if b.tokens > 1: return 1", "if 1: x = 1\n",
    "elif 1 < 2: return 2\n", "else: return 3\n", "CONSTANTS = {'k': 1, 'if': 2, **b}\n", "CONSTANTS = {}\n",
    "def predict_step_time(b): return 1\n", "def predict_queueing_time(r): return 1\n",
]  # fmt: skip
ARGUMENTS = [
    "k: us[0, 5] = 1", "k: us[5, 0] = 1", "k: us[1] = 1", "k: us[0:1] = 1", "k: us[print(1), 1] = 1", "k: 'us' = 1",
    "k: us**10 = 1", "k: us**9*us = 1", "k: us**-1 = 1", "k: (us/token)[0, 5][0, 5] = 1", "k: ms = 1", "k=-+-1",
    "k=not 1", "k=(1,)", "k=print(1)", "*, k=1", "/, ", "*a", "**k",
]  # fmt: skip
FRAGMENTS = [*CHARACTERS, *NUMBERS, *EXPRESSIONS, *STATEMENTS, *ARGUMENTS]
PLAIN = ["a", "b.tokens", "s.tp", "r.input_len", "0", "1", "2", "0.5", "-3", "1e5", "k1", "b", "us", "max", "step_time"]
WORDS = [
    *METHODS, *CALLS, *COMPARISONS, "def ", "return ", "if ", "else ", "elif ", "lambda ", "import ", "class ", "for ",
    "in ", "is ", "not ", "and ", "or ", "async ", "await ", "yield ", "match ", "case ", "type ", "with ", "as ",
    "try:", "b", "s", "r", ".", "tokens", "layers", "b.tokens", "s.tp", "r.input_len", "b['tokens']", "CONSTANTS['a']",
    "a", "x", "predict_step_time", "(b, s):", "(b, s, *, a=1):", "(b):", "(r, s):", "(s):", "(", ")", "[", "]", "{",
    "}", ",", ":", ";", "=", ":=", "*", "**", "/", "//", "+", "-", "%", "@", "~", "->", "!", "?", "$", "`", "\n",
    "\n    ", "\n        ", " ", "\t", "\r", "\f", "\\", "\\\n", "#", "'", '"', '"""', "f'{", "rb'", "0", "1", "2.5",
    "1e9", "us", "token", "one", "us/token[0, 5]", "_", "é", "ﬁ", "\ufeff", "\x1b", "\u2028",
]  # fmt: skip
OPENING = [
    "(", "[", "{", "{1:", "max(1,", "sqrt(", "pow(", "a[", "x[a:b,", "f(a=", "f(*a,", "[a for a in ", "(yield ", "f'{",
    "f\"{x:{", "1 if 1<1 else ", "(1 if ", "lambda a:", "-", "+", "~", "not ", "await ", "1+", "1-(", "1/(", "2**",
    "1<", "b.", "a and ", "x=", "x:=", "(x:=", "@", "*", "\n if 1<1:", "\n  ", "\\\n", "'", "'' ", "''' ", "u'' ",
    "b'' ", '""', "'\\", "#", ";", "x;", ",", ".", "é", "ﬁ", "9", "0", "_", "\t", "\f", "\r", "\n", " ", "\0",
]  # fmt: skip
CLOSING = {"(": ")", "[": "]", "{": "}"}
AROUND = [
    ("max(", ", 1, 1)"), ("max(1, ", ", 2)"), ("min(", ", s.tp)"), ("sqrt(", ")"), ("exp(", ")"), ("pow(", ", 2)"),
    ("-", ""), ("(1 - ", ")"), ("(", " + b.kv_max)"), ("(", " / 2)"), ("(2 / ", ")"), ("(", " * a)"),
    ("(", " * (s.tp + 1))"), ("(1 if 1 < ", " else 2)"), ("(", " if b.tokens < 1 else 2)"),
    ("(a if a == c else ", ")"),
]  # fmt: skip
DOUBLING = [
    "{0} * {0}", "{0} + {0}", "{0} - {0}", "{0} / {0}", "{0} * {1}", "({0} + 1) * {0}", "({0} + 1) * ({1} - 1)",
    "1 / (1 + {0})", "max({0}, {0})", "max({0}, -{1})", "max({0}, {1} + {2})", "min({0} * 2, max({1}, 1))",
    "sqrt({0} * {1})", "exp({0}) + {0}", "pow({0}, 2) * {1}", "({0} if {0} < {1} else {1})",
    "({0} + 1 if {0} == 2 else {1} * 2)", "-{0}", "{0} + b.total_bytes", "{0} * b.total_flops + {1}",
]  # fmt: skip
HEADS = [
    "", "def step_time(b, s):\n    return ", "def step_time(b, s):\n    x = ", "def step_time(b, s, *, a=", "'''",
    "def step_time(b, s, *, a: ", "def step_time(b, s):\n    if ", "def predict_step_time(b): return ",
    "CONSTANTS = {'a': ",
]  # fmt: skip
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
    """A sound program, one expression within the other."""
    around = [rng.choice(AROUND) for _ in range(rng.choice((1, 1, 2, 3)))]
    layers = [rng.choice(around) for _ in range(rng.choice((5, 12, 19, 38, 60, 90)))]
    inside = "".join(before for before, _ in layers) + "b.tokens" + "".join(after for _, after in reversed(layers))
    return f"def step_time(b, s, *, a=1.5, c: us/token = 2):\n    return a + c * ({inside})"


def doubled(rng: random.Random, written: Sequence[str]) -> str:
    """A sound program of assignments, each of which reads those before it more than once."""
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
    """A program by the grammar, most often a sound one; sometimes a large one."""
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
