"""The search with a hand-made proposer and a hand-made assessor: no data, no fits, no processes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from elites import elite

from archive.archive import Archive
from archive.elite import Elite, example
from archive.grid import Grid
from archive.journal import Journal, read_journal
from archive.population import Offered, Population
from archive.proposal import JUDGES, POLISH, Form, Outcome, Proposal, Rejected
from evaluator.assess import NO_LIMITS, AssessLimits, form_of
from evolve.run.config import Config, SearchSettings
from evolve.run.folder import first_population
from evolve.search.assessor import Admitted, Pending, Remembering, Settled
from evolve.search.proposer import Changed, Chosen, Operators
from evolve.search.search import MEAN_ERROR_WITHIN, Search, limits_of
from simulator.language.complete import complete
from simulator.language.key import key
from simulator.language.parse import parse

SMALL = form_of(parse("def step_time(b, s): return b.tokens * s.layers"))  # one operation on two features
SEEDS = [("one", "seed 8"), ("two", "seed 9")]  # (name, text); see Judge


def unlimited(form: Form) -> AssessLimits:
    return NO_LIMITS


def configured(budget: int = 100, **search: object) -> Config:
    config = Config(budget=budget)
    return replace(config, search=replace(config.search, **{"islands": 1, "finalists": 0} | search))  # type: ignore[arg-type]


class Script:
    """Proposes these texts, a list for each generation, and then nothing more. Keeps what it was asked and told."""

    def __init__(self, *generations: Sequence[str]) -> None:
        self.generations = generations
        self.asked: list[tuple[int, int]] = []  # generation, and how many outcomes the population had by then
        self.told: list[list[tuple[str, bool]]] = []  # by generation: text, and whether its elite was kept

    def ask(self, population: Population, generation: int) -> list[Proposal]:
        self.asked.append((generation, population.proposals))
        texts = self.generations[generation - 1] if generation <= len(self.generations) else ()
        first = population.numbered
        population.numbered += len(texts)
        return [Proposal(first + i, 0, text, "add", ()) for i, text in enumerate(texts)]

    def tell(self, outcomes: Sequence[Offered]) -> None:
        self.told.append([(outcome.proposal.text, kept) for outcome, kept, _ in outcomes])


class Judge:
    """An assessor whose verdict is in the text: "add 2.5" is scored, with that mean error and as many operations as its
    word has letters; "add ?" is rejected when it is read, "add !" after it was counted. A text is its own form."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.outcomes: list[Outcome] = []
        self.admissions: list[Admitted] = []

    def begin(self, proposal: Proposal, admission: Admitted) -> Pending | None:
        self.admissions.append(admission)
        if admission.room <= 0:
            return None
        text = proposal.text
        if proposal.refused:
            return self.after(text, Outcome(proposal, proposal.refused))
        if text.endswith("?"):
            return self.after(text, Outcome(proposal, Rejected("units", "no")))
        if text in admission.taken:
            return self.after(text, Outcome(proposal, Rejected("duplicate", "known")))
        admission.take(text)
        if text.endswith("!"):
            return self.after(text, Outcome(proposal, Rejected("replay", "no"), text))
        return self.after(text, Outcome(proposal, self.scored(proposal, float(text.split()[1])), text))

    def begin_polish(self, proposal: Proposal, elite: Elite) -> Pending:
        better = self.scored(proposal, round(0.9 * elite.mean_error, 6))
        return self.after(f"polish {elite.id}", Outcome(proposal, replace(better, key=elite.key)))

    def scored(self, proposal: Proposal, mean_error: float) -> Elite:
        made = {"operator": proposal.operator, "parents": proposal.parents, "text": proposal.text, "key": proposal.text}
        size = len(proposal.text.split()[0])
        return elite(proposal.id, mean_error, mean_error, size, group_out=mean_error, **made)

    def after(self, what: str, outcome: Outcome) -> Pending:
        self.events.append(f"begin {what}")
        self.outcomes.append(outcome)

        def finish() -> Settled:
            self.events.append(f"finish {what}")
            return Settled(outcome, {"fit": 0.5})

        return finish


def searched(
    folder: Path, script: Script, config: Config, judge: Judge | None = None, seeds: Sequence[tuple[str, str]] = SEEDS
) -> Search:
    """A search to its end, its finalists polished; its journal is in the folder."""
    folder.mkdir(exist_ok=True)
    journal = Journal(folder / "journal.jsonl")
    search = Search(config, first_population(config), script, judge or Judge(), journal)
    search.run(seeds)
    search.polish()
    journal.close()
    return search


