"""A small plain engine that batches as vLLM v1 does and says what it did: folders of traces together with their truth.

Continuous batching with chunked prefill, prefix cache, preemption and two batches in flight; written from the
instrumented fork's rules (trace-formats, sections 1.4, 1.5, 5.3), for tests of ingestion and for measuring its speed.

    truth = simulate(seed=7, requests=60, rates=(6.0, 12.0), blocks=64)     # options: trace_records.Options
    write(truth, folder)                                                    # trace_files.write

A big folder, without its truth, in bounded memory:

    PYTHONPATH=$PWD python tests/support/trace_engine.py --megabytes 300 --out build/20260101-000000-tiny-llama-tp1-general
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Any

from trace_blocks import Offload, Pool
from trace_load import api_id, arrivals, core_id, offsets, prompts, read, row
from trace_records import (
    BLOCK,
    Admission,
    ApiSpan,
    CoreSpan,
    Entry,
    KvBatch,
    Options,
    Record,
    RequestTruth,
    Snapshot,
    StepSpan,
    StepTruth,
    Summary,
    Truth,
)
from trace_request import Request, Step

from simulator.common.streams import stream

STEP_US, PREFILL_US, KV_US, NOISE_US = 8000.0, 20.0, 0.02, 30.0  # of a step, a prefill token, a token read
HANDLING_NS = 60_000  # of an output
NOISE, SAMPLING, ABORTS = 11, 12, 13  # second numbers of the streams
GENERAL = {  # the big folder: the published general profile on one H100
    **{"rates": (8.0, 20.0), "groups": 10, "per_group": 10, "system_len": 100, "question_len": 447},
    **{"output_len": 248, "output_spread": 0, "max_num_batched_tokens": 2048, "max_num_seqs": 128, "blocks": 7500},
    **{"step_rate": 0.1, "rich_rate": 0.1, "offload": False, "spans_per_line": 200},
}
BYTES_PER_REQUEST = 7550  # of traces.json with these options, as measured


class Engine:
    def __init__(self, o: Options) -> None:
        self.o = o
        self.clocks, self.now = offsets(o)
        self.prompts = prompts(o)
        self.load = arrivals(o, self.now)
        self.pool = Pool(o.usable_blocks)
        self.offload = Offload(o.cpu_blocks)
        self.noise, self.coins = stream(o.seed, NOISE), stream(o.seed, SAMPLING)
        self.patience = stream(o.seed, ABORTS).random(o.requests).tolist()
        self.counter = 0
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.armed: list[Request] = []  # their clients give up once they are where they do
        self.finished = 0  # since the last schedule()
        self.next = 0
        self.gpu_free = self.now
        self.out: list[Record] = []
        self.ending: list[tuple[int, int, Record]] = []  # spans by their ends
        self.tie = count()
        self.spans = 0
        self.span_first, self.span_start, self.span_steps = 1, self.now, []
        self.inbox = sorted(range(o.requests), key=lambda r: (self.load.inbox_ns[r], r))

    def records(self) -> Iterator[Record]:
        """Everything in order of time. Two batches are in flight where the engine is asynchronous: the second is
        scheduled before the first one's output has come, and schedule() of N + 1 follows the output of N - 1."""
        flying: deque[Step] = deque()
        while True:
            self.take_in()
            if self.running or self.waiting or self.finished:
                step = self.schedule()
                flying.append(step)
                alone = len(flying) == 1 and step.ended_ns > self.now
                if self.o.asynchronous and step.batch and alone:
                    continue
            elif not flying:
                if self.next == self.o.requests:
                    break
                self.now = max(self.now, self.load.inbox_ns[self.inbox[self.next]])
                continue
            step = flying.popleft()
            self.now = max(self.now, step.ended_ns) + HANDLING_NS
            self.handle(step)
            yield from self.ready(self.now)
        if self.span_steps:
            self.close_span()
        yield from self.ready(None)

    def ready(self, until: int | None) -> Iterator[Record]:
        yield from self.out
        self.out.clear()
        while self.ending and (until is None or self.ending[0][0] <= until):
            yield heappop(self.ending)[2]

    def end(self, span: CoreSpan | ApiSpan | StepSpan) -> None:
        heappush(self.ending, (span.end_ns, next(self.tie), span))

    # requests come and go

    def take_in(self) -> None:
        while self.next < self.o.requests and self.load.inbox_ns[self.inbox[self.next]] <= self.now:
            index = self.inbox[self.next]
            prompt = self.prompts[index % len(self.prompts)]
            request = Request(index, core_id(self.o.seed, index), prompt, self.load.max_tokens[index])
            request.queued_ns = self.now
            request.note("QUEUED", self.now, self.counter)
            request.trigger = self.counter
            self.waiting.append(request)
            if self.load.gives_up[index]:
                self.armed.append(request)
            self.next += 1
            self.now += 1_000
        for request in [r for r in self.armed if self.gives_up(r)]:
            self.abort(request)
            self.now += 1_000

    def gives_up(self, request: Request) -> bool:
        kind = self.load.gives_up[request.index]
        if kind == "waiting":
            return not request.running and not request.admissions and self.counter > request.trigger
        if kind == "prefill":
            return request.running and not request.outputs and 0 < request.computed < request.total
        return request.running and request.outputs >= 1 + int(self.patience[request.index] * (request.limit - 1))

    def abort(self, request: Request) -> None:
        if request.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self.leave(request, "aborted", self.counter)

    def leave(self, request: Request, status: str, step: int) -> None:
        """Free what a request holds and tell its whole story."""
        request.note("FINISHED", self.now, step, status)
        self.pool.give(request.blocks)
        request.done = True
        request.running = False
        self.finished += 1
        if request in self.armed:
            self.armed.remove(request)
        index, load, o = request.index, self.load, self.o
        token_times: tuple[float, ...] = ()
        if status == "aborted":
            left_ns = max(self.now - 600_000, load.arrived_ns[index] + 1_000)
            gave_up = (left_ns + 100_000) * 1e-9 + self.clocks.client_minus_server_s
            client = row(load, self.clocks, index, request.prompt, gave_up)
        else:
            reading = read(o, self.clocks, index, request.token_ns, self.now)
            left_ns, token_times = reading.left_ns, reading.token_times
            client = row(load, self.clocks, index, request.prompt, reading)
        api = api_id(o.seed, index)
        arrived = load.arrived_ns[index]
        size = (request.total, request.limit)
        if load.traced[index]:
            around = (request.queued_ns - 10_000, self.now + 20_000)
            self.end(CoreSpan(request.core_id, *around, *size, tuple(request.events)))
            self.end(ApiSpan(api, arrived - 20_000, left_ns + 20_000, *size, arrived, left_ns, status == "aborted"))
        names = (index, api, request.core_id, index % len(self.prompts), request.prompt.text)
        went = (request.outputs, status, tuple(request.admissions), request.preemptions, tuple(request.steps))
        times = (arrived, request.queued_ns, request.scheduled_ns, request.first_ns, self.now, left_ns)
        told = (tuple(request.token_ns), token_times, load.traced[index], client)
        self.out.append(RequestTruth(*names, *size, *went, *times, *told))

    # schedule()

    def schedule(self) -> Step:
        self.counter += 1
        start, budget, preempted = self.now, self.o.max_num_batched_tokens, 0
        step = Step()
        step.batch = []
        given: dict[Request, int] = {}
        at = 0
        while at < len(self.running) and budget > 0:
            request = self.running[at]
            if request.outputs + request.pending >= request.limit:  # its last token is under way
                at += 1
                continue
            new = min(request.total + request.outputs + request.pending - request.computed, budget)
            fresh = -(-(request.computed + new) // BLOCK) - len(request.blocks)
            held = True
            while fresh > len(self.pool.free):
                victim = self.running.pop()
                self.preempt(victim, start + 70_000 + 1_000 * preempted)
                preempted += 1
                if victim is request:
                    held = False
                    break
            if not held:
                break
            if fresh > 0:
                request.blocks += self.pool.take((), fresh)
            self.store(request, min(request.computed + new, request.total + request.outputs))
            given[request] = new
            budget -= new
            at += 1
        admitted = 0
        while not preempted and self.waiting and budget > 0 and len(self.running) < self.o.max_num_seqs:
            request = self.waiting[0]
            known = request.total + request.outputs
            hits = self.pool.hits(request.full(known), (known - 1) // BLOCK)
            cached = len(hits) * BLOCK
            new = min(known - cached, budget)
            fresh = -(-(cached + new) // BLOCK) - len(hits)
            if not self.pool.fits(hits, fresh):
                break
            self.waiting.popleft()
            request.note("SCHEDULED", start + 60_000 + 1_000 * admitted, self.counter, self.kind(request))
            if not request.admissions:
                request.scheduled_ns = start + 60_000 + 1_000 * admitted
                request.effective = request.total - cached
            admitted += 1
            request.admissions.append(Admission(self.counter, known, cached))
            request.blocks = self.pool.take(hits, fresh)
            request.computed, request.cached = cached, len(hits)
            request.running = request.catching = True
            self.store(request, min(cached + new, known))
            self.running.append(request)
            given[request] = new
            budget -= new
        self.run(step, given, start, preempted)
        return step

    @staticmethod
    def kind(request: Request) -> str:
        return "RESUME" if request.admissions else "FIRST"

    def preempt(self, request: Request, ns: int) -> None:
        """Its blocks are freed and it waits at the head of the queue; a token under way still comes."""
        request.preemptions += 1
        request.note("PREEMPTED", ns, self.counter)
        self.pool.give(request.blocks)
        request.blocks = []
        request.computed = request.cached = 0
        request.running = False
        self.waiting.appendleft(request)

    def store(self, request: Request, tokens: int) -> None:
        """Register the blocks that `tokens` tokens have filled."""
        have, full = request.cached, tokens // BLOCK
        if full <= have:
            return
        digests = request.full(tokens)
        run = request.tokens[have * BLOCK : full * BLOCK]
        self.pool.store(request.blocks[have:full], digests[have:full], digests[have - 1] if have else None, run)
        request.cached = full
        if self.o.offload:
            self.offload.commit(request.core_id, digests[have:full], self.counter)

    def run(self, step: Step, given: dict[Request, int], start: int, preempted: int) -> None:
        """Sum the batch up, advance its requests and put it on the GPU."""
        step.sampled = bool(self.coins.random() < self.o.step_rate)
        step.rich = step.sampled and bool(self.coins.random() < self.o.rich_rate)
        snapshots = tuple(self.snapshot(r, given.get(r, 0)) for r in self.running) if step.rich else ()
        entries, batch = [], step.batch
        counter = self.counter
        prefills = prefill_tokens = computing = reading = total = 0
        for request, new in given.items():
            before = request.computed
            after = before + new
            request.computed = after
            produces = after == request.total + request.outputs + request.pending
            if request.catching:
                computing += new
                role = "prefill"
                request.high = max(request.high, min(after, request.total))
                if produces:
                    request.catching = False
            else:
                role = "decode"
            if produces:
                request.pending += 1
            reading += before
            total += new
            if not request.outputs:
                prefills += 1
                prefill_tokens += new
            entries.append(Entry(request.core_id, role, new, before, after, produces))
            batch.append((request, new, produces))
            request.steps.append(counter)
        step.entries = entries
        spent = 140_000 + 2_000 * len(self.running) + int(self.coins.integers(0, 60_000))
        end = self.now = start + spent
        sums = (prefills, len(batch) - prefills, prefill_tokens, total - prefill_tokens, self.finished, preempted)
        blocks = (self.pool.total, len(self.pool.free))
        step.summary = Summary(counter, start, end, len(self.running), len(self.waiting), *sums, *blocks, snapshots)
        self.finished = 0
        if step.sampled:
            self.span_steps.append(step.summary)
        if counter % self.o.closure_interval == 0:
            self.close_span()
        step.exec_ns, step.started_ns = 0, end
        if batch:
            exec_us = STEP_US + PREFILL_US * computing + KV_US * reading + NOISE_US * float(self.noise.normal())
            step.exec_ns = int(exec_us * 1000)
            step.started_ns = max(end, self.gpu_free)
            self.gpu_free = step.started_ns + step.exec_ns
        step.ended_ns = step.started_ns + step.exec_ns

    @staticmethod
    def snapshot(request: Request, scheduled: int) -> Snapshot:
        r, phase = request, "DECODE" if request.outputs else "PREFILL"
        counts = (r.total, r.computed, r.outputs, r.preemptions, scheduled, len(r.blocks), r.cached, r.effective)
        return Snapshot(r.core_id, phase, *counts)

    def close_span(self) -> None:
        if self.span_steps:
            self.spans += 1
            last, steps = self.counter, tuple(self.span_steps)
            interval = self.o.closure_interval
            self.end(StepSpan(self.spans, self.span_first, last, interval, self.span_start, self.now + 100_000, steps))
        self.span_first, self.span_start, self.span_steps = self.counter + 1, self.now + 110_000, []

    # output

    def handle(self, step: Step) -> None:
        now, number = self.now, step.summary.step
        stopped = []
        for request, _, produces in step.batch:
            if request.done or not produces:
                continue
            request.outputs += 1
            request.pending -= 1
            request.token_ns.append(now)
            if request.outputs == 1:
                request.first_ns = now
                request.note("FIRST_TOKEN", now, number)
            if request.running and (request.computed - request.pending) // BLOCK > request.cached:
                self.store(request, request.computed - request.pending)
            if request.outputs == request.limit:
                stopped.append(request)
        if stopped:
            gone = set(stopped)
            self.running = [r for r in self.running if r not in gone]
            for request in stopped:
                if not request.running:  # preempted with its last token under way
                    self.waiting.remove(request)
                self.leave(request, "length", number)
        if self.o.offload and step.batch:
            self.offload.handle(number)
        events = [*self.pool.events, *self.offload.scheduler_events, *self.offload.worker_events]
        if events:
            self.out.append(KvBatch(now + 10_000, tuple(events)))
            self.pool.events, self.offload.scheduler_events, self.offload.worker_events = [], [], []
        s = step
        times = (s.exec_ns / 1000, s.started_ns, s.ended_ns, now)
        self.out.append(StepTruth(number, tuple(s.entries), *times, s.sampled, s.rich, s.summary))


def simulate(seed: int, **options: Any) -> Truth:
    """A run with `trace_records.Options`, whole: the same for the same arguments."""
    engine = Engine(Options(seed, **options))
    return Truth(engine.o, engine.clocks, tuple(engine.records()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Write a folder of synthetic vLLM traces with a traces.json of about the size asked for.",
        epilog="example: PYTHONPATH=$PWD python tests/support/trace_engine.py --megabytes 300 "
        "--out build/20260101-000000-tiny-llama-tp1-general",
    )
    parser.add_argument("--megabytes", type=float, required=True, help="size of traces.json, roughly")
    parser.add_argument(
        "--out", type=Path, required=True, help="the folder; what it holds of these files is overwritten"
    )
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    from trace_files import write_records

    began = time.monotonic()
    requests = max(len(GENERAL["rates"]), round(asked.megabytes * 1e6 / BYTES_PER_REQUEST))
    engine = Engine(Options(asked.seed, requests=requests, **GENERAL))
    write_records(engine.o, engine.clocks, engine.records(), asked.out)
    size = (asked.out / "traces.json").stat().st_size / 1e6
    print(
        f"{asked.out}: {requests} requests, {engine.counter} steps, {size:.1f} MB of traces in {time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
