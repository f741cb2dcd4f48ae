"""A program ready to run on the deployments of some experiments, and its times for the steps of a load stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from evaluator.fit.duals import varying
from simulator.clock.bind import settle
from simulator.clock.vm import run
from simulator.common.jit import njit
from simulator.language.opcodes import Code
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
    PROMPT_PAIRS,
)

ENDS = 6  # step times around a number of decodes: with 0, 1, 2 prompts there, and at one decode more
COLD_STEP, QUEUE = ENDS, ENDS + 1  # rows of Machine.moves: a step that fills the cold cache, the time to the queue


class Machine(NamedTuple):
    """A program ready to run on the deployments of some experiments, with room to work in.

    rows, static, step, raw, request, results: of simulator.language.opcodes.Code. which, static_which, step_which: see
    duals.varying. table, bins: the load stages, see `Stages`. base: float64[experiments, slots], value vectors.
    group: int64[experiments], of each experiment. place: int64[groups, theta], where the constants of a group are in
    phi, the vector of all. Room to work in: v: float64[slots], values; d: float64[slots, theta], their slopes; theta:
    float64[theta], constants; times: float64[ENDS] and moves: float64[ENDS + 2, theta], times and their slopes.
    """

    rows: np.ndarray
    static: int
    step: int
    raw: int
    request: int
    results: tuple[int, int, int, int]
    which: np.ndarray
    static_which: int
    step_which: int
    table: np.ndarray
    bins: np.ndarray
    base: np.ndarray
    group: np.ndarray
    place: np.ndarray
    v: np.ndarray
    d: np.ndarray
    theta: np.ndarray
    times: np.ndarray
    moves: np.ndarray


def machine(
    code: Code,
    table: np.ndarray,
    bins: np.ndarray,
    base: np.ndarray,
    members: Sequence[Sequence[int]],
    place: np.ndarray,
) -> Machine:
    """The machine of a program; `members` are the experiments of each group, the other arguments as in `Machine`."""
    which, static_which, step_which = varying(code)
    group = np.zeros(len(base), np.int64)
    for g, experiments in enumerate(members):
        group[list(experiments)] = g
    d = np.zeros((code.slots, code.constants))
    np.fill_diagonal(d, 1.0)  # the constants are in the first slots
    a, b, c, e = code.results
    return Machine(
        code.rows, code.static, code.step, code.raw, code.request, (a, b, c, e), which, static_which, step_which,
        table, bins, base, group, np.ascontiguousarray(place, dtype=np.int64).reshape(len(members), code.constants),
        np.zeros(code.slots), d, np.zeros(code.constants), np.zeros(ENDS), np.zeros((ENDS + 2, code.constants)),
    )  # fmt: skip


@njit
def put_deployment(m, phi, deployment):  # type: ignore[no-untyped-def]
    """Put a deployment's values and its group's constants into the machine."""
    for i in range(m.v.size):
        m.v[i] = m.base[deployment, i]
    group = m.group[deployment]
    for j in range(m.theta.size):
        m.theta[j] = phi[m.place[group, j]]
    settle(m.rows, m.static, m.step, m.raw, m.request, m.results[0], m.theta, m.v)


@njit
def step_us(rows, static, step, raw, slot, v, n, k, chunk, earlier, prompt, shortest, span):  # type: ignore[no-untyped-def]
    """Step time in us with n decodes, their contexts evenly spread over `span` tokens from `shortest`, and k prompt
    chunks of `chunk` tokens after `earlier` tokens in chunks before, each of a prompt of `prompt` tokens."""
    context = shortest + span / 2.0
    longest = shortest + span * n / (n + 1.0) if n > 0 else 0.0
    v[raw + PREFILL_REQS] = k if chunk > 0 else 0.0
    v[raw + DECODE_REQS] = n
    v[raw + PREFILL_TOKENS] = k * chunk
    v[raw + MAX_PREFILL_CHUNK] = chunk if k > 0 else 0.0
    v[raw + PREFILL_PAIRS] = k * chunk * (earlier + (chunk + 1.0) / 2.0)
    v[raw + PROMPT_PAIRS] = k * chunk * (2.0 * prompt + chunk)
    v[raw + KV_SUM] = n * context + k * earlier
    v[raw + KV_MAX] = max(longest, earlier) if k > 0 else longest
    v[raw + KV_VAR] = span * span / 12.0 if n > 1 else 0.0  # of the uniform distribution; one context does not vary
    v[raw + KV_DECODE_SUM] = n * context
    v[raw + KV_DECODE_MAX] = longest
    run(rows, static, step, v)
    return v[slot]
