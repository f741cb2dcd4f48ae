"""A bandit over operators: their chances follow how often they improved the archive, with a minimum for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

FLOOR = 0.02  # the least chance of an operator that may be used at all
MEMORY = 0.98  # weight of older trials after each new one of the same operator: about the last fifty count
DOUBT = 5.0  # trials, at the average rate of gains, that every operator starts with


@dataclass
class Bandit:
    """Trials and gains of every operator.

    `prior` is an operator's weight before any trial; one with weight 0 is never used. `costs` is the price of a trial,
    in trials of an operator that costs nothing else (default 1).
    """

    prior: Mapping[str, float]
    trials: dict[str, float] = field(default_factory=dict)
    gains: dict[str, float] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)

    def learn(self, name: str, gained: bool) -> None:
        """Count a trial of operator `name`, and whether its proposal took a cell."""
        self.trials[name] = MEMORY * self.trials.get(name, 0.0) + 1.0
        self.gains[name] = MEMORY * self.gains.get(name, 0.0) + gained

    def chances(self) -> dict[str, float]:
        """The chance of every operator that may be used; they add up to 1."""
        names = [name for name, weight in self.prior.items() if weight > 0]
        rate = (sum(self.gains.values()) + 1.0) / (sum(self.trials.values()) + 2.0)
        worth = {
            name: self.prior[name]
            * (self.gains.get(name, 0.0) + DOUBT * rate)
            / (self.trials.get(name, 0.0) + DOUBT)
            / self.costs.get(name, 1.0)
            for name in names
        }
        total = sum(worth.values())
        spare = 1.0 - FLOOR * len(names)
        return {name: FLOOR + spare * worth[name] / total for name in names}
