"""Progress lines on stderr: rewritten in a terminal, one after another elsewhere, and never too often."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from archive.population import Population

EVERY_S = 10.0  # between lines where stderr is not a terminal
REWRITE_S = 0.2  # between rewritten lines in a terminal


class Line:
    """One line about long work; nothing at all if `quiet`."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.terminal = sys.stderr.isatty()
        self.every_s = REWRITE_S if self.terminal else EVERY_S
        self.shown = time.monotonic()
        self.last = ""

    def show(self, text: str) -> None:
        """Show a text now."""
        if self.quiet:
            return
        if self.terminal:
            print("\r" + text.ljust(len(self.last)), end="", file=sys.stderr, flush=True)
            self.last = text
        else:
            print(text, file=sys.stderr, flush=True)

    def update(self, text: Callable[[], str]) -> None:
        """Show a text unless one was shown a moment ago; it is made only if it is shown."""
        now = time.monotonic()
        if not self.quiet and now - self.shown >= self.every_s:
            self.shown = now
            self.show(text())

    def close(self) -> None:
        """End the line."""
        if self.terminal and self.last:
            print(file=sys.stderr, flush=True)
            self.last = ""


class Rate:
    """How fast candidates are assessed since the start or the resumption."""

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.before: int | None = None  # candidates that were assessed by an earlier process

    def done(self, fitted: int, resumed: bool) -> int:
        """How many candidates this process has assessed."""
        if self.before is None:
            self.before = fitted if resumed else 0
        return fitted - self.before

    def per_s(self, done: int) -> float:
        """Candidates per second."""
        return done / max(time.monotonic() - self.begun, 1e-9)


class Progress:
    """How far a search is: candidates, candidates per second, elites, the champion's errors, time left."""

    def __init__(self, budget: int, resumed: int, quiet: bool) -> None:
        self.line = Line(quiet)
        self.budget, self.resumed = budget, resumed
        self.rate = Rate()
        self.models: Callable[[], str] | None = None  # what there is to say about language models

    def update(self, population: Population) -> None:
        """A proposal was taken in."""
        if population.proposals >= self.resumed:
            done = self.rate.done(population.fitted, bool(self.resumed))
            self.line.update(lambda: self._text(population, done))

    def asking(self, text: str) -> None:
        """Language models are being asked, and nothing can be assessed meanwhile."""
        self.line.update(lambda: text)

    def stage(self, name: str) -> None:
        """Something other than the search begins."""
        self.line.show(f"{name} ...")

    def close(self) -> None:
        """End the line."""
        self.line.close()

    def _text(self, population: Population, done: int) -> str:
        rate = self.rate.per_s(done)
        left = f"{(self.budget - population.fitted) / rate:.0f} s left" if done >= 10 else "time left unknown yet"
        models = f", {self.models()}" if self.models else ""
        best = population.champion()
        errors = "no champion yet"
        if best is not None:
            left_out = "" if best.transfer is None else f", {best.transfer:.2f} % on models left out"
            errors = f"champion's joint error {best.joint:.2f} %{left_out}"
        accepted = len(population.archive.members())
        return (
            f"{population.fitted}/{self.budget} candidates, {rate:.1f}/s, {accepted} accepted, {errors}{models}, {left}"
        )
