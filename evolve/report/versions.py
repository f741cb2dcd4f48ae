"""Engine versions: which were measured, how much a change of kernels or steps costs, and what a refit takes back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from evolve.output.columns import figures, integers, words, wrapped
from evolve.report.constants import OWN_STEP, classified
from evolve.report.dimension import CARE, UNTESTED, Dimension, Exhibit, percent
from evolve.report.evidence import Evidence
from evolve.report.hardware import gpus_of, versions_of
from evolve.report.stress import ALL, REFITS, Stressed, constants_times, kernels_times, steps_longer, stressed
from simulator.kernels.tables import names
from simulator.language.ir import Program
from simulator.serving.gpu import hardware_table
from translate_go.target import reads_kernels

NAME = "versions"
RULE = (
    "with care: the fitted runs are of several versions of the engine, and the errors are those of all; untested: of "
    "one, or of none that is known"
)
FACTORS = (0.9, 0.95, 1.05, 1.1)  # times measured kernels
LONGER_US = 3000.0  # of every step: vLLM 0.15.1 spent 2.9 ms in a call of its scheduler for Llama 2 70B on 4 GPUs
ASIS = "nothing changed"


def versions(evidence: Evidence) -> Dimension:
    rows = stressed(evidence, _variants(evidence.subject.source.complete)) if evidence.subject.clean else []
    exhibits = (_engines(evidence), _stress(evidence, rows))
    caveats = (
        "The changed programs are on the runs that they are fitted on, in sample: they say what constants can take "
        "up, not how a later version behaves.",
        "A later version needs runs of its own.",
    )
    made = brief(evidence)
    sentence = " ".join([made.verdict.sentence, *_stressed_text(rows)])
    return replace(made, verdict=replace(made.verdict, sentence=sentence), exhibits=exhibits, caveats=caveats)


def brief(evidence: Evidence) -> Dimension:
    """The dimension without its tables, and without changed engines."""
    seen = _seen(evidence)
    sentence = "No record says of which version the fitted runs are."
    if seen:
        sentence = f"The fitted runs are of {', '.join(seen)}."
    return Dimension.of(NAME, "Engine versions", (CARE if len(seen) > 1 else UNTESTED, sentence), RULE)


def _seen(evidence: Evidence) -> list[str]:
    return sorted({f"{e.engine.name} {e.engine.version or 'of an unknown version'}" for e in evidence.subject.fitted})


def _stressed_text(rows: list[Stressed]) -> Iterator[str]:
    """The sentence on slower kernels; none if the program reads no kernels."""
    by_name, slower = {row.name: row for row in rows}, _kernels_name(FACTORS[-1])
    if slower in by_name:
        base, changed = by_name[ASIS].errors["e2e"], by_name[slower]
        text = f"If {slower}, a mean E2E error of {percent(base)} becomes one of {percent(changed.errors['e2e'])}"
        if ALL in changed.refitted:
            text += f", and a fit of all constants to such runs brings it to {percent(changed.refitted[ALL]['e2e'])}"
        yield f"{text}."


def _kernels_name(factor: float) -> str:
    return f"kernels were {abs(100 * (factor - 1)):.0f} % {'slower' if factor > 1 else 'faster'}"


def _variants(program: Program) -> dict[str, Program]:
    variants = {ASIS: program}
    if reads_kernels(program):
        variants |= {_kernels_name(factor): kernels_times(program, factor) for factor in FACTORS}
    variants[f"every step were {LONGER_US / 1e3:g} ms longer"] = steps_longer(program, LONGER_US)
    ahead = [c.position for c in classified(program) if c.kind == OWN_STEP and c.method == "queueing_time"]
    if ahead:
        variants["arrivals did not wait for a step scheduled ahead"] = constants_times(program, ahead, 0.0)
    return variants


def _engines(evidence: Evidence) -> Exhibit:
    tables_of = {str(entry["name"]): str(entry.get("kernels") or "") for entry in hardware_table().values()}
    rows = []
    for gpu in gpus_of(evidence):
        timed = versions_of(tables_of[gpu]) if tables_of.get(gpu) in names() else []
        runs = [e for e in evidence.subject.fitted if e.hardware == gpu]
        for engine in sorted({f"{e.engine.name} {e.engine.version or '?'}" for e in runs}):
            count = sum(f"{e.engine.name} {e.engine.version or '?'}" == engine for e in runs)
            rows.append([gpu, engine, count, ", ".join(timed) or None])
    columns = [words("GPU", "served by"), integers("fitted runs"), wrapped("kernels timed with vLLM")]
    note = "Kernels may be timed with another version than the runs were served by: factors on kernels take that up."
    return Exhibit.of("Versions behind the program", columns, rows, evidence.subject.again(NAME), note=note)


def _stress(evidence: Evidence, rows: list[Stressed]) -> Exhibit:
    cells = []
    for r in rows:
        after = [(r.refitted.get(word) or {}).get("e2e") for word in REFITS]
        ttft = (r.refitted.get(ALL) or {}).get("ttft")
        cells.append([r.name, r.errors["e2e"], r.errors["ttft"], r.errors["itl"], *after, ttft, r.drift])
    title = "If the engine changed: mean absolute errors in percent, and after a fit of constants to such runs"
    refits = "E2E, alpha fitted", "beta fitted", "all fitted", "TTFT, all fitted"
    columns = [wrapped("if"), figures(".1f", "E2E", "TTFT", "ITL", *refits), wrapped("evolve drift says")]
    note = (
        "Made, not measured: each observed figure of the clean runs times the ratio in which the change moves the "
        "program's prediction. Without async scheduling the scheduler's CPU time would be a part of every step: 2.9 ms "
        "in traces of Llama 2 70B. An arrival would not wait for the step scheduled ahead. alpha: constants of "
        "queueing and overheads; beta: of the step."
    )
    return Exhibit.of(title, columns, cells, evidence.subject.again(NAME), note=note)
