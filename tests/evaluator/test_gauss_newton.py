"""The compiled parts of a fit against independent ones: SciPy's bounded least squares, and differences."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from laws import KERNELS, law
from scipy.optimize import lsq_linear

from evaluator.fit import lanes
from evaluator.fit.fit import fit_set
from evaluator.fit.gauss_newton import boxed
from evaluator.fit.machine import (
    AT_CHUNK,
    AT_EARLIER,
    AT_N,
    AT_PROMPT,
    AT_PROMPTS,
    AT_SHORTEST,
    AT_SPAN,
    BINS,
    differentiate,
    put_deployment,
    step_us,
    varying,
)
from evaluator.fit.methods import solve
from evaluator.fit.problem import problem_of, with_slopes
from simulator.clock.bind import bind
from simulator.clock.vm import run
from simulator.language.complete import complete
from simulator.language.ir import CALLS, Program
from simulator.language.opcodes import OPERATIONS, VALUES, assemble
from simulator.language.parse import parse
from simulator.schema import RAW
from simulator.serving.bundled import SERVING, bundled_experiments, bundled_file
from simulator.serving.experiment import Experiment

RUNS = {e.id: e for e in bundled_experiments()}
SOME = [RUNS[f"{m}-{w}"] for m in ("llama-2-7b-tp1", "mixtral-8x7b-tp2") for w in ("codegen", "roleplay")]


def solved(a: np.ndarray, b: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    n = a.shape[1]
    y, work = np.zeros(n), np.zeros(n)
    assert boxed(a.T @ a, a.T @ b, low, high, y, np.zeros(n, np.int64), np.zeros((n, n)), work)
    return y


def test_bounded_least_squares_equal_scipys_on_hundreds_of_random_problems() -> None:
    """Columns nearly parallel, bounds on one side or both, some at the solution, some without room."""
    rng = np.random.default_rng(0)
    for case in range(600):
        n = int(rng.integers(1, 12))
        a = rng.standard_normal((n + int(rng.integers(0, 20)), n))
        if case % 3 == 0 and n > 1:
            a[:, -1] = a[:, 0] + 1e-2 * rng.standard_normal(len(a))
        a = np.vstack([a, 1e-2 * np.eye(n)])  # as the damping of a step does
        b = rng.standard_normal(len(a)) * 3.0
        low = np.where(rng.random(n) < 0.3, -np.inf, -rng.random(n))
        high = np.where(rng.random(n) < 0.5, np.inf, rng.random(n) * (case % 5))
        y = solved(a, b, low, high)
        assert (y >= low - 1e-9).all() and (y <= high + 1e-9).all()
        ours = np.square(a @ y - b).sum()
        inside = np.maximum(high, low + 1e-12)  # SciPy wants room between the bounds
        theirs = 2.0 * lsq_linear(a, b, (low, inside), method="bvls", tol=1e-14, max_iter=1000).cost
        assert ours <= theirs * (1.0 + 1e-7) + 1e-9, case


def test_a_matrix_that_is_not_positive_definite_is_refused() -> None:
    n = 2
    bounds = np.full(n, -1.0), np.full(n, 1.0)
    state = np.zeros(n, np.int64), np.zeros((n, n)), np.zeros(n)
    assert not boxed(np.array([[1.0, 2.0], [2.0, 1.0]]), np.ones(n), *bounds, np.zeros(n), *state)


# every operation whose slope is not that of a sum, on both sides of its guards
EXPRESSIONS = """
c * b.tokens / d; -c + d * c; max(c, d) * s.layers; min(c, d) * s.layers; sqrt(c * b.tokens); sqrt(c - 100.0)
log(c + d); log1p(c * d); exp(d / c); exp(c * 1000.0); pow(c, d); pow(b.tokens, d); pow(c - 100.0, d)
softplus(c * d); softplus(-c / d); softplus(c * 1000.0); softplus(-c * 1000.0)
c if c * d > 1.0 else d * d; c * c if c * d < 1.0 else d * d * d; c / (d - d)
c * b.kernel_gemm_us + d * b.kernel_moe_us; c * b.experts_fraction + d * b.graph_tokens
"""


def test_the_slopes_of_every_function_are_compared() -> None:
    """A function without a slope of its own would leave its constants where they start, silently."""
    assert set(CALLS) <= set(re.findall(r"(\w+)\(", EXPRESSIONS))


@pytest.mark.parametrize("expression", re.split("[;\n]", EXPRESSIONS.strip()))
def test_slopes_of_opcodes_equal_differences(expression: str) -> None:
    program = complete(parse(f"def step_time(b, s, *, c=2.3, d=0.7): return c + d + ({expression})"))
    code = assemble(program)
    which, _, step = varying(code)

    def value(c: float, d: float) -> np.ndarray:
        v = bind(code, (c, d), SOME[2].facts).values
        v[code.raw : code.raw + len(RAW)] = np.arange(3, 3 + len(RAW))
        run(code.rows, code.static, code.step, v)
        return v

    slopes = np.zeros((code.slots, 2))
    np.fill_diagonal(slopes, 1.0)
    differentiate(code.rows, which, 0, step, value(2.3, 0.7), slopes)
    slot, h = code.results[0], 1e-6
    ends = [value(2.3 + x, 0.7 + y)[slot] for x, y in ((h, 0.0), (-h, 0.0), (0.0, h), (0.0, -h))]
    differences = (ends[0] - ends[1]) / (2 * h), (ends[2] - ends[3]) / (2 * h)
    assert slopes[slot] == pytest.approx(differences, rel=1e-6, abs=1e-6)


def test_steps_of_closed_loads_are_those_of_all_rows() -> None:
    """A fit runs the rows that depend on constants alone, over all steps at once. Times and slopes are equal to the last
    bit."""
    closed = [e for e in bundled_file(SERVING) if e.workload.closed][::60]
    data = fit_set(closed, in_steps=True)
    for expression in re.split("[;\n]", EXPRESSIONS.strip()):
        program = complete(parse(f"def step_time(b, s, *, c=2.3, d=0.7): return c + d + ({expression})"))
        problem = problem_of(program, data)
        m, lane, slot = problem.machine, problem.machine.lane, problem.machine.results[0]
        for i in range(len(closed)):
            put_deployment(m, problem.start, i)
            differentiate(m.rows, m.which, 0, m.static_which, m.v, m.d)
            lanes.put_alike(lane, m.v)
            lanes.times(lane, i, int(m.table[i, BINS]))
            lanes.slopes(lane, int(m.table[i, BINS]), m.d)
            for k in range(int(m.table[i, BINS])):
                at = m.bins[i, k, [AT_N, AT_PROMPTS, AT_CHUNK, AT_EARLIER, AT_PROMPT, AT_SHORTEST, AT_SPAN]]
                us = step_us(m.rows, m.static, m.step, m.raw, slot, m.v, *at)
                assert lane.values[lane.result, k] == us, expression
                differentiate(m.rows, m.which, m.static_which, m.step_which, m.v, m.d)
                at_k = slice(lane.first, lane.last)
                assert lane.slopes[lane.result, at_k, k].tolist() == m.d[slot, at_k].tolist(), expression


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in ("curve", "forest")])
def test_an_operation_reads_as_many_operands_as_it_says(name: str) -> None:
    """Those of a curve and of a forest are blocks of values: it says only that the first is one."""
    number, few = OPERATIONS.index(name), (0.0, 1.0, 3.0, 9.0)

    def result(*operands: float) -> float:
        v = np.array([*operands, 0.0])
        run(np.array([[number, 3, 0, 1, 2]], dtype=np.uint32), 0, 1, v)
        return float(v[3])

    results = np.array([[[result(x, y, z) for z in few] for y in few] for x in few])
    read = [bool((np.ptp(results, axis=place) > 0.0).any()) for place in range(3)]
    assert read == [place < VALUES[number] for place in range(3)]


FULL = parse(
    """
