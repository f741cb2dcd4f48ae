"""The experiments on measured cycles that compare no forms: what heavy and mixed steps take, and what overlaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import scipy

from evaluator.judge.physics import KERNEL_STEP
from research.methods.samples import Sample
from research.rejudged.finding import Figure, Finding, in_clusters, of_estimate
from research.rejudged.loads import ODD_MODEL
from research.rejudged.verdict import Estimate, apart, mean_of, resampled
from research.rejudged.world import World, program
from simulator.clock.bind import bind
from simulator.language.ir import Program
from simulator.language.opcodes import assemble
from simulator.schema import (
    DECODE_REQS,
    KV_DECODE_MAX,
    KV_DECODE_SUM,
    KV_MAX,
    KV_SUM,
    KV_VAR,
    MAX_PREFILL_CHUNK,
    PREFILL_PAIRS,
    PREFILL_REQS,
    PREFILL_TOKENS,
)

BLOCK = 20  # consecutive cycles that a bootstrap draws together, because neighbours share their load
HEAVY = 256.0  # prompt tokens of a step from which the second round called it mixed-heavy
RATIOS = np.logspace(-3.0, 3.0, 61)  # candidates for the cost of a decode token over that of a prompt token
FINER = 61  # candidates between the two around the best of these
SMALL = 1e-12  # added to the diagonal of products of columns of length 1

_COMPUTE = program(
    "def step_time(b, s): return b.prefill_gemm_us + b.decode_gemm_us + b.prefill_attention_us + b.decode_attention_us"
)
_MEMORY = program("def step_time(b, s): return b.weight_read_us + b.kv_read_us + b.kv_write_us")
_KERNELS = program(KERNEL_STEP)


def odd_cycles(world: World) -> Finding:
    """The error of the kernel sum on the cycles of CodeLlama-34B less that on those of other models."""
    clusters: dict[bool, list[list[float]]] = {True: [], False: []}
    for s in world.cycles:
        error = 100.0 * np.abs(times_us(_KERNELS, s) / s.observed_us - 1.0)
        clusters[world.model_of(s.experiment) == ODD_MODEL] += in_clusters(list(error), blocks_of(s))
    means = {odd: float(np.mean([x for block in blocks for x in block])) for odd, blocks in clusters.items()}
    counts = {odd: sum(map(len, blocks)) for odd, blocks in clusters.items()}
    figures = (Figure("CodeLlama-34B", means[True], "%"), Figure("others", means[False], "%"))
    of = f"{counts[True]:,} cycles against {counts[False]:,}"
    note = "A difference, but not of the size that made it an anomaly."
    return Finding(apart(clusters[True], clusters[False], "points", of), figures, (note,))


def heavy_share(world: World) -> Finding:
    """The share of cycles whose batch has HEAVY prompt tokens or more, in percent."""
    tokens = [t.raw[:, PREFILL_TOKENS] for t in world.targets]
    prompt_only = [(t.raw[:, PREFILL_TOKENS] > 0) & (t.raw[:, DECODE_REQS] == 0) for t in world.targets]
    blocks = [f"{t.run.experiment.id} {i // BLOCK}" for t in world.targets for i in range(len(t.step))]
    every = np.concatenate(tokens)
    mixed = every[every > 0]
    figures = (
        Figure("cycles with a prompt in them", 100.0 * len(mixed) / len(every), "%"),
        Figure("prompt tokens of such a step, median", float(np.median(mixed)), "tokens"),
        Figure("prompt tokens of such a step, 99th percentile", float(np.quantile(mixed, 0.99)), "tokens"),
        Figure("cycles with prompts only", float(np.concatenate(prompt_only).sum()), f"of {len(every):,}"),
    )
    note = (
        "The prefix cache is why: a prompt of a thousand tokens that is cached but for its last block adds about ten."
    )
    return Finding(mean_of(list(100.0 * (every >= HEAVY)), blocks, "%", f"{len(every):,} cycles"), figures, (note,))


def additive(samples: Sequence[Sample]) -> Finding:
    """How far the sum of a prefill step and a decode step is from the mixed step, in percent of it.

    The decode step is a line in requests and contexts, fitted on the pure decode cycles of the run; the prefill step,
    which was never measured alone, is the sum of its kernels. As figures: one step that does both, whose decodes are
    the same line and whose prompt adds what the kernel sum says it adds to the step.
    """
    parts = [part for s in samples if (part := _mixed(s)) is not None]
    apart_pct, one_pct, excess_ms, alone_ms = (np.concatenate(column) for column in zip(*parts, strict=True))
    # Mixed cycles that were sampled themselves are far apart in time, so each is drawn alone.
    each, of = [str(i) for i in range(len(apart_pct))], f"{len(apart_pct)} mixed cycles"
    figures = (
        of_estimate("one step that does both, bias", mean_of(list(one_pct), each, "%", of)),
        of_estimate("what a mixed step takes more than its decodes", mean_of(list(excess_ms), each, "ms", of)),
        Figure("what its prompts would take as a step of their own", float(alone_ms.mean()), "ms"),
    )
    return Finding(mean_of(list(apart_pct), each, "%", of), figures)


def _mixed(sample: Sample) -> tuple[np.ndarray, ...] | None:
    """Four columns of the mixed cycles of a run, for `additive`; None without any.

    The bias of two steps and that of one step that does both, in percent; what the mixed step takes more than its
    decodes, and its prompts alone, in ms.
    """
    mixed = sample.where(~sample.pure & (sample.raw[sample.first, DECODE_REQS] > 0))
    if not len(mixed.observed_us):
        return None
    decodes_us, observed = _decode_line(sample)(mixed.raw), mixed.observed_us
    prefill_us, added_us = times_us(_KERNELS, replace(mixed, raw=_prefills(mixed.raw))), times_us(_KERNELS, mixed)
    added_us = added_us - times_us(_KERNELS, replace(mixed, raw=_decodes(mixed.raw)))
    return (
        100.0 * ((decodes_us + prefill_us) / observed - 1.0),
        100.0 * ((decodes_us + added_us) / observed - 1.0),
        (observed - decodes_us) / 1e3,
        prefill_us / 1e3,
    )


def token_ratio(samples: Sequence[Sample]) -> Finding:
    """The cost of a decode token over that of a prompt token, in a law that is linear in both and in contexts."""
    plain = _ratio(samples, False)
    figures = (of_estimate("with a constant that every mixed step adds", _ratio(samples, True)),)
    n = int(sum((~s.pure).sum() for s in samples))
    at_most = max(float(s.prefill_tokens.max()) for s in samples)
    notes = (
        f"Prompt tokens are in {n} of these cycles only, at most {at_most:,.0f} of them in one, so what a prompt "
        "token costs and what a mixed step costs whatever its prompt are nearly the same column. The ratio is sought "
        f"in {RATIOS[0]:g} to {RATIOS[-1]:,.0f}.",
    )
    return Finding(plain, figures, notes)


def overlap(samples: Sequence[Sample]) -> Finding:
    """The share a of the shorter of compute and memory that the longer one hides, 1 if it hides all.

    A step is a constant of its run, e times the longer, e (1 - a) times the shorter and, in the form that decides, a
    cost of each request and layer; nothing is negative.
    """
    decides, plain = _overlap(samples, True), _overlap(samples, False)
    shares = [times_us(_COMPUTE, s) / times_us(_MEMORY, s) for s in samples]
    figures = (
        of_estimate("without a cost of each request", plain),
        Figure("compute over memory, median of the cycles", float(np.median(np.concatenate(shares))), "times"),
        Figure("cycles in which compute is the longer", 100.0 * float((np.concatenate(shares) > 1.0).mean()), "%"),
    )
    note = "Where memory always takes longer, only the models' sizes distinguish a from the cost of a request."
    return Finding(decides, figures, (note,))


def times_us(form: Program, sample: Sample) -> np.ndarray:
    """float64[times]: the program's times of these cycles."""
    times: np.ndarray = sample.predicted_us(bind(assemble(form), form.theta, sample.facts))
    return times


