"""What a text says of experiments that it should not know: ids, names of models, measured figures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from decimal import Decimal

from simulator.serving.experiment import Experiment
from simulator.serving.observations import Observation

LEAST_DIGITS = 4  # of a figure: shorter numbers occur by chance
SCALES = (Decimal("0.001"), Decimal(1), Decimal(1000))  # seconds, milliseconds, microseconds


def leaks(text: str, held: Sequence[Experiment], fitted: Sequence[Experiment], last_stage: bool = False) -> list[str]:
    """What `text` says of the `held` experiments and not of the `fitted` ones too.

    With `last_stage`, ids and models are known, and only figures of the last stages and of whole runs are held out.
    """
    squeezed, found = _squeezed(text), list[str]()
    if not last_stage:
        known = {name for e in fitted for name in _names(e)}
        names = {name for e in held for name in _names(e)} - known
        found += sorted(name for name in names if _squeezed(name) in squeezed)
    numbers = {_plain(Decimal(x)) for x in re.findall(r"\d+(?:\.\d+)?", text.replace(",", ""))}
    known_figures = {figure for e in fitted for figure in _figures(e, last_stage=False)}
    figures = {figure for e in held for figure in _figures(e, last_stage)} - known_figures
    return found + sorted(str(f) for f in figures if numbers & {_plain(f * scale) for scale in SCALES})


def _names(e: Experiment) -> Iterator[str]:
    """The id, and the model's name with and without its owner, its version, and all but its family's name."""
    short = e.model.rsplit("/", 1)[-1]
    yield from (e.id, e.model, short, re.sub(r"(-hf|-v[\d.]+|-instruct)+$", "", short.lower()))
    yield from re.findall(r"^[a-z]{4,}", short.lower())


def _figures(e: Experiment, last_stage: bool) -> Iterator[Decimal]:
    """Everything that was measured in milliseconds, as far as it has enough digits."""
    if e.observed is None:
        return
    stages = e.observed.stages[-1:] if last_stage else e.observed.stages
    for observation in (*stages, *([e.observed.summary] if e.observed.summary else [])):
        for value in _values(observation):
            figure = _plain(Decimal(repr(value)))
            if len(figure.as_tuple().digits) >= LEAST_DIGITS:
                yield figure


def _values(observation: Observation) -> Iterator[float]:
    for latency in (observation.e2e_ms, observation.ttft_ms, observation.itl_ms):
        yield from (v for f in fields(latency) if isinstance(v := getattr(latency, f.name), float))


def _squeezed(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _plain(number: Decimal) -> Decimal:
    return number.normalize()
