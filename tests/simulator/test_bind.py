"""Deployments prepared together: every program has the same values on each of them as on that deployment alone."""

from __future__ import annotations

import numpy as np
import pytest
from drawn_programs import FACTS, facts_maps, programs
from examples import daily
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.judge.sweep import edges
from simulator.clock.bind import Deployments, base_values, bind
from simulator.common.errors import InputError
from simulator.language.ir import Program
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.serving.engine import Engine
from simulator.serving.facts import Facts
from simulator.serving.known import facts_of

LENGTHS = (1.0, 512.0, 131072.0)
KERNELS = parse("def step_time(b, s, *, c=3.0): return b.kernel_us + c * s.layers")
BARE = facts_of("llama-3.1-8b", "H100-NVL", Engine())  # a GPU without measured kernels


@settings(max_examples=daily(40))
@given(programs(), st.lists(facts_maps, min_size=1, max_size=3))
def test_several_deployments_at_once_are_each_alone(program: Program, several: list[Facts]) -> None:
    code, deployments = assemble(program), Deployments({str(i): facts for i, facts in enumerate(several)})
    assert deployments.base(code).tobytes() == np.stack([base_values(code, facts) for facts in several]).tobytes()
    together, raw = deployments.bind(code, program.theta), edges()[1]
    steps_us, queueing_us = together.steps_us(raw), together.queueing_us(np.array(LENGTHS))
    for d, facts in enumerate(several):
        alone = bind(code, program.theta, facts)
        np.testing.assert_array_equal(steps_us[d], alone.steps_us(raw))
        np.testing.assert_array_equal(queueing_us[d], [alone.queueing_us(int(n)) for n in LENGTHS])
        np.testing.assert_array_equal(together.output_token_us()[d], alone.output_token_us())
        np.testing.assert_array_equal(together.completion_us()[d], alone.completion_us())
    np.testing.assert_array_equal(together.steps_us(raw), steps_us)  # the scratch space left nothing behind


def test_the_curves_of_every_deployment_are_its_own() -> None:
    several = {f"tp{tp}": facts_of("mixtral-8x7b", "H100", Engine(tensor_parallel=tp)) for tp in (2, 4)}
    code = assemble(KERNELS)
    base = Deployments(several).base(code)
    assert len(code.curves) == 13 and not np.array_equal(base[0], base[1])
    assert base.tobytes() == np.stack([base_values(code, facts) for facts in several.values()]).tobytes()


def test_only_a_program_that_reads_measured_kernels_needs_them() -> None:
    deployments = Deployments({"measured": FACTS, "bare": BARE})
    with pytest.raises(InputError) as alone:
        base_values(assemble(KERNELS), BARE)
    for _ in range(2):  # asked again, it refuses again
        with pytest.raises(InputError, match="this deployment has none: choose a GPU with tables") as together:
            deployments.base(assemble(KERNELS))
        assert str(together.value) == str(alone.value)
    plain = parse("def step_time(b, s, *, c=3.0): return c * s.layers")
    us = deployments.bind(assemble(plain), plain.theta).steps_us(edges()[1])
    assert us[:, 0].tolist() == [3.0 * FACTS["layers"], 3.0 * BARE["layers"]]
