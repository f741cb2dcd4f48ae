"""What the dimensions of a report are made of, against hand calculations and what was measured before."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference import LEAST
from trace_tables import HEAD, experiment, lines, written

from archive.journal import read_journal
from evaluator.intervals import Residual
from evaluator.metrics import mean_abs
from evaluator.score import MEANS, predictions, score_set
from evolve.calibrate.learning import CurvePoint, LearningCurve
from evolve.output.progress import Line
from evolve.report import accuracy, workloads
from evolve.report.adoption import ADOPT, NOT, WITH_CARE, adoption
from evolve.report.constants import DATASHEET, HOST, KERNEL, OWN_STEP, SHAPE, STEP, bare_terms, bare_times, classified
from evolve.report.dimension import CARE, GOOD, POOR, UNTESTED, Dimension
from evolve.report.ease import PLAN, required
from evolve.report.evidence import Evidence
from evolve.report.held_out import figures_of, held_out
from evolve.report.reproducibility import errors_off, rebuild
from evolve.report.retraining import runs_needed
from evolve.report.stress import constants_times, kernels_times, steps_longer, under
from evolve.report.subject import Subject, subject_of
from evolve.run.data import fittable
from evolve.run.program import load
from evolve.run.trust import Trust
from evolve.search.pool.local import Here
from simulator.clock.bind import deployments_in_order
from simulator.clock.fields import Active, raw_row
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.measure import Caps
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.serving.bundled import bundled_experiments
from simulator.serving.digests import measurement_digest
from simulator.serving.experiment import Experiment
from simulator.serving.observations import Statistic

PROGRAM = """
def step_time(b, s, *, gemm: one = 0.9, bytes: one = 1.2, request: us/request = 20.0, few: request = 4.0):
    more = request * b.decode_reqs if b.decode_reqs > few else 0
    return gemm * b.kernel_gemm_us + bytes * b.kv_read_us + more + b.kernel_lm_head_us

def queueing_time(r, s, *, base: us = 5000.0, cycles: one = 1.5):
    return base + cycles * s.reference_step_us
