"""Bad texts by name, each with the line and the words of the complaint that is due."""

from __future__ import annotations

from written_programs import dialect

from simulator.language.ir import CALLS, METHODS

HEAD = "def step_time(b, s):\n    return "
FUNCTIONS = ", ".join(CALLS)
USE = f"use fields, constants, + - * / and {FUNCTIONS}"
STATEMENTS = "use assignments, `if ...: return` and return"
METHOD_NAMES = ", ".join(METHODS)
DEEP = "nested too deeply, at most 100 levels are read: split it over assignments"
LONG = "too long, at most 2000 fields, constants, numbers and operations are read: shorten the program"
LARGE = "a number too large for float64: give a finite one"
SIZE = "bytes, at most 20000 are read: shorten the program"
NOT_UNIT = "is not a unit: use one, us, token, request, byte, flop with * / **, e.g. us/token[0, 5]"
REFERENCE = "s.reference_step_us is for queueing_time only: use another field here"
EXPONENT = "the exponent of pow must be a constant or a number: name it as a constant"
IDENTIFIER = "a name in CONSTANTS is not a plain quoted identifier: rename it"


def constants(text: str) -> str:
    return f"def step_time(b, s, *, {text}): return a"


def body(text: str) -> str:
    return f"def step_time(b, s, *, a=1.0):\n    {text}"


