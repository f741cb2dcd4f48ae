"""Matrix products and experts of every type of weights: the tables' times where they were timed, bytes elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from measured import A100, B200, H100, H200, L40S, gpu_named, never_falls, rows_where

from simulator.kernels.curves import TOKENS
from simulator.kernels.matrices import BALANCED, ROUTINGS, UNIFORM, Experts, gemm, gemm_rows, moe
from simulator.kernels.roofline import BELIEVED, LAUNCH_US, MEASURED, NEAREST, KernelGpu
from simulator.model.formats import BF16, FP8, FP8_BLOCK, MXFP4, NVFP4, Format, integers

INT4, INT8 = integers(4), integers(8)
FORMATS = (BF16, FP8, FP8_BLOCK, INT8, NVFP4, MXFP4, INT4)
RTX = gpu_named("RTX-PRO-6000")

# Linear layers


@pytest.mark.parametrize(
    ("gpu", "weights", "shapes"),
    [
        (B200, NVFP4, [(6144, 4096), (8192, 2048), (2560, 8192)]),
        (H100, FP8_BLOCK, [(3072, 65536), (65536, 4096)]),  # smaller ones were timed with the wait for the CPU
        (B200, FP8_BLOCK, [(51200, 8192), (12288, 65536)]),
    ],
)
def test_measured_products_take_the_tables_time(gpu: KernelGpu, weights: Format, shapes: list[tuple[int, int]]) -> None:
    for n, k in shapes:
        rows = rows_where(gpu.tables, "gemm", dtype=weights.name, n=n, k=k)
        found = gemm(gpu, rows["tokens"].astype(float), n, k, weights)
        assert (found.kind, found.off_grid) == (MEASURED, 0.0)
        ratio = rows["latency_us"] / found.bound_us
        sure = (ratio > BELIEVED[0]) & (ratio < BELIEVED[1])
        off = (found.us / rows["latency_us"] - 1.0)[sure]
        assert sure.mean() >= 0.5 and np.median(np.abs(off)) < 0.05 and abs(off.mean()) < 0.05, (n, k)


def test_four_bits_alone_have_the_efficiency_of_sixteen() -> None:
    """8192 x 8192 halves of a byte and 2 bytes for each of 16384 activations, at the H100's 3.35 MB/us."""
    four, whole = (gemm(H100, TOKENS, 8192, 8192, weights) for weights in (INT4, BF16))
    assert four.kind == NEAREST and four.kernel == f"{whole.kernel} timed in bf16"
    assert four.bound_us[0] == pytest.approx(LAUNCH_US + (8192 * 8192 / 2 + 16384 * 2) / 3.35e6)
    few = TOKENS < 8  # of both, memory is the bound
    np.testing.assert_allclose((four.bound_us / four.us)[few], (whole.bound_us / whole.us)[few], rtol=0.05)
    assert four.us[-1] == pytest.approx(whole.us[-1], rel=1e-6)  # multiplied in 16 bits


PEAKS = """
    H100: bf16 bf16, fp8 fp8, fp8_block fp8, int8 fp8, nvfp4 bf16, mxfp4 bf16, int4 bf16
    L40S: bf16 bf16, fp8 fp8, fp8_block fp8, int8 fp8, nvfp4 bf16, mxfp4 bf16, int4 bf16
    A100: bf16 bf16, fp8 bf16, fp8_block bf16, int8 bf16, nvfp4 bf16, mxfp4 bf16, int4 bf16
    B200: bf16 bf16, fp8 fp8, fp8_block fp8, int8 fp8, nvfp4 fp4, mxfp4 fp8, int4 bf16
    RTX-PRO-6000: bf16 bf16, fp8 fp8, nvfp4 fp4, mxfp4 fp8, int4 bf16
"""


@pytest.mark.parametrize("line", PEAKS.strip().splitlines())
def test_the_peak_of_a_type_on_a_gpu(line: str) -> None:
    """Weights alone are widened to 16 bits; Blackwell multiplies mxfp4 by activations in 8 bits."""
    name, pairs = line.strip().split(": ")
    gpu = gpu_named(name)
    for pair in pairs.split(", "):
        weights, cores = pair.split()
        assert gpu.flops(weights) == getattr(gpu, f"{cores}_flops"), pair
    known = {gpu.bf16_flops, gpu.fp8_flops, gpu.fp4_flops} - {None}
    assert len(known) == {"A100": 1, "H100": 2, "L40S": 2}.get(name, 3)


@pytest.mark.parametrize("weights", FORMATS, ids=lambda f: f.name)
def test_products_of_no_measured_width_are_in_order(weights: Format) -> None:
    for gpu in (H100, A100, B200, L40S, RTX):
        for n, k in ((9216, 3328), (24, 100), (300_000, 7000)):
            found = gemm(gpu, TOKENS, n, k, weights)
            assert found.kind != MEASURED and never_falls(found.us)
            assert (found.us > 0.7 * found.bound_us).all() and (found.us < 6.0 * found.bound_us).all(), (gpu.tables, n)


# Experts

DEEPSEEK = Experts(7168, 2048, 256, 8)
GPT_OSS = Experts(2880, 2880, 128, 4)


