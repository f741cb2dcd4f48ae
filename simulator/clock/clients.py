"""Clients that wait for answers: who sends the next request, and when, found while a clock runs.

A free client sends the next request of the load, at once or when it is due. When the request has ended, the client
thinks and is free again. So the arrivals of such a load follow from its completions. The stages of a closed load follow
each other: one begins when all requests of the one before have ended.

The clock reads its queue by place. A request gets its place as soon as it is sent, in order of queueing, and its
columns once that place is final.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simulator.clock.queue import Queue
from simulator.common.jit import inlined, njit
from simulator.serving.load import NEVER, Load

_STATE = "sent placed ready stage free flying pushed latest ended"
FILLED = (
    *("input_len", "output_len", "prompt", "group"),
    *("shared_blocks", "prompt_blocks", "text_blocks", "all_blocks"),
)
STATE = np.dtype([(name, "i8") for name in _STATE.split()])


class Clients(NamedTuple):
    """The requests in order of sending, what sends them, and what became of that. Times in us."""

    closed: bool  # False: all times of the queue are known beforehand, and nothing below counts
    mixed: bool  # False: requests are queued in order of sending, so that the queue has their columns already
    rows: Any  # Queue: the requests; its `queued_us` is when they are due, `deadline_us` when the client gives up then
    wait_us: Any  # per request: from sending to queueing
    accepted: Any  # per request: False if the engine refuses it
    think_us: Any  # per end of a request, in order of these: how long its client thinks
    first: Any  # per stage: its first request; at the end their number
    users: Any  # per stage: its clients
    spread_us: Any  # per stage: the time over which its clients begin, evenly
    token_us: int  # the client sees the last token so much after the engine's completion, for every output token
    completion_us: int  # and so much in all
    faithful: bool  # a client whose request is refused, or that gives up, goes on
    from_due: bool  # it gives up as long after the request was due as otherwise after it was sent
    # results
    row: Any  # per place of the queue: which request
    sent_us: Any  # per request, NEVER for one that is not sent
    # free clients: a heap by time and order of becoming free
    free_us: Any
    free_order: Any
    # sent: requests sent; placed: places given; ready: places that are final; stage; free: free clients; flying:
    # requests that a client waits for; pushed: clients that became free so far; latest: the last end of a request;
    # ended: requests that ended
    state: Any


def no_clients(queue: Queue) -> Clients:
    """Nobody: the queue's own times are those of the load."""
    none, nothing = np.zeros(0, np.int64), np.zeros(0, bool)
    state = np.zeros(1, STATE)
    return Clients(
        False, False, queue, none, nothing, none, none, none, none, 0, 0, False, False, none, none, none, none, state
    )


def clients_of(
    load: Load, rows: Queue, wait_us: np.ndarray, mixed: bool, overheads_us: tuple[int, int]
) -> tuple[Queue, Clients]:
    """The clock's queue, whose times are not known, and the clients of a closed load, before anything is sent.

    `rows`: its requests, by `queued_us` due. `overheads_us`: the program's time for an output token, and at completion.
    """
    of, n = load.clients, len(wait_us)
    assert of is not None
    most, (token, completion) = int(of.users.max()), (0, 0) if of.at_engine else overheads_us
    clients = Clients(
        closed=True,
        mixed=mixed,
        rows=rows,
        wait_us=np.ascontiguousarray(wait_us, np.int64),
        accepted=load.accepted,
        think_us=of.think_us,
        first=of.first,
        users=of.users,
        spread_us=of.spread_us,
        token_us=token,
        completion_us=completion,
        faithful=not of.at_engine,
        from_due=of.from_due,
        row=np.full(n, -1, np.int64),
        sent_us=np.full(n, NEVER, np.int64),
        free_us=np.zeros(most + 1, np.int64),
        free_order=np.zeros(most + 1, np.int64),
        state=np.zeros(1, STATE),
    )
    begin(clients)
    places = int(load.accepted.sum())
    queue = rows._replace(queued_us=np.full(places, NEVER), deadline_us=np.zeros(places, np.int64))
    if mixed:  # the clients fill the columns
        columns = {name: getattr(rows, name)[load.accepted] for name in FILLED}
        queue = queue._replace(piece_first=rows.piece_first.copy(), **columns)
    return queue, clients


