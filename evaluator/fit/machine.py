"""A program ready to run on the deployments of some experiments: its step times, and their slopes in its constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from evaluator.fit.lanes import Lanes, lanes, partials
from simulator.clock.bind import Deployments, settle
from simulator.clock.vm import run
from simulator.common.jit import njit
from simulator.language import opcodes
from simulator.language.opcodes import REFERENCE, STEP_TIME, VALUES, Code
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

# Columns of the table of load stages.
(
    RATE,  # requests/us
    OUTPUT,  # mean output tokens of a request; each output counts as 1 token at least
    INPUT,  # mean prompt tokens of a request
    UNCACHED,  # mean prompt tokens that a request computes, if it computes any
    FULL_HITS,  # share of the requests whose whole prompt is cached
    SEQS,  # limit on the requests of a step
    BUDGET,  # limit on the tokens of a step
    DURATION,  # us
    DEPLOYMENT,  # position of the experiment
    OBSERVED_N,  # decodes that run at once by the observed ITL, NaN without one
    COLD,  # prompts computed in full because nothing is cached yet
    COLD_LEN,  # tokens of each of these
    SHORTEST,  # shortest context of a decode, tokens
    SPAN,  # difference to the longest, tokens
    BINS,  # bins of the histogram: of the prompts, or of the steps of a closed load
    CLOSED,  # 1 for a closed load, else 0
    GAPS,  # of a closed load, mean of 1 / (output - 1) over requests of more than one token
    MISSED,  # steps that a request misses beside the one that runs when it is queued: 1 if they are composed ahead
    WIDTH,  # new tokens of a decode in a step: 1, and its drafts
    GAIN,  # mean tokens that a decode emits in a step
) = range(20)
# Columns of the histogram of the prompts.
(
    BIN_SHARE,  # share of the requests
    BIN_COMPUTED,  # share of those that compute a part of their prompt
    BIN_INPUT,  # mean prompt tokens
    BIN_UNCACHED,  # mean prompt tokens computed, of those that compute any
) = range(4)
# Columns of the histogram of the steps of a closed load: the step as `step_us` has it, and how many of these
# steps a mean request sees until its first token, until its last one, and in a mean token after the first.
(
    AT_N,
    AT_PROMPTS,
    AT_CHUNK,
    AT_EARLIER,
    AT_PROMPT,
    AT_SHORTEST,
    AT_SPAN,
    AT_TTFT,
    AT_E2E,
    AT_ITL,
) = range(10)
ENDS = 6  # step times around a number of decodes: with 0, 1, 2 prompts there, and at one decode more
COLD_STEP, QUEUE = ENDS, ENDS + 1  # rows of Machine.moves: a step that fills the cold cache, the time to the queue


class Machine(NamedTuple):
    """A program on the deployments of some experiments, and room to work in.

    rows, static, step, raw, request, results: see simulator.language.opcodes.Code. which, static_which, step_which: see
    `varying`. table, bins: the load stages, see `Stages`. base: float64[experiments, slots], value vectors. alike:
    int64[experiments], the first one of the same deployment and group. group: int64[experiments], of each experiment.
    place: int64[groups, theta], positions of a group's constants in phi, the vector of all constants. lane: the steps
    of closed loads, side by side.

    Room to work in: v: float64[slots], values; d: float64[slots, theta], their slopes; theta: float64[theta],
    constants; times: float64[ENDS] and moves: float64[ENDS + 2, theta], step times and their slopes.
    """

    rows: np.ndarray
    static: int
    step: int
    raw: int
    request: int
    results: tuple[int, ...]
    which: np.ndarray
    static_which: int
    step_which: int
    table: np.ndarray
    bins: np.ndarray
    base: np.ndarray
    alike: np.ndarray
    group: np.ndarray
    place: np.ndarray
    lane: Lanes
    v: np.ndarray
    d: np.ndarray
    theta: np.ndarray
    times: np.ndarray
    moves: np.ndarray


def machine(
    code: Code,
    table: np.ndarray,
    bins: np.ndarray,
    deployments: Deployments,
    members: Sequence[Sequence[int]],
    place: np.ndarray,
) -> Machine:
    """The machine of a program. deployments: of the experiments. members: the experiments of each group; see `Machine`
    for the other arguments."""
    base = deployments.base(code)
    group = np.zeros(len(base), np.int64)
    for g, experiments in enumerate(members):
        group[list(experiments)] = g
    first: dict[tuple[int, int], int] = {}
    both = zip(deployments.alike.tolist(), group.tolist(), strict=True)
    alike = np.array([first.setdefault(of, i) for i, of in enumerate(both)], np.int64)
    place = np.ascontiguousarray(place, dtype=np.int64).reshape(len(members), code.constants)
    d = np.zeros((code.slots, code.constants))
    np.fill_diagonal(d, 1.0)  # the constants are in the first slots
    varies = which, static_which, step_which = varying(code)
    program = (code.rows, code.static, code.step, code.raw, code.request, code.results)
    closed = bins[:, :, [AT_E2E, AT_TTFT, AT_ITL]] if bins.shape[2] > AT_ITL else np.zeros((*bins.shape[:2], 3))
    lane = lanes(code, which, static_which, step_which, closed)
    room = (np.zeros(code.slots), d, np.zeros(code.constants), np.zeros(ENDS), np.zeros((ENDS + 2, code.constants)))
    m = Machine(*program, *varies, table, bins, base, alike, group, place, lane, *room)
    _see(m, np.zeros(int(place.max(initial=-1)) + 1))
    return m


@njit
def _see(m, phi):  # type: ignore[no-untyped-def]
    """Fill `Lanes.seen`: what no constant changes in the steps of closed loads, so that any `phi` will do."""
    v, slot, settled = m.v, m.results[0], -1
    for i in range(m.table.shape[0]):
        row, bins = m.table[i], m.bins[i]
        if not row[CLOSED] > 0.0:
            continue
        deployment = m.alike[int(row[DEPLOYMENT])]
        if deployment != settled:
            put_deployment(m, phi, deployment)
            settled = deployment
        for k in range(int(row[BINS])):
            at = bins[k]
            chunk, earlier, prompt = at[AT_CHUNK], at[AT_EARLIER], at[AT_PROMPT]
            n, prompts, shortest, span = at[AT_N], at[AT_PROMPTS], at[AT_SHORTEST], at[AT_SPAN]
            step_us(m.rows, m.static, m.step, m.raw, slot, v, n, prompts, chunk, earlier, prompt, shortest, span)
            for j in range(m.lane.differing.size):
                m.lane.seen[i, j, k] = v[m.lane.differing[j]]


@njit
def put_deployment(m, phi, deployment):  # type: ignore[no-untyped-def]
    """Put the values of a deployment and the constants of its group into the machine."""
    for i in range(m.v.size):
        m.v[i] = m.base[deployment, i]
    group = m.group[deployment]
    for j in range(m.theta.size):
        m.theta[j] = phi[m.place[group, j]]
    settle(m.rows, m.static, m.step, m.raw, m.request, m.results[0], m.theta, m.v)


@njit
def step_us(rows, static, step, raw, slot, v, n, k, chunk, earlier, prompt, shortest, span):  # type: ignore[no-untyped-def]
    """The time in us of a step of `n` decodes, whose contexts cover `span` tokens from `shortest` evenly, and `k`
    prompt chunks of `chunk` tokens, each after `earlier` tokens of a prompt of `prompt` tokens."""
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


def varying(code: Code) -> tuple[np.ndarray, int, int]:
    """(rows whose results depend on a constant, int64[rows, 3]; how many of them are static; how many static or a
    step's).

    Each row comes with the first constant that it depends on, and the one after the last: a sum of terms depends on a
    few neighbours. All other slopes are 0.
    """
    spans = {j: (j, j + 1) for j in range(code.constants)}  # by slot; the constants are in the first ones
    which = []
    for i, (op, slot, *operands) in enumerate(code.rows.tolist()):
        if i == code.step and code.results[STEP_TIME] in spans:
            spans[code.request + REFERENCE] = spans[code.results[STEP_TIME]]
        if found := [spans[operand] for operand in operands[: VALUES[op]] if operand in spans]:
            spans[slot] = min(first for first, _ in found), max(last for _, last in found)
            which.append((i, *spans[slot]))
    static, step = (sum(i < end for i, _, _ in which) for end in (code.static, code.step))
    return np.array(which, dtype=np.int64).reshape(-1, 3), static, step


@njit
def differentiate(rows, which, low, high, v, d):  # type: ignore[no-untyped-def]
    """Fill d[slot, constant] for the results of rows[which[low:high]], from the values `v` that `run` left.

    Forward-mode differentiation by `partials`.
    """
    for w in range(low, high):
        i = which[w, 0]
        op, z, a, b = rows[i, 0], rows[i, 1], rows[i, 2], rows[i, 3]
        x, y = v[a], v[b]
        p, q = partials(op, x, y, v[z])
        if op == opcodes.SELECT:
            a = b if x != 0.0 else rows[i, 4]
            p = 1.0
        for j in range(which[w, 1], which[w, 2]):
            d[z, j] = p * d[a, j] + q * d[b, j]
