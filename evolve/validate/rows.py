"""Rows of a validation: one for each fold and experiment that it holds out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from evaluator import baselines
from evaluator.intervals import STATISTICS
from evaluator.score import MEANS
from evolve.output.columns import Column, flag, number, text, whole
from evolve.run.validations import forms_of
from evolve.validate.held_out import BASELINE_FIGURES, FIGURES, LATER

ABOUT = ("kind", "fold", "experiment", "model", "workload", "tp", "moe", "champion", "observed", "outside")
AGAINST = "against"


def _what(figure: str) -> str:
    latency, q = STATISTICS[figure.removesuffix(LATER)]
    stages = ", over the load stages after the first" if figure.endswith(LATER) else ""
    return f"{q} {latency.removesuffix('_ms').upper()}{stages}"


def _baseline(answer: str, figure: str) -> str:
    return f"baseline_{answer.replace(' ', '_')}_{figure}_error_pct"


def _columns() -> Iterator[Column]:
    forms = (
        "searched: found in the fold; recorded: by a search that saw all runs, then fitted and chosen in the fold; "
        "refitted: the run's champion"
    )
    yield text("forms", forms)
    yield flag(
        "form_chosen_with_hindsight",
        "whether the form was chosen by what is held out, so that only constants are held out",
    )
    yield whole("call", "number of the validate call on the run, from 1")
    yield text("kind", "kind of the fold", paper=True)
    yield text("fold", "what the fold leaves out", paper=True)
    yield text("experiment", "the held-out experiment's id", paper=True)
    yield text("model", "its model")
    yield text("workload", "its workload")
    yield whole("tp", "its TP degree")
    yield flag("moe", "whether its model is a mixture of experts")
    yield text("champion", "key of the fold's program; missing if none could be scored")
    yield flag("observed", "whether its mean E2E was observed")
    yield flag("outside", "whether it lies outside the ranges of what the fold fitted")
    for figure in FIGURES:
        yield number(f"{figure}_error_pct", f"signed held-out error of the {_what(figure)}", paper=figure in MEANS)
    for figure in STATISTICS:
        meaning = f"root mean square of log(theirs / ours) of the {_what(figure)} over the fold's ensemble"
        yield number(f"{figure}_spread", meaning)
    for answer in baselines.NAMES:
        for figure in BASELINE_FIGURES:
            yield number(_baseline(answer, figure), f"signed error of the baseline `{answer}` in the {_what(figure)}")
    yield text(AGAINST, "the program that was compared, refitted in every fold")
    for figure in MEANS:
        yield number(f"{AGAINST}_{figure}_error_pct", f"its signed error of the {_what(figure)}")


VALIDATION = tuple(_columns())


def validation_rows(raw: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    """The rows of VALIDATION, as validate.json has them.

    Raises KeyError, TypeError or AttributeError for values that no validate.json has.
    """
    for row in raw["rows"]:
        rival: Mapping[str, Any] = row.get(AGAINST, {})
        theirs = {f"{AGAINST}_{figure}_error_pct": rival[figure] for figure in MEANS} if rival else {}
        yield {
            "forms": forms_of(raw),
            "form_chosen_with_hindsight": raw["form_chosen_with_hindsight"],
            "call": raw["call"],
            **{name: row[name] for name in ABOUT},
            **{f"{figure}_error_pct": row[figure] for figure in FIGURES},
            **{f"{figure}_spread": value for figure, value in row["spread"].items()},
            **{
                _baseline(a, figure): value
                for a, errors in row["baselines"].items()
                for figure, value in errors.items()
            },
            AGAINST: rival.get("label"),
            **theirs,
        }