"""


@pytest.fixture(scope="module")
def champion() -> Subject:
    return subject_of("champion", Caps(), None, None)


def test_copies_of_fitted_runs_do_not_count_as_fitted(champion: Subject) -> None:
    """Three rows of configs/experiments_serving.yaml repeat the measurements of others."""
    assert champion.source.record and [e.id for e in champion.fitted] == list(champion.source.record.fitted)


def test_held_out_errors_are_those_that_the_validation_logged(champion: Subject) -> None:
    """The log has the means of each kind of fold, and the report makes them from the residuals of single runs. The
    shipped ones are of its only call, with 300 candidates a fold: the run had 1,000 (docs/results.md)."""
    (call,) = read_journal(resources.files("seeds") / "champion" / "validate.jsonl")  # type: ignore[arg-type]
    assert (call["call"], call["budget"]) == (1, 300)
    logged = call["mean_abs_error_pct"]
    rows = held_out(champion.trust, champion.known)
    assert set(logged) == {row.kind for row in rows}
    for kind, means in logged.items():
        of_kind = [row for row in rows if row.kind == kind]
        assert len(of_kind) == means["over"]
        for name in MEANS:
            assert mean_abs([row.errors[name] for row in of_kind]) == pytest.approx(means[name], rel=1e-9)


def test_held_out_errors_are_known_whatever_the_program_is_judged_on() -> None:
    """A team judges the champion on its own runs, and still wants to know what it was fitted on and how it was held out."""
    other = [replace(e, id=f"mine-{e.id}") for e in bundled_experiments()[:1]]
    subject = subject_of("champion", Caps(), None, other)
    assert [e.id for e in subject.experiments] == [other[0].id]
    record = load("champion").record
    assert record and {e.id for e in subject.fitted} >= {*record.fitted}  # and runs with the same measurements
    assert len(held_out(subject.trust, subject.known)) >= len(record.fitted)


def test_figures_of_errors_name_the_worst_and_leave_out_what_was_not_observed() -> None:
    runs = bundled_experiments()[:3]
    f = figures_of(list(zip(runs, [2.0, -8.0, None], strict=True)))
    assert (f.runs, f.mean, f.median, f.worst, f.worst_in) == (2, 5.0, 5.0, -8.0, runs[1].id)


def test_constants_are_classified_by_what_they_multiply() -> None:
    program = parse(PROGRAM)
    kinds = {c.name: c.kind for c in classified(program)}
    wanted = zip(
        ["gemm", "bytes", "request", "few", "base", "cycles"],
        (KERNEL, DATASHEET, STEP, SHAPE, HOST, OWN_STEP),
        strict=True,
    )
    assert kinds == dict(wanted)
    assert [c.position for c in classified(program)] == list(range(6))
    assert any("b.kernel_lm_head_us" in text for text in bare_terms(program))
    assert not any("b.kernel_gemm_us" in text for text in bare_terms(program))


def step_us(program: Program) -> float:
    deployments = deployments_in_order(bundled_experiments()[:1])
    row = raw_row([Active(1, 500, 1)] * 8)[None]
    return float(deployments.bind(assemble(complete(program)), complete(program).theta).steps_us(row)[0, 0])


def test_kernels_are_scaled_and_nothing_else() -> None:
    both = "def step_time(b, s, *, base: us = 700.0): return b.kernel_gemm_us + b.kernel_lm_head_us + base"
    branch = "def step_time(b, s): return b.kernel_gemm_us if b.kernel_gemm_us > b.kernel_lm_head_us else 0"
    plain, scaled = step_us(parse(both)), step_us(kernels_times(parse(both), 1.1))
    assert scaled - 700.0 == pytest.approx(1.1 * (plain - 700.0), rel=1e-9)
    assert step_us(kernels_times(parse(branch), 2.0)) == pytest.approx(2.0 * step_us(parse(branch)), rel=1e-9)
    assert step_us(steps_longer(parse(both), 250.0)) == pytest.approx(plain + 250.0, rel=1e-9)
    assert step_us(constants_times(parse(both), [0], 2.0)) == pytest.approx(plain + 700.0, rel=1e-9)


def test_runs_under_a_changed_engine_move_as_the_prediction_does(champion: Subject) -> None:
    program, e = champion.source.complete, fittable(bundled_experiments())[0]
    (same,) = under([e], program, program)
    assert same.observed == e.observed
    slower = kernels_times(program, 1.1)
    (moved,) = under([e], program, slower)
    before, after = (predictions(p, score_set([e]))[0].predicted.summary for p in (program, slower))
    assert moved.observed and e.observed and moved.observed.summary and e.observed.summary and before and after
    ratio = after.e2e_ms.mean / before.e2e_ms.mean  # type: ignore[operator]
    assert moved.observed.summary.e2e_ms.mean == pytest.approx(ratio * e.observed.summary.e2e_ms.mean)  # type: ignore[operator]
    assert moved.observed.summary.e2e_ms.p90 != e.observed.summary.e2e_ms.p90
    assert moved.observed.summary.completed == e.observed.summary.completed
    # a step of which nine tenths are kernels is about a tenth longer
    assert 1.05 < ratio < 1.2


def test_terms_without_a_constant_are_listed_one_by_one_and_only_they_are_scaled(champion: Subject) -> None:
    """Of the champion's, every kernel but those of gemm, router, small and moe_quantized, which have a factor; and the
    host's times of a step, which are priors."""
    terms = "allreduce_us, decode_attention_us, elementwise_us, lm_head_us, moe_us, prefill_attention_us, sampler_us"
    assert sorted(bare_terms(champion.source.complete)) == [
        *(f"b.kernel_{x}" for x in terms.split(", ")),
        "s.issue_us",
        "s.schedule_us",
    ]
    head = "def step_time(b, s, *, c: one = 0.5, base: us = 700.0):"
    program = parse(f"{head} x = b.kernel_gemm_us; return c * (x + b.kernel_sampler_us) + x + base")
    by_hand = parse(f"{head} return c * (b.kernel_gemm_us + b.kernel_sampler_us) + 2 * b.kernel_gemm_us + base")
    assert bare_terms(program) == ["b.kernel_gemm_us"]
    assert step_us(bare_times(program, 2.0)) == pytest.approx(step_us(by_hand), rel=1e-12)
    assert step_us(bare_times(program, 2.0)) > step_us(program) + 100.0
    choice = "def step_time(b, s, *, c: one = 0.5): return max(b.decode_reqs * (c * b.kernel_gemm_us + {}), 1)"
    product = parse(choice.format("b.kernel_lm_head_us"))
    doubled = parse(choice.format("2 * b.kernel_lm_head_us"))
    assert step_us(bare_times(product, 2.0)) == pytest.approx(step_us(doubled), rel=1e-12)


