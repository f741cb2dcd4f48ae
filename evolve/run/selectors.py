"""Constants by name: the words of a command line, and what is known of each, as a record and a table show it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.experiments import bundled_experiments, data_hash
from evaluator.fit.fit import fit_set
from evaluator.fit.uncertainty import uncertainty
from evolve.run.data import chosen
from evolve.run.folder import open_run
from simulator.errors import InputError, nearest
from simulator.language.ir import Program

if TYPE_CHECKING:
    from evaluator.fit.uncertainty import Certainty

# as the host calls its coefficients: of the step, and of all the times beside it
WORDS = {"beta": ("step_time",), "alpha": ("queueing_time", "output_token_time", "completion_time")}


def positions(program: Program, words: Sequence[str], option: str) -> tuple[int, ...]:
    """Positions in `program.theta` of what the words name: `alpha`, `beta`, a method, `method.name`, or a bare name
    that only one method has. Raises InputError for any other word."""
    names = [(f.name, c.name) for f in program.functions for c in f.constants]
    found: set[int] = set()
    for word in words:
        methods = WORDS.get(word, (word,))
        here = [i for i, (method, name) in enumerate(names) if method in methods or word == f"{method}.{name}"]
        if not here:
            here = [i for i, (_, name) in enumerate(names) if name == word]
            if len(here) > 1:
                options = " or ".join(".".join(names[i]) for i in here)
                raise InputError(f"{option} {word}: several methods have a constant of that name: write {options}")
        if not here:
            known = sorted({*WORDS, *(m for m, _ in names), *(n for _, n in names), *map(".".join, names)})
            raise InputError(f"{option} {word}: no such constant or method: {nearest(word, known)}")
        found.update(here)
    return tuple(sorted(found))


def certain(found: Sequence[Certainty]) -> dict[str, dict[str, Any]]:
    """`constants` of a record, by method.name: standard_error (null where there is none), bound, identified."""
    return {
        f"{c.method}.{c.name}": {
            "standard_error": c.standard_error if math.isfinite(c.standard_error) else None,
            "bound": c.bound,
            "identified": c.identified,
        }
        for c in found
    }


def known_constants(record: dict[str, Any] | None, program: Program) -> dict[str, dict[str, Any]] | None:
    """What the fit that made `program` knew of its constants: from its record, or found anew where the record says on
    which runs that was and they are at hand. None where it is not known."""
    if record is None:
        return None
    if "constants" in record:
        known: dict[str, dict[str, Any]] = record["constants"]
        return known

    fitted = _fitted(record)
    return certain(uncertainty(program, fit_set(fitted))) if fitted else None


def _fitted(record: dict[str, Any]) -> list[Any]:
    """The experiments of a record, if they are at hand and the figures in them the same."""
    try:
        offered = chosen(open_run(Path(record["run"])).config.data)[0] if "run" in record else bundled_experiments()
    except InputError:  # its files are elsewhere by now
        return []
    found = [e for e in offered if e.id in record["fitted"]]
    return found if data_hash(found) == record["data"] else []


def told(known: dict[str, Any] | None) -> tuple[str, str]:
    """(standard error, what to think of the constant) of an entry of `certain`, as a table shows them."""
    if known is None:
        return "", ""
    error = "" if known["standard_error"] is None else f"{float(format(known['standard_error'], '.2g')):g}"
    if known["bound"]:
        return error, f"at its {'lower' if known['bound'] == 'low' else 'upper'} bound"
    return error, "identified" if known["identified"] else "NOT identified"
