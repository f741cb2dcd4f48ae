"""The experiments on measured cycles: how a step's time depends on its batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from evaluator.judge.kernel_sums import KERNEL_STEP
from evolve.methods.recipe import Recipe, train
from evolve.methods.samples import TEST, Sample
from evolve.rejudged.finding import Figure, Finding, in_clusters, of_estimate
from evolve.rejudged.loads import ODD_MODEL
from evolve.rejudged.verdict import Estimate, apart, mean_of, resampled
from evolve.rejudged.world import CAP_PCT, World, program
from simulator.bind import bind
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
    RAW_FIELDS,
)

BLOCK = 20  # consecutive cycles that a bootstrap draws together, because neighbours share their load
HEAVY = 256.0  # prompt tokens of a step from which the second round called it mixed-heavy
PROMPT = 2048.0  # tokens, the largest prompt chunk of the runs
RATIOS = np.logspace(-3.0, 3.0, 61)  # candidates for the cost of a decode token over that of a prompt token
FINER = 61  # candidates between the two around the best of these
SMALL = 1e-12  # added to the diagonal of products of columns of length 1

_HEAD = (
    "def step_time(b, s, *, p0: us[-1e6, 1e6] = 8000.0, p1: us/token[-1000, 1000] = 1.0, "
    "p2: us/request[-1e4, 1e4] = 30.0"
)
COUNTS = program(_HEAD + "):\n    return p0 + p1 * b.prefill_tokens + p2 * b.decode_reqs")
CONTEXTS = program(
    _HEAD + ", k1: us/token[-100, 100] = 0.0, k2: us/token[-100, 100] = 0.0, k3: us/token[-100, 100] = 0.0):\n"
    "    return p0 + p1 * b.prefill_tokens + p2 * b.decode_reqs + k1 * b.kv_sum + k2 * b.kv_max + k3 * b.kv_mean"
)
ONE_CONTEXT = program(
    _HEAD + ", k1: us/token[-100, 100] = 0.0):\n"
    "    return p0 + p1 * b.prefill_tokens + p2 * b.decode_reqs + k1 * b.kv_sum"
)
IN_US = program(
    "def step_time(b, s, *, p0: us[-1e6, 1e6] = 8000.0, p1: one[-1000, 1000] = 1.0, p2: one[-1000, 1000] = 1.0, k1: "
    "one[-1000, 1000] = 1.0):\n    return p0 + p1 * b.prefill_gemm_us + p2 * b.decode_gemm_us + k1 * b.kv_read_us"
)
_WORK = "d1 * b.decode_reqs + d2 * b.kv_decode_sum + p1 * b.prefill_tokens"
_TERMS = "d1: us/request = 30.0, d2: us/token = 0.05, p1: us/token = 30.0"
ADDED = program(f"def step_time(b, s, *, base: us = 8000.0, {_TERMS}):\n    return base + {_WORK}")
FLOOR = program(
    "def step_time(b, s, *, base: us = 8000.0, d1: us/request = 200.0, d2: us/token = 0.05, p1: us/token = 30.0):\n"
    f"    return max(base, {_WORK})"
)
EXPONENTIAL = program(
    "def step_time(b, s, *, p0: one[0, 20] = 9.0, p1: one[-1, 1] = 0.0, p2: one[-1, 1] = 0.0, "
    "k1: one[-0.1, 0.1] = 0.0, unit: us[1, 1] = 1, token: token[1, 1] = 1, request: request[1, 1] = 1):\n"
    "    return unit * exp(p0 + p1 * b.prefill_tokens / token + p2 * b.decode_reqs / request + k1 * b.kv_sum / token)"
)
_COMPUTE = program(
    "def step_time(b, s): return b.prefill_gemm_us + b.decode_gemm_us + b.prefill_attention_us + "
    "b.decode_attention_us"
)
_MEMORY = program("def step_time(b, s): return b.weight_read_us + b.kv_read_us + b.kv_write_us")
_KERNELS = program(KERNEL_STEP)
RIDGE, SCALED = Recipe(ridge="raw", unpenalised=("p0",)), Recipe(ridge="standardised", unpenalised=("p0",))


@dataclass(frozen=True)
class Judged:
    """Absolute errors in percent of a trained form on the last 20 % of the cycles of each model, and its programs.

    block: the block of each cycle. programs: by model.
    """

    errors: np.ndarray
    block: tuple[str, ...]
    programs: dict[str, Program]


def on_cycles(world: World, form: Program, recipe: Recipe) -> Judged:
    """The form, trained for each model on the first 60 % of its cycles."""
    errors, blocks, programs = list[np.ndarray](), list[str](), dict[str, Program]()
    for model, samples in _by_model(world).items():
        programs[model] = train(form, samples, recipe)
        for s in samples:
            late = s.where(s.split == TEST)
            error = 100.0 * np.abs(_us(programs[model], late) / late.observed_us - 1.0)
            errors.append(np.minimum(error, CAP_PCT))
            blocks += _blocks(late)
    return Judged(np.concatenate(errors), tuple(blocks), programs)


def compared(world: World, worse: tuple[str, Program, Recipe], better: tuple[str, Program, Recipe]) -> Finding:
    """By how much `worse` is further off than `better`, in points, over the last 20 % of the cycles."""
    theirs, ours = (on_cycles(world, form, recipe) for _, form, recipe in (worse, better))
    return Finding(_apart(theirs, ours), (_figure(better[0], ours), _figure(worse[0], theirs)))


def contexts(world: World, recipe: Recipe) -> Finding:
    """Three features of the KV cache against none, by ridge; other ways to read the cache as figures."""
    how = "in raw tokens" if recipe is RIDGE else "standardised"
    worse = (f"sum, maximum and mean of contexts, {how}", CONTEXTS, recipe)
    found = compared(world, worse, ("counts alone", COUNTS, recipe))
    others = (("sum of contexts alone", ONE_CONTEXT), ("sum of contexts, everything in microseconds", IN_US))
    more = tuple(_figure(f"{name}, least squares", on_cycles(world, form, Recipe())) for name, form in others)
    return replace(found, figures=found.figures + more, notes=(_ESTIMATED,))


def floor_or_sum(world: World) -> Finding:
    """A floor below which no step is, against an overhead that every step adds; the same work above it."""
    several = Recipe(restarts=16)  # where the floor hides the work, least squares from one start cannot move
    return compared(world, ("overhead added", ADDED, several), ("floor", FLOOR, several))


def logarithms(world: World) -> Finding:
    """The logarithm of a step, linear in counts and contexts, against the step itself."""
    recipe = Recipe(loss="log", smeared="p0")
    found = compared(world, ("logarithm", EXPONENTIAL, recipe), ("the step itself", ONE_CONTEXT, Recipe()))
    figures = []
    for name, form, how in (("the step itself", ONE_CONTEXT, Recipe()), ("logarithm", EXPONENTIAL, recipe)):
        for model, trained in on_cycles(world, form, how).programs.items():
            sample = _by_model(world)[model][0]
            prompt = np.zeros((1, RAW_FIELDS))
            prompt[0, [PREFILL_REQS, PREFILL_TOKENS, MAX_PREFILL_CHUNK]] = (1.0, PROMPT, PROMPT)
            us = float(bind(assemble(trained), trained.theta, sample.facts).steps_us(prompt)[0])
            seconds = min(max(us, 0.0) / 1e6, 1e9)
            figures.append(Figure(f"{name}: a prompt of {PROMPT:,.0f} tokens, {model.split('/')[-1]}", seconds, "s"))
    note = (
        "No cycle has such a prompt. The last figures show where each form goes outside its data, which is what that "
        "round warned of; the verdict is about batches like those that were measured."
    )
    return replace(found, figures=found.figures + tuple(figures), notes=(note,))


def odd_cycles(world: World) -> Finding:
    """The error of the kernel sum on the cycles of CodeLlama-34B less that on those of other models."""
    clusters: dict[bool, list[list[float]]] = {True: [], False: []}
    for s in world.cycles:
        error = 100.0 * np.abs(_us(_KERNELS, s) / s.observed_us - 1.0)
        clusters[world.model_of(s.experiment) == ODD_MODEL] += in_clusters(list(error), _blocks(s))
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
    prefill_us, added_us = _us(_KERNELS, replace(mixed, raw=_prefills(mixed.raw))), _us(_KERNELS, mixed)
    added_us = added_us - _us(_KERNELS, replace(mixed, raw=_decodes(mixed.raw)))
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
    shares = [_us(_COMPUTE, s) / _us(_MEMORY, s) for s in samples]
    figures = (
        of_estimate("without a cost of each request", plain),
        Figure("compute over memory, median of the cycles", float(np.median(np.concatenate(shares))), "times"),
        Figure("cycles in which compute is the longer", 100.0 * float((np.concatenate(shares) > 1.0).mean()), "%"),
    )
    note = "Where memory always takes longer, only the models' sizes distinguish a from the cost of a request."
    return Finding(decides, figures, (note,))


_ESTIMATED = (
    "Contexts of these batches were estimated from summaries of the steps and from the workload, not recorded."
)


def _by_model(world: World) -> dict[str, list[Sample]]:
    groups: dict[str, list[Sample]] = {}
    for s in world.cycles:
        groups.setdefault(world.model_of(s.experiment), []).append(s)
    return groups


def _us(form: Program, sample: Sample) -> np.ndarray:
    """float64[times]: the program's times of these cycles."""
    times: np.ndarray = sample.predicted_us(bind(assemble(form), form.theta, sample.facts))
    return times


