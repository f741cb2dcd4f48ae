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

from evolve.run.program import seed_texts
from evolve.study.engines.judge import Judge
from evolve.study.engines.openevolve import global_random
from evolve.study.engines.plain import offer_seeds
from evolve.study.engines.primitives import Language, language
from evolve.study.engines.trees import expression, tree_of
from simulator.language.complete import complete
from simulator.language.ir import Function, Program
from simulator.language.measure import operations
from simulator.language.parse import parse
from simulator.language.unparse import unparse

POPULATION, GENERATIONS = 50, 5  # at most; the budget shall suffice for some generations
CROSSED, MUTATED = 0.8, 0.2
HEIGHT = 8
TOURNAMENT = 3


def genetic(judge: Judge) -> None:
    """Generations without end: the judge stops them. What it rejects is the least fit."""
    with global_random(judge.config.seed):
        known = language(judge.task.words)
        toolbox = _toolbox(judge, known)
        seeds = offer_seeds(judge)
        nodes = [tree_of(step, known) for p in seeds if (step := p.function("step_time"))]
        population = [toolbox.tree(n) for n in nodes if n is not None]
        size = max(8, min(POPULATION, judge.config.budget // GENERATIONS))
        population += [toolbox.grown() for _ in range(size - len(population))]
        while True:
            for tree in population:
                if not tree.fitness.valid:
                    found = judge.offer(text_of(tree, known)).elite
                    tree.fitness.values = (found.joint if found else float("inf"),)
            parents = toolbox.select(population, len(population))
            population = algorithms.varAnd(parents, toolbox, CROSSED, MUTATED)


def text_of(tree: Sequence[Any], known: Language) -> str:
    """The program of a tree, as text."""
    expr, constants = expression(tree, known)
    return unparse(Program((Function("step_time", constants, (), expr), _queueing())))


def _queueing() -> Function:
    text = next(text for name, text in seed_texts() if name == "floor")
    shared = parse(text, "floor").function("queueing_time")
    assert shared is not None
    return shared


def _toolbox(judge: Judge, known: Language) -> Any:

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
    caps = judge.config.caps
    limits = (
        (operator.attrgetter("height"), HEIGHT),
        (lambda tree: sum(node.arity > 0 for node in tree), caps.operations - _operations(rest)),
    )
    for name in ("mate", "mutate"):
        for measure, most in limits:
            toolbox.decorate(name, gp.staticLimit(measure, most))
    return toolbox


def _operations(program: Program) -> int:

    return operations(program)