def blocks_of(sample: Sample) -> list[str]:
    return [f"{sample.experiment} {i // BLOCK}" for i in range(len(sample.observed_us))]


def _decodes(raw: np.ndarray) -> np.ndarray:
    changed = raw.copy()
    changed[:, [PREFILL_REQS, PREFILL_TOKENS, MAX_PREFILL_CHUNK, PREFILL_PAIRS, KV_VAR]] = 0.0
    changed[:, KV_SUM], changed[:, KV_MAX] = raw[:, KV_DECODE_SUM], raw[:, KV_DECODE_MAX]
    return changed


def _prefills(raw: np.ndarray) -> np.ndarray:
    changed = raw.copy()
    changed[:, [DECODE_REQS, KV_DECODE_SUM, KV_DECODE_MAX, KV_VAR]] = 0.0
    changed[:, KV_SUM] = changed[:, KV_MAX] = raw[:, KV_SUM] - raw[:, KV_DECODE_SUM]
    return changed


def _decode_line(sample: Sample) -> Callable[[np.ndarray], np.ndarray]:
    """The time of decodes by batch: least squares of relative errors on the pure decode cycles."""
    pure = sample.where(sample.pure)

    def columns(raw: np.ndarray) -> np.ndarray:
        return np.column_stack([np.ones(len(raw)), raw[:, DECODE_REQS], raw[:, KV_DECODE_SUM]])

    x = columns(pure.raw) / pure.observed_us[:, None]
    line, *_ = np.linalg.lstsq(x, np.ones(len(x)), rcond=None)
    return lambda raw: columns(raw) @ line


