"""The verdict of `evolve fit`: which latencies to trust, by the errors on runs that were left out of the fit.

Each run is left out in turn. The constants are fitted again to the others, as the mean field is linear about the fit,
so that no replay is repeated. `--learning-curve` repeats whole fits, and leaves out models where there are several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from archive.score import Errors
from evaluator.fit.fit import ScopedFit, ratio_of
from evaluator.group_out import errors_left_out, folds_of
from evaluator.metrics import mean_abs
from evaluator.score import MEANS
from evolve.output.table import PASS_PCT
from evolve.run.program import Source
from evolve.run.use import known_before
from simulator.common.json import JsonObject
from simulator.common.text import counted

FEW = 3  # runs below which none is trusted


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The signed errors in percent on what a fit did not see. why: the reason if there are none. which: what was left
    out, in words."""

    errors: tuple[Errors, ...] = ()
    why: str = ""
    which: str = "each left out in turn"

    @property
    def mean_abs_pct(self) -> dict[str, float]:
        """The mean absolute error of each latency that was observed."""
        means = {name: mean_abs([getattr(e, name) for e in self.errors]) for name in MEANS}
        return {name: mean for name, mean in means.items() if mean is not None}

    @property
    def trusted(self) -> tuple[str, ...]:
        """The latencies whose mean absolute error is within PASS_PCT; none of too few runs."""
        enough = len(self.errors) >= FEW
        return tuple(name for name, mean in self.mean_abs_pct.items() if enough and mean <= PASS_PCT[name])

    @property
    def verdict(self) -> str:
        """One sentence on what to trust, and the figures.

        >>> HeldOut((Errors("a", 2.0, 30.0, 1.0), Errors("b", -2.0, 50.0, 3.0), Errors("c", 2.0, -40.0, 2.0))).verdict
        'Trust E2E and ITL, not TTFT. Held out (3 runs, each left out in turn): E2E 2.0 %, TTFT 40.0 %, ITL 2.0 % off.'
        """
        means = self.mean_abs_pct
        if not means:
            return f"Nothing was held out: {self.why}. So these errors do not say how far off other runs will be."
        names, doubted = ([n.upper() for n in means if (n in self.trusted) == yes] for yes in (True, False))
        if len(self.errors) < FEW:
            answer = "Too few runs to say what to trust"
        elif not names:
            answer = f"Do not trust {' or '.join(doubted)}"
        else:
            but = f", not {' or '.join(doubted)}" if doubted else ""
            answer = f"Trust {' and '.join(names)}{but}"
        figures = ", ".join(f"{name.upper()} {mean:.1f} %" for name, mean in means.items())
        return f"{answer}. Held out ({counted(len(self.errors), 'run')}, {self.which}): {figures} off."

    def to_json(self) -> JsonObject:
        return {
            "errors": [e._asdict() for e in self.errors],
            "mean_abs_error_pct": {name: self.mean_abs_pct.get(name) for name in MEANS},
            "trusted": list(self.trusted),
            "why_none": self.why or None,
        }


def held_out(source: Source, fit: ScopedFit, errors: Sequence[Errors], in_steps: bool) -> HeldOut:
    """The errors on each run by constants that were fitted to the others, where nothing of it is in the fit otherwise.

    errors: those in sample, to which leaving a run out adds. in_steps: the single steps of all runs were fitted first.
    """
    problem, experiments = fit.problem, fit.problem.data.experiments
    if in_steps:
        return HeldOut(why="the single steps of all runs were fitted first")
    if problem.delayed:
        return HeldOut(why="the observed delays of all runs decide constants")
    if seen := sum(known_before(source.record, e) for e in experiments):
        return HeldOut(why=f"{source.name} was fitted on {seen} of these {len(experiments)} runs before")
    if len(experiments) == 1:
        return HeldOut(why="there is one run")
    means_ms = problem.replay(fit.phi, allow_hostile=True)
    (folds,) = folds_of(problem.data, ()).kinds
    without = errors_left_out(replace(problem, start=fit.phi), ratio_of(problem, fit.phi, means_ms), folds)
    added = without - problem.data.errors_pct(means_ms)
    rows = zip(errors, np.array([e.figures for e in errors], dtype=float) + added, strict=True)
    return HeldOut(tuple(Errors(e.experiment, *(None if np.isnan(x) else float(x) for x in row)) for e, row in rows))
