"""The identity of a program's form: two programs with one key differ in nothing that a fit of their constants could not
make equal.

Each method is brought to its normal form, with derived fields written out; constants are blanked, and called after the
places where they stand, so that one used twice is not two used once. A constant that has one place to itself takes in
whatever constants and numbers of one sign multiply it or are added to it there.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from simulator.language.ir import Function, Program
from simulator.language.normal import Atom, Monomial, Normal, Polynomial, reachable


def key(program: Program) -> str:
    """16 hex digits, equal for programs of one form."""
    return _digest(";".join(f"{f.name}:{_form(f)}" for f in program.functions))[:16]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _form(function: Function) -> str:
    normal = Normal(values=_absorbed(function))
    root = normal.function(function)
    needed = reachable(normal, root)
    free = {name for _, names in _free(normal, needed, root) for name in names}
    named = {name: "?" for i in needed if (name := normal.atoms[i].name) and normal.atoms[i].kind == "const"}
    places = {name: _digest(_text(normal, needed, root, named | {name: "!"}, free)) for name in named}
    return _text(normal, needed, root, places, free)


def _absorbed(function: Function) -> dict[str | tuple[str, str], float]:
    """Constants that another one, which nothing else in the method depends on, makes superfluous: with the number
    that leaves it to that other one (0 where they are added, 1 where they multiply)."""
    normal = Normal(expand=False)
    root = normal.function(function)
    out: dict[str | tuple[str, str], float] = {}
    for monomials, _ in _free(normal, reachable(normal, root), root):
        first, *others = sorted((_constants(normal, m) for m in monomials), key=len)
        out |= {name: 0.0 for names in others for name in names if name not in first}
        out |= dict.fromkeys(first[1:], 1.0)
    return out


def _polynomials(normal: Normal, needed: Iterable[int], root: Polynomial) -> list[Polynomial]:
    return [root, *(arg for i in needed for arg in normal.atoms[i].args)]


def _constants(normal: Normal, m: Monomial) -> list[str]:
    return [normal.atoms[i].name for i, _ in m if normal.atoms[i].kind == "const"]


def _free(normal: Normal, needed: list[int], root: Polynomial) -> list[tuple[list[Monomial], set[str]]]:
    """Groups of like terms whose coefficient is any number of one sign, because its constants stand nowhere else."""
    everything = _polynomials(normal, needed, root)
    uses = Counter(name for p in everything for m, _ in p for name in _constants(normal, m))
    found = []
    for p in everything:
        groups: dict[Monomial, list[tuple[Monomial, float]]] = {}
        for m, c in p:
            groups.setdefault(_basis(normal, m), []).append((m, c))
        for group in groups.values():
            names = [name for m, _ in group for name in _constants(normal, m)]
            alone = all(uses[name] == n for name, n in Counter(names).items())
            signs = {c > 0.0 for _, c in group}
            if alone and len(signs) == 1 and all(_plain(normal, m) for m, _ in group):
                found.append(([m for m, _ in group], set(names)))
    return found


def _plain(normal: Normal, m: Monomial) -> bool:
    """Whether the term is a multiple of constants, none of them divided by or squared."""
    powers = [power for i, power in m if normal.atoms[i].kind == "const"]
    return bool(powers) and all(power == 1 for power in powers)


def _basis(normal: Normal, m: Monomial) -> Monomial:
    return tuple((i, power) for i, power in m if normal.atoms[i].kind != "const")


def _text(normal: Normal, needed: Iterable[int], root: Polynomial, labels: Mapping[str, str], free: set[str]) -> str:
    """The polynomial in canonical order, with its constants called as `labels` says."""
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
    """Digests keep a value used many times from unfolding into an exponential text."""
    return text if len(text) <= 64 else _digest(text)