@njit
def begin(cl):  # type: ignore[no-untyped-def]
    """Begin the current stage, at the last end of a request: its clients are free, and no others."""
    s = cl.state[0]
    s.free = 0
    users = cl.users[s.stage]
    for u in range(users):
        push(cl.free_us, cl.free_order, s.free, s.pushed, s.latest + u * cl.spread_us[s.stage] // users)
        s.free += 1
        s.pushed += 1


@njit
def push(times, order, size, number, us):  # type: ignore[no-untyped-def]
    """Put a client that is free from `us` on into the heap of `size` others; of equal times, it comes last."""
    i = size
    while i > 0:
        above = (i - 1) // 2
        if times[above] <= us:
            break
        times[i], order[i] = times[above], order[above]
        i = above
    times[i], order[i] = us, number


@njit
def pop(times, order, size):  # type: ignore[no-untyped-def]
    """Take the first client out of the heap, which has `size` others."""
    us, number, i = times[size], order[size], np.int64(0)
    while 2 * i + 1 < size:
        j = 2 * i + 1
        if j + 1 < size and (times[j + 1] < times[j] or (times[j + 1] == times[j] and order[j + 1] < order[j])):
            j += 1
        if us < times[j] or (us == times[j] and number < order[j]):
            break
        times[i], order[i] = times[j], order[j]
        i = j
    times[i], order[i] = us, number


@inlined
def next_us(cl):  # type: ignore[no-untyped-def]
    """When the next request is sent; NEVER if none is left, or a client must first become free."""
    s, us = cl.state[0], NEVER
    if s.free > 0 and s.sent < cl.first[s.stage + 1]:
        us = max(cl.free_us[0], cl.rows.queued_us[s.sent])
    return us


@inlined
def send(cl, q, now):  # type: ignore[no-untyped-def]
    """Send what is sent until `now`, and fill the places of the queue `q` that are final by then."""
    s, rows = cl.state[0], cl.rows
    while True:
        us = next_us(cl)
        if us > now:
            break
        s.free -= 1
        pop(cl.free_us, cl.free_order, s.free)
        r = s.sent
        s.sent += 1
        s.flying += 1
        cl.sent_us[r] = us
        if cl.accepted[r]:
            queued, i = us + cl.wait_us[r], s.placed
            while i > s.ready and q.queued_us[i - 1] > queued:
                q.queued_us[i], cl.row[i] = q.queued_us[i - 1], cl.row[i - 1]
                i -= 1
            q.queued_us[i], cl.row[i] = queued, r
            s.placed += 1
        else:
            end(cl, us, cl.faithful)
    while s.ready < s.placed and q.queued_us[s.ready] <= now:
        i, r = s.ready, cl.row[s.ready]
        if cl.mixed:
            q.input_len[i], q.output_len[i], q.prompt[i] = rows.input_len[r], rows.output_len[r], rows.prompt[r]
            q.group[i], q.shared_blocks[i] = rows.group[r], rows.shared_blocks[r]
            q.prompt_blocks[i], q.text_blocks[i] = rows.prompt_blocks[r], rows.text_blocks[r]
            q.all_blocks[i] = rows.all_blocks[r]
            if rows.piece.size > 0:
                q.piece_first[i] = rows.piece_first[r]
        if rows.deadline_us[r] > 0:
            q.deadline_us[i] = rows.deadline_us[r]
            if not cl.from_due:
                q.deadline_us[i] += cl.sent_us[r] - rows.queued_us[r]
        s.ready += 1


@njit
def send_rest(cl, q):  # type: ignore[no-untyped-def]
    """Send what is left when the engine has nothing to do: requests that it refuses."""
    send(cl, q, NEVER - 1)


@inlined
def completed(cl, q, i, end_us):  # type: ignore[no-untyped-def]
    """The engine completes the request at place `i`: its client is free when it has seen the last token and thought."""
    output = np.int64(q.output_len[i])
    end(cl, end_us + cl.token_us * max(output, 1) + (cl.completion_us if output > 0 else 0), True)


@inlined
def end(cl, us, goes_on):  # type: ignore[no-untyped-def]
    """A request has ended for its client, which `goes_on` with others or not."""
    s = cl.state[0]
    s.flying -= 1
    s.latest = max(s.latest, us)
    if goes_on:
        push(cl.free_us, cl.free_order, s.free, s.pushed, us + cl.think_us[s.ended])
        s.free += 1
        s.pushed += 1
    s.ended += 1
    done = s.flying == 0 and (s.free == 0 or s.sent == cl.first[s.stage + 1])
    if done and s.stage + 1 < cl.users.size:
        s.stage += 1
        s.sent = cl.first[s.stage]
        begin(cl)
