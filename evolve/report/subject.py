"""The subject of a report: a program, its run, and the experiments that judge it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from archive.champion import champion
from evaluator.cells import cell_of
from evaluator.score import SCORE_SEEDS
from evolve.output.terminal import command
from evolve.run.data import experiments_of, fittable
from evolve.run.folder import CONFIG, REPORT, RunFolder, is_run, open_run, shipped_run
from evolve.run.program import CHAMPION, Source, load, of_run
from evolve.run.trust import Trust, trust_of
from evolve.run.use import fitted_part
from evolve.run.validations import call_of, calls
from evolve.summary.result import RunReport, read_report
from simulator.common.errors import InputError
from simulator.language.measure import Caps
from simulator.serving.bundled import BUNDLED
from simulator.serving.digests import data_hash, measurement_digest
from simulator.serving.experiment import Experiment

AGAIN = "again"  # folder of a run that is searched again


@dataclass(frozen=True)
class Subject:
    """A program to report on.

    name: as the user names it. experiments: on which it is judged; files: those that these are in. home: the
    experiments of its run, or the bundled ones; the fitted and the held-out runs are among them. run: that it is from,
    None if there is none; report: that run's, None if it has none. trust: its held-out residuals, None if it was never
    validated. naming: the options by which other commands find the experiments; None for several files or parts of
    runs, which no option names. given: the options by which this command does.
    """

    name: str
    source: Source
    experiments: tuple[Experiment, ...]
    files: tuple[str, ...]
    home: tuple[Experiment, ...]
    run: RunFolder | None
    report: RunReport | None
    trust: Trust | None
    naming: tuple[str, ...] | None
    given: tuple[str, ...]

    @cached_property
    def fitted(self) -> tuple[Experiment, ...]:
        """All known runs that the program was fitted on, or the fitted parts of them, whatever it is judged on; none
        without a record. A copy of a run under another name is not another run."""
        record = self.source.record
        if record is None:
            return ()
        parts = [part for e in self.known if (part := fitted_part(record, e))]
        named = {measurement_digest(part): part.id for part in sorted(parts, key=lambda part: part.id in record.fitted)}
        return tuple(p for p in parts if p.id in record.fitted or p.id == named[measurement_digest(p)])

    @property
    def others(self) -> tuple[Experiment, ...]:
        """The experiments that judge it and that it was not fitted on, not even on a part."""
        fitted = {e.id for e in self.fitted}
        return tuple(e for e in self.experiments if e.id not in fitted)

    @property
    def unknown_runs(self) -> str:
        if self.source.record is None:
            return "It is not known on which runs the program was fitted"
        return "The runs that the program was fitted on are not here"

    @property
    def known(self) -> tuple[Experiment, ...]:
        """The experiments that judge it and those of its run, each id once."""
        return tuple({e.id: e for e in (*self.experiments, *self.home)}.values())

    @property
    def clean(self) -> tuple[Experiment, ...]:
        return tuple(fittable(self.experiments))

    @property
    def few(self) -> tuple[Experiment, ...]:
        """Of the clean experiments the first of each cell and workload: for what takes many replays or fits."""
        return tuple({(cell_of(e), e.workload.name): e for e in reversed(self.clean)}.values())[::-1]

    @property
    def data(self) -> str:
        return data_hash(self.experiments)

    @property
    def seeds(self) -> tuple[int, ...]:
        return SCORE_SEEDS

    @property
    def path(self) -> Path | None:
        """The folder of the run, as short as it can be written here."""
        if self.run is None:
            return None
        whole, here = self.run.path.resolve(), Path.cwd()
        return whole.relative_to(here) if whole.is_relative_to(here) else self.run.path

    @property
    def searching(self) -> tuple[str, ...]:
        """The command line that makes the run again; none without a run."""
        if self.run is None or self.path is None:
            return ()
        return (command("run", "--config", self.path / CONFIG, "--out", f"runs/{AGAIN}"),)

    def validating(self, dimension: str, kind: str = "") -> tuple[str, ...]:
        """The command lines that measure held-out errors again, of one kind of fold or of all.

        A shipped run cannot be validated, but searched again. What a program has from one that it was fitted from is
        computed again by `again`.
        """
        if self.run is None or self.path is None:
            return (self.again(dimension),)
        earlier = calls(self.run.path)
        budget = call_of(earlier, self.trust.call if self.trust else None).get("budget") if earlier else None
        options = [*(["--folds", kind] if kind else []), *(["--budget", budget] if budget else [])]
        if not self.run.shipped:
            return (command("validate", self.path, *options),)
        return (*self.searching, command("validate", f"runs/{AGAIN}", *options))

    def again(self, *dimensions: str) -> str:
        return command("report", self.name, *self.given, "--only", ",".join(dimensions))

    def by(self, name: str, *options: str, dimension: str) -> str:
        """The line of the command `name` with the program and its experiments, or `again` where none can name these."""
        if self.naming is None:
            return self.again(dimension)
        return command(name, self.source.name, *self.naming, *options)


def subject_of(
    name: str, caps: Caps, file: str | None, experiments: Sequence[Experiment] | None, ids: Sequence[str] = ()
) -> Subject:
    """The subject that RUN or PROGRAM names, judged on `experiments`, those in `ids` of a `file` or the bundled ones;
    None: those of its run, or without one the bundled ones.

    Of a run it is the champion. Raises InputError for a name of neither kind, and for a run without a champion.
    """
    path = Path(name)
    run = open_run(path) if is_run(path) else _run_of(name)
    report = _report_of(run) if run else None
    source = _champion(run, report) if run and is_run(path) else load(name, caps)
    given = (*(["--experiments", file] if file else []), *(["--id", ",".join(ids)] if ids else []))
    naming: tuple[str, ...] | None = given
    files: tuple[str, ...] = (file,) if file else BUNDLED
    home = _home(run, experiments is None)
    if experiments is None and run:
        files = tuple(dict.fromkeys((*run.config.data.files, *run.config.data.predict_files)))
        naming = _naming(run, files)
    offered = tuple(home if experiments is None else experiments)
    return Subject(name, source, offered, files, tuple(home), run, report, trust_of(source), naming, given)


def _home(run: RunFolder | None, needed: bool) -> list[Experiment]:
    """The experiments of a run, or without one the bundled ones; none if the run's files are gone and not `needed`.

    Raises InputError if they are gone and needed.
    """
    if run is None:
        return experiments_of(BUNDLED)
    try:
        fitted, others = run.experiments()
    except InputError:
        if needed:
            raise
        return []
    return [*fitted, *others]


def _run_of(name: str) -> RunFolder | None:
    if name == CHAMPION:
        return open_run(shipped_run())
    folder, colon, number = name.rpartition(":")
    return open_run(Path(folder)) if colon and re.fullmatch(r"\d+", number) and is_run(Path(folder)) else None


def _report_of(run: RunFolder) -> RunReport | None:
    try:
        return read_report(run.path / REPORT)
    except FileNotFoundError:
        return None


def _champion(run: RunFolder, report: RunReport | None) -> Source:
    best = report.champion if report else champion(run.archive().members(), run.config.score.rule)
    if best is None:
        raise InputError(f"{run.path}: has no champion to report on: `{command('resume', run.path)}` shows why")
    return of_run(run, run.outcomes(), best.id)


def _naming(run: RunFolder, files: tuple[str, ...]) -> tuple[str, ...] | None:
    if run.config.data.stages != "all" or not (set(files) == set(BUNDLED) or len(files) == 1):
        return None
    return () if set(files) == set(BUNDLED) else ("--experiments", files[0])
