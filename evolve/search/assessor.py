"""Assessors turn proposals into outcomes. That of a resumed search answers from the journal first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from archive.elite import SEED, Elite
from archive.proposal import DUPLICATE, TIMEOUT, Form, Outcome, Proposal, Rejected
from evaluator.assess import NO_LIMITS, AssessLimits, Scored, form_of, read
from evolve.run.config import Config
from evolve.search.pool.pool import TRIES, Promise
from evolve.search.pool.process import TookTooLong
from evolve.search.vocabulary import field_set
from evolve.search.workers import Timed, Workers
from simulator.language.ir import Program
from simulator.language.measure import Caps, features

UNLIMITED = Caps(operations=10**9, conditionals=10**9, constants=10**9)


@dataclass
class Admitted:
    """The admission of a generation's proposals as candidates, and the limits of their assessment."""

    taken: set[str]  # keys of the forms that were proposed before
    room: int  # candidates that the budget leaves
    limits: Callable[[Form], AssessLimits]  # of its assessment

    def take(self, key: str) -> None:
        self.taken.add(key)
        self.room -= 1


@dataclass(frozen=True, slots=True)
class Settled:
    """The outcome of a proposal, and where it comes from."""

    outcome: Outcome
    seconds: Mapping[str, float] = field(default_factory=dict)  # CPU seconds by stage of the assessment
    remembered: bool = False  # True if it was read from the journal


Pending = Callable[[], Settled]  # waits for an assessment to end


class Assessor(Protocol):
    def begin(self, proposal: Proposal, admission: Admitted) -> Pending | None:
        """Start to assess a proposal if its form is new. None if the budget is used up."""

    def begin_polish(self, proposal: Proposal, elite: Elite) -> Pending:
        """Start to polish the constants of an elite; `proposal` gives the result its number."""


class Live:
    """Assesses proposals in worker processes. Those whose form is not known are parsed in this one."""

    def __init__(self, config: Config, workers: Workers) -> None:
        self._caps, self._fields, self._workers = config.caps, field_set(config.search.fields), workers
        self._limit_s = config.search.limit_s

    def begin(self, proposal: Proposal, admission: Admitted) -> Pending | None:
        if admission.room <= 0:
            return None
        form = proposal.refused or proposal.form or self._form(proposal)
        if isinstance(form, Rejected):
            return _settled(Outcome(proposal, form))
        if form.key in admission.taken:
            return _settled(Outcome(proposal, Rejected(DUPLICATE, "this form was proposed before")))
        admission.take(form.key)
        future = self._workers.assess(proposal.id, proposal.text, admission.limits(form))

        def finish() -> Settled:
            verdict, seconds = self._waited(future)
            dropped = (
                _dropped(proposal.program, verdict.program) if proposal.call and isinstance(verdict, Scored) else ()
            )
            return Settled(Outcome(proposal, _elite(proposal, form.key, verdict), form.key, dropped), seconds)

        return finish

    def _form(self, proposal: Proposal) -> Form | Rejected:
        """The form of a text. Seeds may be of any size: a user's own were checked before."""
        caps = UNLIMITED if proposal.operator.startswith(SEED) else self._caps
        program = read(proposal.text, caps, self._fields)
        return program if isinstance(program, Rejected) else form_of(program)

    def begin_polish(self, proposal: Proposal, elite: Elite) -> Pending:
        future = self._workers.polish(proposal.id, elite.text)

        def finish() -> Settled:
            verdict, seconds = self._waited(future)
            return Settled(Outcome(proposal, _elite(proposal, elite.key, verdict)), seconds)

        return finish

    def _waited(self, future: Promise[Timed]) -> Timed:
        """A verdict, waited for; a rejection if it takes too long, which the journal keeps like any other."""
        try:
            return future.result()
        except TookTooLong:
            return Rejected(TIMEOUT, f"no verdict within {self._limit_s:g} s (search.limit_s), {TRIES} times"), {}


class Remembering:
    """Answers with the journal's outcome for a proposal's number, and passes other proposals on to `assessor`."""

    def __init__(self, remembered: Mapping[int, Outcome], assessor: Assessor) -> None:
        self._remembered, self._assessor = remembered, assessor

    def begin(self, proposal: Proposal, admission: Admitted) -> Pending | None:
        outcome = self._remembered.get(proposal.id)
        if outcome is None:
            return self._assessor.begin(proposal, admission)
        if outcome.key:
            admission.take(outcome.key)
        return _settled(outcome, remembered=True)

    def begin_polish(self, proposal: Proposal, elite: Elite) -> Pending:
        outcome = self._remembered.get(proposal.id)
        if outcome is None:
            return self._assessor.begin_polish(proposal, elite)
        return _settled(outcome, remembered=True)


def begin_alone(assessor: Assessor, proposal: Proposal) -> Pending:
    """Start to assess a proposal without limits, whatever was proposed before."""
    pending = assessor.begin(proposal, Admitted(set(), 1, lambda form: NO_LIMITS))
    assert pending, "there is room for one"
    return pending


def _settled(outcome: Outcome, remembered: bool = False) -> Pending:
    return lambda: Settled(outcome, remembered=remembered)


def _elite(proposal: Proposal, form: str, verdict: Scored | Rejected) -> Elite | Rejected:
    if isinstance(verdict, Rejected):
        return verdict
    same = ("text", "operations", "constants", "features", "score", "group_out", "consistent", "cells")
    figures = {name: getattr(verdict, name) for name in same}
    return Elite(proposal.id, form, operator=proposal.operator, parents=proposal.parents, **figures).rounded()


def _dropped(before: Program, after: Program) -> tuple[str, ...]:
    """The names of the constants, then of the fields, that the proposed program has and the scored one lacks."""
    kept = {(f.name, constant.name) for f in after.functions for constant in f.constants}
    constants = [c.name for f in before.functions for c in f.constants if (f.name, c.name) not in kept]
    return (*constants, *(name for name in features(before) if name not in features(after)))
