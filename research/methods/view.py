"""The board as tables: accuracy, what was held out, cost and verdicts, and where every row comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from evolve import __version__
from evolve.output.columns import Column, figures, words
from evolve.output.printing import markdown, note, prose, show
from evolve.output.table import Table
from evolve.output.terminal import command, suggest
from evolve.output.terms import TERMS
from research.methods.bench import PROGRAMS, Bench
from research.methods.board import WORTH_POINTS, Board, BoardRow, Interval, Loads, Worth, worth
from research.methods.entries import HINDSIGHT, NESTED
from research.methods.hypotheses import H1Verdict, H2Verdict, H3Verdict, smallest_p
from research.methods.protocol import protocol
from research.methods.result import IN_SAMPLE
from simulator.common.text import counted

SKIPPED = "skipped"
LEGEND = f"""\
MAPE: {TERMS["MAPE"]}. Best held-out error first. by: own, step_time by its authors'
training on measured step times, the delays around it on load stages; ours, everything on load stages, as in
`evolve fit`; none, nothing is fitted; search, {NESTED};
hindsight, our fit of a {HINDSIGHT}; published, what others published. Errors in percent,
absolute, means over runs. Held out: predicted by constants that were trained without these runs. The forms of methods
are of people who had seen some."""
ACCURACY = """\
Trained on all runs, in sample. valid, test: MAPE of single steps on these fifths of every run's cycles; own training
chooses by valid, nothing sees test; r: correlation on test. E2E to p99: of replays of whole loads (p99: of E2E); 95 %:
bootstrap interval over runs; pass: runs with errors that h2 allows."""
HELD_OUT = """\
LOMO, LOWO: one model, one workload left out in turn; (18): of so many runs only; 95 %: over runs, or over whole models,
of which believe the wider; TTFT, worst (of E2E): of LOMO."""
BY_ARCHITECTURE = """\
E2E by architecture: in sample, LOMO, and trained on the other one (to MoE: on dense models alone). steps: MAPE of all
cycles of models left out. inverted: pairs of runs that LOMO orders wrongly by mean E2E."""
COST = """\
constants: that were trained, with those of the delays; CPU s: of all trainings; ns: of one step time from a batch's
sums, timed once; covers: of the host's five delays (step, queueing, output token, completion, admissions and evictions)
those that are not always 0; host: what it must know; Go: `generic`, or `trees` with a file of its ensemble. h1: by how
many points of MAPE a ridge on the form's features is better at steps than one on raw counts, and p; h2: whole loads;
h3: runs that were not fitted (docs/leaderboard.md)."""


@dataclass(frozen=True)
class _Part:
    """A table of the board: its title, its legend, its columns after the first two, and a row's cells."""

    title: str
    legend: str
    columns: tuple[Column, ...]
    cells: Callable[[BoardRow], list[str]]


def print_board(made: Board, path: Path) -> None:
    """The tables, notes, and where everything is kept."""
    note(LEGEND)
    for part in _parts(made):
        note(part.legend)
        show(_table(made, part))
    for text in notes(made):
        prose(f"- {text}")
    prose(
        f"Results: {path}; the same command shows them again without training. Programs that were trained on all runs: "
        f"{path / PROGRAMS}. --md, --csv and --json also have every row's idea, algorithm and citations."
    )
    if row := made.to_go_on_with:
        suggest(command("predict", path / PROGRAMS / row.file))


def page(made: Board, bench: Bench) -> str:
    """The board as Markdown: tables with their legends, and notes."""
    parts = [" ".join(LEGEND.split())]
    for part in _parts(made):
        parts += [f"**{part.title}**", " ".join(part.legend.split()), markdown(_table(made, part))]
    parts += ["**Where the rows come from**", markdown(origins(made), linked=True)]
    steps = sum(len(run.steps.step_id) for run in bench.runs)
    cpu_s = sum(row.cpu_s or 0.0 for row in made.rows)
    about = (
        f"{counted(len(bench.experiments), 'run')}, {counted(steps, 'recorded step')} of {len(bench.runs)} of them; "
        f"all trainings took {cpu_s:,.0f} CPU s; engine {__version__}, protocol {protocol().digest}."
    )
    parts.append("\n".join(f"- {text}" for text in [*notes(made), about]))
    return "\n\n".join(parts)


def _parts(made: Board) -> list[_Part]:
    """The tables of a board. One that the runs have nothing for, as of a single model, is left out."""
    accuracy = figures("", "valid", "test", "r", "E2E", "95 %", "worst", "TTFT", "ITL", "p99", "pass")
    parts = [_Part("Accuracy, in sample", ACCURACY, accuracy, _accuracy)]
    if made.kinds:
        hardware = ["other GPUs"] if "hardware" in made.kinds else []
        heads = figures("", "LOMO", "95 %", "by model", "TTFT", "worst", "LOWO", "95 %", *hardware)
        parts.append(_Part("Held out", HELD_OUT, heads, lambda row: _held_out(row)[: 8 if hardware else 7]))
        names = "dense", "MoE", "LOMO dense", "LOMO MoE", "to dense", "to MoE", "steps", "inverted"
        heads = figures("", *names)
        parts.append(_Part("Architectures, single steps and order", BY_ARCHITECTURE, heads, _by_architecture))
    cost = (*figures("", "constants", "CPU s", "ns", "covers"), *words("host", "Go", "h1", "h2", "h3"))
    return [*parts, _Part("Cost, way to the host, and verdicts", COST, cost, _cost)]