def evidence(subject: Subject, **changes: Any) -> Evidence:
    """Of the subject on its first clean run, changed so."""
    return Evidence(replace(subject, **{"experiments": subject.clean[:1], **changes}), Here(Line(True)))


def longer(e: Experiment) -> Experiment:
    """The run as measured to take half as long again: the record has the digest of the other."""
    assert e.observed is not None and e.observed.summary is not None
    summary = replace(e.observed.summary, e2e_ms=Statistic(mean=1.5 * (e.observed.summary.e2e_ms.mean or 0.0)))
    return replace(e, observed=replace(e.observed, summary=summary))


def test_runs_are_enough_from_where_on_no_error_is_a_tenth_larger() -> None:
    for means, needed in (
        (((1, 3.0), (2, 2.2), (4, 2.1), (None, 2.0)), 2),
        (((1, 2.0), (2, 4.0), (4, 2.1), (None, 2.0)), 4),  # a lucky single run is not enough if two are worse
        (((1, 3.0), (2, 2.9), (None, 2.0)), None),
        (((None, 2.0),), None),
        (((1, None), (2, 2.0), (None, 2.0)), 2),
    ):
        points = [CurvePoint(runs, 1, 1, 0, {}, {"e2e": error}, None) for runs, error in means]
        curve = LearningCurve("p", "k", "d", "model", {}, 7, 9, None, tuple(points))
        assert runs_needed(curve, "e2e") == needed


def trusted(**errors_pct: Mapping[str, float]) -> Trust:
    """Held-out residuals of one run for each kind of fold, with these errors in percent."""
    e = fittable(bundled_experiments())[0]
    full = dict.fromkeys(("e2e_p90", "e2e_p99", "ttft_p90", "ttft_p99"))
    spread = {**full, "e2e": 0.01, "ttft": 0.01, "itl": 0.01}
    residuals = []
    for kind, values in errors_pct.items():
        logs = {name: -math.log1p(v / 100) for name, v in values.items()}
        residuals.append(Residual(f"{kind} without x", e.id, {**full, **logs}, spread))
    return Trust("k", (), tuple(residuals))


@pytest.mark.parametrize(
    ("errors", "level"),
    [
        ({"models": {"e2e": 9.9, "ttft": 14.9, "itl": -14.9}}, GOOD),
        ({"models": {"e2e": 9.9, "ttft": -15.1, "itl": 3.0}}, CARE),
        ({"models": {"e2e": -10.1, "ttft": 1.0, "itl": 1.0}, "tp": {"e2e": 1.0, "ttft": 1.0, "itl": 1.0}}, POOR),
    ],
)
def test_the_verdict_on_accuracy_follows_its_rule(champion: Subject, errors: dict[str, Any], level: str) -> None:
    verdict = accuracy.brief(evidence(champion, trust=trusted(**errors))).verdict
    assert verdict.level == level and f"{GOOD}: " in verdict.rule