def step_time(b, s, *, weights: one = 1.15, kv: one = 1.4, layer: us = 40.0, tokens: us/token = 30.0, floor: us = 900.0):
    return max(floor, weights * b.weight_read_us + kv * b.kv_read_us) + layer * s.layers + tokens * b.prefill_tokens


def queueing_time(r, s, *, base: us = 3000.0, cycles: one = 0.6, length: us/token = 1.5):
    return base + cycles * s.reference_step_us + length * r.input_len


def output_token_time(s, *, token: us = 9.0): return token


def completion_time(s, *, done: us = 50.0): return done
"""
)


def slowed(e: Experiment, share: float) -> Experiment:
    """The experiment at a share of its rates."""
    stages = tuple(replace(stage, rate=stage.rate * share) for stage in e.workload.stages)
    return replace(e, workload=replace(e.workload, stages=stages))


@pytest.mark.parametrize("program", [FULL, KERNELS])
@pytest.mark.parametrize("fixed_load", [True, False])
@pytest.mark.parametrize(
    ("rate", "factor"),
    [(1.0, 1.0), (1.0, 3.0), (0.01, 1.0)],
    ids=("as measured", "saturated", "with less than a decode"),
)
def test_slopes_of_mean_fields_are_differences(program: Program, fixed_load: bool, rate: float, factor: float) -> None:
    """`factor`: of the step time."""
    problem = problem_of(program, fit_set([slowed(e, rate) for e in SOME]))
    phi = problem.start * factor
    size = problem.scales(phi)[0]
    slopes = with_slopes(problem.machine, phi, fixed_load)[1][problem.free]
    assert slopes.shape == (phi.size, *problem.data.stages.observed_ms.shape)
    for j in range(phi.size):
        h = 1e-6 * max(abs(phi[j]), size[j])
        up, down = phi.copy(), phi.copy()
        up[j], down[j] = phi[j] + h, phi[j] - h
        differences = (problem.predict(up, fixed_load) - problem.predict(down, fixed_load)) / (2 * h)
        scale = np.abs(problem.predict(phi, fixed_load)) / size[j]
        assert (np.abs(slopes[j] - differences) < 1e-5 * scale).all(), j


def test_the_running_decodes_solve_littles_law() -> None:
    """n = rate x (output - 1) x mean step time: the ITL is the mean step time where nothing is added per token."""
    text = "def step_time(b, s, *, base: us = 9000.0): return base + 50.0 * b.decode_reqs"
    problem = problem_of(law(text), fit_set(SOME))
    itl_us = problem.predict(problem.start)[:, 2] * 1e3
    rate, output = problem.machine.table[:, 0], problem.machine.table[:, 1]
    n = rate * (output - 1.0) * itl_us
    # without prompts in between, base / (1 - 50 us x arrivals); a cold cache and prompts only add to it
    assert (itl_us >= 9000.0 + 50.0 * n - 1e-6).all() and (itl_us <= 1.02 * (9000.0 + 50.0 * n)).all()


def test_a_solution_is_no_worse_than_its_start_and_within_bounds() -> None:
    problem = problem_of(FULL, fit_set(SOME))
    scales = problem.scales(problem.start)
    goal = problem.goal(problem.data.ratio, problem.prior(scales))
    phi, reached = solve(problem, problem.start, goal, scales[0])
    assert reached == problem.objective(phi, goal) < problem.objective(problem.start, goal)
    assert (phi >= problem.low).all() and (phi <= problem.high).all()
    held, _ = solve(problem, problem.start, goal, scales[0], only=np.array([1]))
    assert [j for j in range(phi.size) if held[j] != problem.start[j]] == [1]
