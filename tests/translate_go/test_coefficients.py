"""The defaults.yaml fragment: its numbers are the program's own, as the host's dot product has them."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from random import Random

import pytest
import yaml
from grown import RUNS, grown

from simulator.clock.bind import bind
from simulator.language.affine import affine
from simulator.language.complete import complete
from simulator.language.evaluate import value
from simulator.language.ir import Expr, Program
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.language.reader import Scope, expression
from translate_go import Deployment
from translate_go.coefficients import NotAffine, coefficients, defaults_yaml
from translate_go.vectors import batch_fields, overhead_us, random_batch, step_us

FACTS = RUNS[3].facts
HERE = Deployment("here", FACTS, "Org/Model", "H100-SXM-80GB", "0.15.1")


def read(text: str) -> tuple[Expr, dict[str, float]]:
    """A feature and the numbers in it."""
    scope = Scope(("b", "r", "s"), {}, "feature")
    feature = expression(ast.parse(text, mode="eval").body, scope)
    return feature, {c.name: c.value for c in scope.constants.values()}


def step(formula: str, head: str = "") -> Program:
    return complete(parse(f"def step_time(b, s{', *, ' + head if head else ''}): return {formula}"))


def test_the_dot_product_is_the_program() -> None:
    rng, compared = Random(4), 0
    batches = [batch_fields(random_batch(rng), FACTS) for _ in range(20)]
    for seed in range(300):
        program = grown(seed)
        try:
            beta = coefficients(program.function("step_time"), FACTS)
        except NotAffine:
            continue
        features = {name: read(name) for name in beta if name}
        for fields in batches:
            product = beta[""].value + sum(
                beta[name].value * value(f, numbers, fields) for name, (f, numbers) in features.items()
            )
            assert product == pytest.approx(step_us(program, fields), rel=1e-9)
        compared += 1
    assert compared > 25


def test_alpha_is_the_delay_before_the_queue_on_this_deployment() -> None:
    text = """
def step_time(b, s, *, a: us = 900.5, c: us/token = 2.0): return a + c * b.tokens
def queueing_time(r, s, *, n: one = 1.5, k: us/token = 0.25): return n * s.reference_step_us + k * r.input_len
def output_token_time(s, *, t: us = 3.0): return t * s.tp_log2
"""
    program = complete(parse(text))
    (entry,) = yaml.safe_load(defaults_yaml(program, [HERE]))["models"]
    base, each, token = entry["alpha_coeffs"]
    assert base + 1000 * each == pytest.approx(overhead_us(program, "queueing_time", FACTS, 1000))
    assert each == 0.25 and token == 3.0 * FACTS["tp_log2"]
    assert entry["beta_coeffs"] == [900.5, 2.0, 2.0]  # a, b.prefill_tokens, b.decode_reqs: the host's own order
    reference = bind(assemble(program), program.theta, FACTS)
    assert base == pytest.approx(1.5 * (900.5 + 24 * 2.0)) and reference.queueing_us(0) == pytest.approx(base)


# The keys and types that the frozen branch's reader declares; it refuses any other key.
TOP = {"models": list, "defaults": dict, "version": str, "workloads": dict}
ENTRY = {"GPU": str, "alpha_coeffs": list, "beta_coeffs": list, "id": str, "tensor_parallelism": int}
ENTRY |= {"vllm_version": str, "total_kv_blocks": int, "best_loss": float}


def looked_up(text: str, model: str, tp: int, gpu: str, version: str) -> tuple[list[float], list[float], int] | None:
    """Alpha, beta and KV blocks as that reader finds them: every part equal, the model's name in lower case."""
    document = yaml.safe_load(text)
    assert all(isinstance(value, TOP[key]) for key, value in document.items())
    for entry in document["models"]:
        assert all(isinstance(value, ENTRY[key]) for key, value in entry.items())
        assert all(isinstance(x, float) for x in (*entry["alpha_coeffs"], *entry["beta_coeffs"]))
        place = entry["id"], entry["tensor_parallelism"], entry["GPU"], entry["vllm_version"]
        if place == (model.lower(), tp, gpu, version):
            return entry["alpha_coeffs"], entry["beta_coeffs"], entry["total_kv_blocks"]
    return None


def test_the_frozen_branch_finds_the_entry() -> None:
    program = complete(
        parse(
            "def step_time(b, s, *, a: us = 9.5, c: us/token = 1e-05, d = 2e+20):\n"
            "    return a + c * b.prefill_tokens + d * b.decode_reqs\n"
            "def queueing_time(r, s, *, q: us = 7.0, k: us/token = 0.5): return q + k * r.input_len\n"
            "def output_token_time(s, *, t: us = 3.0): return t\n"
        )
    )
    text = defaults_yaml(program, [HERE, replace(HERE, name="there", hardware="A100-SXM-80GB", engine_version="")])
    tp, blocks = int(FACTS["tp"]), int(FACTS["kv_blocks"])
    expected = ([7.0, 0.5, 3.0], [9.5, 1e-05, 2e20], blocks)
    assert looked_up(text, "Org/Model", tp, "H100", "vllm/vllm-openai:v0.15.1") == expected
    assert looked_up(text, "org/model", tp, "A100-80", "") == expected  # no version given there either
    assert looked_up(text, "org/model", tp, "H100", "vllm/vllm-openai:v0.8.4") is None
    assert re.search(r"\nmodels:\n(#.*\n)*- GPU: ", text) and "\n  beta_coeffs:\n  - 9.5 " in text  # not indented


def test_an_entry_to_fill_in_is_refused_until_it_is() -> None:
    text = defaults_yaml(step("a * b.tokens", "a=1.0"), [])
    found = looked_up(text, "model", 1, "GPU", "")
    assert found is not None and found[2] == 0  # the host stops at no KV blocks
    assert text.count("fill in") == 5


@pytest.mark.parametrize(
    ("step_time", "queueing", "deployment", "why"),
    [
        ("max(a, b.tokens)", "0", HERE, "not one dot product"),
        ("log1p(b.tokens / a)", "0", HERE, "not one dot product"),
        ("1 if b.tokens > 2 else 2 * a", "0", None, "not one dot product"),
        ("a", "sqrt(r.input_len)", HERE, "alpha[1] * input length"),
        ("a", "s.weights_us", None, "depend on the deployment"),
    ],
)
def test_other_programs_get_a_remark(step_time: str, queueing: str, deployment: Deployment | None, why: str) -> None:
    text = f"def step_time(b, s, *, a=1.0): return {step_time}\ndef queueing_time(r, s): return {queueing}"
    text = defaults_yaml(complete(parse(text)), [deployment] if deployment else [])
    assert why in text and "constants are in fitted.go" in text and yaml.safe_load(text) is None


def test_a_branch_that_the_deployment_decides_is_no_branch() -> None:
    program = step("a * b.tokens + (c if s.is_moe > 0 else 2 * c)", "a=1.5, c=100.0")
    assert not affine(program.functions[0]).whole
    found = coefficients(program.function("step_time"), FACTS)
    assert found[""].value == (100.0 if FACTS["is_moe"] else 200.0)
    with pytest.raises(NotAffine):
        coefficients(program.function("step_time"), {})
