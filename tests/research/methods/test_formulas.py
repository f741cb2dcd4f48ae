"""Every method's formula against a plain transcription over the requests of a batch, which shares no code with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from evolve.run.program import method_names, method_text
from research.methods.catalog import METHODS
from simulator.clock.bind import bind
from simulator.clock.fields import Active, raw_row
from simulator.common.streams import stream
from simulator.language.complete import complete
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.serving.bundled import bundled_experiments

BATCHES = 400
Batch = Sequence[Active]
Facts = Mapping[str, float]
Constants = Mapping[str, float]


class Sums:
    """What the transcriptions need of a batch: x over the deployment's peaks, in us, and counts."""

    def __init__(self, batch: Batch, s: Facts) -> None:
        prefill = [r for r in batch if r.progress < r.input_len]
        decode = [r for r in batch if r.progress >= r.input_len]
        self.p, self.d, self.n = len(prefill), len(decode), len(batch)
        self.p_tokens = sum(r.new for r in prefill)
        self.tokens = self.p_tokens + self.d
        self.kv = sum(r.progress for r in batch)
        self.kv_d = sum(r.progress for r in decode)
        self.kv_p = self.kv - self.kv_d
        self.kv_max = max((r.progress for r in batch), default=0)
        self.kv_d_max = max((r.progress for r in decode), default=0)
        self.kv_d_mean = self.kv_d / self.d if self.d else 0.0
        self.chunk = max((r.new for r in prefill), default=0)
        pairs = sum(r.new * r.progress + r.new * (r.new + 1) / 2 for r in prefill)
        touched = 1 - (1 - s["active_experts"] / s["experts"]) ** self.tokens if s["experts"] else 0.0
        self.experts = s["experts_us"] * touched
        self.weights = s["shared_weights_us"] + self.experts
        self.gp, self.gd = s["gemm_us_per_token"] * self.p_tokens, s["gemm_us_per_token"] * self.d
        self.ap = s["attention_us_per_pair"] * pairs
        self.ad = s["attention_us_per_pair"] * (self.kv_d + self.d)
        kv, activations = s["kv_us_per_token"], 8 * s["layers"] * s["hidden"] / s["bytes_per_us"]
        self.kv_read, self.kv_d_read = kv * self.kv, kv * self.kv_d
        self.mp = self.weights + kv * self.kv_p + (kv + activations) * self.p_tokens
        self.md = self.weights + kv * self.kv_d + (kv + activations) * self.d
        head = 2 * s["hidden"] * s["vocab"] / s["tp"]
        self.attention_flops = (self.ap + self.ad) * s["flops_per_us"]
        self.flops = (self.gp + self.gd) * s["flops_per_us"] + self.attention_flops + head * self.n
        self.bytes = (self.weights + kv * (self.kv + self.tokens)) * s["bytes_per_us"] + 8 * s["vocab"] * self.n
        self.flops_us, self.bytes_us = self.flops / s["flops_per_us"], self.bytes / s["bytes_per_us"]
        mean = self.kv / self.n if self.n else 0.0
        variance = sum((r.progress - mean) ** 2 for r in batch) / self.n if self.n else 0.0
        self.spread = variance / mean**2 if mean else 0.0


def components(x: Sums, s: Facts, c: Constants, f: Sequence[float], a: float, e: float, c10: float) -> float:
    tp = max(f[0] * x.gp + f[1] * x.ap, f[2] * x.mp) if x.p else 0.0
    td = max(f[3] * x.gd + f[4] * x.ad * (x.kv_d_mean / 1024) ** e, f[5] * x.md) if x.d else 0.0
    overheads = c["c7"] + c["c8"] * x.n + c["c9"] * s["layers"] / s["tp"] + c10 * x.kv
    return a * max(tp, td) + (1 - a) * (tp + td) + overheads


def factors(c: Constants) -> list[float]:
    return [c[f"c{i}"] for i in range(1, 7)]


def corrected(x: Sums, s: Facts, c: Constants, which: Sequence[int]) -> float:
    of_batch = {"batch": math.log(x.n), "kv_max": math.log1p(x.kv_d_max), "kv_mean": math.log1p(x.kv_d_mean)}
    names = {1: "batch", 2: "kv_max", 3: "batch", 4: "kv_max", 5: "kv_mean", 6: "kv_mean"}
    f = factors(c)
    for i in which:
        value = math.log1p(x.kv_max) if i == 2 else of_batch[names[i]]
        f[i - 1] = max(f[i - 1] + c[f"c{i}_{names[i]}"] * value + c[f"c{i}_is_moe"] * s["is_moe"], 0.1)
    return components(x, s, c, f, c["a"], c["e"], c["c10"])


