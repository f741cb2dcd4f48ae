"""The report of a program, as a value: a verdict on its adoption, and ten dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from evolve import __version__
from evolve.report import (
    accuracy,
    ease,
    engine,
    hardware,
    models,
    overheads,
    reproducibility,
    retraining,
    versions,
    workloads,
)
from evolve.report.adoption import Adoption, adoption
from evolve.report.dimension import Dimension
from evolve.report.evidence import Evidence
from evolve.report.subject import Subject
from evolve.search.pool.pool import Pool
from simulator.common.json import JsonObject
from simulator.common.records import fields_to_json, record_class, stored
from simulator.common.text import counted
from simulator.language.key import key

# name -> what makes it, in the order of a report
DIMENSIONS: dict[str, Callable[[Evidence], Dimension]] = {
    accuracy.NAME: accuracy.accuracy,
    workloads.NAME: workloads.workloads,
    engine.NAME: engine.settings,
    models.NAME: models.models,
    hardware.NAME: hardware.hardware,
    ease.NAME: ease.ease,
    retraining.NAME: retraining.retraining,
    versions.NAME: versions.versions,
    overheads.NAME: overheads.overheads,
    reproducibility.NAME: reproducibility.reproducibility,
}
# Those of which records and one replay of the runs give the verdict, in seconds.
BRIEF: dict[str, Callable[[Evidence], Dimension]] = {
    accuracy.NAME: accuracy.brief,
    workloads.NAME: workloads.brief,
    engine.NAME: engine.brief,
    models.NAME: models.brief,
    hardware.NAME: hardware.brief,
    versions.NAME: versions.brief,
    reproducibility.NAME: reproducibility.reproducibility,
}
ALL = "all"  # dimensions


@record_class
class Report:
    """What was measured of a program. about: what it is and was fitted on, a sentence; adoption: None in a report on
    single dimensions; missing: what the report lacks because the program lacks it, and how to get it; not_looked_at:
    the names of the other dimensions; look: the command line that looks at them."""

    name: str
    program: str
    key: str
    data: str
    seeds: tuple[int, ...]
    about: str
    adoption: Adoption | None
    missing: tuple[str, ...]
    dimensions: tuple[Dimension, ...]
    not_looked_at: tuple[str, ...]
    look: str = stored(hidden=True)

    @property
    def numbered(self) -> list[tuple[int, Dimension]]:
        """The dimensions, each with its number among all ten, whichever of them were made."""
        return [(list(DIMENSIONS).index(d.name) + 1, d) for d in self.dimensions]

    @property
    def sections(self) -> list[tuple[int, Dimension]]:
        """Those that have more than a verdict."""
        return [(number, d) for number, d in self.numbered if d.exhibits or d.caveats]

    def to_json(self) -> JsonObject:
        return {"engine": __version__, **fields_to_json(self)}


def report(subject: Subject, names: Sequence[str], pool: Pool) -> Report:
    """The report of a subject in the dimensions of these names, or ALL; without names in short, by those of BRIEF."""
    evidence = Evidence(subject, pool)
    try:
        if names:
            made = [_filled(make(evidence)) for name, make in DIMENSIONS.items() if {name, ALL} & {*names}]
        else:
            made = [replace(make(evidence), exhibits=(), caveats=()) for make in BRIEF.values()]
        verdict = adoption(evidence, made) if not names or ALL in names else None
    finally:
        pool.line.close()
    source = subject.source
    others = tuple(name for name in DIMENSIONS if name not in {d.name for d in made})
    return Report(
        subject.name,
        source.text.strip(),
        key(source.complete),
        subject.data,
        subject.seeds,
        _about(subject),
        verdict,
        tuple(_missing(subject)),
        tuple(made),
        others,
        subject.again(*others) if others else "",
    )


def _filled(dimension: Dimension) -> Dimension:
    return replace(dimension, exhibits=tuple(exhibit for exhibit in dimension.exhibits if exhibit.table.rows))


def _about(subject: Subject) -> str:
    fitted = subject.fitted
    if not fitted:
        judged, record = counted(len(subject.experiments), "run"), subject.source.record
        if record is not None:
            theirs = f"The {counted(len(record.fitted), 'run')} that it was fitted on are not here"
            return f"{subject.source.name} is judged on {judged}. {theirs}: give them with --experiments."
        return f"{subject.source.name} is judged on {judged}; as far as is known it was fitted on none of them."
    others = subject.others
    judged = f" It is judged on {counted(len(others), 'other run')}." if len(others) == len(subject.experiments) else ""
    gpus = ", ".join(sorted({e.hardware for e in fitted}))
    count = len({e.model for e in fitted})
    runs, models_ = counted(len(fitted), "run"), counted(count, "model")
    return f"{subject.source.name} was fitted on {runs} of {models_} on {gpus}.{judged}"


def _missing(subject: Subject) -> list[str]:
    lines = []
    record, run = subject.source.record, subject.run
    if record is None:
        lines.append(
            "no record of what the program was fitted on, so no run counts as in sample: `evolve fit` writes one"
        )
    elif not subject.fitted:
        lines.append("the runs that the program was fitted on are not here: give them with --experiments")
    if subject.trust is None:
        what = "the program was never validated, so no error is held out and there are no intervals"
        lines.append(f"{what}: `evolve validate {run.path if run else 'RUN'}` validates the champion of a run")
    if run and subject.report is None and not run.shipped:
        lines.append("the run is not finished: its champion may be another one later")
    if run is None:
        lines.append("the program is from no run here, so there is no search to search again and no journal")
    if not subject.clean:
        lines.append("no clean run with observed means is among the experiments, so nothing can be fitted or compared")
    return lines
