"""The plain clock: the host's rules, and composing ahead of execution, one by one, with an event heap, token lists and chained block contents.

Slow and obvious, written from the host's semantics (blis-des-semantics, variant M) and sharing nothing with the compiled
clocks but the evaluation of a program's text. Section numbers are that document's.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from simulator.clock.fields import Active, BatchFields
from simulator.clock.vm import clamps, to_ticks
from simulator.language.evaluate import evaluate
from simulator.language.ir import Program
from simulator.serving.load import Clients, EngineLimits, Load, TierLimits
from simulator.serving.trace import Requests

Step = Callable[[list[Active]], float]
TRANSFER, QUEUED, STEP, LEFT, TIMEOUT = 0, 1, 3, 5, 6


# a deployment to try clocks on
FACTS = {
    "shared_weights_us": 3000.0,
    "experts_us": 900.0,
    "active_experts": 2.0,
    "dp": 1.0,
    "experts": 8.0,
    "kv_us_per_token": 0.31,
    "layers": 32.0,
    "hidden": 64.0,
    "vocab": 100.0,
    "tp": 2.0,
    "bytes_per_us": 3.35e6,
    "flops_per_us": 9.9e8,
    "gemm_us_per_token": 0.7,
    "attention_us_per_pair": 0.0003,
    "logits_us_per_row": 1.3,
    "allreduce_us_per_token": 0.2,
    "draft_tokens": 0.0,
    "cudagraph_capture_max": 512.0,
    "graph_decode": 1.0,
    "graph_mixed": 1.0,
}


def step_function(program: Program, facts: Mapping[str, float]) -> Step:
    """`program`'s step time in microseconds as a plain function of the batch."""
    method = program.function("step_time")
    assert method is not None
    return lambda batch: evaluate(method, BatchFields(batch, facts, program.forest))


@dataclass(eq=False)
class Request:
    row: int
    arrival: int
    queued: int
    tokens: list[object]  # of the prompt
    output: int
    deadline: int
    wait: int
    progress: int = 0
    new: int = 0
    computed: int = 0
    carry: float = 0.0
    itl: list[tuple[int, int]] = field(default_factory=list)  # (step, duration)
    first: int | None = None
    first_flag: bool = False
    start: int | None = None
    begun: int | None = None
    state: str = "coming"
    decode_us: int = 0
    cached: int = 0
    sent: int | None = None
    transfer: int | None = None  # when its prompt's blocks are looked for, if it comes computed
    loaded: int | None = None  # when its load ends
    text: object = None  # whose next tokens its answer has, if it is a turn
    stored: int = 0


@dataclass(eq=False)
class Block:
    tokens: list[object] = field(default_factory=list)
    references: int = 0
    content: int | None = None  # a number for its tokens chained to what stands before


def answer_token(r: Request, i: int) -> object:
    return ("answer", r.row, i) if r.text is None else (r.text, len(r.tokens) + i)