def test_it_tells_the_proposer_every_outcome(tmp_path: Path) -> None:
    script = Script(["add 5", "add ?", "add 5"], ["add 7", "add !", "add 4"])
    judge = Judge()
    search = searched(tmp_path, script, configured(), judge)
    assert script.asked == [(1, 2), (2, 5), (3, 8)]  # every outcome so far is taken in before the next question
    assert script.told == [
        [("seed 8", True), ("seed 9", False)],
        [("add 5", True), ("add ?", False), ("add 5", False)],
        [("add 7", False), ("add !", False), ("add 4", True)],
    ]
    assert [o.proposal.text for o in judge.outcomes] == [text for told in script.told for text, _ in told]
    assert search.population.best == [(8.0, 8.0), (5.0, 5.0), (4.0, 4.0)]
    assert search.population.stages == {"scored": 5, "units": 1, "duplicate": 1, "replay": 1}
    assert search.refusals == {"units": "no", "duplicate": "known", "replay": "no"} and search.polished == 0
    assert search.population.fitted == 6 and search.seconds == {"fit": 8 * 0.5}


def test_it_journals_the_outcomes_in_the_order_of_the_proposals(tmp_path: Path) -> None:
    """All of a generation is under way before the first of it is waited for."""
    judge, config, seen = Judge(), configured(), list[tuple[int, int]]()
    path = tmp_path / "journal.jsonl"

    def watch(population: Population) -> None:
        seen.append((population.proposals, len(read_journal(path))))

    journal = Journal(path)
    Search(config, first_population(config), Script(["add 5", "add ?"]), judge, journal, watch).run(SEEDS)
    journal.close()
    assert seen == [(n, n) for n in (1, 2, 3, 4)]  # what is on disk is what was taken in
    pairs = [("seed 8", "seed 9"), ("add 5", "add ?")]
    assert judge.events == [f"{what} {text}" for texts in pairs for what in ("begin", "finish") for text in texts]
    written = read_journal(path)
    assert written == [json.loads(json.dumps(outcome.to_json())) for outcome in judge.outcomes]
    found = [(line["id"], line["kind"], line["operator"], line["island"]) for line in written]
    of_seeds = [(0, "outcome", "seed:one", None), (1, "outcome", "seed:two", None)]
    assert found == [*of_seeds, (2, "outcome", "add", 0), (3, "outcome", "add", 0)]
    assert [Outcome.from_json(line) for line in written] == judge.outcomes


def test_it_stops_at_the_budget_within_a_generation(tmp_path: Path) -> None:
    script = Script(["add 5", "add ?", "add !", "add 6", "add 7"], ["add 1"])
    search = searched(tmp_path, script, configured(budget=4))  # two seeds, one scored and one rejected at replay
    assert search.population.fitted == 4 and script.asked == [(1, 2)]
    assert [line["id"] for line in read_journal(tmp_path / "journal.jsonl")] == [0, 1, 2, 3, 4]
    assert script.told[-1] == [("add 5", True), ("add ?", False), ("add !", False)]
    nothing = Script(["add 1"])
    assert searched(tmp_path, nothing, configured(budget=1)).population.fitted == 1 and not nothing.asked


def test_it_stops_when_the_selection_score_hardly_improves(tmp_path: Path) -> None:
    """Selection scores: 8 of the seeds, then 7.0, 6.9, 6.8, 6.7. Within two generations at least 10 percent are wanted."""
    config = configured(patience=2, patience_gain=0.1)
    script = Script(["add 7.0"], ["add 6.9"], ["add 6.8"], ["add 6.7"])
    search = searched(tmp_path, script, config)
    assert [best[0] for best in search.population.best] == [8.0, 7.0, 6.9, 6.8]  # 6.8 is not 10 percent below 7.0
    assert len(script.asked) == 3
    patient = Script(["add 7.0"], ["add 6.9"], ["add 6.2"], ["add 5.5"])
    searched(tmp_path, patient, config)
    assert len(patient.asked) == 5  # to the empty list that ends the script


def test_it_stops_when_nothing_is_proposed_and_after_the_last_generation(tmp_path: Path) -> None:
    short = Script(["add 5"])
    assert searched(tmp_path / "a", short, configured()).population.proposals == 3 and len(short.asked) == 2
    long = Script(*[[f"add {7 - n}"] for n in range(5)])
    assert searched(tmp_path / "b", long, configured(generations=3)).population.proposals == 5 and len(long.asked) == 3
    # A proposer is asked even where no seed was scored: it may have programs that are made of nothing else.
    judge = Judge()
    search = searched(tmp_path / "c", Script(["add 5"]), configured(), judge, [("bad", "seed ?")])
    assert [outcome.proposal.text for outcome in judge.outcomes] == ["seed ?", "add 5"]
    assert search.population.best == [(float("inf"), None), (5.0, 5.0)]


