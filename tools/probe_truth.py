"""Whether the runs that `evolve probe` picks narrow intervals more than random ones: on truths that are known.

A small program and an ensemble of three others. A truth is the program with constants drawn from their standard errors,
its figures moved by a draw of the ensemble's deviations and of the residuals' parts. The chosen runs are observed by
replay, program and ensemble are fitted on them as `evolve fit` does, and the widths are those of `evolve predict`.

`PYTHONPATH=.:tests/support python tools/probe_truth.py` prints 20 truths for targets on one, two and four GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from evaluator.fit.fit import fit_scoped, fit_set
from evaluator.fit.problem import problem_of
from evaluator.intervals import STATISTICS, Residual, disagreements, interval, scales
from evaluator.score import MEANS, predictions, score_set
from evolve.calibrate.prior import logs, sizes
from evolve.calibrate.probe import Probe, probe
from evolve.plan.loads import CANDIDATES, SEED, TARGETS, ProbeRun, grid, new_deployment
from evolve.run.program import Source
from evolve.run.records import ConstantRecord, Record
from evolve.run.trust import Trust
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.parse import parse
from simulator.serving.experiment import Experiment
from simulator.serving.observations import Observation, Observed, Statistic
from simulator.serving.workload import gaps_of

BASE = new_deployment("llama-2-7b", "H100")
TPS = (1, 2, 4)
ERROR = 0.01  # of a held-out E2E; twice that of TTFT
TEXT = """
def step_time(
    b, s, *, base: us = 3000.0, weights: one = 1.2, prompt: us/token = 15.0, context: us/token = 0.05, link: us = 1500.0
):
    return base + weights * s.shared_weights_us + prompt * b.prefill_tokens + context * b.kv_decode_sum + link * s.tp_log2
