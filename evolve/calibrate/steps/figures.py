"""How close predicted step times are to measured ones, over all steps and over groups of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from evolve.calibrate.steps.targets import ESTIMATED, NEIGHBOUR, OWN
from simulator.common.json import JsonObject
from simulator.common.records import to_json
from simulator.schema import DECODE_REQS, PREFILL_REQS
from simulator.serving.splits import SPLITS

PHASES = ("pure decode", "mixed with prefill", "prefill only")
# Bins of the batch size, the same for all runs so that they can be compared: the largest of each, and their names.
_LAST = (8, 32, 64, 128)
LOADS = ("1-8", "9-32", "33-64", "65-128", "129 or more")
EVIDENCE = ("exact", "inferred", "assumed", ESTIMATED)
GROUPS = {"phase": PHASES, "load": LOADS, "split": SPLITS, "batch": (OWN, NEIGHBOUR), "evidence": EVIDENCE}


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Predicted against measured times of `steps` steps; bias: the mean of (predicted - observed)/observed.

    None where it is undefined: without steps, and r where all predictions or all measurements are equal.
    """

    steps: int
    mape_pct: float | None = None
    pearson_r: float | None = None
    bias_pct: float | None = None
    mean_predicted_us: float | None = None
    mean_observed_us: float | None = None


@dataclass(frozen=True, slots=True)
class Grouped:
    """Figures over all steps, and for each of GROUPS over its members that occur."""

    all: StepFigures
    by: Mapping[str, Mapping[str, StepFigures]]

    def to_json(self) -> JsonObject:
        return {"all": to_json(self.all), **{f"by_{name}": to_json(members) for name, members in self.by.items()}}


def figures(predicted_us: np.ndarray, observed_us: np.ndarray) -> StepFigures:
    n = len(observed_us)
    if not n:
        return StepFigures(0)
    errors = (predicted_us - observed_us) / observed_us
    varied = np.ptp(predicted_us) > 0 and np.ptp(observed_us) > 0
    return StepFigures(
        steps=n,
        mape_pct=float(100.0 * np.abs(errors).mean()),
        pearson_r=float(np.corrcoef(predicted_us, observed_us)[0, 1]) if varied else None,
        bias_pct=float(100.0 * errors.mean()),
        mean_predicted_us=float(predicted_us.mean()),
        mean_observed_us=float(observed_us.mean()),
    )


def phases(raw: np.ndarray) -> np.ndarray:
    """str[rows]: the member of PHASES of each batch."""
    prefills, decodes = raw[:, PREFILL_REQS] > 0, raw[:, DECODE_REQS] > 0
    names: np.ndarray = np.array(PHASES)[np.where(prefills, np.where(decodes, 1, 2), 0)]
    return names


def loads(raw: np.ndarray) -> np.ndarray:
    """str[rows]: the member of LOADS of each batch, by its requests."""
    names: np.ndarray = np.array(LOADS)[np.searchsorted(_LAST, raw[:, PREFILL_REQS] + raw[:, DECODE_REQS])]
    return names


def grouped(predicted_us: np.ndarray, columns: Mapping[str, np.ndarray]) -> Grouped:
    """The figures of these steps, grouped; `columns`: those of `Targets`."""
    raw, observed_us = columns["raw"], columns["observed_us"]
    labels = {**columns, "phase": phases(raw), "load": loads(raw)}
    by = {}
    for name, members in GROUPS.items():
        masks = {member: labels[name] == member for member in members}
        by[name] = {m: figures(predicted_us[mask], observed_us[mask]) for m, mask in masks.items() if mask.any()}
    return Grouped(figures(predicted_us, observed_us), by)
