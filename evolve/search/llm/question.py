"""Questions for programs: their rounds of answers, the candidates in these, and the proposals that they become.

Also which models rest for a while, and which is asked instead of another, by the log of calls and by prices alone.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from archive.archive import Archive
from archive.champion import selection_score
from archive.elite import Elite
from archive.population import Population, tournament
from archive.proposal import DUPLICATE, MODEL, TIMEOUT, Proposal, Rejected, Review
from evaluator.assess import Scored, faults
from evaluator.diagnose.trial import Trial
from evolve.run.config import Config
from evolve.search.llm.answer import LONGEST_IDEA, ideas
from evolve.search.llm.calls import CallLog, LlmCall, Messages, Price, numbered, parts_of, proposes
from evolve.search.llm.dispatch import Dispatch
from evolve.search.llm.prompt import Templates, bare, figures, verdicts
from evolve.search.llm.reading import ANSWER, Idea, complaint_of
from evolve.search.pool.pool import TRIES
from evolve.search.pool.process import TookTooLong
from evolve.search.proposer import Place
from evolve.search.vocabulary import field_set
from evolve.search.workers import Workers
from simulator.common.text import plain
from simulator.language.complete import complete
from simulator.language.key import key

DRAWS = 4  # for each program that a question shows, since a tournament may draw the same one again
BEST_SHARE = 0.1  # of an island's programs with a group-out error: one of the best is improved
LEAST_BASES = 4  # however few programs there are, one of so many is improved
DOWN_AFTER = 2  # calls in a row without an answer, after which a model rests
LONGEST_REST = 16  # generations
SAME_CLASS = 3.0  # prices that differ by at most this factor are of one class
TYPICAL = (6000, 2000)  # tokens of a question and of its answer, by which prices are compared
REPEATED = "this form was proposed before"
LONGEST_ECHO = 12_000  # characters of an answer that are sent back together with the verdicts on its programs

# The forms that were proposed before, by key, and the programs that have them.
Taken = MutableMapping[str, Elite | None]
Hold = Callable[[Sequence["Question"], int, Taken], None]  # see Gates.hold


@dataclass
class Candidate:
    """An idea that becomes the proposal with this number.

    form: the key of its program's form; "" if there is nothing to assess. refused: why it does not go on. trial: None
    if it was not tried. judges: how many were asked for a review.
    """

    idea: Idea
    form: str = ""
    refused: Rejected | None = None
    number: int = -1
    trial: Trial | None = None
    reviews: list[Review] = field(default_factory=list)
    judges: int = 0

    @property
    def scored(self) -> Scored | None:
        return self.trial.verdict if self.trial and isinstance(self.trial.verdict, Scored) else None

    @property
    def selection_score(self) -> float:
        """That of a candidate that was scored; infinity for others."""
        return selection_score(self.scored.score.mean_error, self.scored.group_out) if self.scored else math.inf

    @property
    def line(self) -> str:
        """The verdict in a line, for the model that proposed it."""
        if self.trial is None:
            return f"refused: {self.refused.why}" if self.refused else "not tried"
        if isinstance(self.trial.verdict, Rejected):
            return f"refused: {self.trial.verdict.stage}: {self.trial.verdict.why}"
        return figures(self.trial.verdict)


def taken_forms(archive: Archive) -> Taken:
    """The forms that an archive holds, or that were refused after a fit (None)."""
    return dict.fromkeys(archive.keys) | {elite.key: elite for elite in archive.by_id.values()}


def checked(idea: Idea, config: Config, taken: Taken) -> Candidate:
    """An idea after the checks that a search makes before it fits a program. A new form is added to `taken`."""
    if idea.program is None:
        return Candidate(idea, refused=Rejected(idea.stage, idea.complaint))
    program = complete(idea.program)
    if wrong := list(faults(program, config.caps, field_set(config.search.fields))):
        complaint = complaint_of(idea.places, ((fault.line, fault.why) for fault in wrong))
        return Candidate(idea, refused=Rejected(wrong[0].stage, complaint))
    form = key(program)
    if form in taken:
        known = taken[form]
        group_out = f", group-out {known.group_out:.2f}" if known and known.group_out is not None else ""
        same = f"the form of program {known.id}: mean error {known.mean_error:.2f}{group_out}" if known else REPEATED
        return Candidate(idea, refused=Rejected(DUPLICATE, same))
    taken[form] = None
    return Candidate(idea, form)


@dataclass
class Question:
    """A question for `count` programs that change `base`, asked of a model for an island.

    Its first round fills the places from `number` on, later rounds `stride` each from `reserve` on. messages: those of
    the next round. granted: no limit forbids it. closed: no further round is asked. rounds: the candidates of each of
    `calls`.
    """

    number: int
    reserve: int
    stride: int
    count: int
    island: int
    model: str
    base: Elite
    others: tuple[Elite, ...]
    kinds: tuple[str, ...]
    messages: Messages = ()
    granted: bool = True
    closed: bool = False
    calls: list[LlmCall] = field(default_factory=list)
    rounds: list[list[Candidate]] = field(default_factory=list)

    @property
    def scored(self) -> list[Candidate]:
        return [candidate for candidates in self.rounds for candidate in candidates if candidate.scored]

    def add(self, call: LlmCall, candidates: Sequence[Candidate]) -> None:
        for k, candidate in enumerate(candidates):
            candidate.number = self._place(len(self.rounds), k)
        self.calls.append(call)
        self.rounds.append(list(candidates))

    def _place(self, round_index: int, k: int) -> int:
        """The number of the proposal that candidate k of a round becomes."""
        return self.number + k if round_index == 0 else self.reserve + (round_index - 1) * self.stride + k

    def best(self) -> str:
        """The trial of the last round's best program; "" if none was scored."""
        scored = [(not s.consistent, c.selection_score, i) for i, c in enumerate(self.rounds[-1]) if (s := c.scored)]
        i = min(scored)[2] if scored else 0
        trial = self.rounds[-1][i].trial
        return f"Proposal {i + 1}\n{trial.known}" if scored and trial else ""

    def proposal(self, round_index: int, k: int) -> Proposal | None:
        """Candidate k of a round as a proposal; None if nothing was asked, or no answer came.

        If the answer to the first round has fewer, the proposal says so.
        """
        candidates = self.rounds[round_index] if round_index < len(self.rounds) else []
        if not candidates or (round_index and k >= len(candidates)):
            return None
        parents, call = (self.base.id, *(e.id for e in self.others)), self.calls[round_index].name
        empty = Proposal(self._place(round_index, k), self.island, "", MODEL + self.model, parents, call)
        if k >= len(candidates):
            given = sum(candidate.idea.given for candidate in candidates)
            return replace(empty, refused=Rejected(ANSWER, f"{given} of {self.count} proposals were given"))
        candidate, idea = candidates[k], candidates[k].idea
        return replace(
            empty,
            text=idea.text,
            idea=plain("; ".join(filter(None, (idea.title, *idea.notes))), LONGEST_IDEA),
            motivation=idea.motivation,
            reviews=tuple(candidate.reviews),
            judges=candidate.judges,
            refused=candidate.refused,
        )


