"""How near predicted step times are to measured ones, over all steps and over groups of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from evolve.ingest.derive.steps import SPLITS
from evolve.program.steps.targets import ESTIMATED, NEIGHBOUR, OWN
from simulator.schema import RAW

PHASES = ("pure decode", "mixed with prefill", "prefill only")
# Bins of the batch size, the same for all runs so that they compare: the last request of each, and their names.
_LAST = (8, 32, 64, 128)
LOADS = ("1-8", "9-32", "33-64", "65-128", "129 or more")
EVIDENCE = ("exact", "inferred", "assumed", ESTIMATED)
GROUPS = {"phase": PHASES, "load": LOADS, "split": SPLITS, "batch": (OWN, NEIGHBOUR), "evidence": EVIDENCE}
_PREFILLS, _DECODES = RAW.index("prefill_reqs"), RAW.index("decode_reqs")


def figures(predicted: np.ndarray, observed: np.ndarray) -> dict[str, Any]:
    """steps, mape_pct, pearson_r, bias_pct (mean of (predicted - observed)/observed), and the means in us.

    None where there is nothing to take it of: no step, or no two different ones for r.
    """
    n = len(observed)
    if not n:
        return {"steps": 0} | dict.fromkeys(
            ("mape_pct", "pearson_r", "bias_pct", "mean_predicted_us", "mean_observed_us")
        )
    errors = (predicted - observed) / observed
    r = float(np.corrcoef(predicted, observed)[0, 1]) if np.ptp(predicted) > 0 and np.ptp(observed) > 0 else None
    return {
        "steps": n,
        "mape_pct": float(100.0 * np.abs(errors).mean()),
        "pearson_r": r,
        "bias_pct": float(100.0 * errors.mean()),
        "mean_predicted_us": float(predicted.mean()),
        "mean_observed_us": float(observed.mean()),
    }


def phases(raw: np.ndarray) -> np.ndarray:
    """str[rows]: one of PHASES for each batch."""
    prefills, decodes = raw[:, _PREFILLS] > 0, raw[:, _DECODES] > 0
    out: np.ndarray = np.array(PHASES)[np.where(prefills, np.where(decodes, 1, 2), 0)]
    return out


def loads(raw: np.ndarray) -> np.ndarray:
    """str[rows]: one of LOADS, by the requests in each batch."""
    out: np.ndarray = np.array(LOADS)[np.searchsorted(_LAST, raw[:, _PREFILLS] + raw[:, _DECODES])]
    return out


def grouped(
    predicted: np.ndarray, observed_us: np.ndarray, raw: np.ndarray, split: np.ndarray, batch: np.ndarray,
    evidence: np.ndarray,
) -> dict[str, Any]:  # fmt: skip
    """`figures` over all, and for each of GROUPS over its members that occur."""
    labels = {"phase": phases(raw), "load": loads(raw), "split": split, "batch": batch, "evidence": evidence}
    out: dict[str, Any] = {"all": figures(predicted, observed_us)}
    for name, members in GROUPS.items():
        masks = {member: labels[name] == member for member in members}
        out[f"by_{name}"] = {m: figures(predicted[at], observed_us[at]) for m, at in masks.items() if at.any()}
    return out
