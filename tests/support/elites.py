"""Elites with made-up figures, and dominance by its definition."""

from __future__ import annotations

from dataclasses import replace

from archive.elite import Elite


def elite(
    id: int, worst3: float = 5.0, joint: float = 3.0, operations: int = 10, constants: int = 5, **more: object
) -> Elite:
    base = Elite(
        id=id, key=f"k{id}", text="text", operations=operations, constants=constants, features=4, worst3=worst3,
        joint=joint, e2e=joint, ttft=joint, itl=joint, rows=(("a", 1.0, -2.0, None),), operator="add", parents=(0, 1),
    )  # fmt: skip
    return replace(base, **more)  # type: ignore[arg-type]


def dominates(a: Elite, b: Elite) -> bool:
    """Whether `a` is at least as good as `b` in everything, soundness included, and better in something."""
    ours, theirs = ((not e.sound, *e.objectives) for e in (a, b))
    return ours != theirs and all(x <= y for x, y in zip(ours, theirs, strict=True))
