"""The durations of steps that decoded, and how many tokens they did: a histogram, whatever the length of the run."""

from __future__ import annotations

import numpy as np

from simulator.clock.queue import Log


class Gaps:
    """The log of steps, folded now and then into a histogram of step durations weighted by tokens decoded."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self.log = Log(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(1, np.int64))
        self.reach = np.zeros(0, np.int64)
        self.us, self.tokens = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.kept = 0  # steps in the log that are not folded yet

    def room(self, steps: int) -> Log:
        """The log with room for `steps` more."""
        size = self.kept + steps
        if self.wanted and len(self.log.us) < size:
            grown = [np.zeros(size, np.int64) for _ in range(3)]
            for new, old in zip(grown, (self.log.us, self.log.tokens, self.reach), strict=True):
                new[: self.kept] = old[: self.kept]
            self.log, self.reach = Log(grown[0], grown[1], self.log.first), grown[2]
        return self.log

    def fold(self, until: int, step: int) -> None:
        """Count the logged steps before `until`; `step` is the first that is not logged yet."""
        if not self.wanted:
            return
        done, end = until - int(self.log.first[0]), step - int(self.log.first[0])
        us = np.concatenate([self.us, self.log.us[:done]])
        tokens = np.concatenate([self.tokens, self.log.tokens[:done]])
        self.us, place = np.unique(us[tokens > 0], return_inverse=True)
        self.tokens = np.bincount(place, weights=tokens[tokens > 0], minlength=len(self.us)).astype(np.int64)
        for column in (self.log.us, self.log.tokens, self.reach):
            column[: end - done] = column[done:end].copy()
        self.log.first[0] = until
        self.kept = end - done