def test_room_and_limits_are_those_at_the_beginning_of_a_generation(tmp_path: Path) -> None:
    judge = Judge()
    searched(tmp_path, Script(["add 5", "add !"], ["add 4"]), configured(budget=9), judge)
    seeds, first, second = judge.admissions[0], judge.admissions[2], judge.admissions[4]
    assert judge.admissions == [seeds, seeds, first, first, second]
    assert seeds.limits(SMALL) == AssessLimits()  # nothing is known to be better
    assert first.limits(SMALL).to_group_out == MEAN_ERROR_WITHIN * 8.0
    assert second.limits(SMALL).to_group_out == MEAN_ERROR_WITHIN * 5.0
    assert second.taken == {"seed 8", "seed 9", "add 5", "add !", "add 4"}  # the last by its own generation
    assert (seeds.room, first.room, second.room) == (7, 5, 4)


def test_a_consistent_holder_of_a_cell_prunes_candidates() -> None:
    settings = SearchSettings(prune_above=1.25)
    archive = Archive(Grid())
    assert limits_of(archive, settings)(SMALL) == AssessLimits()
    archive.add(example(id=1, operations=1, features=2, mean_error=4.0, group_out=6.0))
    archive.add(example(id=2, key="b", operations=39, features=9, mean_error=2.0, group_out=None))
    archive.add(example(id=3, key="c", operations=20, features=5, mean_error=0.5, group_out=0.6, consistent=False))
    limits = limits_of(archive, settings)  # errors of inconsistent programs are no measure
    assert limits(SMALL) == AssessLimits(mean_error=5.0, to_group_out=4.0)
    formula = "c * b.tokens * s.layers + b.prefill_reqs * b.tokens * s.tp"
    first_in_its_cell = form_of(parse(f"def step_time(b, s, *, c=1.0): return {formula}"))
    assert limits(first_in_its_cell) == AssessLimits(float("inf"), to_group_out=4.0)
    without = replace(settings, prune_above=0.0)
    assert limits_of(archive, without)(SMALL) == AssessLimits(to_group_out=4.0)
    doubtful = Archive(Grid())
    doubtful.add(example(id=1, operations=1, features=2, mean_error=4.0, group_out=6.0, consistent=False))
    assert limits_of(doubtful, settings)(SMALL).mean_error == float("inf")  # any consistent one is better


def test_islands_exchange_their_fittest_every_so_many_generations(tmp_path: Path) -> None:
    config = configured(islands=2, migrate_every=2, migrants=1)
    search = searched(tmp_path, Script(["add 5"], ["add 4"], ["add 3"]), config)
    first, second = search.population.islands
    texts = [{e.text for e in island.members()} for island in (first, second)]
    assert "add 3" in texts[0] and "add 4" in texts[1]  # copied before the third generation, when it was the fittest
    assert "add 5" not in texts[1] and "add 3" not in texts[1]


def test_what_judges_refused_is_not_proposed_again(tmp_path: Path) -> None:
    text = "def step_time(b, s, *, base: us = 1.0):\n    return base + b.weight_read_us\n"

    class Refused(Script):
        def ask(self, population: Population, generation: int) -> list[Proposal]:
            return [replace(p, refused=Rejected(stage, "no")) for p in super().ask(population, generation)]

    for stage, keys in ((JUDGES, {key(complete(parse(text)))}), ("units", set[str]())):
        search = searched(tmp_path / stage, Refused([text]), configured())
        assert search.population.archive.keys == {"seed 8", "seed 9"} | keys and search.population.fitted == 2


def test_finalists_are_polished_after_the_search_and_count_for_nothing(tmp_path: Path) -> None:
    judge = Judge()
    search = searched(tmp_path, Script(["add 5", "a 6"]), configured(finalists=2), judge)
    assert judge.events[-4:] == ["begin polish 2", "begin polish 3", "finish polish 2", "finish polish 3"]
    last = judge.outcomes[-2:]
    assert search.polished == 2 and search.refusals == {}
    made = [(o.proposal.id, o.proposal.operator, o.proposal.parents, o.key) for o in last]
    assert made == [(4, POLISH, (2,), ""), (5, POLISH, (3,), "")]
    assert search.population.fitted == 4 and search.population.champion() is last[0].elite
    assert len(read_journal(tmp_path / "journal.jsonl")) == 6


# remembering


def remembered(*outcomes: Outcome) -> dict[int, Outcome]:
    return {outcome.proposal.id: outcome for outcome in outcomes}