def _ratio(samples: Sequence[Sample], constant: bool) -> Estimate:
    """The ratio of least squares, in RATIOS; with `constant`, mixed steps have a constant of their run too."""
    raw, observed = (np.concatenate([getattr(s, name) for s in samples]) for name in ("raw", "observed_us"))
    of_run = np.eye(len(samples))[np.repeat(np.arange(len(samples)), [len(s.observed_us) for s in samples])]
    of_run = of_run / observed[:, None]
    mixed = (raw[:, [PREFILL_TOKENS]] > 0).astype(float)
    fixed = np.column_stack([of_run, of_run * raw[:, [KV_SUM]], *([of_run * mixed] * constant)])
    decodes, prompts = (of_run * raw[:, [c]] for c in (DECODE_REQS, PREFILL_TOKENS))
    unit = np.linalg.norm(decodes)
    columns = np.column_stack([_scaled(fixed), decodes / unit, prompts / unit, np.ones(len(raw))])
    # Sums of squares and products of each block: a resample adds some of them up, and a ratio combines columns of sums.
    blocks = _rows([name for s in samples for name in blocks_of(s)])
    grams = np.array([columns[rows].T @ columns[rows] for rows in blocks])

    def best(gram: np.ndarray) -> float:
        at = int(np.argmin(_losses(gram, len(samples), RATIOS)))
        near = np.geomspace(RATIOS[max(at - 1, 0)], RATIOS[min(at + 1, len(RATIOS) - 1)], FINER)
        return float(near[int(np.argmin(_losses(gram, len(samples), near)))])

    def again(rng: np.random.Generator) -> float:
        return best(grams[rng.integers(0, len(grams), len(grams))].sum(axis=0))

    estimate = resampled(best(grams.sum(axis=0)), again, "times", f"{len(raw):,} cycles of {len(samples)} runs")
    return replace(estimate, searched=(float(RATIOS[0]), float(RATIOS[-1])))


def _scaled(columns: np.ndarray) -> np.ndarray:
    """The columns at length 1; those of zeros as they are."""
    norms = np.linalg.norm(columns, axis=0)
    scaled: np.ndarray = columns / np.where(norms > 0.0, norms, 1.0)
    return scaled


def _losses(gram: np.ndarray, runs: int, ratios: np.ndarray) -> np.ndarray:
    """float64[ratios]: what least squares leaves if a decode token costs so many prompt tokens.

    gram: products of the columns fixed, decodes of each run, prompts of each run, and the target.
    """
    size = len(gram) - 1 - runs
    plain, added = np.eye(len(gram), size), np.zeros((len(gram), size))
    added[size:-1, size - runs :] = np.eye(runs)  # prompts go into the columns of decodes, over the ratio
    each = 1.0 / ratios[:, None]
    cross, of_added = plain.T @ gram @ added, added.T @ gram @ added
    products = plain.T @ gram @ plain + each[:, None] * (cross + cross.T) + each[:, None] ** 2 * of_added
    sums = plain.T @ gram[:, -1] + each * (added.T @ gram[:, -1])
    # A resample may lack a column altogether, such as the mixed steps of a run.
    solved = np.linalg.solve(products + SMALL * np.eye(size), sums[..., None])[..., 0]
    left: np.ndarray = gram[-1, -1] - (sums * solved).sum(axis=1)
    return left


def _overlap(samples: Sequence[Sample], requests: bool) -> Estimate:
    parts, observed = list[np.ndarray](), np.concatenate([s.observed_us for s in samples])
    for i, s in enumerate(samples):
        compute, memory = times_us(_COMPUTE, s), times_us(_MEMORY, s)
        constants = np.zeros((len(compute), len(samples)))
        constants[:, i] = 1e3
        each = s.raw[:, DECODE_REQS] * s.facts["layers"]
        longer, shorter = np.maximum(compute, memory), np.minimum(compute, memory)
        parts.append(np.column_stack([longer, shorter, constants, *([each] * requests)]))
    x = np.concatenate(parts) / observed[:, None]
    blocks = _rows([b for s in samples for b in blocks_of(s)])

    def share(rows: np.ndarray) -> float:
        longer, shorter, *_ = scipy.optimize.nnls(x[rows], np.ones(len(rows)))[0]
        return max(1.0 - shorter / longer, 0.0) if longer > 0.0 else 0.0

    def again(rng: np.random.Generator) -> float:
        return share(np.concatenate([blocks[i] for i in rng.integers(0, len(blocks), len(blocks))]))

    of = f"{len(x):,} cycles of {len(samples)} runs"
    return resampled(share(np.arange(len(x))), again, "of the shorter", of)


def _rows(names: Sequence[str]) -> list[np.ndarray]:
    groups: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        groups.setdefault(name, []).append(i)
    return [np.array(rows) for rows in groups.values()]
