"""One search under a budget: whatever proposes, its candidates are read, counted, assessed and journaled here.

The budget is that of a run: distinct candidates (by `simulator.language.key`) that reach fitting. Since engines are
deterministic, a search is resumed by starting it over with the verdicts of the journal instead of new assessments.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from archive.champion import champion
from archive.elite import Elite
from archive.journal import Journal, read_journal
from evaluator.assess import Rejected, Scored, read
from evaluator.score import Errors, Score
from evolve.propose.vocabulary import Vocabulary, field_set
from evolve.run.config import Config
from evolve.search.assessor import Prober, assess_text, prober
from evolve.search.search import TRANSFER_WITHIN
from simulator.errors import InputError
from simulator.language.key import key
from simulator.language.measure import constants, features, operations
from simulator.language.parse import parse
from simulator.language.unparse import unparse

JOURNAL = "journal.jsonl"  # of a search, in its folder
PROPOSALS = 200  # for each candidate of the budget: an engine that finds so few new forms has come to its end


class Spent(Exception):
    """The budget is used up: the search is over."""


@dataclass(frozen=True, slots=True)
class Task:
    """One engine under one seed (that of `config`, like the budget), with its journal in `folder`."""

    engine: str
    config: Config
    words: Vocabulary
    folder: Path


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a proposal. `elite` None: rejected at `stage`. `stage` is "" where the candidate was scored now,
    "duplicate" where its form was known before: then `elite` is what it got the first time."""

    elite: Elite | None
    stage: str


@dataclass
class Judge:
    """The journal has a line for every candidate: its number from 1, the lowest joint error, worst3 and merit of a
    sound program so far (percent, null before there is one), CPU seconds of all assessments so far, its form, and its
    verdict.
    """

    task: Task
    watch: Callable[[], None] = lambda: None
    proposals: int = 0
    cpu_s: float = 0.0
    stages: Counter[str] = field(default_factory=Counter)  # of the rejected, duplicates included
    seen: dict[str, Elite | None] = field(default_factory=dict)
    elites: list[Elite] = field(default_factory=list)

    def __post_init__(self) -> None:
        path = self.task.folder / JOURNAL
        try:
            self._past = read_journal(path)
        except ValueError as e:
            raise InputError(f"{e}: remove {self.task.folder} to search anew") from None
        self._journal = Journal(path)
        self._fields = field_set(self.config.search.fields)
        self.probe: Prober = prober()

    @property
    def config(self) -> Config:
        return self.task.config

    @property
    def candidates(self) -> int:
        """How many have reached fitting."""
        return len(self.seen)

    def close(self) -> None:
        self._journal.close()

    def offer(self, text: str) -> Verdict:
        """Read a proposal and, if its form is new, assess it. Raises Spent once the budget is used up."""
        if self.candidates >= self.config.budget or self.proposals >= PROPOSALS * self.config.budget:
            raise Spent
        self.proposals += 1
        program = read(text, self.config.caps, self._fields)
        if isinstance(program, Rejected):
            return self._refused(program.stage)
        form = key(program)
        if form in self.seen:
            self.stages["duplicate"] += 1
            return Verdict(self.seen[form], "duplicate")
        verdict = self.assess(unparse(program))
        if isinstance(verdict, Rejected):
            return self._refused(verdict.stage)
        return Verdict(self.seen[form], "")

    def _refused(self, stage: str) -> Verdict:
        self.stages[stage] += 1
        return Verdict(None, stage)

    def assess(self, text: str, transfer_below: float | None = None) -> Scored | Rejected:
        """The verdict on the next candidate, an admitted text of a new form: from the journal if it stands there.

        Whoever proposes, transfer is measured up to the same multiple of the lowest joint error so far.
        """
        if transfer_below is None:
            transfer_below = TRANSFER_WITHIN * min((e.joint for e in self.elites), default=float("inf"))
        form, number = key(parse(text)), self.candidates
        if number < len(self._past):
            entry = self._past[number]
            if entry["key"] != form:
                raise InputError(f"{self.task.folder}: candidate {number + 1} of the journal is another one: "
                                 "remove the folder to search anew")  # fmt: skip
            self.cpu_s = entry["cpu_s"]
            return self._taken(form, _verdict_of(entry))
        verdict: Scored | Rejected = self.timed(assess_text, text, transfer_below)[0]
        self._taken(form, verdict)
        self._journal.append([self._entry(form, verdict)])
        self.watch()
        return verdict

    def timed(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do some work of an assessment, its CPU time counted."""
        begun = time.process_time()
        result = work(*args, **kwargs)
        if self.candidates >= len(self._past):
            self.cpu_s += time.process_time() - begun
        return result

    def _taken(self, form: str, verdict: Scored | Rejected) -> Scored | Rejected:
        elite = None
        if isinstance(verdict, Scored):
            elite = _elite(self.candidates + 1, form, verdict, self.task.engine)
            self.elites.append(elite)
        self.seen[form] = elite
        return verdict

    def _entry(self, form: str, verdict: Scored | Rejected) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "candidate": self.candidates,
            "joint": min((e.joint for e in self.elites), default=None),
            "worst3": min((e.worst3 for e in self.elites), default=None),
            "merit": min((self.config.score.rule.merit(e) for e in self.elites if e.sound), default=None),
            "cpu_s": round(self.cpu_s, 4),
            "key": form,
        }
        if isinstance(verdict, Rejected):
            return entry | {"stage": verdict.stage, "why": verdict.why}
        return entry | asdict(verdict)

    def summary(self) -> dict[str, Any]:
        """Counts, rejections by stage (duplicates among them), and the champion by the configuration's rule."""
        best = champion(self.elites, self.config.score.rule)
        return {
            "engine": self.task.engine,
            "seed": self.config.seed,
            "candidates": self.candidates,
            "proposals": self.proposals,
            "rejected": dict(sorted(self.stages.items())),
            "champion": best.to_json() if best else None,
        }


def _verdict_of(entry: dict[str, Any]) -> Scored | Rejected:
    if "stage" in entry:
        return Rejected(entry["stage"], entry["why"])
    score = entry["score"]
    rows = tuple(Errors(**row) for row in score["rows"])
    return Scored(entry["text"], Score(**{**score, "rows": rows}), entry["transfer"], entry["sound"])


def _elite(number: int, form: str, scored: Scored, engine: str) -> Elite:
    program, score = parse(scored.text), scored.score
    return Elite(
        id=number, key=form, text=scored.text, operations=operations(program), constants=constants(program),
        features=len(features(program)), worst3=score.worst3, joint=score.joint, e2e=score.e2e, ttft=score.ttft,
        itl=score.itl, rows=tuple((r.experiment, r.e2e, r.ttft, r.itl) for r in score.rows),
        operator=engine, parents=(), transfer=scored.transfer, sound=scored.sound,
    )  # fmt: skip
