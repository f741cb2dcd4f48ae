"""Carrying out calls: a few at a time, within the limits, repeated after faults, and every request journalled first.

Requests run in threads that do nothing else; the thread that calls `carry_out` writes all lines. A request is given up
at its deadline, but an answer that still arrives is journalled, and used if the call is still open.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from archive.journal import Journal
from evolve.run.llm_settings import LlmSettings
from evolve.search.llm import cache, tools
from evolve.search.llm.call_log import CallLog
from evolve.search.llm.calls import (
    Answered,
    CallCost,
    CallLine,
    GivenUp,
    LlmCall,
    Prompt,
    answered_line,
    failed_line,
    prompt_line,
    proposes,
    sent_line,
    to_json,
)
from evolve.search.llm.client import Reply, calls_tools, request
from evolve.search.llm.fault import GOES_ON, CallFault
from evolve.search.llm.limits import passed
from evolve.search.llm.prices import Price
from simulator.common.errors import InputError

LONGEST_WAIT_S = 120.0  # before another attempt, even if the server asks for more
GRACE = 1.25  # times timeout_s is a request's deadline: a server that trickles bytes never times out by itself
LISTEN_S = 1.0  # the longest wait for an arrival at a time, so that `progress` is called and may end the work
MOST_DOUBLINGS = 32  # of the first wait, so that the wait cannot overflow

OnProgress = Callable[[int, int], None]  # called at least every LISTEN_S with how many calls are settled, of how many


class Dispatch:
    """Sends calls: the log of all calls, the journal that it is written to, settings, prices, and requests under way.

    `recorded`: the run is replayed from its log; nothing is sent, and calls that are not in the log are not granted.
    """

    def __init__(
        self, log: CallLog, journal: Journal, settings: LlmSettings, prices: Mapping[str, Price], recorded: bool = False
    ) -> None:
        self.log, self.settings, self.recorded = log, settings, recorded
        self._journal, self._prices = journal, prices
        # Call, attempt, seconds, end.
        self._arrived: queue.Queue[tuple[LlmCall, int, float, Reply | CallFault]] = queue.Queue()
        self._under_way: dict[tuple[str, int], tuple[LlmCall, float]] = {}  # by call and attempt; when it was sent
        self._refused: list[GivenUp] = []  # not in the journal until the run goes on without them, see check_refused
        self._not_before: dict[str, float] = {}  # by model, after a rate limit
        self._next = 0.0  # when requests per minute allow the next one

    @property
    def prices(self) -> Mapping[str, Price]:
        """The price of every model; none if the run is replayed."""
        return self._prices

    def granted(self, calls: Sequence[LlmCall]) -> list[str]:
        """Why each call cannot be made within the limits, "" if it can, assuming that all granted calls are made."""
        ahead, reasons = CallCost(), []
        for call in calls:
            free = self.log.settled(call.name) or self._cached(call) is not None
            reason = "" if free else self._limit(call, ahead)
            reasons.append(reason)
            if not reason and not free:
                ahead += CallCost(requests=1) + self._most(call)
        return reasons

    def carry_out(self, calls: Iterable[LlmCall], progress: OnProgress = lambda done, of: None) -> None:
        """Send requests until every call is answered or given up in the log. Call `check_refused` before others."""
        by_name = {call.name: call for call in calls}
        waiting: list[tuple[float, LlmCall]] = [(0.0, c) for c in by_name.values() if not self._look_up(c)]
        failures: dict[str, int] = {}
        while open_calls := [name for name in by_name if not self.log.settled(name)]:
            progress(len(by_name) - len(open_calls), len(by_name))
            waiting = self._launch([(ready, c) for ready, c in waiting if not self.log.settled(c.name)])
            arrived = self._next_arrival(waiting) if waiting or self._under_way else None
            if arrived is None:
                continue
            call, attempt, seconds, end = arrived
            if isinstance(end, Reply):
                self._answer(call, attempt, end)
                continue
            self._write([failed_line(call, attempt, end, seconds)])
            if call.name not in by_name or self.log.settled(call.name):
                continue
            failures[call.name] = failures.get(call.name, 0) + 1
            if end.again and failures[call.name] < self.settings.attempts:
                waiting.append((self._wait_until(call, failures[call.name], end), call))
            else:
                self._give_up(GivenUp(call.name, call.model, str(end)), end.setup)
        self._drain()
        progress(len(by_name), len(by_name))

    def check_refused(self, models: Collection[str]) -> None:
        """Raises InputError if a server refuses the key or the name of a model, no model has ever answered, and all of
        `models` were asked in vain.

        Calls that were refused are not in the journal then, so that a resumed run asks again.
        """
        lost = {line.model for line in self.log.given_up.values() if not line.limit}
        if self._refused and not self.log.answers and lost.issuperset(models):
            refused = {line.model: line.why for line in self._refused}
            remedies = dict.fromkeys(GOES_ON[why.partition(":")[0]] for why in refused.values())
            models_and_why = "; ".join(f"--llm {model}: {why}" for model, why in refused.items())
            raise InputError(f"{models_and_why}: {'; '.join(remedies)}")
        self._accept_refusals()

    def close(self) -> None:
        """Journal everything that has arrived since."""
        self._drain()

    def _cached(self, call: LlmCall) -> Answered | None:
        return cache.find(self.settings.cache, call) if self.settings.cache and not self.recorded else None

    def _look_up(self, call: LlmCall) -> bool:
        """Whether the log or the cache settles a call. An answer from the cache goes to the log."""
        if self.log.settled(call.name):
            return True
        answered = self._cached(call)
        if answered is not None:
            self._write([*self._prompt(call), answered])
        return answered is not None

    def _most_tokens(self, call: LlmCall) -> tuple[int, int]:
        """The most tokens, in and out, that a request for a call can take."""
        tokens_in, tokens_out = call.most(self.settings.answer_tokens)
        return tokens_in + (tools.SIZE if _has_tool(call) else 0), tokens_out

    def _most(self, call: LlmCall) -> CallCost:
        """The most that a request for a call can take."""
        tokens_in, tokens_out = self._most_tokens(call)
        usd = self._prices[call.model].usd(tokens_in, tokens_out)
        return CallCost(possibly_tokens=tokens_in + tokens_out, possibly_usd=usd)

    def _limit(self, call: LlmCall, ahead: CallCost) -> str:
        """The limit that a request would exceed on top of what is spent and `ahead`; "" if none."""
        if self.recorded:
            return "the recording ends here"
        if why := passed(self.log, self.settings):
            return why
        settings, spent = self.settings, self.log.spent + ahead + self._most(call)
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

    def _launch(self, waiting: list[tuple[float, LlmCall]]) -> list[tuple[float, LlmCall]]:
        """Send the calls that may be sent now; the result is those that must wait."""
        left = []
        for ready, call in waiting:
            now = time.monotonic()
            early = now < max(ready, self._next, self._not_before.get(call.model, 0.0))
            if early or len(self._under_way) >= self.settings.concurrency:
                left.append((ready, call))
            elif why := self._limit(call, CallCost()):
                self._write([GivenUp(call.name, call.model, why, limit=True)])
            else:
                self._send(call, now)
        return left

    def _send(self, call: LlmCall, now: float) -> None:
        attempt = self.log.attempts(call.name) + 1
        self._write([*self._prompt(call), sent_line(call, attempt, self._most(call))])
        self._under_way[call.name, attempt] = call, now
        if self.settings.rpm:
            self._next = now + 60.0 / self.settings.rpm
        threading.Thread(target=self._request, args=(call, attempt, now), daemon=True).start()

    def _request(self, call: LlmCall, attempt: int, sent_at: float) -> None:
        settings = self.settings
        end: Reply | CallFault
        try:
            end = request(call.model, call.messages, settings.api_base, settings.answer_tokens, settings.timeout_s,
                          _has_tool(call))  # fmt: skip
        except CallFault as fault:
            end = fault
        self._arrived.put((call, attempt, time.monotonic() - sent_at, end))

    def _next_arrival(
        self, waiting: Sequence[tuple[float, LlmCall]]
    ) -> tuple[LlmCall, int, float, Reply | CallFault] | None:
        """The next arrival, or a timeout at a request's deadline; None as soon as another call may be sent."""
        deadline_s = GRACE * self.settings.timeout_s
        now = time.monotonic()
        overdue = [key for key, (_, sent_at) in self._under_way.items() if now >= sent_at + deadline_s]
        if overdue:
            call, sent_at = self._under_way.pop(overdue[0])
            late = CallFault("timeout", f"no answer after {deadline_s:g} s", again=True, unpaid=False)
            return call, overdue[0][1], now - sent_at, late
        events = [now + LISTEN_S, *(sent_at + deadline_s for _, sent_at in self._under_way.values())]
        if len(self._under_way) < self.settings.concurrency:
            events += [max(ready, self._next, self._not_before.get(c.model, 0.0)) for ready, c in waiting]
        try:
            arrived = self._arrived.get(timeout=max(min(events) - now, 0.0))
        except queue.Empty:
            return None
        expected = self._under_way.pop((arrived[0].name, arrived[1]), None)
        # the late fault of a request that was given up already adds nothing
        return arrived if expected or isinstance(arrived[3], Reply) else None

    def _wait_until(self, call: LlmCall, failures: int, fault: CallFault) -> float:
        """When a failed call may be sent again. A server's retry-after also holds for other calls of its model."""
        now = time.monotonic()
        if fault.retry_after_s is not None:
            until = now + min(fault.retry_after_s, LONGEST_WAIT_S)
            self._not_before[call.model] = max(self._not_before.get(call.model, 0.0), until)
            return until
        return now + min(self.settings.backoff_s * 2.0 ** min(failures - 1, MOST_DOUBLINGS), LONGEST_WAIT_S)

    def _answer(self, call: LlmCall, attempt: int, reply: Reply) -> None:
        """Journal an answer, and keep it in the cache if there is one."""
        line = answered_line(call, attempt, reply, self._prices[call.model], self._most_tokens(call))
        self._write([line])
        self._accept_refusals()
        if self.settings.cache:
            cache.keep(self.settings.cache, call, line)

    def _give_up(self, line: GivenUp, refused: bool) -> None:
        """Do not try a call again. One that was `refused` is journalled once a model has answered."""
        if refused and not self.log.answers:
            self._refused.append(line)
            self.log.take([line])
        else:
            self._write([line])

    def _accept_refusals(self) -> None:
        """Journal the calls that were refused."""
        self._write(self._refused)
        self._refused = []

    def _drain(self) -> None:
        while not self._arrived.empty():
            call, attempt, seconds, end = self._arrived.get()
            expected = self._under_way.pop((call.name, attempt), None)
            if isinstance(end, Reply):
                self._answer(call, attempt, end)
            elif expected:
                self._write([failed_line(call, attempt, end, seconds)])

    def _prompt(self, call: LlmCall) -> list[Prompt]:
        """The line for a call's messages, unless the journal has it."""
        return [] if call.prompt in self.log.prompts else [prompt_line(call)]

    def _write(self, lines: Sequence[CallLine]) -> None:
        """Write lines to disk, then take them into the log."""
        if lines:
            self._journal.append(map(to_json, lines))
            self.log.take(lines)


def _has_tool(call: LlmCall) -> bool:
    """Whether the model may answer by a call of the tool: it is asked for programs, and litellm says it can."""
    return proposes(call.purpose) and bool(calls_tools(call.model))