@pytest.mark.parametrize(
    ("errors", "verdict", "use"),
    [
        ({"models": {"e2e": 9.9, "ttft": 14.9, "itl": -14.9}}, ADOPT, "mean E2E, TTFT, ITL, on"),
        ({"models": {"e2e": 9.9, "ttft": -15.1, "itl": 3.0}}, WITH_CARE, "mean E2E, ITL, not TTFT, on"),
        (
            {"models": {"e2e": 9.9, "ttft": 1.0, "itl": 3.0}, "tp": {"itl": 15.1}},
            WITH_CARE,
            "mean E2E, TTFT, not ITL, on",
        ),
        ({"models": {"e2e": -10.1, "ttft": 15.1, "itl": 15.1}}, NOT, ""),
        ({}, NOT, ""),
    ],
)
def test_a_program_is_adopted_for_the_latencies_within_the_limits_everywhere(
    champion: Subject, errors: dict[str, Any], verdict: str, use: str
) -> None:
    trust = trusted(**{kind: {"e2e": 0.0, "ttft": 0.0, "itl": 0.0, **of_kind} for kind, of_kind in errors.items()})
    one = evidence(champion, trust=trust)
    made = adoption(one, [])
    assert made.verdict == verdict and made.use.startswith(use) and bool(made.use) == bool(use)


def test_a_poor_dimension_or_an_inconsistent_program_is_not_adopted_without_care(champion: Subject) -> None:
    record = champion.source.record
    assert record is not None
    one = evidence(champion, trust=trusted(**GOOD_ERRORS))
    poor = Dimension.of("workloads", "Workloads", (POOR, "s"), "r")
    assert (adoption(one, []).verdict, adoption(one, [poor]).verdict) == (ADOPT, WITH_CARE)
    source = replace(champion.source, record=replace(record, consistent=False))
    assert adoption(replace(one, subject=replace(one.subject, source=source)), []).verdict == NOT


GOOD_ERRORS = {"models": {"e2e": 1.0, "ttft": 1.0, "itl": 1.0}}


def test_a_refit_after_the_validation_is_no_better_than_with_care(champion: Subject) -> None:
    one = evidence(champion, trust=replace(trusted(**GOOD_ERRORS), data="own"))
    made = accuracy.accuracy(one)
    assert made.verdict.level == CARE and made.verdict.sentence.startswith("Not validated since it was fitted again.")
    assert not any("whose constants saw all of its runs" in text for text in made.caveats)
    assert adoption(one, []).verdict == WITH_CARE


def test_runs_that_were_not_fitted_and_are_far_off_make_the_verdict_poor(champion: Subject) -> None:
    other = (longer(champion.clean[0]),)
    verdict = accuracy.accuracy(evidence(champion, experiments=other, trust=trusted(**GOOD_ERRORS))).verdict
    assert verdict.level == POOR and "E2E on runs that it was not fitted on (3" in verdict.sentence


@pytest.mark.parametrize("validated", [True, False])
def test_errors_in_sample_beyond_the_limit_make_the_verdict_poor(champion: Subject, validated: bool) -> None:
    """Whatever was held out of an earlier fit: these constants do not even follow the run that they were fitted on."""
    other, record = longer(champion.clean[0]), champion.source.record
    assert record is not None
    fitted = replace(champion.source, record=replace(record, measured={other.id: measurement_digest(other)}))
    trust = replace(trusted(**GOOD_ERRORS), data="own") if validated else None
    one = evidence(champion, source=fitted, experiments=(other,), trust=trust)
    verdict = accuracy.accuracy(one).verdict
    assert verdict.level == POOR and "% in sample (1 run)" in verdict.sentence


