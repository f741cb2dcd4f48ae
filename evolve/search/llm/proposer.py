"""Language models as a proposer: which model is asked what, and who fills the places of a generation.

Every decision depends on the configuration, the archive at the start of the generation, and the log of calls; never on
a clock. So a run can be resumed, or replayed from its journal, exactly as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import groupby
from pathlib import Path

import numpy as np

from archive.journal import Journal
from archive.population import Offered, Population
from archive.proposal import JUDGES, MODEL, Proposal
from archive.score import Errors
from evaluator.cells import cell_of, hidden_cells
from evaluator.diagnose.describe import one_value
from evaluator.diagnose.tables import Listing
from evolve.output.printing import Block
from evolve.run.config import AUTO, Config
from evolve.run.folder import RunFolder
from evolve.run.llm_settings import weighted
from evolve.run.program import method_names, method_text, seed_texts
from evolve.search.llm import panel, prompt
from evolve.search.llm.calls import Messages, call_log
from evolve.search.llm.dispatch import Dispatch, passed
from evolve.search.llm.documents import Documents, kept
from evolve.search.llm.gates import Gates
from evolve.search.llm.question import Asker, Question, converse, draw_base, draw_others, taken_forms
from evolve.search.llm.setup import priced, prompts_of
from evolve.search.pool.pool import Promise
from evolve.search.proposer import Operators, Place, places
from evolve.search.workers import Workers
from evolve.summary import research
from evolve.summary.finding import terms_of
from evolve.summary.ideas import write_ideas
from evolve.summary.research import Research
from simulator.common.files import write_text
from simulator.common.streams import stream
from simulator.common.text import counted
from simulator.language.parse import parse
from simulator.serving.experiment import Experiment

QUESTIONS = 2  # at most, in a generation: the next one sees the verdicts on their programs
MOST_SHOWN = 12  # settled findings that a question shows
NOTES = "NOTES.md"  # the file in the run's folder with the latest notes


class LanguageModels:
    """The proposer of a run with language models. They propose alone, or share the places with operators (AUTO).

    stopped: the limit that allows no more calls; exhausted: that the models bring nothing new. Either ends the search,
    and both are "" until then. lost: the requests that were under way when an earlier process died. remembered: the
    numbers of proposals whose outcomes are in the journal. seen: workers with the runs that questions may be about,
    see `hidden_of`. show: displays the progress of a generation's questions.
    """

    def __init__(
        self,
        run: RunFolder,
        journal: Journal,
        operators: Operators,
        workers: Workers,
        seen: Workers,
        fitted: Sequence[Experiment],
        remembered: Collection[int],
        show: Callable[[str], None],
    ) -> None:
        config, recorded = run.config, bool(run.about.replayed)
        prices = {} if recorded else priced(config)
        self._log, self._texts, self._documents = call_log(run.calls()), prompts_of(run), kept(run.path)
        self._dispatch = Dispatch(self._log, journal, config.llm, prices, recorded)
        self._asker = Asker(self._dispatch, config, self._texts, lambda text: show(text + self._nothing_new()))
        self.stopped, self.exhausted, self.lost = "", "", self._log.under_way()
        self._config, self._folder, self._one_value = config, run.path, one_value(fitted)
        self._operators, self._workers, self._remembered = operators, workers, remembered
        self._chances = config.llm.ensemble()
        self._judges = [weighted(name, "llm.judges")[0] for name in config.llm.judges]
        self._summariser = weighted(config.llm.summariser or config.llm.models[0], "llm.summariser")[0]
        self._seen, self._research = seen, Research(hidden_of(config, fitted))
        self._gates = Gates(self._research, self._asker, self._judges) if config.llm.ideas else None
        self._diagnoses: dict[tuple[int, ...], Promise[tuple[Listing, ...]]] = {}
        self._left_out: dict[int, Promise[tuple[Errors, ...]]] = {}
        self._notes, self._noted = "", -1  # the latest notes, and the last elite that they cover
        self._fruitless = 0  # generations in a row without a new candidate
        self._complete = False  # True if the journal has all outcomes of this generation that it will ever have
        self._population: Population

    def ask(self, population: Population, generation: int) -> list[Proposal]:
        first, llm = population.numbered, self._config.llm
        if self._fruitless >= llm.patience:
            self.exhausted = f"no new candidate in {llm.patience} generations in a row: all were refused or duplicates"
            return []
        free = list(places(population, self._config.search.batch))
        reserve = first + len(free)  # the places of later rounds follow those of the generation
        later = (llm.rounds - 1) * llm.programs
        after = reserve + QUESTIONS * later
        remembered = [n for n in range(first, after) if n in self._remembered]
        self._complete = max(self._remembered, default=0) >= after
        self._open(generation, population, over=bool(remembered))
        questions = list(self._questions(free, reserve, later))
        if questions and not self._answer(questions):
            return []
        asked = {q.number + k: (q, k) for q in questions for k in range(q.count)}
        weights = self._operators.weights()
        started: list[Callable[[], Proposal | None]] = []
        auto = self._config.search.proposer == AUTO or not any(map(self._asker.up, self._chances))
        for place in free:
            if place.number in asked:
                started.append(partial(self._of_model, place, weights, *asked[place.number]))
            elif place.number in self._remembered or (auto and not self._complete):
                started += self._operators.start([place], population, weights)
        started += [partial(q.proposal, r, k) for q in questions for r in range(1, llm.rounds) for k in range(q.count)]
        if not questions:
            started += [partial(Proposal, n, 0, "", "", ()) for n in remembered if n >= reserve]
        population.numbered = after
        return [proposal for finish in started if (proposal := finish())]

    def tell(self, outcomes: Sequence[Offered]) -> None:
        self._operators.tell(outcomes)
        # a form is new if it was fitted, or if judges refused it
        new = any(o.key or (o.rejection and o.rejection.stage == JUDGES) for o, *_ in outcomes)
        self._fruitless = 0 if new else self._fruitless + 1
        self._research.tell(outcome for outcome, *_ in outcomes)
        if not all(o.proposal.id in self._remembered for o, *_ in outcomes):  # else the document may say more already
            write_research(self._folder, self._config, self._research, self._documents)

    def end(self, population: Population) -> None:
        """Finish the last generation: learn from its calls, and take notes if they are due."""
        self._complete = False  # the numbers that follow are of polished programs
        self._open(self._asker.generation + 1, population, over=False)

    def close(self) -> None:
        self._dispatch.close()

    def status(self) -> str:
        """The cost so far and the models that do not answer, for a progress line."""
        spent, down = self._log.spent, [model for model in self._chances if not self._asker.up(model)]
        possibly = f" and possibly {spent.possibly_usd:.2f}" if spent.possibly_usd >= 0.005 else ""
        text = f"{len(self._log.answers)} answers, {spent.usd:.2f}{possibly} of {self._config.llm.max_usd:g} USD"
        if beyond := passed(self._log, self._config.llm):
            text += f", {beyond}"
        text += self._nothing_new()
        if len(down) == len(self._chances):
            return f"{text}, all models are down: offline operators propose"
        return f"{text}, down: {', '.join(down)}" if down else text

    # the steps of a generation, in order

    def _open(self, generation: int, population: Population, over: bool) -> None:
        """Start a generation, and take notes if they are due. `over`: the journal has outcomes of it already."""
        self._population = population
        self._asker.open(generation, over)
        for name, candidates in self._asker.costs().items():
            self._operators.bandit.charge(name, candidates)
        self._take_notes()

    def _take_notes(self) -> None:
        """Ask for new notes, if they are due after the generations so far."""
        population, number, every = self._population, self._asker.generation, self._config.llm.notes_every
        if not every or number == 1 or (number - 1) % every:
            return
        latest = [e for e in population.archive.by_id.values() if e.id > self._noted]
        question = prompt.notes_question(self._texts, population, self._notes, latest)
        call = self._asker.call("notes", 0, self._summariser, question)
        if not self._complete and self._asker.up(self._summariser):
            self._asker.ask([call], "notes")
        text = prompt.notes_in(self._log.text(call.name)) if call.name in self._log.answers else ""
        if text:
            self._notes, self._noted = text, max(population.archive.by_id)
            write_text(self._folder / NOTES, f"After generation {number - 1}:\n\n{text}\n")

    def _questions(self, free: Sequence[Place], reserve: int, later: int) -> Iterator[Question]:
        """The questions of a generation; each takes places of one island, and `later` of those from `reserve` on."""
        if self._complete:
            return
        # the islands take turns to be asked about first
        islands = [list(group) for _, group in groupby(free, key=lambda place: place.island)]
        turn = self._asker.generation * QUESTIONS % max(len(islands), 1)
        count, left = self._config.llm.programs, self._config.budget - self._population.fitted
        asked, once = 0, len(islands) > 1 and self._config.search.proposer == "llm"
        for island in islands[turn:] + islands[:turn]:
            position, here = 0, 0
            programs = min(count, len(island))
            while position + programs <= len(island) and asked < QUESTIONS and not (once and here):
                place = island[position]
                question = self._question(place, programs, reserve + asked * later) if asked * count < left else None
                if question:
                    yield question
                    asked, here = asked + 1, here + 1
                position += programs if question else 1

    def _question(self, place: Place, count: int, reserve: int) -> Question | None:
        """The question that asks a model to fill `count` places, from this one on; None if an operator fills it."""
        rng = stream(self._config.seed, place.number, 1)
        model = self._draw(rng)
        if model is None:
            return None
        population, llm = self._population, self._config.llm
        base = draw_base(place.parents, population, rng)
        others = draw_others(place, base, llm.parents - 1, population, rng)
        kinds = prompt.kinds(count, rng)
        return Question(place.number, reserve, llm.programs, count, place.island, model, base, others, kinds)

    def _draw(self, rng: np.random.Generator) -> str | None:
        """The model that makes the next proposals; None if an operator makes the next one."""
        auto = self._config.search.proposer == AUTO
        chances = {model: chance for model, chance in self._chances.items() if self._asker.up(model)}
        if auto:
            bandit = self._operators.bandit
            arms = bandit.chances() if self._config.search.bandit else bandit.prior
            chances = {model: arms[MODEL + model] / sum(arms.values()) for model in chances}
        chance = sum(chances.values())
        if not chance:
            return None
        # A question fills several places at once. Drawn this often, models fill the share `chance` of all places.
        several = self._config.llm.programs
        if auto and rng.random() >= chance / (several - chance * (several - 1)):
            return None
        return list(chances)[rng.choice(len(chances), p=np.array(list(chances.values())) / chance)]

    def _answer(self, questions: Sequence[Question]) -> bool:
        """Get the generation's questions answered; False if no limit allows any, which ends the search."""
        # all are begun before one is waited for
        for question, diagnosis in [(question, self._diagnosis(question)) for question in questions]:
            question.messages = self._messages(question, questions, diagnosis.result())
        self.stopped = converse(
            questions,
            self._asker,
            taken_forms(self._population.archive),
            self._workers,
            self._gates.hold if self._gates else None,
        )
        if not self.stopped:
            self._review(questions)
        return not self.stopped

    def _diagnosis(self, question: Question) -> Promise[tuple[Listing, ...]]:
        near = prompt.near(self._population, question.base)
        key = (question.base.id, *near)
        if key not in self._diagnoses:
            self._diagnoses[key] = self._seen.diagnose(question.base.text, near)
        return self._diagnoses[key]

    def _review(self, questions: Sequence[Question]) -> None:
        up = [judge for judge in self._judges if self._asker.up(judge)]
        # a trial has the errors of hidden cells, too
        bases = {q.base.id: q.base.text for q in questions if up and q.scored and not self._research.hidden}
        for id, text in bases.items():
            if id not in self._left_out:
                self._left_out[id] = self._workers.left_out(text)
        left_out = {id: self._left_out[id].result() for id in bases}
        document = self._research.recent(panel.LONGEST_DOCUMENT)
        known = panel.Known(document, left_out, self._one_value, _known_terms(), self._documents.cited)
        panel.review(questions, up, self._asker, known)

    def _of_model(self, place: Place, weights: Mapping[str, float], question: Question, k: int) -> Proposal | None:
        """A model's proposal for a place; an operator's if no answer came; None if nothing was asked."""
        if question.granted and not question.rounds:
            return self._operators.start([place], self._population, weights)[0]()
        return question.proposal(0, k)

    def _messages(self, question: Question, questions: Sequence[Question], diagnosis: tuple[Listing, ...]) -> Messages:
        others = [q for q in questions if q is not question]
        meanwhile = " ".join(f"Program {q.base.id} is being improved at the same time." for q in others)
        issues = self._research.issues(self._asker.generation)
        shown = (question.base, question.others, question.kinds, diagnosis, meanwhile, self._notes, issues)
        asked = prompt.Asked(*shown, self._research.settled()[:MOST_SHOWN], self._documents)
        return prompt.messages(self._texts, self._config, self._population, asked)

    def _nothing_new(self) -> str:
        """For how long nothing new has come, for a progress line; "" if the last generation had a new candidate."""
        count = counted(self._fruitless, "generation")
        return f", nothing new in {count}: all refused or duplicates" if self._fruitless else ""


def hidden_of(config: Config, fitted: Sequence[Experiment]) -> frozenset[str] | None:
    """The cells that no question of a research loop shows: whether an idea holds is seen on these, too.

    None for another run.
    """
    return hidden_cells(fitted, stream(config.seed, 0, 2)) if config.llm.ideas else None


def shown_of(config: Config, fitted: Sequence[Experiment]) -> list[Experiment]:
    """The runs that questions may be about."""
    hidden = hidden_of(config, fitted) or ()
    return [e for e in fitted if cell_of(e) not in hidden]


def write_research(
    folder: Path, config: Config, known: Research, documents: Documents, ending: Sequence[Block] = ()
) -> None:
    """Write RESEARCH.md with this end, and the folders of a research loop's ideas."""
    write_text(folder / research.FILE, known.document(ending, documents.problem))
    if config.llm.ideas:
        write_ideas(folder, known, documents.cited)


@cache
def _known_terms() -> dict[str, frozenset[str]]:
    """The terms of all shipped programs: seeds, and methods from the literature."""
    texts = {f"seed {name}": text for name, text in seed_texts()}
    texts |= {f"method {name}": method_text(name) for name in method_names()}
    return {name: terms_of(parse(text)) for name, text in texts.items()}
