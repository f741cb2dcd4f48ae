"""Restrictions on offline proposals: forms that the data at hand would reward but that do not hold elsewhere.

- A step is at most linear in the contexts of its requests, because attention reads every token of a context once.
  Replays can then also remember steps as lines.
- No sum repeats a term with another constant, because no data can tell the two constants apart.
- If kernels are measured, a method is the sum of the kernels and of corrections (see `corrects`).

A user's programs and those of language models may be of any form.
"""

from __future__ import annotations

from functools import cache

from evolve.search.vocabulary import EAGER, SIZES, SUMMED_KERNELS, SWITCHES
from simulator.language.ir import Call, Choose, Const, Expr, Field, Function, Neg, Op, rebuild, walk
from simulator.language.normal import reachable, unexpanded
from simulator.language.opcodes import CONTEXT, formula
from simulator.language.terms import get, sites, summands
from simulator.schema import KERNELS, READABLE

_SIZES = frozenset(f"s.{name}" for name in SIZES)
_SWITCHES = frozenset(f"s.{name}" for name in SWITCHES)
_EAGER = frozenset((f"b.{name}", "b.uncaptured") for name in EAGER)
_SUMMED_KERNELS = frozenset(f"b.{name}" for name in SUMMED_KERNELS)


def context_degree(expr: Expr) -> int:
    """The degree of an expression as a polynomial in the contexts of the requests; 2 if it is not a polynomial."""
    match expr:
        case Field("b", name):
            return 2 if name == "kv_var" else int(_grows_with_contexts(name))
        case Neg(value):
            return context_degree(value)
        case Op("*", left, right):
            return context_degree(left) + context_degree(right)
        case Op("/", left, right):
            return 2 if context_degree(right) else context_degree(left)
        case Op(_, left, right):
            return max(context_degree(left), context_degree(right))
        case Call("max" | "min", args):
            return max(map(context_degree, args))
        case Call(_, args):
            return 2 * max(map(context_degree, args))
        case Choose(_, then, other):
            return max(context_degree(then), context_degree(other))
    return 0


@cache
def _grows_with_contexts(name: str) -> bool:
    """True if a batch field grows with the tokens in the contexts of the running requests, as its formula says."""
    field = READABLE["b", name]
    if not (field.at or field.formula):
        return name in CONTEXT
    return any(n.scope == "b" and _grows_with_contexts(n.name) for n in walk(formula(name)) if isinstance(n, Field))


def repeats_a_term(expr: Expr) -> bool:
    """True if a sum has two terms that differ only in their constants."""
    blank = rebuild(expr, lambda n: Const("?") if isinstance(n, Const) else n)
    sums = [[term for _, term in summands(get(blank, site))] for site in sites(blank)]
    return any(len(set(terms)) < len(terms) for terms in sums)


def corrects(function: Function) -> bool:
    """True if a method is a sum of measured kernels and of corrections.

    A correction multiplies at most one count of the batch, one size of the model, and its switches. Products of several
    counts or sizes, floors, roots and logarithms fit the measured models only: a few models cannot tell them apart.

    Either every kernel is in the sum, once in every step, or none is: the runs at hand may not need a kernel that other
    models do. Kernels with many launches may be added again for steps without a captured graph.
    """
    normal, root = unexpanded(function)
    kernels: set[tuple[str, ...]] = set()
    if any(normal.atoms[i].kind not in ("const", "field") for i in reachable(normal, root)):
        return False
    for powers, _ in root:
        factors = [(normal.atoms[i].name, power) for i, power in powers if normal.atoms[i].kind == "field"]
        fields = [name for name, _ in factors]
        if any(power != 1 for _, power in factors):
            return False
        if any(name[2:] in KERNELS for name in fields):
            kernel = tuple(sorted(fields))
            if kernel in kernels or (len(kernel) > 1 and kernel not in _EAGER):
                return False
            kernels.add(kernel)
            continue
        counts = [name for name in fields if name not in _SIZES | _SWITCHES]
        if len(counts) > 1 or "b.uncaptured" in counts or sum(name in _SIZES for name in fields) > 1:
            return False
        if function.name == "queueing_time" and len(fields) > 1:
            return False
    return not kernels or {kernel[0] for kernel in kernels if len(kernel) == 1} >= _SUMMED_KERNELS
