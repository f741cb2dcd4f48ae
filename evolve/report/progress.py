"""Progress lines, to stderr: of a search, candidates done, per second, accepted, best error, time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evolve.search.state import State

EVERY_S = 10.0  # between lines where stderr is not a terminal


class Line:
    """One line that is rewritten in a terminal, and line after line elsewhere."""

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self.last = ""

    def show(self, text: str) -> None:
        if self.terminal:
            print("\r" + text.ljust(len(self.last)), end="", file=sys.stderr, flush=True)
            self.last = text
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.terminal and self.last:
            print(file=sys.stderr, flush=True)
            self.last = ""


class Progress(Line):
    """How far a search is, now and then."""

    def __init__(self, budget: int, resumed: int, quiet: bool) -> None:
        super().__init__()
        self.budget, self.resumed, self.quiet = budget, resumed, quiet
        self.begun = self.shown = time.monotonic()
        self.first: int | None = None
        self.models: Callable[[], str] | None = None  # what there is to say of language models

    def update(self, state: State) -> None:
        if self.quiet or state.proposals < self.resumed:
            return
        now = time.monotonic()
        if self.first is None:
            self.first = state.fitted if self.resumed else 0
        if now - self.shown < (0.2 if self.terminal else EVERY_S):
            return
        self.shown = now
        done = state.fitted - self.first
        rate = done / max(now - self.begun, 1e-9)
        left = f"{(self.budget - state.fitted) / rate:.0f} s left" if done >= 10 else "time left unknown yet"
        models = f", {self.models()}" if self.models else ""
        best = state.champion()
        errors = "no champion yet"
        if best is not None:
            left_out = "" if best.transfer is None else f", {best.transfer:.2f} % on models left out"
            errors = f"champion's joint error {best.joint:.2f} %{left_out}"
        self.show(
            f"{state.fitted}/{self.budget} candidates, {rate:.1f}/s, {len(state.archive.members())} accepted, "
            f"{errors}{models}, {left}"
        )

    def asking(self, text: str) -> None:
        """While language models are asked and nothing can be assessed."""
        now = time.monotonic()
        if not self.quiet and now - self.shown >= (0.2 if self.terminal else EVERY_S):
            self.shown = now
            self.show(text)

    def stage(self, name: str) -> None:
        if not self.quiet:
            self.show(f"{name} ...")
