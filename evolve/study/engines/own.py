"""Our own engine, whole or with a part left out, under the common judge."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any

from archive.journal import Journal
from evolve.run.program import seed_texts
from evolve.search.assessor import assess_text
from evolve.search.search import evolve
from evolve.study.engines.judge import Judge


def evolution(judge: Judge, **settings: Any) -> None:
    """`evolve.search.search.evolve` as configured, but for these `settings` of its search."""
    config = replace(judge.config, search=replace(judge.config.search, finalists=0, **settings))
    counts, judged = _Counts(judge), _Judged(judge)
    evolve(config, seed_texts(), [], counts, judged, lambda state: None)


class _Judged(Executor):
    """Hands the loop's candidates to the judge, in their order, when they are submitted."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if fn is assess_text:
            future.set_result((self.judge.assess(*args), {}))
        else:
            future.set_result(self.judge.timed(fn, *args, **kwargs))
        return future


class _Counts(Journal):
    """The loop's own journal, of which only the counts are kept."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge

    def append(self, entries: Iterable[dict[str, Any]]) -> None:
        for entry in entries:
            self.judge.proposals += 1
            if entry.get("verdict") == "rejected":
                self.judge.stages[entry["stage"]] += 1

    def close(self) -> None:
        pass