class Cache:
    """Section 5."""

    def __init__(self, blocks: int, size: int) -> None:
        self.size = size
        self.free = [Block() for _ in range(blocks)]
        self.table: dict[Request, list[Block]] = {}
        self.known: dict[int, Block] = {}
        self.chains: dict[tuple[int | None, tuple[object, ...]], int] = {}
        self.hits = self.misses = 0

    def chain(self, before: int | None, tokens: list[object]) -> int:
        """Equal numbers for equal tokens after equal beginnings."""
        return self.chains.setdefault((before, tuple(tokens)), len(self.chains))

    def cached(self, r: Request) -> list[Block]:  # 5.2
        found: list[Block] = []
        before: int | None = None
        for i in range(len(r.tokens) // self.size):
            before = self.chain(before, r.tokens[i * self.size : (i + 1) * self.size])
            if before not in self.known:
                break
            found.append(self.known[before])
        return found

    def allocate(self, r: Request, start: int, end: int, cached: list[Block]) -> bool:  # 5.3
        prefill = r.progress < len(r.tokens)
        size = len(r.tokens)
        new: list[object] = r.tokens[start:end] if prefill else [answer_token(r, i - size) for i in range(start, end)]
        blocks = self.table.get(r, [])
        room = self.size - len(blocks[-1].tokens) if blocks else 0
        if prefill:
            extra = max(len(new) - room, 0)
            idle = sum(b.references == 0 for b in cached)
            if -(-extra // self.size) + idle > len(self.free):
                return False
        elif -(-(len(new) - room) // self.size) > len(self.free):
            return False
        while new:
            if r not in self.table:
                self.table[r] = []
                for b in cached:
                    if b.references == 0:
                        self.free.remove(b)
                    b.references += 1
                    self.hits += 1
                    self.table[r].append(b)
            table = self.table[r]
            if table and len(table[-1].tokens) < self.size:
                last = table[-1]
                count = self.size - len(last.tokens)
                last.tokens += new[:count]
                new = new[count:]
                if len(last.tokens) == self.size:
                    self._name(last, table[-2].content if len(table) > 1 else None)
                continue
            b = self.free.pop(0)
            if b.content is not None:
                self.known.pop(b.content, None)
                b.content = None
            b.tokens, new = new[: self.size], new[self.size :]
            b.references = 1
            self.misses += 1
            if len(b.tokens) == self.size and prefill:
                self._name(b, table[-1].content if table else None)
            table.append(b)
        return True

    def _name(self, block: Block, before: int | None) -> None:
        block.content = self.chain(before, block.tokens)
        self.known[block.content] = block

    def release(self, r: Request) -> None:  # 5.5
        for b in reversed(self.table.pop(r, [])):
            b.references -= 1
            if b.references == 0:
                self.free.append(b)


class Tier:
    """Host memory behind the cache, by the rules of simulator/clock/tier.py."""

    def __init__(self, limits: TierLimits, cache: Cache) -> None:
        self.limits, self.cache = limits, cache
        self.known: dict[int, int] = {}  # content -> when its last transfer ends, in order of use
        self.aside: list[Request] = []
        self.load_us = self.store_us = self.loaded = 0
        self.retries: list[int] = []

    def contents(self, r: Request, answered: int = 0) -> list[int]:
        tokens, size = r.tokens + [answer_token(r, i) for i in range(answered)], self.cache.size
        found: list[int] = []
        for end in range(size, len(tokens) + 1, size):
            found.append(self.cache.chain(found[-1] if found else None, tokens[end - size : end]))
        return found

    def use(self, contents: list[int]) -> None:  # 2
        for content in reversed(contents):
            if content in self.known:
                self.known[content] = self.known.pop(content)

    def lasts(self, blocks: int) -> int:  # 6
        return max(self.limits.least_us, math.ceil(blocks * self.limits.block_us))

    def store(self, r: Request, now: int, end_us: int) -> None:  # 1
        every = self.contents(r, 0 if self.limits.prompt_only else max(r.progress - len(r.tokens), 0))
        full = min(len(every), r.progress // self.cache.size)
        wanted = every[r.stored : full]
        new = [content for content in wanted if content not in self.known]
        if new:
            over = len(self.known) + len(new) - self.limits.blocks
            old = [x for x, busy_us in self.known.items() if busy_us <= now and x not in wanted]
            if over > len(old):
                return
            for content in old[: max(over, 0)]:
                del self.known[content]
            self.store_us = max(self.store_us, end_us) + self.lasts(len(new))
            for content in new:
                self.known[content] = self.store_us
            self.use(every)
        r.stored = max(full, r.stored)

    def look(self, r: Request, cached: list[Block], now: int) -> str:  # 3, 4
        every = self.contents(r)
        found: list[int] = []
        for content in every[len(cached) :]:
            if content not in self.known:
                break
            found.append(content)
        self.use(every)
        if not found:
            return "admit"
        if (until := max(self.known[content] for content in found)) > now:
            self.retries.append(until)
            return "later"
        cache = self.cache
        if len(found) + sum(b.references == 0 for b in cached) > len(cache.free):
            return "no room"
        self.load_us = r.loaded = max(self.load_us, now) + self.lasts(len(found))
        self.retries.append(r.loaded)
        cache.table[r] = []
        for b in cached:
            if b.references == 0:
                cache.free.remove(b)
            b.references += 1
            cache.table[r].append(b)
        for i, content in enumerate(found, len(cached)):
            b = cache.free.pop(0)
            if b.content is not None:
                cache.known.pop(b.content, None)
            b.tokens, b.content, b.references = r.tokens[i * cache.size : (i + 1) * cache.size], None, 1
            cache.table[r].append(b)
            self.known[content] = self.load_us
        cache.hits += len(cache.table[r])
        self.loaded += len(found)
        return "later"

    def land(self, r: Request) -> int:  # 5
        table = self.cache.table[r]
        for b, content in zip(table, self.contents(r), strict=False):
            if b.content is None:
                b.content = content
                self.cache.known[content] = b
        return len(table)

    def give_back(self, r: Request) -> None:
        self.cache.release(r)
        r.loaded = None

    def forsake(self, r: Request) -> None:
        self.aside.remove(r)
        r.loaded = None

    def wake(self, now: int) -> int | None:  # 8
        """When the next step begins; None: at once, as blocks were given back."""
        holding = [r for r in self.aside if r.loaded is not None]
        times = [*self.retries, *(r.loaded for r in holding if r.loaded is not None and r.loaded > now)]
        if times:
            return min(times)
        self.give_back(holding[-1])
        return None


@dataclass
class Users:
    """Clients that wait for answers, as simulator.serving.load.Clients says it."""

    of: Clients
    token_us: int
    completion_us: int
    free: list[tuple[int, int]] = field(default_factory=list)  # (from when on, number of becoming free)
    stage: int = 0
    sent: int = 0
    waiting: int = 0
    freed: int = 0
    ended: int = 0
    latest: int = 0

    def begin(self) -> None:
        users = int(self.of.users[self.stage])
        starts = [self.latest + u * int(self.of.spread_us[self.stage]) // users for u in range(users)]
        self.free = [(us, self.freed + u) for u, us in enumerate(starts)]
        self.freed += users

    def end(self, us: int, goes_on: bool) -> None:
        self.waiting -= 1
        self.latest = max(self.latest, us)
        if goes_on:
            self.free.append((us + int(self.of.think_us[self.ended]), self.freed))
            self.freed += 1
        self.ended += 1
        over = self.sent == self.of.first[self.stage + 1] or not self.free
        if over and not self.waiting and self.stage + 1 < len(self.of.users):
            self.stage += 1
            self.sent = int(self.of.first[self.stage])
            self.begin()


class Host:
    """One instance from its first request to its last event."""

    def __init__(
        self,
        requests: list[Request],
        limits: EngineLimits,
        step: Step,
        most_steps: int = 1_000_000,
        users: Users | None = None,
    ) -> None:
        self.requests, self.limits, self.step, self.users = requests, limits, step, users
        self.cache = Cache(limits.blocks, limits.block)
        self.heap: list[tuple[int, int, int, Request | None]] = []
        self.pushed = 0
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.pending = False
        self.leaving: list[tuple[int, Request]] = []  # end of its last step, if steps are composed ahead
        self.free_us = 0  # when the last step that was composed ends
        self.steps = self.clamped = self.preemptions = self.failures = self.last_us = 0
        self.most_steps = most_steps
        self.stuck = False
        self.tier = Tier(limits.tier, self.cache) if limits.tier and limits.tier.blocks else None
        self.polls = set[int]()  # the numbers of steps while nothing runs
        self.poll: int | None = None  # the one that no other step has overtaken

    def push(self, time: int, kind: int, r: Request | None = None) -> None:
        heapq.heappush(self.heap, (time, kind, self.pushed, r))
        self.pushed += 1

    def send(self) -> None:
        """Send what is sent before the next event, or at the same time."""
        users = self.users
        while users and users.free and users.sent < users.of.first[users.stage + 1]:
            r, first = self.requests[users.sent], min(users.free)
            due = r.arrival
            now = max(due, first[0])
            if now > self.limits.horizon_us or (self.heap and now > self.heap[0][0]):
                break
            users.free.remove(first)
            users.sent += 1
            users.waiting += 1
            r.arrival, r.queued, r.state = (due if users.of.from_due else now), now + r.wait, "sent"
            r.sent = now
            if r.deadline:
                r.deadline += r.arrival - due
            if self.refuses(r):
                users.end(now, not users.of.at_engine)
            self.push(r.queued, QUEUED, r)

    def run(self) -> Host:
        if self.users:
            self.users.begin()
            self.send()
        else:
            for r in sorted(self.requests, key=lambda r: (r.arrival, r.row)):
                if r.transfer is not None:
                    self.push(r.transfer, TRANSFER, r)
                self.push(r.queued, QUEUED, r)
        while self.heap:
            now, kind, number, r = heapq.heappop(self.heap)
            if number in self.polls and (self.pending or number != self.poll):
                continue
            if now > self.limits.horizon_us:
                break
            if kind != TIMEOUT or (r is not None and r.state in ("waiting", "running")):
                self.last_us = now
            if kind == TRANSFER:
                if self.cache.allocate(r, 0, len(r.tokens), []):
                    r.progress = len(r.tokens)
                else:
                    r.state = "no room"
            elif kind == QUEUED and r.state != "no room":
                self._queued(now, r)
            elif kind == TIMEOUT:
                self._timeout(now, r)
            elif kind == STEP:
                self._step(now)
                if self.steps >= self.most_steps:
                    self.stuck = True
                    break
            self.send()
        return self

    def refuses(self, r: Request) -> bool:  # 3.1
        most, size = self.limits.max_model_len, len(r.tokens)
        asked = most - size if most > 0 and r.output == 0 and size < most else r.output
        return (most > 0 and (size >= most or size + asked > most)) or -(
            -size // self.limits.block
        ) > self.limits.blocks

    def _gives_up(self, now: int, r: Request) -> None:
        r.state = "gave up"
        if self.users:
            self.users.end(now, not self.users.of.at_engine)

    def _queued(self, now: int, r: Request) -> None:  # 3
        if self.refuses(r):
            r.state = "dropped"
        elif 0 < r.deadline <= now:
            self._gives_up(now, r)
            self.cache.release(r)
        else:
            r.state = "waiting"
            self.waiting.append(r)
            if 0 < r.deadline <= self.limits.horizon_us:
                self.push(r.deadline, TIMEOUT, r)
            if not self.pending:
                self._wake(now)

    def _wake(self, now: int) -> None:
        self.push(max(now, self.free_us) if self.limits.ahead else now, STEP)
        self.pending = True

    def _timeout(self, now: int, r: Request) -> None:  # 4.6
        if r.state not in ("waiting", "running"):
            return
        if self.tier and r in self.tier.aside:
            self.tier.forsake(r)
        else:
            (self.waiting if r.state == "waiting" else self.running).remove(r)
        self._gives_up(now, r)
        self.cache.release(r)
        if not self.queue:
            self.poll = None
        if not self.running and not self.pending and self.queue:
            self._wake(now)

    def _part(self, want: int) -> int:
        return min(want, self.limits.threshold) if self.limits.threshold > 0 else want

    def _emitted(self, r: Request, positions: int) -> int:
        """Tokens that a decode emits: by the mean acceptance, with what is left over of earlier steps."""
        wanted = math.floor(r.carry + (1.0 + self.limits.acceptance * self.limits.drafts))
        return min(max(wanted, 1), positions, len(r.tokens) + r.output - 1 - r.progress)

    def _step(self, now: int) -> None:  # 4
        self.poll = None
        if not self.running and not self.queue:
            self.pending = False
            return
        limits, self.evicted = self.limits, False
        for end, r in list(self.leaving):
            if end <= now:
                self.cache.release(r)
                self.leaving.remove((end, r))
        begin_us = max(now, self.free_us) if limits.ahead else now
        left = limits.budget
        for r in self.running:
            r.new = 0
        i = 0
        while i < len(self.running) and left > 0:  # 4.2
            r = self.running[i]
            prefill = r.progress < len(r.tokens)
            positions = min(1 + limits.drafts, left)
            n = min(self._part(len(r.tokens) - r.progress), left) if prefill else self._emitted(r, positions)
            if not self._reserve(r, n):
                break
            if not prefill:
                r.carry = max(r.carry + (1.0 + limits.acceptance * limits.drafts - n), 0.0)
            r.new = n
            r.computed += n
            left -= n if prefill else positions
            i += 1
        if not self.evicted:
            left = self._admit(now, begin_us, left)
            while self.tier and not self.running and self.queue and not self.leaving:
                wake_us = self.tier.wake(now)
                if wake_us is not None and now >= begin_us:
                    self.poll, self.pending = self.pushed, False
                    self.polls.add(self.pushed)
                    self.push(wake_us, STEP)
                    return
                if wake_us is not None:
                    break
                left = self._admit(now, begin_us, left)
        if not self.running and now < begin_us:  # nothing before the step that runs ends
            self.push(begin_us, STEP)
            return
        composed, now = now, begin_us
        x = self.step([Active(len(r.tokens), r.progress, r.new) for r in self.running if r.new > 0])
        self.clamped += bool(clamps(x, 1))
        dt = int(to_ticks(x, 1))
        for r in self.running:  # 4.5
            if r.progress < len(r.tokens):
                r.progress = r.computed
            elif r.new > 0:
                r.progress += r.new
                r.itl.append((self.steps, dt))
            if r.progress == len(r.tokens) and not r.first_flag:
                r.first_flag, r.first = True, now + dt
        for r in self.running:
            if self.tier and r.new > 0:
                self.tier.store(r, composed, now + dt)  # 7
        for r in list(self.running):
            if r.progress >= len(r.tokens) + max(r.output, 1) - 1:
                if r.progress < len(r.tokens) + r.output and not self.cache.allocate(r, r.progress, r.progress + 1, []):
                    self.failures += 1
                if limits.ahead:
                    self.leaving.append((now + dt, r))
                else:
                    self.cache.release(r)
                self.running.remove(r)
                r.state, r.decode_us = "completed", sum(us for _, us in r.itl)
                self.push(now + dt, LEFT)
                if self.users:
                    token = self.users.token_us * max(r.output, 1)
                    self.users.end(now + dt + token + (self.users.completion_us if r.output else 0), True)
        self.steps += 1
        self.free_us = now + dt
        self.pending = bool(self.running or self.queue or limits.busy) or limits.ahead
        if self.pending:
            self.push(now if limits.ahead else now + dt, STEP)

    def _seated(self) -> int:
        return len(self.running) + len(self.leaving)

    @property
    def queue(self) -> list[Request]:
        return (self.tier.aside if self.tier else []) + self.waiting

    def _admit(self, now: int, begin_us: int, left: int) -> int:  # 4.3
        """Returns the tokens left."""
        limits, tier, examined = self.limits, self.tier, set[int]()
        if tier:
            tier.retries.clear()
        while self._seated() < limits.max_seqs and left > 0:
            r = next((r for r in self.queue if r.row not in examined), None)
            if r is None:
                break
            if r.transfer is not None:  # one token: of its answer, or of a prompt that was preempted
                if not self.cache.allocate(r, r.progress, r.progress + 1, []):
                    break
                self.waiting.pop(0)
                self.running.append(r)
                r.state, r.start, r.new, r.computed = "running", now, 1, r.progress + 1
                left -= 1
                continue
            of = tier.aside if tier and r in tier.aside else self.waiting
            loaded = r.loaded is not None
            if tier and r.loaded is not None and r.loaded > now:
                examined.add(r.row)
                continue
            cached: list[Block] = []
            if tier and loaded:
                begin = tier.land(r) * limits.block
            else:
                cached = self.cache.cached(r) if limits.caching else []
                begin = len(cached) * limits.block
                if tier and (fate := tier.look(r, cached, now)) != "admit":
                    if fate == "no room":
                        break
                    if of is self.waiting:
                        self.waiting.remove(r)
                        tier.aside.append(r)
                    examined.add(r.row)
                    continue
            again = loaded and begin == len(r.tokens)  # the last token, whose block is there
            n = 1 if again else self._part(len(r.tokens) - begin)
            if n > left:
                if not limits.chunked:  # vLLM V1's scheduler: all of it, or nothing
                    break
                n = left
            if not again and not self.cache.allocate(r, begin, begin + n, cached):
                break
            of.remove(r)
            self.running.append(r)
            r.state, r.start, r.begun, r.new, r.loaded = "running", now, begin_us, n, None
            r.computed = min(begin + n, len(r.tokens))
            r.cached = begin // limits.block
            r.stored = r.cached if loaded or n == 0 else 0
            left -= n
        return left

    def _reserve(self, r: Request, n: int) -> bool:  # 4.4
        while not self.cache.allocate(r, r.progress, r.progress + n, []):
            self.evicted = True
            victim = self.running.pop()
            victim.state, victim.progress, victim.itl, victim.first_flag = "waiting", 0, [], False
            victim.carry = 0.0
            self.cache.release(victim)
            self.waiting.insert(0, victim)
            self.preemptions += 1
            if victim is r:
                return False
        return True


def prompt_tokens(load: Requests, row: int) -> list[object]:
    """Distinct objects where prompts differ, equal ones where they share."""
    size, group, prompt = int(load.input_len[row]), int(load.group[row]), int(load.prompt[row])
    if load.chains:
        pieces = load.chains.number[load.chains.first[row] : load.chains.first[row + 1]].tolist()
        return [("piece", pieces[i // load.chains.piece_len], i) for i in range(size)]
    shared = min(int(load.shared_len[row]), size) if group >= 0 else 0
    owner = ("prompt", prompt) if prompt >= 0 else ("request", row)
    return [("group", group, i) for i in range(shared)] + [(owner, i) for i in range(shared, size)]


def closed_host(load: Load, queueing_us: list[int], step: Step, overheads_us: tuple[int, int], most_steps: int) -> Host:
    """Run a load with clients, for a program of these times per output token and at completion."""
    assert load.clients
    users = Users(load.clients, *((0, 0) if load.clients.at_engine else overheads_us))
    return host(load.requests, queueing_us, load.limits, step, most_steps, users)


def host(
    load: Requests,
    queueing_us: list[int],
    limits: EngineLimits,
    step: Step,
    most_steps: int = 1_000_000,
    users: Users | None = None,
) -> Host:
    """Run a load whose requests take `queueing_us` from arrival to queue."""
    requests = [
        Request(
            i,
            int(a),
            int(a) + queueing_us[i],
            prompt_tokens(load, i),
            int(load.output_len[i]),
            int(load.deadline_us[i]),
            queueing_us[i],
            text=("prompt", int(load.prompt[i])) if load.turns and load.prompt[i] >= 0 else None,
        )
        for i, a in enumerate(load.arrival_us)
    ]
    return Host(requests, limits, step, most_steps, users).run()
