"""Random search and hill climbing with our operators: what selection adds to them."""

from __future__ import annotations

import numpy as np

from evolve.propose.offline import operator_weights, propose
from evolve.run.program import seed_texts
from evolve.study.engines.judge import Judge
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.parse import parse
from simulator.language.unparse import unparse
from simulator.stream import stream

CHANGES = 8  # most operators that random search applies to a seed


def offer_seeds(judge: Judge) -> list[Program]:
    """The shipped programs as the first candidates of any engine; returns them unfitted and complete."""
    for _, text in seed_texts():
        judge.offer(text)
    return [complete(parse(text, name)) for name, text in seed_texts()]


def stream_of(judge: Judge) -> np.random.Generator:
    """The random stream of the next proposal: a search's seed and the proposal's number."""
    return stream(judge.config.seed, judge.proposals)


def changed(judge: Judge, first: Program, second: Program, rng: np.random.Generator, blind: bool = False) -> Program:
    """`first` after one proposal of our operators as configured; `second` is what crossing takes from. `blind`: without
    those that look at the errors of `first`."""
    search, probe = judge.config.search, None if blind else judge.probe
    return propose(first, second, judge.task.words, rng, search.evolve, operator_weights(search.operators), probe,
                   judge.config.caps)[0]  # fmt: skip


def random_search(judge: Judge) -> None:
    """One to CHANGES operators applied to a random seed; parents are always seeds, never results: no selection."""
    seeds = offer_seeds(judge)
    while True:
        rng = stream_of(judge)
        child = seeds[rng.integers(len(seeds))]
        for _ in range(rng.integers(1, CHANGES + 1)):
            child = changed(judge, child, seeds[rng.integers(len(seeds))], rng, blind=True)
        judge.offer(unparse(child))


def climb(judge: Judge) -> None:
    """Greedy hill climbing: the parent is the best so far by joint error, a child replaces it where it is better."""
    seeds = offer_seeds(judge)
    best = min(judge.elites, key=lambda e: e.joint, default=None)
    while True:
        rng = stream_of(judge)
        second = seeds[rng.integers(len(seeds))]
        first = parse(best.text) if best else seeds[rng.integers(len(seeds))]
        found = judge.offer(unparse(changed(judge, first, second, rng))).elite
        if found and (best is None or found.joint < best.joint):
            best = found
