"""One question outside of a search: what a run would send or has sent for a program, and the check of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from archive.archive import Archive
from archive.elite import SEED, Elite
from archive.population import Population
from archive.proposal import Proposal, is_outcome
from evaluator.assess import NO_LIMITS
from evolve import __version__
from evolve.output.progress import Line
from evolve.output.terminal import command
from evolve.run.config import Config
from evolve.run.data import chosen
from evolve.run.folder import RunFolder, first_population
from evolve.run.program import seed_texts
from evolve.search.assessor import Admitted, Live
from evolve.search.llm import client, prompt
from evolve.search.llm.answer import ideas
from evolve.search.llm.calls import Answered, CallLog, LlmCall, Messages, answered_line, call_log, parts_of, unpack
from evolve.search.llm.documents import kept
from evolve.search.llm.proposer import MOST_SHOWN, hidden_of, shown_of
from evolve.search.llm.question import Candidate, checked, draw_others, taken_forms
from evolve.search.llm.setup import plan, priced, prompts_of, smallest_question
from evolve.search.pool.local import local
from evolve.search.proposer import Place
from evolve.search.workers import Workers, workers_of
from evolve.summary.research import Research, generation
from simulator.common.errors import InputError
from simulator.common.json import JsonObject
from simulator.common.streams import stream
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment

Preview = tuple[Messages, JsonObject]  # messages, and facts about them for the JSON output


# the questions and answers of a run


def would_send(run: RunFolder, number: int) -> Preview:
    """The question that would ask to improve program `number` now. Raises InputError if it is not a scored proposal."""
    config, outcomes = run.config, run.outcomes()
    population = first_population(config)
    for outcome in outcomes:
        population.tell(outcome)
    if number not in population.archive.by_id:
        archive, sent = command("archive", run.path), command("llm", "prompt", run.path, number, "--sent")
        raise InputError(
            f"cannot improve proposal {number} of {run.path}: it was not scored. `{archive}` lists the scored ones; "
            f"`{sent}` prints the question for a refused proposal of a model."
        )
    rng = stream(config.seed, 1 + max(outcome.proposal.id for outcome in outcomes), 1)
    fitted = run.experiments()[0]
    research = Research(hidden_of(config, fitted))
    research.tell(outcomes)
    issues = research.issues(1 + max((generation(idea.proposal) for idea in research.ideas), default=0))
    workers = workers_of(local(1, Line()), shown_of(config, fitted), config)
    asked = _asked(config, population, number, rng, workers)
    log = call_log(run.lines())
    noted = [name for name in log.answers if parts_of(name)[1] == "notes"]
    notes = prompt.notes_in(log.text(max(noted, key=parts_of))) if noted else ""
    settled, documents = research.settled()[:MOST_SHOWN], kept(run.path)
    asked = replace(asked, notes=notes, issues=issues, settled=settled, documents=documents)
    return prompt.messages(prompts_of(run), config, population, asked), _about(run)


def _asked(
    config: Config, population: Population, number: int, rng: np.random.Generator, workers: Workers
) -> prompt.Asked:
    """The content of a question of island 0 that asks to improve program `number` of a population."""
    base, members = population.archive.by_id[number], population.archive.members()
    place = Place(number, 0, members, population.order(members, 0), 0)
    others = draw_others(place, base, config.llm.parents - 1, population, rng)
    kinds = prompt.kinds(config.llm.programs, rng)
    diagnosis = workers.diagnose(base.text, prompt.near(population, base)).result()
    return prompt.Asked(base, others, kinds, diagnosis)


def was_sent(run: RunFolder, number: int) -> Preview:
    """The messages that proposal `number` answers. Raises InputError if it is not a model's proposal."""
    log, line = _answer(run, number)
    about = _about(run) | {name: getattr(line, name) for name in ("call", "model", "prompt", "sample")}
    return log.messages(line.prompt), about


def was_answered(run: RunFolder, number: int) -> Preview:
    """The answer that proposal `number` comes from. Raises InputError if it is not a model's proposal."""
    log, line = _answer(run, number)
    shown = ("call", "model", "version", "tokens_in", "tokens_out", "usd", "seconds", "finish")
    return (("assistant", log.text(line.call)),), _about(run) | {name: getattr(line, name) for name in shown}


