"""Elites with made-up figures, and dominance by its definition."""

from __future__ import annotations

from archive.elite import Elite, example
from archive.score import Errors


def elite(
    id: int, worst3: float = 5.0, mean_error: float = 3.0, operations: int = 10, constants: int = 5, **more: object
) -> Elite:
    figures = {"e2e": mean_error, "ttft": mean_error, "itl": mean_error, "rows": (Errors("a", 1.0, -2.0, None),)}
    own = {
        "key": f"k{id}",
        "text": "def step_time(b, s): return b.kernel_us",
        "operations": operations,
        "constants": constants,
        "parents": (0, 1),
    }
    return example(id=id, worst3=worst3, mean_error=mean_error, **{**figures, **own, **more})


def dominates(a: Elite, b: Elite) -> bool:
    """True if `a` is at least as good as `b` in everything, consistency included, and better in something."""
    ours, theirs = ((not e.consistent, *e.objectives) for e in (a, b))
    return ours != theirs and all(x <= y for x, y in zip(ours, theirs, strict=True))
