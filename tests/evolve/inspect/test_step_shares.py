"""The terms of a step: what each adds, and that together they are the step."""

from __future__ import annotations

import numpy as np
import pytest

from evolve.inspect.step_shares import BATCH_SIZES, CONTEXT, StepShares, deployment_name, step_shares
from evolve.run.program import load
from simulator.clock.bind import bind
from simulator.clock.fields import Active, raw_row
from simulator.language.ir import Program
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.serving.bundled import bundled_experiments


def shares_of(text: str) -> StepShares:
    return step_shares(parse(text), bundled_experiments()[:1])[0]


def of_one_and_four(us: tuple[float, ...]) -> tuple[float, float]:
    return us[BATCH_SIZES.index(1)], us[BATCH_SIZES.index(4)]


def steps_us(program: Program, name: str) -> list[float]:
    """The step times by the opcodes, as replays compute them."""
    experiment = next(e for e in bundled_experiments() if deployment_name(e) == name)
    bound = bind(assemble(program), program.theta, experiment.facts)
    return [bound.step_us(raw_row([Active(1, CONTEXT, 1)] * n)) for n in BATCH_SIZES]


@pytest.mark.parametrize("seed", ["champion", "kernels", "threshold", "regimes"])
def test_the_terms_add_up_to_the_step(seed: str) -> None:
    program = load(seed).complete
    for shares in step_shares(program, bundled_experiments()):
        assert np.sum(shares.us, axis=0) == pytest.approx(steps_us(program, shares.deployment), rel=1e-9)


def test_a_term_is_in_microseconds_of_its_batch() -> None:
    shares = shares_of("def step_time(b, s, *, c=3.0, d=0.5): return c * b.decode_reqs + d * b.kv_decode_sum")
    assert shares.terms == ("c * b.decode_reqs", "d * b.kv_decode_sum")
    wanted = np.array([[3.0, 12.0], [512.0, 2048.0]])  # 3 n, and 0.5 * 1,024 n
    assert np.array([*map(of_one_and_four, shares.us)]) == pytest.approx(wanted)


def test_only_the_larger_side_of_a_maximum_has_a_share() -> None:
    shares = shares_of("def step_time(b, s, *, c=5.0, d=2.0): return max(c + d, d * b.decode_reqs)")
    assert dict(zip(shares.terms, map(of_one_and_four, shares.us), strict=True)) == {
        "c": pytest.approx((5.0, 0.0)),  # 7 against 2 at one decode, 7 against 8 at four
        "d": pytest.approx((2.0, 0.0)),
        "d * b.decode_reqs": pytest.approx((0.0, 8.0)),
    }
    # a term that no decode step has
    assert shares_of("def step_time(b, s, *, c=5.0, d=2.0): return c + d * b.prefill_tokens").terms == ("c",)


def test_each_deployment_comes_once() -> None:
    experiments = bundled_experiments()
    names = [shares.deployment for shares in step_shares(load("champion").complete, experiments)]
    assert names == list(dict.fromkeys(map(deployment_name, experiments)))
    assert len(names) < len(experiments)
