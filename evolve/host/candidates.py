"""What a candidate costs on the shipped run: CPU by stage, in replays of its runs, and by number of workers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evaluator.assess import NO_LIMITS, Scored
from evaluator.score import error_rows, score_set
from evolve.output.printing import prose, show
from evolve.output.progress import Line
from evolve.output.table import Table
from evolve.run import folder
from evolve.search.offline import operator_weights
from evolve.search.pool.local import Here, LocalPool
from evolve.search.workers import Workers, workers_of
from simulator.common.streams import stream
from simulator.language.complete import complete
from simulator.language.parse import parse

COUNT = 48  # candidates
SEED = 18
COUNTS = (1, 2)  # of workers


@dataclass(frozen=True, slots=True)
class CandidateCost:
    """What `candidates` new programs cost, each a changed copy of a member of the shipped archive, assessed to the end.

    stage_ms: CPU of one by stage of the assessment. proposal_ms: CPU of making one. replay_ms: CPU of one replay of all
    `runs` that it is judged on, by the same programs. candidate_in_replays: the sum of the stages over that.
    candidates_per_s: assessed in wall-clock time by so many workers, when nothing else runs.
    """

    candidates: int
    runs: int
    stage_ms: dict[str, float]
    proposal_ms: float
    replay_ms: float
    candidate_in_replays: float
    candidates_per_s: dict[int, float]


def candidate_cost(announce: Callable[[str], None]) -> CandidateCost:
    """The cost of a candidate of the shipped run's search; `announce` names each step."""
    run = folder.open_run(folder.shipped_run())
    fitted, _ = run.experiments()
    line = Line(True)
    announce("preparing the runs")
    here = workers_of(Here(line), fitted, run.config)
    announce(f"proposing {COUNT} candidates")
    _proposed(here, [elite.text for elite in run.archive().members()][:1])  # compiles what is not cached
    begun = time.process_time()
    texts = _proposed(here, [elite.text for elite in run.archive().members()])
    proposal_ms = 1e3 * (time.process_time() - begun) / len(texts)
    announce(f"assessing {len(texts)} candidates")
    here.assess(0, texts[0], NO_LIMITS).result()  # compiles what is not cached
    verdicts = [here.assess(0, text, NO_LIMITS).result() for text in texts]
    stages: Counter[str] = Counter()
    for _, seconds in verdicts:
        stages.update(seconds)
    stage_ms = {name: 1e3 * seconds / len(texts) for name, seconds in stages.items()}
    announce("replaying what came of them")
    scored = [complete(parse(verdict.text)) for verdict, _ in verdicts if isinstance(verdict, Scored)]
    data = score_set(fitted, run.config.score.arrival_seeds[:1])
    error_rows(scored[0], data)
    begun = time.process_time()
    for program in scored:
        error_rows(program, data)
    replay_ms = 1e3 * (time.process_time() - begun) / len(scored)
    per_s = {}
    for count in COUNTS:
        announce(f"assessing them with {count} worker{'s' * (count > 1)}")
        pool = LocalPool(count, line)
        try:
            per_s[count] = _per_second(workers_of(pool, fitted, run.config), texts)
        finally:
            pool.close()
    return CandidateCost(
        len(texts), len(fitted), stage_ms, proposal_ms, replay_ms, sum(stage_ms.values()) / replay_ms, per_s
    )


def _proposed(here: Workers, parents: Sequence[str]) -> list[str]:
    """The texts of the first COUNT offline proposals, each of two members drawn by its own stream."""
    weights = operator_weights({})
    chosen = []
    for number in range(COUNT):
        rng = stream(SEED, number)
        first, second = (parents[i] for i in rng.integers(len(parents), size=2))
        chosen.append((first, second, rng))
    return [changed.text for changed in here.propose(0, chosen, weights).result()]


def _per_second(workers: Workers, texts: Sequence[str]) -> float:
    """How many candidates the workers assess per second, once all of them are ready."""
    for waiting in [workers.assess(0, texts[0], NO_LIMITS) for _ in range(2 * max(COUNTS))]:
        waiting.result()
    begun = time.perf_counter()
    for waiting in [workers.assess(0, text, NO_LIMITS) for text in texts]:
        waiting.result()
    return len(texts) / (time.perf_counter() - begun)


def print_candidate(cost: CandidateCost) -> None:
    """A row for each stage of a candidate's assessment, and how many a second there are."""
    stages = {**cost.stage_ms, "all stages": sum(cost.stage_ms.values()), "making a proposal": cost.proposal_ms}
    rows = [[name, f"{ms:.1f}", f"{ms / cost.replay_ms:.2f}"] for name, ms in stages.items()]
    title = f"{cost.candidates} candidates on {cost.runs} runs; a replay of these takes {cost.replay_ms:.1f} ms"
    show(Table.of(title, "CPU of a candidate|>ms|>replays", rows))
    one, two = cost.candidates_per_s[1], cost.candidates_per_s[2]
    prose(f"{one:.1f} candidates/s with one worker, {two:.1f} with two: {two / one:.2f} times as many")
