"""Conversations about questions: rounds of answers, each of which learns what became of the one before."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Protocol

from archive.proposal import TIMEOUT, Rejected
from evaluator.diagnose.trial import Trial
from evaluator.score import Errors
from evolve.run.config import Config
from evolve.search.llm import prompt
from evolve.search.llm.answer import Idea, ideas
from evolve.search.llm.availability import asked_again, next_model
from evolve.search.llm.calls import LlmCall, Messages, proposing
from evolve.search.llm.dispatch import Dispatch
from evolve.search.llm.question import Question, Taken, checked
from evolve.search.llm.templates import Templates
from evolve.search.pool.pool import TRIES, Promise
from evolve.search.pool.process import TookTooLong

LONGEST_ECHO = 12_000  # characters of an answer that are sent back together with what became of its programs


class TrialWorkers(Protocol):
    """What is computed for questions, possibly in other processes (see evolve.search.workers)."""

    def diagnose(self, text: str) -> Promise[str]:
        """A text about where a program is wrong on the fitted experiments."""

    def trial(self, number: int, text: str) -> Promise[Trial]:
        """The trial of a program, of the question with this number. Waiting for it may raise TookTooLong."""

    def left_out(self, text: str) -> Promise[tuple[Errors, ...]]:
        """The errors of a fitted program on runs left out of the fit, as its trial has them."""


class Asker:
    """Asks the models in one generation, as far as the limits allow. `over`: the generation has outcomes already, so
    that nothing new is asked: a call that a limit prevented then is not made now. `proposing`: the models that may be
    asked for programs; those that are `up` do not rest."""

    def __init__(
        self,
        dispatch: Dispatch,
        generation: int,
        over: bool,
        proposing: Collection[str],
        up: Callable[[str], bool],
        show: Callable[[str], None],
    ) -> None:
        self.log, self.over, self.generation = dispatch.log, over, generation
        self._dispatch, self._up, self._show = dispatch, up, show
        self._prices = {name: price for name, price in dispatch.prices.items() if name in proposing}
        self._proposing = proposing
        self._samples = dispatch.log.samples(generation)

    def call(self, purpose: str, number: int, model: str, messages: Messages) -> LlmCall:
        """A call of this generation; asking the same again is another sample."""
        call = LlmCall(self.generation, purpose, number, model, messages)
        sample = self._samples[call.prompt, model]
        self._samples[call.prompt, model] += 1
        return replace(call, sample=sample)

    def ask(self, calls: Sequence[LlmCall], what: str, others: bool = False) -> list[str]:
        """Get the calls answered that the limits allow; why each was not made, "" if it was.

        `others`: what is not answered is put to other models next (see ask_others). Raises InputError if there are none
        and no model can be asked until the user corrects a key or a name.
        """
        if self.over:
            reasons = ["" if self.log.settled(call.name) else "its generation is over" for call in calls]
        else:
            reasons = self._dispatch.granted(calls)
        granted = [call for call, reason in zip(calls, reasons, strict=True) if not reason]
        in_journal = all(self.log.settled(call.name) for call in granted)
        doing = f"replaying {what}" if in_journal else f"asking for {what}"

        def progress(done: int, of: int) -> None:
            if of:  # else nothing is asked
                self._show(f"{doing}: {done} of {of} answered")

        self._dispatch.carry_out(granted, progress)
        if not others:
            self._dispatch.check_refused(self._proposing)
        return reasons

    def ask_others(self, unanswered: Sequence[LlmCall]) -> dict[int, LlmCall]:
        """Ask questions that a model did not answer of others in turn (see next_model), each in a call of its own.

        The last call of each question that was asked again, by the question's number. Raises InputError like `ask`.
        """
        again: dict[int, LlmCall] = {}
        for rank in range(2, len(self._proposing) + 1):
            moved = [(call, model) for call in unanswered
                     if (model := next_model(self.log, call, rank, self._prices, self._up))]  # fmt: skip
            calls = [self.call(asked_again(rank), call.number, model, call.messages) for call, model in moved]
            reasons = self.ask(calls, "proposals of other models", others=True)
            unanswered = [call for call, reason in zip(calls, reasons, strict=True) if not reason]
            again |= {call.number: call for call in unanswered}
        self._dispatch.check_refused(self._proposing)
        return again


def converse(
    questions: Sequence[Question],
    first: Sequence[Messages],
    asker: Asker,
    texts: Templates,
    config: Config,
    taken: Taken,
    workers: TrialWorkers,
) -> str:
    """Get the questions answered, round after round; why none could be asked, "" if any was.

    `first` are the messages of the first round. `taken`: keys of the forms that were proposed before; those in the
    answers are added.
    """
    waiting = dict(zip((q.number for q in questions), first, strict=True))
    for number in range(1, config.llm.rounds + 1):
        asked = [q for q in questions if not q.closed]
        calls = [asker.call(proposing(number), q.number, q.model, waiting[q.number]) for q in asked]
        reasons = asker.ask(calls, "proposals" if number == 1 else f"proposals, round {number}", others=number == 1)
        if number == 1 and all(reasons) and not asker.over:
            return reasons[0]
        if number == 1:
            again = asker.ask_others([call for call, reason in zip(calls, reasons, strict=True) if not reason])
            calls = [again.get(call.number, call) for call in calls]
        for question, call, reason in zip(asked, calls, reasons, strict=True):
            question.model = call.model
            answered = [] if reason else _ideas(question, call, asker)
            if number == 1:
                question.granted = not reason
            elif not any(idea.title or idea.text for idea in answered):
                answered = []  # "done", or nothing that could be read
            question.closed = not answered
            if answered:
                question.calls.append(call)
                question.rounds.append([checked(idea, call.name, config, taken) for idea in answered])
        asked = [q for q in asked if not q.closed]
        if number < config.llm.rounds or config.llm.judges:
            _try(asked, workers, config.search.limit_s)
        if left := config.llm.rounds - number:
            waiting = {q.number: _with_verdicts(q, asker, texts, left) for q in asked}
    return ""


def _ideas(question: Question, call: LlmCall, asker: Asker) -> list[Idea]:
    """The ideas in the answer to a call; none if there is no answer."""
    if call.name not in asker.log.answers:
        return []
    finish = asker.log.answers[call.name].finish
    return ideas(asker.log.text(call.name), prompt.bare(question.base.text), question.count, finish)


def _try(questions: Sequence[Question], workers: TrialWorkers, limit_s: float) -> None:
    """Try the candidates of the last round, all at once."""
    trials: dict[tuple[int, int], Promise[Trial]] = {
        (q.number, i): workers.trial(q.number, candidate.idea.text)
        for q in questions
        for i, candidate in enumerate(q.rounds[-1])
        if candidate.form
    }
    for question in questions:
        question.rounds[-1] = [
            replace(candidate, trial=_waited(trials[question.number, i], limit_s)) if candidate.form else candidate
            for i, candidate in enumerate(question.rounds[-1])
        ]


def _waited(promise: Promise[Trial], limit_s: float) -> Trial:
    try:
        return promise.result()
    except TookTooLong:
        return Trial(Rejected(TIMEOUT, f"no verdict within {limit_s:g} s (search.limit_s), {TRIES} times"))


def _with_verdicts(question: Question, asker: Asker, texts: Templates, rounds: int) -> Messages:
    """The messages of the last round, its answer, and what became of the programs in it."""
    call = question.calls[-1]
    answer = asker.log.text(call.name)[:LONGEST_ECHO].strip() or "(empty)"
    request = prompt.verdicts(texts, question.lines(), question.best(), rounds, question.count)
    return (*call.messages, ("assistant", answer), ("user", request))
