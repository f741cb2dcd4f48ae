"""Consistency of a program with hardware: six checks that measurements of a few deployments cannot make.

    roofline   a step takes at least 0.8 of its bytes over the bandwidth and of its FLOPs over the peak
    efficiency a step full of prefill takes at most twenty times as long as that
    parallel   four GPUs run a heavy step 1.5 to 4 times as fast as one
    sublinear  twice the decodes take at most twice as long, for every batch
    size       of two dense models on the same GPUs, the one with more parameters is slower, one request at a time
    sampling   every request of a step pays for its logits and its token, whether or not a prompt is in the step

Sources: Williams, Waterman and Patterson, Roofline, CACM 2009 (first check); Amdahl's law with communication (third).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from evaluator.judge.gates import ROUNDING, FactsByDeployment, Gate, Theta, extreme, verdict
from evaluator.judge.sweep import Batch, table_of
from simulator.clock.bind import Deployments
from simulator.clock.fields import Active, BatchFields
from simulator.language.opcodes import Code
from simulator.serving.facts import Facts

LEAST_OF_ROOFLINE = 0.8
MOST_OF_ROOFLINE = 20.0  # the poorest of the shipped runs, a mixture of experts in fp8, takes about 5 over 900 tokens
PARALLEL = (1.5, 4.0)
# Share of a step that twice the vocabulary may add to it beyond what it adds to one without a prompt. A roofline by the
# larger of bytes and FLOPs reaches 0.8 %, because logits are FLOPs in one and bytes in the other.
MOST_SAMPLING = 0.01


def _decodes(n: int, context: int) -> Batch:
    return tuple(Active(32, context, 1) for _ in range(n))


# Steps as an engine with a budget of 2048 tokens schedules them.
_STEPS: dict[str, Batch] = {
    "1 decode in 512 context": _decodes(1, 512),
    "64 decodes in 512 context": _decodes(64, 512),
    "128 decodes in 4096 context": _decodes(128, 4096),
    "a prefill of 2048": (Active(2048, 0, 2048),),
    "a prefill of 2048 after 14336": (Active(16384, 14336, 2048),),
    "a prefill of 512 and 64 decodes in 512 context": (*_decodes(64, 512), Active(512, 0, 512)),
}
FULL = 2048  # tokens, the budget
HEAVY = "a prefill of 1920 and 128 decodes in 4096 context"
_HEAVY: Batch = (*_decodes(128, 4096), Active(1920, 0, 1920))
_FULL = [i for i, batch in enumerate(_STEPS.values()) if sum(r.new for r in batch) >= FULL]
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
# Steps in which 64 requests draw a token; the last is too large for a captured graph.
_SAMPLING: dict[str, Batch] = {
    "64 decodes": _decodes(64, 1024),
    "63 decodes and a prefill of 512": (*_decodes(63, 1024), Active(512, 0, 512)),
    "63 decodes and a prefill of 1985": (*_decodes(63, 1024), Active(1985, 0, 1985)),
}
_BATCHES = (*_STEPS.values(), _HEAVY, *(_decodes(n, 1024) for n in _COUNTS), *_SAMPLING.values())


@dataclass(frozen=True)
class Hardware:
    """Deployments with the same kind of GPU, and what no program changes about them.

    least_us: float64[deployments, _STEPS], the datasheet's times. parallel: model -> positions of its deployments on
    one GPU and on four. sizes: int64[pairs, 2], positions of dense models on as many GPUs, the smaller first. raw: the
    raw fields of _BATCHES. wider: the deployments with twice the vocabulary.
    """

    deployments: Deployments
    wider: Deployments
    least_us: np.ndarray
    parallel: Mapping[str, tuple[int, int]]
    sizes: np.ndarray
    raw: np.ndarray


def hardware_of(deployments: FactsByDeployment) -> Hardware:
    """What the checks need of `deployments`, which are named `MODEL tpN` and all have the same kind of GPU."""
    every = list(deployments.values())
    least_us = np.array([[roofline_us(batch, facts) for batch in _STEPS.values()] for facts in every])
    sizes = [(i, k) for i, a in enumerate(every) for k, c in enumerate(every) if _clearly_smaller(a, c)]
    return Hardware(
        deployments=Deployments(deployments),
        wider=Deployments({name: _wider(facts) for name, facts in deployments.items()}),
        least_us=least_us,
        parallel={model: (by_tp[1], by_tp[4]) for model, by_tp in _by_model(deployments).items() if {1, 4} <= {*by_tp}},
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
    """The datasheet's lower bound on a step in us: the larger of bytes over bandwidth and FLOPs over peak."""
    fields = BatchFields(batch, facts)
    return max(fields["b", "total_bytes"] / facts["bytes_per_us"], fields["b", "total_flops"] / facts["flops_per_us"])


def _clearly_smaller(a: Mapping[str, float], c: Mapping[str, float]) -> bool:
    """Whether both deployments have dense models on as many GPUs, the first with far fewer parameters.

    For models of nearly equal size the shapes decide.
    """
    dense = not any(facts["is_moe"] or facts["is_fp8"] for facts in (a, c))
    return dense and a["tp"] == c["tp"] and a["model_params_b"] * 1.5 <= c["model_params_b"]


def _step(hardware: Hardware, us: np.ndarray, d: int, i: int) -> str:
    """Step `i` of _STEPS on deployment `d`, with its time and the datasheet's."""
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
    rule = f"a step of {FULL} tokens takes at most {MOST_OF_ROOFLINE:g} times the datasheet's time"
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
    measured = f"{np.count_nonzero(slower)} of {len(slower)} pairs of dense models"
    if not slower.all():
        wrong, names = np.flatnonzero(~slower), hardware.deployments.names

        def text(case: int) -> str:
            small, large = hardware.sizes[wrong[case]]
            return f"{names[small]} {us[small]:,.0f} us, {names[large]} {us[large]:,.0f} us"

        measured += f", worst: {extreme(min, (other / one)[wrong], text)[1]}"
    rule = "a model with at least half as many parameters again must be slower"
    return verdict("size", bool(slower.all()), measured, rule)


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
    """The deployment with twice the vocabulary in all that logits and sampling depend on; its weights are unchanged."""
    deployed = getattr(facts, "deployed", None)
    if deployed is not None:
        model = deployed.architecture
        deployed = replace(deployed, architecture=replace(model, vocab=2 * model.vocab))
    doubled = {name: 2.0 * facts[name] for name in ("vocab", "logits_us_per_row")}
    return Facts({**facts, **doubled}, deployed)


def _by_model(deployments: FactsByDeployment) -> dict[str, dict[int, int]]:
    """Model -> tp -> position of the deployment, `MODEL tpN`."""
    places: dict[str, dict[int, int]] = {}
    for i, (name, facts) in enumerate(deployments.items()):
        places.setdefault(name.rpartition(" tp")[0], {})[int(facts["tp"])] = i
    return places
