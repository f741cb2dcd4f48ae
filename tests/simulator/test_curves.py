"""Curves of models with windows, small kernels and no all-reduces, from their operations by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from measured import H100

from simulator.clock.fields import Active, BatchFields
from simulator.kernels.allreduce import allreduce
from simulator.kernels.attention import Heads, decode, prefill, windowed
from simulator.kernels.curves import LENGTHS, TOKENS, Deployed, Kernels, kernels
from simulator.model.formats import FP8_BLOCK, Formats
from simulator.serving.engine import Engine
from simulator.serving.facts import Facts
from simulator.serving.known import facts_of

ROUNDED = 1e-6  # relative: a curve's knots have seven digits


def deployed(model: str, tp: int = 1) -> Deployed:
    found = facts_of(model, "H100", Engine(tensor_parallel=tp)).deployed
    assert found
    return found


def in_windows(window: int) -> Deployed:
    """Llama-3.1-8B as if 24 of its 32 layers saw so many tokens back."""
    one = deployed("llama-3.1-8b")
    main = one.architecture.main
    layers = replace(main, layers=8), replace(main, layers=24, window=window)
    return replace(one, architecture=replace(one.architecture, attention=layers))


def small(found: Kernels) -> dict[str, tuple[int, str]]:
    return {o.name: (o.calls, o.shape) for o in found.operations if o.curve == "small"}


def test_layers_with_a_window_have_their_own_context() -> None:
    """A token of context takes as long in 8 layers and, up to the window, in 24."""
    found = kernels(in_windows(1024)).curves
    heads = Heads(32, 8, 128, 2 * 8 * 128, 2)
    one, pair = decode(H100, TOKENS, heads), prefill(H100, LENGTHS, heads)
    np.testing.assert_allclose(found["decode_launch"], 32 * one.launch.us, rtol=ROUNDED)
    np.testing.assert_allclose(found["decode_per_token"], 8 * one.per_token.us, rtol=ROUNDED)
    np.testing.assert_allclose(found["window_per_token"], 24 * one.per_token.us, rtol=ROUNDED)
    pairs = 8 * pair.us + 24 * windowed(pair, LENGTHS, 1024).us
    np.testing.assert_allclose(found["prefill_per_pair"], pairs, rtol=ROUNDED)
    assert not kernels(deployed("llama-3.1-8b")).curves["window_per_token"].any()


@pytest.mark.parametrize(("context", "seen"), [(500, 500), (1024, 1024), (9000, 1024)])
def test_a_decode_reads_no_more_than_the_window(context: int, seen: int) -> None:
    own = in_windows(1024)
    facts = Facts({**facts_of("llama-3.1-8b", "H100", Engine()), "window": 1024}, own)
    b = BatchFields([Active(0, context, 1)] * 8, facts)
    at = int(np.searchsorted(TOKENS, 8))
    curves = kernels(own).curves
    whole, window = (curves[name][at] for name in ("decode_per_token", "window_per_token"))
    expected = curves["decode_launch"][at] + 8 * (whole * context + window * seen)
    assert b["b", "kernel_decode_attention_us"] == pytest.approx(expected, rel=1e-12)


def test_small_kernels_of_a_mixture() -> None:
    """Four launches in each of Mixtral's 32 layers, for two copies of 4096 scalars."""
    found = kernels(deployed("mixtral-8x7b", 2))
    assert small(found) == {"experts: top-k, sort, copy, sum": (4 * 32, "8192 scalars a token")}
    us = np.maximum(TOKENS * 8192 * 2 / 3.35e6, 2.0)
    np.testing.assert_allclose(found.curves["small"], 128 * us, rtol=ROUNDED)


def test_blocks_of_8_bits_have_their_activations_quantized() -> None:
    """Before two products of attention and two of the feed-forward block: 4 in each of Llama-3.1-8B's 32 layers."""
    plain = deployed("llama-3.1-8b")
    blocks = replace(plain, architecture=replace(plain.architecture, formats=Formats.all(FP8_BLOCK)))
    found = kernels(blocks)
    rows = [o for o in found.operations if o.curve == "small"]
    assert [(o.calls, o.shape) for o in rows] == [(128, "8192 scalars a token")]
    us = np.maximum(TOKENS * 8192 * 2 / 3.35e6, 2.0)
    np.testing.assert_allclose(found.curves["small"], 128 * us, rtol=ROUNDED)
    assert not kernels(plain).curves["small"].any()


def test_norms_over_all_heads_exchange_their_sums() -> None:
    """Of queries and keys, 8 bytes a token, if there are several GPUs."""
    names = "norm of queries and keys", "all-reduce of their norms"
    for tp in (1, 2):
        one = deployed("llama-3.1-8b", tp)
        layers = (replace(one.architecture.main, normed=True),)
        normed = replace(one, architecture=replace(one.architecture, attention=layers))
        found = kernels(normed)
        heads = 32 // tp * 128
        expected = {names[0]: (32, f"{2 * heads} scalars a token")}
        assert small(found) == (expected if tp == 1 else expected | {names[1]: (32, "8 bytes a token")})
        us = np.maximum(TOKENS * 2 * heads * 2 / 3.35e6, 2.0) + allreduce(H100, TOKENS * 8, tp).us
        np.testing.assert_allclose(found.curves["small"], 32 * us, rtol=ROUNDED)
        assert list(small(kernels(replace(normed, reduces=False)))) == [names[0]]


def test_a_link_without_time_changes_all_reduces_alone() -> None:
    whole = deployed("llama-3.1-70b", 4)
    alone = kernels(replace(whole, reduces=False)).curves
    for name, values in kernels(whole).curves.items():
        if name == "allreduce":
            assert values.all() and not alone[name].any() and len(alone[name]) == len(values)
        else:
            assert (alone[name] == values).all(), name
