"""The ledger: every request with its prompt, model, tokens, price, time and verdict, and the totals."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from archive.proposal import SCORED, is_outcome
from evolve.output.columns import column, columns_of, row_class
from evolve.run.folder import RunFolder
from evolve.search.llm.answer import ideas
from evolve.search.llm.calls import Answered, Failed, Sent, call_log, parts_of, proposes
from simulator.common.files import draft_of
from simulator.common.json import JsonObject

FILE = "ledger.csv"
BEYOND = "beyond the budget"


@row_class
class LedgerRow:
    """A request, or an answer from a cache. Unknown values are None."""

    call: str = column("name of the call", paper=True)
    attempt: int = column("number of the attempt, from 0", paper=True)
    model: str = column("the model that was asked", paper=True)
    version: str | None = column("the model that answered, as it calls itself", default=None)
    prompt: str = column("digest of the prompt", default="")
    sample: int = column("number of the answer to this prompt", default=0)
    tokens_in: int | None = column("tokens of the prompt", default=None, paper=True)
    tokens_out: int | None = column("tokens of the answer", default=None, paper=True)
    usd: float = column("price", default=0.0, paper=True)
    possibly_usd: float = column("the most that a request may have cost if its end is not known", default=0.0)
    seconds: float | None = column("time to the answer", default=None, paper=True)
    outcome: str = column(
        "`answered`, `cached`, `possibly paid`, or the kind of fault", default="possibly paid", paper=True
    )
    why: str | None = column("the fault in words", default=None)
    verdict: str = column("outcomes of the programs in the answer, and how many are beyond the budget", default="")
    uncounted: bool = column("the server gave no credible count of tokens, so the most is charged", default=False)


COLUMNS = tuple(c.name for c in columns_of(LedgerRow))


@dataclass(frozen=True, slots=True)
class Late:
    """The programs of an answer that are beyond the budget, and their share of the answer's cost."""

    programs: int
    usd: float


def beyond_budget(run: RunFolder) -> dict[str, Late]:
    """The programs that came when the budget of candidates was full, by the name of the call. They are paid for.

    They are in answers of the last generation that asked, and have no outcome. An answer's programs have their outcomes
    in order, so those without one are its last.
    """
    fitted, used, calls = 0, Counter[str](), list[JsonObject]()
    for line in run.each_line():
        if is_outcome(line):
            fitted += bool(line.get("key"))
            used[line.get("call", "")] += 1
        else:
            calls.append(line)
    if fitted < run.config.budget:
        return {}
    log = call_log(calls)
    asked = {name: answer for name, answer in log.answers.items() if proposes(parts_of(name)[1])}
    last = max((parts_of(name)[0] for name in asked), default=0)
    most = min(run.config.llm.programs, run.config.search.batch)
    found = {}
    for name, answer in asked.items():
        if parts_of(name)[0] == last:
            given = sum(idea.given for idea in ideas(log.text(name), "", most))
            if left := max(given - used[name], 0):
                found[name] = Late(left, 0.0 if answer.cached else answer.usd * left / given)
    return found


def rows(lines: Sequence[Mapping[str, Any]], beyond: Mapping[str, Late] = {}) -> list[LedgerRow]:
    """A row for every request in a journal, in the order they were sent, then for every answer from a cache."""
    log, verdicts = call_log(lines), _verdicts(lines, beyond)
    found = [_row(sent, log.ended.get(key)) for key, sent in log.sent.items()]
    cached = (_answered(line) for line in log.answers.values() if line.cached)
    found += [replace(row, usd=0.0, outcome="cached") for row in cached]
    used = {(name, line.attempt) for name, line in log.answers.items()}  # a call may have two answers
    return [replace(r, verdict=verdicts.get(r.call, "")) if (r.call, r.attempt) in used else r for r in found]


def _row(sent: Sent, end: Answered | Failed | None) -> LedgerRow:
    if isinstance(end, Answered):
        return _answered(end)
    row = LedgerRow(sent.call, sent.attempt, sent.model, prompt=sent.prompt, sample=sent.sample)
    if end is None:
        return replace(row, possibly_usd=sent.usd_at_most)
    possibly_usd = 0.0 if end.unpaid else sent.usd_at_most
    return replace(row, seconds=end.seconds, outcome=end.fault, why=end.why, possibly_usd=possibly_usd)


def _answered(line: Answered) -> LedgerRow:
    return LedgerRow(**{name: getattr(line, name) for name in COLUMNS if hasattr(line, name)}, outcome="answered")


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
    """Write the ledger of a journal's lines as CSV."""
    write_table(path, COLUMNS, (cells(row) for row in rows(lines, beyond)))


def write_table(path: Path, heads: Sequence[str], lines: Iterable[Sequence[object]]) -> None:
    """Write these lines as CSV below the heads. A fault leaves the file that was there."""
    with draft_of(path, kept=True) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(heads)
        table.writerows(lines)


def cells(row: LedgerRow) -> list[object]:
    return [getattr(row, name) for name in COLUMNS]


def _totals(rows: Iterable[LedgerRow]) -> JsonObject:
    """The totals of a model's requests. Answers from a cache cost nothing, so their tokens do not count."""
    rows = list(rows)
    sent = [row for row in rows if row.outcome != "cached"]
    faults = [row.why for row in rows if row.why]
    return {
        "requests": len(sent),
        "tokens_in": sum(row.tokens_in or 0 for row in sent),
        "tokens_out": sum(row.tokens_out or 0 for row in sent),
        "usd": sum(row.usd for row in sent),
        "possibly_usd": sum(row.possibly_usd for row in sent),
        "uncounted": sum(row.uncounted for row in sent),
        "uncounted_usd": sum(row.usd for row in sent if row.uncounted),
        "outcomes": dict(Counter(row.outcome for row in rows)),
        "versions": list(dict.fromkeys(row.version for row in rows if row.version)),
        "last_fault": faults[-1] if faults else "",
    }


def summary(lines: Sequence[Mapping[str, Any]]) -> JsonObject:
    """Totals of a journal, by model and overall, as JSON values; {} if no model was called."""
    by_model: dict[str, list[LedgerRow]] = {}
    for row in rows(lines):
        by_model.setdefault(row.model, []).append(row)
    if not by_model:
        return {}
    log, models = call_log(lines), {model: _totals(of_model) for model, of_model in by_model.items()}
    summed = ("requests", "tokens_in", "tokens_out", "usd", "possibly_usd", "uncounted", "uncounted_usd")
    return {
        "models": models,
        **{name: sum(of_model[name] for of_model in models.values()) for name in summed},
        "answers": len(log.answers),
        "under_way": log.under_way(),
    }