def of_experts(gpu: KernelGpu, weights: Format, shape: Experts, routing: str) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, us) of whole experts in the tables."""
    hidden, ffn, experts, active, ranks = shape
    columns = {"hidden": hidden, "ffn": ffn, "experts": experts, "active": active, "ep": ranks, "gpus": 1}
    rows = rows_where(gpu.tables, "moe", dtype=weights.name, routing=routing, **columns)
    return rows["tokens"].astype(float), rows["latency_us"].astype(float)


MEASURED_EXPERTS = [
    (H100, FP8_BLOCK, DEEPSEEK._replace(ranks=8)),
    (B200, NVFP4, DEEPSEEK._replace(ranks=8)),
    (H100, MXFP4, GPT_OSS),
    (B200, MXFP4, GPT_OSS),
]


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize(("gpu", "weights", "shape"), MEASURED_EXPERTS)
def test_measured_experts_of_every_routing(gpu: KernelGpu, weights: Format, shape: Experts, routing: str) -> None:
    """Where a type has no rows of a routing they are near the others; uniform tokens touch fewer experts if few."""
    at, us = of_experts(gpu, weights, shape, BALANCED if routing == UNIFORM else routing)
    found = moe(gpu, at, shape, weights, routing)
    assert (found.kind, found.off_grid) == (MEASURED, 0.0) and never_falls(found.us)
    ratio = us / moe(gpu, at, shape, weights, BALANCED if routing == UNIFORM else routing).bound_us
    sure = (ratio > BELIEVED[0]) & (ratio < BELIEVED[1])
    many = sure & (at * shape.active >= 4 * shape.experts)
    off = found.us / us - 1.0
    assert many.sum() >= 3 and np.median(np.abs(off[many])) < 0.05, off
    if routing != UNIFORM:
        assert np.median(np.abs(off[sure])) < 0.05
    else:
        few = sure & (at * shape.active < shape.experts) & (at > 1)
        assert not few.any() or (found.us[few] <= moe(gpu, at, shape, weights, BALANCED).us[few] * 1.000001).all()


def test_random_tokens_are_not_faster_than_the_bytes_of_the_experts_that_they_touch() -> None:
    """An eighth of each of DeepSeek-V3's 256 experts, 1.41 GB in 8 bits, takes 293 us at 4.8 MB/us. The table has less."""
    split = DEEPSEEK._replace(ffn=256)
    rows = rows_where(H200.tables, "moe", dtype="fp8_block", routing=BALANCED, hidden=7168, experts=256, gpus=8, ep=1)
    many = (rows["tokens"] >= 128) & (rows["tokens"] <= 192)
    assert (rows["latency_us"][many] < 3 * 7168 * 256 * 256 / 4.8e6).all()
    found = moe(H200, TOKENS, split, FP8_BLOCK)
    assert (found.us >= found.bound_us * 0.999999).all()


def test_experts_faster_than_their_bytes_are_not_believed() -> None:
    """All 256 of DeepSeek-V3 are 11.3 GB in 8 bits, 3.4 ms on an H100; the table has 2 ms."""
    at, us = of_experts(H100, FP8_BLOCK, DEEPSEEK, BALANCED)
    read_us = 3 * 7168 * 2048 * 256 / 3.35e6
    found = moe(H100, at, DEEPSEEK, FP8_BLOCK)
    assert us[at == 64][0] < 0.6 * read_us and found.us[at == 64][0] > read_us and found.kind == NEAREST


def test_several_kernels_of_a_width_are_one_curve() -> None:
    """On Hopper up to 17 tokens one kernel was timed, from 32 on another."""
    rows = rows_where("h100_sxm", "gemm", dtype="fp8_block", n=3072, k=65536)
    kernels = [set(rows["kernel"][part]) for part in (rows["tokens"] < 32, rows["tokens"] >= 32)]
    assert all(len(names) == 1 for names in kernels) and kernels[0] != kernels[1]
    tokens, us = gemm_rows("h100_sxm", "fp8_block")[0][3072, 65536]
    assert tokens.tolist() == rows["tokens"].tolist() and us.tolist() == rows["latency_us"].tolist()


def test_experts_that_gpus_share_have_their_bytes() -> None:
    """A token of eight in 256 experts touches one on each of eight GPUs: 3 * 7168 * 2048 bytes of 8 bits."""
    one = np.array([1.0])
    shared = moe(H100, one, DEEPSEEK._replace(ranks=8), FP8_BLOCK)
    moved = 3 * 7168 * 2048 + 8 * (7168 + 2048) * 2 / 8
    assert shared.bound_us[0] == pytest.approx(LAUNCH_US + moved / 3.35e6)
    odd = moe(H100, TOKENS, DEEPSEEK._replace(ranks=6), FP8_BLOCK)  # 4 and 8 GPUs were measured
    assert odd.kind == NEAREST and 0.0 < odd.off_grid <= 1.0 and never_falls(odd.us)


@pytest.mark.parametrize("weights", FORMATS, ids=lambda f: f.name)
def test_experts_of_no_measured_shape_are_in_order(weights: Format) -> None:
    for gpu in (H100, A100, B200, L40S, RTX):
        for shape in (Experts(1000, 300, 5, 3), Experts(9000, 5000, 48, 6), Experts(3000, 700, 100, 7, 4)):
            found = moe(gpu, TOKENS, shape, weights)
            assert found.kind != MEASURED and never_falls(found.us), (gpu.tables, shape)
            assert (found.us > 0.7 * found.bound_us).all() and (found.us < 6.0 * found.bound_us).all()