def test_a_program_that_was_never_validated_is_untested(champion: Subject) -> None:
    one = evidence(champion, trust=None)
    made = accuracy.accuracy(one)
    assert adoption(one, []).verdict == NOT
    assert made.verdict.level == UNTESTED and "evolve validate" in made.verdict.sentence
    assert not any("eld out" in e.table.title or "eld-out" in e.table.title for e in made.exhibits if e.table.rows)
    assert workloads.workloads(one).verdict.level == UNTESTED


def test_a_plan_needs_the_values_that_the_experiments_page_requires() -> None:
    """The page's table is written by hand, and shown there to be right key by key."""
    needed = {key.removeprefix("experiments[].") for key in required(PLAN)} - {"version"}
    alternatives = {"workload.prompt_len"}  # or the parts of a shared prefix
    page = {key for key in LEAST if key != "workload"} | {f"workload.{k}" for k in LEAST["workload"] if k != "stages"}
    page |= {f"workload.stages[].{key}" for key in LEAST["workload"]["stages"][0]}
    assert needed == page | alternatives
    more = json.loads(json.dumps(PLAN))
    more["experiments"][0]["quality"] = "clean"
    assert required(more) == required(PLAN)


@pytest.mark.slow
def test_the_champion_comes_out_of_its_journal_again_and_so_do_its_errors(champion: Subject) -> None:
    assert champion.run and champion.source.record
    rebuilt = rebuild(champion.run, champion.run.outcomes(), champion.source.record.key)
    assert rebuilt.has and rebuilt.champion == champion.source.record.key and rebuilt.proposals == 1290
    assert not rebuild(champion.run, champion.run.outcomes(), "0" * 16).has
    assert errors_off(champion) == pytest.approx(0.0, abs=1e-9)
    changed = champion.source.complete.with_theta(tuple(1.01 * v for v in champion.source.complete.theta))
    assert (errors_off(replace(champion, source=replace(champion.source, program=changed))) or 0.0) > 0.1


def load_of_trace(tmp_path: Path, columns: str, rows: list[str]) -> dict[str, bool]:
    written(tmp_path, "t.csv", "\n".join([f"{HEAD}{columns}", *rows]))
    e = experiment(tmp_path, {"trace": "t.csv"})
    return {kind: holds(e) for kind, holds in workloads.LOADS.items()}


def test_windows_of_a_steady_trace_are_no_rates_that_change(tmp_path: Path) -> None:
    """Poisson arrivals at 5/s for 200 s have three windows; then at 5/s and 10/s."""
    gaps = np.random.default_rng(7).exponential(0.2, 1000)
    slower = np.concatenate([gaps[:500], gaps[500:] / 2])
    for each, changing in ((gaps, False), (slower, True)):
        loads = load_of_trace(tmp_path, "", [f"{t:.6f},100,5" for t in np.cumsum(each)])
        assert loads["rates that change during the run"] == changing
        assert len(experiment(tmp_path, {"trace": "t.csv"}).workload.stages) > 1


def test_prompts_of_a_trace_that_never_repeat(tmp_path: Path) -> None:
    for columns, ends, repeats in (
        ("", ["", ""], False),
        (",prompt", [",1", ",2"], False),
        (",prompt", [",1", ",1"], True),
        (",prefix_group,prefix_len", [",1,64", ",1,64"], False),  # they only begin alike
    ):
        loads = load_of_trace(tmp_path, columns, [f"{i},100,5{end}" for i, end in enumerate(ends)])
        assert loads["prompts that never repeat"] != repeats
    # so do prompts in pieces, as a whole
    for again, repeats in ([0, 1, 3], False), ([0, 1, 2], True):
        row = {"timestamp": 0, "input_length": 1400, "output_length": 5}
        written(tmp_path, "m.jsonl", lines([row | {"hash_ids": ids} for ids in ([0, 1, 2], again)]))
        e = experiment(tmp_path, {"trace": "m.jsonl"})
        assert workloads.LOADS["prompts that never repeat"](e) != repeats
