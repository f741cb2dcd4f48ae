"""Consistency of a program with hardware, on deployments that need no measurements: twelve checks.

By the datasheet:

    roofline   a step takes at least 0.8 of its bytes over the bandwidth and of its FLOPs over the peak
    efficiency a step full of prefill takes at most twenty times as long as that
    parallel   four GPUs run a heavy step 1.5 to 4 times as fast as one
    sublinear  twice the decodes take at most twice as long, for every batch
    size       of two dense models on the same GPUs, the one with more parameters is slower, one request at a time
    sampling   every request of a step pays for its logits and its token, whether or not a prompt is in the step

By measured kernels, with margins for launches and the time of the scheduler, which no table contains (and across
precisions, GPUs, parallelism and contexts, see evaluator.judge.variants):

    decode   a decode step takes 0.7 times the sum of its kernels to 1.6 times the sum plus 3 ms
    prefill  an uncached prompt of 2k, 8k or 32k tokens takes 0.9 to 2 times the sum of its kernels

Sources: Williams, Waterman and Patterson, Roofline, CACM 2009 (first check); Amdahl's law with communication (third).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from evaluator.judge.gates import ROUNDING, FactsByDeployment, Gate, Theta, extreme, verdict
from evaluator.judge.sweep import Batch, decode_batch, table_of
from evaluator.judge.variants import KERNEL_STEP, Variants, searched_variants, variant_checks
from simulator.clock.bind import Deployments
from simulator.clock.fields import Active, BatchFields
from simulator.language.ir import Program
from simulator.language.opcodes import Code, assemble
from simulator.language.parse import parse
from simulator.serving.facts import Facts
from simulator.serving.known import datasheet_deployments, kernel_deployments

BUDGET = 2048  # tokens of a step
LEAST_OF_ROOFLINE = 0.8
MOST_OF_ROOFLINE = 20.0  # the poorest of the shipped runs, a mixture of experts in fp8, takes about 5 over 900 tokens
PARALLEL = (1.5, 4.0)
# Twice the vocabulary may add so much more, as a share of the step, to a step with a prompt than to one without. A
# roofline by the larger of bytes and FLOPs reaches 0.8 %, because logits are FLOPs in one and bytes in the other.
MOST_SAMPLING = 0.01
DECODE = (0.7, 1.6)
DECODE_MORE_US = 3000.0
PREFILL = (0.9, 2.0)
DECODES = ((1, 1024), (8, 1024), (32, 1024), (128, 1024), (8, 16384))  # (requests, tokens of context of each)
PROMPTS = (2048, 8192, 32768)  # tokens


def _decodes(n: int, context: int) -> Batch:
    return tuple(Active(32, context, 1) for _ in range(n))


# Steps as an engine with this budget schedules them.
_STEPS: dict[str, Batch] = {
    "1 decode in 512 context": _decodes(1, 512),
    "64 decodes in 512 context": _decodes(64, 512),
    "128 decodes in 4096 context": _decodes(128, 4096),
    "a prefill of 2048": (Active(2048, 0, 2048),),
    "a prefill of 2048 after 14336": (Active(16384, 14336, 2048),),
    "a prefill of 512 and 64 decodes in 512 context": (*_decodes(64, 512), Active(512, 0, 512)),
}
HEAVY = "a prefill of 1920 and 128 decodes in 4096 context"
_HEAVY: Batch = (*_decodes(128, 4096), Active(1920, 0, 1920))
_FULL = [i for i, batch in enumerate(_STEPS.values()) if sum(r.new for r in batch) >= BUDGET]
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
# Steps with 64 sampled tokens; the last is too large for a captured graph.
_SAMPLING: dict[str, Batch] = {
    "64 decodes": _decodes(64, 1024),
    "63 decodes and a prefill of 512": (*_decodes(63, 1024), Active(512, 0, 512)),
    "63 decodes and a prefill of 1985": (*_decodes(63, 1024), Active(1985, 0, 1985)),
}
_BATCHES = (*_STEPS.values(), _HEAVY, *(_decodes(n, 1024) for n in _COUNTS), *_SAMPLING.values())


@dataclass(frozen=True)
class Hardware:
    """Deployments with one kind of GPU, and the parts of the checks that depend on no program.

    wider: the deployments with twice the vocabulary. least_us: float64[deployments, _STEPS], times by the datasheet.
    parallel: model -> positions of its deployments on one GPU and on four. sizes: int64[pairs, 2], positions of dense
    models on equally many GPUs, the smaller first. raw: the raw fields of _BATCHES.
    """

    deployments: Deployments
    wider: Deployments
    least_us: np.ndarray
    parallel: Mapping[str, tuple[int, int]]
    sizes: np.ndarray
    raw: np.ndarray


def hardware_of(deployments: FactsByDeployment) -> Hardware:
    """`deployments`, which are named `MODEL tpN` and have one kind of GPU, prepared for the checks of any program."""
    every = list(deployments.values())
    least_us = np.array([[roofline_us(batch, facts) for batch in _STEPS.values()] for facts in every])
    places = {name: i for i, name in enumerate(deployments)}
    models = [name.removesuffix(" tp1") for name in places if name.endswith(" tp1")]
    sizes = [(i, k) for i, a in enumerate(every) for k, c in enumerate(every) if _clearly_smaller(a, c)]
    return Hardware(
        deployments=Deployments(deployments),
        wider=Deployments({name: _wider(facts) for name, facts in deployments.items()}),
        least_us=least_us,
        parallel={m: (places[f"{m} tp1"], places[f"{m} tp4"]) for m in models if f"{m} tp4" in places},
        sizes=np.array(sizes, dtype=np.int64).reshape(-1, 2),
        raw=table_of(_BATCHES),
    )


def physics(code: Code, theta: Theta, hardware: Hardware) -> list[Gate]:
    """The six checks at the constants `theta`."""
    us = np.maximum(hardware.deployments.bind(code, theta).steps_us(hardware.raw), 1.0)  # like the clock's steps
    first = len(_STEPS)
    steps, heavy, decodes, sampling = np.split(us, (first, first + 1, first + 1 + len(_COUNTS)), axis=1)
    wider = np.maximum(hardware.wider.bind(code, theta).steps_us(hardware.raw[-len(_SAMPLING) :]), 1.0)
    with np.errstate(all="ignore"):  # a step of infinitely many us
        return [
            _roofline(hardware, steps),
            _efficiency(hardware, steps),
            _parallel(hardware, heavy[:, 0]),
            _sublinear(hardware, decodes),
            _size(hardware, steps[:, 0]),
            _sampling(hardware, sampling, wider),
        ]


def roofline_us(batch: Batch, facts: Mapping[str, float]) -> float:
    """The lower bound of the datasheet on a step in us: the larger of bytes over bandwidth and FLOPs over peak."""
    fields = BatchFields(batch, facts)
    return max(fields["b", "total_bytes"] / facts["bytes_per_us"], fields["b", "total_flops"] / facts["flops_per_us"])


def _clearly_smaller(a: Mapping[str, float], c: Mapping[str, float]) -> bool:
    """Return True if both have dense models on equally many GPUs, and `a` has at most two thirds of the parameters."""
    dense = not any(facts["is_moe"] or facts["is_fp8"] for facts in (a, c))
    return dense and a["tp"] == c["tp"] and a["model_params_b"] * 1.5 <= c["model_params_b"]


def _step(hardware: Hardware, us: np.ndarray, d: int, i: int) -> str:
    """Step `i` of _STEPS on deployment `d`, with its time and that of the datasheet."""
    name, label = hardware.deployments.names[d], list(_STEPS)[i]
    return f"{name}: {label}: {us[d, i]:,.0f} us, the datasheet allows {hardware.least_us[d, i]:,.0f} us"


def _roofline(hardware: Hardware, us: np.ndarray) -> Gate:
    ratios = us / hardware.least_us
    ratio, worst = extreme(min, ratios, lambda case: _step(hardware, us, *divmod(case, len(_STEPS))))
    low = np.count_nonzero(ratios < LEAST_OF_ROOFLINE)
    share = f"{low} of {ratios.size} steps below {LEAST_OF_ROOFLINE}"
    measured = f"{ratio:.2f} of the datasheet's time at least ({share}): {worst}"
    rule = f"no step may take less than {LEAST_OF_ROOFLINE} of the datasheet's time"
    return verdict("roofline", not low, measured, rule)


def _efficiency(hardware: Hardware, us: np.ndarray) -> Gate:
    ratios = us[:, _FULL] / hardware.least_us[:, _FULL]

    def text(case: int) -> str:
        d, i = divmod(case, len(_FULL))
        return _step(hardware, us, d, _FULL[i])

    ratio, worst = extreme(max, ratios, text)
    measured = f"{ratio:.1f} times the datasheet's time at most: {worst}"
    rule = f"a step of {BUDGET} tokens takes at most {MOST_OF_ROOFLINE:g} times the datasheet's time"
    return verdict("efficiency", ratio <= MOST_OF_ROOFLINE, measured, rule)


def _parallel(hardware: Hardware, us: np.ndarray) -> Gate:
    if not hardware.parallel:
        return Gate("parallel", True, "no model here fits on one GPU and on four")
    models, places = list(hardware.parallel), np.array(list(hardware.parallel.values()))
    one, four = us[places].T

    def text(i: int) -> str:
        return f"{models[i]}: {HEAVY}: {one[i]:,.0f} us on one GPU, {four[i]:,.0f} us on four"

    low, high = PARALLEL
    (least, slow), (most, fast) = (extreme(pick, one / four, text) for pick in (min, max))
    measured = f"{least:.2f} to {most:.2f} times as fast over {len(models)} models: {slow if least < low else fast}"
    rule = f"four GPUs run it {low} to {high:g} times as fast"
    return verdict("parallel", low <= least and most <= high, measured, rule)


def _sublinear(hardware: Hardware, us: np.ndarray) -> Gate:
    one, other = us[:, :-1], us[:, 1:]

    def text(case: int) -> str:
        d, i = divmod(case, len(_COUNTS) - 1)
        n, name = _COUNTS[i], hardware.deployments.names[d]
        return f"{name}: {n} -> {2 * n} decodes in 1024 context: {one[d, i]:,.0f} -> {other[d, i]:,.0f} us"

    ratio, worst = extreme(max, other / one, text)
    passes = ratio <= 2.0 * (1.0 + ROUNDING)
    measured = f"{ratio:.2f} times at most: {worst}"
    return verdict("sublinear", passes, measured, "twice the decodes take at most twice as long")


def _size(hardware: Hardware, us: np.ndarray) -> Gate:
    one, other = us[hardware.sizes].T
    slower = other > one
    pairs = f"{np.count_nonzero(slower)} of {len(slower)} pairs of dense models"
    if slower.all():
        return Gate("size", True, pairs)
    wrong, names = np.flatnonzero(~slower), hardware.deployments.names

    def text(case: int) -> str:
        small, large = hardware.sizes[wrong[case]]
        return f"{names[small]} {us[small]:,.0f} us, {names[large]} {us[large]:,.0f} us"

    measured = f"{pairs}, worst: {extreme(min, (other / one)[wrong], text)[1]}"
    return verdict("size", False, measured, "a model with at least half as many parameters again must be slower")


def _sampling(hardware: Hardware, us: np.ndarray, wider: np.ndarray) -> Gate:
    added = wider - us
    shares = (added[:, 1:] - added[:, :1]) / us[:, 1:]
    decodes, *mixed = _SAMPLING

    def text(case: int) -> str:
        d, i = divmod(case, len(mixed))
        name, extra = hardware.deployments.names[d], f"{added[d, 0]:,.0f} us to {decodes}"
        return f"{name}: twice the vocabulary adds {extra}, {added[d, i + 1]:,.0f} us to {mixed[i]}"

    share, worst = extreme(max, shares, text)
    measured = f"{100 * share:.1f} % of the step at most: {worst}"
    rule = "logits and sampling cost every request of a step alike: let no term with the vocabulary depend on prefill"
    return verdict("sampling", share <= MOST_SAMPLING, measured, rule)


def _wider(facts: Mapping[str, float]) -> Facts:
    """The deployment with twice the vocabulary for logits and sampling, and unchanged weights."""
    deployed = getattr(facts, "deployed", None)
    if deployed is not None:
        model = deployed.architecture
        deployed = replace(deployed, architecture=replace(model, vocab=2 * model.vocab))
    doubled = {name: 2.0 * facts[name] for name in ("vocab", "logits_us_per_row")}
    return Facts({**facts, **doubled}, deployed)


@dataclass(frozen=True)
class KernelSums:
    """Deployments with measured kernels, and the sums of their kernels in us.

    decode: float64[deployments, DECODES], of the decode steps. prefill: float64[deployments, PROMPTS], of the prompts.
    variants: the shipped models across precisions, GPUs and TP, None to leave these checks out.
    """

    deployments: Deployments
    decode: np.ndarray
    prefill: np.ndarray
    variants: Variants | None = None


def kernel_sums(deployments: FactsByDeployment) -> KernelSums:
    """The sums of these deployments. Raises InputError for a GPU without measured kernels."""
    program, prepared = parse(KERNEL_STEP), Deployments(deployments)
    return KernelSums(prepared, *kernel_times_us(assemble(program), program.theta, prepared))


@cache
def known_kernel_sums() -> KernelSums:
    """The sums of `kernel_deployments`. They take a second, so one process computes them for all others."""
    variants = searched_variants()
    assert variants.kernels  # computed before workers get a copy
    return replace(kernel_sums(kernel_deployments()), variants=variants)


def kernel_checks(code: Code, theta: Theta, sums: KernelSums) -> list[Gate]:
    """The checks by measured kernels over all deployments, at the constants `theta`."""
    names = sums.deployments.names
    decode_us, prefill_us = kernel_times_us(code, theta, sums.deployments)

    def decode(d: int, i: int) -> str:
        (n, context), x, k = DECODES[i], decode_us[d, i], sums.decode[d, i]
        return f"{names[d]}: {n} decodes in {context} context: {x:,.0f} us, kernels {k:,.0f} us"

    def prefill(d: int, i: int) -> str:
        x, k = prefill_us[d, i], sums.prefill[d, i]
        return f"{names[d]}: a prompt of {PROMPTS[i]} tokens: {x / 1e3:,.1f} ms, kernels {k / 1e3:,.1f} ms"

    (low, high), more_ms = DECODE, DECODE_MORE_US / 1e3
    decode_ratios = _ratios(low * sums.decode, decode_us, high * sums.decode + DECODE_MORE_US)
    decode_rule = f"a decode step takes {low:g} times its kernels to {high:g} times them plus {more_ms:g} ms"
    low, high = PREFILL
    prefill_ratios = _ratios(low * sums.prefill, prefill_us, high * sums.prefill)
    prefill_rule = f"an uncached prompt takes {low:g} to {high:g} times its kernels"
    return [
        _gate("kernels: decode", decode_ratios, decode, decode_rule),
        _gate("kernels: prefill", prefill_ratios, prefill, prefill_rule),
        *(variant_checks(code, theta, sums.variants) if sums.variants else ()),
    ]


def hardware_checks(code: Code, theta: Theta, variants: Variants | None = None) -> list[Gate]:
    """The checks by the datasheets and by the measured kernels of the shipped models, at the constants `theta`.

    variants: by default those of a search.
    """
    physical, sums = physics(code, theta, hardware_of(datasheet_deployments())), known_kernel_sums()
    return [*physical, *kernel_checks(code, theta, replace(sums, variants=variants) if variants else sums)]


def consistent(program: Program) -> bool:
    """Return True if a complete program passes all `hardware_checks`."""
    return all(gate.passes for gate in hardware_checks(assemble(program), program.theta))


def _ratios(low: np.ndarray, x: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The ratio of every time to its limits: 1 at the nearer limit and larger beyond it, infinite for a time of 0."""
    with np.errstate(all="ignore"):
        below, above = np.where(x > 0.0, low / x, np.inf), x / high
    return np.where(above > below, above, below)


