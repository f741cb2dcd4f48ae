"""Attention to fp8 KV caches, sliding windows and latent vectors, against the rows of the tables."""

from __future__ import annotations

import numpy as np
import pytest
from measured import A100, B200, H100, H200, L40S, never_falls, rows_where

from simulator.kernels.attention import Decode, Heads, decode, prefill, windowed
from simulator.kernels.curves import LENGTHS, TOKENS
from simulator.kernels.latent import LEAST_US, UNMEASURED, latent
from simulator.kernels.matrices import gemm
from simulator.kernels.roofline import DATASHEET, LAUNCH_US, MEASURED, NEAREST, KernelGpu, Timing
from simulator.model.architecture import Architecture
from simulator.model.formats import BF16, FP8_BLOCK, MXFP4, NVFP4, Format, Formats
from simulator.model.layers import Attention, Latent

PAIRS = LENGTHS * (LENGTHS + 1.0) / 2.0

# KV caches of 8 bits

LLAMA_FP8 = Heads(32, 8, 128, 2 * 8 * 128, 1)  # Llama-3.1-8B on one GPU


def test_decode_of_an_fp8_cache_is_the_tables_line() -> None:
    """2048 bytes a token and layer, where they are twice the H100's L2 cache of 50 MB."""
    rows = rows_where("h100_sxm", "decode_attention", kv="fp8", heads=32, kv_heads=8, head_dim=128, window=0)
    found = decode(H100, TOKENS, LLAMA_FP8)
    assert (found.per_token.kind, found.per_token.off_grid) == (MEASURED, 0.0)
    errors = []
    for n, context, us in zip(rows["batch"], rows["context"] + 1.0, rows["latency_us"], strict=True):
        if n <= 512 and n * context * 2048 >= 100e6:
            i = int(np.searchsorted(TOKENS, n))
            errors.append((found.launch.us[i] + found.per_token.us[i] * n * context) / us - 1.0)
    assert len(errors) > 25 and abs(np.median(errors)) < 0.03 and np.quantile(np.abs(errors), 0.9) < 0.12


def test_an_fp8_cache_is_read_faster() -> None:
    """Between half and all of the time; on an A100, without such rows, half."""
    wide = Heads(32, 8, 128, 2 * 8 * 128, 2)
    for gpu, low, high in ((H100, 0.5, 0.8), (H200, 0.5, 0.8), (B200, 0.45, 0.8), (A100, 0.5, 0.5)):
        many = TOKENS >= 16
        share = (decode(gpu, TOKENS, LLAMA_FP8).per_token.us / decode(gpu, TOKENS, wide).per_token.us)[many]
        assert low - 1e-9 <= np.median(share) <= high + 1e-9, (gpu.tables, np.median(share))
    assert decode(A100, TOKENS, LLAMA_FP8).per_token.kind == NEAREST


def test_prefill_with_an_fp8_cache_is_the_tables() -> None:
    rows = rows_where("h100_sxm", "prefill_attention", kv="fp8", heads=32, kv_heads=8, head_dim=128, window=0)
    lengths = rows["context"].astype(float)
    found = prefill(H100, lengths, LLAMA_FP8)
    long = lengths >= 4096
    above = rows["latency_us"] - rows["latency_us"][0]
    assert long.sum() >= 5 and found.kind == MEASURED
    np.testing.assert_allclose((found.us * lengths * (lengths + 1.0) / 2.0)[long], above[long], rtol=0.06)


# Sliding windows


@pytest.mark.parametrize("gpu", [H100, A100, B200, L40S], ids=lambda gpu: gpu.tables)
@pytest.mark.parametrize("window", [128, 1024, 4096])
def test_prefill_in_a_window(gpu: KernelGpu, window: int) -> None:
    """Below the window as without; far above, twice the length takes twice the time; never more than without."""
    plain = prefill(gpu, LENGTHS, Heads(16, 2, 128, 512, 2))
    found = windowed(plain, LENGTHS, window)
    inside = window >= LENGTHS
    np.testing.assert_allclose(found.us[inside], plain.us[inside], rtol=1e-12)
    assert never_falls(found.us * PAIRS)
    whole = {n: float((found.us * PAIRS)[n == LENGTHS][0]) for n in (32768, 65536, 131072)}
    assert whole[131072] - whole[65536] == pytest.approx(2 * (whole[65536] - whole[32768]), rel=1e-6)
    assert (found.us <= plain.us * (1 + 1e-9)).all()


# Latent attention: DeepSeek-V3 has a latent vector of 512 + 64, queries of rank 1536, heads of 128 + 64 and 128.

V3 = Latent(512, 64, 128, 128, 1536)
V32 = Latent(512, 64, 128, 128, 1536, topk=2048, index_heads=64, index_dim=128)


def layer_of(
    gpu: KernelGpu, weights: Format = BF16, kv_bytes: int = 2, heads: int = 128, widths: Latent = V3
) -> tuple[Decode, Timing]:
    """A layer of DeepSeek-V3 with so many of its 128 heads on a GPU."""
    group = Attention(61, 128, 128, 192, 128, latent=widths)
    model = Architecture(
        *(61, 7168, 129280, False, 0, (group,), 61, 18432), formats=Formats.all(weights), kv_bytes=kv_bytes
    )
    return latent(gpu, TOKENS, LENGTHS, group, heads, model)