def _answer(run: RunFolder, number: int) -> tuple[CallLog, Answered]:
    """The log of the run's calls, and the line of the answer that proposal `number` comes from."""
    lines = run.lines()
    log = call_log(lines)
    outcome = next((entry for entry in lines if is_outcome(entry) and entry["id"] == number), None)
    if outcome is None or outcome.get("call") not in log.answers:
        raise InputError(
            f"cannot show an answer: {run.path} has no proposal {number} of a language model. "
            f"`{command('archive', run.path, '--by', 'proposer')}` lists who proposed."
        )
    return log, log.answers[outcome["call"]]


def _about(run: RunFolder) -> JsonObject:
    return {"engine": run.about.engine, "data": run.about.data, "seeds": run.config.score.arrival_seeds}


# the check of a model


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """The answer to one question: its cost, at most and as it was, and the candidates in it.

    tools: see client.calls_tools. asked: how many proposals were asked for. nothing: why there is no proposal, "" if
    there is one. about: facts for the JSON output.
    """

    answered: Answered
    price: tuple[float, float]
    usd_at_most: float
    tools: bool | None
    asked: int
    candidates: Sequence[Candidate]
    nothing: str
    about: JsonObject

    @property
    def parsed(self) -> int:
        """The number of proposals that are programs of the language."""
        return sum(not candidate.idea.complaint for candidate in self.candidates)

    @property
    def usable(self) -> int:
        """The number of proposals that a search would fit."""
        return sum(not candidate.refused for candidate in self.candidates)

    def to_json(self) -> JsonObject:
        shown = ("model", "version", "tokens_in", "tokens_out", "uncounted", "usd", "seconds", "finish")
        return {
            **self.about,
            **{name: getattr(self.answered, name) for name in shown},
            "usd_at_most": self.usd_at_most,
            "price_usd_per_million_tokens": [*self.price],
            "tools": self.tools,
            "asked": self.asked,
            "read": len(self.candidates),
            "parsed": self.parsed,
            "usable": self.usable,
            "nothing": self.nothing,
            "proposals": [
                {
                    "title": candidate.idea.title,
                    "text": candidate.idea.text,
                    "parses": not candidate.idea.complaint,
                    "complaint": candidate.refused.why if candidate.refused else "",
                }
                for candidate in self.candidates
            ],
        }


def check_model(config: Config) -> ModelCheck:
    """Send the first question of a run to the configuration's only model, once. Nothing is kept.

    Raises InputError before anything is sent if that may cost more than `max_usd`; CallFault without an answer.
    """
    llm, model, texts = config.llm, next(iter(config.llm.ensemble())), prompt.bundled()
    prices = priced(config)
    plan(config, prices, smallest_question(config, texts))
    fitted, _ = chosen(config.data)
    messages, base, archive = first_question(config, fitted)
    call = LlmCall(0, "propose", 0, model, messages)
    most = call.most(llm.answer_tokens)
    at_most = prices[model].usd(*most)
    if at_most > llm.max_usd:
        raise InputError(
            f"--max-usd {llm.max_usd:g}: the question may cost {at_most:.4f} USD. Allow more, or name a cheaper model."
        )
    reply = client.request(model, messages, llm)
    answered = answered_line(call, 1, reply, prices[model], most)
    read = ideas(unpack(answered.answer), prompt.bare(base.text), llm.programs, answered.finish)
    taken = taken_forms(archive)
    candidates = [checked(idea, config, taken) for idea in read if idea.title or idea.text]
    about = {"engine": __version__, "data": data_hash(fitted), "seeds": config.score.arrival_seeds}
    nothing, tools = "" if candidates else read[0].complaint, client.calls_tools(model)
    price = (prices[model].input_usd, prices[model].output_usd)
    return ModelCheck(answered, price, at_most, tools, llm.programs, candidates, nothing, about)


def first_question(config: Config, fitted: Sequence[Experiment]) -> tuple[Messages, Elite, Archive]:
    """The question about the best shipped program, that program, and the archive of all shipped programs."""
    workers = workers_of(local(1, Line(quiet=True)), fitted, config)
    population, seeds, assessor = first_population(config), seed_texts(), Live(config, workers)
    admission = Admitted(population.archive.keys, len(seeds), lambda program: NO_LIMITS)
    proposals = [Proposal(i, None, text, SEED + name, ()) for i, (name, text) in enumerate(seeds)]
    for pending in [assessor.begin(proposal, admission) for proposal in proposals]:
        if pending:
            population.tell(pending().outcome)
    base = min(population.archive.members(), key=lambda e: e.mean_error)
    asked = _asked(config, population, base.id, stream(config.seed, 1), workers)
    return prompt.messages(prompt.bundled(), config, population, asked), base, population.archive