def _table(made: Board, part: _Part) -> Table:
    rows = [[row.name, row.by, *part.cells(row)] for row in made.rows]
    return Table.of(part.title, [words("board", "by"), part.columns], rows)


def origins(made: Board) -> Table:
    """Idea, algorithm, citations and origin of every row."""
    columns = words("board", "by", "idea", "what it is", "algorithm", "citations", "origin")
    rows = []
    for row in made.rows:
        note = row.note or ("form by people who had seen runs like these" if row.group == "method" else "")
        about = row.idea, row.what, row.algorithm, "; ".join(row.citations), note
        rows.append([row.name, row.by, *(text or "-" for text in about)])
    return Table.of("Where the rows come from", [columns], rows)


def _accuracy(row: BoardRow) -> list[str]:
    steps = [_figure(row.valid_mape), _figure(row.test_mape), _figure(row.test_r, 2)]
    loads = row.of(IN_SAMPLE)
    if row.skipped or loads is None:
        return [*steps, *[SKIPPED if row.skipped else "-"] * 7]
    figures = (loads.e2e_worst, loads.ttft, loads.itl, loads.e2e_p99)
    passing = f"{row.h2.passing}/{row.h2.runs}" if row.h2 else "-"
    return [*steps, _over(loads), _range(loads.interval_95), *map(_figure, figures), passing]


def _held_out(row: BoardRow) -> list[str]:
    if row.skipped:
        return [SKIPPED] * 8
    models, workloads, hardware = (row.of(kind) for kind in ("models", "workloads", "hardware"))
    cells = ["-"] * 5
    if models:
        ranges = _range(models.interval_95), _range(models.interval_95_by_model)
        cells = [_over(models), *ranges, _figure(models.ttft), _figure(models.e2e_worst)]
    cells += [_over(workloads), _range(workloads.interval_95)] if workloads else ["-"] * 2
    return [*cells, _over(hardware) if hardware else "-"]


def _by_architecture(row: BoardRow) -> list[str]:
    if row.skipped:
        return [SKIPPED] * 8
    cells = []
    for kind in (IN_SAMPLE, "models", "architectures"):
        loads = row.of(kind)
        cells += [_figure(loads.dense), _figure(loads.moe)] if loads else ["-"] * 2
    models = row.of("models")
    inverted = "-" if models is None or models.inversions is None else str(models.inversions)
    return [*cells, _figure(models.cycles_mape if models else None), inverted]


def _cost(row: BoardRow) -> list[str]:
    p = row.portability
    told = ["-"] * 3
    if p:
        told = [f"{p.covered}/5", p.host, f"{p.go} x {p.programs}" if p.programs > 1 else p.go]
    constants = "-" if row.constants is None or p is None else str(row.constants)
    costs = [constants, _figure(row.cpu_s), _figure(row.ns_a_step, 0)]
    verdicts = [SKIPPED] * 2 if row.skipped else [h2_text(row.h2), h3_text(row.h3)]
    return [*costs, *told, h1_text(row.h1), *verdicts]


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
    """`yes`; or `no`, or `open` where not all was judged, with how many kinds of folds hold."""
    if verdict is None:
        return "-"
    if verdict.supported:
        return "yes"
    word = "open" if verdict.open and all(verdict.holds.values()) else "no"
    return f"{word}, {sum(verdict.holds.values())} of {len(verdict.holds) + len(verdict.open)}"


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
        texts.append(
            f"Skipped, because single test steps are off by more than {made.limit_pct:.1f} %: {', '.join(skipped)}. "
            "--no-short-circuit computes them."
        )
    texts += _added(made.rows)
    texts += map(worth_text, worth(made.rows))
    if few := [v for row in made.rows if (v := row.h1) and not v.possible(protocol().h1.alpha)]:
        n, least = few[0].pairs, smallest_p(few[0].pairs)
        texts.append(f"h1 rests on {counted(n, 'run')} and cannot be supported: no p below {least:.2g} is possible.")
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
    if value is None:
        return "-"
    return f"{value:.{digits}f}" if abs(value) < 999.5 else f"{value:,.0f}"


def _over(loads: Loads) -> str:
    """The mean E2E error, with the number of runs where some are missing."""
    if not loads.runs:
        return "-"
    some = f" ({loads.runs})" if loads.runs < loads.of else ""
    return _figure(loads.e2e) + some


def _range(interval: Interval) -> str:
    return "-" if interval is None else "-".join(f"{x:.1f}" if x < 99.5 else f"{x:.0f}" for x in interval)
