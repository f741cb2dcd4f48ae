"""How far each folder is: bars in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from evolve.report.progress import EVERY_S, Line


@dataclass
class Watch:
    """Told of bytes read and of folders done."""

    sizes: Mapping[str, int]
    bars: Progress | None
    quiet: bool
    read: dict[str, int] = field(default_factory=dict)
    tasks: dict[str, Any] = field(default_factory=dict)
    done: int = 0
    shown: float = field(default_factory=time.monotonic)

    def told(self, run: str, count: int) -> None:
        self.read[run] = self.read.get(run, 0) + count
        if self.bars is not None:
            if run not in self.tasks:
                self.tasks[run] = self.bars.add_task(run, total=self.sizes[run])
            self.bars.advance(self.tasks[run], count)
            if self.read[run] >= self.sizes[run]:
                self.bars.update(self.tasks[run], description=f"{run}: tables")
        elif not self.quiet and time.monotonic() - self.shown > EVERY_S:
            self.shown = time.monotonic()
            mb, of = (sum(x.values()) / 1e6 for x in (self.read, self.sizes))
            Line().show(f"{self.done} of {len(self.sizes)} folders, {mb:.0f} of {of:.0f} MB read")

    def finished(self, run: str) -> None:
        self.done += 1
        if self.bars is not None and run in self.tasks:
            self.bars.remove_task(self.tasks[run])


@contextmanager
def watching(sizes: Mapping[str, int], quiet: bool) -> Iterator[Watch]:
    """`sizes`: bytes to read of every folder."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield Watch(sizes, None, quiet)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bars:
        yield Watch(sizes, bars, quiet)
