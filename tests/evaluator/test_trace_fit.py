"""Traces with latencies in fits: the mean field of a mix, cells, parts, and errors of single requests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from laws import constants
from loads import workload

from evaluator.fit.fit import fit, fit_scoped, fit_set
from evaluator.fit.loss import cells_of, replayed_ms, standard_errors_ms
from evaluator.fit.machine import BIN_COMPUTED, BIN_SHARE, BIN_UNCACHED, BINS, OUTPUT, SHORTEST, SPAN
from evaluator.fit.meanfield import MOST_BINS
from evaluator.fit.problem import problem_of, with_slopes
from evaluator.fit.replayed import clusters_of, irregularity, observations, residuals
from evaluator.fit.uncertainty import LEAST_CLUSTERS, certainties
from evaluator.metrics import observe_all, run_means_ms
from evaluator.requests import singles
from evolve.run.program import load
from simulator.clock.replay import Replay, replay
from simulator.language.complete import complete
from simulator.language.parse import parse
from simulator.serving.bundled import bundled_experiments
from simulator.serving.distribution import Distribution
from simulator.serving.experiment import Experiment
from simulator.serving.observations import measured
from simulator.serving.trace import Recorded, Trace, windows
from simulator.serving.workload import Arrival, Stage, Workload, part_of, stages_of

TRUTH = complete(
    parse("""
def step_time(b, s, *, base=4000.0, each=25.0, chunk=30.0, kv=0.35):
    return base + each * b.decode_reqs + chunk * b.prefill_tokens + kv * b.kv_sum

def queueing_time(r, s, *, alpha=3000.0, per=2.0):
    return alpha + per * r.input_len
