"""A diagnosis shows what was planted: runs are simulated under a known law, and a program is wrong in one known place."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from laws import law, shown

from archive.proposal import Rejected
from evaluator.assess import AssessData, Scored, prepare
from evaluator.diagnose import diagnose as diagnosis
from evaluator.diagnose.describe import describe, run_names
from evaluator.diagnose.examine import examine
from evaluator.diagnose.stage_steps import stage_steps
from evaluator.diagnose.trial import left_out, trial
from evaluator.score import error_rows
from simulator.clock.bind import bind
from simulator.language.ir import Program
from simulator.language.opcodes import assemble
from simulator.language.unparse import unparse
from simulator.serving.bundled import bundled_experiments
from simulator.serving.experiment import Experiment
from simulator.serving.observations import Observation, Statistic
from simulator.serving.workload import Stage

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
    return shown(runs, TRUTH)


@pytest.fixture(scope="module")
def data() -> AssessData:
    return prepare(simulated(SOME), [1])


RESIDUALS = ("step_us", "ttft_us", "itl_error_pct", "ttft_error_pct", "e2e_error_pct")


def families(found: diagnosis.Diagnosis, residual: str, first: int) -> list[set[str]]:
    """The strongest fields of a residual, each with those that are like it."""
    return [{c.field, *c.alike} for c in found.correlations if c.residual == residual][:first]


def as_text(program: Program, data: AssessData) -> str:
    """All of a diagnosis as a question has it, where there is room."""
    return "\n\n".join(listing.text(len(listing.lines)) for listing in describe(program, data, {}))


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


def test_the_true_law_takes_as_long_for_them_as_tokens_take(data: AssessData) -> None:
    """Whatever the batch is made of must explain the replay's ITL: within 0.5 % (measured: 0.2), at any load."""
    stages, code = data.fit.stages, assemble(TRUTH)
    for e, rows in zip(data.fit.experiments, data.fit.stages_at(range(len(data.fit.experiments))), strict=True):
        bound = bind(code, TRUTH.theta, e.facts)
        for i in rows:
            itl_us = stages.observed_ms[i, 2] * 1e3
            step_us = stage_steps(stages.table[i], itl_us, e.facts).step_us(bound)
            assert step_us == pytest.approx(itl_us, rel=0.005), e.id


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
    found = diagnosis.correlations("itl_error_pct", errors, fields)
    # by hand: 1 - 6 sum d^2 / (n (n^2 - 1)) for the third; ranks 1.5, 1.5, 4, 4, 4 against 1..5 for the fourth
    assert [(c.field, round(c.r, 3)) for c in found] == [("b.kv_sum", 1.0), ("s.layers", 0.866), ("b.tokens", 0.8)]
    assert found[0] == diagnosis.Correlation("itl_error_pct", "b.kv_sum", "token", 1.0, 5, ("b.kv_read_us",))
    negated = diagnosis.correlations("itl_error_pct", [-e if e else e for e in errors], fields)
    assert [c.r for c in negated] == [-c.r for c in found]


# ---- what was planted


def test_a_doubled_constant_shows_in_its_field(data: AssessData) -> None:
    found = diagnosis.diagnose(DOUBLED_KV, data)
    for residual in ("step_us", "itl_error_pct"):
        strongest = next(c for c in found.correlations if c.residual == residual)
        assert "b.kv_read_us" in {strongest.field, *strongest.alike} and strongest.r > 0.95
    worst = found.worst[0]
    assert len(found.worst) == diagnosis.MOST_BATCHES and worst.error_pct == max(
        s.itl_error_pct or 0.0 for s in found.stages
    )
    # at the observed batch the second 1.4 is all that is too long, but for what the batch misses (0.5 % of the step)
    assert worst.step_us is not None and worst.observed_us is not None
    excess = worst.step_us - worst.observed_us
    assert excess == pytest.approx(1.4 * worst.parts_us["kv_read_us"], abs=0.005 * worst.observed_us)
    assert set(worst.parts_us) == set(diagnosis.COMPONENT_FIELDS)