def draw_base(elites: Sequence[Elite], population: Population, rng: np.random.Generator) -> Elite:
    """The program to be changed: one of the best tenth of the consistent ones with a group-out error.

    If there are none such, of all with a group-out error, or of all.
    """
    measured = [e for e in elites if e.group_out is not None] or list(elites)
    consistent = [e for e in measured if e.consistent] or measured
    ranked = sorted(consistent, key=lambda e: (population.rule.selection_score(e), e.id))
    few = ranked[: max(math.ceil(BEST_SHARE * len(ranked)), min(LEAST_BASES, len(ranked)))]
    return few[int(rng.integers(len(few)))]


def draw_others(
    place: Place, base: Elite, count: int, population: Population, rng: np.random.Generator
) -> tuple[Elite, ...]:
    """Up to `count` other programs for a question: the champion, and winners of tournaments among a place's parents."""
    entrants, best = population.entrants(place.island)[1], population.champion()
    drawn = [tournament(place.parents, place.order, entrants, rng) for _ in range(DRAWS * (count + 1))]
    others = {e.id: e for e in ([best] if best else []) + drawn if e.id != base.id}
    return tuple(others.values())[:count]


def fallback(model: str, tried: Collection[str], prices: Mapping[str, Price], up: Callable[[str], bool]) -> str | None:
    """The model that is asked if `model` did not answer; None if none of those with a price is left.

    First those of its class, the nearest in price first, then the cheaper ones, the dearest first. Never one that was
    tried or is not up, and never one dearer than its class.
    """
    if model not in prices:
        return None
    own = prices[model].usd(*TYPICAL)
    usd = {name: price.usd(*TYPICAL) for name, price in prices.items() if name not in {model, *tried} and up(name)}
    alike = [name for name, other in usd.items() if max(own, other) <= SAME_CLASS * min(own, other)]
    if alike:
        return min(alike, key=lambda name: (abs(usd[name] - own), name))
    return min((name for name in usd if usd[name] < own), key=lambda name: (-usd[name], name), default=None)


