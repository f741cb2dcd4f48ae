"""The board as tables: accuracy, what was held out, cost and verdicts, and where every row comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evolve.methods.bench import PROGRAMS, Bench
from evolve.methods.board import WORTH_POINTS, Board, BoardRow, Interval, Loads, Worth, worth
from evolve.methods.entries import HINDSIGHT, NESTED
from evolve.methods.hypotheses import H1Verdict, H2Verdict, H3Verdict, smallest_p
from evolve.methods.protocol import protocol
from evolve.methods.result import IN_SAMPLE
from evolve.report.printing import markdown, note, prose, show
from evolve.report.table import Table, counted
from evolve.terminal import command, suggest

SKIPPED = "skipped"
LEGEND = f"""\
Best held-out error first. by: own, step_time by its authors' training on measured step times, the delays around it on
load stages; ours, everything on load stages, as in `evolve fit`; none, nothing is fitted; search, {NESTED}; published,
what others published. Errors in percent, absolute, means over runs; held out: predicted by constants that were trained
without these runs. The forms are of people who had seen some of them, unless by is search."""
ACCURACY = """\
In sample: trained on all runs. valid, test: the MAPE of single steps on these fifths of every run's cycles, which no
own training fits; r: correlation on test. E2E to p99: of a replay of whole loads (p99: of E2E); 95 %: bootstrap
interval over runs; dense, MoE: E2E on these runs; pass: runs within the limits of h2."""
HELD_OUT = """\
LOMO, LOWO: leave one model, one workload out; 95 %: over runs, and over whole models; dense to MoE: trained on dense
models, predicts mixtures of experts; steps: MAPE of all cycles of models left out; inverted: pairs of runs that LOMO
orders wrongly by mean E2E. Nothing can be held out by hardware: all shipped runs have one GPU."""
COST = """\
constants: that were trained, those of the delays too; CPU s: of all trainings; ns: of one step time from the sums of
a batch, measured once, on a busy machine; covers: of the five delays of the host's latency model (step, queueing, output token,
completion, admissions and evictions), those that are not always 0; host: what it must know; Go: `generic`, `trees`
with a file of its ensemble. h1: points of step error by which a ridge on the form's features is better than one on raw
counts, and p; h2, h3: of whole loads, and of runs that were not fitted (docs/leaderboard.md)."""


@dataclass(frozen=True)
class _Part:
    """A table of the board: its title, its legend, and the heads and cells of its columns."""

    title: str
    legend: str
    heads: str


_PARTS = {
    "accuracy": _Part("Accuracy, in sample", ACCURACY,
                      ">valid|>test|>r|>E2E|>95 %|>worst|>TTFT|>ITL|>p99|>dense|>MoE|>pass"),
    "held out": _Part("Held out", HELD_OUT,
                      ">LOMO|>95 %|>by model|>TTFT|>worst|>LOWO|>95 %|>dense to MoE|>MoE to dense|>steps|>inverted"),
    "cost": _Part("Cost, way to the host, and verdicts", COST, ">constants|>CPU s|>ns|>covers|host|Go|h1|h2|h3"),
}  # fmt: skip


def print_board(made: Board, path: Path) -> None:
    """The tables, notes, and where everything is kept."""
    note(LEGEND)
    for table, part in zip(tables(made), _PARTS.values(), strict=True):
        note(part.legend)
        show(table)
    for text in notes(made):
        prose(f"- {text}")
    prose(
        f"Results: {path}; the same command shows them again without training. Programs that were trained on all runs: "
        f"{path / PROGRAMS}. --md, --csv and --json also have every row's idea, algorithm and citations."
    )
    if made.best:
        suggest(command("predict", path / PROGRAMS / made.best.file))


def page(made: Board, bench: Bench) -> str:
    """The board as Markdown: tables with their legends, and notes."""
    parts = [" ".join(LEGEND.split())]
    for table, part in zip(tables(made), _PARTS.values(), strict=True):
        parts += [f"**{table.title}**", " ".join(part.legend.split()), markdown(table)]
    parts += ["**Where the rows come from**", markdown(origins(made))]
    steps = sum(len(run.steps.step_id) for run in bench.runs)
    about = f"{counted(len(bench.experiments), 'run')}, {counted(steps, 'recorded step')} of {len(bench.runs)} of them"
    parts.append("\n".join(f"- {text}" for text in [*notes(made), f"{about}; protocol {protocol().digest}."]))
    return "\n\n".join(parts)


def tables(made: Board) -> list[Table]:
    """The tables, a row for each row of the board."""
    cells = {"accuracy": _accuracy, "held out": _held_out, "cost": _cost}
    return [
        Table.of(part.title, f"board|by|{part.heads}", [[row.name, row.by, *cells[name](row)] for row in made.rows])
        for name, part in _PARTS.items()
    ]


def origins(made: Board) -> Table:
    """Idea, algorithm, citations and origin of every row."""
    rows = [
        [row.name, row.by, row.idea or "-", row.what or "-", row.algorithm or "-", "; ".join(row.citations) or "-",
         row.note or ("form by people who had seen runs like these" if row.group == "method" else "-")]
        for row in made.rows
    ]  # fmt: skip
    return Table.of("Where the rows come from", "board|by|idea|what it is|algorithm|citations|origin", rows)


def _accuracy(row: BoardRow) -> list[str]:
    steps = [_figure(row.valid_mape), _figure(row.test_mape), _figure(row.test_r, 2)]
    if row.skipped:
        return [*steps, *[SKIPPED] * 9]
    return [*steps, *_in_sample(row.of(IN_SAMPLE)), _passing(row)]


def _in_sample(loads: Loads | None) -> list[str]:
    if loads is None:
        return ["-"] * 8
    figures = (loads.e2e_worst, loads.ttft, loads.itl, loads.e2e_p99, loads.dense, loads.moe)
    return [_over(loads), _range(loads.interval_95), *map(_figure, figures)]


def _passing(row: BoardRow) -> str:
    if row.h2 is None:
        return "-"
    return f"{row.h2.passing}/{row.h2.runs}"


def _held_out(row: BoardRow) -> list[str]:
    if row.skipped:
        return [SKIPPED] * 11
    models, workloads, both = (row.of(kind) for kind in ("models", "workloads", "architectures"))
    cells = ["-"] * 5
    if models:
        ranges = _range(models.interval_95), _range(models.interval_95_by_model)
        cells = [_over(models), *ranges, _figure(models.ttft), _figure(models.e2e_worst)]
    cells += [_over(workloads), _range(workloads.interval_95)] if workloads else ["-"] * 2
    cells += [_figure(both.moe), _figure(both.dense)] if both else ["-"] * 2
    inverted = "-" if models is None or models.inversions is None else str(models.inversions)
    return [*cells, _figure(models.cycles_mape if models else None), inverted]


def _cost(row: BoardRow) -> list[str]:
    p = row.portability
    told = [f"{p.covered}/5", p.host, p.go + f" x {p.programs}" * (p.programs > 1)] if p else ["-"] * 3
    constants = "-" if row.constants is None or p is None else str(row.constants)
    return [
        constants, _figure(row.cpu_s), _figure(row.ns_a_step, 0), *told, h1_text(row.h1),
        SKIPPED if row.skipped else h2_text(row.h2), SKIPPED if row.skipped else h3_text(row.h3),
    ]  # fmt: skip


def h1_text(verdict: H1Verdict | None) -> str:
    """`yes +27.1, p 0.0004`; `too few` where no result could have supported it."""
    if verdict is None:
        return "-"
    if not verdict.possible(protocol().h1.alpha):
        return f"too few {verdict.points:+.1f}"
    p = "-" if verdict.p is None else f"{verdict.p:.1g}" if verdict.p < 0.01 else f"{verdict.p:.2f}"
    return f"{_word(verdict.supported)} {verdict.points:+.1f}, p {p}"


def h2_text(verdict: H2Verdict | None) -> str:
    """`yes` or `no`."""
    return "-" if verdict is None else _word(verdict.supported)


def h3_text(verdict: H3Verdict | None) -> str:
    """`yes`, or `no`, with how many kinds of folds hold."""
    if verdict is None:
        return "-"
    holds = sum(verdict.holds.values())
    return _word(verdict.supported) if verdict.supported else f"no, {holds} of {len(verdict.holds)}"


def _word(supported: bool) -> str:
    return "yes" if supported else "no"


def notes(made: Board) -> list[str]:
    """Why trainings came to nothing, what was skipped, and what the figures rest on."""
    failed: dict[str, dict[str, None]] = {}
    for row in made.rows:
        for why in row.failures:
            failed.setdefault(why, {})[f"{row.name} ({row.by})"] = None
    texts = [f"{', '.join(names)}: {why}." for why, names in failed.items()]
    skipped = [f"{row.name} ({row.by})" for row in made.rows if row.skipped]
    if skipped and made.limit_pct is not None:
        texts.append(f"Skipped, because single test steps are off by more than {made.limit_pct:.1f} %: "
                     f"{', '.join(skipped)}. --no-short-circuit computes them.")  # fmt: skip
    texts += _added(made.rows)
    texts += map(worth_text, worth(made.rows))
    if few := [v for row in made.rows if (v := row.h1) and not v.possible(protocol().h1.alpha)]:
        n = few[0].pairs
        texts.append(f"h1 rests on {counted(n, 'run')}: no p below {smallest_p(n):.2g} is possible, so it cannot be "
                     "supported.")  # fmt: skip
    if times := max((row.times or 0 for row in made.rows), default=0):
        rests = f"Own protocols rest on at most {counted(times, 'measured time')}: cycles where steps were recorded,"
        texts.append(f"{rests} elsewhere the mean ITL of each load stage.")
    missing = [kind for kind in protocol().h3.kinds if kind not in made.kinds]
    if missing:
        texts.append(f"Nothing is held out by {' or '.join(missing)}: the runs have one only.")
    if any(row.group == "published" for row in made.rows):
        texts.append("Published ITL errors refer to the load generator's ITL, which is half the true one.")
    return texts


def _added(rows: Sequence[BoardRow]) -> list[str]:
    """Where the forms of programs come from."""
    programs = [row for row in rows if row.group in ("champion", "yours")]
    texts = [f"{row.name} ({row.by}): {row.note}." for row in programs]
    if any(HINDSIGHT in row.note for row in programs):
        texts.append("Held-out errors of a form that was chosen with these runs in sight hold its constants out only.")
    return texts


def worth_text(verdict: Worth) -> str:
    """The verdict in words."""
    state = "pay" if verdict.justified else "do not pay"
    return (
        f"Constants of its own {state} a model ({verdict.protocol}): on workloads held out {verdict.shared} is "
        f"{verdict.shared_e2e:.1f} % off, {verdict.own} {verdict.own_e2e:.1f} %; they have to be {WORTH_POINTS:g} "
        "points better."
    )


def _figure(value: float | None, digits: int = 1) -> str:
    """A figure that fits a narrow column."""
    if value is None:
        return "-"
    return f"{value:.{digits}f}" if abs(value) < 999.5 else f"{value:,.0f}"


def _over(loads: Loads) -> str:
    """The mean E2E error, with the number of runs where some are missing."""
    if not loads.runs:
        return "-"
    some = f" ({loads.runs} of {loads.of})" if loads.runs < loads.of else ""
    return _figure(loads.e2e) + some


def _range(interval: Interval) -> str:
    return "-" if interval is None else "-".join(f"{x:.1f}" if x < 99.5 else f"{x:.0f}" for x in interval)