def phases(x: Sums, s: Facts, c: Constants) -> float:
    f = factors(c)
    tp = max(f[0] * x.gp + f[1] * x.ap, f[2] * x.mp) if x.p else 0.0
    return tp + (max(f[3] * x.gd + f[4] * x.ad, f[5] * x.md) if x.d else 0.0) + c["base"]


def nrrl(x: Sums, s: Facts, c: Constants) -> float:
    w = s["weights_us"]
    tokens, attention_share = s["max_num_batched_tokens"], x.attention_flops / x.flops
    ratios = [x.p_tokens / tokens, x.d / s["max_num_seqs"], x.kv / (s["kv_blocks"] * s["block_size"])]
    ratios += [part / w for part in (x.gp, x.gd, x.ap, x.kv_d_read, x.experts)]
    ratios += [x.flops_us / x.bytes_us, attention_share, x.chunk / tokens, x.spread]
    return w * (c["base"] + sum(c[f"w{i}"] * ratio for i, ratio in enumerate(ratios, 1)))


def powers(x: Sums, s: Facts, c: Constants) -> float:
    exponent = c["base"] + c["flops"] * math.log(1 + x.flops_us) + c["bytes"] * math.log(1 + x.bytes_us)
    exponent += c["tokens"] * math.log(1 + x.tokens) + c["requests"] * math.log(1 + x.n)
    return exponent + c["context"] * math.log(1 + x.kv) + c["parameters"] * math.log(s["model_params_b"])


def clipped_exp(exponent: float) -> float:
    return math.exp(min(exponent, 50.0))


def communication(x: Sums, s: Facts, c: Constants) -> float:
    allreduce = s["allreduce_us_per_token"] * x.tokens
    return c["link"] * allreduce + c["latency"] * s["layers"] * math.log2(s["tp"])


def overheads(x: Sums, s: Facts, c: Constants) -> float:
    per_layer = c["gamma1"] + c["gamma2"] * math.log2(s["tp"])
    return c["gamma0"] + per_layer * s["layers"] + c["gamma3"] * x.n


def hamm(x: Sums, s: Facts, c: Constants) -> float:
    exponent = c["beta0"] + c["beta1"] * math.log(1 + x.flops_us) + c["beta2"] * math.log(1 + x.bytes_us)
    return overheads(x, s, c) + clipped_exp(exponent + c["beta3"] * math.log(1 + x.tokens))


def jams(x: Sums, s: Facts, c: Constants) -> float:
    n, k = s["experts"], s["active_experts"]
    imbalance = 1 + math.sqrt((n - k) / (n * k)) if n else 1.0
    dispatch = c["dispatch"] * s["moe_layers"] * (math.ceil(math.log2(n)) if n else 0)
    memory = c["beta1"] * s["shared_weights_us"] + c["beta2"] * x.experts * imbalance + c["beta3"] * x.kv_read
    return overheads(x, s, c) + dispatch + memory + c["beta4"] * (x.gp + x.gd) + c["beta5"] * x.ap


def softplus(x: float) -> float:
    return math.log1p(math.exp(-abs(x))) + max(x, 0.0)


def ratios(x: Sums, s: Facts, c: Constants) -> float:
    return c["beta0"] + (c["beta1"] * (x.gp + x.gd) + c["beta2"] * x.kv_read + c["beta3"] * x.ap) / s["weights_us"]


def srfa_overheads(x: Sums, s: Facts, c: Constants) -> float:
    return c["gamma0"] + c["gamma1"] * s["layers"] + c["gamma2"] * x.n


def srfa(x: Sums, s: Facts, c: Constants) -> float:
    work = softplus(ratios(x, s, c) + c["beta4"] * x.weights / s["weights_us"])
    return srfa_overheads(x, s, c) + (c["moe"] if s["is_moe"] else 1.0) * s["weights_us"] * work


def srfa_experts(x: Sums, s: Facts, c: Constants) -> float:
    weights = c["beta4"] * (s["shared_weights_us"] + c["moe"] * x.experts) / s["weights_us"]
    return srfa_overheads(x, s, c) + s["weights_us"] * softplus(ratios(x, s, c) + weights)


def longest(x: Sums) -> float:
    return max(x.kv_max, x.chunk)


def in_cache(x: Sums, s: Facts) -> float:
    return x.kv / (s["kv_blocks"] * s["block_size"])


def imbalance(s: Facts) -> float:
    """(N - k) / (N k) for k of N experts, 0 of a dense model."""
    n, k = s["experts"], s["active_experts"]
    return (n - k) / (n * k) if n else 0.0


