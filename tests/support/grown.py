"""Programs as a search makes them: shipped seeds, changed by a few offline operators."""

from __future__ import annotations

import numpy as np

from evolve.run.program import seed_texts
from evolve.search.offline import propose
from evolve.search.vocabulary import vocabulary
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.measure import Caps, complaints
from simulator.language.parse import parse
from simulator.serving.bundled import bundled_experiments

RUNS = bundled_experiments()[:12]
WORDS = vocabulary(RUNS, "all")
SEEDS = [complete(parse(text)) for _, text in seed_texts()]


def grown(seed: int) -> Program:
    """A seed after up to eight proposals, those that fit the default caps; deterministic."""
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([7, seed])))
    program = SEEDS[rng.integers(len(SEEDS))]
    for _ in range(rng.integers(1, 9)):
        child, _ = propose(program, SEEDS[rng.integers(len(SEEDS))], WORDS, rng)
        program = program if complaints(child, Caps()) else child
    return program
