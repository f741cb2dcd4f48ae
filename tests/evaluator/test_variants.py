"""Programs against fewer bits, better GPUs, more GPUs and more context, on one small model."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.judge.gates import Gate
from evaluator.judge.physics import KERNEL_STEP
from evaluator.judge.variants import FORMATS, MARGINS, RULES, TPS, Variants, variant_checks, variants_of
from simulator.language.opcodes import assemble
from simulator.language.parse import parse

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
KERNELS = "def step_time(b, s): return"


@pytest.fixture(scope="module")
def variants() -> Variants:
    return variants_of([MODEL])


def checked(text: str, variants: Variants) -> dict[str, Gate]:
    program = parse(text)
    gates = variant_checks(assemble(program), program.theta, variants)
    return {gate.name.removeprefix("variants: "): gate for gate in gates}


def failing(text: str, variants: Variants) -> set[str]:
    return {name for name, gate in checked(text, variants).items() if not gate.passes}


def test_every_format_on_every_number_of_gpus(variants: Variants) -> None:
    """Nine GPUs with tables, four numbers of them and four formats: all of Llama-3.1-8B fits."""
    names = variants.deployments.names
    assert len(names) == 9 * len(TPS) * len(FORMATS) == 144
    assert f"{MODEL} H100-SXM-80GB nvfp4 tp8" in names and len(set(names)) == len(names)
    of = {check: [(names[i], names[k]) for i, k in pairs] for check, pairs in variants.pairs.items()}
    assert set(of) == set(RULES) == set(MARGINS)
    # 16 bits above 8 above 4.5 above 4.125, in whichever order they stand: six pairs of formats
    assert len(of["bits"]) == 6 * 9 * len(TPS) and len(of["share"]) == 3 * 9 * len(FORMATS)
    assert (f"{MODEL} H100-SXM-80GB bf16 tp2", f"{MODEL} H100-SXM-80GB fp8 tp2") in of["bits"]
    assert (f"{MODEL} H100-SXM-80GB fp8 tp2", f"{MODEL} H100-SXM-80GB fp8 tp4") in of["share"]
    assert (f"{MODEL} H100-SXM-80GB fp8 tp2", f"{MODEL} H200-SXM-141GB fp8 tp2") in of["gpu"]
    assert (f"{MODEL} H200-SXM-141GB fp8 tp2", f"{MODEL} H100-SXM-80GB fp8 tp2") not in of["gpu"]
    assert not of["context"]


def test_the_sum_of_kernels_passes(variants: Variants) -> None:
    assert failing(KERNEL_STEP, variants) == set()
    for values in variants.kernels.values():
        assert (values >= 1.0).all()
    assert np.median(variants.kernels["bits"]) == np.median(variants.kernels["gpu"]) == 1.0
    assert (variants.kernels["share"] == 1.0).all() and (variants.kernels["context"] == 1.0).all()


FAULTS = {
    "bits": "b.kernel_us + 0.05 * b.kv_decode_sum * s.is_fp8",
    "share": "b.kernel_us * (1 + 0.5 * s.tp)",
    "context": "b.kernel_us + max(60000 - 0.1 * b.kv_decode_sum, 0)",
    "gpu": "b.kernel_us * (1 + s.bytes_per_us / 3e6)",
}


@pytest.mark.parametrize(("check", "formula"), FAULTS.items())
def test_a_program_that_turns_an_order_round_fails(check: str, formula: str, variants: Variants) -> None:
    """A punishment of 8 bits, of more GPUs, of short contexts, of bandwidth: only this check finds it."""
    gates = checked(f"{KERNELS} {formula}", variants)
    assert {name for name, gate in gates.items() if not gate.passes} == {check}
    assert RULES[check] in gates[check].complaint and " -> " in gates[check].measured


@pytest.mark.parametrize("field", ["allreduce_us", "kernel_allreduce_us", "host_allreduce_us"])
def test_an_all_reduce_is_no_fault_of_more_gpus(field: str, variants: Variants) -> None:
    """Its time is left out of that check, by every formula and by tables."""
    assert "share" not in failing(f"{KERNELS} b.kernel_us + 900 * b.{field}", variants)
