"""Run a load through time: by the fast clock where it proves that it equals the exact one, else by that one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.clock import exact, fast
from simulator.clock.batch import COMPLETED, GAVE_UP, Exact
from simulator.clock.blocks import HITS, MISSES, Cache, new_cache
from simulator.clock.calendar import CalendarWork
from simulator.clock.clients import Clients, clients_of, no_clients, send_rest
from simulator.clock.exact import exact_clock
from simulator.clock.fast import CLOCKS
from simulator.clock.queue import (
    DONE,
    HOSTILE,
    MORE,
    ROOM,
    STUCK,
    UNPROVEN,
    Gaps,
    Queue,
    QueueLog,
    Rules,
    Times,
    histogram,
)
from simulator.clock.ranks import ELSEWHERE, new_ranks, ranks_clock
from simulator.clock.segments import Segments
from simulator.clock.steps import KnownSteps
from simulator.clock.tier import new_tier, tiers
from simulator.clock.transferred import NO_TRANSFERS, Transferred
from simulator.serving.load import NEVER, Load, TierLimits

CHUNK = 1 << 20  # steps of a compiled call; between calls come progress, Ctrl-C and the folding of the log

PER_REQUEST = ("start_us", "begun_us", "first_us", "decode_us", "cached", "completed", "gave_up")  # columns of ClockRun

Progress = Callable[[int], None]  # requests admitted so far


class HostileStep(Exception):
    """A step time outside [1, 10^10] microseconds, or NaN, in a replay that does not allow it."""

    def __init__(self, step: int, value_us: float) -> None:
        super().__init__(f"step {step} would last {value_us:g} us: it must be finite and within 1 and 1e10")


class NeverEnds(Exception):
    """A request that needs more KV blocks than there are is preempted for ever. The host would not end either.

    `row` is its number in order of arrival.
    """

    def __init__(self, row: int, blocks: int) -> None:
        super().__init__(
            f"request {row} is preempted for ever: prompt and output need more than all {blocks} KV blocks"
        )
        self.row, self.blocks = row, blocks


@dataclass(frozen=True)
class Account:
    """The figures that the totals of a run need beyond its requests."""

    hits: int  # KV blocks found in the cache or loaded from host memory
    misses: int  # KV blocks taken to compute
    last_us: int  # time of the last step or completion
    gaps: tuple[np.ndarray, np.ndarray]  # durations of steps that decoded, us; tokens of completed requests in each
    hit_rate: float  # the share of hits, of replicas their mean


@dataclass(frozen=True)
class ClockRun:
    """The result of a clock. Arrays are per request, in the order of queueing; times are int64 microseconds."""

    order: np.ndarray | None  # the requests by number in order of queueing, None: all, in order of arrival
    sent_us: np.ndarray | None  # per request of a load with clients, NEVER for one that was not sent
    start_us: np.ndarray  # last admission
    begun_us: np.ndarray  # begin of the step that it was admitted to
    first_us: np.ndarray  # end of the prompt's last step, 0 if the prompt was never done
    decode_us: np.ndarray  # sum of its decode steps
    cached: np.ndarray  # int32: KV blocks found at the last admission, in the cache or host memory, -1 without one
    completed: np.ndarray  # bool
    gave_up: np.ndarray  # bool
    queued: int  # requests in the queue at the horizon
    running: int  # requests in the batch at the horizon
    steps: int
    clamped: int  # steps outside [1, 10^10] us
    preemptions: int
    failures: int  # last tokens that found no block
    loaded: int  # KV blocks loaded from host memory
    fast: bool  # True if the fast clock ran
    account: Account | None


def run_clock(
    load: Load,
    queueing_us: np.ndarray,
    steps: KnownSteps,
    *,
    overheads_us: tuple[int, int] = (0, 0),
    stop_when_hostile: bool = False,
    force_exact: bool = False,
    account: bool = False,
    progress: Progress | None = None,
    clocks: tuple[Any, Any, Any] = CLOCKS,
    transferred: Transferred = NO_TRANSFERS,
) -> ClockRun:
    """Run the requests of `load` that the engine accepts, each queued `queueing_us` after its arrival.

    The fast clock runs unless `force_exact` is set or the load rules it out; what it cannot prove is left to the exact
    one, and so are several ranks, and replicas that clients share. `overheads_us`: the time for an output token and at
    completion, by which clients see their last tokens later than the engine. `clocks` replaces fast.CLOCKS. `progress`
    is called now and then with the number of requests admitted. `transferred`: the transfers of prompts that come
    computed, in order of queueing; only the exact clock of one rank has them. Raises HostileStep if
    `stop_when_hostile`, and NeverEnds for a load that the host would never finish.
    """
    limits = load.limits
    alike = bool((queueing_us == queueing_us[0]).all())  # the usual case: requests are queued in order of arrival
    queued_us, order = _order(load, queueing_us, alike)
    # users that are gone leave requests of their stage unsent, and those of the next one take their places
    skips = load.clients is not None and load.clients.at_engine and len(load.clients.users) > 1
    # places in the queue are those of arrival
    in_order = order is None and (alike or load.clients is None) and not skips

    def filled() -> tuple[Queue, Clients]:
        if load.clients:
            rows = Queue(load.requests.arrival_us, *(*load.columns, *_pieces(load, None), transferred))
            return clients_of(load, rows, queueing_us, not in_order, overheads_us)
        columns = load.columns if order is None else tuple(column[order] for column in load.columns)
        queue = Queue(queued_us, *(*columns, *_pieces(load, order), transferred))
        return queue, no_clients(queue)

    rules = Rules(
        max_seqs=-(-limits.max_seqs // limits.stages),
        budget=limits.budget,
        threshold=limits.threshold,
        chunked=limits.chunked,
        block=limits.block,
        blocks=min(limits.blocks, load.written) if load.ample else limits.blocks // limits.stages,
        horizon_us=limits.horizon_us,
        caching=limits.caching,
        turns=load.turns,
        watch=not (load.ample or (in_order and load.roomy)),
        once=not load.ample,
        patient=load.patient,
        hostile_stops=stop_when_hostile,
        ahead=limits.ahead,
        width=1 + limits.drafts,
        rate=1.0 + limits.acceptance * limits.drafts,
        transferred=transferred is not NO_TRANSFERS,
        busy=limits.busy,
    )
    queue, clients = filled()
    if load.lanes > 1:
        return _ordered(_on_ranks(load, queue, clients, rules, steps, account, progress, order), order, clients)
    if not (force_exact or rules.transferred or rules.busy) and _may_be_fast(load, queue, rules):
        run = _fast(load, queue, clients, rules, steps, account, progress, clocks)
        if run is not None:
            return _ordered(run, order, clients)
        queue, clients = filled()
    return _ordered(_exact(load, queue, clients, rules, steps, account, progress, order), order, clients)


def _order(load: Load, queueing_us: np.ndarray, alike: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """The sorted times at which requests are queued, and which these are; None for all, in order of arrival.

    With clients the requests in order of arrival: the times are not known.
    """
    queued = load.requests.arrival_us + queueing_us
    if load.all_accepted and (load.clients or alike or (queued[1:] >= queued[:-1]).all()):
        return queued, None
    order = np.flatnonzero(load.accepted) if load.clients else np.argsort(queued, kind="stable")
    order = order[load.accepted[order]]
    return queued[order], order


def _ordered(run: ClockRun, order: np.ndarray | None, clients: Clients) -> ClockRun:
    """The run with the order of its requests; with clients, of those alone that were queued."""
    if not clients.closed:
        return replace(run, order=order)
    placed = int(clients.state["placed"][0])
    columns = {name: getattr(run, name)[:placed] for name in PER_REQUEST}
    return replace(run, order=clients.row[:placed], sent_us=clients.sent_us, **columns)


def _may_be_fast(load: Load, q: Queue, rules: Rules) -> bool:
    """True if nothing rules out the fast clock: no horizon, regular prompts, no answers that are looked up, no drafts,
    no client that gives up.

    The last is not known before a run with clients; see `_somebody_leaves`. Nor may host memory give blocks back, which
    are blocks that the GPU had. If it is known that the GPU loses none between two uses, every look finds all of them
    there, so that nothing is ever loaded, and stores change no time.
    """
    limits = load.limits
    if limits.tier and rules.watch:
        return False
    if limits.horizon_us != NEVER or limits.drafts or load.chains or load.turns:
        return False
    if not (load.ample or load.regular):
        return False
    return load.patient or bool(load.clients) or not ((q.deadline_us > 0) & (q.deadline_us <= q.queued_us)).any()


def _fast(
    load: Load,
    q: Queue,
    cl: Clients,
    rules: Rules,
    t: KnownSteps,
    wanted: bool,
    progress: Progress | None,
    clocks: tuple[Any, Any, Any],
) -> ClockRun | None:
    """The run by the fast clock, or None if it cannot prove it. `wanted`: True for an account."""
    n, most = len(q.queued_us), min(rules.max_seqs, len(q.queued_us))
    owners = load.prompts + load.groups
    each, running = (n, most) if t.longest else (0, 0)
    segments = 3 * n + 1 if rules.watch else 1  # a request releases three of them at most
    owner, count = np.empty(segments, np.int32), np.empty(segments, np.int32)
    owner[0], count[0] = -1, rules.blocks
    free = Segments(
        owner=owner,
        count=count,
        present=np.zeros(owners, np.int64),
        holders=np.zeros(owners, np.int64),
        lies=np.full(owners, -1, np.int64),
        groups=load.prompts,
    )
    work = CalendarWork(
        free=free,
        phases=np.zeros(rules.block, np.int64),
        turn=np.empty(n if rules.watch else 0, np.int32),
        calendar=np.full(load.longest_output + 1, -1, np.int32),
        after=np.empty(n, np.int32),
        leaving=np.zeros(most, np.int64),
        ending=np.zeros(most, np.int64),
        filling=np.zeros(most, np.int64),
        progress=np.zeros(most, np.int64),
        chunk=np.zeros(most, np.int64),
        born=np.zeros(each, np.int64),
        alive=np.zeros(running, np.int64),
        slot=np.zeros(each, np.int64),
    )
    times = _no_times(n)
    state, log = np.zeros(1, fast.STATE), Gaps(wanted)
    s = state[0]
    s["newest"], s["last"] = -1, 1
    clock = clocks[2 if wanted or t.longest or not t.lines else int(rules.watch)]
    status = MORE
    while status == MORE:
        status = clock(q, rules, t, work, cl, state, times, log.room(CHUNK), int(s["step"]) + CHUNK)
        log.fold(int(s["step"]), int(s["step"]))
        if progress:
            progress(int(s["head"]))
    if status == UNPROVEN or (status == DONE and _somebody_leaves(q, times, rules)):
        return None
    if status == HOSTILE:
        raise HostileStep(int(s["step"]), float(s["offending"]))
    if cl.closed:
        send_rest(cl, q)
    every, done = times.cached >= 0, _fast_account(q, rules, times, log) if wanted else None
    return ClockRun(None, None, *times, every, ~every, 0, 0, int(s["step"]), int(s["clamped"]), 0, 0, 0, True, done)


def _somebody_leaves(q: Queue, times: Times, rules: Rules) -> bool:
    """True if a request may still have been there when its client gave up."""
    if rules.patient:
        return False
    return bool(((q.deadline_us > 0) & (times.first_us + times.decode_us > q.deadline_us)).any())


def _fast_account(q: Queue, rules: Rules, times: Times, log: Gaps) -> Account:
    whole = times.cached * np.int64(rules.block) == q.input_len  # a prompt cached whole claims no block
    hits = np.where(whole, 0, times.cached)
    misses = np.where(whole, -(-q.output_len // np.int32(rules.block)), q.all_blocks - hits)
    hits, misses = hits[times.cached >= 0], misses[times.cached >= 0]  # else no client was free to send it
    ends = int((times.first_us + times.decode_us).max(initial=0))
    found, taken = int(hits.sum(dtype=np.int64)), int(misses.sum(dtype=np.int64))
    return Account(found, taken, ends, (log.us, log.tokens), _share(found, taken))


def _share(hits: int, misses: int) -> float:
    return hits / (hits + misses) if hits + misses else 0.0


def _exact(
    load: Load,
    q: Queue,
    cl: Clients,
    rules: Rules,
    t: KnownSteps,
    wanted: bool,
    progress: Progress | None,
    order: np.ndarray | None,
) -> ClockRun:
    """The run by the exact clock. `wanted`: True for an account."""
    work, cache, state = _unused(load, q, cl, rules, load.limits.tier)
    times, log, status = _no_times(len(q.queued_us)), Gaps(wanted), MORE
    s = state[0]
    while status in (MORE, ROOM):
        if status == ROOM:
            cache = _with_room(cache)
        room = log.room(CHUNK)
        status = exact_clock(q, rules, t, work, cache, cl, state, times, room, log.reach, int(s["step"]) + CHUNK)
        _fold(log, status, s, work.order, work.born)
        if progress:
            progress(int(s["tail"]))
    _check(status, state, rules, cl.row if cl.closed else order)
    return _ended(state, work.outcome, cache.counts[None], cache.tier.state, times, [log], wanted)


def _on_ranks(
    load: Load,
    q: Queue,
    cl: Clients,
    rules: Rules,
    t: KnownSteps,
    wanted: bool,
    progress: Progress | None,
    order: np.ndarray | None,
) -> ClockRun:
    """The run of several ranks or stages, or of replicas of one rank and stage, see ranks.py."""
    n, lanes = len(q.queued_us), load.lanes
    limits = replace(load.limits, ranks=load.replicas) if load.replicas > 1 else load.limits
    chunk = CHUNK // lanes if wanted else CHUNK  # steps of all lanes, each of which has a log
    tier = load.limits.tier
    if tier:
        tier = replace(tier, blocks=tier.blocks // load.limits.stages)
    work, cache, state = _unused(load, q, cl, rules, tier)
    work = Exact(*(np.stack([column] * lanes) for column in work))
    work.outcome[:] = ELSEWHERE
    blocks, holder, counts = (np.stack([column] * lanes) for column in (cache.blocks, cache.holder, cache.counts))
    cache, state = Cache(blocks, holder, counts, tiers(cache.tier, lanes)), np.repeat(state, lanes)
    parts, times, status = new_ranks(limits, n, load.replicas > 1), _no_times(n), MORE
    logs = [Gaps(wanted) for _ in range(lanes)]
    while status in (MORE, ROOM):
        if status == ROOM:
            cache = _with_room(cache)
        most = chunk + max(log.kept for log in logs)
        rooms = [log.room(most - log.kept) for log in logs]
        room = QueueLog(*(np.stack(columns) for columns in zip(*rooms, strict=True)))
        reach, last = np.stack([log.reach for log in logs]), int(parts.state["steps"][0]) + chunk
        status = ranks_clock(q, rules, t, work, cache, cl, state, times, room, reach, parts, last)
        for d, log in enumerate(logs):
            log.log.us[:], log.log.tokens[:], log.reach[:] = room.us[d], room.tokens[d], reach[d]
            _fold(log, status, state[d], work.order[d], work.born[d])
        if progress:
            progress(int(state[0]["tail"]))
    _check(status, state, rules, cl.row if cl.closed else order)
    outcome = work.outcome[parts.lane, np.arange(n)]
    of_replicas = cache.counts if load.replicas > 1 else cache.counts.sum(axis=0, keepdims=True)
    return _ended(state, outcome, of_replicas, cache.tier.state, times, logs, wanted)


def _unused(
    load: Load, q: Queue, cl: Clients, rules: Rules, tier: TierLimits | None
) -> tuple[Exact, Cache, np.ndarray]:
    """The batch, the KV cache and the state of the exact clock before anything happens."""
    n, most = len(q.queued_us), min(rules.max_seqs, len(q.queued_us))
    group_key, after_groups = _first_keys(q.group, q.shared_blocks, load.groups, _piece_keys(q, rules))
    prompt_key, keys = _first_keys(q.prompt, q.prompt_blocks - q.shared_blocks, load.prompts, after_groups)
    region, answer, slots = np.full(n, -1, np.int64), np.zeros(0, np.int64), most
    if tier:  # it keeps all prompts and gives them back, so all have keys; requests that load have slots too
        own, answers = q.prompt_blocks - q.shared_blocks, q.all_blocks - q.prompt_blocks
        if cl.mixed:  # which request has which place is not known yet
            own, answers = (np.full(n, most_of.max(initial=0)) for most_of in (q.prompt_blocks, answers))
        region, keys = _own_keys(own * (cl.mixed or q.prompt < 0) * (q.piece.size == 0), keys)
        answer, keys = _own_keys(answers * (not tier.prompt_only), keys)
        slots = min(most + rules.blocks, n)
    widest = min(int(q.all_blocks.max(initial=1)), rules.blocks) + 1
    small = ("order", "who", "progress", "goal", "granted", "spare", "held", "left")
    places: dict[str, np.ndarray] = {name: np.zeros(slots, np.int32) for name in small}
    places |= {name: np.zeros(slots, np.int64) for name in ("since", "born", "serial")}
    places["carry"] = np.zeros(slots)
    work = Exact(
        outcome=np.zeros(n, np.int8),
        region=region,
        group_key=group_key,
        prompt_key=prompt_key,
        quitters=np.zeros(0 if rules.patient else n, np.int64) if cl.closed else _quitters(q, rules.horizon_us),
        stack=np.zeros(n if tier else most, np.int64),
        leaving=np.zeros(most, np.int64),
        free_slots=np.arange(slots, dtype=np.int64)[::-1].copy(),
        table=np.zeros((slots, widest), np.int32),
        **places,
    )
    state = np.zeros(1, exact.STATE)
    s = state[0]
    s["keys"], s["slots"], s["lone"] = keys, slots, -1
    s["quitters"] = 0 if cl.closed else len(work.quitters)
    return work, new_cache(rules.blocks, keys + most * widest, new_tier(tier, keys, answer, n, slots)), state


def _with_room(cache: Cache) -> Cache:
    """The cache with room for twice as many keys."""
    return cache._replace(holder=np.append(cache.holder, np.full_like(cache.holder, -1), axis=-1))


def _fold(log: Gaps, status: int, s: np.void, order: np.ndarray, born: np.ndarray) -> None:
    """Fold in the logged steps that no running request may still take back."""
    step, oldest = int(s["step"]), int(born[order[: s["running"]]].min(initial=NEVER))
    log.fold(step if status == DONE else min(step, oldest), step)


def _check(status: int, state: np.ndarray, rules: Rules, order: np.ndarray | None) -> None:
    """Raise HostileStep or NeverEnds if the clock ended so. `order`: the requests by place, None: as they arrive."""
    if status == HOSTILE:
        raise HostileStep(int(state["step"][0]), float(state["offending"][0]))
    if status == STUCK:
        row = int(state["lone"][state["alone"].argmax()])
        raise NeverEnds(row if order is None else int(order[row]), rules.blocks)


def _ended(
    state: np.ndarray,
    outcome: np.ndarray,
    counts: np.ndarray,
    tier: np.ndarray,
    times: Times,
    logs: Sequence[Gaps],
    wanted: bool,
) -> ClockRun:
    """The run that the exact clock leaves behind: a row of `state` and of the tier's, and a log, for each rank. counts:
    those of the cache, a row for each replica."""
    account = None
    if wanted:
        hits, misses = counts[:, HITS].tolist(), counts[:, MISSES].tolist()
        rate = sum(map(_share, hits, misses)) / len(counts)
        account = Account(sum(hits), sum(misses), int(state["last_us"].max()), histogram(logs), rate)
    names = ("waiting", "running", "clamped", "preemptions", "failures")
    waiting, running, clamped, preemptions, failures = (int(state[name].sum()) for name in names)
    ended, faults = (outcome == COMPLETED, outcome == GAVE_UP), (clamped, preemptions, failures)
    steps, loaded = int(state["step"].max()), int(tier["loaded"].sum())
    return ClockRun(None, None, *times, *ended, waiting, running, steps, *faults, loaded, False, account)


def _pieces(load: Load, order: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, int]:
    """The columns of Queue about pieces."""
    if load.chains is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int32), 1
    chains = load.chains if order is None else load.chains.of(order)
    return chains.first, chains.number, chains.piece_len


def _piece_keys(q: Queue, rules: Rules) -> int:
    """The number of keys that the pieces of prompts take, see batch.piece_key."""
    return (int(q.piece.max()) + 1) * (q.piece_len // rules.block + 1) if q.piece.size else 0


def _no_times(n: int) -> Times:
    us = np.zeros((4, n), np.int64)
    return Times(us[0], us[1], us[2], us[3], np.full(n, -1, np.int32))


def _first_keys(owner: np.ndarray, blocks: np.ndarray, owners: int, first: int) -> tuple[np.ndarray, int]:
    """The first key of every prompt or group, with room for its longest request, and the first key after them."""
    room = np.zeros(owners + 1, np.int64)
    owned = owner >= 0
    np.maximum.at(room, owner[owned] + 1, blocks[owned])
    ends = first + np.cumsum(room)
    return ends[:-1], int(ends[-1])


def _own_keys(blocks: np.ndarray, first: int) -> tuple[np.ndarray, int]:
    """The first key of each request's own blocks, from `first` on, and the first key after them."""
    ends = first + np.cumsum(blocks, dtype=np.int64)
    return ends - blocks, int(ends[-1]) if len(ends) else first


def _quitters(q: Queue, horizon_us: int) -> np.ndarray:
    """Requests whose client may give up after they are queued, in order of their deadlines."""
    may = np.flatnonzero((q.deadline_us > q.queued_us) & (q.deadline_us <= horizon_us))
    return may[np.argsort(q.deadline_us[may], kind="stable")]
