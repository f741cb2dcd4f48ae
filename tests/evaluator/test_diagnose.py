"""A diagnosis shows what was planted: runs are simulated under a known law, and a program is wrong in one known place."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from laws import law

from evaluator.assess import Data, prepare
from evaluator.diagnose.describe import describe
from evaluator.diagnose.diagnose import (
    LEAST_STAGES,
    MOST_BATCHES,
    MOST_FIELDS,
    PARTS,
    Correlation,
    Diagnosis,
    correlations,
    diagnose,
)
from evaluator.diagnose.stage_steps import stage_steps
from evaluator.experiments import bundled_experiments
from evaluator.metrics import observe_all
from evaluator.score import error_rows
from simulator.bind import bind
from simulator.experiment.experiment import Experiment, Observation, Stage, Statistic
from simulator.language.opcodes import assemble
from simulator.replay import replay

RUNS = {e.id: e for e in bundled_experiments()}
MODELS = ("llama-2-7b-tp1", "llama-2-70b-tp4", "mixtral-8x7b-tp2", "codellama-34b-tp2")
SOME = [RUNS[f"{m}-{w}"] for m in MODELS for w in ("codegen", "roleplay")]

STEP = """
def step_time(b, s, *, weights: one = 1.15, kv: one = 1.4, layer: us = 40.0):
    return weights * b.weight_read_us + kv * b.kv_read_us + layer * s.layers
"""
QUEUEING = """
def queueing_time(r, s, *, base: us = 8000.0, cycles: one = 1.5):
    return base + cycles * s.weights_us
"""
TRUTH = law(STEP, QUEUEING)
DOUBLED_KV = law(STEP.replace("1.4", "2.8"), QUEUEING)
NO_LAYERS = law(STEP.replace(" + layer * s.layers", "").replace(", layer: us = 40.0", ""), QUEUEING)
NO_CYCLES = law(STEP)


def simulated(runs: list[Experiment]) -> list[Experiment]:
    return [replace(e, observed=observe_all(replay(e, TRUTH, 77))) for e in runs]


@pytest.fixture(scope="module")
def data() -> Data:
    return prepare(simulated(SOME), [1])


RESIDUALS = ("step_us", "ttft_us", "itl_pct", "ttft_pct", "e2e_pct")


def families(found: Diagnosis, residual: str, first: int) -> list[set[str]]:
    """The strongest fields of a residual, each with those that are like it."""
    return [{c.field, *c.alike} for c in found.correlations if c.residual == residual][:first]


def without_itl(o: Observation) -> Observation:
    return replace(o, itl_ms=Statistic())


# ---- the steps of a stage


def row(seqs: float = 128.0, budget: float = 2048.0) -> np.ndarray:
    """10 requests/s of 500 prompt and 101 output tokens; half of them find their prompt, the others compute 100."""
    return np.array([1e-5, 101.0, 500.0, 100.0, 0.5, seqs, budget, 6e8, 0.0, np.nan, 0.0, 500.0])


def test_the_steps_of_a_stage_by_hand() -> None:
    facts = SOME[0].facts
    calm = stage_steps(row(), 20_000.0, facts)
    assert calm.shares.sum() == pytest.approx(1.0)
    # 10/s x 100 tokens x 20 ms = 20 decode at once, and the token's own request; 5 prompts of 100 tokens/s
    assert calm.mean("decode_reqs") == pytest.approx(21.0)
    assert calm.mean("prefill_tokens") == pytest.approx(10.0)
    assert calm.mean("prefill_reqs") == pytest.approx(0.1)
    # a token's context is the prompt and on average half of the answer; a prompt's is what the cache had of it
    assert calm.mean("kv_decode_sum") == pytest.approx(21 * (500 + 99 / 2), rel=0.01)
    assert calm.mean("kv_sum") - calm.mean("kv_decode_sum") == pytest.approx(0.1 * 400)
    # at the request limit half of them are served
    full = stage_steps(row(seqs=10.0), 20_000.0, facts)
    assert full.mean("decode_reqs") == pytest.approx(10.0) and full.mean("prefill_tokens") == pytest.approx(5.0)
    # so they are by a KV cache for 10 requests of 500 + 101/2 tokens
    small = stage_steps(row(), 20_000.0, {**facts, "kv_blocks": 5505.0, "block_size": 1.0})
    assert small.mean("decode_reqs") == pytest.approx(10.0) and small.mean("prefill_tokens") == pytest.approx(5.0)
    # a budget of 50 tokens beside the decodes: the same prompts in two chunks each
    chunked = stage_steps(row(budget=71.0), 20_000.0, facts)
    assert chunked.mean("prefill_tokens") == pytest.approx(10.0) and chunked.mean("prefill_reqs") == pytest.approx(0.2)
    # no load at all: the token's own request
    assert stage_steps(row(), 1e-9, facts).mean("batch_size") == pytest.approx(1.0)


def test_the_true_law_takes_as_long_for_them_as_tokens_take(data: Data) -> None:
    """Whatever the batch is made of must explain the replay's ITL: within 0.5 % (measured: 0.2), at any load."""
    stages, code = data.fit.stages, assemble(TRUTH)
    for e, first in zip(data.fit.experiments, stages.first, strict=True):
        bound = bind(code, TRUTH.theta, e.facts)
        for i in range(first, first + len(e.workload.stages)):
            itl_us = stages.observed_ms[i, 2] * 1e3
            assert stage_steps(stages.table[i], itl_us, e.facts).step_us(bound) == pytest.approx(itl_us, rel=0.005), (
                e.id
            )


