"""Progress on stderr, at limited intervals: one line, rewritten, in a terminal; a line each time elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from archive.population import Population
from evolve.output.terminal import rewrite, say, warn
from simulator.common.jit import COMPILING, on_compilation

EVERY_S = 10.0  # between lines if stderr is not a terminal
REWRITE_S = 0.2  # between updates of the line in a terminal


class Line:
    """A progress line for long work, which several threads may share; shows nothing if `quiet`."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self._lock = threading.RLock()
        self.terminal = sys.stderr.isatty()
        self.every_s = REWRITE_S if self.terminal else EVERY_S
        self.shown = time.monotonic()
        self.last = ""

    def show(self, text: str) -> None:
        """Show this text now."""
        with self._lock:
            if self.quiet:
                return
            try:
                if self.terminal:
                    rewrite(text.ljust(len(self.last)))
                    self.last = text
                else:
                    say(text, err=True)
            except OSError:
                self.quiet = True  # stderr is full or gone, which is no reason to stop the work

    def update(self, text: Callable[[], str]) -> None:
        """Show the text that this function returns, unless the last one was shown too recently."""
        now = time.monotonic()
        if not self.quiet and now - self.shown >= self.every_s:
            self.shown = now
            self.show(text())

    def note(self, text: str) -> None:
        """Show this text on a line that stays."""
        with self._lock:
            self.show(text)
            self.close()

    def close(self) -> None:
        """End the line."""
        with self._lock:
            if self.terminal and self.last and not self.quiet:
                say(err=True)
            self.last = ""


def tell_compilation(quiet: Callable[[], bool]) -> None:
    """Say in a terminal that this process compiles, if it does and unless it is to be `quiet` then.

    Warn if what it compiles is not kept.
    """

    def tell(loss: str) -> None:
        if loss:
            with suppress(OSError):  # stderr is full or gone
                warn(loss)
        elif sys.stderr.isatty() and not quiet():
            say(f"{COMPILING} ...", err=True)

    on_compilation(tell)


class Rate:
    """The speed at which this process assesses candidates."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.before: int | None = None  # candidates that earlier processes assessed

    def done(self, fitted: int, resumed: bool) -> int:
        """The number of candidates that this process has assessed."""
        if self.before is None:
            self.before = fitted if resumed else 0
        return fitted - self.before

    def per_s(self, done: int) -> float:
        """Candidates per second."""
        return done / max(time.monotonic() - self.started, 1e-9)


class ProgressTimes:
    """The progress of a search: candidates, candidates per second, elites, champion errors, time for the budget."""

    def __init__(self, budget: int, line: Line, workers: Callable[[], str] = lambda: "") -> None:
        self.line, self.budget, self.workers = line, budget, workers
        self.resumed = 0  # outcomes that are in the journal already
        self.rate = Rate()
        self.models: Callable[[], str] | None = None  # the state of the language models, in words

    def update(self, population: Population) -> None:
        """Call when the population has received an outcome."""
        if population.proposals >= self.resumed:
            done = self.rate.done(population.fitted, bool(self.resumed))
            if done or population.fitted < self.budget:  # else a finished run is resumed
                self.line.update(lambda: self._text(population, done))

    def asking(self, text: str) -> None:
        """Call while the search waits for language models."""
        self.line.update(lambda: text)

    def stage(self, name: str) -> None:
        """Call when something other than the search begins."""
        self.line.show(f"{name} ...")

    def close(self) -> None:
        """End the line."""
        self.line.close()

    def _text(self, population: Population, done: int) -> str:
        rate = self.rate.per_s(done)
        speed = f", {rate:.1f}/s" if done else ""  # a resumed search begins with candidates of earlier processes
        left = ", time left unknown"
        if done >= 10:  # the search may end sooner, and polishes its finalists then
            left = f", {(self.budget - population.fitted) / rate:.0f} s to the end of the budget"
        models = f", {self.models()}" if self.models else ""
        workers = f", {state}" if (state := self.workers()) else ""
        best = population.champion()
        errors = "no champion yet"
        if best is not None:
            left_out = "" if best.group_out is None else f", {best.group_out:.2f} % on runs left out"
            errors = f"champion's mean error {best.mean_error:.2f} %{left_out}"
        accepted = len(population.archive.members())
        return (
            f"{population.fitted}/{self.budget} candidates{speed}{workers}, {accepted} accepted, "
            f"{errors}{models}{left if population.fitted < self.budget else ''}"
        )
