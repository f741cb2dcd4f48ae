"""Language models as a proposer: which model is asked what, sent back what, judged how, and what the answers become.

Every decision depends on the configuration, the archive as it stood when the generation began, and the book; never on a
clock. So a run goes on from its journal, and is replayed from it, exactly as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from archive.population import Population
from archive.proposal import MODEL, Outcome, Proposal
from evolve.propose.llm import judges, notes, prompt
from evolve.propose.llm.answer import ideas
from evolve.propose.llm.availability import Availability
from evolve.propose.llm.calls import Call, Messages
from evolve.propose.llm.dispatch import Dispatch
from evolve.propose.llm.question import Ask, checked, families
from evolve.propose.llm.templates import Templates, fill
from evolve.propose.proposer import Operators, Place, places
from evolve.propose.vocabulary import field_set
from evolve.run.config import Config
from evolve.run.llm_settings import weighted
from simulator.stream import stream

LONGEST_ECHO = 12_000  # characters of an answer that are sent back with what is wrong in it
NOTES = "NOTES.md"


class LanguageModels:
    """The proposer of a run with language models: they propose alone, or share the places with operators (mixed).

    `stopped` says why no more calls are made and the search ends; it is "" while it goes on. `lost` names the requests
    that were under way when an earlier process died. `moe` has the ids of experiments of MoE models; `folder` is the
    run's, for its notes; `say` shows how far the questions of a generation are.
    """

    def __init__(
        self,
        config: Config,
        texts: Templates,
        dispatch: Dispatch,
        operators: Operators,
        diagnose: Callable[[str], Future[str]],
        remembered: Collection[int],
        moe: frozenset[str],
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        self.stopped = ""
        self.lost = dispatch.book.under_way()
        self._config, self._texts, self._dispatch = config, texts, dispatch
        self._operators, self._diagnose, self._remembered = operators, diagnose, remembered
        self._moe, self._folder, self._say = moe, folder, say
        self._chances = config.llm.ensemble()
        self._judges = [weighted(name, "llm.judges")[0] for name in config.llm.judges]
        self._summariser = weighted(config.llm.summariser or config.llm.models[0], "llm.summariser")[0]
        self._availability = Availability()
        self._diagnoses: dict[int, Future[str]] = {}
        self._notes, self._noted = "", -1
        self._generation = 0
        self._begun = self._passed = False
        self._samples: Counter[tuple[str, str]] = Counter()
        self._population: Population

    def ask(self, population: Population, generation: int) -> list[Proposal]:
        first, after = population.numbered, population.numbered + self._config.search.batch * len(population.islands)
        settled = [n for n in range(first, after) if n in self._remembered]
        self._begun = bool(settled)  # the journal has some of the generation's outcomes
        self._passed = len(settled) == after - first or max(self._remembered, default=0) >= after  # all it will have
        self._open(generation, population)
        weights = self._operators.weights()
        asks: list[Ask] = []
        begun: list[Callable[[], Proposal | None]] = []
        claimed: int | None = 0  # places still to be filled by the last question; None: the place stays empty
        for place in places(population, self._config.search.batch):
            if place.left == self._config.search.batch:
                claimed = 0  # a question is about one island only
            if not claimed:
                claimed = self._claim(place, len(begun), asks)
            if place.number in self._remembered:
                begun.append(self._operators.begin(place, population, weights))
            elif claimed is None:
                begun.append(_nothing)
            elif claimed:
                begun.append(partial(self._of_model, place, weights, asks[-1]))
            else:
                begun.append(self._operators.begin(place, population, weights))
            claimed = max((claimed or 0) - 1, 0)
        if asks and not self._put(asks):
            return []
        population.numbered += len(begun)
        return [proposal for finish in begun if (proposal := finish())]

    def tell(self, outcomes: Sequence[tuple[Outcome, bool]]) -> None:
        self._operators.tell(outcomes)

    def end(self, population: Population) -> None:
        """The last generation is over: learn from its calls, and take notes if they are due."""
        self._begun = self._passed = False  # the numbers that follow are of polished programs
        self._open(self._generation + 1, population)

    def close(self) -> None:
        """Journal what came too late to be used."""
        self._dispatch.close()

    def status(self) -> str:
        """For a progress line: what was spent, and who does not answer."""
        spent = self._dispatch.book.spent
        possibly = f" and possibly {spent.possibly_usd:.2f}" if spent.possibly_usd >= 0.005 else ""
        told = (
            f"{len(self._dispatch.book.answers)} answers, {spent.usd:.2f}{possibly} of {self._config.llm.max_usd:g} USD"
        )
        down = [model for model in self._chances if not self._up(model)]
        if len(down) == len(self._chances):
            return f"{told}, all models are down: offline operators propose"
        return f"{told}, down: {', '.join(down)}" if down else told

    # in the order of a generation

    def _open(self, generation: int, population: Population) -> None:
        """Learn from the calls of the generation before, then reflect."""
        self._availability.learn(self._dispatch.book, generation - 1)
        self._generation, self._population = generation, population
        self._samples = self._dispatch.book.samples(generation)
        self._operators.bandit.costs = self._availability.costs(self._config)
        self._reflect()

    def _claim(self, place: Place, ahead: int, asks: list[Ask]) -> int | None:
        """How many of the places from this one on a model is asked for, after `ahead` of the generation. 0: an operator
        takes the place; None: it stays empty."""
        if self._passed:
            return None
        if ahead >= self._config.budget - self._population.fitted:  # all that may be fitted is proposed already
            return None if self._config.search.proposer == "llm" else 0
        rng = stream(self._config.seed, place.number, 1)
        model = self._draw(rng)
        if model is None:
            return 0
        sizes = self._population.entrants(place.island)
        base, others = families(place.parents, place.order, sizes, self._config.llm.parents, rng)
        count = min(place.left, self._config.llm.programs)
        asks.append(Ask(place.number, count, place.island, model, base, others, prompt.kinds(count, rng)))
        return count

    def _put(self, asks: Sequence[Ask]) -> bool:
        """Put every question of the generation; False if no limit allows any, which ends the search."""
        for ask in asks:
            if ask.base.id not in self._diagnoses:
                self._diagnoses[ask.base.id] = self._diagnose(ask.base.text)
        calls = [self._call("propose", ask.number, ask.model, self._messages(ask)) for ask in asks]
        reasons = self._reasons(calls)
        if all(reasons) and not self._begun:
            self.stopped = reasons[0]
            return False
        for ask, call, reason in zip(asks, calls, reasons, strict=True):
            ask.call, ask.granted = call, not reason
        self._carry_out([call for call, reason in zip(calls, reasons, strict=True) if not reason], "proposals")
        taken = set(self._population.archive.keys)
        self._read(asks, taken)
        if self._config.llm.repair:
            self._repair(asks, taken)
        self._judge(asks)
        return True

    def _of_model(self, place: Place, weights: Mapping[str, float], ask: Ask) -> Proposal | None:
        """A model's proposal for the place; an operator's where no answer came; None where nothing was asked."""
        if ask.granted and not ask.places:
            return self._operators.begin(place, self._population, weights)()
        return ask.proposal(place.number - ask.number, self._config.llm.judge_below)

    def _reflect(self) -> None:
        """New notes, if they are due after the generations so far."""
        population, number, every = self._population, self._generation, self._config.llm.notes_every
        if not every or number == 1 or (number - 1) % every:
            return
        latest = [e for e in population.archive.by_id.values() if e.id > self._noted]
        call = self._call("notes", 0, self._summariser, notes.question(self._texts, population, self._notes, latest))
        if not self._passed and self._up(self._summariser) and not self._reasons([call])[0]:
            self._carry_out([call], "notes")
        if call.name in self._dispatch.book.answers and (text := notes.kept(self._dispatch.book.text(call.name))):
            self._notes, self._noted = text, max(population.archive.by_id)
            (self._folder / NOTES).write_text(f"After generation {number - 1}:\n\n{text}\n", "utf-8")

    def _draw(self, rng: np.random.Generator) -> str | None:
        """Which model makes the next proposals, None: an operator makes the next one."""
        mixed = self._config.search.proposer == "mixed"
        chances = {model: chance for model, chance in self._chances.items() if self._up(model)}
        if mixed:
            bandit = self._operators.bandit
            arms = bandit.chances() if self._config.search.bandit else bandit.prior
            chances = {model: arms[MODEL + model] / sum(arms.values()) for model in chances}
        chance = sum(chances.values())
        if not chance:
            return None
        # a question takes several proposals at once: asked this often, the models' share of all is `chance`
        several = self._config.llm.programs
        if mixed and rng.random() >= chance / (several - chance * (several - 1)):
            return None
        return list(chances)[rng.choice(len(chances), p=np.array(list(chances.values())) / chance)]

    def _read(self, asks: Sequence[Ask], taken: set[str]) -> None:
        for ask in asks:
            if ask.call and ask.granted:
                found = self._ideas(ask, ask.call.name, ask.count)
                ask.places = [checked(idea, ask.call.name, self._config, taken) for idea in found]

    def _repair(self, asks: Sequence[Ask], taken: set[str]) -> None:
        """Once for every answer with something wrong in it: complaints go back, and better programs take the places."""
        wrong = [ask for ask in asks if ask.wrong]
        calls = [self._call("repair", ask.number, ask.model, self._again(ask)) for ask in wrong]
        reasons = self._reasons(calls)
        self._carry_out([call for call, reason in zip(calls, reasons, strict=True) if not reason], "repairs")
        for ask, call, reason in zip(wrong, calls, reasons, strict=True):
            better = [] if reason else self._ideas(ask, call.name, len(ask.wrong))
            for place, idea in zip(ask.wrong, [idea for idea in better if not idea.complaint], strict=False):
                ask.places[place] = checked(idea, call.name, self._config, taken)

    def _judge(self, asks: Sequence[Ask]) -> None:
        candidates = [(ask, i) for ask in asks for i, place in enumerate(ask.places) if place.form]
        groups = [candidates[a : a + judges.TOGETHER] for a in range(0, len(candidates), judges.TOGETHER)]
        fields = prompt.fields_text(field_set(self._config.search.fields))
        made: list[tuple[Call, list[tuple[Ask, int]]]] = []
        for j, model in enumerate(self._judges):
            for g, group in enumerate(groups if self._up(model) else []):
                shown = [(ask.places[i].idea.title, ask.places[i].idea.text) for ask, i in group]
                made.append(
                    (self._call("judge", 100 * j + g, model, judges.question(self._texts, fields, shown)), group)
                )
        reasons = self._reasons([call for call, _ in made])
        granted = [pair for pair, reason in zip(made, reasons, strict=True) if not reason]
        self._carry_out([call for call, _ in granted], "reviews")
        for call, group in granted:
            if call.name in self._dispatch.book.answers:
                found = judges.reviews(self._dispatch.book.text(call.name), call.model, len(group))
                for (ask, i), review in zip(group, found, strict=True):
                    if review is not None:
                        ask.reviews.setdefault(i, []).append(review)

    # what the steps above share

    def _up(self, model: str) -> bool:
        return self._availability.up(model, self._generation)

    def _reasons(self, calls: Sequence[Call]) -> list[str]:
        """Why each call is not to be made, "" where it is. What a limit left unasked in a generation that has verdicts
        stays so."""
        if self._begun:
            return ["" if self._dispatch.book.settled(call.name) else "its generation is over" for call in calls]
        return self._dispatch.granted(calls)

    def _messages(self, ask: Ask) -> Messages:
        diagnosis = self._diagnoses[ask.base.id].result()
        return prompt.messages(self._texts, self._config, self._population, ask.base, ask.others, ask.kinds, diagnosis,
                               self._notes, self._moe)  # fmt: skip

    def _again(self, ask: Ask) -> Messages:
        assert ask.call is not None
        told = "\n".join(f"- Proposal {i + 1}: {ask.places[i].idea.complaint}" for i in ask.wrong)
        said = self._dispatch.book.text(ask.call.name)[:LONGEST_ECHO].strip() or "(empty)"
        again = fill(self._texts["repair"], complaints=told, programs=str(len(ask.wrong)))
        return (*ask.call.messages, ("assistant", said), ("user", again))

    def _call(self, purpose: str, number: int, model: str, messages: Messages) -> Call:
        call = Call(self._generation, purpose, number, model, messages)
        sample = self._samples[call.prompt, model]
        self._samples[call.prompt, model] += 1
        return replace(call, sample=sample)

    def _carry_out(self, calls: Sequence[Call], what: str) -> None:
        self._dispatch.carry_out(calls, lambda done, of: self._say(f"asking for {what}: {done} of {of} answered"))

    def _ideas(self, ask: Ask, name: str, most: int) -> list[Any]:
        """What the answer to a call proposes; none where there is no answer."""
        book = self._dispatch.book
        if name not in book.answers:
            return []
        return ideas(book.text(name), prompt.bare(ask.base.text), most, book.answers[name].finish)


def _nothing() -> None:
    """A place that stays empty."""