# ---- correlations


def test_fields_go_along_with_errors() -> None:
    fields: dict[tuple[str, str], list[float | None]] = {
        ("b", "kv_sum"): [1.0, 2.0, 3.0, 4.0, 5.0, 99.0],
        ("b", "kv_read_us"): [50.0, 40.0, 30.0, 20.0, 10.0, 99.0],
        ("b", "tokens"): [2.0, 1.0, 4.0, 3.0, 5.0, 99.0],
        ("s", "layers"): [32.0, 32.0, 80.0, 80.0, 80.0, 99.0],
        ("s", "tp"): [1.0, 1.0, 1.0, 1.0, 1.0, 99.0],
        ("s", "hidden"): [1.0, 1.0 + 1e-12, 1.0, 1.0, 1.0, 99.0],
        ("b", "batch_size"): [None, 1.0, 2.0, 3.0, 4.0, 99.0],
    }
    errors = [-3.0, -1.0, 0.5, 7.0, 80.0, None]
    found = correlations("itl_pct", errors, fields)
    # by hand: 1 - 6 sum d^2 / (n (n^2 - 1)) for the third; ranks 1.5, 1.5, 4, 4, 4 against 1..5 for the fourth
    assert [(c.field, round(c.r, 3)) for c in found] == [("b.kv_sum", 1.0), ("s.layers", 0.866), ("b.tokens", 0.8)]
    assert found[0] == Correlation("itl_pct", "b.kv_sum", "token", 1.0, 5, ("b.kv_read_us",))
    assert [c.r for c in correlations("itl_pct", [-e if e else e for e in errors], fields)] == [-c.r for c in found]


def test_too_little_goes_along_with_nothing() -> None:
    fields = {("b", "kv_sum"): [1.0, 2.0, 3.0, 4.0]}
    assert len(correlations("itl_pct", [1.0, 2.0, 4.0, 3.0], fields)) == 1 and LEAST_STAGES == 4
    assert correlations("itl_pct", [1.0, 2.0, 4.0, None], fields) == []
    assert correlations("itl_pct", [1.0] * 4, fields) == []
    assert correlations("itl_pct", [1.0, 2.0, 4.0, 3.0], {("s", "tp"): [1.0] * 4}) == []
    assert correlations("itl_pct", [], {}) == []


# ---- what was planted


def test_a_doubled_constant_shows_in_its_field(data: Data) -> None:
    found = diagnose(DOUBLED_KV, data)
    for residual in ("step_us", "itl_pct"):
        strongest = next(c for c in found.correlations if c.residual == residual)
        assert "b.kv_read_us" in {strongest.field, *strongest.alike} and strongest.r > 0.95
    worst = found.worst[0]
    assert len(found.worst) == MOST_BATCHES and worst.error_pct == max(s.itl_pct or 0.0 for s in found.stages)
    # at the observed batch the second 1.4 is all that is too long, but for what the batch misses (0.5 % of the step)
    assert worst.step_us is not None and worst.observed_us is not None
    excess = worst.step_us - worst.observed_us
    assert excess == pytest.approx(1.4 * worst.parts_us["kv_read_us"], abs=0.005 * worst.observed_us)
    assert set(worst.parts_us) == set(PARTS)


