"""Batches to record and compare, and their times by the plain interpreter.

A batch is a tuple of rows (count, input_len, progress, new): `count` equal requests with a prompt of `input_len`
tokens, `progress` tokens done before the step and `new` tokens in it; new = 0 is a fully cached admission.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random

from simulator.clock.bind import REFERENCE_DECODES
from simulator.clock.fields import Active, BatchFields
from simulator.clock.vm import to_ticks
from simulator.language.evaluate import evaluate
from simulator.language.forest import Forest
from simulator.language.ir import Call, Compare, Field, Let, Local, Node, Program, nodes, walk
from simulator.schema import TREES

Row = tuple[int, int, int, int]
Batch = tuple[Row, ...]

# The functions whose last bit depends on the maths library. The others, max, min and sqrt, are exact everywhere.
LIBRARY = ("exp", "log", "log1p", "softplus", "pow")
PROMPTS = (0, 1, 100, 1024, 4097, 131072)  # tokens, for queueing_time

EDGES: tuple[Batch, ...] = (
    (),
    ((1, 100, 0, 0),),  # fully cached: in no field
    ((1, 1, 0, 1),),
    ((1, 100, 0, 100),),
    ((1, 5000, 2048, 2048),),
    ((1, 5000, 4999, 1),),  # one prompt token left: still prefill
    ((1, 100, 100, 1),),
    ((1, 131072, 140000, 1),),
    ((3, 40_000, 0, 30_000),),
    ((1, 400_000, 300_000, 8192),),  # beyond the last knot of every curve
    *(((n, 64, 96, 1),) for n in (2, 3, 4, 5, 8, 9, 16, 17, 128, 256, 257, 511, 512, 513, 700)),
    ((REFERENCE_DECODES, 0, 0, 1),),
    ((7, 500, 900, 1), (1, 600, 0, 600)),
    ((3, 500, 0, 0), (5, 500, 510, 1)),
    ((2, 20, 20, 1), (2, 4000, 4100, 1), (1, 9000, 2048, 2032), (1, 16, 0, 16)),
)


def random_batch(rng: Random) -> Batch:
    """A seeded batch of up to ten kinds of requests, prompts up to 20,000 tokens."""
    rows: list[Row] = []
    for _ in range(rng.randrange(11)):
        prompt = round(20_000 ** rng.random())
        kind = rng.random()
        if kind < 0.05:
            rows.append((1, prompt, 0, 0))
        elif kind < 0.35:
            progress = 0 if rng.random() < 0.5 else rng.randrange(prompt)
            rows.append((1, prompt, progress, rng.randint(1, min(prompt - progress, 8192))))
        else:
            count = 1 if rng.random() < 0.5 else rng.randint(1, 40)
            rows.append((count, prompt, prompt + rng.randrange(3000), 1))
    return tuple(rows)


def batches(n_random: int, seed: int) -> list[Batch]:
    """The edge cases, then `n_random` seeded random ones."""
    rng = Random(seed)
    return [*EDGES, *(random_batch(rng) for _ in range(n_random))]


def batch_fields(batch: Batch, facts: Mapping[str, float], forest: Forest | None = None) -> BatchFields:
    """The fields that step_time reads of the batch, with the ensemble that the program has, if any.

    Requests without new tokens do not count.
    """
    rows = (Active(prompt, progress, new) for n, prompt, progress, new in batch if new > 0 for _ in range(n))
    return BatchFields(list(rows), facts, forest)


def step_us(program: Program, fields: Mapping[tuple[str, str], float]) -> float:
    """The step time by the plain interpreter, before truncation."""
    function = program.function("step_time")
    assert function is not None
    return evaluate(function, fields)


def reference_step_us(program: Program, facts: Mapping[str, float]) -> float:
    """The fact that depends on the program: its step time on the reference batch."""
    return step_us(program, batch_fields(((REFERENCE_DECODES, 0, 0, 1),), facts, program.forest))


def overhead_us(program: Program, name: str, facts: Mapping[str, float], input_len: int = 0) -> float:
    """Any other method by the plain interpreter, before truncation; 0 if the program lacks it."""
    function = program.function(name)
    if function is None:
        return 0.0
    fields = {("s", fact): value for fact, value in facts.items()} | {("r", "input_len"): float(input_len)}
    fields["s", "reference_step_us"] = reference_step_us(program, facts)
    return evaluate(function, fields)


def step_ticks(program: Program, batch: Batch, facts: Mapping[str, float]) -> int:
    """The step time as the clock counts it, in whole us."""
    return int(to_ticks(step_us(program, batch_fields(batch, facts, program.forest)), 1))


def overhead_ticks(program: Program, name: str, facts: Mapping[str, float], input_len: int = 0) -> int:
    """Any other method as the clock counts it, in whole us."""
    return int(to_ticks(overhead_us(program, name, facts, input_len), 0))


def tolerance(program: Program) -> int:
    """The us by which two maths libraries may differ: 0 without functions of `LIBRARY` and trees, else 1."""
    calls = (n.name for f in program.functions for n in nodes(f) if isinstance(n, Call))
    return int(program.reads_trees or any(name in LIBRARY for name in calls))


def last_bit_decides(program: Program) -> tuple[str, ...]:
    """A line for each method in which a condition compares a value of `LIBRARY` or of trees.

    Such a value differs in its last bit between maths libraries, and the branches may have very different times.
    """
    known: dict[Node, tuple[str, ...]] = {Field("b", TREES.name): (TREES.name,)}
    lines = []
    for f in sorted(program.functions, key=lambda f: f.name != "step_time"):  # the others may read its reference
        inside = dict(known)
        for statement in f.body:
            if isinstance(statement, Let):
                inside[Local(statement.name)] = _through([statement.value], inside)
        compared = _through((n for n in nodes(f) if isinstance(n, Compare)), inside)
        if compared:
            lines.append(
                f"{f.name}: a condition compares a value that goes through {', '.join(compared)}: at the threshold Go "
                "and Python may choose differently"
            )
        if f.name == "step_time":
            known[Field("s", "reference_step_us")] = _through(nodes(f), inside)
    return tuple(lines)


def _through(parts: Iterable[Node], known: Mapping[Node, tuple[str, ...]]) -> tuple[str, ...]:
    """The calls of `LIBRARY`, and trees, that these parts go through; `known`: those of locals and fields."""
    found: dict[str, None] = {}
    for n in (n for part in parts for n in walk(part)):
        found |= dict.fromkeys((n.name,) if isinstance(n, Call) and n.name in LIBRARY else known.get(n, ()))
    return tuple(found)
