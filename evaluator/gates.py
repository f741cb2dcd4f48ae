"""What a program must satisfy before it is scored, on batches of our own making: named complaints with the batch that
shows them.

    finite    every time is finite, a step within [1, 10^10] us, an overhead within [0, 10^10]          (INV-M-1)
    monotone  a step gets no shorter with more tokens or context; under 5 % of pairs of steps may break it  (INV-M-5)
    growth    a step of twice the requests, tokens and context takes at most 4.5 times as long

That a program is deterministic and without side effects (INV-M-2, INV-M-3) needs no gate: the language has neither
state nor randomness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

import numpy as np

from simulator.bind import Bound, bind
from simulator.experiment import Experiment
from simulator.fields import Active, raw_fields
from simulator.language.ir import Program
from simulator.language.opcodes import assemble
from simulator.schema import RAW
from simulator.vm import clamps

MOST_VIOLATIONS = 0.05  # of the pairs
MOST_GROWTH = 4.5  # attention over twice the tokens in twice the context is 4 times as long
SWEEP_SEED = 5
SWEEP_BATCHES = 64
PROMPTS = (1, 512, 4096, 131072)  # tokens, for queueing_time
ROUNDING = 1e-9  # relative: what float64 may lose is no violation

Facts = Mapping[str, Mapping[str, float]]  # deployment, as complaints name it -> its s. fields
Batch = tuple[Active, ...]


@dataclass(frozen=True, slots=True)
class Gate:
    """What one gate says: its name, whether it passes, what it measured, and the complaint ("" where it passes)."""

    name: str
    passes: bool
    measured: str
    complaint: str = ""


def deployments_of(experiments: Sequence[Experiment]) -> Facts:
    """The distinct deployments of the experiments."""
    found: dict[str, Mapping[str, float]] = {}
    for e in experiments:
        if e.facts not in found.values():
            name = f"{e.model} tp{e.engine.tensor_parallel}"
            found[name if name not in found else e.id] = e.facts
    return found


def judge(program: Program, deployments: Facts) -> list[Gate]:
    """All gates on every deployment, at the program's constants; where times are not finite the others are left out."""
    code = assemble(program)
    bounds = {name: bind(code, program.theta, facts) for name, facts in deployments.items()}
    finite = _finite(bounds)
    if not finite.passes:
        return [finite]
    steps = {name: bound.steps_us(_sweep().raw) for name, bound in bounds.items()}
    return [finite, _monotone(steps), _growth(steps)]


def complaints(program: Program, deployments: Facts) -> list[str]:
    """What the gates refuse, a line each; empty when they pass."""
    return [f"gate {gate.name}: {gate.complaint}" for gate in judge(program, deployments) if not gate.passes]


def finite(program: Program, deployments: Facts) -> Gate:
    """The first gate alone: cheap, and the only one that makes sense before the constants are fitted."""
    code = assemble(program)
    return _finite({name: bind(code, program.theta, facts) for name, facts in deployments.items()})


def _finite(bounds: Mapping[str, Bound]) -> Gate:
    names, raw = _edges()
    for deployment, bound in bounds.items():
        for name, x in zip(names, bound.steps_us(raw), strict=True):
            if clamps(x, 1):
                why = f"{deployment}, {name}: the step would last {x:g} us: it must be finite and within 1 and 1e10"
                return Gate("finite", False, "", f"{why}: {_mend(x)}")
        overheads = [(f"queueing of a prompt of {n} tokens", bound.queueing_us(n)) for n in PROMPTS]
        overheads += [("an output token", bound.output_token_us()), ("a completion", bound.completion_us())]
        for name, x in overheads:
            if clamps(x, 0):
                why = f"{deployment}, {name}: would take {x:g} us: it must be finite and within 0 and 1e10: {_mend(x)}"
                return Gate("finite", False, "", why)
    return Gate("finite", True, f"{len(names)} batches on {len(bounds)} deployments")