def products_us(gpu: KernelGpu, weights: Format, tokens: float, heads: int) -> float:
    """Down to 1536 + 576, up to heads of 192, of 256, and back to 7168."""
    shapes = ((1536 + 576, 7168), (192 * heads, 1536), (256 * heads, 512), (7168, 128 * heads))
    return float(sum(gemm(gpu, np.array([tokens]), n, k, weights).us[0] for n, k in shapes))


MODULES = [(H100, BF16, 2, 128), (H100, FP8_BLOCK, 1, 16), (H200, BF16, 1, 128), (B200, NVFP4, 2, 128)]


@pytest.mark.parametrize(("gpu", "weights", "kv_bytes", "heads"), MODULES)
def test_a_decode_is_a_measured_module(gpu: KernelGpu, weights: Format, kv_bytes: int, heads: int) -> None:
    """Launch, products and context together, at several numbers of requests and contexts."""
    found, _ = layer_of(gpu, weights, kv_bytes, heads)
    assert (found.per_token.kind, found.per_token.off_grid) == (MEASURED, 0.0)
    columns = {"kv": "fp8" if kv_bytes == 1 else "bf16", "dtype": weights.name, "heads": heads, "hidden": 7168}
    for n, context in ((1, 1024), (8, 4096), (16, 16384), (64, 2048), (64, 8192), (256, 1024), (256, 8192)):
        rows = rows_where(gpu.tables, "latent_decode", batch=n, context=context, **columns)
        i = int(np.searchsorted(TOKENS, n))
        us = found.launch.us[i] + products_us(gpu, weights, n, heads) + found.per_token.us[i] * n * context
        assert us == pytest.approx(rows["latency_us"].min(), rel=0.15), (n, context)


@pytest.mark.parametrize(("gpu", "weights", "kv_bytes", "heads"), MODULES)
def test_a_long_prompt_is_a_measured_module(gpu: KernelGpu, weights: Format, kv_bytes: int, heads: int) -> None:
    _, per_pair = layer_of(gpu, weights, kv_bytes, heads)
    columns = {"kv": "fp8" if kv_bytes == 1 else "bf16", "dtype": weights.name, "heads": heads, "hidden": 7168}
    for n in (4096, 8192, 16384):
        rows = rows_where(gpu.tables, "latent_prefill", context=n, **columns)
        us = per_pair.us[n == LENGTHS][0] * n * (n + 1) / 2 + products_us(gpu, weights, n, heads)
        assert us == pytest.approx(rows["latency_us"].min(), rel=0.15), n


@pytest.mark.parametrize("gpu", [H100, H200, A100, B200, L40S], ids=lambda gpu: gpu.tables)
@pytest.mark.parametrize("widths", [V3, V32], ids=["dense", "sparse"])
def test_latent_attention_rises_with_requests_and_context(gpu: KernelGpu, widths: Latent) -> None:
    for weights, heads in ((BF16, 128), (FP8_BLOCK, 16), (NVFP4, 20), (MXFP4, 3)):
        one, per_pair = layer_of(gpu, weights, heads=heads, widths=widths)
        assert never_falls(one.launch.us) and never_falls(one.per_token.us) and never_falls(per_pair.us * PAIRS)
        assert (one.per_token.us > 0.0).all() and (per_pair.us > 0.0).all() and (one.launch.us >= LAUNCH_US).all()


def test_a_gpu_without_modules_has_half_its_datasheet() -> None:
    """An A100 reads 576 scalars of 2 bytes at 2.039 MB/us; 2 * 128 * 320 FLOPs a pair at 312e6 a us."""
    one, per_pair = layer_of(A100)
    assert {one.launch.kind, one.per_token.kind, per_pair.kind} == {DATASHEET}
    assert one.launch.us[0] == LEAST_US and UNMEASURED == 0.5
    np.testing.assert_allclose(one.per_token.us, 576 * 2 / 2.039e6 / 0.5)
    np.testing.assert_allclose(per_pair.us, 2 * 128 * (128 + 64 + 128) / 312e6 / 0.5)


def test_an_fp8_cache_of_latent_vectors_is_half() -> None:
    """Where no such module was measured, as on an L40S."""
    wide, narrow = (layer_of(L40S, kv_bytes=kv_bytes)[0] for kv_bytes in (2, 1))
    assert (wide.per_token.kind, narrow.per_token.kind) == (MEASURED, NEAREST)
    np.testing.assert_allclose(narrow.per_token.us, wide.per_token.us / 2)
    assert (narrow.launch.us == wide.launch.us).all()


def test_other_widths_are_not_measured() -> None:
    """Half the latent vector takes half as long a token of context."""
    half = Latent(256, 32, 128, 128, 1536)
    own, narrow = (layer_of(H100, widths=widths)[0].per_token for widths in (V3, half))
    assert narrow.kind == NEAREST
    np.testing.assert_allclose(narrow.us, own.us / 2)
