"""Carry calls out: a few at a time, no more a minute than allowed, again after faults, every request journalled first.

Requests run in threads that do nothing else; the thread that calls `carry_out` writes every line. A request that
outlives its deadline is given up, its answer is not: should it come yet, it is journalled, and used if the call is
still open.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from archive.journal import Journal
from evolve.propose.llm import cache
from evolve.propose.llm.calls import (
    Answered,
    Book,
    Call,
    CallLine,
    GivenUp,
    Prompt,
    Spent,
    answered_line,
    failed_line,
    prompt_line,
    sent_line,
    to_json,
)
from evolve.propose.llm.client import Fault, Reply, request
from evolve.propose.llm.prices import Price
from evolve.run.llm_settings import LlmSettings
from simulator.errors import InputError

LONGEST_WAIT_S = 120.0  # before another attempt, whatever the server asks for
GRACE = 1.25  # times timeout_s is the deadline of a request whose server sends a byte now and then
IDLE_S = 3600.0
MOST_DOUBLINGS = 32  # of the first wait

Told = Callable[[int, int], None]  # how many calls are settled, of how many


class Dispatch:
    """Where calls go out: the book and the journal it is written to, prices, settings, and what is under way.

    `recorded`: a run that is replayed from its book; nothing is sent, and what the book does not hold is not granted.
    """

    def __init__(
        self, book: Book, journal: Journal, settings: LlmSettings, prices: Mapping[str, Price], recorded: bool = False
    ) -> None:
        self.book, self.settings, self.recorded = book, settings, recorded
        self._journal, self._prices = journal, prices
        self._arrived: queue.Queue[tuple[Call, int, float, Reply | Fault]] = queue.Queue()
        self._under_way: dict[tuple[str, int], tuple[Call, float]] = {}  # by call and attempt: when it was sent
        self._not_before: dict[str, float] = {}  # by model, after a rate limit
        self._next = 0.0  # when the limit per minute lets the next request go

    def granted(self, calls: Sequence[Call]) -> list[str]:
        """Why each call cannot be made within the limits, "" where it can; if all that are granted are made."""
        ahead, out = Spent(), []
        for call in calls:
            known = self._known(call)
            why = "" if known else self._limit(call, ahead)
            out.append(why)
            if not why and not known:
                ahead += Spent(requests=1) + self._most(call)
        return out

    def carry_out(self, calls: Iterable[Call], told: Told = lambda done, of: None) -> None:
        """Until every call has an answer in the book, or is given up there.

        Raises InputError where no model has ever answered and a server refuses the key or the name of the model.
        """
        every = {call.name: call for call in calls}
        waiting: list[tuple[float, Call]] = [(0.0, c) for c in every.values() if not self._look_up(c)]
        failures: dict[str, int] = {}
        refused: list[tuple[Call, str]] = []
        while open_calls := [name for name in every if not self.book.settled(name)]:
            told(len(every) - len(open_calls), len(every))
            waiting = self._launch([(ready, c) for ready, c in waiting if not self.book.settled(c.name)])
            if refused and (self.book.answers or len(refused) == len(open_calls)):
                if not self.book.answers:
                    call, why = refused[0]
                    remedy = "mend the key and resume the run, or start one with another model or --api-base"
                    raise InputError(f"--llm {call.model}: {why}: {remedy}")
                self._write([GivenUp(c.name, c.model, why) for c, why in refused])
                refused.clear()
            arrived = self._next_arrival(waiting) if waiting or self._under_way else None
            if arrived is None:
                continue
            call, attempt, seconds, found = arrived
            if isinstance(found, Reply):
                self._answer(call, attempt, found)
                continue
            self._write([failed_line(call, attempt, found, seconds)])
            if call.name not in every or self.book.settled(call.name):
                continue
            failures[call.name] = failures.get(call.name, 0) + 1
            if found.again and failures[call.name] < self.settings.attempts:
                waiting.append((self._wait_until(call, failures[call.name], found), call))
            elif found.setup:
                refused.append((call, str(found)))
            else:
                self._write([GivenUp(call.name, call.model, str(found))])
        self._drain()
        told(len(every), len(every))

    def close(self) -> None:
        """Journal what came meanwhile."""
        self._drain()

    def _known(self, call: Call) -> bool:
        return self.book.settled(call.name) or self._cached(call) is not None

    def _cached(self, call: Call) -> Answered | None:
        return cache.find(self.settings.cache, call) if self.settings.cache and not self.recorded else None

    def _look_up(self, call: Call) -> bool:
        """Whether the book or the cache has the answer."""
        if self.book.settled(call.name):
            return True
        found = self._cached(call)
        if found is not None:
            self._write([*self._prompt(call), found])
        return found is not None

    def _most(self, call: Call) -> Spent:
        tokens_in, tokens_out = call.most(self.settings.answer_tokens)
        usd = self._prices[call.model].usd(tokens_in, tokens_out)
        return Spent(possibly_tokens=tokens_in + tokens_out, possibly_usd=usd)

    def _limit(self, call: Call, ahead: Spent) -> str:
        """The limit that one more request would pass, beside what is spent and `ahead`; "" if none."""
        if self.recorded:
            return "the recording ends here"
        settings, spent = self.settings, self.book.spent + ahead + self._most(call)
        usd, tokens = spent.usd + spent.possibly_usd, spent.tokens + spent.possibly_tokens
        if usd > settings.max_usd:
            left = settings.max_usd - usd + self._most(call).possibly_usd
            return f"max_usd {settings.max_usd:g} leaves {max(left, 0.0):.4f} USD, and a request may take " + (
                f"{self._most(call).possibly_usd:.4f}"
            )
        if settings.max_calls and spent.requests + 1 > settings.max_calls:
            return f"max_calls {settings.max_calls} is reached"
        if settings.max_tokens and tokens > settings.max_tokens:
            most = self._most(call).possibly_tokens
            left_tokens = max(settings.max_tokens - tokens + most, 0)
            return f"max_tokens {settings.max_tokens} leaves {left_tokens}, and a request may take {most}"
        return ""

    def _launch(self, waiting: list[tuple[float, Call]]) -> list[tuple[float, Call]]:
        """Send what may be sent now; what has to wait."""
        left = []
        for ready, call in waiting:
            now = time.monotonic()
            early = now < max(ready, self._next, self._not_before.get(call.model, 0.0))
            if early or len(self._under_way) >= self.settings.concurrency:
                left.append((ready, call))
            elif why := self._limit(call, Spent()):
                self._write([GivenUp(call.name, call.model, why, limit=True)])
            else:
                self._send(call, now)
        return left

    def _send(self, call: Call, now: float) -> None:
        attempt = self.book.attempts(call.name) + 1
        self._write([*self._prompt(call), sent_line(call, attempt, self._most(call))])
        self._under_way[call.name, attempt] = call, now
        if self.settings.rpm:
            self._next = now + 60.0 / self.settings.rpm
        threading.Thread(target=self._request, args=(call, attempt, now), daemon=True).start()

    def _request(self, call: Call, attempt: int, begun: float) -> None:
        settings = self.settings
        found: Reply | Fault
        try:
            found = request(call.model, call.messages, settings.api_base, settings.answer_tokens, settings.timeout_s)
        except Fault as fault:
            found = fault
        self._arrived.put((call, attempt, time.monotonic() - begun, found))

    def _next_arrival(self, waiting: Sequence[tuple[float, Call]]) -> tuple[Call, int, float, Reply | Fault] | None:
        """What arrives next; a timeout where a deadline passes; None when something may be sent."""
        deadline_s = GRACE * self.settings.timeout_s
        now = time.monotonic()
        over = [key for key, (_, begun) in self._under_way.items() if now >= begun + deadline_s]
        if over:
            call, begun = self._under_way.pop(over[0])
            late = Fault("timeout", f"no answer after {deadline_s:g} s", again=True, unpaid=False)
            return call, over[0][1], now - begun, late
        events = [begun + deadline_s for _, begun in self._under_way.values()]
        if len(self._under_way) < self.settings.concurrency:
            events += [max(ready, self._next, self._not_before.get(c.model, 0.0)) for ready, c in waiting]
        try:
            arrived = self._arrived.get(timeout=max(min(events, default=now + IDLE_S) - now, 0.0))
        except queue.Empty:
            return None
        known = self._under_way.pop((arrived[0].name, arrived[1]), None)
        # of a request that was given up only its answer is news
        return arrived if known or isinstance(arrived[3], Reply) else None

    def _wait_until(self, call: Call, failures: int, fault: Fault) -> float:
        now = time.monotonic()
        if fault.retry_after_s is not None:
            until = now + min(fault.retry_after_s, LONGEST_WAIT_S)
            self._not_before[call.model] = max(self._not_before.get(call.model, 0.0), until)
            return until
        return now + min(self.settings.backoff_s * 2.0 ** min(failures - 1, MOST_DOUBLINGS), LONGEST_WAIT_S)

    def _answer(self, call: Call, attempt: int, reply: Reply) -> None:
        most = call.most(self.settings.answer_tokens)
        line = answered_line(call, attempt, reply, self._prices[call.model], most)
        self._write([line])
        if self.settings.cache:
            cache.keep(self.settings.cache, call, line)

    def _drain(self) -> None:
        while not self._arrived.empty():
            call, attempt, seconds, found = self._arrived.get()
            known = self._under_way.pop((call.name, attempt), None)
            if isinstance(found, Reply):
                self._answer(call, attempt, found)
            elif known:
                self._write([failed_line(call, attempt, found, seconds)])

    def _prompt(self, call: Call) -> list[Prompt]:
        return [] if call.prompt in self.book.prompts else [prompt_line(call)]

    def _write(self, lines: Sequence[CallLine]) -> None:
        """On disk first, then known."""
        if lines:
            self._journal.append(map(to_json, lines))
            self.book.take(lines)
