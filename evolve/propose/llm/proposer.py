"""A generation at the desk: which model is asked what, sent back what, judged how, and what is made of the answers.

Every decision depends on the configuration, the archive as it stood when the generation began, and the book; never on a
clock. So a run goes on from its journal, and is replayed from it, exactly as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from archive.elite import Elite
from evolve.propose.llm import judges, notes, prompt
from evolve.propose.llm.answer import ideas
from evolve.propose.llm.availability import Standing
from evolve.propose.llm.calls import Call, Messages
from evolve.propose.llm.dispatch import Dial
from evolve.propose.llm.question import Ask, checked, families
from evolve.propose.llm.templates import Templates, fill
from evolve.propose.parents import entrants
from evolve.propose.vocabulary import field_set
from evolve.run.config import Config
from evolve.run.llm_settings import weighted
from evolve.search.assessor import diagnose_text
from evolve.search.state import MODEL, Proposal, State, ensemble
from simulator.stream import stream

LONGEST_ECHO = 12_000  # characters of an answer that are sent back with what is wrong in it
NOTES = "NOTES.md"


class Desk:
    """Models that propose in a run (the loop's `Models`). `lost`: requests under way when an earlier process died.

    `moe`: ids of experiments of MoE models; `folder`: the run's, for its notes; `say`: how far the questions of a
    generation are.
    """

    def __init__(
        self,
        config: Config,
        texts: Templates,
        dial: Dial,
        pool: Executor,
        moe: frozenset[str],
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        self.stopped = ""
        self.lost = [f"{line['call']} attempt {line['attempt']}" for line in dial.book.under_way()]
        self._config, self._texts, self._dial, self._pool = config, texts, dial, pool
        self._moe, self._folder, self._say = moe, folder, say
        self._chances = ensemble(config)
        self._judges = [weighted(name, "llm.judges")[0] for name in config.llm.judges]
        self._summariser = weighted(config.llm.summariser or config.llm.models[0], "llm.summariser")[0]
        self._standing = Standing()
        self._diagnoses: dict[int, Future[str]] = {}
        self._notes, self._noted = "", -1
        self._made: dict[int, Proposal | None] = {}
        self._unanswered: dict[int, bool] = {}
        self._asks: list[Ask] = []
        self._samples: Counter[tuple[str, str]] = Counter()
        self._generation = 0

    # the loop's side

    def open(self, generation: int, state: State, begun: bool, passed: bool) -> None:
        self._standing.learn(self._dial.book, generation - 1)
        self._generation, self._state, self._begun, self._passed = generation, state, begun, passed
        self._made, self._unanswered, self._asks = {}, {}, []
        self._samples = self._dial.book.samples(generation)
        state.bandit.costs = self._standing.costs(self._config)
        self._reflect()

    def claim(
        self, number: int, left: int, ahead: int, island: int, parents: Sequence[Elite], order: Sequence[Any]
    ) -> int | None:
        alone = self._config.search.proposer == "llm"
        if self._passed:
            return None
        if ahead >= self._config.budget - self._state.fitted:  # as much is proposed already as may be fitted
            return None if alone else 0
        rng = stream(self._config.seed, number, 1)
        model = self._draw(rng)
        if model is None:
            return 0
        base, others = families(parents, order, entrants(self._config, island), self._config.llm.parents, rng)
        count = min(left, self._config.llm.programs)
        self._asks.append(Ask(number, count, island, model, base, others, prompt.kinds(count, rng)))
        return count

    def ask(self) -> bool:
        asks = self._asks
        if not asks:
            return True
        for ask in asks:
            if ask.base.id not in self._diagnoses:
                self._diagnoses[ask.base.id] = self._pool.submit(diagnose_text, ask.base.text)
        calls = [self._call("propose", ask.number, ask.model, self._messages(ask)) for ask in asks]
        reasons = self._reasons(calls)
        if all(reasons) and not self._begun:
            self.stopped = reasons[0]
            return False
        for ask, call, reason in zip(asks, calls, reasons, strict=True):
            ask.call, ask.granted = call, not reason
        self._carry_out([call for call, reason in zip(calls, reasons, strict=True) if not reason], "proposals")
        taken = set(self._state.archive.keys)
        self._read(asks, taken)
        if self._config.llm.repair:
            self._repair(asks, taken)
        self._judge(asks)
        for ask in asks:
            for k in range(ask.count):
                self._made[ask.number + k] = ask.proposal(k, self._config.llm.judge_below)
                self._unanswered[ask.number + k] = ask.granted and not ask.places
        return True

    def proposal(self, number: int) -> Proposal | None:
        return self._made.get(number)

    def unanswered(self, number: int) -> bool:
        return self._unanswered.get(number, False)

    def end(self, state: State) -> None:
        self.open(self._generation + 1, state, False, False)

    def close(self) -> None:
        """Journal what came too late to be used."""
        self._dial.close()

    @property
    def status(self) -> str:
        """For a progress line: what was spent, and who does not answer."""
        spent = self._dial.book.spent
        possibly = f" and possibly {spent.possibly_usd:.2f}" if spent.possibly_usd >= 0.005 else ""
        told = f"{len(self._dial.book.answers)} answers, {spent.usd:.2f}{possibly} of {self._config.llm.max_usd:g} USD"
        down = [model for model in self._chances if not self._up(model)]
        if len(down) == len(self._chances):
            return f"{told}, all models are down: offline operators propose"
        return f"{told}, down: {', '.join(down)}" if down else told

    # in the order of a generation

    def _reflect(self) -> None:
        """New notes, if they are due after the generations so far."""
        state, number, every = self._state, self._generation, self._config.llm.notes_every
        if not every or number == 1 or (number - 1) % every:
            return
        latest = [e for e in state.archive.by_id.values() if e.id > self._noted]
        call = self._call("notes", 0, self._summariser, notes.question(self._texts, state, self._notes, latest))
        if not self._passed and self._up(self._summariser) and not self._reasons([call])[0]:
            self._carry_out([call], "notes")
        if call.name in self._dial.book.answers and (text := notes.kept(self._dial.book.text(call.name))):
            self._notes, self._noted = text, max(state.archive.by_id)
            (self._folder / NOTES).write_text(f"After generation {number - 1}:\n\n{text}\n", "utf-8")

    def _draw(self, rng: np.random.Generator) -> str | None:
        """Which model makes the next proposals, None: an operator makes the next one."""
        mixed = self._config.search.proposer == "mixed"
        chances = {model: chance for model, chance in self._chances.items() if self._up(model)}
        if mixed:
            bandit = self._state.bandit
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
            if call.name in self._dial.book.answers:
                found = judges.reviews(self._dial.book.text(call.name), call.model, len(group))
                for (ask, i), review in zip(group, found, strict=True):
                    if review is not None:
                        ask.reviews.setdefault(i, []).append(review)

    # what the steps above share

    def _up(self, model: str) -> bool:
        return self._standing.up(model, self._generation)

    def _reasons(self, calls: Sequence[Call]) -> list[str]:
        """Why each call is not to be made, "" where it is. What a limit left unasked in a generation that has verdicts
        stays so."""
        if self._begun:
            return ["" if self._dial.book.settled(call.name) else "its generation is over" for call in calls]
        return self._dial.granted(calls)

    def _messages(self, ask: Ask) -> Messages:
        diagnosis = self._diagnoses[ask.base.id].result()
        state, known = self._state, self._notes
        return prompt.messages(self._texts, state, ask.base, ask.others, ask.kinds, diagnosis, known, self._moe)

    def _again(self, ask: Ask) -> Messages:
        assert ask.call is not None
        told = "\n".join(f"- Proposal {i + 1}: {ask.places[i].idea.complaint}" for i in ask.wrong)
        said = self._dial.book.text(ask.call.name)[:LONGEST_ECHO].strip() or "(empty)"
        again = fill(self._texts["repair"], complaints=told, programs=str(len(ask.wrong)))
        return (*ask.call.messages, ("assistant", said), ("user", again))

    def _call(self, purpose: str, number: int, model: str, messages: Messages) -> Call:
        call = Call(self._generation, purpose, number, model, messages)
        sample = self._samples[call.prompt, model]
        self._samples[call.prompt, model] += 1
        return replace(call, sample=sample)

    def _carry_out(self, calls: Sequence[Call], what: str) -> None:
        self._dial.carry_out(calls, lambda done, of: self._say(f"asking for {what}: {done} of {of} answered"))

    def _ideas(self, ask: Ask, name: str, most: int) -> list[Any]:
        """What the answer to a call proposes; none where there is no answer."""
        book = self._dial.book
        if name not in book.answers:
            return []
        return ideas(book.text(name), prompt.bare(ask.base.text), most, book.answers[name]["finish"])
