"""Who found what at which cost: a run's proposals by operator and by language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archive.archive import Archive
from archive.champion import champion
from archive.elite import Elite
from archive.population import proposers as names
from archive.proposal import MODEL, Outcome
from evolve.propose.llm.ledger import Row, rows
from evolve.report.run import console, new_table, number, show
from evolve.run.config import Config
from evolve.run.folder import Run, empty_archive

COUNTS = ("proposals", "fitted", "scored", "members", "front", "champions", "ancestors")


def proposers(run: Run) -> dict[str, Any]:
    """By proposer: proposals, of these fitted, scored, in the archive now (members), on its front, champions after they
    were scored, ancestors of the champion (itself included); and for models tokens and USD, also for each candidate
    that was fitted. A proposal of two operators counts for both."""
    outcomes = run.outcomes()
    archive, leaders = _leaders(run.config, outcomes)
    members, front = {e.id for e in archive.members()}, {e.id for e in archive.front}
    best = champion(archive.members(), run.config.score.rule)
    line_of = _ancestors(best, archive.by_id)
    found: dict[str, dict[str, Any]] = {}
    for outcome in outcomes:
        number = outcome.proposal.id
        for name in names(outcome.proposal.operator):
            row = found.setdefault(name, dict.fromkeys(COUNTS, 0))
            gains = (True, bool(outcome.key), bool(outcome.elite), number in members, number in front,
                     number in leaders, number in line_of)  # fmt: skip
            for count, gain in zip(COUNTS, gains, strict=True):
                row[count] += gain
    _costs(found, rows(run.lines()))
    return {
        "engine": run.about["engine"],
        "data": run.about["data"],
        "seeds": run.config.score.arrival_seeds,
        "run": str(run.path),
        "champion": best.id if best else None,
        "proposers": dict(sorted(found.items(), key=lambda item: (-item[1]["fitted"], item[0]))),
    }


def _ancestors(best: Elite | None, by_id: dict[int, Elite]) -> set[int]:
    found: set[int] = set()
    waiting = [best.id] if best else []
    while waiting:
        number = waiting.pop()
        if number in by_id and number not in found:
            found.add(number)
            waiting += by_id[number].parents
    return found


def _leaders(config: Config, outcomes: Sequence[Outcome]) -> tuple[Archive, set[int]]:
    """The archive that these outcomes make, and the ids of those that were champion in it when they were scored."""
    archive, leaders = empty_archive(config), set[int]()
    for outcome in outcomes:
        if outcome.elite:
            archive.add(outcome.elite)
            if champion(archive.members(), config.score.rule) is outcome.elite:
                leaders.add(outcome.elite.id)
    return archive, leaders


def _costs(found: dict[str, dict[str, Any]], requests: Sequence[Row]) -> None:
    for request in requests:
        purpose = request.call.split("/")[1]
        name = MODEL + request.model if purpose in ("propose", "repair") else f"{purpose}:{request.model}"
        row = found.setdefault(name, dict.fromkeys(COUNTS, 0))
        row.setdefault("tokens", 0)
        row.setdefault("usd", 0.0)
        if request.outcome != "cached":
            row["tokens"] += (request.tokens_in or 0) + (request.tokens_out or 0)
        row["usd"] += request.usd
    for row in found.values():
        row.setdefault("tokens", None)
        row.setdefault("usd", None)
        row["usd_per_fitted"] = row["usd"] / row["fitted"] if row["usd"] is not None and row["fitted"] else None


def print_proposers(result: dict[str, Any]) -> None:
    out = console()
    title = f"Who found what, {result['run']}; champion: {result['champion']}"
    heads = "proposer|" + "|".join(f">{name}" for name in COUNTS) + "|>tokens|>USD|>USD a fit"
    table = new_table(title, heads)
    for name, row in result["proposers"].items():
        tokens = "-" if row["tokens"] is None else f"{row['tokens']:,}"
        usd = [number(row[x], 4, signed=False) for x in ("usd", "usd_per_fitted")]
        table.add_row(name, *(str(row[count]) for count in COUNTS), tokens, *usd)
    show(out, table)
    out.print(
        "members: in the archive now; champions: were champion once scored; ancestors: of the champion and itself.",
        style="dim", markup=False, soft_wrap=True,
    )  # fmt: skip
