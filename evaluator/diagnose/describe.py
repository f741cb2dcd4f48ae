"""A program and its data as compact text, for a language model that proposes a better form.

Runs are named by their deployment, D1, D2, ..., and their workload: long names would take a third of the text.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain

from archive.score import Errors
from evaluator.assess import AssessData
from evaluator.cells import cell_of
from evaluator.diagnose.diagnose import Correlation, Diagnosis, TtftParts, chance, diagnose
from evaluator.diagnose.examine import Examination, examine
from evaluator.diagnose.tables import SAME_PCT, SHARED, Groups, Listing, by_group, disagreement, numbered, tables
from evaluator.group_out import left_out
from simulator.common.text import listed
from simulator.language.ir import Program
from simulator.schema import FIELDS, marked
from simulator.serving.experiment import Experiment

STRONGEST = 3  # fields shown per residual
RESIDUALS = {"step_us": "step us", "ttft_us": "TTFT us"}  # those whose correlations are shown; others repeat them
LABELS = RESIDUALS | {"itl_error_pct": "ITL %", "ttft_error_pct": "TTFT %", "e2e_error_pct": "E2E %"}
ALIKE = 3  # fields or terms named as like another one; the rest are counted
MOST_RUNS = 40  # up to which each has a line
MOST_TRIED = 12  # lines of a trial
MOST_TTFT = 6  # runs whose TTFT is split into its parts: those with the largest errors of it
MOST_CHANGES = 3  # runs in a comparison with another program: those that differ most
LEAST_SHARE = 0.05  # of the kernels' time, to be shown
# The columns of the table of deployments; those with one value only are named once, above it.
SHAPE = tuple(f.name for f in marked("shape"))


def _fact(name: str, e: Experiment) -> str:
    return f"{e.facts[name]:g}"


COLUMNS: dict[str, Callable[[Experiment], str]] = {
    "GPU": lambda e: e.hardware,
    "engine": lambda e: f"{e.engine.name} {e.engine.version or 'of unknown version'}",
    "max_num_seqs": lambda e: str(e.engine.max_num_seqs),
    "max_num_batched_tokens": lambda e: str(e.engine.max_num_batched_tokens),
    **{name: partial(_fact, name) for name in SHAPE},
}


def describe(program: Program, data: AssessData, near: Mapping[int, Program]) -> tuple[Listing, ...]:
    """The program's errors and its doubts: by run for a few that are all replayed, else by cell.

    near: other programs of the search that are about as good, by their numbers.
    """
    examination, of = examine(program, data), groups_of(data)
    if by_run(data):
        found = runs(diagnose(program, data), examination, data.score.experiments)
    else:
        one = one_value(data.fit.experiments)
        only = Listing("Fields with one value in these runs, of which nothing can be learned:", (", ".join(one),))
        found = [*tables(examination, data, of), *([only] if one else [])]
        of = {number: of[name] for name, number in numbered(of).items()}
    found += [disagreement(program, data, near, of), Listing("Doubts", tuple(doubts(examination).splitlines()))]
    return tuple(listing for listing in found if listing.lines)


def by_run(data: AssessData) -> bool:
    """True if every run has a line of its own."""
    return not data.fit.in_steps.any() and len(data.fit.experiments) <= MOST_RUNS


def groups_of(data: AssessData) -> Groups:
    """The positions of the runs that share a line, by its name: single runs (see run_names), or cells."""
    if by_run(data):
        return {name: [i] for i, name in enumerate(run_names(data.fit.experiments).values())}
    names = [cell_of(e) for e in data.fit.experiments]
    return dict(zip(dict.fromkeys(names), left_out(names), strict=True))


def runs(diagnosis: Diagnosis, examination: Examination, experiments: Sequence[Experiment]) -> list[Listing]:
    """The deployments, the program's errors by run, and what they go along with."""
    found = [_deployments(diagnosis, experiments), _runs(diagnosis, examination, experiments), _correlations(diagnosis)]
    return [listing for listing in found if listing]


def run_names(experiments: Sequence[Experiment]) -> dict[str, str]:
    """The short name of each experiment, such as `D2 chat`, by id; MoE models have a star, `D2* chat`."""
    numbers: dict[tuple[str, ...], int] = {}
    for e in experiments:
        numbers.setdefault(_deployment(e), len(numbers) + 1)
    names = [f"{_label(numbers[_deployment(e)], e)} {e.workload.name}" for e in experiments]
    count = Counter(names)
    seen: Counter[str] = Counter()
    short = {}
    for e, name in zip(experiments, names, strict=True):
        seen[name] += 1
        short[e.id] = f"{name} {seen[name]}" if count[name] > 1 else name
    return short


def _label(number: int, e: Experiment) -> str:
    return f"D{number}*" if e.facts["is_moe"] else f"D{number}"


def one_value(experiments: Sequence[Experiment]) -> tuple[str, ...]:
    """The s. fields with the same value in all experiments, in the order of the schema: they teach nothing."""
    return tuple(
        f"s.{name}"
        for scope, name in FIELDS
        if scope == "s" and name in experiments[0].facts and len({e.facts[name] for e in experiments}) == 1
    )