""")
)
BASE = {e.id: e for e in bundled_experiments()}["llama-2-7b-tp1-general"]


def drawn(burst: int, requests: int = 2400) -> tuple[Experiment, Replay]:
    """A run of lognormal lengths, at 6 requests/s in bursts, and its replay under TRUTH."""
    load = workload(
        stages=(Stage(6.0, requests / 6.0),),
        arrival=Arrival("burst", size=burst) if burst > 1 else Arrival("poisson"),
        question_len=Distribution("lognormal", mean=400.0, sd=400.0, low=1.0, high=3000.0),
        output_len=Distribution("lognormal", mean=120.0, sd=100.0, low=2.0, high=800.0),
    )
    e = replace(BASE, workload=load, observed=None)
    return e, replay(e, TRUTH, 7)


def traced(e: Experiment, run: Replay, factor: float | np.ndarray = 1.0) -> Experiment:
    """The run as a trace of what its replay gives, times a factor."""
    requests = replace(run.requests, stage=windows(run.requests.arrival_us))
    trace = Trace("t", "d", requests, Recorded(run.e2e_us / 1e3 * factor, run.ttft_us / 1e3 * factor))
    stages = stages_of(trace)
    return replace(e, workload=Workload("t", stages, trace, True, None), observed=measured(trace, len(stages)))


@pytest.fixture(scope="module")
def calm() -> Experiment:
    return traced(*drawn(1))


def test_the_histogram_keeps_the_means_of_the_mix(calm: Experiment) -> None:
    data, source = fit_set([calm]), calm.workload.source
    assert isinstance(source, Trace)
    r = source.requests
    for i, row in enumerate(data.stages.table):
        bins = data.stages.bins[i][: int(row[BINS])]
        inside = r.stage == i
        inputs, decodes = r.input_len[inside].astype(float), r.output_len[inside] - 1.0
        assert 8 < len(bins) <= MOST_BINS
        assert bins[:, BIN_SHARE].sum() == pytest.approx(1.0) and bins[:, BIN_COMPUTED].sum() == pytest.approx(1.0)
        assert bins[:, BIN_COMPUTED] @ bins[:, BIN_UNCACHED] == pytest.approx(inputs.mean())  # nothing is shared
        assert row[OUTPUT] - 1.0 == pytest.approx(decodes.mean())
        # A decode is met once for each of its steps, at the context it has then.
        contexts = np.concatenate([n + np.arange(int(k)) for n, k in zip(inputs, decodes, strict=True)])
        assert row[SHORTEST] + row[SPAN] / 2.0 == pytest.approx(contexts.mean(), rel=1e-3)
        assert row[SPAN] / np.sqrt(12.0) == pytest.approx(contexts.std(), rel=1e-3)


def test_slopes_of_a_mix_are_those_of_its_prediction(calm: Experiment) -> None:
    problem = problem_of(TRUTH, fit_set([calm]))
    phi = np.array(TRUTH.theta)
    slopes = with_slopes(problem.machine, phi)[1][problem.free]
    for k, j in enumerate(problem.free):
        step = 1e-4 * max(abs(phi[j]), 1.0)
        ends = [problem.predict(np.where(np.arange(phi.size) == j, phi + way * step, phi)) for way in (-1.0, 1.0)]
        np.testing.assert_allclose(slopes[k], (ends[1] - ends[0]) / (2.0 * step), rtol=2e-3, atol=1e-9)


def test_only_a_calm_trace_is_near_the_mean_field(calm: Experiment) -> None:
    sizes = []
    for e in (calm, traced(*drawn(20))):
        data = fit_set([e])
        problem = problem_of(TRUTH, data)
        phi = np.array(TRUTH.theta)
        sizes.append(irregularity(problem, problem.replay(phi, False) / problem.predict(phi)))
        assert np.abs(residuals(problem, phi)).max() < 1e-9  # at the truth every cell is as it was
    assert sizes[0] < 0.1 < sizes[1]  # IRREGULAR lies between them


def test_a_trace_of_bursts_is_fitted_by_replays() -> None:
    e = traced(*drawn(20), 1.0 + 0.03 * np.random.default_rng(1).standard_normal(2400))
    data = fit_set([e])
    start = TRUTH.with_theta((8000.0, 5.0, 10.0, 0.1, 0.0, 0.0, *TRUTH.theta[6:]))
    by_mean_field, by_replays = fit(start, data, irregular=np.inf), fit(start, data)
    problem = problem_of(TRUTH, data)
    rough, fine = (residuals(problem, np.array(f.program.theta)) for f in (by_mean_field, by_replays))
    assert np.square(fine).sum() < 0.5 * np.square(rough).sum()
    assert by_replays.program.theta[0] == pytest.approx(4000.0, rel=0.05)  # 200 us: some three standard errors


# Constants of the champion that only experts, small kernels and Blackwell show. `batch_size_limit` chooses between two
# terms of experts that are spread over GPUs.
UNSHOWN = {"kernel_moe_quantized", "kernel_small", "is_blackwell", "is_spread", "is_spread_allreduce_rms_fusion"}
UNSHOWN |= {"experts_fraction_layers_is_spread", "experts_fraction_layers_is_spread_allred", "batch_size_limit"}


def test_a_fit_by_replays_keeps_what_no_run_shows() -> None:
    """Rounding would move others along with such a constant, and the replay's jumps would count as its slopes."""
    champion = load("champion").complete
    e = traced(*drawn(20), 1.05 + 0.03 * np.random.default_rng(1).standard_normal(2400))
    problem = problem_of(champion, fit_set([e]), fitted_before=True)
    fitted = fit_scoped(problem)
    before, after = constants(champion), constants(fitted.programs[0])
    assert after["gemm"] != before["gemm"]
    assert {name: after[name] for name in UNSHOWN} == {name: before[name] for name in UNSHOWN}
    assert {c.name for c in certainties(problem, fitted.phi) if np.isinf(c.standard_error)} == UNSHOWN


