"""What a run finds out about an idea: the terms that it changes, and what runs left out of the fit say about these."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from archive.elite import Elite
from archive.proposal import Outcome
from archive.score import CellErrors
from evaluator.statistics import LEVEL, paired
from simulator.common.text import listed, plain
from simulator.language.complete import complete
from simulator.language.ir import Call, Choose, Const, Expr, Field, Neg, Op, Program, rebuild, walk
from simulator.language.key import key
from simulator.language.measure import features
from simulator.language.terms import all_terms, basis_of, draft, product
from simulator.language.unparse import spell

HOLDS, WORSE, OPEN, BEATEN, UNMEASURED = "holds", "does not hold", "not proven", "below a seed", "not measured"
INCONSISTENT, GONE, SEEN = "not consistent", "dropped by the fit", "not on hidden cells"
SETTLED = (HOLDS, WORSE)  # verdicts that a later idea must not contradict
LONGEST_CHANGE = 400  # characters of a change in words
MOST_PRECEDENTS = 3  # named programs that have a term
C = Const("c")  # stands for any constant


@dataclass(frozen=True, slots=True)
class Change:
    """The terms of a program that another one has not, and the reverse: `method: factors`, without constants.

    fields: those of these terms, and those that only one of both programs reads. Without a changed term the terms are
    only put together otherwise.
    """

    added: tuple[str, ...]
    dropped: tuple[str, ...]
    fields: frozenset[str]

    @property
    def text(self) -> str:
        parts = [f"adds {', '.join(f'`{term}`' for term in self.added)}"] if self.added else []
        parts += [f"drops {', '.join(f'`{term}`' for term in self.dropped)}"] if self.dropped else []
        return plain("; ".join(parts), LONGEST_CHANGE) or "puts the same terms together otherwise"


def change(before: Program, after: Program) -> Change:
    """The change from one program to another. A method that `after` does not write is the host's own."""
    ours, theirs = _terms(complete(after)), _terms(complete(before))
    for method in {f.name for f in before.functions} - {f.name for f in after.functions}:
        hosts = {term for term in ours if term.startswith(f"{method}:")}
        if hosts.issuperset(term for term in theirs if term.startswith(f"{method}:")):  # less what a fit dropped
            ours = {term: names for term, names in ours.items() if term not in hosts}
            theirs = {term: names for term, names in theirs.items() if term not in hosts}
    added, dropped = ([t for t in a if t not in b] for a, b in ((ours, theirs), (theirs, ours)))
    touched = {name for term in added for name in ours[term]} | {name for term in dropped for name in theirs[term]}
    read = set(features(before)) ^ set(features(after))
    return Change(tuple(added), tuple(dropped), frozenset(touched | read))


def terms_of(program: Program) -> frozenset[str]:
    """The terms of a program, `method: factors`."""
    return frozenset(_terms(complete(program)))


def _terms(program: Program) -> dict[str, set[str]]:
    """The terms of all sums, and the fields of each; max, min and conditionals count by the terms inside them."""
    found = dict[str, set[str]]()
    for function in program.functions:
        for inside in (part for _, term in all_terms(draft(function).expr) for part in _parts(term)):
            if not isinstance(inside, Choose) and not (isinstance(inside, Call) and inside.name in ("max", "min")):
                factors = sorted((rebuild(factor, _nameless) for factor in basis_of(inside)), key=spell)
                text = spell(product(factors)) if factors else "a constant"
                names = {f"{n.scope}.{n.name}" for n in walk(inside) if isinstance(n, Field)}
                found[f"{function.name}: {text}"] = names
            elif isinstance(inside, Choose):
                names = {f"{n.scope}.{n.name}" for n in walk(inside.condition) if isinstance(n, Field)}
                sides = " ? ".join(
                    spell(rebuild(e, _nameless)) for e in (inside.condition.left, inside.condition.right)
                )
                found[f"{function.name}: if {sides}"] = names
    return found


def _parts(term: Expr) -> list[Expr]:
    """The terms of a sum that is a term, as of a named part; without signs."""
    match term:
        case Neg(value):
            return _parts(value)
        case Op(op, left, right) if op in "+-":
            return [*_parts(left), *_parts(right)]
    return [term]


def _nameless(node: Expr) -> Expr:
    return C if isinstance(node, Const) else node


# what runs left out of the fit say


