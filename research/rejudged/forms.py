"""Forms against each other on measured cycles: how a step's time depends on what its batch holds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from research.methods.recipe import Recipe, train
from research.methods.samples import Sample
from research.rejudged.cycles import blocks_of, times_us
from research.rejudged.finding import Figure, Finding
from research.rejudged.verdict import Estimate, mean_of
from research.rejudged.world import CAP_PCT, World, program
from simulator.clock.bind import bind
from simulator.language.ir import Program
from simulator.language.opcodes import assemble
from simulator.schema import MAX_PREFILL_CHUNK, PREFILL_REQS, PREFILL_TOKENS, RAW_FIELDS
from simulator.serving.splits import TEST

PROMPT = 2048.0  # tokens, the largest prompt chunk of the runs

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
RIDGE, SCALED = Recipe(ridge="raw", unpenalised=("p0",)), Recipe(ridge="standardised", unpenalised=("p0",))

_ESTIMATED = "Contexts of these batches were estimated from summaries of the steps and from the workload, not recorded."


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
            error = 100.0 * np.abs(times_us(programs[model], late) / late.observed_us - 1.0)
            errors.append(np.minimum(error, CAP_PCT))
            blocks += blocks_of(late)
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


def _by_model(world: World) -> dict[str, list[Sample]]:
    groups: dict[str, list[Sample]] = {}
    for s in world.cycles:
        groups.setdefault(world.model_of(s.experiment), []).append(s)
    return groups


def _apart(worse: Judged, better: Judged) -> Estimate:
    of = f"{len(worse.errors)} cycles of {len(worse.programs)} models"
    return mean_of(list(worse.errors - better.errors), worse.block, "points", of)


def _figure(name: str, judged: Judged) -> Figure:
    return Figure(name, float(judged.errors.mean()), "%", median=float(np.median(judged.errors)))