def router_us(x: Sums, s: Facts) -> float:
    return 2 * x.tokens * s["hidden"] * s["experts"] / s["flops_per_us"]


def nrrl_as_written(x: Sums, s: Facts, c: Constants) -> float:
    n, k = s["experts"], s["active_experts"]
    expected = math.sqrt((n - k) / (k * x.tokens)) if n else 0.0
    features = [1.0, x.gp, x.gd, x.ap + x.ad, x.kv_read, s["kv_us_per_token"] * x.tokens, x.weights, x.p / x.n]
    features += [longest(x) / s["max_model_len"], k / n if n else 0.0, expected]
    features.append(s["allreduce_us_per_token"] * x.tokens / max(x.flops_us, x.bytes_us))
    return sum(c[f"w{i}"] * feature for i, feature in enumerate(features))


def inner(c: Constants, features: Sequence[float]) -> float:
    return sum(c[f"b{i}"] * feature for i, feature in enumerate(features))


def lacm_as_written(x: Sums, s: Facts, c: Constants) -> float:
    block_ms, per_token_ms = s["kv_us_per_token"] * s["block_size"] / 1e3, s["gemm_us_per_token"] / 1e3
    routing_ms = 2 * s["moe_layers"] * s["hidden"] * s["experts"] / s["flops_per_us"] / 1e3
    features = [1.0, math.log1p(x.p_tokens) * per_token_ms, math.log1p(x.d) * per_token_ms]
    features += [math.log1p(x.kv / s["block_size"]) * block_ms, math.log1p(x.n)]
    features += [s["allreduce_us_per_token"] * x.tokens / 1e3, math.log1p(x.tokens) * routing_ms]
    return clipped_exp(inner(c, [*features, s["is_moe"] * (1 + imbalance(s))]))


def hamm_as_written(x: Sums, s: Facts, c: Constants) -> float:
    features = [1.0, math.log1p(x.p_tokens) * s["gemm_us_per_token"] / 1e3, math.sqrt(x.chunk / 1024)]
    features += [math.log1p(x.d) * x.kv_read / 1e3, math.log1p(x.n), in_cache(x, s)]
    features.append(s["is_moe"] * math.log1p(x.tokens))
    exponent = inner(c, features) + s["is_moe"] * c["correction"]
    return c["g0"] + c["g1"] * s["allreduce_us_per_token"] * x.tokens + clipped_exp(exponent)


def dispatch_us(s: Facts) -> float:
    return 5.0 * math.log2(s["experts"]) if s["experts"] else 0.0


def jams_as_written(x: Sums, s: Facts, c: Constants) -> float:
    of_token = 2 * 3 * s["hidden"] * s["moe_ffn"] * s["active_experts"] / s["tp"] / s["flops_per_us"]
    layer = router_us(x, s) + dispatch_us(s) + (1 + math.sqrt(imbalance(s))) * of_token * x.tokens
    features = [1.0, x.gp, x.gd, x.kv_read, x.n, math.log1p(longest(x))]
    features += [x.p_tokens * x.d / s["max_num_batched_tokens"] ** 2, x.n * max(in_cache(x, s) - 0.9, 0.0)]
    overheads = c["g0"] + c["g1"] * s["allreduce_us_per_token"] * x.tokens + c["g2"] * s["moe_layers"] * layer
    return overheads + inner(c, features)


def srfa_as_written(x: Sums, s: Facts, c: Constants) -> float:
    features = [1.0, x.gp + x.ap, x.gd + x.ad, x.kv_read, math.log1p(x.n), math.log1p(longest(x))]
    overheads = c["g0"] + c["g1"] * s["allreduce_us_per_token"] * x.tokens + c["g3"] * s["layers"]
    overheads += s["moe_layers"] * (c["g2"] * 5.0 + c["imbalance"] * (router_us(x, s) + dispatch_us(s)))
    return overheads + softplus(inner(c, [*features, x.p / x.n * (x.d / x.n)]))


def raw_law(x: Sums, c: Constants, letter: str) -> float:
    if letter == "d":
        return c["d0"] + c["d1"] * x.d + c["d2"] * x.kv_d
    return c[f"{letter}0"] + c[f"{letter}1"] * x.p_tokens + c[f"{letter}2"] * x.d + c[f"{letter}3"] * x.kv


def us_law(x: Sums, c: Constants, letter: str, constant: float) -> float:
    times = (x.weights, x.kv_d_read, x.gd) if letter == "d" else (x.weights, x.gp, x.ap, x.kv_read)
    return constant + sum(c[f"{letter}{i}"] * time for i, time in enumerate(times, 1))


def regime_of_3(x: Sums) -> str:
    return "p" if x.p_tokens >= 256 else "m" if x.p_tokens > 0 else "d"


