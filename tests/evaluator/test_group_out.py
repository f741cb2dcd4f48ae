"""Models left out of a fit, terms that errors ask for and terms nobody would miss: on runs simulated under a known law,
which is what the expected figures come from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from laws import KERNELS, KERNELS_STEP, constants, law, shown

from evaluator.diagnose.explain import costs, gains
from evaluator.fit.fit import fit, fit_set
from evaluator.fit.methods import solve
from evaluator.fit.problem import problem_of, with_prior_reset
from evaluator.group_out import (
    KINDS,
    MOST_PCT,
    fold_problem,
    folds_of,
    group_out,
    mean_errors,
    refit,
    without_bounds,
)
from evaluator.score import error_rows, score_set
from evolve.run.config import LEFT_OUT, ScoreSettings
from simulator.language.ir import Expr, Field, Program
from simulator.serving.bundled import bundled_experiments, load_specs
from simulator.serving.experiment import Experiment, deploy
from simulator.serving.observations import Observation, Observed, Statistic

RUNS = {e.id: e for e in bundled_experiments()}
MODELS = ("llama-2-7b-tp1", "llama-2-70b-tp4", "codellama-34b-tp2")
SOME = [RUNS[f"{m}-{w}"] for m in MODELS for w in ("codegen", "roleplay")]

STEP = """
def step_time(b, s, *, weights: one = 1.15, kv: one = 1.4, layer: us = 40.0, request: us/request = 30.0):
    return weights * b.weight_read_us + kv * b.kv_read_us + layer * s.layers + request * b.batch_size
"""
TRUTH = law(STEP)
POOR = law(STEP.replace(" + layer * s.layers", "").replace(", layer: us = 40.0", ""))


def simulated() -> list[Experiment]:
    return shown(SOME, TRUTH)


def tripled(e: Experiment) -> Experiment:
    """With three times the latencies."""

    def longer(o: Observation) -> Observation:
        names = ("e2e_ms", "ttft_ms", "itl_ms")
        return replace(o, **{n: Statistic(3.0 * (getattr(o, n).mean or 0.0)) for n in names})

    assert e.observed is not None and e.observed.summary is not None
    return replace(e, observed=Observed(longer(e.observed.summary), tuple(map(longer, e.observed.stages))))


def test_folds_leave_out_each_kind_of_group() -> None:
    data = simulated()
    fitted = fit_set(data)
    models, degrees = folds_of(fitted).kinds  # all three models are dense
    assert [fold.left_out for fold in models] == [fold.left_out for fold in degrees] == [(0, 1), (2, 3), (4, 5)]
    for fold in models:
        learned = {data[i].id for i in fitted.experiment_of[fold.fitted]}
        assert learned == {e.id for i, e in enumerate(data) if i not in fold.left_out}
    assert len(folds_of(fitted, ("architectures", "tp")).kinds) == 1
    with_experts = folds_of(fit_set([*data, RUNS["mixtral-8x7b-tp2-codegen"]]))
    assert [[fold.left_out for fold in folds] for folds in with_experts.kinds] == [
        [(0, 1), (2, 3), (4, 5), (6,)],
        [(0, 1), (2, 3), (4, 5, 6)],  # Mixtral runs on two GPUs, as CodeLlama does
        [(0, 1, 2, 3, 4, 5), (6,)],
    ]
    assert [[fold.left_out for fold in folds] for folds in folds_of(fit_set(data[:2])).kinds] == [[(0,), (1,)]]
    assert folds_of(fit_set(data[:1])).kinds == ()


def two_gpus(program: Program) -> list[Experiment]:
    """Two models on two GPU types, simulated under a law."""
    experiments = []
    for gpu in ("H100-SXM-80GB", "A100-SXM-80GB"):
        for spec in load_specs("experiments_h100.yaml"):
            if spec.id in ("llama-2-7b-tp1-codegen", "llama-2-70b-tp4-codegen"):
                moved = spec.vary(hardware=gpu, total_kv_blocks=None)
                experiments.append(deploy(replace(moved, id=f"{spec.id}-{gpu}")))
    return shown(experiments, program)


def test_a_gpu_type_is_left_out_where_there_are_two() -> None:
    fitted = fit_set(two_gpus(TRUTH))
    assert [[fold.left_out for fold in folds] for folds in folds_of(fitted, ("hardware",)).kinds] == [[(0, 1), (2, 3)]]
    assert len(folds_of(fitted).kinds) == 3  # models, TP degrees and GPU types; all else is alike
    assert "hardware" in KINDS and folds_of(fit_set(simulated()), ("models", "hardware")).kinds[1:] == ()


def test_only_a_law_of_the_datasheet_holds_on_another_gpu() -> None:
    """The A100 has 0.61 of the H100's bandwidth: steps that are mostly weights take 1.6 times as long."""
    step = "def step_time(b, s, *, w: {}, layer: us = 40.0): return w * {} + b.kv_read_us + layer * s.layers"
    bytes_law = law(step.format("one = 1.15", "b.weight_read_us"))
    data, errors = fit_set(two_gpus(bytes_law)), []
    for program in (bytes_law, law(step.format("us = 900.0", "s.active_params_b"))):
        found = fit(program, data, reset_to_prior=True)
        left_out = group_out(found.program, found.ratio, folds_of(data, ("hardware",)))
        errors.append(left_out.mean if left_out else 0.0)
    assert 0.0 < errors[0] < 5.0  # arrivals move the TTFT of a run by 2 to 7 %, a third of what counts
    assert errors[1] > 0.9 * MOST_PCT  # nearly every error is above the cap