def _gate(name: str, ratios: np.ndarray, text: Callable[[int, int], str], rule: str) -> Gate:
    """The verdict on `ratios`; `text` describes a case by its deployment and its column."""
    _, worst = extreme(max, ratios, lambda case: text(*divmod(case, ratios.shape[1])))
    beyond = np.count_nonzero(ratios > 1.0)
    which = "farthest beyond" if beyond else "closest to a limit"
    measured = f"{ratios.size - beyond} of {ratios.size} within bounds, {which}: {worst}"
    return verdict(name, not beyond, measured, rule)


@cache
def _table() -> np.ndarray:
    """The raw fields of the decode steps, then those of the chunks of every prompt."""
    chunks = (chunk for tokens in PROMPTS for chunk in _chunks(tokens))
    return table_of((*(decode_batch(n, context) for n, context in DECODES), *chunks))


def _chunks(tokens: int) -> list[Batch]:
    return [(Active(tokens, done, BUDGET),) for done in range(0, tokens, BUDGET)]


def kernel_times_us(code: Code, theta: Theta, deployments: Deployments) -> tuple[np.ndarray, np.ndarray]:
    """Times in us of the decode steps, float64[deployments, DECODES], and of prompts, float64[deployments, PROMPTS].

    The time of a prompt is the sum over its chunks.
    """
    us = deployments.bind(code, theta).steps_us(_table())
    ends = np.cumsum([len(DECODES), *(len(_chunks(tokens)) for tokens in PROMPTS)])
    decode_us, *prompts = np.split(us, ends[:-1], axis=1)
    return decode_us, np.stack([prompt.sum(axis=1) for prompt in prompts], axis=1)