def phase(x: Sums) -> str:
    return "p" if x.p else "d"


def overhead_capped(x: Sums, s: Facts, c: Constants) -> float:
    own = us_law(x, c, phase(x), 0.0)
    return max(own, min(c["floor"], 3.0 * own))


TRANSCRIBED: dict[str, Callable[[Sums, Facts, Constants], float]] = {
    "components_9": lambda x, s, c: components(x, s, c, factors(c), 1.0, 1.0, 0.0),
    "components_12": lambda x, s, c: components(x, s, c, factors(c), c["a"], c["e"], c["c10"]),
    "components_18": lambda x, s, c: corrected(x, s, c, (1, 4, 5)),
    "components_24": lambda x, s, c: corrected(x, s, c, (1, 2, 3, 4, 5, 6)),
    "phases": phases,
    "nrrl": nrrl,
    "lacm": lambda x, s, c: clipped_exp(powers(x, s, c) + c["ranks"] * math.log(s["tp"])),
    "lacm_additive": lambda x, s, c: clipped_exp(powers(x, s, c)) + communication(x, s, c),
    "hamm": hamm,
    "jams": jams,
    "srfa": srfa,
    "srfa_additive": lambda x, s, c: srfa(x, s, c) + communication(x, s, c),
    "srfa_experts": srfa_experts,
    "nrrl_as_written": nrrl_as_written,
    "lacm_as_written": lacm_as_written,
    "hamm_as_written": hamm_as_written,
    "jams_as_written": jams_as_written,
    "srfa_as_written": srfa_as_written,
    "srfa_recommended": srfa_as_written,
    "regimes_2": lambda x, s, c: raw_law(x, c, phase(x)),
    "regimes_2_log": lambda x, s, c: math.exp(c["smearing"]) * raw_law(x, c, phase(x)),
    "regimes_3": lambda x, s, c: raw_law(x, c, regime_of_3(x)),
    "regimes_2_us": lambda x, s, c: us_law(x, c, phase(x), c[f"{phase(x)}0"]),
    "regimes_2_us_alone": lambda x, s, c: us_law(x, c, phase(x), c[f"{phase(x)}0"]),
    "regimes_3_us": lambda x, s, c: us_law(x, c, regime_of_3(x), c[f"{regime_of_3(x)}0"]),
    "overhead_floor": lambda x, s, c: max(c["floor"], us_law(x, c, phase(x), 0.0)),
    "overhead_capped": overhead_capped,
    "overhead_additive": lambda x, s, c: us_law(x, c, phase(x), c["overhead"]),
    "direct": lambda x, s, c: c["beta0"] + c["beta1"] * x.d,
}


def random_batch(rng: np.random.Generator) -> list[Active]:
    """Decodes, prefills or both; short and long contexts."""
    kind = rng.integers(3)
    decodes = [Active(int(i), int(i + rng.integers(0, 400)), 1) for i in rng.integers(1, 4000, rng.integers(1, 60))]
    prefills = []
    for prompt in rng.integers(2, 8000, rng.integers(1, 5)):
        done = int(rng.integers(0, prompt))
        prefills.append(Active(int(prompt), done, int(rng.integers(1, min(prompt - done, 2048) + 1))))
    return decodes if kind == 0 else prefills if kind == 1 else decodes + prefills


def test_every_method_is_transcribed_and_on_the_bench() -> None:
    assert set(method_names()) == set(TRANSCRIBED) == {method.program for method in METHODS if method.program}


@pytest.mark.parametrize("name", sorted(TRANSCRIBED))
def test_a_formula_is_its_transcription(name: str) -> None:
    """On random batches of every deployment that the shipped runs have, at random constants within the bounds."""
    program = complete(parse(method_text(name)))
    code, step = assemble(program), program.function("step_time")
    assert step
    deployments = list({id(e.facts): e.facts for e in bundled_experiments()}.values())
    rng = stream(len(name), *name.encode())
    for _ in range(BATCHES):
        facts = deployments[rng.integers(len(deployments))]
        constants = {}
        for c in step.constants:
            value = c.value + (0.1 + abs(c.value)) * rng.uniform(-1.0, 1.0)
            constants[c.name] = float(np.clip(value, *(c.bounds or (0.0, np.inf))))
        theta = [
            constants.get(c.name, c.value) if f is step else c.value for f in program.functions for c in f.constants
        ]
        batch = random_batch(rng)
        ours = bind(code, tuple(theta), facts).step_us(raw_row(batch))
        theirs = TRANSCRIBED[name](Sums(batch, facts), facts, constants)
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-6), batch