def next_model(
    log: CallLog, call: LlmCall, rank: int, prices: Mapping[str, Price], up: Callable[[str], bool]
) -> str | None:
    """The model that is number `rank` to be asked the question of `call`; None if there is none, or needs to be none.

    A choice in the log is repeated, because prices may have changed since.
    """
    lost = log.given_up.get(call.name)
    if lost is None or lost.limit:
        return None
    purposes = [numbered("propose", k) for k in range(1, rank + 1)]
    models = [log.model_of(f"{call.generation}/{purpose}/{call.number}") for purpose in purposes]
    return models[-1] or fallback(models[0], models[:-1], prices, up)


class Asker:
    """Asks the models, one generation after another, as far as the limits allow; remembers which rest.

    over: the generation has outcomes already, so that no call is made now that a limit prevented then.
    """

    def __init__(self, dispatch: Dispatch, config: Config, texts: Templates, show: Callable[[str], None]) -> None:
        self.log, self.config, self.texts, self.generation, self.over = dispatch.log, config, texts, 0, False
        self._dispatch, self._show, self._proposing = dispatch, show, config.llm.ensemble()
        self._samples = Counter[tuple[str, str]]()
        # of each model: calls in a row without an answer, the generation until which it rests, USD of a generation
        self._failures, self._rests_until = Counter[str](), Counter[str]()
        self._usd: defaultdict[str, float] = defaultdict(float)

    def open(self, generation: int, over: bool) -> None:
        """Go on to a generation, after learning from the calls of the one before, in their order."""
        self._usd.clear()
        for name in self.log.of_generation(generation - 1):
            answer, lost = self.log.answers.get(name), self.log.given_up.get(name)
            if answer is not None:
                self._failures[answer.model] = self._rests_until[answer.model] = 0
                if proposes(parts_of(name)[1]):
                    self._usd[answer.model] += answer.usd
            elif lost is not None and not lost.limit:
                self._failures[lost.model] += 1
                again = self._failures[lost.model] - DOWN_AFTER
                if again >= 0:
                    self._rests_until[lost.model] = generation + min(2**again, LONGEST_REST)
        self.generation, self.over, self._samples = generation, over, self.log.samples(generation)

    def up(self, model: str) -> bool:
        """True if a model is asked in this generation, that is, does not rest."""
        return self._rests_until[model] <= self.generation

    def costs(self) -> dict[str, float]:
        """The cost of each model's proposals of the last generation to a bandit, in candidates besides its own.

        A candidate is worth its share of the budget, a dollar its share of max_usd.
        """
        most_usd = self.config.llm.max_usd
        return {MODEL + m: self.config.budget * usd / most_usd for m, usd in self._usd.items() if most_usd}

    def call(self, purpose: str, number: int, model: str, messages: Messages) -> LlmCall:
        """A call of this generation; asking the same again is another sample."""
        call = LlmCall(self.generation, purpose, number, model, messages)
        sample = self._samples[call.prompt, model]
        self._samples[call.prompt, model] += 1
        return replace(call, sample=sample)

    def ask(self, calls: Sequence[LlmCall], noun: str, others: bool = False) -> list[str]:
        """Get the calls answered that the limits allow; why each was not made, "" if it was.

        noun: what is asked for. others: other models are asked next (see ask_others). Raises InputError if there are
        none and no model can be asked until the user corrects a key or a name.
        """
        if self.over:
            reasons = ["" if self.log.settled(call.name) else "its generation is over" for call in calls]
        else:
            reasons = self._dispatch.granted(calls)
        granted = [call for call, reason in zip(calls, reasons, strict=True) if not reason]
        doing = "replaying" if all(self.log.settled(call.name) for call in granted) else "asking for"

        def progress(done: int, of: int) -> None:
            if of:  # else nothing is asked
                self._show(f"{doing} {noun}: {done} of {of} answered")

        self._dispatch.carry_out(granted, progress)
        if not others:
            self._dispatch.check_refused(self._proposing)
        return reasons

    def ask_others(self, unanswered: Sequence[LlmCall]) -> dict[int, LlmCall]:
        """Ask questions that a model did not answer of others in turn (see next_model), each in a call of its own.

        The last call of each question, by its number. Raises InputError like `ask`.
        """
        again: dict[int, LlmCall] = {}
        prices = {name: price for name, price in self._dispatch.prices.items() if name in self._proposing}
        for rank in range(2, len(self._proposing) + 1):
            moved = [(call, next_model(self.log, call, rank, prices, self.up)) for call in unanswered]
            purpose = numbered("propose", rank)
            calls = [self.call(purpose, call.number, model, call.messages) for call, model in moved if model]
            reasons = self.ask(calls, "proposals of other models", others=True)
            unanswered = [call for call, reason in zip(calls, reasons, strict=True) if not reason]
            again |= {call.number: call for call in unanswered}
        self._dispatch.check_refused(self._proposing)
        return again