def test_cells_hold_the_means_of_their_requests_and_show_their_noise(calm: Experiment) -> None:
    source = calm.workload.source
    assert isinstance(source, Trace) and source.recorded
    run = replay(calm, TRUTH, 1)
    cells = cells_of(run, source.recorded)
    assert cells is not None
    np.testing.assert_allclose(replayed_ms(run, cells), cells.observed_ms, rtol=1e-12)
    assert np.abs(cells.noise).max() < 1e-12  # the replay is what was recorded
    for cell in (0, len(cells.window) - 1):
        members = cells.of == cell
        assert cells.observed_ms[cell, 0] == pytest.approx(source.recorded.e2e_ms[members].mean())
    # Independent noise of 10 %: the mean of n requests has a tenth of their root mean square over sqrt(n).
    rng = np.random.default_rng(3)
    noisy = Recorded(source.recorded.e2e_ms * (1 + 0.1 * rng.standard_normal(len(cells.of))), source.recorded.ttft_ms)
    shown = standard_errors_ms(run, noisy, np.zeros(len(cells.of), int), 1)[0, 0]
    expected = 0.1 * np.sqrt(np.square(source.recorded.e2e_ms).mean() / len(cells.of))
    assert shown == pytest.approx(expected, rel=0.7)  # from ten batches: chi of 9 degrees of freedom, 3 deviations


def test_errors_are_shared_within_windows_when_there_are_few_experiments(calm: Experiment) -> None:
    data = fit_set([calm])
    count = len(calm.workload.stages)
    assert count >= LEAST_CLUSTERS
    clusters = clusters_of(data, LEAST_CLUSTERS)
    assert len(clusters) == observations(data) and len(np.unique(clusters)) == count
    assert len(np.unique(clusters_of(data, count + 1))) > count  # then within cells


def test_a_part_is_replayed_with_what_came_before_it(calm: Experiment) -> None:
    whole = replay(calm, TRUTH, 1)
    count = len(whole.requests)
    for part, first, last in (("train", 0, 1440), ("valid", 1440, 1920), ("test", 1920, 2400)):
        load = part_of(calm.workload, part)
        of_part = replay(replace(calm, workload=load), TRUTH, 1)
        assert len(of_part.requests) == last <= count
        assert int((of_part.requests.stage >= 0).sum()) == last - first
        if part == "test":  # nothing comes after it that could delay it
            np.testing.assert_array_equal(of_part.e2e_us, whole.e2e_us)
            mean_ms = whole.e2e_us[first:].mean() / 1e3
            assert run_means_ms(of_part)[0] == pytest.approx(mean_ms)
            summary = observe_all(of_part).summary
            assert summary is not None and summary.e2e_ms.mean == pytest.approx(mean_ms)
        assert round(sum(s.rate * s.duration_s for s in load.stages)) == last - first


def test_errors_of_single_requests_are_those_of_their_latencies(calm: Experiment) -> None:
    source = calm.workload.source
    assert isinstance(source, Trace) and source.recorded
    run = replay(calm, TRUTH, 1)
    slower = Recorded(source.recorded.e2e_ms * 1.25, source.recorded.ttft_ms * 1.25)
    found = singles(run, slower)
    assert found is not None and found.requests == len(run.requests)
    for single in found.latencies.values():  # predicted / observed = 0.8 for each request
        assert single.mean_abs_pct == pytest.approx(20.0) and single.median_abs_pct == pytest.approx(20.0)
        assert single.r == pytest.approx(1.0)
        assert list(single.quantiles_pct.values()) == pytest.approx([-20.0] * 3)
    assert sum(b.requests for b in found.bins) == found.requests and len(found.bins) == 16
    assert all(error == pytest.approx(-20.0) for b in found.bins for error in b.error_pct.values())
    at_once = singles(run, Recorded(slower.e2e_ms, np.where(np.arange(len(run.requests)) == 0, 0.0, slower.ttft_ms)))
    assert at_once is not None
    e2e, ttft, _ = at_once.latencies.values()
    assert e2e.mean_abs_pct == ttft.mean_abs_pct == pytest.approx(20.0)  # no error is relative to 0
    nothing = Recorded(np.full(len(run.requests), np.nan), slower.ttft_ms)
    assert singles(run, nothing) is None
