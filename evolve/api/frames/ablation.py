"""Frames of ablations: a row for each part of a program that was dropped."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from evolve.inspect.ablation import Ablation
from evolve.output.columns import frame, number, several, text, whole

ABLATION = (
    text("part", "the part as the program spells it", paper=True),
    text("kind", "term, method, factor or kernel", paper=True),
    text("method", "method of the program"),
    text("verdict", "whether it earns its place", paper=True),
    number("in_sample_pct", "growth of the error in sample", paper=True),
    number("held_out_pct", "growth of the error on held-out runs", paper=True),
    number("low_pct", "lower bound of its 95 % interval over runs"),
    number("high_pct", "upper bound of the same"),
    number("by_model_low_pct", "lower bound of its 95 % interval, whole models resampled", paper=True),
    number("by_model_high_pct", "upper bound of the same", paper=True),
    whole("operations", "change of the number of operations"),
    whole("constants", "change of the number of constants"),
    several("acts_on", "models whose latencies it changes"),
)


def ablation(result: Ablation) -> pd.DataFrame:
    """A row for each part: its verdict, and by how much the errors grow without it."""

    def rows() -> Iterable[dict[str, object]]:
        for part in result.parts:
            measured, (low, high), (least, most) = (
                part.measured, part.interval_pct or (None, None), part.by_model_pct or (None, None)
            )  # fmt: skip
            yield {
                "part": part.text,
                "kind": part.kind,
                "method": part.method,
                "verdict": part.verdict,
                "in_sample_pct": measured.joint - result.full.joint if measured else None,
                "held_out_pct": part.difference_pct,
                "low_pct": low,
                "high_pct": high,
                "by_model_low_pct": least,
                "by_model_high_pct": most,
                "operations": measured.operations - result.full.operations if measured else None,
                "constants": measured.constants - result.full.constants if measured else None,
                "acts_on": part.acts_on,
            }

    return frame(ABLATION, rows())
