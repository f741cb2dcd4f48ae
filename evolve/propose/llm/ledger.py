"""The ledger: every request with its prompt, model, tokens, price, time and verdict, and what they come to."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evolve.propose.llm.calls import Book, Line, calls_of

FILE = "ledger.csv"
COLUMNS = ("call", "attempt", "model", "version", "prompt", "sample", "tokens_in", "tokens_out", "usd", "possibly_usd",
           "seconds", "outcome", "why", "verdict")  # fmt: skip


def rows(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """A row for every request of a journal, in the order they were sent, and for every answer from a cache.

    outcome: answered, cached, what went wrong, or possibly paid where nothing more is known. verdict: what became of
    the programs of the answer, e.g. "2 scored, 1 units".
    """
    book, verdicts = calls_of(lines), _verdicts(lines)
    out = [_row(sent, book.ended.get(key)) for key, sent in book.sent.items()]
    out += [_row(line, line) for line in book.answers.values() if line.get("cached")]
    used = {(name, line["attempt"]) for name, line in book.answers.items()}
    for row in out:  # a call may have two answers, of which one is used
        of_row = verdicts.get(row["call"], Counter()) if (row["call"], row["attempt"]) in used else Counter[str]()
        row["verdict"] = ", ".join(f"{n} {what}" for what, n in of_row.most_common())
    return out


def _row(sent: Line, end: Line | None) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= {name: sent.get(name) for name in ("call", "attempt", "model", "prompt", "sample")}
    row |= {"usd": 0.0, "possibly_usd": 0.0, "outcome": "possibly paid"}
    if end is None:
        return row | {"possibly_usd": sent["usd_at_most"]}
    row["seconds"] = end["seconds"]
    if end["state"] == "failed":
        unpaid = end["unpaid"]
        possibly = 0.0 if unpaid else sent["usd_at_most"]
        return row | {"outcome": end["kind"], "why": end["why"], "possibly_usd": possibly}
    row |= {name: end[name] for name in ("version", "tokens_in", "tokens_out")}
    cached = end.get("cached", False)
    return row | {"usd": 0.0 if cached else end["usd"], "outcome": "cached" if cached else "answered"}


def _verdicts(lines: Sequence[Line]) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for line in lines:
        if "verdict" in line and line.get("call"):
            what = "scored" if line["verdict"] == "scored" else line["stage"]
            found.setdefault(line["call"], Counter())[what] += 1
    return found


def write(path: Path, lines: Sequence[Line]) -> None:
    """The rows as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        table.writerows(rows(lines))


def summary(lines: Sequence[Line]) -> dict[str, Any]:
    """Totals of a journal, by model and in all, as plain values; {} where no model was called. Tokens of answers from a
    cache are not counted, since nobody was asked."""
    found = rows(lines)
    if not found:
        return {}
    by_model: dict[str, dict[str, Any]] = {}
    for row in found:
        total = by_model.setdefault(row["model"], _nothing())
        if row["outcome"] != "cached":
            total["requests"] += 1
            for name in ("tokens_in", "tokens_out", "usd", "possibly_usd"):
                total[name] += row[name] or 0
        total["last_fault"] = row["why"] or total["last_fault"]
        total["outcomes"][row["outcome"]] = total["outcomes"].get(row["outcome"], 0) + 1
        if row["version"] and row["version"] not in total["versions"]:
            total["versions"].append(row["version"])
    names = ("requests", "tokens_in", "tokens_out", "usd", "possibly_usd")
    book: Book = calls_of(lines)
    return {
        "models": by_model,
        **{name: sum(total[name] for total in by_model.values()) for name in names},
        "answers": len(book.answers),
        "under_way": [f"{line['call']} attempt {line['attempt']}" for line in book.under_way()],
    }


def _nothing() -> dict[str, Any]:
    return {"requests": 0, "tokens_in": 0, "tokens_out": 0, "usd": 0.0, "possibly_usd": 0.0, "outcomes": {},
            "versions": [], "last_fault": ""}  # fmt: skip
