"""Frames of the bench of methods: a row for each training and run that it predicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from evolve.frames.columns import Column, frame, number, text, whole
from evolve.methods.bench import FIGURES, Result


def _columns() -> Iterator[Column]:
    yield text("method", "the method's name", paper=True)
    yield text("protocol", "own: its authors' training; ours: our fit on load stages", paper=True)
    yield text("kind", "in sample, or the kind of fold: models, workloads", paper=True)
    yield text("fold", "what was held out")
    yield whole("constants", "constants that were trained, those of all models together")
    yield whole("times", "measured times that step_time was trained on")
    yield number("cpu_s", "CPU seconds of the training")
    yield text("experiment", "the predicted run's id; missing where the training came to nothing", paper=True)
    for figure in FIGURES:
        yield number(f"{figure}_error_pct", f"signed error of the {_what(figure)}", paper=True)
    yield text("failure", "why the training came to nothing")


def _what(figure: str) -> str:
    return "p99 of the E2E" if figure == "e2e_p99" else f"mean {figure.upper()}"


METHODS = tuple(_columns())


def methods(results: Sequence[Result]) -> pd.DataFrame:
    """The results of a bench as a frame."""
    return frame(METHODS, _rows(results))


def _rows(results: Sequence[Result]) -> Iterator[dict[str, object]]:
    for r in results:
        about = {name: getattr(r.task, name) for name in ("method", "protocol", "kind", "fold")}
        about |= {"constants": r.constants, "times": r.times, "cpu_s": r.cpu_s, "failure": r.failure or None}
        for name, errors in r.errors.items():
            yield {**about, "experiment": name, **{f"{figure}_error_pct": errors[figure] for figure in FIGURES}}
        if not r.errors:
            yield {**about, "experiment": None, **{f"{figure}_error_pct": None for figure in FIGURES}}