def _blocks(sample: Sample) -> list[str]:
    return [f"{sample.experiment} {i // BLOCK}" for i in range(len(sample.observed_us))]


def _apart(worse: Judged, better: Judged) -> Estimate:
    of = f"{len(worse.errors)} cycles of {len(worse.programs)} models"
    return mean_of(list(worse.errors - better.errors), worse.block, "points", of)


def _figure(name: str, judged: Judged) -> Figure:
    return Figure(name, float(judged.errors.mean()), "%", median=float(np.median(judged.errors)))


def _decodes(raw: np.ndarray) -> np.ndarray:
    """The batches without their prompts."""
    changed = raw.copy()
    changed[:, [PREFILL_REQS, PREFILL_TOKENS, MAX_PREFILL_CHUNK, PREFILL_PAIRS, KV_VAR]] = 0.0
    changed[:, KV_SUM], changed[:, KV_MAX] = raw[:, KV_DECODE_SUM], raw[:, KV_DECODE_MAX]
    return changed


def _prefills(raw: np.ndarray) -> np.ndarray:
    """The batches without their decodes."""
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
    blocks = _rows([name for s in samples for name in _blocks(s)])
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
        compute, memory = _us(_COMPUTE, s), _us(_MEMORY, s)
        constants = np.zeros((len(compute), len(samples)))
        constants[:, i] = 1e3
        each = s.raw[:, DECODE_REQS] * s.facts["layers"]
        longer, shorter = np.maximum(compute, memory), np.minimum(compute, memory)
        parts.append(np.column_stack([longer, shorter, constants, *([each] * requests)]))
    x = np.concatenate(parts) / observed[:, None]
    blocks = _rows([b for s in samples for b in _blocks(s)])

    def share(rows: np.ndarray) -> float:
        longer, shorter, *_ = scipy.optimize.nnls(x[rows], np.ones(len(rows)))[0]
        return max(1.0 - shorter / longer, 0.0) if longer > 0.0 else 0.0

    def again(rng: np.random.Generator) -> float:
        return share(np.concatenate([blocks[i] for i in rng.integers(0, len(blocks), len(blocks))]))

    of = f"{len(x):,} cycles of {len(samples)} runs"
    return resampled(share(np.arange(len(x))), again, "of the shorter", of)


def _rows(names: Sequence[str]) -> list[np.ndarray]:
    """The positions of each name, in order of appearance."""
    groups: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        groups.setdefault(name, []).append(i)
    return [np.array(rows) for rows in groups.values()]
