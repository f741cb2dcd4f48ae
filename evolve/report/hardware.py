"""Hardware: which GPUs were measured, what is measured again for another one, and what each constant is worth there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from evaluator.score import MEANS
from evolve.output.columns import figures, integers, words, wrapped
from evolve.output.terminal import command
from evolve.report import constants as kinds
from evolve.report.constants import KINDS, NO_CONSTANT, Classified, bare_terms, bare_times, classified, kernel_fields
from evolve.report.dimension import CARE, GOOD, POOR, UNTESTED, Dimension, Exhibit, percent
from evolve.report.evidence import Evidence
from evolve.report.held_out import means_of, over_the_limits
from evolve.report.stress import changes, constants_times
from simulator.kernels.tables import names, tables
from simulator.schema import FIELDS
from simulator.serving.gpu import hardware_table

NAME = "hardware"
KIND = "hardware"  # the kind of fold that leaves a GPU out
MORE = 1.1  # times which constants are replayed
RULE = (
    "good: the mean held-out errors without each GPU are within 10 % (E2E) and 15 % (TTFT, ITL); with care: several "
    "GPUs are among the fitted runs, but none was left out; poor: one that was left out is beyond in E2E; untested: "
    "all fitted runs are on one GPU"
)
CAVEAT = (
    "That factors on kernels and datasheets hold on another GPU is an assumption of the form. Measure a few runs "
    "there, predict them, and fit the constants again before the program is used."
)


def hardware(evidence: Evidence) -> Dimension:
    constants = classified(evidence.subject.source.complete)
    exhibits = (_kinds(evidence, constants), _constants(evidence, constants), _gpus(evidence), _kernels(evidence))
    caveats = () if len(gpus_of(evidence)) > 1 else (CAVEAT, *_elsewhere(evidence, constants))
    return replace(brief(evidence), exhibits=exhibits, caveats=caveats)


def brief(evidence: Evidence) -> Dimension:
    """The dimension without its tables."""
    return Dimension.of(NAME, "Hardware", _verdict(evidence), RULE)


def gpus_of(evidence: Evidence) -> list[str]:
    return sorted({e.hardware for e in evidence.subject.fitted})


def _verdict(evidence: Evidence) -> tuple[str, str]:
    gpus = gpus_of(evidence)
    rows = [r for r in evidence.held_out if r.kind == KIND]
    if rows:
        means = means_of(rows)
        failed = over_the_limits(means)
        level = POOR if "e2e" in failed else CARE if failed else GOOD
        return level, f"On GPUs left out, the mean E2E error is {percent(means['e2e'])}."
    if len(gpus) > 1:
        return CARE, f"Fitted on {', '.join(gpus)}, none of which a search of its validation left out."
    where = f"All fitted runs are on {gpus[0]}" if gpus else evidence.subject.unknown_runs
    return UNTESTED, f"{where}, so how far it is off on another GPU is not known."


def _elsewhere(evidence: Evidence, constants: list[Classified]) -> Iterator[str]:
    """What a refit on another GPU must, and what it cannot do."""
    again = [f"{c.method}.{c.name}" for c in constants if c.kind in (kinds.HOST, kinds.STEP) and c.value]
    if again:
        yield f"On another GPU, at least {', '.join(again)} must be fitted again."
    if bare_terms(evidence.subject.source.complete):
        yield "No refit can take back an error of kernel or datasheet times that no constant multiplies."


def _kinds(evidence: Evidence, constants: list[Classified]) -> Exhibit:
    """Constants and terms without one, by kind, and the change of latencies if these are 10 % larger."""
    program = evidence.subject.source.complete
    positions = {kind: [c.position for c in constants if c.kind == kind] for kind in KINDS}
    present = {kind: of_kind for kind, of_kind in positions.items() if of_kind}
    moved: Mapping[str, Mapping[str, float | None]] = {}
    if evidence.subject.clean:
        variants = {k: constants_times(program, p, MORE) for k, p in present.items()}
        moved = changes(evidence, {**variants, NO_CONSTANT: bare_times(program, MORE)})
    counts = {kind: (len(of_kind), KINDS[kind]) for kind, of_kind in positions.items()}
    counts[NO_CONSTANT] = len(bare_terms(program)), kinds.WITHOUT
    rows = []
    for kind, (count, what) in counts.items():
        change = moved.get(kind, {}) if count else {}
        rows.append([kind, count, what, *(change.get(x) for x in MEANS)])
    title = "Constants by their worth on another GPU, terms without one; percent by which latencies grow if 10 % larger"
    columns = [
        words("kind"),
        integers("constants or terms"),
        wrapped("what it is"),
        figures("+.1f", "E2E", "TTFT", "ITL"),
    ]
    note = "Replayed under one arrival seed, mean over the clean runs."
    return Exhibit.of(title, columns, rows, evidence.subject.again(NAME), note=note)


def _constants(evidence: Evidence, constants: list[Classified]) -> Exhibit:
    rows: list[list[object]] = [
        [f"{c.method}.{c.name}", c.value, c.kind, "; ".join(c.features) or None] for c in constants
    ]
    bare = bare_terms(evidence.subject.source.complete)
    rows += [[None, None, NO_CONSTANT, term] for term in bare]
    columns = [words("constant"), figures(".6g", "value"), words("kind"), wrapped("multiplies")]
    again, note = (
        command("show", evidence.subject.source.name, "--json"),
        "A field that is in several terms counts in each.",
    )
    title = "Constants and what each multiplies, and terms without one"
    return Exhibit.of(title, columns, rows, again, note=note if bare else "")


def versions_of(kernels: str) -> list[str]:
    """The versions of vLLM with which the kernels of a table were timed, from its metadata."""
    found = {m[1] for source in tables(kernels).about.values() if (m := re.search(r"/vllm/([\w.]+)/", source))}
    return sorted(found)


def _gpus(evidence: Evidence) -> Exhibit:
    entries = {str(entry["name"]): entry for entry in hardware_table().values()}
    fitted = gpus_of(evidence)
    rows = []
    for name, entry in entries.items():
        kernels = str(entry.get("kernels") or "")
        timed = tables(kernels) if kernels in names() else None
        points = sum(len(of_operation["latency_us"]) for of_operation in timed.rows.values()) if timed else 0
        versions = ", ".join(versions_of(kernels)) if timed else None
        rows.append([name, sum(e.hardware == name for e in evidence.subject.fitted), name in fitted, points, versions])
    columns = [words("GPU"), integers("fitted runs"), words("measured end to end"), integers("timed kernels")]
    columns.append(wrapped("timed with vLLM"))
    note = (
        "A program that reads measured kernels needs a table of the GPU, or the efficiencies of another "
        "(docs/plan.md). Datasheet figures are in configs/hardware.yaml; your own GPU is a mapping in the experiments "
        "file."
    )
    return Exhibit.of(
        "Known GPUs: fitted runs, and kernels that were timed there", columns, rows, command("list"), note=note
    )


def _kernels(evidence: Evidence) -> Exhibit:
    read = kernel_fields(evidence.subject.source.complete)
    rows, columns = [(f"b.{name}", FIELDS["b", name].meaning) for name in read], [words("field"), wrapped("meaning")]
    title = "Fields of measured kernels that the program reads: another GPU needs a table of them"
    return Exhibit.of(title, columns, rows, command("show", evidence.subject.source.name, "--json"))