def test_a_missing_term_shows_in_its_field(data: AssessData) -> None:
    found = diagnosis.diagnose(NO_LAYERS, data)
    assert any("s.layers" in family for family in families(found, "step_us", 2))
    assert all(c.r < -0.7 for c in found.correlations if c.residual == "step_us")  # it is too short, everywhere
    assert all((s.itl_error_pct or 0.0) < -5.0 for s in found.stages)


def test_a_missing_queueing_term_shows_in_ttft_alone(data: AssessData) -> None:
    found = diagnosis.diagnose(NO_CYCLES, data)
    strongest = next(c for c in found.correlations if c.residual == "ttft_us")
    # the strongest may have the opposite ranks of the weights: its sign says nothing
    assert "s.weights_us" in {strongest.field, *strongest.alike} and abs(strongest.r) > 0.9
    assert all((s.ttft_error_pct or 0.0) < -15.0 and abs(s.itl_error_pct or 9.0) < 0.5 for s in found.stages)


# ---- errors as scores have them


def test_errors_are_those_of_the_score(data: AssessData) -> None:
    found = diagnosis.diagnose(DOUBLED_KV, data)
    assert list(found.runs) == error_rows(DOUBLED_KV, data.score)
    for e, run in zip(data.score.experiments, found.runs, strict=True):
        stages = [s for s in found.stages if s.experiment == e.id]
        assert [(s.stage, s.rate) for s in stages] == [(i, s.rate) for i, s in enumerate(e.workload.stages)]
        assert all(s.is_moe == ("mixtral" in e.id) for s in stages)
        # the run's mean is that of its stages, by their numbers of requests, all of which complete
        for name in ("e2e", "ttft", "itl"):
            errors = [getattr(s, f"{name}_error_pct") for s in stages]
            pairs = zip(stages, e.workload.stages, strict=True)
            weights = [getattr(s, f"{name}_ms") * t.rate * t.duration_s for s, t in pairs]
            assert np.average(errors, weights=weights) == pytest.approx(getattr(run, name), abs=1e-6)


def test_it_is_plain_values_and_the_same_every_time(data: AssessData) -> None:
    found = diagnosis.diagnose(NO_LAYERS, data)
    text = json.dumps(asdict(found), allow_nan=False)
    assert text == json.dumps(asdict(diagnosis.diagnose(NO_LAYERS, data)), allow_nan=False)
    counts = [sum(c.residual == r for c in found.correlations) for r in RESIDUALS]
    assert sum(counts) == len(found.correlations) and all(0 < n <= diagnosis.MOST_FIELDS for n in counts)
    told = as_text(NO_LAYERS, data)
    # every run by its deployment and workload, every deployment with its model
    assert all(f"{name} " in told for name in run_names(data.score.experiments).values())
    assert all(e.model.rpartition("/")[2] in told for e in SOME)
    assert len(told) < 5000  # a prompt has other things to say


def test_unobserved_figures_are_none() -> None:
    [seen] = simulated([RUNS["llama-2-7b-tp1-codegen"]])
    assert seen.observed is not None and seen.observed.summary is not None
    stages = tuple(map(without_itl, seen.observed.stages))
    blind = replace(seen, observed=replace(seen.observed, summary=without_itl(seen.observed.summary), stages=stages))
    blind_data = prepare([blind], [1])
    found = diagnosis.diagnose(DOUBLED_KV, blind_data)
    assert found.correlations == () and [s.itl_error_pct for s in found.stages] == [None, None]
    assert [(b.of, b.stage, b.observed_us) for b in found.worst] == [("e2e", 1, None), ("e2e", 0, None)]
    # at the replays' own pace: more decode at once than at the observed one
    ours = diagnosis.diagnose(DOUBLED_KV, prepare([seen], [1])).worst
    assert found.worst[0].decode_reqs > ours[0].decode_reqs and found.worst[0].step_us is not None
    json.dumps(asdict(found), allow_nan=False)
    told = as_text(DOUBLED_KV, blind_data)
    # with a single run nothing is left out, and there is no ITL to compare
    assert f"D1 codegen 5,10 | {found.stages[0].e2e_error_pct:+.0f}," in told and "| - | " in told.split("TTFT ms\n")[1]


