"""The rows of a validation as CSV."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from evolve.study.held_out import FIGURES
from simulator.errors import InputError


def check_csv(path: Path) -> None:
    """Raises InputError, before anything is computed, if the CSV could not be written."""
    existed = path.exists()
    try:
        with path.open("a"):
            pass
        if not existed:
            path.unlink()
    except OSError as e:
        raise InputError(f"{path}: cannot be written ({e.strerror}): choose another --csv") from None


def write_csv(result: dict[str, Any], path: Path) -> None:
    """One row for every fold and held-out experiment; errors signed, in percent, empty where there is none.

    Raises InputError if the file cannot be written.
    """
    about = ["kind", "fold", "experiment", "model", "workload", "tp", "moe", "champion"]
    answers = list(dict.fromkeys(name for row in result["rows"] for name in row["known"]))
    heads = ["form_chosen_with_hindsight", "call", *about, *(f"{name}_error_pct" for name in FIGURES)]
    heads += [f"known_{name.replace(' ', '_')}_e2e_error_pct" for name in answers]
    heads += ["against", "against_e2e_error_pct"]
    try:
        with path.open("w", newline="") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(heads)
            for row in result["rows"]:
                given = row.get("against", {"label": "", "e2e": None})
                theirs = [row["known"].get(name, {"e2e": None})["e2e"] for name in answers]
                label = [result["form_chosen_with_hindsight"], result["call"]]
                ours = [row[x] for x in (*about, *FIGURES)]
                out.writerow([*label, *ours, *theirs, given["label"], given["e2e"]])
    except OSError as e:
        raise InputError(f"{path}: cannot be written ({e.strerror}): choose another --csv") from None
