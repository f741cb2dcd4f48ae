"""Batch fields by brute force over the requests of a step: the reference for every faster way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.clock import vm
from simulator.common.errors import InputError
from simulator.common.knots import curve
from simulator.language import guarded
from simulator.language.evaluate import value
from simulator.language.forest import Forest
from simulator.language.opcodes import NO_FOREST, feature, formula, operands
from simulator.schema import FIELDS, RAW, READABLE, SPECIAL, TREES
from simulator.serving.facts import curve_of


@dataclass(slots=True)
class Active:
    """A request in a step, in tokens: input length I, progress before the step PI, new tokens NN > 0."""

    input_len: int
    progress: int
    new: int


def raw_fields(batch: Sequence[Active]) -> dict[str, float]:
    """The raw batch fields (schema.RAW) as sums over the requests."""
    prefill = [r for r in batch if r.progress < r.input_len]
    decode = [r for r in batch if r.progress >= r.input_len]
    n, s1 = len(batch), sum(r.progress for r in batch)
    s2 = sum(r.progress * r.progress for r in batch)
    values: dict[str, float] = {
        "prefill_reqs": len(prefill),
        "decode_reqs": len(decode),
        "prefill_tokens": sum(r.new for r in prefill),
        "max_prefill_chunk": max((r.new for r in prefill), default=0),
        "prefill_pairs": sum(r.new * r.progress + r.new * (r.new + 1) // 2 for r in prefill),
        "kv_sum": s1,
        "kv_max": max((r.progress for r in batch), default=0),
        "kv_var": float(n * s2 - s1 * s1) / float(n * n) if n else 0.0,
        "kv_decode_sum": sum(r.progress for r in decode),
        "kv_decode_max": max((r.progress for r in decode), default=0),
        "prompt_pairs": sum(r.new * (2 * r.input_len + r.new) for r in prefill),
    }
    return {name: float(values[name]) for name in RAW}


def raw_row(batch: Sequence[Active]) -> np.ndarray:
    """float64[RAW_FIELDS]: the raw batch fields as the row that `Bound.step_us` takes."""
    return np.array(list(raw_fields(batch).values()))


class BatchFields(Mapping[tuple[str, str], float]):
    """Every field of a step by scope and name, computed when it is read; `b.trees` only if there is a `forest`."""

    def __init__(self, batch: Sequence[Active], facts: Mapping[str, float], forest: Forest | None = None) -> None:
        self.raw = raw_fields(batch)
        self.facts = facts
        self.forest = forest

    def __getitem__(self, field: tuple[str, str]) -> float:
        scope, name = field
        if scope == "s":
            return self.facts[name]
        if name in self.raw:
            return self.raw[name]
        if name in SPECIAL:
            return float(vm.BATCH_FIELDS[name](*(self[f.scope, f.name] for f in operands(name))))
        if name == TREES.name:
            return self._trees()
        x = value(formula(name), {}, self)
        if READABLE["b", name].curve:
            knots = curve_of(self.facts, READABLE["b", name].curve)
            return float(curve(np.concatenate([[float(len(knots))], knots]), 0, x))
        return x

    def _trees(self) -> float:
        if self.forest is None:
            raise InputError(NO_FOREST)
        leaves = self.forest.leaves([value(feature(text), {}, self) for text in self.forest.features])
        corrections = self.forest.corrections
        if not self.raw["prefill_reqs"]:
            return guarded.exp(leaves + corrections.decode)
        return guarded.exp(leaves + (corrections.mixed if self.raw["decode_reqs"] else corrections.prefill))

    def __iter__(self):  # type: ignore[no-untyped-def]
        return (field for field in FIELDS if field[0] in "bs")

    def __len__(self) -> int:
        return sum(field[0] in "bs" for field in FIELDS)
