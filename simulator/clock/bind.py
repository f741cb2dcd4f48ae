"""A program's opcodes bound to a deployment and a set of constants: the value vector that the clocks compute with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from simulator.clock.vm import clamps, run, to_ticks
from simulator.common.jit import njit
from simulator.language.opcodes import COMPLETION_TIME, OUTPUT_TOKEN_TIME, QUEUEING_TIME, REFERENCE, STEP_TIME, Code
from simulator.schema import CURVES, DECODE_REQS, RAW_FIELDS
from simulator.serving.experiment import Experiment
from simulator.serving.facts import curve_of, prefill_of

REFERENCE_DECODES = 24  # the reference batch of s.reference_step_us: 24 decodes with PI = 0


@njit
def settle(rows, static, step, raw, request, out_step, theta, v):  # type: ignore[no-untyped-def]
    """Put the constants in, run the static rows, and compute reference_step_us. Changes `v` in place."""
    for i in range(theta.size):
        v[i] = theta[i]
    run(rows, 0, static, v)
    for i in range(raw, raw + RAW_FIELDS):
        v[i] = 0.0
    v[raw + DECODE_REQS] = REFERENCE_DECODES
    run(rows, static, step, v)
    v[request + REFERENCE] = v[out_step]


@njit
def waits(rows, low, high, v, request, slot, lengths, out):  # type: ignore[no-untyped-def]
    """Fill `out` with the queueing time in whole us of every prompt length.

    Returns how many were clamped, and the last of those before clamping.
    """
    clamped, offending = 0, 0.0
    for i in range(lengths.size):
        v[request] = lengths[i]
        run(rows, low, high, v)
        if clamps(v[slot], 0):
            clamped += 1
            offending = v[slot]
        out[i] = to_ticks(v[slot], 0)
    return clamped, offending


@njit
def settle_all(rows, static, step, raw, request, out_step, theta, values):  # type: ignore[no-untyped-def]
    """`settle` for every row of `values`, a deployment each."""
    for d in range(len(values)):
        settle(rows, static, step, raw, request, out_step, theta, values[d])


@njit
def steps(rows, static, step, slot, raw, table, v, out):  # type: ignore[no-untyped-def]
    """Fill `out` with the step time in us of every row of raw batch fields. Changes `v` in place."""
    for i in range(len(table)):
        for j in range(RAW_FIELDS):
            v[raw + j] = table[i, j]
        run(rows, static, step, v)
        out[i] = v[slot]


@njit
def steps_all(rows, static, step, slot, raw, table, values, out):  # type: ignore[no-untyped-def]
    """`steps` for every row of `values`, a deployment each, into that row of `out`."""
    for d in range(len(values)):
        steps(rows, static, step, slot, raw, table, values[d], out[d])


@njit
def queueing_all(rows, low, high, request, slot, lengths, values, out):  # type: ignore[no-untyped-def]
    """Fill out[d, i] with the queueing time in us of prompt length i on deployment d. Changes `values` in place."""
    for d in range(len(values)):
        for i in range(lengths.size):
            values[d, request] = lengths[i]
            run(rows, low, high, values[d])
            out[d, i] = values[d, slot]


@dataclass(frozen=True)
class Bound:
    """Opcodes, and their value vector for one deployment and one set of constants.

    `prefill`: bound to the pool that computes the prompts of this one, if another does.
    """

    code: Code
    values: np.ndarray
    prefill: Bound | None = None

    def step_us(self, raw: np.ndarray) -> float:
        """The step time in us, before truncation, for raw batch fields in the order of schema.RAW."""
        return float(self.steps_us(raw[np.newaxis])[0])

    def steps_us(self, table: np.ndarray) -> np.ndarray:
        """float64[rows]: `step_us` of every row of float64[rows, RAW]."""
        code, us = self.code, np.empty(len(table))
        steps(code.rows, code.static, code.step, code.results[STEP_TIME], code.raw, table, self.values.copy(), us)
        return us

    def queueing_us(self, input_len: int) -> float:
        """The queueing time in us, before truncation; 0 if the program has none."""
        slot = self.code.results[QUEUEING_TIME]
        if slot < 0:
            return 0.0
        v = self.values.copy()
        v[self.code.request] = input_len
        run(self.code.rows, self.code.step, len(self.code.rows), v)
        return float(v[slot])

    def queueing_ticks(self, lengths: np.ndarray) -> tuple[np.ndarray, int, float]:
        """int64[lengths]: the queueing time in whole us of each prompt length; how many were clamped, one of them."""
        us = np.zeros(len(lengths), np.int64)
        slot = self.code.results[QUEUEING_TIME]
        if slot < 0:
            return us, 0, 0.0
        v, low = self.values.copy(), self.code.step
        return us, *waits(self.code.rows, low, len(self.code.rows), v, self.code.request, slot, lengths, us)

    def output_token_us(self) -> float:
        """The time per output token in us, before truncation; 0 if the program has none."""
        return self._static(OUTPUT_TOKEN_TIME)

    def completion_us(self) -> float:
        """The time at completion in us, before truncation; 0 if the program has none."""
        return self._static(COMPLETION_TIME)

    def _static(self, result: int) -> float:
        slot = self.code.results[result]
        return float(self.values[slot]) if slot >= 0 else 0.0


@dataclass(frozen=True)
class BoundAll:
    """Opcodes, and a row of `values` for each of several deployments with one set of constants.

    Its methods use the slots that every step and every prompt length overwrite as scratch space.
    """

    code: Code
    values: np.ndarray  # float64[deployments, slots]
    prefills: Mapping[int, Bound] = field(default_factory=dict)  # of those with a pool of their own for prompts

    def at(self, i: int) -> Bound:
        """The opcodes bound to deployment `i` alone."""
        return Bound(self.code, self.values[i], self.prefills.get(i))

    def steps_us(self, table: np.ndarray) -> np.ndarray:
        """float64[deployments, rows]: the step time in us, before truncation, of every row of float64[rows, RAW]."""
        code, us = self.code, np.empty((len(self.values), len(table)))
        steps_all(code.rows, code.static, code.step, code.results[STEP_TIME], code.raw, table, self.values, us)
        return us

    def queueing_us(self, lengths: np.ndarray) -> np.ndarray:
        """float64[deployments, lengths]: the queueing time in us of each prompt length; 0 if the program has none."""
        code, us = self.code, np.zeros((len(self.values), len(lengths)))
        slot = code.results[QUEUEING_TIME]
        if slot >= 0:
            queueing_all(code.rows, code.step, len(code.rows), code.request, slot, lengths, self.values, us)
        return us

    def output_token_us(self) -> np.ndarray:
        """float64[deployments]: the time per output token in us; 0 if the program has none."""
        return self._static(OUTPUT_TOKEN_TIME)

    def completion_us(self) -> np.ndarray:
        """float64[deployments]: the time at completion in us; 0 if the program has none."""
        return self._static(COMPLETION_TIME)

    def _static(self, result: int) -> np.ndarray:
        slot = self.code.results[result]
        return self.values[:, slot].copy() if slot >= 0 else np.zeros(len(self.values))


@dataclass(frozen=True)
class Deployments:
    """Named deployments, prepared once so that any number of programs are bound to all of them at once.

    facts: name -> the s. fields except reference_step_us, the same ones for every deployment.
    """

    facts: Mapping[str, Mapping[str, float]]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names in the order of the rows."""
        return tuple(self.facts)

    @cached_property
    def columns(self) -> Mapping[str, int]:
        """Name of a field -> its column in `fields`."""
        return {name: i for i, name in enumerate(next(iter(self.facts.values()), ()))}

    @cached_property
    def fields(self) -> np.ndarray:
        """float64[deployments, fields]."""
        rows = [[facts[name] for name in self.columns] for facts in self.facts.values()]
        return np.array(rows, dtype=float).reshape(len(rows), len(self.columns))

    @cached_property
    def curves(self) -> Mapping[str, np.ndarray]:
        """Name of a curve -> float64[deployments, 1 + knots]: the number of knots, then the values at the knots.

        Raises InputError if one of the deployments has no measured kernels.
        """
        every = self.facts.values()
        return {name: np.stack([[n, *curve_of(facts, name)] for facts in every]) for name, n in CURVES.items()}

    @cached_property
    def alike(self) -> np.ndarray:
        """int64[deployments]: for each the first one that has the same fields and curves."""
        first: dict[tuple[bytes, object], int] = {}
        every = enumerate(zip(self.fields, self.facts.values(), strict=True))
        same = [first.setdefault((row.tobytes(), getattr(facts, "deployed", None)), i) for i, (row, facts) in every]
        return np.array(same, dtype=np.int64)

    def base(self, code: Code) -> np.ndarray:
        """float64[deployments, slots] with fields, literals, curves and trees in place, and the constants still 0."""
        values = np.zeros((len(self.names), code.slots))
        if not self.names:  # then no field has a column
            return values
        values[:, [slot for slot, _ in code.statics]] = self.fields[:, [self.columns[name] for _, name in code.statics]]
        values[:, [slot for slot, _ in code.literals]] = [value for _, value in code.literals]
        for slot, name in code.curves:
            values[:, slot : slot + 1 + CURVES[name]] = self.curves[name]
        if code.forest:
            slot, block = code.forest
            values[:, slot : slot + len(block)] = block
        return values

    def bind(self, code: Code, theta: tuple[float, ...]) -> BoundAll:
        """`code` with constants `theta` on every deployment."""
        every = settled(code, np.array(theta, dtype=float), self.base(code))
        return replace(every, prefills={i: bind(code, theta, facts) for i, facts in self.prefills.items()})

    @cached_property
    def prefills(self) -> Mapping[int, Mapping[str, float]]:
        """The facts of the pools that compute prompts for others, by the deployment whose prompts they compute."""
        every = enumerate(self.facts.values())
        return {i: prefill for i, facts in every if (prefill := prefill_of(facts)) is not None}