def test_without_completed_requests_there_is_no_error() -> None:
    run = RUNS["llama-2-7b-tp1-roleplay"]
    hasty = replace(run, workload=replace(run.workload, stages=(Stage(6.0, 20.0),), timeout_s=300.0))
    program = law("def step_time(b, s, *, long: us = 1e9): return long")
    found = diagnosis.diagnose(program, prepare([hasty], [1]))
    assert found.runs[0].e2e is None and found.stages[0].e2e_error_pct is None and found.stages[0].e2e_ms is not None
    assert found.worst == () and found.correlations == ()
    json.dumps(asdict(found), allow_nan=False)
    assert "D1 roleplay 6 | - | - | -" in as_text(program, prepare([hasty], [1]))


def test_the_parts_of_ttft_are_those_of_the_replay(data: AssessData) -> None:
    parts = {t.experiment: t for t in diagnosis.diagnose(TRUTH, data).ttft}
    for e in data.score.experiments:
        t = parts[e.id]
        assert e.observed is not None and e.observed.summary is not None
        # the data are a replay of the same law under other arrivals, so that the parts make up the observed mean
        assert t.queueing_ms + t.waiting_ms + t.prefill_ms == pytest.approx(t.observed_ms, rel=0.05)
        assert t.queueing_ms == pytest.approx(8.0 + 1.5 * e.facts["weights_us"] / 1e3, abs=1e-3)  # QUEUEING


def test_runs_are_predicted_without_their_model(data: AssessData) -> None:
    known, seen = examine(TRUTH, data), examine(NO_LAYERS, data).left_out["models"]
    # one GPU and one version: what these runs share otherwise is left out in turn
    assert list(known.left_out) == ["models", "tp", "architectures"]
    for rows in (*known.left_out.values(), known.mean_left_out):
        assert [row.experiment for row in rows] == [e.id for e in data.fit.experiments]
    # the true law holds for every model that it was not fitted to; one without a term does not
    assert all(abs(row.e2e or 0.0) < 2.0 for row in known.left_out["models"])
    assert max(abs(row.e2e or 0.0) for row in seen) > 5.0
    first = [rows[0].ttft or 0.0 for rows in known.left_out.values()]
    assert known.mean_left_out[0].ttft == pytest.approx(sum(first) / 3)
    assert known.contradictions == () and known.at_bounds == ()


def test_doubts_name_constants_at_bounds_and_those_of_no_use(data: AssessData) -> None:
    head = STEP.replace("layer: us = 40.0", "layer: us = 40.0, idle: us = 1e-6")
    found = examine(law(head.replace("* s.layers", "* s.layers + idle")), data)
    assert "idle" in found.undecided and "weights" not in found.undecided
    low = examine(law(STEP.replace("1.15", "1.0"), QUEUEING), data).at_bounds
    assert len(low) == 1 and low[0].startswith("weights = 1 (at its lower bound")


def test_a_trial_says_what_a_score_does(data: AssessData) -> None:
    found = trial(unparse(DOUBLED_KV), data)
    assert isinstance(found.verdict, Scored)
    assert found.verdict.score.mean_error < 1.0  # the fit finds the planted value again
    assert found.known.count("\n") >= len(SOME) and found.known.endswith(found.doubts)
    assert found.left_out == left_out(found.verdict.text, data) and len(found.left_out) == len(SOME)
    assert {row.experiment for row in found.left_out} == set(run_names(data.score.experiments).values())
    refused = trial("def step_time(b, s, *, c: us = 1.0): return 0 - c", data)
    assert isinstance(refused.verdict, Rejected) and refused.known == ""