def test_an_error_of_ttft_counts_three_tenths_and_none_more_than_the_cap() -> None:
    nan = np.nan
    rows = np.array([[1.0, -2.0, 3.0], [-4.0, nan, 8.0], [90.0, 0.0, np.inf], [nan, nan, nan]])
    # (1 + 0.3 * 2 + 3) / 2.3, (4 + 8) / 2, (30 + 0 + 30) / 2.3, nothing observed
    assert mean_errors(rows) == pytest.approx([2.0, 6.0, 60.0 / 2.3, nan], nan_ok=True)


def without(model: str, program: Program, data: list[Experiment]) -> Program:
    """The program fitted again without the runs of this model, from its own constants and by the bare mean field."""
    fitted = fit_set(data)
    folds = folds_of(fitted, ("models",)).kinds[0]
    place = [data[fold.left_out[0]].model for fold in folds].index(model)
    again, _ = refit(fold_problem(program, fitted), np.ones_like(fitted.ratio), folds)
    return program.with_theta(tuple(again[place]))


def measured(program: Program, data: list[Experiment]) -> float:
    fitted = fit_set(data)
    found = fit(program, fitted, reset_to_prior=True)
    result = group_out(found.program, found.ratio, folds_of(fitted))
    assert result is not None
    return result.mean


def test_the_true_law_holds_for_left_out_models() -> None:
    data = simulated()
    assert measured(TRUTH, data) < 2.5  # arrivals move the TTFT of a run by 2 to 7 %, a third of what counts
    assert measured(POOR, data) > 3.0 * measured(TRUTH, data)


def test_a_left_out_run_is_predicted_as_by_a_replay() -> None:
    """The mean field stands in for replays in a fold: for a calm run its error is nearly that of the replay."""
    data = simulated()
    fitted = fit_set(data)
    found = fit(POOR, fitted, reset_to_prior=True)
    folds = folds_of(fitted, ("models",))
    problem = fold_problem(found.program, fitted)
    rows = []
    for theta, fold in zip(refit(problem, found.ratio, folds.kinds[0])[0], folds.kinds[0], strict=True):
        rows += error_rows(problem.program.with_theta(tuple(theta)), score_set([data[i] for i in fold.left_out], [1]))
    replayed = mean_errors(np.array([[r.e2e, r.ttft, r.itl] for r in rows], dtype=float)).mean()
    left_out = group_out(found.program, found.ratio, folds)
    # 10 %: a form this poor moves so far in a fold that its predictions are no longer linear in the constants
    assert left_out and left_out.mean == pytest.approx(replayed, rel=0.1)


def test_the_settings_of_a_search_are_those_of_this_module() -> None:
    assert (LEFT_OUT, ScoreSettings().left_out) == (KINDS, KINDS)


def test_a_fold_learns_nothing_from_the_runs_it_leaves_out() -> None:
    """The left-out model's runs are three times slower in one of two data sets; the fold's constants are the same."""
    plain = simulated()
    slower = [tripled(e) if e.model == plain[0].model else e for e in plain]
    one, other = (without(plain[0].model, TRUTH, data).theta for data in (plain, slower))
    assert one == other
    assert one != without(plain[2].model, TRUTH, slower).theta  # the slow runs are not left out here


def test_a_fold_is_the_fit_of_the_other_runs_alone() -> None:
    data = simulated()
    others = [e for e in data if e.model != data[0].model]
    problem = with_prior_reset(problem_of(TRUTH, fit_set(others)))
    scales = problem.scales(problem.start)
    goal = problem.goal(np.ones_like(problem.data.ratio), problem.prior(scales))
    alone, _ = solve(problem, problem.start, goal, scales[0])
    assert without(data[0].model, TRUTH, data).theta == pytest.approx(alone, rel=0.01)  # by one linear step


