"""Which terms earned their place in a search: what adding each brought, over the outcomes of all proposers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache
from statistics import median

from archive.elite import Elite
from evaluator.diagnose.tables import Listing
from evaluator.parts import terms
from evolve.output.table import number
from simulator.language.ir import Expr, Field, walk
from simulator.language.parse import parse

LEAST = 0.005  # points by which a term must lower the error
NOTHING = "a constant"

Term = tuple[str, str]  # a method, and the fields that the term reads


def worth(elites: Mapping[int, Elite]) -> tuple[Listing, ...]:
    """The terms that lowered the leave-group-out error most when added, and those that never did, the most tried first.

    Counted are programs that have one term more than their first parent and lack none of its.
    """
    changes: dict[Term, list[float]] = defaultdict(list)
    for elite in elites.values():
        parent = elites.get(elite.parents[0]) if elite.parents else None
        if parent is None or elite.group_out is None or parent.group_out is None:
            continue
        own, before = _terms(elite.text), _terms(parent.text)
        added = own - before
        if len(added) == 1 and before < own:
            changes[next(iter(added))].append(elite.group_out - parent.group_out)
    best = sorted((t for t in changes if min(changes[t]) < -LEAST), key=lambda t: (min(changes[t]), t))
    worst = sorted((t for t in changes if t not in best), key=lambda t: (-len(changes[t]), t))
    heads = (
        "Terms that a program has more than its parent, by fields, and the change of the group-out error\n"
        "term that earned its place | tried | best | median",
        "term that never did, the most tried first | tried | best | median",
    )
    found = (
        Listing(heading, tuple(_line(t, changes[t]) for t in few), share=2.0)
        for heading, few in zip(heads, (best, worst), strict=True)
    )
    return tuple(listing for listing in found if listing.lines)


def _line(term: Term, changes: list[float]) -> str:
    return f"{term[0]}: {term[1]} | {len(changes)} | {number(min(changes), 2)} | {number(median(changes), 2)}"


@lru_cache(maxsize=8192)
def _terms(text: str) -> frozenset[Term]:
    """The additive terms of a program, by method and fields."""
    return frozenset((f.name, _fields(node)) for f in parse(text).functions for node in terms(f).values())


def _fields(term: Expr) -> str:
    names = {f"{node.scope}.{node.name}" for node in walk(term) if isinstance(node, Field)}
    return " * ".join(sorted(names)) or NOTHING
