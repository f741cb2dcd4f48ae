"""What `evolve drift` prints: residuals, tests before and after refits, the verdict, and how to go on."""

from __future__ import annotations

from collections.abc import Sequence

from evaluator.score import MEANS
from evolve.calibrate.drift import BOTH, CANNOT_TELL, Drift
from evolve.calibrate.drift_tests import LEVEL, NAMES, ChannelTest
from evolve.calibrate.error_scale import IN_SAMPLE
from evolve.output.columns import figures, words
from evolve.output.printing import note, prose, show
from evolve.output.table import Table, number, row
from evolve.output.terminal import command, suggest
from simulator.common.text import counted

MOST_PCT = 1000  # a larger shift is only called so
LEGEND = f"""\
Residuals of load stages: log(observed / predicted) in percent, above 0 where the engine took longer than predicted. The
errors of `evolve predict` have the other sign. In brackets they are divided by their usual size: the program's
{{scale}}, and the noise of one draw of arrivals. The tests share a level of {100 * LEVEL:g} %: of a hundred checks
without drift, about one is a false alarm. shift: the mean over models (Student's t). spread: the differences of models
and load stages from it (Fisher's F). pace: ITL, or E2E where none was measured."""


def print_drift(result: Drift, file: str) -> None:
    """The residuals, the tests before and after the refits, the verdict, and the command to continue with."""
    note(LEGEND.format(scale=result.scale))
    show(_residuals_table(result))
    show(_tests_table(result))
    if result.scale == IN_SAMPLE:
        prose(
            "- No held-out errors of this program are known, so its errors in sample stand for them: they are "
            "smaller, so of several runs there are more false alarms than stated."
        )
    for ident, why in result.left_out.items():
        prose(f"- {ident} is left out: {why}")
    for line in result.undecided:
        prose(f"- {line}")
    shifts = result.least_shift_pct.items()
    found = [f"{_percent(pct)} in {NAMES[channel]}" for channel, pct in shifts if pct is not None]
    if found:
        prose(f"- These runs would show a shift of the mean from {' or '.join(found)} on, at a power of 50 %.")
    if result.verdict == BOTH:
        prose(
            "- Constants before the queue are named even if TTFT is as predicted: it contains steps, and with the "
            "recalibrated ones it would be off."
        )
    if result.alone:
        prose(f"- {_alone(result, file)}")
    where = f"{counted(len(result.used), 'run')}, {counted(len(result.residuals), 'load stage')}"
    if result.alone:
        where += f", {len(result.alone)} outside the 95 % intervals"
    prose(f"{result.name}: {result.verdict} ({where})", "bold")
    if following := result.next_command(file):
        suggest(following)


def _alone(result: Drift, file: str) -> str:
    runs = [
        f"{ident} ({', '.join(f'{name.upper()} {number(pct, 1)} %' for name, pct in of_run.items())})"
        for ident, of_run in result.alone.items()
    ]
    outside = f"Outside the 95 % intervals of `evolve predict`: {', '.join(runs)}."
    if result.verdict == CANNOT_TELL:
        return f"{outside} These runs cannot tell a drift from chance: measure more."
    again = command("drift", result.name, "--experiments", file, "--id", ",".join(result.alone))
    return f"{outside} Chance explains so few of {len(result.used)}; `{again}` tests them without the others."


def _percent(pct: float) -> str:
    return f"about {pct:.0f} %" if pct <= MOST_PCT else f"more than {MOST_PCT:,} %"


def _residuals_table(result: Drift) -> Table:
    rows = []
    for r in result.residuals:
        cells = []
        for name in MEANS:
            ratio, z = r.log_ratio[name], r.z(name)
            cells.append("-" if ratio is None else f"{100.0 * ratio:+.1f} ({number(z)})")
        rows.append(row(r.experiment, r.stage + 1, r.rate, *cells))
    columns = [words("experiment"), figures("d", "stage"), figures("g", "load")]
    columns.append(figures("", "E2E", "TTFT", "ITL"))
    return Table.of(f"Measurements against {result.name}", columns, rows)


def _tests_table(result: Drift) -> Table:
    columns = [(t.channel, t.kind) for t in result.tests]
    rows = [row("as it is", *_cells(result.tests, columns))]
    for r in result.refits:
        rows.append(row(r.verdict.replace("recalibrate ", "") + " fitted again", *_cells(r.tests, columns)))
    heads = [words("constants"), figures("", *(f"{channel} {kind}" for channel, kind in columns)), words("verdict")]
    title = f"Tests: p, each rejects below {LEVEL / max(len(columns), 1):.2g}"
    return Table.of(title, heads, rows)


def _cells(tests: Sequence[ChannelTest], columns: Sequence[tuple[str, str]]) -> list[str]:
    by = {(t.channel, t.kind): t for t in tests}
    cells = [f"{by[c].p:.2g}{' *' if by[c].rejects else ''}" if c in by else "-" for c in columns]
    return [*cells, "off" if any(t.rejects for t in tests) else "noise"]