def grouped_left_out(examination: Examination, data: AssessData) -> tuple[Errors, ...]:
    """The errors left out of the groups of runs that share a line, under its name; none for a single run."""
    return by_group(examination.mean_left_out, groups_of(data)) if examination.left_out else ()


def left_out_changes(before: Sequence[Errors], after: Sequence[Errors]) -> str:
    """The errors on left-out runs that differ by more than SAME_PCT, those of `before` first; "" if none are known.

    Both are rows of `grouped_left_out` on the same experiments.
    """
    rows = {row.experiment: row for row in after}
    pairs = [(row, rows[row.experiment]) for row in before if row.experiment in rows]
    if not pairs:
        return ""
    changed = [(a, b) for a, b in pairs if _change(a, b) > SAME_PCT]
    if not changed:
        return f"Left out: within {SAME_PCT:g} points of its parent's everywhere."
    shown = sorted(changed, key=lambda pair: -_change(*pair))[:MOST_CHANGES]
    with_itl = _itl_differs([row for pair in shown for row in pair])
    heads = "E2E TTFT ITL" if with_itl else "E2E TTFT"
    texts = [f"{a.experiment} {_errors(a, with_itl)} -> {_errors(b, with_itl)}" for a, b in shown]
    more = f"; {len(changed) - len(shown)} more" if len(changed) > len(shown) else ""
    title = f"Left out, {heads} %, parent's -> own, on {len(changed)} of {len(pairs)}"
    return f"{title}: {'; '.join(texts)}{more}."


def _change(a: Errors, b: Errors) -> float:
    """The largest difference of two rows of errors, in points; one that only one of them has counts as any."""
    both = ((a.e2e, b.e2e), (a.ttft, b.ttft), (a.itl, b.itl))
    known = [(x, y) for x, y in both if not (x is None and y is None)]
    return max((math.inf if x is None or y is None else abs(x - y) for x, y in known), default=0.0)


def left_out_table(examination: Examination, data: AssessData) -> str:
    """A line for every run, or cell, with its errors when fitted and when left out; those with the largest."""
    rows = by_group(examination.fitted, groups_of(data))
    pairs = list(zip(rows, grouped_left_out(examination, data) or (None,) * len(rows), strict=True))
    pairs.sort(key=_largest)
    with_itl = _itl_differs([row for pair in pairs for row in pair])
    heads = "E2E TTFT ITL" if with_itl else "E2E TTFT"
    lines = [f"{row.experiment} | {_errors(row, with_itl)} | {_errors(other, with_itl)}" for row, other in pairs]
    where = "run" if by_run(data) else "cell, signed means"
    return Listing(f"{where} | {heads} % fitted | left out", tuple(lines), " with smaller errors").text(MOST_TRIED)


def doubts(examination: Examination) -> str:
    """A line for each doubt about the program's form or constants; "" without one."""
    lines = [f"At a bound: {sentence}." for sentence in examination.at_bounds]
    if examination.undecided:
        lines.append(f"Not decided by these runs, and of no use to them: {', '.join(examination.undecided)}.")
    lines += [f"Contradicts what was measured or a datasheet: {why}." for why in examination.contradictions]
    return "\n".join(lines)


def _deployment(e: Experiment) -> tuple[str, ...]:
    return (e.model, f"tp{e.engine.tensor_parallel}", *(text(e) for text in COLUMNS.values()))


def _deployments(diagnosis: Diagnosis, experiments: Sequence[Experiment]) -> Listing:
    """A line for every deployment, with the shares of the measured kernels in its busiest mean step."""
    deployed: dict[tuple[str, ...], list[Experiment]] = {}
    for e in experiments:
        deployed.setdefault(_deployment(e), []).append(e)
    several = [name for name, text in COLUMNS.items() if len({text(e) for e in experiments}) > 1]
    same = [f"{name} {COLUMNS[name](experiments[0])}" for name in COLUMNS if name not in several]
    by_run = {s.experiment: s for s in diagnosis.shares}
    lines = []
    for number, of_deployment in enumerate(deployed.values(), 1):
        e, measured = of_deployment[0], [by_run[r.id] for r in of_deployment if r.id in by_run]
        shown = max(measured, key=lambda s: s.kernels_us, default=None)
        shares = ""
        if shown:
            parts = sorted(((x, n) for n, x in shown.shares.items() if x >= LEAST_SHARE), key=lambda part: -part[0])
            named = (f"{n.removeprefix('kernel_').removesuffix('_us')} {100 * x:.0f}" for x, n in parts)
            shares = f" | {', '.join(named)} % of {shown.kernels_us:.0f}, {_number(shown.observed_us)} observed"
        values, model = " ".join(COLUMNS[name](e) for name in several), e.model.rpartition("/")[2]
        lines.append(f"{_label(number, e)} {model} tp{e.engine.tensor_parallel} | {values}{shares}")
    one = one_value(experiments)
    title = f"Deployments (* MoE). The same in all: {', '.join(same)}." if same else "Deployments (* MoE)."
    if one and len(deployed) > 1:
        title += f" One value only, so that nothing can be learned of it: {', '.join(one)}."
    kernels = " | measured kernels in the mean step of its busiest run, us" if by_run else ""
    return Listing(f"{title}\nD model tp | {' '.join(several)}{kernels}", tuple(lines), share=2.0)


