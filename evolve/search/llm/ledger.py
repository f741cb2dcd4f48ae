"""The ledger: every request with its prompt, model, tokens, price, time and verdict, and the totals."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from archive.proposal import SCORED, is_outcome
from evolve.output.files import draft_of
from evolve.search.llm.call_log import call_log
from evolve.search.llm.calls import Answered, Failed, Sent
from evolve.search.llm.late import Late
from simulator.common.json import JsonObject

FILE = "ledger.csv"


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A request, or an answer from a cache. Unknown values are None.

    outcome: answered, cached, the kind of fault, or `possibly paid` if the end of the request is unknown. verdict: the
    outcomes of the programs in the answer, e.g. "2 scored, 1 units", and how many are beyond the budget. uncounted: the
    server gave no credible count of tokens, so those of the worst case are charged.
    """

    call: str
    attempt: int
    model: str
    version: str | None = None
    prompt: str = ""
    sample: int = 0
    tokens_in: int | None = None
    tokens_out: int | None = None
    usd: float = 0.0
    possibly_usd: float = 0.0
    seconds: float | None = None
    outcome: str = "possibly paid"
    why: str | None = None
    verdict: str = ""
    uncounted: bool = False


COLUMNS = tuple(f.name for f in fields(LedgerRow))
BEYOND = "beyond the budget"


def rows(lines: Sequence[Mapping[str, Any]], beyond: Mapping[str, Late] = {}) -> list[LedgerRow]:
    """A row for every request in a journal, in the order they were sent, then for every answer from a cache.

    `beyond`: the programs beyond the budget, see beyond_budget.
    """
    log, verdicts = call_log(lines), _verdicts(lines, beyond)
    without_verdicts = [_row(sent, log.ended.get(key)) for key, sent in log.sent.items()]
    without_verdicts += [_cached(line) for line in log.answers.values() if line.cached]
    used = {(name, line.attempt) for name, line in log.answers.items()}  # a call may have two answers
    return [
        replace(row, verdict=verdicts.get(row.call, "")) if (row.call, row.attempt) in used else row
        for row in without_verdicts
    ]


def _row(sent: Sent, end: Answered | Failed | None) -> LedgerRow:
    row = LedgerRow(sent.call, sent.attempt, sent.model, prompt=sent.prompt, sample=sent.sample)
    match end:
        case None:
            return replace(row, possibly_usd=sent.usd_at_most)
        case Failed():
            possibly_usd = 0.0 if end.unpaid else sent.usd_at_most
            return replace(row, seconds=end.seconds, outcome=end.fault, why=end.why, possibly_usd=possibly_usd)
        case Answered():
            return replace(row, version=end.version, tokens_in=end.tokens_in, tokens_out=end.tokens_out, usd=end.usd,
                           seconds=end.seconds, outcome="answered", uncounted=end.uncounted)  # fmt: skip


def _cached(line: Answered) -> LedgerRow:
    return LedgerRow(line.call, line.attempt, line.model, line.version, line.prompt, line.sample, line.tokens_in,
               line.tokens_out, seconds=line.seconds, outcome="cached")  # fmt: skip


def _verdicts(lines: Sequence[Mapping[str, Any]], beyond: Mapping[str, Late]) -> dict[str, str]:
    """The outcomes of the programs in every call's answer, counted, by call."""
    counts: dict[str, Counter[str]] = {}
    for line in lines:
        if is_outcome(line) and line.get("call"):
            stage = SCORED if line["verdict"] == SCORED else line["stage"]
            counts.setdefault(line["call"], Counter())[stage] += 1
    for call, left in beyond.items():
        counts.setdefault(call, Counter())[BEYOND] = left.programs
    return {call: ", ".join(f"{n} {stage}" for stage, n in of_call.most_common()) for call, of_call in counts.items()}


def write(path: Path, lines: Sequence[Mapping[str, Any]], beyond: Mapping[str, Late] = {}) -> None:
    """Write the ledger of a journal's lines as CSV. `beyond`: as for `rows`."""
    write_table(path, COLUMNS, (cells(row) for row in rows(lines, beyond)))


def write_table(path: Path, heads: Sequence[str], lines: Iterable[Sequence[object]]) -> None:
    """Write these lines as CSV below the heads. A fault leaves the file that was there."""
    with draft_of(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(heads)
        table.writerows(lines)


def cells(row: LedgerRow) -> list[object]:
    """The values of a row, in the order of COLUMNS."""
    return [getattr(row, name) for name in COLUMNS]


@dataclass
class Total:
    """The totals of a model's requests. Answers from a cache cost nothing, so their tokens do not count.

    uncounted, uncounted_usd: the answers without a credible count of tokens, and what is charged for them at most.
    """

    requests: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    usd: float = 0.0
    possibly_usd: float = 0.0
    uncounted: int = 0
    uncounted_usd: float = 0.0
    outcomes: dict[str, int] = field(default_factory=dict)
    versions: list[str] = field(default_factory=list)
    last_fault: str = ""

    def add(self, row: LedgerRow) -> None:
        """Count a row."""
        if row.outcome != "cached":
            self.requests += 1
            self.tokens_in += row.tokens_in or 0
            self.tokens_out += row.tokens_out or 0
            self.usd += row.usd
            self.possibly_usd += row.possibly_usd
            self.uncounted += row.uncounted
            self.uncounted_usd += row.usd if row.uncounted else 0.0
        self.last_fault = row.why or self.last_fault
        self.outcomes[row.outcome] = self.outcomes.get(row.outcome, 0) + 1
        if row.version and row.version not in self.versions:
            self.versions.append(row.version)


def summary(lines: Sequence[Mapping[str, Any]]) -> JsonObject:
    """Totals of a journal, by model and overall, as JSON values; {} if no model was called."""
    by_model: dict[str, Total] = {}
    for row in rows(lines):
        by_model.setdefault(row.model, Total()).add(row)
    if not by_model:
        return {}
    names = ("requests", "tokens_in", "tokens_out", "usd", "possibly_usd", "uncounted", "uncounted_usd")
    log = call_log(lines)
    return {
        "models": {model: asdict(total) for model, total in by_model.items()},
        **{name: sum(getattr(total, name) for total in by_model.values()) for name in names},
        "answers": len(log.answers),
        "under_way": log.under_way(),
    }
