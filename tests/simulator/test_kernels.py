"""What single kernels and whole steps cost by the measured tables: exact where a shape was timed, in order everywhere.

Expected times come from the tables themselves, or from the sums of kernels.md in the design notes (see SUMS).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from deployed import facts_of_terms
from measured import A100, B200, H100, H200, L40S, gpu_named, never_falls, rows_where

from evaluator.judge.physics import roofline_us
from simulator.clock.fields import Active, BatchFields
from simulator.kernels import curves
from simulator.kernels.allreduce import CUSTOM_BYTES, allreduce
from simulator.kernels.attention import Heads, decode, prefill
from simulator.kernels.curves import CURVES, LENGTHS, TOKENS, Kernels, kernels
from simulator.kernels.matrices import Experts, gemm, moe
from simulator.kernels.roofline import (
    DATASHEET,
    INTERPOLATED,
    LAUNCH_US,
    MEASURED,
    NEAREST,
    KernelGpu,
    efficiency,
)
from simulator.model.architecture import Sampling
from simulator.model.formats import BF16, FP8, FP8_BLOCK, Format
from simulator.schema import CURVES as KNOTS
from simulator.serving.engine import Engine
from simulator.serving.facts import Facts
from simulator.serving.gpu import hardware_table
from simulator.serving.known import facts_of
from simulator.serving.model import known_model, model_table

ROUNDED = 1e-6  # relative: a curve's knots have seven digits


INT4 = Format("int4", 4.0)
RTX = gpu_named("RTX-PRO-6000")


# Matrix products


@pytest.mark.parametrize("weights", [BF16, FP8])
def test_a_measured_linear_layer_takes_the_tables_own_time(weights: Format) -> None:
    """Smoothing to a rising curve moves single measurements by a few percent, the mean hardly."""
    for n, k in ((6144, 4096), (8192, 2048), (2560, 8192)):
        rows = rows_where("h100_sxm", "gemm", dtype=weights.name, n=n, k=k)
        at = rows["tokens"].astype(float)
        found = gemm(H100, at, n, k, weights)
        assert (found.kind, found.off_grid, found.kernel) == (MEASURED, 0.0, str(rows["kernel"][0]))
        off = found.us / rows["latency_us"] - 1.0
        assert abs(off.mean()) < 0.02 and np.abs(off).max() < 0.3, (n, k)
        assert np.median(np.abs(off)) < 0.03


def test_between_measured_widths_the_efficiency_lies_between_its_neighbours() -> None:
    """9216 lies between the widths 8192 and 10240 of the tables, 3328 between 3072 and 3584."""
    for n, k, corners in (
        (9216, 4096, [(8192, 4096), (10240, 4096)]),
        (4096, 3328, [(4096, 3072), (4096, 3584)]),
        (9216, 3328, [(8192, 3072), (8192, 3584), (10240, 3072), (10240, 3584)]),
    ):
        found = gemm(H100, TOKENS, n, k, BF16)
        assert found.kind == INTERPOLATED
        share = found.bound_us / found.us
        near = np.array([(t.bound_us / t.us) for t in (gemm(H100, TOKENS, *c, BF16) for c in corners)])
        # each curve is smoothed on its own: a few percent of slack
        assert (share >= near.min(axis=0) * 0.93).all() and (share <= near.max(axis=0) * 1.07).all()


def test_how_far_off_the_grid_a_width_lies() -> None:
    found = gemm(H100, TOKENS, 9216, 4096, BF16)
    assert found.off_grid == pytest.approx(math.log2(10240 / 9216))  # closer than 8192
    beyond = gemm(H100, TOKENS, 131072, 4096, BF16)  # the widest of the tables is 65536
    assert (beyond.kind, beyond.off_grid) == (NEAREST, 1.0)
    assert gemm(H100, TOKENS, 8, 4096, BF16).kind == NEAREST  # a router: the narrowest is 32


def test_where_a_linear_layer_was_not_timed_its_bytes_decide() -> None:
    no_fp8 = gemm(A100, TOKENS, 8192, 8192, FP8)  # an A100 has no fp8: bf16 kernels, half the bytes
    plain = gemm(A100, TOKENS, 8192, 8192, BF16)
    assert (no_fp8.kind, no_fp8.kernel, plain.kind) == (NEAREST, f"{plain.kernel} timed in bf16", MEASURED)
    assert no_fp8.us[0] == pytest.approx((plain.us[0] - LAUNCH_US) / 2 + LAUNCH_US, rel=0.1)
    assert no_fp8.us[-1] == pytest.approx(plain.us[-1], rel=0.05)  # compute is the same
    four_bits = gemm(H100, TOKENS, 8192, 8192, INT4)
    assert four_bits.kind == NEAREST and four_bits.us[0] < gemm(H100, TOKENS, 8192, 8192, FP8).us[0]


# Routed experts

MIXTRAL, SCOUT = Experts(4096, 14336, 8, 2), Experts(5120, 8192, 16, 1)


def moe_rows(shape: Experts, name: str = "h100_sxm", **columns: object) -> dict[str, np.ndarray]:
    """Of whole experts; columns: how many GPUs share their width, and so on."""
    hidden, ffn, experts, active, ranks = shape
    return rows_where(name, "moe", hidden=hidden, ffn=ffn, experts=experts, active=active, ep=ranks, **columns)


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_measured_experts_take_the_tables_time_where_all_of_them_are_touched(gpus: int) -> None:
    """From 32 tokens on all eight, by chance as in the table's balanced routing; with fewer tokens chance touches fewer."""
    rows = moe_rows(MIXTRAL, dtype="bf16", gpus=gpus, routing="balanced")
    at = rows["tokens"].astype(float)
    found = moe(H100, at, Experts(4096, 14336 // gpus, 8, 2), BF16)
    assert (found.kind, found.off_grid, found.kernel) == (MEASURED, 0.0, str(rows["kernel"][0]))
    off = found.us / rows["latency_us"] - 1.0
    many = at >= 32
    assert many.sum() > 10 and abs(np.median(off[many])) < 0.02 and np.abs(off[many]).max() < 0.35
    four = float(found.us[at == 4][0]) / float(rows["latency_us"][at == 4][0])
    touched = 8 * (1 - 0.75**4) / 8  # of the eight that four tokens touch when they are spread evenly
    assert four == pytest.approx(touched, abs=0.15)  # smoothing moves single measurements by as much


def test_experts_of_scout_are_not_those_of_the_kernel_that_nobody_believes() -> None:
    """fp8 rows of one kernel are slower than bf16: 1.7 ms a layer for Scout against 0.40 (kernels.md, trap 1)."""
    slow = moe_rows(SCOUT, dtype="fp8", gpus=1)
    assert set(slow["kernel"]) == {"vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts"}
    bf16 = moe(H100, TOKENS, SCOUT, BF16)
    at = int(np.searchsorted(TOKENS, 32.0))
    assert np.median(slow["latency_us"][slow["tokens"] == 32]) > 1.5 * bf16.us[at]
    found = moe(H100, TOKENS, SCOUT, FP8)
    assert found.kernel == "vllm_fp8moe_triton_tritonexperts timed in fp8_block"
    assert found.us[at] < 1.1 * bf16.us[at]
    assert np.all(found.us > 0.8 * (found.bound_us - LAUNCH_US))


def test_fp8_experts_take_the_kernel_that_the_engine_uses_where_two_are_believed() -> None:
    """An L40S has believable rows of both kinds; compressed-tensors checkpoints run the Triton one with block scales."""
    rows = rows_where("l40s", "moe", hidden=4096, ffn=14336, experts=8, active=2, gpus=4)
    assert set(rows["dtype"]) == {"bf16", "fp8", "fp8_block"}
    at = np.unique(rows["tokens"]).astype(float)
    found = moe(L40S, at, Experts(4096, 14336 // 4, 8, 2), FP8)
    assert (found.kind, found.kernel) == (NEAREST, "vllm_fp8moe_triton_tritonexperts timed in fp8_block")
    blocks = moe(L40S, at, Experts(4096, 14336 // 4, 8, 2), FP8_BLOCK)
    assert blocks.kind == MEASURED and (blocks.us == found.us).all()
    block = rows["dtype"] == "fp8_block"
    block &= rows["routing"] == "balanced"
    own = np.array([rows["latency_us"][block & (rows["tokens"] == t)][0] for t in at])
    assert np.median(np.abs(found.us / own - 1.0)) < 0.02


def test_measurements_far_from_the_roofline_are_not_believed() -> None:
    """Below 0.8 and above 4 times the bound: a few take their neighbours' efficiency, most of a shape all of it."""
    tokens, bound = np.array([1.0, 2.0, 4.0, 8.0]), np.full(4, 10.0)
    assert efficiency(tokens, tokens, np.array([20.0, 20.0, 41.0, 20.0]), bound) == pytest.approx([0.5] * 4)
    assert efficiency(tokens, tokens, np.array([7.9, 20.0, 20.0, 40.0]), bound) == pytest.approx([0.5, 0.5, 0.5, 0.25])
    assert efficiency(np.array([3.0]), tokens, np.full(4, 8.0), bound) == pytest.approx([1.25])
    assert efficiency(tokens, tokens, np.array([41.0, 7.0, 400.0, 20.0]), bound) is None


def test_experts_of_no_measured_shape_have_the_efficiency_of_the_nearest() -> None:
    """Three quarters of the width of Mixtral's experts, which is the nearest measured shape."""
    own, near = Experts(4096, 10752, 8, 2), MIXTRAL
    found, whole = moe(H100, TOKENS, own, BF16), moe(H100, TOKENS, near, BF16)
    assert (found.kind, whole.kind) == (NEAREST, MEASURED) and never_falls(found.us)
    assert found.off_grid == pytest.approx(math.log2(14336 / 10752))
    share, other = found.bound_us / found.us, whole.bound_us / whole.us
    # both curves are smoothed on their own
    assert np.abs(share / other - 1.0).max() < 0.1 and abs(np.median(share / other) - 1.0) < 0.02
    odd = moe(H100, TOKENS, Experts(1000, 300, 5, 3), BF16)
    assert odd.kind in (NEAREST, DATASHEET) and never_falls(odd.us) and (odd.us > 0.8 * odd.bound_us).all()


# Attention

LLAMA = Heads(32, 8, 128, 2 * 8 * 128, 2)  # Llama-3.1-8B on one GPU


def test_decode_attention_is_the_tables_line_in_the_context() -> None:
    """Where the KV cache does not fit into the L2 cache: the launch and a time for each token of context."""
    rows = rows_where("h100_sxm", "decode_attention", kv="bf16", heads=32, kv_heads=8, head_dim=128, window=0)
    found = decode(H100, TOKENS, LLAMA)
    assert (found.per_token.kind, found.per_token.kernel) == (MEASURED, "vllm_flash_attn_fa3")
    errors = []
    for n, context, us in zip(rows["batch"], rows["context"] + 1.0, rows["latency_us"], strict=True):
        if n <= 512 and n * context * 4096 >= 100e6:  # 4096 bytes a token and layer; twice the L2 cache of 50 MB
            i = int(np.searchsorted(TOKENS, n))
            errors.append((found.launch.us[i] + found.per_token.us[i] * n * context) / us - 1.0)
    assert len(errors) > 30 and abs(np.median(errors)) < 0.03 and np.quantile(np.abs(errors), 0.9) < 0.12


def test_a_cache_of_no_measured_shape_is_not_read_faster_than_memory() -> None:
    """28 heads on 4 KV heads of 128, 2,048 bytes a token: the closest shape was timed on small caches, of which an L2
    cache of 128 MB has a part."""
    found = decode(RTX, TOKENS, Heads(28, 4, 128, 2 * 4 * 128, 2)).per_token
    assert found.kind == NEAREST and (found.us >= 2048 / 1.792e6).all()


def test_more_kv_heads_than_the_tables_have_read_more_bytes() -> None:
    """Llama-2-7B has 32 KV heads; the decode tables have at most 8."""
    many = decode(H100, TOKENS, Heads(32, 32, 128, 2 * 32 * 128, 2))
    few = decode(H100, TOKENS, Heads(8, 8, 128, 2 * 8 * 128, 2))
    np.testing.assert_allclose(many.per_token.us, 4.0 * few.per_token.us)
    np.testing.assert_allclose(many.launch.us, few.launch.us)
    assert (many.per_token.kind, many.per_token.off_grid, few.per_token.kind) == (NEAREST, 2.0, MEASURED)


def test_prefill_attention_is_the_tables_and_between_linear_and_quadratic() -> None:
    rows = rows_where("h100_sxm", "prefill_attention", kv="bf16", heads=32, kv_heads=8, head_dim=128, window=0)
    lengths = rows["context"].astype(float)
    found = prefill(H100, lengths, LLAMA)
    whole = found.us * lengths * (lengths + 1.0) / 2.0
    above = rows["latency_us"] - rows["latency_us"][0]  # the launch is counted with the decodes
    long = lengths >= 2048
    assert long.sum() >= 8 and found.kind == MEASURED
    np.testing.assert_allclose(whole[long], above[long], rtol=0.05)
    # shorter ones are launch and noise in the table: what is wrong there is small beside a chunk of 2048 tokens
    assert np.abs(whole - above)[~long].max() < 0.25 * above[lengths == 2048][0]
    for gpu in (H100, H200, A100, B200):
        for heads in (LLAMA, Heads(16, 2, 128, 512, 2), Heads(40, 8, 96, 1536, 2), Heads(128, 128, 56, 576, 2)):
            each = prefill(gpu, LENGTHS, heads)
            time = each.us * LENGTHS * (LENGTHS + 1.0) / 2.0
            growth = np.diff(np.log(time)) / np.diff(np.log(LENGTHS))
            pairs = np.diff(np.log(LENGTHS * (LENGTHS + 1.0))) / np.diff(np.log(LENGTHS))
            assert (growth > 0.0).all() and (growth <= pairs + 1e-9).all()
            assert (np.diff(each.us) <= 1e-12).all()  # a pair never takes longer in a longer prompt


def test_prefill_and_decode_attention_are_two_different_things() -> None:
    """Prefill of long prompts is near its FLOP time, decode 90 to 100 times above it (kernels.md)."""
    pair = prefill(H100, np.array([4096.0, 8192.0, 16384.0]), LLAMA)
    assert ((pair.us / pair.bound_us > 1.3) & (pair.us / pair.bound_us < 2.0)).all()
    flops_us = 4.0 * 32 * 128 / H100.bf16_flops  # of one decode with one token of context
    assert decode(H100, np.array([64.0]), LLAMA).per_token.us[0] / flops_us > 50.0


def test_a_head_of_no_measured_width_says_so() -> None:
    found = decode(H100, TOKENS, Heads(32, 8, 96, 2 * 8 * 96, 2))  # Phi-like: 64, 128 and 256 are measured
    assert found.per_token.kind == NEAREST and found.per_token.off_grid == pytest.approx(math.log2(128 / 96))
    wider = decode(H100, TOKENS, LLAMA)
    np.testing.assert_allclose(found.per_token.us, wider.per_token.us * 96 / 128)


# All-reduces


@pytest.mark.parametrize("gpus", [2, 4])
def test_an_all_reduce_is_the_tables_kernel_for_its_size(gpus: int) -> None:
    """vLLM's own kernel, captured in a CUDA graph, up to 8 MB; NCCL above."""
    for kernel, most in (("vllm_graph", CUSTOM_BYTES), ("nccl", 2**40)):
        rows = rows_where("h100_sxm", "allreduce", kernel=kernel, gpus=gpus)
        least = 0 if kernel == "vllm_graph" else CUSTOM_BYTES + 1
        mine = (rows["bytes"] >= least) & (rows["bytes"] <= most)
        found = allreduce(H100, rows["bytes"][mine].astype(float), gpus)
        assert mine.sum() > 3
        np.testing.assert_allclose(found.us, rows["latency_us"][mine], rtol=0.06)
    wide = allreduce(H100, 256.0 * 2.0 ** np.arange(0, 20, 0.1), gpus)
    assert never_falls(wide.us) and wide.kernel == "vllm_graph" and wide.off_grid == 0.0


def test_eight_hopper_gpus_add_large_messages_in_the_switch() -> None:
    """vLLM's own kernel to 256 kB, then 11 us for 512 kB, 18 for 2 MB, 165 for 32 MB (vllm-project/vllm, pull request
    42324), NCCL above 64 MB."""
    rows = rows_where("h100_sxm", "allreduce", kernel="vllm_graph", gpus=8)
    small = rows["bytes"] <= 64 * 2**10
    sizes = np.array([*rows["bytes"][small], 2.0**20, 2.0**21, 2.0**25], float)
    found = allreduce(H100, sizes, 8)
    np.testing.assert_allclose(found.us, [*rows["latency_us"][small], 14.0, 18.0, 165.0], rtol=0.06)
    assert allreduce(H100, np.array([2.0**27]), 8).us[0] > 600.0
    assert never_falls(allreduce(H100, 256.0 * 2.0 ** np.arange(0, 20, 0.1), 8).us)
    assert allreduce(A100, np.array([2.0**21]), 8).us[0] > 25.0  # no such switch
    beyond = 2.0 ** np.arange(20.5, 26)  # from 1 MB on, where Blackwell's own kernel is the slower one
    assert (allreduce(B200, beyond, 8).us <= allreduce(H200, beyond, 8).us).all()
    rows = rows_where("b200_sxm", "allreduce", kernel="TRTLLM", gpus=8, bytes=2**21)
    assert rows["latency_us"][0] > 1.5 * allreduce(B200, np.array([2.0**21]), 8).us[0]


def test_an_all_reduce_that_no_link_explains_is_not_believed() -> None:
    """64 MB over eight L40S took 162 ms in the table, 44 times what PCIe needs: 2 * 7/8 * 64 MB / 32 GB/s = 3.67 ms."""
    size = np.array([2.0**26])
    rows = rows_where("l40s", "allreduce", kernel="nccl", gpus=8, bytes=2**26)
    assert rows["latency_us"][0] > 150e3
    found = allreduce(L40S, size, 8)
    assert found.us[0] == pytest.approx(30.0 + 4.0 * 3670.0, rel=1e-3) and found.kind == NEAREST
    # more than two GPUs without NVLink add by NCCL, whatever the size
    for gpus, kernel, us in ((2, "vllm_graph", 6.22), (8, "nccl", 31.79)):
        small = allreduce(L40S, np.array([8192.0]), gpus)
        assert small.kernel == kernel and small.us[0] == pytest.approx(us, rel=0.01)


def test_one_gpu_reduces_nothing_and_untimed_counts_take_the_nearest() -> None:
    assert not allreduce(H100, TOKENS, 1).us.any()
    many = allreduce(H100, TOKENS * 8192, 16)
    assert (many.kind, many.off_grid) == (NEAREST, 1.0)
    small = TOKENS * 8192 <= 64 * 2**10  # above, eight GPUs of one machine have another kernel
    np.testing.assert_allclose(many.us[small], allreduce(H100, TOKENS * 8192, 8).us[small])


# Deployments


def of(model: str, tp: int, gpu: str = "H100") -> Kernels:
    deployed = facts_of(model, gpu, Engine(tensor_parallel=tp)).deployed
    assert deployed is not None
    return kernels(deployed)


FITTING = [("llama-3.1-8b", 1), ("llama-2-70b", 4), ("mixtral-8x7b", 2), ("codellama-34b", 2), ("qwen2.5-7b", 1)]


def every_deployment() -> list[tuple[str, str, int]]:
    """Shipped models on GPUs with tables, on as few GPUs as hold them and on the most."""
    models = sorted({str(entry["id"]) for entry in model_table().values()})
    gpus = sorted({str(e["name"]) for e in hardware_table().values() if e.get("kernels")})
    return [(model, gpu, 4) for model in models for gpu in gpus]


def test_curves_are_the_sums_of_the_operations_and_never_fall() -> None:
    assert set(CURVES) == set(KNOTS)
    checked = 0
    for model, gpu, tp in every_deployment():
        try:
            found = of(model, tp, gpu)
        except ValueError as error:
            assert "leaves no room" in str(error) or "must divide" in str(error)
            continue
        for name, values in found.curves.items():
            assert len(values) == KNOTS[name] and np.isfinite(values).all() and (values >= 0.0).all()
            total: Any = sum(o.calls * o.timing.us for o in found.operations if o.curve == name)
            np.testing.assert_allclose(values, total if np.ndim(total) else 0.0, rtol=ROUNDED)
            assert never_falls(values) or name == "prefill_per_pair", (model, gpu, name)
        assert all(o.timing.kind in (MEASURED, INTERPOLATED, NEAREST, DATASHEET) for o in found.operations)
        checked += 1
    assert checked > 50


EXPERTS = ("moe", "moe_quantized", "router", "small")  # curves that a dense model in 16 bits has none of


def test_the_operations_of_a_dense_model_by_hand() -> None:
    """Llama-3.1-70B on 4 GPUs: hidden 8192, 80 layers, 64 heads and 8 KV heads of 128, 28672, 128256 words."""
    found = {o.name: o for o in of("llama-3.1-70b", 4).operations}
    said = {name: (o.calls, o.shape) for name, o in found.items() if o.curve in ("gemm", "lm_head")}
    assert said == {
        "QKV projection": (80, "8192 to 2560"),  # (64 + 2 * 8) * 128 / 4
        "attention output": (80, "2048 to 8192"),
        "feed-forward: gate and up": (80, "8192 to 14336"),  # 2 * 28672 / 4
        "feed-forward: down": (80, "7168 to 8192"),
        "logits": (1, "8192 to 32064"),
    }
    assert found["all-reduce"].calls == 160
    assert {o.curve for o in found.values()} == set(CURVES) - {*EXPERTS, "window_per_token"}


def test_the_operations_of_a_mixture_by_hand() -> None:
    found = {o.name: o for o in of("mixtral-8x7b", 2).operations}
    assert found["routed experts"].shape == "2 of 8 experts of 4096 x 7168"
    assert (found["routed experts"].calls, found["router"].calls) == (32, 32)
    assert not any(name.startswith("feed-forward") for name in found)
    assert found["routed experts"].curve == "moe"  # 16 bits; quantized ones are other kernels
    scout = {o.name: o for o in of("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic", 2).operations}
    assert scout["routed experts"].curve == "moe_quantized"


# Table sums of uncached prompts in chunks of 2048 tokens, ms: layers, all-reduces and attention. Source: kernels.md,
# "Prefill from the tables", computed there from the same package without smoothing and without elementwise operations.
SUMS = [
    ("llama-3.1-8b", 1, {2048: 38.8, 8192: 173.0, 32768: 999.0}),
    ("llama-3.1-70b", 4, {2048: 138.0, 8192: 574.0, 32768: 2680.0}),
]


@pytest.mark.parametrize(("model", "tp", "expected"), SUMS)
def test_sums_of_uncached_prompts(model: str, tp: int, expected: dict[int, float]) -> None:
    facts = facts_of(model, "H100", Engine(tensor_parallel=tp))
    for length, ms in expected.items():
        chunks = [BatchFields([Active(length, begin, 2048)], facts) for begin in range(0, length, 2048)]
        us = sum(c["b", "kernel_us"] - c["b", "kernel_elementwise_us"] for c in chunks)
        assert us / 1e3 == pytest.approx(ms, rel=0.15)


@pytest.mark.parametrize(("model", "tp"), FITTING)
def test_a_step_takes_at_least_most_of_its_datasheet_time(model: str, tp: int) -> None:
    """A check of units and of calls: within the factor 0.8 to 4 of the roofline in which kernels are believed."""
    facts = facts_of(model, "H100", Engine(tensor_parallel=tp))
    for batch in ([Active(0, 1024, 1)] * 32, [Active(0, 4096, 1)] * 128, [Active(2048, 0, 2048)]):
        share = BatchFields(batch, facts)["b", "kernel_us"] / roofline_us(tuple(batch), facts)
        assert 0.8 < share < 4.0, (batch[0], share)


# Sampler

# Requests, words, ms of sorting and masking by top_p. Source: vllm-project/vllm, pull requests 33538 (48 and 56 requests),
# 40376 (64 with top_k too, and 128) and 51507 (64).
SORTED = [(48, 32768, 0.350), (56, 32768, 0.393), (64, 131072, 1.074), (64, 131072, 1.132), (128, 131072, 2.318)]


@pytest.mark.parametrize(("requests", "words", "ms"), SORTED)
def test_sorting_takes_what_was_published(requests: int, words: int, ms: float) -> None:
    found = curves.sampler(H100, np.array([float(requests)]), words, curves.SORT)
    assert found.us[0] / 1e3 == pytest.approx(ms, rel=0.12)


def test_the_sampler_does_what_generation_config_asks_for() -> None:
    """The shipped models of configs/models.yaml: Nemo has neither, Llama-3.1 top_p, Qwen2.5 a penalty too."""
    said = {
        model: [o.name for o in of(model, 1).operations if o.curve == "sampler"]
        for model in ("mistral-nemo-12b", "llama-3.1-8b", "qwen2.5-7b")
    }
    assert said == {
        "mistral-nemo-12b": ["sampling: draw"],
        "llama-3.1-8b": ["sampling: sort", "sampling: draw"],
        "qwen2.5-7b": ["sampling: penalties", "sampling: sort", "sampling: draw"],
    }
    assert curves.parts(Sampling(sorts=False, penalises=True)) == (curves.PENALTIES, curves.DRAW)


def test_the_sampler_by_hand() -> None:
    """Qwen2.5-7B, 152,064 words, 8 requests: 50 launches of 5 us; 345 bytes a logit at half of 3.35 TB/s."""
    facts = facts_of("qwen2.5-7b", "H100", Engine())
    us = BatchFields([Active(0, 1024, 1)] * 8, facts)["b", "kernel_sampler_us"]
    assert us == pytest.approx(50 * 5.0 + 8 * 152064 * 345 / (0.5 * 3.35e6), rel=1e-4)


# Kernels measured on another GPU


def with_gpu(model: str, gpu: Mapping[str, Any], engine: Engine) -> Facts:
    return facts_of_terms(known_model(model, "here"), gpu, engine)


def borrowing(**times: float) -> KernelGpu:
    """A GPU with the H100's kernels, and peaks so many times the H100's."""
    return KernelGpu("h100_sxm", **{n: getattr(H100, n) * times.get(n, 1.0) for n in PEAKS}, timed_on=H100)


PEAKS = ("bf16_flops", "fp8_flops", "bytes", "link_bytes")
HEADS = Heads(heads=32, kv_heads=8, head_dim=128, kv_width=2048, kv_bytes=2)


def test_a_peak_that_another_gpu_has_more_of_shortens_what_it_bounds() -> None:
    one, twice = np.array([1.0]), {name: borrowing(**{name: 2.0}) for name in PEAKS}
    weights = gemm(H100, one, 4096, 14336, BF16).us[0] - gemm(twice["bytes"], one, 4096, 14336, BF16).us[0]
    # a single token is bound by its weights: twice the bandwidth halves the bound, but for the launch
    whole = gemm(H100, one, 4096, 14336, BF16)
    assert weights == pytest.approx((whole.bound_us[0] - LAUNCH_US) / 2 * whole.us[0] / whole.bound_us[0], rel=1e-3)
    assert gemm(twice["bf16_flops"], one, 4096, 14336, BF16).us[0] == pytest.approx(whole.us[0])
    many = np.array([16384.0])
    halved = [gemm(gpu, many, 14336, 4096, BF16).us[0] for gpu in (H100, twice["bf16_flops"])]
    assert halved[1] / halved[0] == pytest.approx(0.5, abs=0.01)

    lines = [decode(gpu, TOKENS, HEADS) for gpu in (H100, twice["bytes"], twice["bf16_flops"])]
    assert lines[1].per_token.us == pytest.approx(lines[0].per_token.us / 2)
    assert (lines[2].per_token.us == lines[0].per_token.us).all() and (lines[1].launch.us == lines[0].launch.us).all()
    pairs = [prefill(gpu, LENGTHS, HEADS).us for gpu in (H100, twice["bf16_flops"], twice["bytes"])]
    assert pairs[1] == pytest.approx(pairs[0] / 2) and (pairs[2] == pairs[0]).all()

    experts = [moe(gpu, one, MIXTRAL, BF16).us[0] for gpu in (H100, twice["bytes"], twice["bf16_flops"])]
    assert experts[1] < 0.55 * experts[0] and experts[2] == experts[0]
    sent = np.array([2.0**6, 2.0**28])
    reduced = [allreduce(gpu, sent, 4).us for gpu in (H100, twice["link_bytes"])]
    assert reduced[1] / reduced[0] == pytest.approx([1.0, 0.5], abs=0.01)


def test_a_mapping_with_the_kernels_of_another_gpu_applies_their_efficiencies_to_its_own_peaks() -> None:
    """Shipped GPUs with the H100's kernels, against their own: the differences are those that docs/plan.md states.

    The H100's own mapping changes nothing."""
    for name, low, high in (("H100", 1.0, 1.0), ("H200", 0.95, 1.0), ("A100", 0.76, 1.0), ("B200", 0.88, 1.12)):
        own = hardware_table()[name]
        engine = Engine(tensor_parallel=4)
        facts = [with_gpu("llama-3.1-70b", gpu, engine) for gpu in (own, {**own, "kernels": "h100_sxm"})]
        for step in (*([Active(0, 1024, 1)] * n for n in (1, 8, 64, 200)), [Active(2000, 0, 2000)]):
            own_us, borrowed_us = (BatchFields(step, f)["b", "kernel_us"] for f in facts)
            assert low <= borrowed_us / own_us <= high, name
    same = with_gpu("llama-3.1-8b", {**hardware_table()["H100"], "name": "mine"}, Engine()).deployed
    assert same and same.gpu == H100 and same.gpu.timed_on is None
    # by its name it is the GPU that was measured, of which somebody has other figures
    figures = with_gpu("llama-3.1-8b", {**hardware_table()["H100"], "memory_tb_per_s": 3.0}, Engine()).deployed
    assert figures and figures.gpu.bytes == 3.0e6 and figures.gpu.timed_on is None