def _runs(diagnosis: Diagnosis, examination: Examination, experiments: Sequence[Experiment]) -> Listing:
    """A line for every run: errors by load stage, and when it is left out of the fit; of some, the parts of TTFT."""
    names, rows = run_names(experiments), examination.fitted
    others = examination.mean_left_out if examination.left_out else (None,) * len(rows)
    pairs = sorted(zip(rows, others, strict=True), key=_largest)
    stages = {e.id: [s for s in diagnosis.stages if s.experiment == e.id] for e in experiments}
    with_itl = _itl_differs([row for pair in pairs for row in pair])
    split = sorted(rows, key=lambda row: -abs(row.ttft or 0.0))[:MOST_TTFT]
    ttft = {t.experiment: t for t in diagnosis.ttft if t.experiment in {row.experiment for row in split}}
    kinds, heads = ", ".join(SHARED[kind] for kind in examination.left_out), "E2E TTFT ITL" if with_itl else "E2E TTFT"
    itl = "" if with_itl else " (ITL errs as E2E does)"
    heading = (
        "Runs: signed errors of means in percent, (predicted - observed)/observed, by load stage; left out: of the "
        f"whole run, by constants fitted without the runs of its {kinds}, the mean over these{itl}; TTFT ms where it "
        "errs most: observed, and predicted as queueing + waiting + prefill.\n"
        f"run requests/s | E2E | TTFT | left out {heads} | TTFT ms"
    )
    lines = []
    for row, other in pairs:
        of_run = stages[row.experiment]
        rates = ",".join(f"{s.rate:g}" for s in of_run)
        e2e, ttft_error_pct = (
            ",".join(_signed(getattr(s, name)) for s in of_run) for name in ("e2e_error_pct", "ttft_error_pct")
        )
        parts = f" | {_parts(ttft[row.experiment])}" if row.experiment in ttft else ""
        lines.append(f"{names[row.experiment]} {rates} | {e2e} | {ttft_error_pct} | {_errors(other, with_itl)}{parts}")
    return Listing(heading, tuple(lines), " with smaller errors", share=3.0)


def _parts(t: TtftParts) -> str:
    return f"{_number(t.observed_ms)}: {t.queueing_ms:.0f}+{t.waiting_ms:.0f}+{t.prefill_ms:.0f}"


def _itl_differs(rows: Sequence[Errors | None]) -> bool:
    """True if some error of ITL differs from that of E2E."""
    known = [row for row in rows if row is not None]
    return any(row.e2e is None or row.itl is None or abs(row.e2e - row.itl) > SAME_PCT for row in known)


def _largest(pair: tuple[Errors, Errors | None]) -> float:
    """The order of rows: the largest error left out first, or fitted where none is left out."""
    return -max((abs(x) for x in (pair[1] or pair[0]).figures if x is not None), default=0.0)


def _correlations(diagnosis: Diagnosis) -> Listing | None:
    by_residual = {name: [c for c in diagnosis.correlations if c.residual == name] for name in RESIDUALS}
    if not any(by_residual.values()):  # without an observed ITL and TTFT there is only E2E
        by_residual = {"e2e_error_pct": [c for c in diagnosis.correlations if c.residual == "e2e_error_pct"]}
    shown = {name: strongest[:STRONGEST] for name, strongest in by_residual.items() if strongest}
    if not shown:
        return None
    by_chance = chance(chain(*shown.values()))
    heading = (
        "Rank correlation of signed errors with fields over the load stages; r > 0: predicted too long where the field "
        f"is large. |r| < {by_chance:.2f} may be chance, or more for an s. field, which has one value per deployment."
    )
    lines = (f"{LABELS[name]}: {', '.join(map(_correlated, strongest))}" for name, strongest in shown.items())
    return Listing(heading, tuple(lines))


def _correlated(c: Correlation) -> str:
    alike = f" (like {few(c.alike)})" if c.alike else ""
    return f"{c.field} {c.r:+.2f}{alike}"


def few(names: Sequence[str]) -> str:
    """The first names of fields or terms that are alike, and how many more there are.

    >>> few(["b.decode_reqs", "b.kv_sum", "s.tp", "s.layers"])
    'b.decode_reqs, b.kv_sum, s.tp and 1 more'
    """
    return listed(names, ALIKE)


def _errors(row: Errors | None, with_itl: bool) -> str:
    if row is None:
        return "-"
    return " ".join(map(_signed, (row.e2e, row.ttft, row.itl) if with_itl else (row.e2e, row.ttft)))


def _signed(x: float | None) -> str:
    return "-" if x is None else f"{x:+.0f}" if abs(x) >= 10 else f"{x:+.1f}"


def _number(x: float | None) -> str:
    """Three significant digits, whole above 100."""
    return "-" if x is None else f"{x:.0f}" if abs(x) >= 100 else f"{x:.3g}"
