"""The key of a program's form: programs with one key could be made equal by fitting their constants.

Each method is brought to its normal form, with derived fields written out. Constants lose name and value and are
labelled by the places where they occur, so that one constant used twice differs from two used once. A constant that
occurs in one place only absorbs the constants and numbers of one sign that multiply it or are added to it there. Where
`b.trees` is read, programs with different ensembles differ.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from simulator.language.ir import Expr, Field, Function, Guard, Let, Number, Program, rebuild
from simulator.language.normal import Atom, Monomial, Normal, Polynomial, reachable, unexpanded
from simulator.language.opcodes import feature, formula

# Formulas of batch fields in earlier releases, by which they are written out: recorded keys stay valid.
EARLIER = {"uncaptured": "min(max(b.tokens - min(2 * s.max_num_seqs, 512), 0), 1)"}

DRAFTS = Field("s", "draft_tokens")


def key(program: Program) -> str:
    """16 hexadecimal digits, equal for programs of the same form."""
    forms = [f"{f.name}:{_form(f)}" for f in program.functions]
    if program.forest and program.reads_trees:
        forms.append(f"trees:{program.forest.digest}")
    return _digest(";".join(forms))[:16]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _form(function: Function) -> str:
    return _form_of(function.body, function.result)  # names and values change nothing


@lru_cache(maxsize=4096)  # most proposals change one method, and many are made more than once
def _form_of(body: tuple[Let | Guard, ...], result: Expr) -> str:
    function = Function("", (), body, result)
    normal = Normal(values=_absorbed(function), written=_written)
    root = normal.function(function)
    needed = reachable(normal, root)
    free = {name for _, names in _free(normal, needed, root) for name in names}
    named = {name: "?" for i in needed if (name := normal.atoms[i].name) and normal.atoms[i].kind == "const"}
    places = {name: _digest(_text(normal, needed, root, named | {name: "!"}, free)) for name in named}
    return _text(normal, needed, root, places, free)


def _written(name: str) -> Expr:
    """The formula of a batch field as earlier releases had it, which knew no drafts."""
    if name in EARLIER:
        return feature(EARLIER[name])
    return rebuild(formula(name), lambda node: Number(0.0) if node == DRAFTS else node)


def _absorbed(function: Function) -> dict[str | tuple[str, str], float]:
    """Constants that another one makes superfluous, each with the number that leaves its part to the other.

    That is 0 for a constant that is added to the other and 1 for one that multiplies it. The other one occurs nowhere
    else in the method.
    """
    normal, root = unexpanded(function)
    values: dict[str | tuple[str, str], float] = {}
    for terms, _ in _free(normal, reachable(normal, root), root):
        # The order must not depend on that of operands: a coefficient may scale the sum that its term is part of.
        first, *others = (_constants(normal, m) for m, _ in sorted(terms, key=lambda t: (len(t[0]), abs(t[1]))))
        values |= {name: 0.0 for names in others for name in names if name not in first}
        values |= dict.fromkeys(first[1:], 1.0)
    return values


def _polynomials(normal: Normal, needed: Iterable[int], root: Polynomial) -> list[Polynomial]:
    return [root, *(arg for i in needed for arg in normal.atoms[i].args)]


def _constants(normal: Normal, m: Monomial) -> list[str]:
    return [normal.atoms[i].name for i, _ in m if normal.atoms[i].kind == "const"]


def _free(normal: Normal, needed: list[int], root: Polynomial) -> list[tuple[Polynomial, set[str]]]:
    """Groups of like terms, with their constants, whose coefficient may be any number of one sign.

    That is so where none of the constants occurs anywhere else.
    """
    everything = _polynomials(normal, needed, root)
    uses = Counter(name for p in everything for m, _ in p for name in _constants(normal, m))
    free = []
    for p in everything:
        groups: dict[Monomial, list[tuple[Monomial, float]]] = {}
        for m, c in p:
            groups.setdefault(_basis(normal, m), []).append((m, c))
        for group in groups.values():
            names = [name for m, _ in group for name in _constants(normal, m)]
            alone = all(uses[name] == n for name, n in Counter(names).items())
            signs = {c > 0.0 for _, c in group}
            if alone and len(signs) == 1 and all(_plain(normal, m) for m, _ in group):
                free.append((tuple(group), set(names)))
    return free


def _plain(normal: Normal, m: Monomial) -> bool:
    """True if the term has constants as factors, each with power 1."""
    powers = [power for i, power in m if normal.atoms[i].kind == "const"]
    return bool(powers) and all(power == 1 for power in powers)


def _basis(normal: Normal, m: Monomial) -> Monomial:
    return tuple((i, power) for i, power in m if normal.atoms[i].kind != "const")


def _text(normal: Normal, needed: Iterable[int], root: Polynomial, labels: Mapping[str, str], free: set[str]) -> str:
    """The polynomial as text in canonical order, with `labels` for its constants."""
    texts: dict[int, str] = {}

    def polynomial(p: Polynomial, sign: float = 1.0) -> str:
        return "+".join(sorted(term(m, sign * c) for m, c in p)) or "0"

    def term(m: Monomial, c: float) -> str:
        names = _constants(normal, m)
        one = bool(names) and free.issuperset(names)
        factors = [labels[names[0]] if c > 0.0 else f"-{labels[names[0]]}"] if one else [f"{c:.12g}"]
        rest = _basis(normal, m) if one else m
        return "*".join([*factors, *sorted(texts[i] if power == 1 else f"{texts[i]}^{power}" for i, power in rest)])

    for i in needed:  # operands first
        atom = normal.atoms[i]
        texts[i] = _short(labels[atom.name] if atom.kind == "const" else _atom(atom, polynomial))
    return polynomial(root)


def _atom(atom: Atom, polynomial: Callable[..., str]) -> str:
    if atom.kind == "field":
        return atom.name
    args = [polynomial(arg) for arg in atom.args]
    if atom.kind == "zero":  # of a difference either way round
        args[0] = min(args[0], polynomial(atom.args[0], -1.0))
    elif atom.kind in ("max", "min", "product"):
        args.sort()
    return f"{atom.kind}({','.join(args)})"


def _short(text: str) -> str:
    """The text, or a digest of a long one, so that values used many times do not make it grow exponentially."""
    return text if len(text) <= 64 else _digest(text)