def queueing_time(r, s, *, wait: us = 8000.0): return wait
"""
ENSEMBLE = (
    TEXT.replace("context: us/token = 0.05", "each: us/request = 30.0")
    .replace("context * b.kv_decode_sum", "each * b.decode_reqs")
    .replace("base: us = 3000.0", "base: us = 3600.0"),
    TEXT.replace("link: us = 1500.0", "link: us = 900.0")
    .replace("link * s.tp_log2", "link * s.tp")
    .replace(
        "wait: us = 8000.0): return wait", "wait: us = 6000.0, gpus: us = 2000.0): return wait + gpus * s.tp_log2"
    ),
    TEXT.replace("weights: one = 1.2", "weights: one = 1.25")
    .replace("prompt: us/token = 15.0", "prompt: us/token = 17.0")
    .replace("context: us/token = 0.05", "context: us/token = 0.06")
    .replace("wait: us = 8000.0", "wait: us = 9000.0"),
)
STANDARD_ERRORS = {
    "step_time.base": 200.0,
    "step_time.weights": 0.05,
    "step_time.prompt": 1.0,
    "step_time.context": 0.005,
    "step_time.link": 200.0,
    "queueing_time.wait": 1000.0,
}


@dataclass(frozen=True)
class Narrowed:
    """The mean 80 % width over targets and figures in percent before, and by how much it fell in each truth."""

    before: float
    chosen: np.ndarray
    random: np.ndarray


def residuals(rng: np.random.Generator) -> tuple[Residual, ...]:
    """Held-out residuals of eight folds of three runs, of which a quarter of the variance is shared in a fold."""
    found = []
    for fold in range(8):
        shared = rng.normal(0.0, 0.5 * ERROR)
        for run in range(3):
            e2e = shared + rng.normal(0.0, math.sqrt(0.75) * ERROR)
            ratio = {"e2e": e2e, "itl": e2e + rng.normal(0.0, 0.1 * ERROR), "ttft": rng.normal(0.0, 2.0 * ERROR)}
            nothing: dict[str, float | None] = dict.fromkeys(STATISTICS)
            found.append(
                Residual(f"models without {fold}", f"{fold}-{run}", nothing | ratio, dict.fromkeys(STATISTICS, ERROR))
            )
    return tuple(found)


class World:
    """The program with its ensemble, what can be measured, and the targets on `tp` GPUs."""

    def __init__(self, tp: int) -> None:
        held_out = residuals(np.random.default_rng(5))
        constants = {name: ConstantRecord(error, None, True) for name, error in STANDARD_ERRORS.items()}
        record = Record("", "", "key", "", (), (), constants=constants)
        self.source = Source("truth", TEXT, parse(TEXT), record)
        self.trust = Trust("key", ENSEMBLE, held_out, held_out)
        self.program, self.members = complete(parse(TEXT)), [complete(parse(text)) for text in ENSEMBLE]
        self.offered: list[ProbeRun] = grid(self.program, BASE, TPS, CANDIDATES, "")
        self.targets = [run.experiment for run in grid(self.program, BASE, (tp,), TARGETS, "target-")]
        data = score_set([run.experiment for run in self.offered], [SEED])
        ours = predictions(self.program, data)
        deviations = logs(ours, [predictions(p, data) for p in self.members]) / math.sqrt(len(self.members))
        self.deviations = deviations.reshape(len(self.members), len(self.offered), len(MEANS))
        self.shared, self.alone = sizes(held_out)

    def probe(self, count: int) -> Probe:
        return probe(self.source, self.trust, self.targets, self.offered, count)

    def width(self, program: Program, members: Sequence[Program]) -> float:
        """The mean width of the 80 % intervals in percent, as `evolve predict` has them."""
        by_figure = scales(self.trust.outside)
        widths = []
        for doubt in disagreements(program, members, self.targets, SEED):
            for name in MEANS:
                low, high = interval(100.0, doubt.spread[name] or 0.0, by_figure[name], 0.8)
                widths.append(high - low)
        return float(np.mean(widths))

    def narrowed(self, chosen: Sequence[int], seed: int) -> float:
        """By how much the mean width falls once program and ensemble are fitted on these runs of the truth `seed`."""
        rng = np.random.default_rng([seed, 7])
        names = [f"{f.name}.{c.name}" for f in self.program.functions for c in f.constants]
        errors = [STANDARD_ERRORS.get(name, 0.0) for name in names]
        theta = [max(x + error * rng.normal(), 0.05 * x) for x, error in zip(self.program.theta, errors, strict=True)]
        mixture = rng.normal(size=len(self.members))
        shared = {tp: rng.multivariate_normal(np.zeros(len(MEANS)), self.shared) for tp in TPS}
        truth = self.program.with_theta(tuple(theta))
        runs = []
        for i in chosen:
            e = self.offered[i].experiment
            moved = mixture @ self.deviations[:, i] + shared[e.engine.tensor_parallel]
            runs.append(observed(truth, e, moved + rng.multivariate_normal(np.zeros(len(MEANS)), self.alone)))
        fitted = [fit_scoped(problem_of(p, fit_set(runs), (), True)).programs[0] for p in (self.program, *self.members)]
        return self.width(self.program, self.members) - self.width(fitted[0], fitted[1:])


def observed(truth: Program, e: Experiment, moved: np.ndarray) -> Experiment:
    """The run as the truth replays it, with mean E2E and TTFT moved by the factors exp(moved)."""
    summary = predictions(truth, score_set([e], [77]))[0].predicted.summary
    assert summary and summary.e2e_ms.mean and summary.ttft_ms.mean
    e2e, ttft = summary.e2e_ms.mean * math.exp(moved[0]), summary.ttft_ms.mean * math.exp(moved[1])
    itl = (e2e - ttft) / gaps_of(e.workload)
    figures = Observation(Statistic(e2e), Statistic(ttft), Statistic(itl))
    return replace(e, observed=Observed(figures, (figures,)))


def narrowed(tp: int, truths: int) -> Narrowed:
    """By how much three runs that are chosen, and three random ones, narrow the intervals of targets on `tp` GPUs."""
    world = World(tp)
    ids = [run.experiment.id for run in world.offered]
    chosen = [ids.index(run.experiment.id) for run in world.probe(3).runs]
    rng = np.random.default_rng(11)
    by_choice = [world.narrowed(chosen, seed) for seed in range(truths)]
    by_chance = [world.narrowed(rng.choice(len(ids), 3, replace=False).tolist(), seed) for seed in range(truths)]
    return Narrowed(world.width(world.program, world.members), np.array(by_choice), np.array(by_chance))


if __name__ == "__main__":
    for degree in TPS:
        n = narrowed(degree, 20)
        print(f"targets at TP {degree}: {n.before:.1f} % before; narrower by")
        for what, falls in (("chosen", n.chosen), ("random", n.random)):
            print(f"  {what}: median {np.median(falls):.1f}, mean {falls.mean():.1f}, worst {falls.min():.1f} points")
