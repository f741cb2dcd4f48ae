"""Plain genetic programming with deap: generations of typed trees, tournaments on the joint error, nothing else.

A tree is a step time (see `primitives.py`); the delay before the queue has the shared form of seeds/floor.py, fitted
too. Those of the shipped programs that the primitives can spell are in the first population, beside random trees (half
grown, half full). Settings as in Koza 1992 where the budget allows: tournaments of 3, one-point crossover of most,
uniform mutation of some, a static limit on height, and one on size from the configuration's caps.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

from deap import algorithms, base, gp, tools

from archive.population import Population
from archive.proposal import Outcome, Proposal
from evolve.run.config import Config
from evolve.run.program import seed_texts
from evolve.study.engines.bench import Bench, GlobalRandom, numbered
from evolve.study.engines.primitives import Language, language
from evolve.study.engines.trees import expression, tree_of
from simulator.language.complete import complete
from simulator.language.ir import Function, Program
from simulator.language.key import key
from simulator.language.measure import operations
from simulator.language.parse import parse
from simulator.language.unparse import unparse

POPULATION, GENERATIONS = 50, 5  # at most; the budget shall suffice for some generations
CROSSED, MUTATED = 0.8, 0.2
HEIGHT = 8
TOURNAMENT = 3


class Genetic:
    """Generations without end: the budget stops them. What is rejected is the least fit."""

    def __init__(self, bench: Bench) -> None:
        self._bench, self._random = bench, GlobalRandom(bench.config.seed)
        self._language = language(bench.words)
        self._toolbox = _toolbox(bench.config, self._language)
        self._joint: dict[str, float] = {}  # of every form that was scored, percent
        self._trees: list[Any] = []
        self._asked: list[tuple[Any, str]] = []  # the trees of the last generation, with their texts

    def ask(self, population: Population, generation: int) -> list[Proposal]:
        if self._bench.ended(population):
            return []
        with self._random:
            self._trees = self._next() if self._trees else self._first()
        self._asked = [(tree, text_of(tree, self._language)) for tree in self._trees if not tree.fitness.valid]
        return numbered(population, "gp", [text for _, text in self._asked])

    def tell(self, outcomes: Sequence[tuple[Outcome, bool]]) -> None:
        self._joint |= {outcome.key: outcome.elite.joint for outcome, _ in outcomes if outcome.elite}
        for tree, text in self._asked:
            tree.fitness.values = (self._joint.get(key(complete(parse(text))), float("inf")),)
        self._asked = []

    def _first(self) -> list[Any]:
        """The seeds that the primitives can spell, and random trees."""
        nodes = [tree_of(step, self._language) for p in self._bench.seeds() if (step := p.function("step_time"))]
        trees = [self._toolbox.tree(n) for n in nodes if n is not None]
        size = max(8, min(POPULATION, self._bench.config.budget // GENERATIONS))
        return trees + [self._toolbox.grown() for _ in range(size - len(trees))]

    def _next(self) -> list[Any]:
        """Children of the last generation; again until one of them is to be scored."""
        trees = self._trees
        while all(tree.fitness.valid for tree in trees):
            parents = self._toolbox.select(trees, len(trees))
            trees = algorithms.varAnd(parents, self._toolbox, CROSSED, MUTATED)
        return trees


def text_of(tree: Sequence[Any], known: Language) -> str:
    """The program of a tree, as text."""
    expr, constants = expression(tree, known)
    return unparse(Program((Function("step_time", constants, (), expr), _queueing())))


def _queueing() -> Function:
    text = next(text for name, text in seed_texts() if name == "floor")
    shared = parse(text, "floor").function("queueing_time")
    assert shared is not None
    return shared


def _toolbox(config: Config, known: Language) -> Any:

    class Fitness(base.Fitness):  # type: ignore[misc]
        weights = (-1.0,)

    class Tree(gp.PrimitiveTree):  # type: ignore[misc]
        def __init__(self, content: Sequence[Any]) -> None:
            super().__init__(content)
            self.fitness = Fitness()

    toolbox = base.Toolbox()
    toolbox.register("tree", Tree)
    toolbox.register("grown", lambda: Tree(gp.genHalfAndHalf(known.pset, 1, 4)))
    toolbox.register("select", tools.selTournament, tournsize=TOURNAMENT)
    toolbox.register("mate", gp.cxOnePoint)
    toolbox.register("mutate", gp.mutUniform, expr=partial(gp.genHalfAndHalf, min_=0, max_=2), pset=known.pset)
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
