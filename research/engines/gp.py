"""Plain genetic programming with deap: generations of typed trees and tournaments on the mean error.

A tree is a step_time (see `primitives.py`). All programs share the queueing_time of seeds/floor.py, whose constants are
fitted too. The first population has the shipped programs that the primitives can express, and random trees (half grown,
half full). Settings follow Koza 1992 as far as the budget allows: tournaments of 3, one-point crossover of most
children, uniform mutation of some, and static limits on height and, from the configuration's caps, on size.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

from deap import algorithms, base, gp, tools

from archive.population import Offered, Population
from archive.proposal import DUPLICATE, Outcome, Proposal
from evolve.run.config import Config
from evolve.run.program import seed_texts
from research.engines.bench import Bench, GlobalRandom, numbered
from research.engines.primitives import Language, language
from research.engines.trees import expression, tree_of
from simulator.language.complete import complete
from simulator.language.ir import Function, Program
from simulator.language.key import key
from simulator.language.measure import operations
from simulator.language.parse import parse
from simulator.language.unparse import unparse

POPULATION, GENERATIONS = 50, 5  # most trees; least generations, for which a small budget has fewer trees
CROSSED, MUTATED = 0.8, 0.2
HEIGHT = 8
TOURNAMENT = 3


class Genetic:
    """Generations until the budget ends. Rejected programs are the least fit."""

    def __init__(self, bench: Bench) -> None:
        self._bench, self._random = bench, GlobalRandom(bench.config.seed)
        self._language = language(bench.words)
        self._toolbox = _toolbox(bench.config, self._language)
        self._mean_errors: dict[str, float] = {}  # of every form that was scored, percent
        self._trees: list[Any] = []
        self._asked: list[Any] = []  # the trees of the last generation that were not scored before

    def ask(self, population: Population, generation: int) -> list[Proposal]:
        left = self._bench.left(population)
        if not left:
            return []
        with self._random:
            self._trees = self._next() if self._trees else self._first()
        # deap's limits on height and size may put one tree into two places
        new = {id(tree): tree for tree in self._trees if not tree.fitness.valid}
        self._asked = list(new.values())[:left]
        return numbered(population, "gp", [text_of(tree, self._language) for tree in self._asked])

    def tell(self, outcomes: Sequence[Offered]) -> None:
        self._mean_errors |= {outcome.key: outcome.elite.mean_error for outcome, *_ in outcomes if outcome.elite}
        # The lengths differ for the seed programs, which have no trees, and when the budget ends within a generation.
        for tree, (outcome, *_) in zip(self._asked, outcomes, strict=False):
            tree.fitness.values = (self._mean_error_of(outcome),)

    def _mean_error_of(self, outcome: Outcome) -> float:
        """The mean error of a program; for a form that was proposed before, its mean error then."""
        if outcome.rejection and outcome.rejection.stage == DUPLICATE:
            return self._mean_errors.get(key(complete(outcome.proposal.program)), float("inf"))
        return outcome.elite.mean_error if outcome.elite else float("inf")

    def _first(self) -> list[Any]:
        """The seed programs that the primitives can express, and random trees."""
        nodes = [tree_of(step, self._language) for p in self._bench.seeds() if (step := p.function("step_time"))]
        trees = [self._toolbox.tree(n) for n in nodes if n is not None]
        size = max(8, min(POPULATION, self._bench.config.budget // GENERATIONS))
        return trees + [self._toolbox.grown() for _ in range(size - len(trees))]

    def _next(self) -> list[Any]:
        """Children of the last generation; if all of them were scored before, their children, and so on."""
        trees = self._trees
        while all(tree.fitness.valid for tree in trees):
            parents = self._toolbox.select(trees, len(trees))
            trees = algorithms.varAnd(parents, self._toolbox, CROSSED, MUTATED)
        return trees


def text_of(tree: Sequence[Any], language: Language) -> str:
    expr, constants = expression(tree, language)
    return unparse(Program((Function("step_time", constants, (), expr), _queueing())))


def _queueing() -> Function:
    text = next(text for name, text in seed_texts() if name == "floor")
    shared = parse(text, "floor").function("queueing_time")
    assert shared is not None
    return shared


def _toolbox(config: Config, language: Language) -> Any:

    class Fitness(base.Fitness):  # type: ignore[misc]
        weights = (-1.0,)

    class Tree(gp.PrimitiveTree):  # type: ignore[misc]
        def __init__(self, content: Sequence[Any]) -> None:
            super().__init__(content)
            self.fitness = Fitness()

    toolbox = base.Toolbox()
    toolbox.register("tree", Tree)
    toolbox.register("grown", lambda: Tree(gp.genHalfAndHalf(language.pset, 1, 4)))
    toolbox.register("select", tools.selTournament, tournsize=TOURNAMENT)
    toolbox.register("mate", gp.cxOnePoint)
    toolbox.register("mutate", gp.mutUniform, expr=partial(gp.genHalfAndHalf, min_=0, max_=2), pset=language.pset)
    rest = complete(Program((_queueing(),)))
    caps = config.caps
    limits = (
        (operator.attrgetter("height"), HEIGHT),
        (lambda tree: sum(node.arity > 0 for node in tree), caps.operations - operations(rest)),
    )
    for name in ("mate", "mutate"):
        for measure, most in limits:
            toolbox.decorate(name, gp.staticLimit(measure, most))
    return toolbox