def _mend(x: float) -> str:
    return "add a constant, or take the max with one" if x < 1.0 else "let it grow more slowly"


def _monotone(steps: Mapping[str, np.ndarray]) -> Gate:
    sweep = _sweep()
    drops = {name: 1.0 - x[sweep.more] / x[sweep.base] for name, x in steps.items()}
    wrong = sum(int((drop > ROUNDING).sum()) for drop in drops.values())
    pairs = len(sweep.base) * len(drops)
    measured = f"{100 * wrong / pairs:.1f} % of {pairs:,} pairs"
    if wrong:
        name = max(drops, key=lambda n: float(drops[n].max()))
        worst = int(drops[name].argmax())
        one, other = steps[name][sweep.base[worst]], steps[name][sweep.more[worst]]
        measured += f" get shorter, worst: {name}: {sweep.pairs[worst]}: {one:,.0f} -> {other:,.0f} us"
    if wrong < MOST_VIOLATIONS * pairs:
        return Gate("monotone", True, measured)
    why = f"{measured}: more work must not take less time, at most {100 * MOST_VIOLATIONS:g} % of pairs may be so"
    return Gate("monotone", False, measured, why)


def _growth(steps: Mapping[str, np.ndarray]) -> Gate:
    sweep = _sweep()
    ratios = {name: x[sweep.twice] / x[: len(sweep.twice)] for name, x in steps.items()}
    name = max(ratios, key=lambda n: float(ratios[n].max()))
    worst = int(ratios[name].argmax())
    one, other = steps[name][worst], steps[name][sweep.twice[worst]]
    what = f"{name}: {sweep.names[worst]}, doubled: {one:,.0f} -> {other:,.0f} us"
    measured = f"{ratios[name][worst]:.2f} times at most: {what}"
    if ratios[name][worst] <= MOST_GROWTH:
        return Gate("growth", True, measured)
    why = f"{measured}: twice the requests, tokens and context may take {MOST_GROWTH} times as long"
    return Gate("growth", False, measured, why)


# batches


def _decodes(n: int, context: int) -> Batch:
    return tuple(Active(min(context, 512), context + 7 * i, 1) for i in range(n))


@cache
def _edges() -> tuple[list[str], np.ndarray]:
    """Names of the edge batches and their raw fields, float64[batches, len(RAW)]."""
    batches: dict[str, Batch] = {
        "empty batch": (),
        "one decode": _decodes(1, 512),
        "one decode of 1 token": (Active(1, 1, 1),),
        "128 decodes": _decodes(128, 512),
        "one prefill of 2048": (Active(4096, 0, 2048),),
        "one prefill token": (Active(16, 15, 1),),
        "128 prefills of 16": tuple(Active(16, 0, 16) for _ in range(128)),
        "mixed": (*_decodes(64, 512), Active(4096, 2048, 512), Active(40, 0, 40)),
    }
    for k in (4, 16, 32, 128):
        batches[f"one decode in {k}k context"] = _decodes(1, 1024 * k)
        batches[f"128 decodes in {k}k context"] = _decodes(128, 1024 * k)
        batches[f"last chunk of a {k}k prompt"] = (Active(1024 * k, 1024 * k - 2048, 2048),)
        batches[f"chunk of a {k}k prompt beside 64 decodes"] = (
            *_decodes(64, 1024 * k),
            Active(1024 * k, 1024 * k - 1024, 1024),
        )
    return list(batches), _raw(batches.values())


def _raw(batches) -> np.ndarray:  # type: ignore[no-untyped-def]
    rows = (raw_fields(batch) for batch in batches)
    return np.array([[row[f] for f in RAW] for row in rows])


@dataclass(frozen=True)
class _Sweep:
    """Seeded batches and what is made of them. raw: float64[rows, len(RAW)], first the batches, whose `names` are said;
    twice: the row of each batch doubled; base, more: rows of each pair, `pairs` says what is more."""

    raw: np.ndarray
    names: list[str]
    twice: np.ndarray
    base: np.ndarray
    more: np.ndarray
    pairs: list[str]


