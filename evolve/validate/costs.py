"""The cost of a study's language models, by search, from the searches' journals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from evolve.output.columns import figures, integers, words, wrapped
from evolve.output.table import Table, row, section
from evolve.run.folder import RunFolder, is_run, open_run
from evolve.search.llm import ledger
from evolve.search.llm.calls import call_log
from evolve.search.llm.ledger import beyond_budget
from evolve.summary.llm import raises
from evolve.summary.result import finished
from simulator.common.errors import InputError
from simulator.common.files import plain_folder
from simulator.common.json import JsonObject
from simulator.common.text import counted


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one search so far.

    stopped: the limit that ended it before its budget of candidates, or that models had nothing new, or "". ended:
    any reason for its end; "" until then, and in reports of earlier releases.
    """

    search: str
    requests: int
    tokens_in: int
    tokens_out: int
    usd: float
    possibly_usd: float  # of requests that may have been charged although no answer came
    stopped: str = ""
    ended: str = ""


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of a study's searches, under limits that they share."""

    limits: Mapping[str, float]  # max_usd, max_calls, max_tokens
    searches: Sequence[Cost]

    @property
    def total(self) -> Cost:
        names = ("requests", "tokens_in", "tokens_out", "usd", "possibly_usd")
        return Cost("all", *(sum(getattr(cost, name) for cost in self.searches) for name in names))

    def to_json(self) -> JsonObject:
        of_one = ("search", "stopped", "ended")
        total = {name: value for name, value in asdict(self.total).items() if name not in of_one}
        return {"limits": dict(self.limits), **total, "searches": [asdict(cost) for cost in self.searches]}


def costs_of(folder: Path, limits: Mapping[str, float]) -> Costs:
    """The costs of the runs in the folders below `folder`; every request is written to ledger.csv there."""
    runs = runs_in(folder)
    write_ledger(folder / ledger.FILE, runs)
    return Costs(limits, [_cost(run) for run in runs])


def runs_in(folder: Path) -> list[RunFolder]:
    """The runs in the folders below `folder`, by name."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return [open_run(plain_folder(path)) for path in paths if is_run(path)]


def without_answers(path: Path) -> str:
    """The end of a sentence that counts requests without an answer, which may be paid; "" if there are none.

    `path`: a run, or a folder of runs.

    >>> without_answers(Path("nowhere"))
    ''
    """
    count = 0
    with suppress(InputError, OSError):  # the folder may be what fails
        for run in [open_run(path)] if is_run(path) else runs_in(path):
            asks = run.config.search.proposer != "offline"
            count += len(call_log(run.calls()).under_way()) if asks else 0
    return f", and {counted(count, 'request')} may be paid without an answer" if count else ""


def _cost(run: RunFolder) -> Cost:
    rows = ledger.rows(run.calls())
    sent = [row for row in rows if row.outcome != "cached"]
    report = finished(run.path)
    tokens = sum(row.tokens_in or 0 for row in sent), sum(row.tokens_out or 0 for row in sent)
    usd = sum(row.usd for row in sent), sum(row.possibly_usd for row in sent)
    ends = (report.calls.get(name, "") if report else "" for name in ("stopped", "ended"))
    return Cost(run.path.name, len(sent), *tokens, *usd, *ends)


def spent_table(costs: Costs) -> Table:
    """A row for each search that asked language models, then their sum."""
    columns = [words("search"), integers("requests", "tokens in", "tokens out"), figures(".4f", "USD", "possibly more")]
    columns.append(wrapped("ended because"))
    title = f"Language models: cost by search, of {_limits(costs.limits)} for all of them together"
    return Table.of(title, columns, [*section(map(_cells, costs.searches)), row(*_cells(costs.total), style="bold")])


def _cells(cost: Cost) -> tuple[object, ...]:
    tokens = cost.tokens_in, cost.tokens_out
    return cost.search, cost.requests, *tokens, cost.usd, cost.possibly_usd, cost.ended or cost.stopped


def _limits(limits: Mapping[str, float]) -> str:
    units = {"max_calls": "requests", "max_tokens": "tokens"}
    parts = [f"{limits['max_usd']:g} USD", *(f"{limits[name]} {units[name]}" for name in units if limits[name])]
    return ", ".join(parts)


def spent_notes(costs: Costs, ledger_path: str, goes_on: str) -> list[str]:
    """The file with every request, and the command that continues a stopped search: `goes_on` with a higher limit."""
    lines = [f"Every request: {ledger_path}"]
    if stopped := {cost.search: option for cost in costs.searches if (option := raises(cost.stopped))}:
        lines.append(
            f"Stopped by their share of a limit before the budget of candidates: {', '.join(stopped)}; "
            f"`{goes_on} {next(iter(stopped.values()))} MORE` goes on."
        )
    return lines


def write_ledger(path: Path, runs: Sequence[RunFolder]) -> None:
    """Write a row for every request of these runs, with the name of its search in front."""
    named = (
        [run.path.name, *ledger.cells(row)] for run in runs for row in ledger.rows(run.calls(), beyond_budget(run))
    )
    ledger.write_table(path, ["search", *ledger.COLUMNS], named)
