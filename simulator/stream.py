"""Random numbers: only from streams that are named by whole numbers, so that any of them can be drawn again."""

from __future__ import annotations

import numpy as np


def stream(*numbers: int) -> np.random.Generator:
    """The stream of these numbers, a seed first: PCG64 seeded by their SeedSequence."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(numbers)))
