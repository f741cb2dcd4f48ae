"""Every field, its unit, and its value: by hand on one batch, by brute force and by CPython on random ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import run
from plain_curve import plain_curve

from simulator.clock import vm
from simulator.clock.bind import Bound, bind
from simulator.clock.fields import Active, BatchFields, raw_fields
from simulator.common.errors import InputError
from simulator.kernels.curves import Deployed
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.schema import FIELDS, KERNELS, PHYSICAL, RAW, declared
from simulator.serving.engine import Engine
from simulator.serving.facts import Facts, curve_of
from simulator.serving.known import facts_of

# Sample values, with round figures for most, and the measured kernels of a real deployment.
ROUND = """
    shared_weights_us 3000, experts_us 900, experts 8, active_experts 2, kv_us_per_token 0.5, gemm_us_per_token 0.25,
    attention_us_per_pair 0.001, logits_us_per_row 1.5, allreduce_us_per_token 0.125, flops_per_us 1e9, bytes_per_us 3e6,
    hidden 64, vocab 100, tp 2, dp 2, layers 12, window 20, max_num_seqs 128, sampling_sort 1, repetition_penalty 0.5
"""


def windowed() -> Deployed:
    """Mixtral-8x7B on two H100, as if every second of its 32 layers saw 20 tokens back."""
    deployed = facts_of("mixtral-8x7b", "H100", Engine(tensor_parallel=2)).deployed
    assert deployed
    half = replace(deployed.architecture.main, layers=16)
    layers = (half, replace(half, window=20))
    return replace(deployed, architecture=replace(deployed.architecture, attention=layers))


FACTS = Facts(
    {f.name: f.example for f in FIELDS.values() if f.scope == "s"}
    | {name: float(x) for name, x in (pair.split() for pair in ROUND.split(","))},
    windowed(),
)


def at(name: str, x: float, facts: Facts = FACTS) -> float:
    """A curve of the deployment, read in plain Python."""
    return plain_curve(curve_of(facts, name).tolist(), x)


MODELS = """
    llama-3.1-8b,1,128 codellama-34b,2,256 llama-2-70b,4,100 mixtral-8x7b,2,128 mixtral-8x7b,4,33
    RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic,2,128
