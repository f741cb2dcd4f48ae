"""Experiments on worlds whose truth is known: each is judged as it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny_world import DATA, FITTED

from evaluator.fit.loss import FitSet
from evaluator.judge.physics import KERNEL_STEP
from evaluator.score import predictions, score_set
from evolve.output.progress import Line
from evolve.search.pool.local import local
from research.methods.bench import Bench
from research.methods.samples import Sample
from research.rejudged import cycles, forms, loads, world
from research.rejudged.claims import CLAIMS
from research.rejudged.finding import Finding, difference
from research.rejudged.verdict import KEPT, OVERTURNED, UNDECIDED
from research.rejudged.world import World, capped, held_out
from simulator.clock.bind import bind
from simulator.common.streams import stream
from simulator.language.opcodes import assemble
from simulator.schema import (
    DECODE_REQS,
    KV_DECODE_MAX,
    KV_DECODE_SUM,
    KV_MAX,
    KV_SUM,
    MAX_PREFILL_CHUNK,
    PREFILL_PAIRS,
    PREFILL_REQS,
    PREFILL_TOKENS,
    RAW_FIELDS,
)
from simulator.serving.bundled import bundled_experiments, load_experiments
from simulator.serving.experiment import Experiment
from simulator.serving.splits import TEST, TRAIN, VALID

RUNS = ("llama-2-70b-tp4-general", "codellama-34b-tp2-general")
COUNT = 300
Law = Callable[[np.ndarray, Experiment], np.ndarray]  # float64[steps, RAW] and the deployment to float64[steps], us
RULES = {claim.name: claim.rule for claim in CLAIMS}


def batches(run: int, prompts: float, longest: int) -> np.ndarray:
    """Seeded batches of 10 to 120 decodes; a share `prompts` of them with one prompt of up to `longest` tokens."""
    rng, raw = stream(run, 5), np.zeros((COUNT, RAW_FIELDS))
    raw[:, DECODE_REQS] = rng.integers(10, 120, COUNT)
    contexts = rng.integers(300, 1500, COUNT)
    raw[:, KV_SUM] = raw[:, KV_DECODE_SUM] = raw[:, DECODE_REQS] * contexts
    raw[:, KV_MAX] = raw[:, KV_DECODE_MAX] = contexts + rng.integers(0, 200, COUNT)
    mixed = rng.random(COUNT) < prompts
    tokens = rng.integers(2, longest, mixed.sum())
    raw[mixed, PREFILL_REQS] = 1
    raw[mixed, PREFILL_TOKENS] = raw[mixed, MAX_PREFILL_CHUNK] = tokens
    raw[mixed, PREFILL_PAIRS] = tokens * (tokens + 1) / 2
    return raw


def samples(law: Law, prompts: float = 0.1, longest: int = 30, noise: float = 0.01) -> list[Sample]:
    """Cycles of RUNS timed by a law, with noise."""
    made = []
    known = {e.id: e for e in bundled_experiments()}
    for i, run in enumerate(RUNS):
        raw = batches(i, prompts, longest)
        us = law(raw, known[run]) * (1.0 + noise * stream(i, 6).standard_normal(COUNT))
        split = np.where(np.arange(COUNT) < 180, TRAIN, np.where(np.arange(COUNT) < 240, VALID, TEST))
        each, ones = np.arange(COUNT), np.ones(COUNT)
        made.append(Sample(run, known[run].facts, raw, each, ones, us, ones.copy(), split, each.copy()))
    return made


def recorded(law: Law, **more: Any) -> Any:
    """A world that has nothing but these cycles."""
    return SimpleNamespace(cycles=tuple(samples(law, **more)), model_of=lambda run: run)


def verdict(claim: str, finding: Finding) -> str:
    return RULES[claim].verdict(finding.estimate)


def decode_line_us(raw: np.ndarray, _: Experiment) -> np.ndarray:
    us: np.ndarray = 14000.0 + 40.0 * raw[:, DECODE_REQS] + 0.03 * raw[:, KV_DECODE_SUM]
    return us


def kernels_us(raw: np.ndarray, e: Experiment) -> np.ndarray:
    form = world.program("def step_time(b, s): return b.kernel_us")
    us: np.ndarray = bind(assemble(form), form.theta, e.facts).steps_us(raw)
    return us


def two_steps_us(raw: np.ndarray, e: Experiment) -> np.ndarray:
    """A prefill step after a decode step."""
    alone = raw.copy()
    alone[:, [DECODE_REQS, KV_DECODE_SUM, KV_DECODE_MAX, KV_SUM, KV_MAX]] = 0.0
    return decode_line_us(raw, e) + np.where(raw[:, PREFILL_REQS] > 0, kernels_us(alone, e), 0.0)


def test_an_additive_world_is_judged_additive() -> None:
    assert verdict("mixed-additive", cycles.additive(samples(two_steps_us))) == KEPT


def test_a_world_of_steps_that_do_both_is_not_additive() -> None:
    """Prompts cost 20 us a token; a step of their own would read all weights again."""
    finding = cycles.additive(samples(lambda raw, e: decode_line_us(raw, e) + 20.0 * raw[:, PREFILL_TOKENS]))
    assert verdict("mixed-additive", finding) == OVERTURNED
    excess = next(f for f in finding.figures if f.unit == "ms")
    assert excess.value == pytest.approx(0.02 * 15.5, abs=0.1)  # 2 to 29 tokens are 15.5 in the mean


@pytest.mark.parametrize(("ratio", "expected"), [(13.0, KEPT), (1 / 13, KEPT), (2.0, OVERTURNED)])
def test_the_ratio_of_token_costs_is_recovered(ratio: float, expected: str) -> None:
    def law(raw: np.ndarray, _: Experiment) -> np.ndarray:
        tokens: np.ndarray = raw[:, DECODE_REQS] + raw[:, PREFILL_TOKENS] / ratio
        return 10000.0 + 100.0 * tokens + 0.01 * raw[:, KV_SUM]

    finding = cycles.token_ratio(samples(law, prompts=0.5, longest=500))
    assert finding.estimate.value == pytest.approx(ratio, rel=0.15)
    assert verdict("token-ratio", finding) == expected


def test_a_ratio_that_few_short_prompts_leave_open_is_undecided() -> None:
    def law(raw: np.ndarray, _: Experiment) -> np.ndarray:
        us: np.ndarray = 10000.0 + 40.0 * raw[:, DECODE_REQS] + 3.0 * raw[:, PREFILL_TOKENS]
        return us

    assert verdict("token-ratio", cycles.token_ratio(samples(law, prompts=0.02, longest=12, noise=0.03))) == UNDECIDED


@pytest.mark.parametrize(("a", "expected"), [(0.5, KEPT), (1.0, OVERTURNED), (0.0, OVERTURNED)])
def test_the_overlap_of_compute_and_memory_is_recovered(a: float, expected: str) -> None:
    """With prompts of up to 1,500 tokens compute is the longer in some steps, and the shorter is told from requests."""

    def law(raw: np.ndarray, e: Experiment) -> np.ndarray:
        compute, memory = (
            bind(assemble(form), form.theta, e.facts).steps_us(raw) for form in (cycles._COMPUTE, cycles._MEMORY)
        )
        us: np.ndarray = 2000.0 + 1.2 * (np.maximum(compute, memory) + (1.0 - a) * np.minimum(compute, memory))
        return us

    finding = cycles.overlap(samples(law, prompts=0.5, longest=1500, noise=0.002))
    assert finding.estimate.value == pytest.approx(a, abs=0.05)
    assert verdict("overlap", finding) == expected


@pytest.mark.slow
def test_a_floor_and_a_sum_are_told_apart() -> None:
    def work_us(raw: np.ndarray) -> np.ndarray:
        us: np.ndarray = 150.0 * raw[:, DECODE_REQS] + 0.05 * raw[:, KV_DECODE_SUM]
        return us

    floor = recorded(lambda raw, e: np.maximum(9000.0, work_us(raw)))
    assert verdict("floor-or-sum", forms.floor_or_sum(floor)) == KEPT
    added = recorded(lambda raw, e: 9000.0 + work_us(raw))
    assert verdict("floor-or-sum", forms.floor_or_sum(added)) == OVERTURNED


def test_a_world_of_exponential_steps_favours_logarithms_and_a_linear_one_does_not() -> None:
    steep = recorded(lambda raw, e: 8000.0 * np.exp(0.02 * raw[:, DECODE_REQS]))
    assert forms.logarithms(steep).estimate.value < -1.0
    linear = recorded(lambda raw, e: 1000.0 + 400.0 * raw[:, DECODE_REQS])
    assert verdict("log-target", forms.logarithms(linear)) == KEPT


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("rejudged")
    (folder / "data.yaml").write_text(DATA)
    data = tuple(load_experiments(folder / "data.yaml"))
    return World(Bench(folder / "out", (), data, ()), (), local(1, Line(quiet=True)))


def test_a_run_is_predicted_by_constants_that_never_saw_its_group(tiny: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[tuple[str, ...]]()
    fit = world.fit

    def spy(form: Any, data: FitSet, **options: Any) -> Any:
        seen.append(tuple(e.id for e in data.experiments))
        return fit(form, data, **options)

    monkeypatch.setattr("research.rejudged.world.fit", spy)
    form = world.program("def step_time(b, s, *, base: us = 8000.0): return base")
    assert set(held_out(tiny, form, lambda e: e.model)) == set(FITTED)
    assert sorted(seen) == [("dense-chat", "dense-code"), ("sparse-chat",)]
    seen.clear()
    # With constants of each model, the only run of a model has nothing to be fitted on without its workload.
    assert set(held_out(tiny, form, lambda e: e.workload.name, lambda e: e.model)) == {"dense-chat", "dense-code"}
    assert sorted(seen) == [("dense-chat",), ("dense-code",)]


def test_scheduling_and_preemption_times_change_no_prediction(tiny: World) -> None:
    finding = loads.silent_delays(tiny)
    assert verdict("scheduling-preemption", finding) == KEPT
    assert all(f.value == 0.0 for f in finding.figures)


@pytest.mark.parametrize(("wait_us", "matters"), [(20000.0, True), (0.0, False)])
def test_delays_matter_where_they_were_measured(tiny: World, wait_us: float, matters: bool) -> None:
    """The latencies are those of the kernels and a wait, the same for both models."""
    nothing = "".join(text for part, text in loads._NO.items() if part != loads._QUEUEING)
    truth = world.program(f"{KERNEL_STEP}\ndef queueing_time(r, s, *, wait: us = {wait_us}): return wait{nothing}")
    seen = {p.experiment: p.predicted for p in predictions(truth, score_set(tiny.experiments))}
    data = [replace(e, observed=seen[e.id]) for e in tiny.bench.data if e.id in seen]
    made = replace(tiny, bench=replace(tiny.bench, data=tuple(data)))
    finding = loads.delays(made, "ttft")
    assert (verdict("delays-ttft", finding) == OVERTURNED) is matters
    assert (finding.estimate.value > 10.0) is matters


def test_differences_are_paired_and_capped(tiny: World) -> None:
    worse = {"dense-chat": {"e2e": -900.0}, "sparse-chat": {"e2e": 7.0}, "dense-code": {"e2e": 1.0}}
    better = {"dense-chat": {"e2e": 40.0}, "sparse-chat": {"e2e": -2.0}}
    estimate = difference(tiny, worse, better)
    assert estimate.value == pytest.approx((60.0 + 5.0) / 2)
    assert estimate.of == "2 runs of 2 models"
    assert (capped(None), capped(-3.0), capped(250.0)) == (100.0, 3.0, 100.0)


def test_bundled_cycles_are_the_ones_of_the_page(tmp_path: Path) -> None:
    """Three runs of two models; no cycle with prompts alone."""
    everything = world.world([Path("steps_h100.parquet")], tmp_path, local(1, Line(quiet=True)))
    finding = cycles.heavy_share(everything)
    assert verdict("mixed-heavy", finding) == KEPT
    assert finding.figures[-1].value == 0.0