@cache
def _sweep() -> _Sweep:
    rng = Random(SWEEP_SEED)
    batches = [_random_batch(rng) for _ in range(SWEEP_BATCHES)]
    rows: list[Batch] = [*batches, *map(_doubled, batches)]
    base, pairs = [], []
    for i, batch in enumerate(batches):
        for what, (move, most) in _MOVES.items():
            size = round(2 ** rng.uniform(0, most))
            changed = move(batch, size, rng)
            if changed is not None:
                base.append(i)
                pairs.append(f"{_said(batch)}, {what.format(size)}")
                rows.append(changed)
    n, twice = len(batches), np.arange(len(batches), 2 * len(batches))
    return _Sweep(_raw(rows), [_said(b) for b in batches], twice, np.array(base), np.arange(2 * n, len(rows)), pairs)


def _random_batch(rng: Random) -> Batch:
    """Up to 64 decodes in up to 32k of context, in half of the batches with a prefill chunk or two."""
    decodes, context = 0 if rng.random() < 0.2 else round(2 ** rng.uniform(0, 6)), round(2 ** rng.uniform(5, 15))
    batch = [Active(32, round(context * rng.uniform(0.5, 1.5)) + 32, 1) for _ in range(decodes)]
    for _ in range(rng.choice((0, 0, 1, 2)) if decodes else rng.choice((1, 2))):
        progress = rng.choice((0, 0, 512, 4096))
        new = round(2 ** rng.uniform(0, 10))
        batch.append(Active(progress + new + rng.choice((0, 1000)), progress, new))
    return tuple(batch)


def _said(batch: Batch) -> str:
    decodes = [r.progress for r in batch if r.progress >= r.input_len]
    many = f"{len(decodes)} decode{'s' * (len(decodes) > 1)}"
    parts = [f"{many} after some {round(sum(decodes) / len(decodes))} tokens"] if decodes else []
    parts += [f"a prefill of {r.new} after {r.progress}" for r in batch if r.progress < r.input_len]
    return " and ".join(parts)


def _doubled(batch: Batch) -> Batch:
    """Twice the decodes in twice the context, twice the new tokens of every prefill after twice the progress."""
    decodes = [Active(r.input_len, 2 * r.progress, 1) for r in batch if r.progress >= r.input_len]
    prefills = [Active(2 * r.input_len, 2 * r.progress, 2 * r.new) for r in batch if r.progress < r.input_len]
    return (*decodes, *decodes, *prefills)


def _longer_chunks(batch: Batch, more: int, rng: Random) -> Batch | None:
    if all(r.progress >= r.input_len for r in batch):
        return None
    return tuple(Active(r.input_len + more, r.progress, r.new + more) if r.progress < r.input_len else r for r in batch)


def _longer_context(batch: Batch, more: int, rng: Random) -> Batch:
    chosen = rng.randrange(len(batch))
    return tuple(_later(r, more) if i == chosen else r for i, r in enumerate(batch))


def _longer_contexts(batch: Batch, more: int, rng: Random) -> Batch:
    return tuple(_later(r, more) for r in batch)


def _later(r: Active, more: int) -> Active:
    """The request with more tokens done before the step, in the same phase."""
    return Active(r.input_len + more * (r.progress < r.input_len), r.progress + more, r.new)


def _more_decodes(batch: Batch, more: int, rng: Random) -> Batch:
    return (*batch, *(Active(32, round(2 ** rng.uniform(5, 15)), 1) for _ in range(more)))


# what is said of a move -> the move, and the largest size as a power of two
_MOVES: dict[str, tuple[Callable[[Batch, int, Random], Batch | None], int]] = {
    "every chunk {} tokens longer": (_longer_chunks, 10),
    "one context {} tokens longer": (_longer_context, 12),
    "every context {} tokens longer": (_longer_contexts, 12),
    "{} decodes more": (_more_decodes, 6),
}
