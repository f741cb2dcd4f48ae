"""Random numbers come only from streams that are identified by whole numbers, so that each can be drawn again."""

from __future__ import annotations

import numpy as np


def stream(*numbers: int) -> np.random.Generator:
    """The stream of these numbers, the seed first: PCG64 seeded by their SeedSequence."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(numbers)))