"""  # name, tensor parallelism, most requests
DEPLOYMENTS = {
    f"{model} tp{tp}": facts_of(model, "H100", Engine(tensor_parallel=int(tp), max_num_seqs=int(seqs)))
    for model, tp, seqs in (words.split(",") for words in MODELS.split())
}
ALL = {"round": FACTS, **DEPLOYMENTS}


# (I, PI, NN): a prompt continued, a prompt begun, a first decode, a later one, a far one
MIXED = [(100, 32, 40), (7, 0, 7), (50, 50, 1), (20, 31, 1), (1, 9, 1)]
TOUCHED = 1 - 0.75 ** (2 * 50)


def batch_of(requests: list[tuple[int, int, int]]) -> list[Active]:
    return [Active(*r) for r in requests]


@cache
def bound_of(name: str, deployment: str) -> Bound:
    return bind(assemble(parse(f"def step_time(b, s): return b.{name}")), (), ALL[deployment])


def compiled(name: str, requests: list[tuple[int, int, int]], deployment: str = "round") -> float:
    """The field as the compiled opcodes give it, from the raw sums."""
    raw = raw_fields(batch_of(requests))
    return bound_of(name, deployment).step_us(np.array([raw[n] for n in RAW]))


def captured(tokens: int, largest: float) -> int:
    """The least captured CUDA graph that holds so many tokens; vllm 0.15, config/vllm.py, _set_cudagraph_sizes."""
    most = int(largest)
    sizes = [0, *(i for i in (1, 2, 4) if i <= most)]
    sizes += list(range(8, min(most + 1, 256), 8)) if most >= 8 else []
    sizes += list(range(256, most + 1, 16)) if most >= 256 else []
    return min((size for size in sizes if size >= tokens), default=tokens)


SHARED = ("gemm", "elementwise", "small", "router", "allreduce")  # curves of the padded tokens


def kernels_by_hand(requests: list[tuple[int, int, int]], facts: Facts) -> dict[str, float]:
    """The fields of measured kernels from the deployment's curves."""
    n = len(requests)
    decodes = [done for length, done, _ in requests if done >= length]
    chunks = [(done, new) for length, done, new in requests if done < length]
    tokens = len(decodes) + sum(new for _, new in chunks)
    pairs = sum(done * new + new * (new + 1) // 2 for done, new in chunks)
    most, size = facts["cudagraph_capture_max"], captured(tokens, facts["cudagraph_capture_max"])
    found = {f"kernel_{name}_us": at(name, size, facts) for name in SHARED}
    for name in ("moe", "moe_quantized"):  # padding touches no experts of its own; those of all ranks meet
        found[f"kernel_{name}_us"] = at(name, facts["dp"] * tokens, facts)
    found["kernel_lm_head_us"], found["kernel_sampler_us"] = at("lm_head", n, facts), at("sampler", n, facts)
    found["kernel_decode_launch_us"] = at("decode_launch", len(decodes), facts)
    found["kernel_decode_us_per_token"] = at("decode_per_token", len(decodes), facts)
    by_context = found["kernel_decode_us_per_token"] * sum(decodes)
    # a window hides what lies before it, of requests that are equally long
    found["kv_window_sum"] = min(sum(decodes), facts["window"] * len(decodes))
    found["kernel_window_us_per_token"] = at("window_per_token", len(decodes), facts)
    in_windows = found["kernel_window_us_per_token"] * found["kv_window_sum"]
    found["kernel_decode_attention_us"] = found["kernel_decode_launch_us"] + by_context + in_windows
    # attended pairs of whole prompts that are this long on average
    length = 2 * pairs / sum(new for _, new in chunks) - 1 if chunks else -1.0
    found["kernel_prefill_us_per_pair"] = at("prefill_per_pair", length, facts)
    found["kernel_prefill_attention_us"] = found["kernel_prefill_us_per_pair"] * pairs
    parts = (
        *("gemm", "elementwise", "small", "moe", "moe_quantized", "router", "allreduce", "lm_head", "sampler"),
        *("decode_attention", "prefill_attention"),
    )
    total = 0.0
    for part in parts:
        total += found[f"kernel_{part}_us"]
    flags = {"uncaptured": float(tokens > most), "mixed": float(bool(chunks))}
    return {"graph_tokens": size, **flags, **found, "kernel_us": total}


# 32 tokens of context in the prompts, 90 in the decodes; a token has its KV entries and 8 bytes x 12 layers x 64
ARITHMETIC = """
prefill_reqs = 2 ; decode_reqs = 3 ; decode_tokens = 3 ; batch_size = 2 + 3 ; prefill_tokens = 40 + 7
tokens = 40 + 7 + 3 ; all_tokens = 2 * 50 ; max_prefill_chunk = 40 ; prefill_pairs = (40 * 32 + 40 * 41 / 2) + (7 * 0 + 7 * 8 / 2)
kv_sum = 32 + 0 + 50 + 31 + 9 ; kv_mean = 122 / 5 ; kv_max = 50
kv_var = (5 * (32**2 + 50**2 + 31**2 + 9**2) - 122**2) / 25
kv_decode_sum = 50 + 31 + 9 ; kv_decode_mean = 90 / 3 ; kv_decode_max = 50 ; graph_batch = 5
experts_fraction = TOUCHED ; expert_read_us = 900 * TOUCHED ; weight_read_us = 3000 + 900 * TOUCHED
kv_read_us = 0.5 * 122 ; decode_kv_read_us = 0.5 * 90 ; kv_write_us = 0.5 * 50 ; prefill_gemm_us = 0.25 * 47
decode_gemm_us = 0.25 * 3 ; prefill_attention_us = 0.001 * 2128 ; decode_attention_us = 0.001 * (90 + 3)
prefill_bytes_us = 3000 + 900 * TOUCHED + 0.5 * 32 + 47 * (0.5 + 8 * 12 * 64 / 3e6)
decode_bytes_us = 3000 + 900 * TOUCHED + 0.5 * 90 + 3 * (0.5 + 8 * 12 * 64 / 3e6)
logits_us = 1.5 * 5 ; allreduce_us = 0.125 * 50 ; attention_flops = 0.001 * 1e9 * (2128 + 93)
total_flops = 0.25 * 1e9 * 50 + 0.001 * 1e9 * (2128 + 93) + 2 * 64 * 100 / 2 * 5
total_bytes = (3000 + 900 * TOUCHED + 61 + 25) * 3e6 + 100 * 4 * 2 * 5
sorted_logits = 1 * 100 * 5 ; penalised_logits = 0.5 * 100 * 5
"""
BY_HAND = {name: eval(sum_) for name, sum_ in (pair.split(" = ") for pair in re.split(" ; |\n", ARITHMETIC.strip()))}
BY_HAND |= kernels_by_hand(MIXED, FACTS)


class BruteForce(Mapping[tuple[str, str], float]):
    """Batch fields one request after the other; formulas as CPython computes them from these."""

    def __init__(self, requests: list[tuple[int, int, int]]) -> None:
        chunks = [(done, new) for length, done, new in requests if done < length]
        decodes = [done for length, done, _ in requests if done >= length]
        progress = [done for _, done, _ in requests]
        n, s1, s2 = len(requests), sum(progress), sum(done**2 for done in progress)
        tokens = len(decodes) + sum(new for _, new in chunks)
        fraction, base, left = 1.0, 1 - 2 / 8, 2 * tokens
        while left:
            fraction *= base if left % 2 else 1.0
            base, left = base * base, left // 2
        sizes = [0, 1, 2, 4, *range(8, 257, 8)]  # the largest graph has 256 tokens
        captured = min((size for size in sizes if size >= len(decodes)), default=len(decodes))
        self.known = kernels_by_hand(requests, FACTS) | {
            "prefill_reqs": len(chunks),
            "decode_reqs": len(decodes),
            "prefill_tokens": sum(new for _, new in chunks),
            "max_prefill_chunk": max((new for _, new in chunks), default=0),
            # token i attends to everything up to itself
            "prefill_pairs": sum(done + i for done, new in chunks for i in range(1, new + 1)),
            "kv_sum": s1,
            "kv_max": max(progress, default=0),
            "kv_var": float(n * s2 - s1 * s1) / float(n * n) if n else 0,
            "kv_decode_sum": sum(decodes),
            "kv_decode_max": max(decodes, default=0),
            "experts_fraction": 1 - fraction,
            "graph_batch": n if chunks else captured,
        }

    def __getitem__(self, field: tuple[str, str]) -> float:
        scope, name = field
        if scope == "s":
            return FACTS[name]
        if name not in self.known:
            self.known[name] = run(f"def step_time(b, s): return {FIELDS[field].formula}", self)["step_time"]
        return self.known[name]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return (field for field in FIELDS if field[0] == "b")

    def __len__(self) -> int:
        return len(names("b"))


def names(scope: str) -> list[str]:
    return [name for s, name in FIELDS if s == scope]


def test_times_over_a_peak_are_marked_so() -> None:
    """A constant that multiplies such a time is at least 1."""
    times = {f.name for f in FIELDS.values() if f.scope == "b" and f.unit == "us"}
    assert times - PHYSICAL == {"allreduce_us", *(name for name in KERNELS if FIELDS["b", name].unit == "us")}


def test_a_declaration_is_read_whole() -> None:
    text = "# a remark\n\nb.both (token): one\n    and more\n  = b.tokens +\n    b.kv_sum; plain\n  count\ns.x (us): x\n  least 1"
    both, x = declared(text)
    assert (both.key, both.unit, both.meaning) == ("b.both", "token", "one and more")
    assert (both.formula, both.marks) == ("b.tokens + b.kv_sum", {"plain", "count"})
    assert (x.least, x.example, both.go, x.go) == (1.0, 0.0, "b.Both", "d.X")
    with pytest.raises(ValueError, match=r"b\.a.*'treshold'"):
        list(declared("b.a (us): a\n  treshold"))


@pytest.mark.parametrize("name", names("b"))
def test_a_mixed_batch_by_hand(name: str) -> None:
    assert BatchFields(batch_of(MIXED), FACTS)["b", name] == pytest.approx(BY_HAND[name], rel=1e-14)
    assert compiled(name, MIXED) == pytest.approx(BY_HAND[name], rel=1e-14)


NONE = ("kernel_prefill_attention_us", "kernel_moe_quantized_us")  # in this batch, or model


@pytest.mark.parametrize("name", names("b"))
def test_an_empty_batch(name: str) -> None:
    """No tokens: weights are read all the same, and curves have their first value."""
    expected = {"weight_read_us": 3000.0, "total_bytes": 9e9, "kernel_prefill_attention_us": 0.0}
    if name in KERNELS:
        expected |= kernels_by_hand([], FACTS)
        assert expected[name] > 0.0 or name in NONE
    assert BatchFields([], FACTS)["b", name] == compiled(name, []) == expected.get(name, 0.0)


requests = st.lists(
    st.tuples(st.integers(1, 100_000), st.integers(0, 120_000), st.integers(1, 3_000)), max_size=40
).map(lambda some: [(i, p, min(n, i - p) if p < i else 1) for i, p, n in some])


@given(requests)
def test_random_batches_by_brute_force(some: list[tuple[int, int, int]]) -> None:
    fields = BatchFields(batch_of(some), FACTS)
    for field, expected in BruteForce(some).items():
        assert fields[field] == compiled(field[1], some) == expected, field


@given(requests)
def test_bytes_of_a_phase(some: list[tuple[int, int, int]]) -> None:
    """Each phase reads all weights and its own KV cache, and writes its tokens; without requests, nothing."""
    b, s = BruteForce(some), FACTS
    token_us = s["kv_us_per_token"] + 8 * s["layers"] * s["hidden"] / s["bytes_per_us"]
    kv_us, decode_kv_us = (s["kv_us_per_token"] * b["b", name] for name in ("kv_sum", "kv_decode_sum"))
    weights = s["shared_weights_us"] + s["experts_us"] * b["b", "experts_fraction"]
    prefill = weights + (kv_us - decode_kv_us) + token_us * b["b", "prefill_tokens"]
    decode = weights + decode_kv_us + token_us * b["b", "decode_reqs"]
    assert compiled("prefill_bytes_us", some) == (prefill if b["b", "prefill_reqs"] else 0.0)
    assert compiled("decode_bytes_us", some) == (decode if b["b", "decode_reqs"] else 0.0)


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


def test_variance_rounds_as_int64_divided_in_float64() -> None:
    """Beyond 2**53 an exact quotient would differ from the clock's and Go's."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        done = rng.integers(0, 10**6, 500)
        n, s1, s2 = np.int64(500), done.sum(), (done * done).sum()
        value = raw_fields([Active(1, int(p), 1) for p in done])["kv_var"]
        assert value == np.float64(n * s2 - s1 * s1) / np.float64(n * n)


# prefill requests, decodes -> the padded batch, where graphs of up to 256 tokens are captured
PADDED = """
    0,0>0 0,1>1 0,2>2 0,3>4 0,4>4 0,5>8 0,8>8 0,9>16 0,16>16 0,249>256 0,256>256 0,257>257 0,2000>2000
    1,0>1 1,3>4 2,5>7 1,256>257
"""
# tokens, largest graph -> the padded tokens. Up to 10, 1, 2, 4 and 8 are captured: ten tokens are in no graph.
PADDED_TOKENS = """
    0,256>0 1,256>1 2,256>2 3,256>4 5,256>8 249,256>256 256,256>256 257,256>257 257,512>272 496,512>496 497,512>512
    512,512>512 513,512>513 513,1024>528 2047,2048>2048 8,10>8 9,10>9 10,10>10 3,2>3 2,2>2 129,130>129 257,260>257
    65536,256>65536
"""


@pytest.mark.parametrize("case", PADDED.split())
def test_graph_batch(case: str) -> None:
    prefill, decodes, expected = map(int, re.split("[,>]", case))
    assert vm.graph_batch(float(prefill), float(decodes), float(decodes > 256)) == expected
    some = [(9, 0, 9)] * prefill + [(9, 9, 1)] * decodes
    assert BatchFields(batch_of(some), FACTS)["b", "graph_batch"] == compiled("graph_batch", some) == expected


def test_graph_tokens() -> None:
    for case in PADDED_TOKENS.split():
        tokens, largest, expected = map(int, re.split("[,>]", case))
        assert captured(tokens, largest) == vm.graph_tokens(float(tokens), float(largest), 0.0) == expected
    for largest in (2, 4, 6, 14, 128, 200, 256, 260, 270, 510, 512, 1024):
        found = [vm.graph_tokens(float(tokens), float(largest), 0.0) for tokens in range(600)]
        assert found == [captured(tokens, largest) for tokens in range(600)] == sorted(found)


# mode -> whether a step of 3 decodes and one with 5 tokens of a prompt besides have a graph
MODES = {"full": (1, 1), "piecewise": (1, 1), "full_and_piecewise": (1, 1), "full_decode_only": (1, 0), "none": (0, 0)}


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_of_graphs_says_which_steps_are_padded(mode: str) -> None:
    """vllm/config/compilation.py, CUDAGraphMode: the first of a pair is for decodes alone, the second for mixed steps."""
    decodes, mixed = [(9, 9, 1)] * 3, [(9, 9, 1)] * 3 + [(9, 0, 5)]
    for engine in (Engine(cudagraph_mode=mode), Engine(cudagraph_mode=mode, enforce_eager=True)):
        facts = facts_of("llama-3.1-8b", "H100", engine)
        expected = (0, 0) if engine.enforce_eager else MODES[mode]
        for requests, graph in zip((decodes, mixed), expected, strict=True):
            fields, tokens = BatchFields(batch_of(requests), facts), {3: 4, 4: 8}[len(requests)]
            true = sum(new for _, _, new in requests)
            assert fields["b", "uncaptured"] == 1 - graph
            assert fields["b", "graph_tokens"] == (tokens if graph else true)
        assert BatchFields(batch_of(decodes), facts)["b", "graph_batch"] == (4 if expected[0] else 3)
        assert facts["graph_piecewise"] == (mode == "piecewise" and not engine.enforce_eager)


@pytest.mark.parametrize(("active", "experts"), [(2, 8), (1, 16), (8, 128), (4, 16), (1, 1), (6, 64), (3, 3)])
def test_experts_fraction(active: int, experts: int) -> None:
    for tokens in [*range(40), 127, 128, 129, 1000, 2048, 16_384]:
        missed = Fraction(experts - active, experts) ** tokens
        value = vm.experts_fraction(float(active), float(experts), float(tokens))
        assert value == pytest.approx(float(1 - missed), rel=1e-12, abs=1e-15)
        assert 0.0 <= value <= 1.0
    assert value == pytest.approx(1.0)


def test_experts_fraction_of_a_dense_model() -> None:
    assert vm.experts_fraction(0.0, 0.0, 100.0) == 0.0
    assert vm.experts_fraction(2.0, 8.0, 0.0) == 0.0
