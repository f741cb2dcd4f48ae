"""The alphabet: every field of the contract, with its unit, and its value by hand and by brute force."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_curve import plain_curve

from simulator import schema
from simulator.clock import vm
from simulator.clock.bind import Bound, bind
from simulator.clock.fields import Active, BatchFields, raw_fields
from simulator.common.errors import InputError
from simulator.language import units
from simulator.language.opcodes import assemble, formula
from simulator.language.parse import parse
from simulator.schema import CURVES, FIELDS, KERNELS, PAPER18, PHYSICAL, RAW, RAW_FIELDS, RECORDED, SPECIAL
from simulator.serving.experiment import Engine
from simulator.serving.facts import Facts, curve_of
from simulator.serving.known import facts_of

BATCH_UNITS = {
    "request": "prefill_reqs decode_reqs batch_size decode_tokens graph_batch sorted_logits penalised_logits",
    "token": "prefill_tokens tokens max_prefill_chunk kv_sum kv_mean kv_max kv_decode_sum kv_decode_mean "
             "kv_decode_max graph_tokens",
    "token**2": "prefill_pairs kv_var",
    "one": "experts_fraction uncaptured",
    "us": "weight_read_us expert_read_us kv_read_us decode_kv_read_us kv_write_us prefill_gemm_us "
          "decode_gemm_us prefill_attention_us decode_attention_us prefill_bytes_us decode_bytes_us logits_us allreduce_us "
          "kernel_gemm_us kernel_elementwise_us kernel_moe_us kernel_moe_quantized_us kernel_router_us "
          "kernel_allreduce_us kernel_lm_head_us kernel_sampler_us "
          "kernel_decode_launch_us kernel_decode_attention_us kernel_prefill_attention_us kernel_us",
    "us/token": "kernel_decode_us_per_token",
    "us/token**2": "kernel_prefill_us_per_pair",
    "flop": "attention_flops total_flops",
    "byte": "total_bytes",
}  # fmt: skip
STATIC_UNITS = {
    "one": "layers dense_layers moe_layers hidden heads kv_heads kv_heads_per_gpu head_dim ffn moe_ffn vocab "
           "experts active_experts tp tp_log2 is_moe is_fp8 sampling_sort repetition_penalty kv_blocks "
           "kv_cpu_offload model_params_b active_params_b",
    "request": "max_num_seqs",
    "token": "max_num_batched_tokens max_model_len block_size",
    "us": "reference_step_us shared_weights_us experts_us weights_us",
    "flop/us": "flops_per_us",
    "byte/us": "bytes_per_us link_bytes_per_us",
    "byte/token": "kv_bytes_per_token",
    "us/token": "kv_us_per_token gemm_us_per_token allreduce_us_per_token",
    "us/token**2": "attention_us_per_pair",
    "us/request": "logits_us_per_row",
}  # fmt: skip

# Round figures, but the measured kernels of a real deployment: their curves are in the tests as they are.
DEPLOYED = facts_of("mixtral-8x7b", "H100", Engine(tensor_parallel=2)).deployed
FACTS = Facts({
    "shared_weights_us": 3000.0, "experts_us": 900.0, "experts": 8.0, "active_experts": 2.0,
    "kv_us_per_token": 0.5,
    "gemm_us_per_token": 0.25, "attention_us_per_pair": 0.001, "logits_us_per_row": 1.5,
    "allreduce_us_per_token": 0.125, "flops_per_us": 1e9, "bytes_per_us": 3e6, "hidden": 64.0, "vocab": 100.0,
    "tp": 2.0, "layers": 12.0, "max_num_seqs": 128.0, "sampling_sort": 1.0, "repetition_penalty": 0.5,
}, DEPLOYED)  # fmt: skip


def at(name: str, x: float, facts: Facts = FACTS) -> float:
    """A curve of the deployment, read in plain Python."""
    return plain_curve(curve_of(facts, name).tolist(), x)


DEPLOYMENTS = {
    f"{model} tp{tp}": facts_of(model, "H100", Engine(tensor_parallel=tp, max_num_seqs=seqs))
    for model, tp, seqs in (
        *(("llama-3.1-8b", 1, 128), ("codellama-34b", 2, 256), ("llama-2-70b", 4, 100)),
        *(
            ("mixtral-8x7b", 2, 128),
            ("mixtral-8x7b", 4, 33),
            ("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic", 2, 128),
        ),
    )
}
ALL = {"round": FACTS, **DEPLOYMENTS}


# (I, PI, NN): a prompt continued, a prompt begun, a first decode, a later one, a far one
MIXED = [(100, 32, 40), (7, 0, 7), (50, 50, 1), (20, 31, 1), (1, 9, 1)]
TOUCHED = 1 - 0.75**50
BY_HAND = {
    "prefill_reqs": 2, "decode_reqs": 3, "decode_tokens": 3, "batch_size": 2 + 3,
    "prefill_tokens": 40 + 7, "tokens": 40 + 7 + 3, "max_prefill_chunk": 40,
    "prefill_pairs": (40 * 32 + 40 * 41 / 2) + (7 * 0 + 7 * 8 / 2),
    "kv_sum": 32 + 0 + 50 + 31 + 9, "kv_mean": 122 / 5, "kv_max": 50,
    "kv_var": (5 * (32**2 + 50**2 + 31**2 + 9**2) - 122**2) / 25,
    "kv_decode_sum": 50 + 31 + 9, "kv_decode_mean": 90 / 3, "kv_decode_max": 50,
    "experts_fraction": TOUCHED, "graph_batch": 5,
    "expert_read_us": 900 * TOUCHED, "weight_read_us": 3000 + 900 * TOUCHED,
    "kv_read_us": 0.5 * 122, "decode_kv_read_us": 0.5 * 90, "kv_write_us": 0.5 * 50,
    "prefill_gemm_us": 0.25 * 47, "decode_gemm_us": 0.25 * 3,
    "prefill_attention_us": 0.001 * 2128, "decode_attention_us": 0.001 * (90 + 3),
    # 32 tokens of context in the prompts, 90 in the decodes; a token has its KV entries and 8 bytes x 12 layers x 64
    "prefill_bytes_us": 3000 + 900 * TOUCHED + 0.5 * 32 + 47 * (0.5 + 8 * 12 * 64 / 3e6),
    "decode_bytes_us": 3000 + 900 * TOUCHED + 0.5 * 90 + 3 * (0.5 + 8 * 12 * 64 / 3e6),
    "logits_us": 1.5 * 5, "allreduce_us": 0.125 * 50,
    "attention_flops": 0.001 * 1e9 * (2128 + 93),
    "total_flops": 0.25 * 1e9 * 50 + 0.001 * 1e9 * (2128 + 93) + 2 * 64 * 100 / 2 * 5,
    "total_bytes": (3000 + 900 * TOUCHED + 61 + 25) * 3e6 + 100 * 4 * 2 * 5,
    "sorted_logits": 1 * 100 * 5, "penalised_logits": 0.5 * 100 * 5,
    "graph_tokens": 56,  # of 50
    "uncaptured": 0,
    "kernel_gemm_us": at("gemm", 56), "kernel_elementwise_us": at("elementwise", 56), "kernel_moe_us": at("moe", 50),
    "kernel_moe_quantized_us": at("moe_quantized", 50),
    "kernel_router_us": at("router", 56), "kernel_allreduce_us": at("allreduce", 56), "kernel_lm_head_us": at("lm_head", 5),
    "kernel_sampler_us": at("sampler", 5),
    "kernel_decode_launch_us": at("decode_launch", 3), "kernel_decode_us_per_token": at("decode_per_token", 3),
    "kernel_decode_attention_us": at("decode_launch", 3) + at("decode_per_token", 3) * 90,
    "kernel_prefill_us_per_pair": at("prefill_per_pair", 2 * 2128 / 47 - 1),
    "kernel_prefill_attention_us": at("prefill_per_pair", 2 * 2128 / 47 - 1) * 2128,
    "kernel_us": sum(at(name, 56) for name in ("gemm", "elementwise", "router", "allreduce")) + at("moe", 50)
    + at("moe_quantized", 50) + at("lm_head", 5) + at("sampler", 5)
    + at("decode_launch", 3) + at("decode_per_token", 3) * 90 + at("prefill_per_pair", 2 * 2128 / 47 - 1) * 2128,
}  # fmt: skip


def batch_of(requests: list[tuple[int, int, int]]) -> list[Active]:
    return [Active(*r) for r in requests]


@cache
def bound_of(name: str, deployment: str) -> Bound:
    return bind(assemble(parse(f"def step_time(b, s): return b.{name}")), (), ALL[deployment])


def compiled(name: str, requests: list[tuple[int, int, int]], deployment: str = "round") -> float:
    """The field as the compiled opcodes give it, from the raw sums."""
    raw = raw_fields(batch_of(requests))
    return bound_of(name, deployment).step_us(np.array([raw[n] for n in RAW]))


def captured(tokens: int, most_requests: float) -> int:
    """The least captured CUDA graph that holds so many tokens; vllm 0.15, config/vllm.py, _set_cudagraph_sizes."""
    most = min(int(most_requests) * 2, 512)
    sizes = [0, *(i for i in (1, 2, 4) if i <= most)]
    sizes += list(range(8, min(most + 1, 256), 8)) if most >= 8 else []
    sizes += list(range(256, most + 1, 16)) if most >= 256 else []
    return min((size for size in sizes if size >= tokens), default=tokens)


def kernels_by_hand(requests: list[tuple[int, int, int]], facts: Facts) -> dict[str, float]:
    """The fields of measured kernels from the deployment's curves."""
    n = len(requests)
    decodes = [done for length, done, _ in requests if done >= length]
    chunks = [(done, new) for length, done, new in requests if done < length]
    tokens = len(decodes) + sum(new for _, new in chunks)
    pairs = sum(done * new + new * (new + 1) // 2 for done, new in chunks)
    most, size = min(2 * facts["max_num_seqs"], 512), captured(tokens, facts["max_num_seqs"])
    found = {f"kernel_{name}_us": at(name, size, facts) for name in ("gemm", "elementwise", "router", "allreduce")}
    for name in ("moe", "moe_quantized"):  # padding touches no experts of its own
        found[f"kernel_{name}_us"] = at(name, tokens, facts)
    found["kernel_lm_head_us"], found["kernel_sampler_us"] = at("lm_head", n, facts), at("sampler", n, facts)
    found["kernel_decode_launch_us"] = at("decode_launch", len(decodes), facts)
    found["kernel_decode_us_per_token"] = at("decode_per_token", len(decodes), facts)
    found["kernel_decode_attention_us"] = found["kernel_decode_launch_us"] + found["kernel_decode_us_per_token"] * sum(
        decodes
    )
    # attended pairs of whole prompts that are this long on average
    length = 2 * pairs / sum(new for _, new in chunks) - 1 if chunks else -1.0
    found["kernel_prefill_us_per_pair"] = at("prefill_per_pair", length, facts)
    found["kernel_prefill_attention_us"] = found["kernel_prefill_us_per_pair"] * pairs
    parts = (
        *("gemm", "elementwise", "moe", "moe_quantized", "router", "allreduce", "lm_head", "sampler"),
        *("decode_attention", "prefill_attention"),
    )
    total = 0.0
    for part in parts:
        total += found[f"kernel_{part}_us"]
    return {"graph_tokens": size, "uncaptured": tokens > most, **found, "kernel_us": total}


def brute_force(requests: list[tuple[int, int, int]]) -> dict[str, float]:
    """Every batch field from the contract's words, one request after the other."""
    prefill_reqs = decode_reqs = prefill_tokens = chunk = pairs = kv = kv_max = squares = 0
    decode_kv = decode_max = 0
    for length, done, new in requests:
        kv += done
        squares += done**2
        kv_max = max(kv_max, done)
        if done < length:
            prefill_reqs += 1
            prefill_tokens += new
            chunk = max(chunk, new)
            pairs += sum(done + i for i in range(1, new + 1))  # token i attends to everything up to itself
        else:
            decode_reqs += 1
            decode_kv += done
            decode_max = max(decode_max, done)
    n, tokens = prefill_reqs + decode_reqs, prefill_tokens + decode_reqs
    fraction, base, left = 1.0, 1 - 2 / 8, tokens
    while left:
        fraction *= base if left % 2 else 1.0
        base, left = base * base, left // 2
    touched = 1 - fraction
    sizes = [0, 1, 2, 4, *range(8, 513, 8)]
    graph = n if prefill_reqs or decode_reqs > 512 else min(size for size in sizes if size >= decode_reqs)
    f = FACTS
    weights = f["shared_weights_us"] + f["experts_us"] * touched
    attention = f["attention_us_per_pair"] * f["flops_per_us"] * (pairs + (decode_kv + decode_reqs))
    kv_us = f["kv_us_per_token"]
    token_us = kv_us + 8 * f["layers"] * f["hidden"] / f["bytes_per_us"]
    return {
        "prefill_bytes_us": (weights + (kv_us * kv - kv_us * decode_kv) + token_us * prefill_tokens) if prefill_reqs else 0,
        "decode_bytes_us": (weights + kv_us * decode_kv + token_us * decode_reqs) if decode_reqs else 0,
        "prefill_reqs": prefill_reqs, "decode_reqs": decode_reqs, "decode_tokens": decode_reqs,
        "batch_size": n,
        "prefill_tokens": prefill_tokens, "tokens": tokens, "max_prefill_chunk": chunk,
        "prefill_pairs": pairs,
        "kv_sum": kv, "kv_mean": kv / n if n else 0, "kv_max": kv_max,
        "kv_var": float(n * squares - kv * kv) / float(n * n) if n else 0,
        "kv_decode_sum": decode_kv, "kv_decode_mean": decode_kv / decode_reqs if decode_reqs else 0,
        "kv_decode_max": decode_max, "experts_fraction": touched, "graph_batch": graph,
        "weight_read_us": weights, "expert_read_us": f["experts_us"] * touched,
        "kv_read_us": f["kv_us_per_token"] * kv, "decode_kv_read_us": f["kv_us_per_token"] * decode_kv,
        "kv_write_us": f["kv_us_per_token"] * tokens,
        "prefill_gemm_us": f["gemm_us_per_token"] * prefill_tokens,
        "decode_gemm_us": f["gemm_us_per_token"] * decode_reqs,
        "prefill_attention_us": f["attention_us_per_pair"] * pairs,
        "decode_attention_us": f["attention_us_per_pair"] * (decode_kv + decode_reqs),
        "logits_us": f["logits_us_per_row"] * n, "allreduce_us": f["allreduce_us_per_token"] * tokens,
        "attention_flops": attention,
        "total_flops": f["gemm_us_per_token"] * f["flops_per_us"] * tokens + attention
        + 2 * f["hidden"] * f["vocab"] / f["tp"] * n,
        "total_bytes": f["bytes_per_us"]
        * (weights + f["kv_us_per_token"] * kv + f["kv_us_per_token"] * tokens)
        + 4 * 2 * f["vocab"] * n,
        "sorted_logits": f["sampling_sort"] * f["vocab"] * n,
        "penalised_logits": f["repetition_penalty"] * f["vocab"] * n,
        **kernels_by_hand(requests, FACTS),
    }  # fmt: skip


def names(scope: str) -> list[str]:
    return [name for s, name in FIELDS if s == scope]


@pytest.mark.parametrize(("scope", "table"), [("b", BATCH_UNITS), ("s", STATIC_UNITS), ("r", {"token": "input_len"})])
def test_fields_and_units_are_the_contracts(scope: str, table: dict[str, str]) -> None:
    expected = {name: unit for unit, some in table.items() for name in some.split()}
    assert {name: FIELDS[scope, name].unit for name in names(scope)} == expected


def test_every_field_has_a_meaning_and_a_go_spelling() -> None:
    for (scope, name), spec in FIELDS.items():
        assert (spec.scope, spec.name) == (scope, name)
        assert len(spec.meaning) > 5 and "\n" not in spec.meaning
        assert re.fullmatch(r"[bd]\.([A-Z][A-Za-z0-9]*)+|inputLen", spec.go), spec.go
        assert units.spell(units.read(spec.unit)) == spec.unit
    assert len({spec.go for spec in FIELDS.values()}) == len(FIELDS)


def test_raw_special_and_derived_fields_are_all_batch_fields() -> None:
    derived = [name for name in names("b") if FIELDS["b", name].formula is not None]
    curves = [name for name in names("b") if FIELDS["b", name].curve]
    assert sorted((*RECORDED, *SPECIAL, *derived, *curves)) == sorted(names("b"))
    assert all(formula(name) for name in (*derived, *curves))
    assert sorted(FIELDS["b", name].curve for name in curves) == sorted(CURVES)  # each is read by one field
    assert all(bool(spec.curve) == bool(spec.at) for spec in FIELDS.values())
    assert set(KERNELS) == {name for name in names("b") if name.startswith("kernel_")}
    assert not PHYSICAL & set(KERNELS)
    assert [getattr(schema, name.upper()) for name in RAW] == list(range(RAW_FIELDS))
    assert {name for _, name in FIELDS} >= PHYSICAL


def test_the_original_names() -> None:
    bare = [
        "prefill_tokens", "decode_tokens", "prefill_reqs", "decode_reqs", "batch_size", "kv_mean", "kv_max",
        "kv_sum", "kv_var", "kv_decode_mean", "kv_decode_max", "total_flops", "total_bytes",
        "attention_flops", "model_params_b", "active_params_b", "tp", "is_moe",
    ]  # fmt: skip
    assert len(bare) == len(PAPER18) == 18
    assert sorted(name.partition(".")[2] for name in PAPER18) == sorted(bare)
    assert all(tuple(name.split(".")) in FIELDS for name in PAPER18)


@pytest.mark.parametrize("name", names("b"))
def test_a_mixed_batch_by_hand(name: str) -> None:
    assert BatchFields(batch_of(MIXED), FACTS)["b", name] == pytest.approx(BY_HAND[name], rel=1e-14)
    assert compiled(name, MIXED) == pytest.approx(BY_HAND[name], rel=1e-14)


@pytest.mark.parametrize("name", names("b"))
def test_an_empty_batch(name: str) -> None:
    """No tokens: weights are read all the same, and curves have their first value."""
    expected = {"weight_read_us": 3000.0, "total_bytes": 9e9, "kernel_prefill_attention_us": 0.0}
    if name in KERNELS:
        expected |= kernels_by_hand([], FACTS)
        assert expected[name] > 0.0 or name in ("kernel_prefill_attention_us", "kernel_moe_quantized_us")
    assert BatchFields([], FACTS)["b", name] == compiled(name, []) == expected.get(name, 0.0)


requests = st.lists(
    st.tuples(st.integers(1, 100_000), st.integers(0, 120_000), st.integers(1, 3_000)), max_size=40
).map(lambda some: [(i, p, min(n, i - p) if p < i else 1) for i, p, n in some])


@given(requests)
def test_random_batches_by_brute_force(some: list[tuple[int, int, int]]) -> None:
    fields = BatchFields(batch_of(some), FACTS)
    for name, expected in brute_force(some).items():
        assert fields["b", name] == expected, name
        assert compiled(name, some) == expected, name


@given(requests, st.sampled_from(list(DEPLOYMENTS)))
def test_kernel_fields_of_deployments_by_hand(some: list[tuple[int, int, int]], deployment: str) -> None:
    """Dense, mixtures, bf16 and fp8 on 1, 2 and 4 GPUs: clock and plain fields agree to the last bit."""
    facts = DEPLOYMENTS[deployment]
    fields = BatchFields(batch_of(some), facts)
    for name, expected in kernels_by_hand(some, facts).items():
        assert fields["b", name] == compiled(name, some, deployment) == expected, name


def test_a_deployment_without_tables_has_no_kernel_fields() -> None:
    bare = facts_of("llama-3.1-8b", "H100-NVL", Engine())
    with pytest.raises(InputError, match="this deployment has none: choose a GPU with tables"):
        BatchFields(batch_of(MIXED), bare)["b", "kernel_gemm_us"]
    with pytest.raises(InputError, match="this deployment has none"):
        bind(assemble(parse("def step_time(b, s): return b.kernel_us")), (), bare)
    assert BatchFields(batch_of(MIXED), bare)["b", "graph_tokens"] == 56.0


def test_every_batch_field_is_covered() -> None:
    assert sorted(BY_HAND) == sorted(brute_force([])) == sorted(names("b"))


def test_variance_rounds_as_int64_divided_in_float64() -> None:
    """Beyond 2**53 an exact quotient would differ from the clock's and Go's."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        done = rng.integers(0, 10**6, 500)
        n, s1, s2 = np.int64(500), done.sum(), (done * done).sum()
        value = raw_fields([Active(1, int(p), 1) for p in done])["kv_var"]
        assert value == np.float64(n * s2 - s1 * s1) / np.float64(n * n)


@pytest.mark.parametrize(
    ("prefill", "decodes", "expected"),
    [(0, 0, 0), (0, 1, 1), (0, 2, 2), (0, 3, 4), (0, 4, 4), (0, 5, 8), (0, 8, 8), (0, 9, 16), (0, 16, 16), (0,
        505, 512),
     (0, 512, 512), (0, 513, 513), (0, 2000, 2000), (1, 0, 1), (1, 3, 4), (2, 5, 7), (1, 512, 513)],
)  # fmt: skip
def test_graph_batch(prefill: int, decodes: int, expected: int) -> None:
    assert vm.graph_batch(float(prefill), float(decodes)) == expected
    some = [(9, 0, 9)] * prefill + [(9, 9, 1)] * decodes
    assert BatchFields(batch_of(some), FACTS)["b", "graph_batch"] == expected
    assert compiled("graph_batch", some) == expected


@pytest.mark.parametrize(
    ("tokens", "most_requests", "expected"),
    [(0, 128, 0), (1, 128, 1), (2, 128, 2), (3, 128, 4), (5, 128, 8), (249, 128, 256), (256, 128, 256), (257, 128, 257),
     (257, 256, 272), (496, 256, 496), (497, 256, 512), (512, 256, 512), (513, 256, 513), (513, 4000, 513),
     # captured are 1, 2, 4 and 8: ten tokens, twice the requests, are in no graph
     (8, 5, 8), (9, 5, 9), (10, 5, 10), (3, 1, 3), (2, 1, 2), (129, 65, 129), (257, 130, 257), (65536, 128, 65536)],
)  # fmt: skip
def test_graph_tokens(tokens: int, most_requests: int, expected: int) -> None:
    assert captured(tokens, most_requests) == expected
    assert vm.graph_tokens(float(tokens), float(most_requests)) == expected


def test_graph_tokens_of_every_number() -> None:
    for most_requests in (1, 2, 3, 7, 64, 100, 128, 130, 135, 255, 256, 1024):
        found = [vm.graph_tokens(float(tokens), float(most_requests)) for tokens in range(600)]
        assert found == [captured(tokens, most_requests) for tokens in range(600)]
        assert found == sorted(found)


@pytest.mark.parametrize(("active", "experts"), [(2, 8), (1, 16), (8, 128), (4, 16), (1, 1), (6, 64), (3, 3)])
def test_experts_fraction(active: int, experts: int) -> None:
    for tokens in [*range(40), 127, 128, 129, 1000, 2048, 16_384]:
        missed = Fraction(experts - active, experts) ** tokens
        value = vm.experts_fraction(float(active), float(experts), float(tokens))
        assert value == pytest.approx(float(1 - missed), rel=1e-12, abs=1e-15)
        assert value == 1.0 - _power(1.0 - active / experts, tokens)
        assert 0.0 <= value <= 1.0
    assert value == pytest.approx(1.0)


def _power(base: float, exponent: int) -> float:
    """By repeated squaring: the product of base**(2**i) over the exponent's binary digits, lowest first."""
    squares = [base]
    for _ in range(exponent.bit_length()):
        squares.append(squares[-1] * squares[-1])
    return math.prod(s for s, digit in zip(squares, reversed(f"{exponent:b}"), strict=False) if digit == "1")


def test_experts_fraction_of_a_dense_model() -> None:
    assert vm.experts_fraction(0.0, 0.0, 100.0) == 0.0
    assert vm.experts_fraction(2.0, 8.0, 0.0) == 0.0
