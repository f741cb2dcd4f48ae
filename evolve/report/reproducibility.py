"""Reproducibility: what identifies a program, and whether its errors and its run's archive come out again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from archive.champion import champion as champion_of
from archive.proposal import Outcome
from evaluator.score import MEANS, error_rows, score_set
from evolve import __version__
from evolve.output.columns import figures, wrapped
from evolve.output.terminal import command
from evolve.report.dimension import CARE, GOOD, POOR, UNTESTED, Dimension, Exhibit
from evolve.report.evidence import Evidence
from evolve.report.subject import Subject
from evolve.run.folder import RunFolder, archive_of
from simulator.language.key import key
from simulator.serving.digests import data_hash

NAME = "reproducibility"
CLOSE = 0.005  # percentage points: half of the last digit that tables show
RULE = (
    f"good: the data and the run's journal are those of the record, and its errors come out again within {CLOSE:g} "
    "points; with care: one of them cannot be checked; poor: one of them differs; untested: there is no record"
)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The archive that a journal gives: proposals, members, programs on the front, and the key of its champion. digest:
    SHA-256 of the journal's file. has: whether it has the program that is reported on."""

    proposals: int
    members: int
    front: int
    champion: str | None
    digest: str
    has: bool


def reproducibility(evidence: Evidence) -> Dimension:
    subject = evidence.subject
    record = subject.source.record
    if record is None:
        text = "There is no record of what the program was fitted on: `evolve fit` writes one next to its text."
        return Dimension.of(NAME, "Reproducibility", (UNTESTED, text), RULE, [_identity(subject)])
    rebuilt = rebuild(subject.run, evidence.outcomes, record.key) if subject.run else None
    off = errors_off(subject)
    same = data_hash(subject.fitted) == record.data if subject.fitted else None
    again = None if rebuilt is None else rebuilt.has
    checks = (same, None if off is None else off <= CLOSE, again)
    level = POOR if False in checks else CARE if None in checks else GOOD
    data = {True: "those", False: "NOT those", None: "not here, which are those"}[same]
    texts = [f"The data are {data} of the record ({record.data})"]
    texts.append(
        "its errors cannot be computed again" if off is None else f"its errors come out again within {off:.4f} points"
    )
    if rebuilt is None:
        texts.append("there is no journal of its run")
    else:
        texts.append(f"its run's journal has {rebuilt.proposals:,} proposals, {'it' if again else 'NOT it'} among them")
        texts.append(f"{'it' if rebuilt.champion == record.key else 'another program'} is the champion of the archive")
    exhibits = [_identity(subject), _again(subject, off)]
    if subject.run and rebuilt:
        exhibits.append(_archive(subject, subject.run, rebuilt))
    return Dimension.of(NAME, "Reproducibility", (level, f"{'; '.join(texts)}."), RULE, exhibits)


def rebuild(run: RunFolder, outcomes: Sequence[Outcome], program: str) -> Rebuilt:
    """The archive of the run from the outcomes in its journal. `program`: the key of the one that is reported on."""
    archive = archive_of(run.config, outcomes)
    best = champion_of(archive.members(), run.config.score.rule)
    digest = sha256(run.written.read_bytes()).hexdigest()
    has = any(o.elite is not None and o.elite.key == program for o in outcomes)
    front, champion = len(archive.front_by_size()), best.key if best else None
    return Rebuilt(len(outcomes), len(archive.members()), front, champion, digest, has)


def errors_off(subject: Subject) -> float | None:
    """The largest difference in percentage points between the record's errors and those of a replay now.

    The fitted runs are replayed under the record's arrival seeds. None if there is nothing to compare.
    """
    record = subject.source.record
    if record is None or not record.seeds:
        return None
    now = {row.experiment: row for row in error_rows(subject.source.complete, score_set(subject.fitted, record.seeds))}
    pairs = [
        (getattr(row, name), getattr(now[row.experiment], name))
        for row in record.errors
        if row.experiment in now
        for name in MEANS
    ]
    return max((abs(a - b) for a, b in pairs if a is not None and b is not None), default=None)


def _identity(subject: Subject) -> Exhibit:
    record, config = subject.source.record, subject.run.config if subject.run else None
    kept: list[str | None] = [None, None, None, None, None]
    if record:
        kept = [record.key, record.engine, record.data, ", ".join(map(str, record.seeds)), record.date]
    fitted = data_hash(subject.fitted) if subject.fitted else None
    now = [key(subject.source.complete), __version__, fitted, ", ".join(map(str, subject.seeds)), None]
    names = "key of the program", "engine of this project", "hash of the fitted runs", "arrival seeds", "date"
    rows = [*zip(names, kept, now, strict=True)]
    rows.append(("configuration and seed of the search", f"{config.name}, {config.seed}" if config else None, None))
    again = command("show", subject.source.name, "--json")
    return Exhibit.of("What identifies it", [wrapped("what", "in the record", "now")], rows, again)


def _again(subject: Subject, off: float | None) -> Exhibit:
    rows = [("largest difference of an error in percentage points", off)]
    columns = [wrapped("what"), figures(".4f", "figure")]
    return Exhibit.of("The record's errors, replayed", columns, rows, command("show", subject.source.name))


def _archive(subject: Subject, run: RunFolder, rebuilt: Rebuilt) -> Exhibit:
    rows = [
        ("proposals in the journal", f"{rebuilt.proposals:,}"),
        ("members of the archive", f"{rebuilt.members:,}"),
        ("programs that no other one beats", f"{rebuilt.front:,}"),
        ("key of its champion", rebuilt.champion),
        (f"SHA-256 of {run.written.name}", rebuilt.digest),
    ]
    title, columns = "The archive, rebuilt from the journal", [wrapped("what", "figure")]
    note = "The last command searches again: the same seed gives the same archive."
    return Exhibit.of(title, columns, rows, command("archive", subject.path), *subject.searching, note=note)