@pytest.mark.parametrize(
    ("term", "unknown"),
    [
        ("links * s.tp_log2 * s.layers", 0.0),
        # other spellings of a coefficient, which the fold must not remember either
        ("links * links * s.tp_log2 * s.layers", 0.0),
        ("sqrt(links) * s.tp_log2 * s.layers", 0.0),
        ("exp(links) * s.tp_log2 * s.layers", 0.0),
        ("s.tp_log2 * s.layers / links", 9.0),  # a divisor keeps its value: no line leads to one without end
        ("(links if links > 1 else 0) * s.tp_log2 * s.layers", 0.0),
    ],
)
def test_terms_of_a_left_out_model_are_unknown(term: str, unknown: float) -> None:
    """Only one model is spread over four GPUs: without it the term is gone."""
    more = law(STEP.replace("30.0):", "30.0, links=9.0):").replace("* s.layers", f"* s.layers + {term}", 1))
    data = [e for e in simulated() if e.engine.tensor_parallel != 2]
    found = without("meta-llama/Llama-2-70b-hf", more, data)
    assert constants(found)["links"] == unknown


def test_kernel_factors_that_no_fold_shows_are_one() -> None:
    """Experts run on Mixtral only. A plain factor of them would be nothing in the fold without it; this one is known."""
    runs = [RUNS[f"{m}-{w}"] for m in (*MODELS[:2], "mixtral-8x7b-tp2") for w in ("codegen", "roleplay")]
    data = shown(runs, KERNELS)

    def refitted(program: Program, left_out_model: str) -> dict[str, float]:
        return constants(without(left_out_model, program, data))

    mixtral = "mistralai/Mixtral-8x7B-v0.1"
    found = refitted(KERNELS, mixtral)
    assert found["moe"] == pytest.approx(1.0, abs=1e-12) != found["gemm"]
    assert refitted(KERNELS, "meta-llama/Llama-2-7b-hf")["moe"] == pytest.approx(1.25, abs=0.1)
    # bounds that a proposer wrote down, having seen all runs, do not hold in a fold
    bounded = law(KERNELS_STEP.replace("moe: one = 1.25", "moe: one[1.2, 1.4] = 1.25"))
    assert refitted(bounded, mixtral)["moe"] == pytest.approx(1.0, abs=1e-12)
    # beside the bare time the factor is of something else, and unknown
    added = law(KERNELS_STEP.replace("moe * b.kernel_moe_us", "b.kernel_moe_us + moe * b.kernel_moe_us"))
    assert refitted(added, mixtral)["moe"] == 0.0


def test_bounds_of_a_proposer_are_left_off_and_nothing_else() -> None:
    program = law(STEP.replace("kv: one = 1.4", "kv: one[1.3, 1.5] = 1.4").replace("us = 40.0", "us[0, 50] = 40.0"))
    assert without_bounds(program) == TRUTH != program
    assert without_bounds(TRUTH) == TRUTH


FIELDS = ("s.vocab", "s.layers", "b.kv_read_us", "s.hidden", "b.batch_size")


def test_the_missing_term_explains_most() -> None:
    data = fit_set(simulated())
    found = fit(POOR, data, reset_to_prior=True).program
    terms: list[list[Expr]] = [[Field(*name.split("."))] for name in FIELDS]
    share = gains(problem_of(found, data), "step_time", terms)
    assert share.argmax() == 1 and share[1] > 0.5
    assert share[2] == share[4] == 0.0  # what the program can say already explains nothing more


def test_nobody_would_miss_a_term_that_does_nothing() -> None:
    head = STEP.replace("30.0):", "30.0, idle: us = 0.01):")
    idle = law(head.replace("* s.layers", "* s.layers + idle * s.vocab / s.vocab", 1))
    data = fit_set(simulated())
    cost = costs(problem_of(idle, data))
    names = [c.name for f in idle.functions for c in f.constants]
    assert names[int(cost.argmin())] == "idle"
    assert cost[names.index("weights")] > 100.0 * cost[names.index("idle")]


def test_a_kernel_is_adjusted_downwards_too() -> None:
    """Experts take four fifths of their kernels on two GPUs, and a term that says so explains what is left."""
    runs = [*SOME, RUNS["mixtral-8x7b-tp2-codegen"], RUNS["mixtral-8x7b-tp2-roleplay"]]
    step = KERNELS_STEP.replace("moe: one = 1.25, ", "").replace("moe * b.kernel_moe_us", "b.kernel_moe_us")
    faster = step.replace("= 30.0):", "= 30.0, less: one = -0.2):").replace(
        "+ layer", "+ less * b.kernel_moe_us * s.is_moe + layer"
    )
    data = fit_set(shown(runs, law(faster)))
    (share,) = gains(problem_of(law(step), data), "step_time", [[Field("b", "kernel_moe_us"), Field("s", "is_moe")]])
    assert share > 0.5