def test_remembering_answers_from_the_outcomes_and_asks_only_for_the_rest() -> None:
    known, late, refused = (Proposal(n, 0, f"known {n}", "add", ()) for n in (3, 4, 5))
    scored, replayed = Outcome(known, elite(3), "known 3"), Outcome(late, Rejected("replay", "no"), "known 4")
    outcomes = remembered(scored, replayed, Outcome(refused, Rejected("units", "no")))
    judge, admission = Judge(), Admitted({"old"}, 9, unlimited)
    assessor = Remembering(outcomes, judge)
    asked = [Proposal(n, 0, "add 7", "add", ()) for n in (3, 4, 5, 6)]
    settled = [pending() for p in asked if (pending := assessor.begin(p, admission))]
    assert [s.outcome for s in settled[:3]] == list(outcomes.values())  # with the texts that were proposed then
    assert [s.remembered for s in settled] == [True, True, True, False]
    assert settled[3].outcome.proposal == asked[3] and judge.events == ["begin add 7", "finish add 7"]
    assert admission.taken == {"old", "known 3", "known 4", "add 7"} and admission.room == 6
    assert not settled[0].seconds and settled[3].seconds


def test_remembering_answers_polishes_too_and_within_a_budget_that_is_used_up() -> None:
    done, to_do = Proposal(3, None, "a", POLISH, (1,)), Proposal(4, None, "a", POLISH, (2,))
    outcomes, judge = remembered(Outcome(done, Rejected("polish", "no better constants"))), Judge()
    assessor = Remembering(outcomes, judge)
    assert assessor.begin_polish(done, elite(1))() == Settled(outcomes[3], remembered=True)
    assert not assessor.begin_polish(to_do, elite(2))().remembered and judge.events[0] == "begin polish 2"
    known = Proposal(1, 0, "add 5", "add", ())
    assessor = Remembering(remembered(Outcome(known, elite(1), "add 5")), judge)
    admission = Admitted(set(), 1, unlimited)
    assert assessor.begin(known, admission) and admission.room == 0
    assert assessor.begin(Proposal(2, 0, "add 6", "add", ()), admission) is None


class Names:
    """Operators without a program: the verdict on a child follows from its parents, its operator and its stream."""

    def propose(self, number: int, chosen: Sequence[Chosen], weights: Mapping[str, float]) -> Future[list[Changed]]:
        future: Future[list[Changed]] = Future()
        future.set_result([self._changed(*one, weights) for one in chosen])
        return future

    def _changed(self, first: str, second: str, rng: np.random.Generator, weights: Mapping[str, float]) -> Changed:
        operator = list(weights)[rng.choice(len(weights), p=np.array(list(weights.values())) / sum(weights.values()))]
        digest = int(sha256(f"{first}|{second}|{operator}|{rng.integers(6)}".encode()).hexdigest(), 16)
        verdict = {0: "?", 1: "!"}.get(digest % 8, f"{1 + digest % 997 / 100}")
        text = f"{operator} {verdict}"
        return Changed(text, operator, Form(text, operations=0, features=0))


def goes_on(path: Path, config: Config, outcomes: Mapping[int, Outcome], interrupt_after: int | None = None) -> Judge:
    """A search by the operators, to its end or to an interrupt after so many outcomes."""
    journal, judge = Journal(path), Judge()

    def watch(population: Population) -> None:
        if population.proposals == interrupt_after:
            raise KeyboardInterrupt

    assessor = Remembering(outcomes, judge)
    operators = Operators(config, Names(), outcomes)
    search = Search(config, first_population(config), operators, assessor, journal, watch)
    try:
        search.run(SEEDS)
        search.polish()
    finally:
        journal.close()
    return judge


@pytest.mark.slow
def test_a_search_interrupted_after_any_outcome_and_resumed_gives_the_same_journal(tmp_path: Path) -> None:
    """With everything that carries over: islands, migration, the bandit, places without a proposal, finalists."""
    config = configured(budget=40, islands=2, batch=3, migrate_every=2, migrants=1, finalists=2)
    goes_on(tmp_path / "whole.jsonl", config, {})
    whole = (tmp_path / "whole.jsonl").read_bytes()
    written = read_journal(tmp_path / "whole.jsonl")
    verdicts = {(line["verdict"], line.get("stage")) for line in written}
    assert {("scored", None), ("rejected", "units"), ("rejected", "replay")} <= verdicts and len(written) > 45
    for n in range(1, len(written)):
        path = tmp_path / f"{n}.jsonl"
        with pytest.raises(KeyboardInterrupt):
            goes_on(path, config, {}, interrupt_after=n)
        assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:n])
        past = remembered(*map(Outcome.from_json, read_journal(path)))
        judge = goes_on(path, config, past)
        assert path.read_bytes() == whole
        finished = [event for event in judge.events if event.startswith("finish")]
        assert len(finished) == len(written) - n  # nothing is assessed twice