def settled(code: Code, theta: np.ndarray, base: np.ndarray) -> BoundAll:
    """`code` with constants `theta` on the deployments of `base`, a row each, which becomes the result's `values`."""
    settle_all(code.rows, code.static, code.step, code.raw, code.request, code.results[STEP_TIME], theta, base)
    return BoundAll(code, base)


def deployments_in_order(experiments: Iterable[Experiment]) -> Deployments:
    """The deployment of every experiment, named by its position."""
    return Deployments({str(i): e.facts for i, e in enumerate(experiments)})


def base_values(code: Code, facts: Mapping[str, float]) -> np.ndarray:
    """float64[slots]: `Deployments.base` of a single deployment, without preparing what the program does not read."""
    v = np.zeros(code.slots)
    for slot, name in code.statics:
        v[slot] = facts[name]
    for slot, value in code.literals:
        v[slot] = value
    for slot, name in code.curves:
        knots = curve_of(facts, name)
        v[slot] = len(knots)
        v[slot + 1 : slot + 1 + len(knots)] = knots
    if code.forest:
        slot, block = code.forest
        v[slot : slot + len(block)] = block
    return v


def bind(code: Code, theta: tuple[float, ...], facts: Mapping[str, float]) -> Bound:
    """`code` with constants `theta` on the deployment `facts` (the s. fields except reference_step_us)."""
    v = base_values(code, facts)
    step_slot = code.results[STEP_TIME]
    settle(code.rows, code.static, code.step, code.raw, code.request, step_slot, np.array(theta, dtype=float), v)
    prefill = prefill_of(facts)
    return Bound(code, v, None if prefill is None else bind(code, theta, prefill))


def ticks(x: float) -> int:
    """An overhead in microseconds as the clock counts it: truncated, within [0, 10^10]."""
    return int(to_ticks(x, 0))