@dataclass(frozen=True, slots=True)
class Finding:
    """What runs left out of the fit say about an idea, compared with the program that it changed.

    difference_pct: of the leave-group-out errors, in points, paired by cell; interval_95 of it, by Student's t over so
    many `cells`. None if one of both was not measured. change: of the program as fitted. hidden_pct:
    the difference on the cells that no question showed, None without such. verdict: one of those above.
    """

    idea: int
    title: str
    change: Change
    difference_pct: float | None
    interval_95: tuple[float, float] | None
    cells: int
    verdict: str
    hidden_pct: float | None = None

    @property
    def figures(self) -> str:
        """The difference with its interval, in points."""
        return difference(self.difference_pct, self.interval_95)

    @property
    def hidden(self) -> str:
        """The difference on hidden cells, in points."""
        return "-" if self.hidden_pct is None else f"{self.hidden_pct:+.2f}"

    @property
    def _also(self) -> str:
        return "" if self.hidden_pct is None else f", and on the cells that no question showed ({self.hidden})"

    @property
    def conclusion(self) -> str:
        """The verdict in one sentence."""
        over = f"{self.figures} points over {self.cells} cells, 95 %"
        return {
            HOLDS: f"Accepted: it holds on groups left out of the fit, {over}{self._also}.",
            WORSE: f"Not accepted: on groups left out of the fit it errs more, {over}.",
            OPEN: f"Not accepted: on groups left out of the fit the difference is not proven, {over}.",
            BEATEN: f"Not accepted: better than what it changed, {over}, but a fitted seed program is better.",
            INCONSISTENT: "Not accepted: it is not consistent with datasheets or measured kernels.",
            SEEN: f"Not accepted: better, {over}, but not on the cells that no question showed ({self.hidden}).",
            GONE: "Not accepted: the fit left nothing of its change.",
            UNMEASURED: "Not accepted: its error in sample is too large to measure the error on groups left out.",
        }[self.verdict]

    @property
    def line(self) -> str:
        """The finding in a line, for models."""
        return f"idea {self.idea} {self.verdict}, {self.figures}: {self.change.text}"


def difference(points: float | None, interval: tuple[float, float] | None) -> str:
    """A difference with its interval.

    >>> difference(-0.5, (-0.8, -0.2)), difference(None, None)
    ('-0.50 (-0.80 to -0.20)', '-')
    """
    return "-" if points is None or interval is None else f"{points:+.2f} ({interval[0]:+.2f} to {interval[1]:+.2f})"


def finding(
    outcome: Outcome, base: Elite, title: str, seed: Elite | None, hidden: Collection[str] = frozenset()
) -> Finding:
    """The finding about a scored idea that changed program `base`; `seed`: the best fitted seed program; `hidden`: the
    cells that no question showed."""
    elite = outcome.elite
    assert elite
    points, interval, cells = paired(CellErrors(elite.cells), CellErrors(base.cells))
    unseen = CellErrors(tuple(cell for cell in elite.cells if cell[0] in hidden))
    hidden_pct = unseen.above(CellErrors(base.cells))[0] if unseen.cells and base.cells else None
    if not elite.consistent:
        verdict = INCONSISTENT
    elif key(elite.program) == key(base.program):
        verdict = GONE
    elif interval is None:
        verdict = UNMEASURED
    elif interval[1] < 0.0 and seed and elite.charged_group_out > seed.charged_group_out:
        verdict = BEATEN
    elif interval[1] < 0.0:
        verdict = HOLDS if hidden_pct is None or hidden_pct < 0.0 else SEEN
    else:
        verdict = WORSE if interval[0] > 0.0 else OPEN
    return Finding(elite.id, title, change(base.program, elite.program), points, interval, cells, verdict, hidden_pct)


def contradicted(new: Change, findings: Iterable[Finding]) -> Finding | None:
    """The settled finding that a change contradicts: it repeats what does not hold, or undoes what holds."""
    added, dropped = set(new.added), set(new.dropped)
    for known in findings:
        plus, minus = set(known.change.added), set(known.change.dropped)
        if not plus | minus:
            continue
        if known.verdict == WORSE and plus <= added and minus <= dropped:
            return known
        if known.verdict == HOLDS and plus <= dropped and minus <= added:
            return known
    return None


# novelty


def precedents(made: Change, known: Mapping[str, frozenset[str]]) -> str:
    """Which known programs have the terms that a change adds, in a sentence. known: the terms of each, by name."""
    if not made.added:
        return "No new term."
    lines = []
    for term in made.added:
        names = [name for name, terms in known.items() if term in terms]
        lines.append(f"`{term}`: {f'also in {listed(names, MOST_PRECEDENTS)}' if names else 'in no known program'}")
    return f"New terms: {'; '.join(lines)}."


def by_chance(findings: Iterable[Finding]) -> str:
    """How many findings would hold by chance alone, in a sentence; "" without any measured."""
    tried = sum(f.interval_95 is not None for f in findings)
    expected = tried * (1.0 - LEVEL) / 2.0
    return (
        f"By chance {expected:.2g} of {tried} would hold: intervals are not corrected for many ideas." if tried else ""
    )