COMPLAINTS: dict[str, tuple[str | bytes, str]] = {
    # not a text
    "empty": ("", "1: empty: define `def step_time(b, s, *, ...): return ...`"),
    "blank": (" \n\t\n", "1: empty: define `def step_time(b, s, *, ...): return ...`"),
    "empty bytes": (b"", "1: empty: define `def step_time(b, s, *, ...): return ...`"),
    "only a comment": ("# nothing", "1: no step_time: define `def step_time(b, s, *, ...): return ...`"),
    "only a docstring": ("'doc'", "1: no step_time: define `def step_time(b, s, *, ...): return ...`"),
    "NUL": (HEAD + "1\0", "1: binary data: give a program's text"),
    "zeros": (bytes(100), "1: binary data: give a program's text"),
    "latin-1": (b"# \xe9\n", "1: not UTF-8 text (byte 2): give a program's text"),
    "an executable": (b"\x7fELF\xff\xff", "1: not UTF-8 text (byte 4): give a program's text"),
    "a lone surrogate": (HEAD + "1 # \ud800", "1: not UTF-8 text (byte 36): give a program's text"),
    "5 MB": ("x" * 5_000_000, f"1: 5000000 {SIZE}"),
    "5 MB of bytes": (b"\xff" * 5_000_000, f"1: 5000000 {SIZE}"),
    "5 MB of accents": ("é" * 2_500_000, f"1: 5000000 {SIZE}"),
    "5 MB of a program": ((HEAD + "1").ljust(5_000_000), f"1: 5000000 {SIZE}"),
    "5 MB of a program in bytes": ((HEAD + "1").encode().ljust(5_000_000), f"1: 5000000 {SIZE}"),
    "just too long": (HEAD + "1".ljust(20_001 - len(HEAD)), f"1: 20001 {SIZE}"),
    "prose": ("Here is the program:", "1: not valid syntax (invalid syntax): fix the text"),
    "a half": ("def step_time(b, s", "1: not valid syntax ('(' was never closed): fix the text"),
    "indentation": (
        "def step_time(b, s):\nreturn 1",
        "2: not valid syntax (expected an indented block after function definition on line 1): fix the text",
    ),
    "a typographic minus": (HEAD + "1 − 1", "2: not valid syntax (invalid character '−' (U+2212)): fix the text"),
    # too deep, too large
    "10,000 brackets": (
        HEAD + "(" * 9_900 + "1" + ")" * 9_900,
        "2: not valid syntax (too many nested parentheses): fix the text",
    ),
    "20,000 brackets": (HEAD + "(" * 10_000 + "1" + ")" * 10_000, f"1: 20033 {SIZE}"),
    "minus signs": (HEAD + "-" * 15_000 + "1", f"1: {DEEP}"),
    "fewer minus signs": (HEAD + "-" * 200 + "1", f"2: {DEEP}"),
    "a chain of 5,000": (HEAD + "+".join(["1"] * 5_000), f"1: {DEEP}"),
    "a chain of 500": (HEAD + "+".join(["1"] * 500), f"2: {DEEP}"),
    "a called chain": (HEAD + "(" + "+".join(["1"] * 900) + ")()", f"2: {DEEP}"),
    "a chain of attributes": (HEAD + "b" + ".b" * 900, f"2: {DEEP}"),
    "a chain of units": (constants("a: " + "*".join(["us"] * 900) + " = 1"), f"1: {DEEP}"),
    "nested calls": (HEAD + "sqrt(" * 99 + "1" + ")" * 99, f"2: {DEEP}"),
    "nested ifs": (
        "def step_time(b, s):\n"
        + "".join(" " * i + "if b.tokens > 1:\n" for i in range(1, 99))
        + " " * 99
        + "return 1",
        f"100: {DEEP}",
    ),
    "a long elif": (
        "def step_time(b, s):\n if b.tokens > 1: return 1\n" + " elif b.tokens > 1: return 1\n" * 300,
        f"100: {DEEP}",
    ),
    "nested ifs, fewer": (
        body("if b.tokens > 1:\n        if b.tokens > 2: return a\n    return a"),
        "2: an if may hold one return and nothing else: use `x if a < b else y`",
    ),
    "too large": (HEAD + "1e999", f"2: {LARGE}"),
    "too large a value": (constants("a=-1e999"), f"1: {LARGE}"),
    "a huge whole number": (HEAD + "9" * 400, f"2: {LARGE}"),
    "a vast whole number": (HEAD + "9" * 5_000, f"2: {LARGE}"),
    "a vast hexadecimal": (HEAD + "0x" + "f" * 15_000, f"2: {LARGE}"),
    "a vast unit": (constants("a: 0x" + "f" * 15_000 + " = 1"), f"1: {LARGE}"),
    "a vast call": (HEAD + "(0x" + "f" * 15_000 + ")()", f"2: {LARGE}"),
    "a vast bound": (constants("a: us[0, 0x" + "f" * 15_000 + "] = 1"), f"1: {LARGE}"),
    "a long name": (HEAD + "x" * 65, f"2: name '{'x' * 40}' is not plain ASCII of at most 64 characters: rename it"),
    "a thousand statements": ("x;" * 9_000, f"1: {LONG}"),
    "2,500 numbers": (HEAD + " + ".join(["max(" + "1, " * 61 + "1)"] * 40), f"1: {LONG}"),
    "2,500 constants of the dialect": (
        "CONSTANTS = {" + "'a': 1, " * 1_001 + "}\ndef predict_step_time(b): return 1",
        f"1: {LONG}",
    ),
    # statements
    "import": ("import os\n" + HEAD + "1", "1: only functions are allowed here, not an import: remove it"),
    "import inside": (body("import os\n    return a"), f"2: an import is not part of the language: {STATEMENTS}"),
    "from import": ("from os import *", "1: only functions are allowed here, not an import: remove it"),
    "a class": ("class A: pass", "1: only functions are allowed here, not a class: remove it"),
    "a module constant": ("A = 1\n" + HEAD + "A", "1: only functions are allowed here, not an assignment: remove it"),
    "a call": ("print(1)", "1: only functions are allowed here, not a bare expression: remove it"),
    "an async function": (
        "async def step_time(b, s): return 1",
        "1: only functions are allowed here, not an async function: remove it",
    ),
    "for": (body("for i in b: pass\n    return a"), f"2: a loop is not part of the language: {STATEMENTS}"),
    "while": (body("while a: pass\n    return a"), f"2: a loop is not part of the language: {STATEMENTS}"),
    "try": (body("try: return a\n    except: return a"), f"2: a try is not part of the language: {STATEMENTS}"),
    "with": (body("with a: return a"), f"2: a with is not part of the language: {STATEMENTS}"),
    "pass": (body("pass"), "1: no return at the end: add one"),
    "match": (body("match a:\n        case 1: return a"), f"2: a match is not part of the language: {STATEMENTS}"),
    "global": (body("global x\n    return a"), f"2: a global is not part of the language: {STATEMENTS}"),
    "del": (body("del a\n    return a"), f"2: a del is not part of the language: {STATEMENTS}"),
    "an inner function": (
        body("def f(): return a\n    return f()"),
        f"2: an inner function is not part of the language: {STATEMENTS}",
    ),
    "a bare expression": (body("a\n    return a"), f"2: a bare expression is not part of the language: {STATEMENTS}"),
    "two targets": (body("x = y = a\n    return x"), "2: only a single name can be assigned: write `name = value`"),
    "unpacking": (body("x, y = a\n    return x"), "2: only a single name can be assigned: write `name = value`"),
    "a field assigned": (
        body("b.tokens = a\n    return a"),
        "2: only a single name can be assigned: write `name = value`",
    ),
    "reassignment": (body("x = a\n    x = 2\n    return x"), "1: step_time: 'x' is never used: remove it"),
    "a constant assigned": (body("a = 2\n    return a"), "1: step_time: 'a' is never used: remove it"),
    "self-reference": (body("x = x + a\n    return x"), "2: unknown name 'x': assign it first or make it a constant"),
    "no return": (body("x = a"), "1: no return at the end: add one"),
    "no return after if": (body("if b.tokens > 1: return a"), "1: no return at the end: add one"),
    "an empty return": (body("return"), "2: a return without a value: return the time in microseconds"),
    "code after return": (body("return a\n    x = 1"), "3: nothing may follow a return: remove it"),
    "code after if/else": (
        body("if b.tokens > 1: return a\n    else: return 1\n    return 2"),
        "4: nothing may follow a return: remove it",
    ),
    # heads
    "no step_time": (
        "def completion_time(s): return 1",
        "1: no step_time: define `def step_time(b, s, *, ...): return ...`",
    ),
    "twice": (HEAD + "1\n" + HEAD + "2", "3: step_time is defined twice: keep one"),
    "unknown method": (
        HEAD + "1\ndef prefill_time(b, s): return 1",
        f"3: unknown function 'prefill_time': the methods are {METHOD_NAMES}",
    ),
    "no s": ("def step_time(b): return 1", "1: step_time takes (b, s, *, constants...): write its head like that"),
    "swapped": (
        "def step_time(s, b): return 1",
        "1: step_time takes (b, s, *, constants...): write its head like that",
    ),
    "more": (
        "def step_time(b, s, x): return 1",
        "1: step_time takes (b, s, *, constants...): write its head like that",
    ),
    "a positional-only object": (
        "def step_time(b, /, s): return 1",
        "1: step_time takes (b, s, *, constants...): write its head like that",
    ),
    "an annotated object": (
        "def step_time(b: us, s): return 1",
        "1: step_time takes (b, s, *, constants...): write its head like that",
    ),
    "star-args": (
        "def step_time(b, s, *args): return 1",
        "1: step_time takes (b, s, *, constants...): write its head like that",
    ),
    "two stars": (
        "def step_time(b, s, **a): return 1",
        "1: step_time takes (b, s, *, constants...): write its head like that",
    ),
    "two stars beside constants": (
        "def step_time(b, s, *, a=1, **c): return a",
        "1: step_time takes (b, s, *, constants...): write its head like that",
    ),
    "a head of look-alikes": (
        "def step_time(ｂ, s): return 1",
        "1: name 'ｂ' is not plain ASCII of at most 64 characters: rename it",
    ),
    "a look-alike method": (
        "def ﬆep_time(b, s): return 1",
        "1: name 'ﬆep_time' is not plain ASCII of at most 64 characters: rename it",
    ),
    "queueing_time of b": (
        HEAD + "1\ndef queueing_time(b, s): return 1",
        "3: queueing_time takes (r, s, *, constants...): write its head like that",
    ),
    "completion_time of r": (
        HEAD + "1\ndef completion_time(r): return 1",
        "3: completion_time takes (s, *, constants...): write its head like that",
    ),
    "a decorator": (
        "@f\n" + HEAD + "1",
        "2: decorators, return annotations and type parameters are not part of the language: remove them",
    ),
    "a called decorator": (
        "@print(1)\n@(lambda f: f)\n" + HEAD + "1",
        "3: decorators, return annotations and type parameters are not part of the language: remove them",
    ),
    "a return annotation": (
        "def step_time(b, s) -> float: return 1",
        "1: decorators, return annotations and type parameters are not part of the language: remove them",
    ),
    "no default": (constants("a"), "1: constant 'a' has no value: give it a default, e.g. a=1.0"),
    "True as a constant": (constants("a=True"), "1: True is not a number: give a plain number"),
    "None as a constant": (constants("a=None"), "1: None is not a number: give a plain number"),
    "text as a constant": (constants("a='x\\n'"), "1: 'x\\n' is not a number: give a plain number"),
    "a sum as a constant": (constants("a=1 + 1"), "1: arithmetic is not a number: give a plain number"),
    "a call as a constant": (constants("a=float('inf')"), "1: a call is not a number: give a plain number"),
    "a lambda as a constant": (constants("a=lambda: 1"), "1: a lambda is not a number: give a plain number"),
    "a walrus as a constant": (constants("a=(x := 1)"), "1: a walrus is not a number: give a plain number"),
    "an f-string as a constant": (constants("a=f'{1}'"), "1: an f-string is not a number: give a plain number"),
    "a power as a constant": (constants("a=(-8)**(1/3)"), "1: arithmetic is not a number: give a plain number"),
    "an imaginary constant": (constants("a=1j"), "1: 1j is not a number: give a plain number"),
    "a constant named b": (
        "def step_time(b, s, *, r=1, max=1): return r",
        "1: the name 'max' is taken: rename the constant",
    ),
    "a constant twice": (constants("a=1, a=2"), "1: the name 'a' is taken: rename the constant"),
    "unused constant": (constants("a=1, c=2"), "1: step_time: 'c' is never used: remove it"),
    "unused local": (body("x = a\n    return a"), "1: step_time: 'x' is never used: remove it"),
    "a constant hidden in a guard": (
        body("if b.tokens > 1: return 1\n    return 2"),
        "1: step_time: 'a' is never used: remove it",
    ),
    # units and bounds
    "unknown unit": (constants("a: ms = 1"), f"1: 'ms' {NOT_UNIT}"),
    "float as a unit": (constants("a: float = 1"), f"1: 'float' {NOT_UNIT}"),
    "a number as a unit": (constants("a: 1/us = 1"), f"1: 1 {NOT_UNIT}"),
    "text as a unit": (constants("a: 'us' = 1"), f"1: 'us' {NOT_UNIT}"),
    "a lambda as a unit": (constants("a: (lambda: 1) = 1"), f"1: a lambda {NOT_UNIT}"),
    "a walrus as a unit": (constants("a: (us := 1) = 1"), f"1: a walrus {NOT_UNIT}"),
    "an f-string as a unit": (constants("a: f'{us}' = 1"), f"1: an f-string {NOT_UNIT}"),
    "a sum of units": (constants("a: us + token = 1"), f"1: arithmetic {NOT_UNIT}"),
    "a root of a unit": (constants("a: us**0.5 = 1"), f"1: arithmetic {NOT_UNIT}"),
    "a true power": (constants("a: us**True = 1"), f"1: arithmetic {NOT_UNIT}"),
    "a power below zero": (constants("a: us**-1 = 1"), f"1: arithmetic {NOT_UNIT}"),
    "a high power": (constants("a: us**10 = 1"), f"1: arithmetic {NOT_UNIT}"),
    "a higher power": (constants("a: us**9*us = 1"), "1: a unit's exponents reach at most 9: use a simpler unit"),
    "one bound": (constants("a: us[1] = 1"), f"1: a subscript {NOT_UNIT}"),
    "three bounds": (constants("a: us[1, 2, 3] = 1"), f"1: a subscript {NOT_UNIT}"),
    "a slice": (constants("a: us[0:1] = 1"), f"1: a subscript {NOT_UNIT}"),
    "bounds in the middle": (constants("a: us[0, 1]/token = 1"), f"1: a subscript {NOT_UNIT}"),
    "swapped bounds": (constants("a: us[5, 0] = 1"), "1: bounds are one pair: give [low, high] with low <= high"),
    "bounds twice": (constants("a: us[0, 1][0, 1] = 1"), "1: bounds are one pair: give [low, high] with low <= high"),
    "a bound by name": (constants("a: us[0, inf] = 1"), "1: a name is not a number: give a plain number"),
    "an infinite bound": (constants("a: us[0, 1e400] = 1"), f"1: {LARGE}"),
    # expressions
    "unknown field": (HEAD + "b.prefil_tokens", "2: unknown field b.prefil_tokens: did you mean b.prefill_tokens?"),
    "unknown static field": (HEAD + "s.layer", "2: unknown field s.layer: did you mean s.layers?"),
    "a field like no other": (HEAD + "b.xyzzy", "2: unknown field b.xyzzy: see `evolve show --fields`"),
    "a dunder": (HEAD + "b.__class__", "2: unknown field b.__class__: see `evolve show --fields`"),
    "a static field of b": (HEAD + "b.layers", "2: unknown field b.layers: did you mean s.layers?"),
    "a field of a field": (HEAD + "b.tokens.real", "2: only fields of b and s can be read here: use one of them"),
    "a field of r": (HEAD + "r.input_len", "2: only fields of b and s can be read here: use one of them"),
    "a field of b in completion_time": (
        HEAD + "1\ndef completion_time(s): return b.tokens",
        "3: only fields of s can be read here: use one of them",
    ),
    "reference step in step_time": (HEAD + "s.reference_step_us", f"2: {REFERENCE}"),
    "reference step in completion_time": (
        HEAD + "1\ndef completion_time(s): return s.reference_step_us",
        f"3: {REFERENCE}",
    ),
    "b itself": (HEAD + "b", "2: b is not a number: read one of its fields"),
    "unknown name": (HEAD + "x", "2: unknown name 'x': assign it first or make it a constant"),
    "a builtin": (HEAD + "__builtins__", "2: unknown name '__builtins__': assign it first or make it a constant"),
    "a ligature": (HEAD + "b.ﬁeld", "2: name 'ﬁeld' is not plain ASCII of at most 64 characters: rename it"),
    "a full-width name": (
        HEAD + "ｍａｘ(1, 2)",
        "2: name 'ｍａｘ' is not plain ASCII of at most 64 characters: rename it",
    ),
    "an accent": (constants("é=1, a=1"), "1: name 'é' is not plain ASCII of at most 64 characters: rename it"),
    "a full-width constant": (constants("ａ=1"), "1: name 'ａ' is not plain ASCII of at most 64 characters: rename it"),
    "a mathematical bold object": (
        HEAD + "𝐛.tokens",
        "2: name '𝐛' is not plain ASCII of at most 64 characters: rename it",
    ),
    "a full-width digit": (HEAD + "１", "2: not valid syntax (invalid character '１' (U+FF11)): fix the text"),
    "unknown function": (HEAD + "foo(1)", f"2: cannot call 'foo': the functions are {FUNCTIONS}"),
    "abs": (HEAD + "abs(-1)", f"2: cannot call 'abs': the functions are {FUNCTIONS}"),
    "eval": (HEAD + "eval('1')", f"2: cannot call 'eval': the functions are {FUNCTIONS}"),
    "a method": (HEAD + "b.tokens.sqrt()", f"2: cannot call an attribute: the functions are {FUNCTIONS}"),
    "a called f-string": (HEAD + 'f"{1!r:\\n}"()', f"2: cannot call an f-string: the functions are {FUNCTIONS}"),
    "no arguments": (HEAD + "sqrt()", "2: sqrt takes 1 argument, got 0: give it that many"),
    "max of one": (HEAD + "max(1)", "2: max takes 2 or more arguments, got 1: give it that many"),
    "max of a hundred": (
        HEAD + "max(" + "1," * 100 + ")",
        "2: max takes 2 or more arguments, got 100: give it that many",
    ),
    "pow of three": (HEAD + "pow(1, 2, 0.5)", "2: pow takes 2 arguments, got 3: give it that many"),
    "a keyword": (HEAD + "max(1, 2, key=1)", "2: max takes plain arguments only: remove keywords and stars"),
    "a star": (HEAD + "max(*b)", "2: max takes plain arguments only: remove keywords and stars"),
    "a star among arguments": (HEAD + "max(1, *b)", "2: max takes plain arguments only: remove keywords and stars"),
    "stars in a call": (HEAD + "max(1, **b)", "2: max takes plain arguments only: remove keywords and stars"),
    "a field as exponent": (HEAD + "pow(2, b.tokens)", f"2: {EXPONENT}"),
    "minus a field as exponent": (HEAD + "pow(2, --b.tokens)", f"2: {EXPONENT}"),
    "True": (HEAD + "True", "2: True is not a number: give a plain number"),
    "None": (HEAD + "None", "2: None is not a number: give a plain number"),
    "...": (HEAD + "...", "2: Ellipsis is not a number: give a plain number"),
    "1j": (HEAD + "1j", "2: 1j is not a number: give a plain number"),
    "a string": (HEAD + "'a\\nb'", "2: 'a\\nb' is not a number: give a plain number"),
    "a long string": (HEAD + repr("x" * 9_000), f"2: '{'x' * 39} is not a number: give a plain number"),
    "bytes": (HEAD + "b'x'", "2: b'x' is not a number: give a plain number"),
    "an f-string": (HEAD + "f'{b.tokens}'", f"2: an f-string is not part of the language: {USE}"),
    "a walrus": (HEAD + "(x := 1)", f"2: a walrus is not part of the language: {USE}"),
    "a walrus in a condition": (
        HEAD + "1 if (x := b.tokens) > 1 else 2",
        f"2: a walrus is not part of the language: {USE}",
    ),
    "a walrus as an argument": (HEAD + "max(1, x := 2)", f"2: a walrus is not part of the language: {USE}"),
    "a lambda": (HEAD + "(lambda: 1)", f"2: a lambda is not part of the language: {USE}"),
    "a called lambda": (HEAD + "(lambda: 1)()", f"2: cannot call a lambda: the functions are {FUNCTIONS}"),
    "a comprehension": (HEAD + "[x for x in b]", f"2: a comprehension is not part of the language: {USE}"),
    "a generator": (HEAD + "max(x for x in b)", "2: max takes 2 or more arguments, got 1: give it that many"),
    "a list": (HEAD + "[1]", f"2: a list is not part of the language: {USE}"),
    "a tuple": (HEAD + "1, 2", f"2: a tuple is not part of the language: {USE}"),
    "a dict": (HEAD + "{}", f"2: a dict is not part of the language: {USE}"),
    "yield": (HEAD + "(yield 1)", f"2: a yield is not part of the language: {USE}"),
    "await": (HEAD + "(await b)", f"2: an await is not part of the language: {USE}"),
    "a root of a negative": (
        HEAD + "(-8)**(1/3)",
        "2: the exponent of pow must be a constant or a number: name it as a constant",
    ),
    "a computed exponent": (HEAD + "pow(-8, 1/3)", f"2: {EXPONENT}"),
    "//": (HEAD + "b.tokens // 2", "2: operator FloorDiv is not part of the language: use + - * /"),
    "%": (HEAD + "b.tokens % 2", "2: operator Mod is not part of the language: use + - * /"),
    "@": (HEAD + "b.tokens @ 2", "2: operator MatMult is not part of the language: use + - * /"),
    "<<": (HEAD + "1 << 2", "2: operator LShift is not part of the language: use + - * /"),
    "~": (HEAD + "~b.tokens", "2: operator Invert is not part of the language: use + - * /"),
    "not as a number": (HEAD + "not b.tokens", "2: operator Not is not part of the language: use + - * /"),
    "and as a number": (HEAD + "b.tokens and 1", f"2: and/or is not part of the language: {USE}"),
    "a comparison as a number": (
        HEAD + "(b.tokens > 1) * 2",
        "2: a comparison is not a number: use it in `x if a < b else y`",
    ),
    "is": (HEAD + "1 if b.tokens is s.tp else 2", "2: one comparison with < <= > >= == != at a time: split it"),
    "in": (HEAD + "1 if b.tokens in s else 2", "2: one comparison with < <= > >= == != at a time: split it"),
    # the dialect
    "dialect, no such constant": (
        dialect("CONSTANTS['x'] + CONSTANTS['a']"),
        "2: CONSTANTS has no 'x': add it with a start value",
    ),
    "dialect, unused constant": (dialect("b['tokens']"), "1: constant 'a' is never used: remove it"),
    "dialect, unused local": (
        "def predict_step_time(b):\n  x = 1\n  return 2",
        "1: step_time: 'x' is never used: remove it",
    ),
    "dialect, unknown field": (
        dialect("b['prefil_tokens']"),
        "2: unknown field b.prefil_tokens: did you mean b.prefill_tokens?",
    ),
    "dialect, a strange field": (
        dialect("b['a\\nb']"),
        "2: a subscript of something else: use b['field'], r['input_len'] or CONSTANTS['name']",
    ),
    "dialect, a computed name": (
        dialect("b[CONSTANTS['a']]"),
        "2: a subscript of something else: use b['field'], r['input_len'] or CONSTANTS['name']",
    ),
    "dialect, reference step": (dialect("b['reference_step_us']"), f"2: {REFERENCE}"),
    "dialect, a keyword": (dialect("CONSTANTS['if']", "{'if': 1}"), f"1: {IDENTIFIER}"),
    "dialect, an accent": (dialect("CONSTANTS['é']", "{'é': 1}"), f"1: {IDENTIFIER}"),
    "dialect, a number as a name": (dialect("CONSTANTS[1]", "{1: 1}"), f"1: {IDENTIFIER}"),
    "dialect, unpacked": (dialect("1", "{**a}"), f"1: {IDENTIFIER}"),
    "dialect, twice": (dialect("CONSTANTS['a']", "{'a': 1, 'a': 2}"), "1: the name 'a' is taken: rename the constant"),
    "dialect, a name that is taken": (
        dialect("CONSTANTS['b']", "{'b': 1}"),
        "1: the name 'b' is taken: rename the constant",
    ),
    "dialect, not a number": (dialect("CONSTANTS['a']", "{'a': 'x'}"), "1: 'x' is not a number: give a plain number"),
    "dialect, CONSTANTS assigned": (
        "def predict_step_time(b):\n  CONSTANTS = b['tp']\n  return CONSTANTS",
        "2: the name 'CONSTANTS' is taken: assign to a fresh one",
    ),
    "dialect, a default": (
        "def predict_step_time(b=1): return 1",
        "1: step_time takes (b, s, *, constants...): write its head like that",
    ),
    "dialect, star-args": (
        "def predict_step_time(*b): return 1",
        "1: step_time takes (b, s, *, constants...): write its head like that",
    ),
    "dialect, a decorator": (
        "@print(1)\ndef predict_step_time(b): return 1",
        "2: decorators, return annotations and type parameters are not part of the language: remove them",
    ),
    "dialect, a look-alike field": (
        dialect("b['ﬁeld']"),
        "2: a subscript of something else: use b['field'], r['input_len'] or CONSTANTS['name']",
    ),
    "dialect, both": (dialect("CONSTANTS['a']") + "\n" + HEAD + "1", "3: step_time is defined twice: keep one"),
    "dialect, an import": (
        "import os\ndef predict_step_time(b): return 1",
        "1: only functions are allowed here, not an import: remove it",
    ),
    "dialect, functions twice": (
        dialect("CONSTANTS['a']") + "\ndef predict_step_time(b): return 1",
        "3: step_time is defined twice: keep one",
    ),
    "dialect, no step_time": (
        "def predict_queueing_time(r): return r['input_len']",
        "1: no step_time: define `def step_time(b, s, *, ...): return ...`",
    ),
}