def test_a_missing_term_shows_in_its_field(data: Data) -> None:
    found = diagnose(NO_LAYERS, data)
    assert any("s.layers" in family for family in families(found, "step_us", 2))
    assert all(c.r < -0.7 for c in found.correlations if c.residual == "step_us")  # it is too short, everywhere
    assert all((s.itl_pct or 0.0) < -5.0 for s in found.stages)


def test_what_queueing_misses_shows_in_ttft_alone(data: Data) -> None:
    found = diagnose(NO_CYCLES, data)
    strongest = next(c for c in found.correlations if c.residual == "ttft_us")
    # the strongest may have the opposite ranks of the weights: its sign says nothing
    assert "s.weights_us" in {strongest.field, *strongest.alike} and abs(strongest.r) > 0.9
    assert all((s.ttft_pct or 0.0) < -15.0 and abs(s.itl_pct or 9.0) < 0.5 for s in found.stages)


# ---- errors as scores have them


def test_errors_are_those_of_the_score(data: Data) -> None:
    found = diagnose(DOUBLED_KV, data)
    assert list(found.runs) == error_rows(DOUBLED_KV, data.score)
    for e, run in zip(data.score.experiments, found.runs, strict=True):
        stages = [s for s in found.stages if s.experiment == e.id]
        assert [(s.stage, s.rate) for s in stages] == [(i, s.rate) for i, s in enumerate(e.workload.stages)]
        assert all(s.is_moe == ("mixtral" in e.id) for s in stages)
        # the run's mean is that of its stages, by their numbers of requests, all of which complete
        for name in ("e2e", "ttft", "itl"):
            errors = [getattr(s, f"{name}_pct") for s in stages]
            weights = [
                getattr(s, f"{name}_ms") * t.rate * t.duration_s for s, t in zip(stages, e.workload.stages, strict=True)
            ]
            assert np.average(errors, weights=weights) == pytest.approx(getattr(run, name), abs=1e-6)


def test_it_is_plain_values_and_the_same_every_time(data: Data) -> None:
    found = diagnose(NO_LAYERS, data)
    text = json.dumps(asdict(found), allow_nan=False)
    assert text == json.dumps(asdict(diagnose(NO_LAYERS, data)), allow_nan=False)
    counts = [sum(c.residual == r for c in found.correlations) for r in RESIDUALS]
    assert sum(counts) == len(found.correlations) and all(0 < n <= MOST_FIELDS for n in counts)
    told = describe(found)
    assert all(e.id in told for e in SOME) and all(batch.experiment in told for batch in found.worst)
    assert len(told) < 5000  # a prompt has other things to say


def test_what_was_not_observed_is_none() -> None:
    seen = simulated([RUNS["llama-2-7b-tp1-codegen"]])[0]
    assert seen.observed is not None and seen.observed.summary is not None
    stages = tuple(map(without_itl, seen.observed.stages))
    blind = replace(seen, observed=replace(seen.observed, summary=without_itl(seen.observed.summary), stages=stages))
    found = diagnose(DOUBLED_KV, prepare([blind], [1]))
    assert found.correlations == () and [s.itl_pct for s in found.stages] == [None, None]
    assert [(b.of, b.stage, b.observed_us) for b in found.worst] == [("e2e", 1, None), ("e2e", 0, None)]
    # at the replays' own pace: more decode at once than at the observed one
    ours = diagnose(DOUBLED_KV, prepare([seen], [1])).worst
    assert found.worst[0].decode_reqs > ours[0].decode_reqs and found.worst[0].step_us is not None
    json.dumps(asdict(found), allow_nan=False)
    assert seen.id in describe(found)


def test_where_nothing_completes_there_is_no_error() -> None:
    run = RUNS["llama-2-7b-tp1-roleplay"]
    hasty = replace(run, workload=replace(run.workload, stages=(Stage(6.0, 20.0),), timeout_s=300.0))
    program = law("def step_time(b, s, *, long: us = 1e9): return long")
    found = diagnose(program, prepare([hasty], [1]))
    assert found.runs[0].e2e is None and found.stages[0].e2e_pct is None and found.stages[0].e2e_ms is not None
    assert found.worst == () and found.correlations == ()
    json.dumps(asdict(found), allow_nan=False)
    assert hasty.id in describe(found)