def converse(
    questions: Sequence[Question], asker: Asker, taken: Taken, workers: Workers, hold: Hold | None = None
) -> str:
    """Get the questions answered, round after round; why none could be asked, "" if any was. Adds to `taken`.

    hold: refuses the candidates of a round before they are tried, and closes the questions of which none is sent back.
    """
    config, rounds = asker.config, asker.config.llm.rounds
    for number in range(1, rounds + 1):
        asked = [q for q in questions if not q.closed]
        purpose, noun = ("propose", "proposals") if number == 1 else (f"round-{number}", f"proposals, round {number}")
        calls = [asker.call(purpose, q.number, q.model, q.messages) for q in asked]
        reasons = asker.ask(calls, noun, others=number == 1)
        if number == 1:
            if all(reasons) and not asker.over:
                return reasons[0]
            again = asker.ask_others([call for call, reason in zip(calls, reasons, strict=True) if not reason])
            calls = [again.get(call.number, call) for call in calls]
        for question, call, reason in zip(asked, calls, reasons, strict=True):
            question.model = call.model
            answered = [] if reason else _ideas(question, call, asker.log)
            if number == 1:
                question.granted = not reason
            elif not any(idea.title or idea.text for idea in answered):
                answered = []  # "done", or nothing that could be read
            question.closed = not answered
            if answered:
                question.add(call, [checked(idea, config, taken) for idea in answered])
        asked = [q for q in asked if not q.closed]
        if hold:
            hold(asked, number, taken)
        if number < rounds or config.llm.judges:
            _try(asked, workers, config.search.limit_s)
        if number < rounds:
            for question in (q for q in asked if not q.closed):
                question.messages = _with_verdicts(question, asker, rounds - number)
    return ""


def _ideas(question: Question, call: LlmCall, log: CallLog) -> list[Idea]:
    answer = log.answers.get(call.name)
    return ideas(log.text(call.name), bare(question.base.text), question.count, answer.finish) if answer else []


def _try(questions: Sequence[Question], workers: Workers, limit_s: float) -> None:
    new = [(q.number, candidate) for q in questions for candidate in q.rounds[-1] if candidate.form]
    trials = [workers.trial(number, candidate.idea.text) for number, candidate in new]
    for (_, candidate), trial in zip(new, trials, strict=True):
        try:
            candidate.trial = trial.result()
        except TookTooLong:
            why = f"no verdict within {limit_s:g} s (search.limit_s), {TRIES} times"
            candidate.trial = Trial(Rejected(TIMEOUT, why))


def _with_verdicts(question: Question, asker: Asker, rounds: int) -> Messages:
    call, programs = question.calls[-1], enumerate(question.rounds[-1], 1)
    answer = asker.log.text(call.name)[:LONGEST_ECHO].strip() or "(empty)"
    lines = [f"- Proposal {i}: {candidate.line}" for i, candidate in programs]
    request = verdicts(asker.texts, lines, question.best(), rounds, question.count)
    return (*call.messages, ("assistant", answer), ("user", request))
