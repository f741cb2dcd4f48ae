"""Language models as a proposer: which model is asked what, and how its answers are repaired, judged and used.

Every decision depends on the configuration, the archive at the start of the generation, and the log of calls; never on
a clock. So a run can be resumed, or replayed from its journal, exactly as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from archive.population import Population
from archive.proposal import MODEL, Outcome, Proposal
from evolve.pool.pool import Promise
from evolve.propose.llm import judges, notes, prompt
from evolve.propose.llm.answer import Idea, ideas
from evolve.propose.llm.availability import Availability
from evolve.propose.llm.calls import Call, CallLog, Messages
from evolve.propose.llm.dispatch import Dispatch
from evolve.propose.llm.question import Question, Taken, checked, draw_parents, taken_forms
from evolve.propose.llm.templates import Templates, fill
from evolve.propose.proposer import Operators, Place, places
from evolve.propose.vocabulary import field_set
from evolve.run.config import Config
from evolve.run.files import write_text
from evolve.run.llm_settings import weighted
from simulator.stream import stream

LONGEST_ECHO = 12_000  # characters of an answer that are sent back together with its complaints
NOTES = "NOTES.md"  # the file in the run's folder with the latest notes


class LanguageModels:
    """The proposer of a run with language models. They propose alone, or share the places with operators (mixed).

    `stopped` says why no more calls are made and the search ends; it is "" until then. `lost` names the requests that
    were under way when an earlier process died. `moe` holds the ids of experiments with MoE models. `folder` is the
    run's, for its notes. `show` displays the progress of a generation's questions.
    """

    def __init__(
        self,
        config: Config,
        texts: Templates,
        dispatch: Dispatch,
        operators: Operators,
        diagnose: Callable[[str], Promise[str]],
        remembered: Collection[int],
        moe: frozenset[str],
        folder: Path,
        show: Callable[[str], None],
    ) -> None:
        self.stopped = ""
        self.lost = dispatch.log.under_way()
        self._config, self._texts, self._dispatch = config, texts, dispatch
        self._operators, self._diagnose, self._remembered = operators, diagnose, remembered
        self._moe, self._folder, self._show = moe, folder, show
        self._chances = config.llm.ensemble()
        self._judges = [weighted(name, "llm.judges")[0] for name in config.llm.judges]
        self._summariser = weighted(config.llm.summariser or config.llm.models[0], "llm.summariser")[0]
        self._availability = Availability()
        self._diagnoses: dict[int, Promise[str]] = {}
        self._notes, self._noted = "", -1  # the latest notes, and the last elite that they cover
        self._generation = 0
        self._has_outcomes = False  # whether the journal has outcomes of this generation already
        self._complete = False  # whether it has all outcomes of this generation that it will ever have
        self._samples: Counter[tuple[str, str]] = Counter()
        self._population: Population

    @property
    def _log(self) -> CallLog:
        return self._dispatch.log

    def ask(self, population: Population, generation: int) -> list[Proposal]:
        first, after = population.numbered, population.numbered + self._config.search.batch * len(population.islands)
        remembered = [n for n in range(first, after) if n in self._remembered]
        self._has_outcomes = bool(remembered)
        self._complete = len(remembered) == after - first or max(self._remembered, default=0) >= after
        self._open(generation, population)
        weights = self._operators.weights()
        questions: list[Question] = []
        started: list[Callable[[], Proposal | None]] = []
        claimed: int | None = 0  # places still to be filled by the last question; None: the place stays empty
        for place in places(population, self._config.search.batch):
            if place.left == self._config.search.batch:
                claimed = 0  # a question is about one island only
            if not claimed:
                claimed = self._claim(place, len(started), questions)
            if place.number in self._remembered or claimed == 0:
                started += self._operators.start([place], population, weights)
            elif claimed is None:
                started.append(_nothing)
            else:
                started.append(partial(self._of_model, place, weights, questions[-1]))
            claimed = max((claimed or 0) - 1, 0)
        if questions and not self._answer(questions):
            return []
        population.numbered += len(started)
        return [proposal for finish in started if (proposal := finish())]

    def tell(self, outcomes: Sequence[tuple[Outcome, bool]]) -> None:
        self._operators.tell(outcomes)

    def end(self, population: Population) -> None:
        """Finish the last generation: learn from its calls, and take notes if they are due."""
        self._has_outcomes = self._complete = False  # the numbers that follow are of polished programs
        self._open(self._generation + 1, population)

    def close(self) -> None:
        """Journal the answers that arrived too late to be used."""
        self._dispatch.close()

    def status(self) -> str:
        """What was spent and which models do not answer, for a progress line."""
        spent = self._log.spent
        possibly = f" and possibly {spent.possibly_usd:.2f}" if spent.possibly_usd >= 0.005 else ""
        text = f"{len(self._log.answers)} answers, {spent.usd:.2f}{possibly} of {self._config.llm.max_usd:g} USD"
        down = [model for model in self._chances if not self._up(model)]
        if len(down) == len(self._chances):
            return f"{text}, all models are down: offline operators propose"
        return f"{text}, down: {', '.join(down)}" if down else text

    # the steps of a generation, in order

    def _open(self, generation: int, population: Population) -> None:
        """Start a generation: learn from the calls of the previous one, then take notes if they are due."""
        self._availability.learn(self._log, generation - 1)
        self._generation, self._population = generation, population
        self._samples = self._log.samples(generation)
        self._operators.bandit.costs = self._availability.costs(self._config)
        self._take_notes()

    def _take_notes(self) -> None:
        """Ask for new notes, if they are due after the generations so far."""
        population, number, every = self._population, self._generation, self._config.llm.notes_every
        if not every or number == 1 or (number - 1) % every:
            return
        latest = [e for e in population.archive.by_id.values() if e.id > self._noted]
        call = self._call("notes", 0, self._summariser, notes.question(self._texts, population, self._notes, latest))
        if not self._complete and self._up(self._summariser) and not self._reasons([call])[0]:
            self._carry_out([call], "notes")
        if call.name in self._log.answers and (text := notes.kept(self._log.text(call.name))):
            self._notes, self._noted = text, max(population.archive.by_id)
            write_text(self._folder / NOTES, f"After generation {number - 1}:\n\n{text}\n")

    def _claim(self, place: Place, ahead: int, questions: list[Question]) -> int | None:
        """How many places, from this one on, a model is asked to fill; its question is added to `questions`.

        0: an operator fills the place. None: it stays empty. `ahead` places of the generation come before this one.
        """
        if self._complete:
            return None
        if ahead >= self._config.budget - self._population.fitted:  # the rest of the budget is proposed already
            return None if self._config.search.proposer == "llm" else 0
        rng = stream(self._config.seed, place.number, 1)
        model = self._draw(rng)
        if model is None:
            return 0
        sizes = self._population.entrants(place.island)
        base, others = draw_parents(place.parents, place.order, sizes, self._config.llm.parents, rng)
        count = min(place.left, self._config.llm.programs)
        kinds = prompt.kinds(count, rng)
        questions.append(Question(place.number, count, place.island, model, base, others, kinds))
        return count

    def _draw(self, rng: np.random.Generator) -> str | None:
        """The model that makes the next proposals; None if an operator makes the next one."""
        mixed = self._config.search.proposer == "mixed"
        chances = {model: chance for model, chance in self._chances.items() if self._up(model)}
        if mixed:
            bandit = self._operators.bandit
            arms = bandit.chances() if self._config.search.bandit else bandit.prior
            chances = {model: arms[MODEL + model] / sum(arms.values()) for model in chances}
        chance = sum(chances.values())
        if not chance:
            return None
        # A question fills several places at once. Drawn this often, models fill the share `chance` of all places.
        several = self._config.llm.programs
        if mixed and rng.random() >= chance / (several - chance * (several - 1)):
            return None
        return list(chances)[rng.choice(len(chances), p=np.array(list(chances.values())) / chance)]

    def _answer(self, questions: Sequence[Question]) -> bool:
        """Get the generation's questions answered; False if no limit allows any, which ends the search."""
        for question in questions:
            if question.base.id not in self._diagnoses:
                self._diagnoses[question.base.id] = self._diagnose(question.base.text)
        calls = [self._call("propose", q.number, q.model, self._messages(q)) for q in questions]
        reasons = self._reasons(calls)
        if all(reasons) and not self._has_outcomes:
            self.stopped = reasons[0]
            return False
        for question, call, reason in zip(questions, calls, reasons, strict=True):
            question.call, question.granted = call, not reason
        self._carry_out([call for call, reason in zip(calls, reasons, strict=True) if not reason], "proposals")
        taken = taken_forms(self._population.archive)
        self._read(questions, taken)
        if self._config.llm.repair:
            self._repair(questions, taken)
        self._judge(questions)
        return True

    def _read(self, questions: Sequence[Question], taken: Taken) -> None:
        """Read and check the candidates in every answer."""
        for question in questions:
            if question.call and question.granted:
                answered = self._ideas(question, question.call.name, question.count)
                question.candidates = [checked(idea, question.call.name, self._config, taken) for idea in answered]

    def _repair(self, questions: Sequence[Question], taken: Taken) -> None:
        """Send complaints back, once for every answer that has any; better programs replace the wrong ones."""
        wrong = [question for question in questions if question.wrong]
        calls = [self._call("repair", q.number, q.model, self._with_complaints(q)) for q in wrong]
        reasons = self._reasons(calls)
        self._carry_out([call for call, reason in zip(calls, reasons, strict=True) if not reason], "repairs")
        for question, call, reason in zip(wrong, calls, reasons, strict=True):
            answered = [] if reason else self._ideas(question, call.name, len(question.wrong))
            better = [idea for idea in answered if not idea.complaint]
            for i, idea in zip(question.wrong, better, strict=False):
                question.candidates[i] = checked(idea, call.name, self._config, taken)

    def _judge(self, questions: Sequence[Question]) -> None:
        """Have every judge review the candidates that can be assessed."""
        candidates = [(q, i) for q in questions for i, candidate in enumerate(q.candidates) if candidate.form]
        groups = [candidates[a : a + judges.TOGETHER] for a in range(0, len(candidates), judges.TOGETHER)]
        fields = prompt.fields_text(field_set(self._config.search.fields))
        asked: list[tuple[Call, list[tuple[Question, int]]]] = []
        for j, model in enumerate(self._judges):
            for g, group in enumerate(groups if self._up(model) else []):
                ideas_shown = [q.candidates[i].idea for q, i in group]
                shown = [(idea.title, idea.text) for idea in ideas_shown]
                call = self._call("judge", 100 * j + g, model, judges.question(self._texts, fields, shown))
                asked.append((call, group))
        reasons = self._reasons([call for call, _ in asked])
        granted = [pair for pair, reason in zip(asked, reasons, strict=True) if not reason]
        self._carry_out([call for call, _ in granted], "reviews")
        for call, group in granted:
            if call.name in self._log.answers:
                reviews = judges.reviews(self._log.text(call.name), call.model, len(group))
                for (question, i), review in zip(group, reviews, strict=True):
                    if review is not None:
                        question.reviews.setdefault(i, []).append(review)

    def _of_model(self, place: Place, weights: Mapping[str, float], question: Question) -> Proposal | None:
        """A model's proposal for a place; an operator's if no answer came; None if nothing was asked."""
        if question.granted and not question.candidates:
            return self._operators.start([place], self._population, weights)[0]()
        return question.proposal(place.number - question.number, self._config.llm.judge_below)

    # what the steps share

    def _up(self, model: str) -> bool:
        return self._availability.up(model, self._generation)

    def _reasons(self, calls: Sequence[Call]) -> list[str]:
        """Why each call is not to be made, "" if it is.

        A call that a limit prevented is not made later, once its generation has outcomes.
        """
        if self._has_outcomes:
            return ["" if self._log.settled(call.name) else "its generation is over" for call in calls]
        return self._dispatch.granted(calls)

    def _messages(self, question: Question) -> Messages:
        diagnosis = self._diagnoses[question.base.id].result()
        return prompt.messages(self._texts, self._config, self._population, question.base, question.others,
                               question.kinds, diagnosis, self._notes, self._moe)  # fmt: skip

    def _with_complaints(self, question: Question) -> Messages:
        """The messages of a question, its answer, and the complaints about it."""
        assert question.call is not None
        complaints = "\n".join(f"- Proposal {i + 1}: {question.candidates[i].idea.complaint}" for i in question.wrong)
        answer = self._log.text(question.call.name)[:LONGEST_ECHO].strip() or "(empty)"
        request = fill(self._texts["repair"], complaints=complaints, programs=str(len(question.wrong)))
        return (*question.call.messages, ("assistant", answer), ("user", request))

    def _call(self, purpose: str, number: int, model: str, messages: Messages) -> Call:
        call = Call(self._generation, purpose, number, model, messages)
        sample = self._samples[call.prompt, model]
        self._samples[call.prompt, model] += 1
        return replace(call, sample=sample)

    def _carry_out(self, calls: Sequence[Call], what: str) -> None:
        self._dispatch.carry_out(calls, lambda done, of: self._show(f"asking for {what}: {done} of {of} answered"))

    def _ideas(self, question: Question, name: str, most: int) -> list[Idea]:
        """The ideas in the answer to call `name`; none if there is no answer."""
        if name not in self._log.answers:
            return []
        return ideas(self._log.text(name), prompt.bare(question.base.text), most, self._log.answers[name].finish)


def _nothing() -> None:
    """The proposal of a place that stays empty."""
