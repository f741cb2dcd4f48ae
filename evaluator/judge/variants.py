"""Consistency of a program across precisions, GPUs, tensor parallelism and contexts, by the kernels that it reads.

A deployment with fewer bits, a better GPU, more GPUs or less context is not slower:

    bits     a decode step with fewer bits a weight; a large prefill may be slower, if it widens them
    gpu      a step on a GPU with more FLOPs of every type, more bandwidth and a faster link
    share    a step without its all-reduces on twice the GPUs
    context  a decode of a shorter context

Tables are noisy, so each check has a margin. A pair for which the sum of measured kernels is itself beyond it is held
against no program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product

import numpy as np

from evaluator.judge.gates import Gate, Theta, verdict
from evaluator.judge.sweep import decode_batch, table_of
from simulator.clock.bind import Deployments
from simulator.clock.fields import Active
from simulator.common.errors import InputError
from simulator.language.opcodes import Code, assemble
from simulator.language.parse import parse
from simulator.model.formats import BF16, FP8, INT4, NVFP4, Format, Formats
from simulator.serving.deployment import deployment_facts
from simulator.serving.engine import Engine
from simulator.serving.facts import Facts
from simulator.serving.gpu import Gpu, measured_gpus
from simulator.serving.known import known_model_names
from simulator.serving.model import Model, known_model

KERNEL_STEP = "def step_time(b, s): return b.kernel_us"
SEARCHED = (
    *("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-70B-Instruct"),
    "mistralai/Mixtral-8x7B-v0.1",
)
TPS = (1, 2, 4, 8)
FORMATS: tuple[Format, ...] = (BF16, FP8, NVFP4, INT4)
DECODES = ((1, 1024), (8, 1024), (1, 8192), (64, 1024), (128, 4096), (64, 16384))  # (requests, context of each)
PROMPT = 2048  # tokens
CONTEXTS = (512, 1024, 4096, 16384, 65536)  # tokens, of 8 decodes
MARGINS = {"bits": 0.02, "gpu": 0.10, "share": 0.10, "context": 0.0}  # share of a step's time
RULES = {
    "bits": "fewer bits a weight may not make a decode step slower",
    "gpu": "a GPU with more of everything may not be slower",
    "share": "more GPUs may not make a step slower, all-reduces apart",
    "context": "more context may not make a step faster",
}
_BATCHES = (
    *(decode_batch(n, context) for n, context in DECODES),
    (Active(PROMPT, 0, PROMPT),),
    *(decode_batch(8, context) for context in CONTEXTS),
)
_NAMES = (
    *(f"{n} decodes in {context} context" for n, context in DECODES),
    f"a prefill of {PROMPT}",
    *(f"8 decodes in {context} context" for context in CONTEXTS),
)
_FIRST = len(DECODES) + 1  # the first of the contexts


@dataclass(frozen=True)
class Variants:
    """Deployments that differ in one thing, and the pairs of them that are compared.

    deployments: named `MODEL GPU FORMAT tpN`. alone: the same without all-reduces. pairs: check -> int64[pairs, 2],
    positions of the one that may not be faster, and of the one that may not be slower.
    """

    deployments: Deployments
    alone: Deployments
    pairs: Mapping[str, np.ndarray]
    raw: np.ndarray

    @cached_property
    def kernels(self) -> Mapping[str, np.ndarray]:
        """Check -> float64[pairs, steps]: the ratio of the sums of kernels, at least 1."""
        program = parse(KERNEL_STEP)
        return {
            check: np.maximum(other / one, 1.0)
            for check, (one, other, _) in self.compared(assemble(program), program.theta).items()
        }

    def compared(
        self, code: Code, theta: Theta
    ) -> Mapping[str, tuple[np.ndarray, np.ndarray, Callable[[int, int], str]]]:
        """Check -> times in us of the one that may not be faster, and of the other, float64[pairs, steps]; case in
        words."""
        us = np.maximum(self.deployments.bind(code, theta).steps_us(self.raw), 1.0)
        alone = np.maximum(self.alone.bind(code, theta).steps_us(self.raw), 1.0)
        names = self.deployments.names
        found: dict[str, tuple[np.ndarray, np.ndarray, Callable[[int, int], str]]] = {}
        for check, steps in (("bits", len(DECODES)), ("gpu", _FIRST), ("share", _FIRST)):
            of = alone if check == "share" else us
            one, other = self.pairs[check].T

            def text(i: int, j: int, one: np.ndarray = one, other: np.ndarray = other) -> str:
                return f"{names[one[i]]} -> {names[other[i]]}: {_NAMES[j]}"

            found[check] = of[one, :steps], of[other, :steps], text

        def longer(i: int, j: int) -> str:
            return f"{names[i]}: {_NAMES[_FIRST + j]} -> {_NAMES[_FIRST + j + 1]}"

        found["context"] = us[:, _FIRST + 1 :], us[:, _FIRST:-1], longer
        return found


Key = tuple[str, str, str, int]  # model, GPU, format, TP


def variants_of(models: Sequence[str]) -> Variants:
    """The known models on one to eight of every GPU with measured kernels in every format, if their weights fit."""
    gpus = {gpu.name: gpu for gpu in measured_gpus()}
    facts = dict(_deployments(models, list(gpus.values())))
    places = {key: i for i, key in enumerate(facts)}
    names = [f"{model} {gpu} {weights} tp{tp}" for model, gpu, weights, tp in facts]
    bits = {f.name: f.bits for f in FORMATS}
    found: dict[str, list[tuple[int, int]]] = {check: [] for check in RULES}
    for (model, gpu, weights, tp), i in places.items():
        for other in FORMATS:
            if other.bits < bits[weights] and (k := places.get((model, gpu, other.name, tp))) is not None:
                found["bits"].append((i, k))
        for other_gpu in gpus.values():
            k = places.get((model, other_gpu.name, weights, tp))
            if k is not None and _better(gpus[gpu], other_gpu):
                found["gpu"].append((i, k))
        if (k := places.get((model, gpu, weights, 2 * tp))) is not None:
            found["share"].append((i, k))
    pairs = {check: np.array(rows, dtype=np.int64).reshape(-1, 2) for check, rows in found.items()}
    every = dict(zip(names, facts.values(), strict=True))
    return Variants(
        Deployments(every), Deployments({n: _alone(f) for n, f in every.items()}), pairs, table_of(_BATCHES)
    )


@cache
def known_variants() -> Variants:
    """The variants of all shipped models: seconds, and a hundred megabytes."""
    return variants_of(known_model_names())


@cache
def searched_variants() -> Variants:
    """The variants that a search holds every candidate against: two dense models and a mixture of experts."""
    return variants_of(SEARCHED)


def _deployments(models: Sequence[str], gpus: Sequence[Gpu]) -> Iterator[tuple[Key, Facts]]:
    for name in models:
        model = Model.of(known_model(name, name), name, name)
        for weights in FORMATS:
            stored = replace(model, architecture=replace(model.architecture, formats=Formats.all(weights)))
            for gpu, tp in product(gpus, TPS):
                with suppress(InputError):  # the weights do not fit, or the heads cannot be split evenly
                    facts = deployment_facts(stored, gpu, Engine(tensor_parallel=tp), name)
                    yield (name, gpu.name, weights.name, tp), facts


def _better(a: Gpu, b: Gpu) -> bool:
    """True if `b` has at least as much of everything, and more of something."""
    ours, theirs = (
        [
            g.bf16_tflops or 0.0,
            g.fp8_tflops or 0.0,
            g.fp4_tflops or 0.0,
            g.memory_tb_per_s or 0.0,
            g.link_gb_per_s or 0.0,
        ]
        for g in (a, b)
    )
    return ours != theirs and all(x <= y for x, y in zip(ours, theirs, strict=True))


def _alone(facts: Facts) -> Facts:
    """The deployment with a link that takes no time."""
    fields = {**facts, "allreduce_us_per_token": 0.0, "host_allreduce_us_per_token": 0.0}
    return Facts(fields, replace(facts.deployed, reduces=False) if facts.deployed else None)


def variant_checks(code: Code, theta: Theta, variants: Variants) -> list[Gate]:
    """The four checks at the constants `theta`: of each how many pairs pass, and the one that is farthest beyond."""
    return [
        _gate(check, *of_check, variants.kernels[check]) for check, of_check in variants.compared(code, theta).items()
    ]


def _gate(check: str, one: np.ndarray, other: np.ndarray, text: Callable[[int, int], str], least: np.ndarray) -> Gate:
    """`least`: the ratio of the sums of kernels, at least 1."""
    if not one.size:
        return Gate(f"variants: {check}", True, "no pairs")
    excused: np.ndarray = np.asarray(least > 1.0 + MARGINS[check])
    ratios = np.where(excused, 0.0, other / one / least)
    fails = np.any(ratios > 1.0 + MARGINS[check] + 1e-9, axis=1)
    i, j = divmod(int(ratios.argmax()), ratios.shape[1])
    held = f"{excused.any(axis=1).sum()} of them not in every step, as the kernels themselves do not"
    measured = f"{(~fails).sum()} of {len(ratios)} pass, {held}; worst: {text(i, j)}: "
    measured += f"{one[i, j]:,.0f} -> {other[i, j]:,.0f} us"
    return verdict(f"variants: {check}", not fails.any(), measured, RULES[check])
