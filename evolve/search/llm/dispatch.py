"""Carrying out calls: a few at a time, within the limits, repeated after faults, and every request journalled first.

Requests run in threads that do nothing else; the thread that calls `carry_out` writes all lines. A request is given up
at its deadline, but an answer that still arrives is journalled, and used if the call is still open.
"""

from __future__ import annotations

import hashlib
import json
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from archive.journal import Journal
from evolve.run.llm_settings import LlmSettings
from evolve.search.llm.calls import (
    Answered,
    CallCost,
    CallLine,
    CallLog,
    Failed,
    GivenUp,
    LlmCall,
    Price,
    Prompt,
    Sent,
    answered_line,
    pack,
    proposes,
    to_json,
    unpack,
)
from evolve.search.llm.client import REMEDIES, TOOL_BYTES, CallFault, Reply, calls_tools, request
from simulator.common.documents import read_json
from simulator.common.errors import InputError, unwritable
from simulator.common.files import write_text
from simulator.common.records import from_json
from simulator.common.text import counted

LONGEST_WAIT_S = 120.0  # before another attempt, even if the server asks for more
GRACE = 1.25  # times timeout_s is a request's deadline: a server that trickles bytes never times out by itself
LISTEN_S = 1.0  # the longest wait for an arrival at a time, so that `progress` is called and may end the work
MOST_DOUBLINGS = 32  # of the first wait, so that the wait cannot overflow
ROUNDING = 1e-9  # of max_usd, since the USD spent are a sum of many small amounts
# The fields of an answer that a folder of answers keeps.
CACHED = ("model", "version", "prompt", "sample", "tokens_in", "tokens_out", "usd", "seconds", "finish", "answer")

OnProgress = Callable[[int, int], None]  # called at least every LISTEN_S with how many calls are settled, of how many
Arrival = tuple[LlmCall, int, float, Reply | CallFault]  # call, attempt, seconds, end


def passed(log: CallLog, settings: LlmSettings) -> str:
    """The limit that is passed, its name first; "" if none is. A server counted too much, or the limit was lowered."""
    (usd, tokens), requests, over = log.spent.most, log.spent.requests, log.overcounted()
    why = f"servers counted {over.tokens:,} tokens more than {counted(over.requests, 'request')} can take"
    most_usd = settings.max_usd * (1.0 + ROUNDING)
    if usd - over.usd > most_usd:
        return f"max_usd {settings.max_usd:g} is passed: {usd:.4f} USD are spent already"
    if usd > most_usd:
        return f"max_usd {settings.max_usd:g} is passed by {usd - settings.max_usd:.4f} USD: {why}"
    if settings.max_calls and requests > settings.max_calls:
        return f"max_calls {settings.max_calls} is passed: {counted(requests, 'request')} were sent already"
    if settings.max_tokens and tokens - over.tokens > settings.max_tokens:
        return f"max_tokens {settings.max_tokens} is passed: {tokens:,} tokens are used already"
    if settings.max_tokens and tokens > settings.max_tokens:
        return f"max_tokens {settings.max_tokens} is passed by {tokens - settings.max_tokens:,}: {why}"
    return ""


class Dispatch:
    """Sends calls, and keeps their log and the journal that it is written to.

    recorded: the run is replayed from its log, without prices; nothing is sent, and no other call is granted.
    """

    def __init__(
        self, log: CallLog, journal: Journal, settings: LlmSettings, prices: Mapping[str, Price], recorded: bool = False
    ) -> None:
        self.log, self.settings, self.prices, self.recorded = log, settings, prices, recorded
        self._journal = journal
        self._arrived: queue.Queue[Arrival] = queue.Queue()
        self._under_way: dict[tuple[str, int], tuple[LlmCall, float]] = {}  # by call and attempt; when it was sent
        self._refused: list[GivenUp] = []  # not in the journal until the run goes on without them, see check_refused
        self._not_before: dict[str, float] = {}  # by model, after a rate limit
        self._next = 0.0  # when requests per minute allow the next one

    def granted(self, calls: Sequence[LlmCall]) -> list[str]:
        """The limit that forbids each call, "" if none does, assuming that all granted calls are made."""
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
        for call in by_name.values():
            if not self.log.settled(call.name) and (answered := self._cached(call)):
                self._write([*self._prompt(call), answered])
        waiting = [(0.0, call) for call in by_name.values()]
        failures = Counter[str]()
        while open_calls := [name for name in by_name if not self.log.settled(name)]:
            progress(len(by_name) - len(open_calls), len(by_name))
            waiting = self._launch([(ready, c) for ready, c in waiting if not self.log.settled(c.name)])
            arrived = self._next_arrival(waiting) if waiting or self._under_way else None
            if arrived is None:
                continue
            call, _, _, end = arrived
            self._note(*arrived)
            if isinstance(end, Reply) or call.name not in by_name or self.log.settled(call.name):
                continue
            failures[call.name] += 1
            lost = GivenUp(call.name, call.model, str(end))
            if end.again and failures[call.name] < self.settings.attempts:
                waiting.append((self._wait_until(call, failures[call.name], end), call))
            elif end.setup and not self.log.answers:  # journalled once a model has answered
                self._refused.append(lost)
                self.log.take([lost])
            else:
                self._write([lost])
        self.close()
        progress(len(by_name), len(by_name))

    def check_refused(self, models: Collection[str]) -> None:
        """Raises InputError if a key or the name of a model is refused and all of `models` were asked in vain, ever.

        Calls that were refused are not in the journal then, so that a resumed run asks again.
        """
        lost = {line.model for line in self.log.given_up.values() if not line.limit}
        if self._refused and not self.log.answers and lost.issuperset(models):
            refused = {line.model: line.why for line in self._refused}
            faults = "; ".join(f"--llm {model}: {why}" for model, why in refused.items())
            remedies = " ".join(dict.fromkeys(REMEDIES[why.partition(":")[0]] for why in refused.values()))
            raise InputError(
                f"cannot ask any model: {faults}. {remedies} "
                "Then resume the run, or start one with another model or --api-base."
            )
        self._accept_refusals()

    def close(self) -> None:
        """Journal everything that has arrived since."""
        while not self._arrived.empty():
            arrived = self._arrived.get()
            expected = self._under_way.pop((arrived[0].name, arrived[1]), None)
            if expected or isinstance(arrived[3], Reply):
                self._note(*arrived)

    def _most_tokens(self, call: LlmCall) -> tuple[int, int]:
        """The most tokens, in and out, that a request for a call can take."""
        tokens_in, tokens_out = call.most(self.settings.answer_tokens)
        return tokens_in + (TOOL_BYTES if _has_tool(call) else 0), tokens_out

    def _most(self, call: LlmCall) -> CallCost:
        tokens_in, tokens_out = self._most_tokens(call)
        usd = self.prices[call.model].usd(tokens_in, tokens_out)
        return CallCost(possibly_tokens=tokens_in + tokens_out, possibly_usd=usd)

    def _limit(self, call: LlmCall, ahead: CallCost) -> str:
        """The limit that a request would exceed on top of what is spent and `ahead`, its name first; "" if none."""
        if self.recorded:
            return "the recording ends here"
        if why := passed(self.log, self.settings):
            return why
        limits, spent, most = self.settings, self.log.spent + ahead, self._most(call)
        usd, tokens = (spent + most).most
        if usd > limits.max_usd:
            left_usd = max(limits.max_usd - usd + most.possibly_usd, 0.0)
            return f"max_usd {limits.max_usd:g} leaves {left_usd:.4f} USD; a request may take {most.possibly_usd:.4f}"
        if limits.max_calls and spent.requests + 1 > limits.max_calls:
            return f"max_calls {limits.max_calls} is reached"
        if limits.max_tokens and tokens > limits.max_tokens:
            left = max(limits.max_tokens - tokens + most.possibly_tokens, 0)
            return f"max_tokens {limits.max_tokens} leaves {left}; a request may take {most.possibly_tokens}"
        return ""

    def _launch(self, waiting: list[tuple[float, LlmCall]]) -> list[tuple[float, LlmCall]]:
        """Send the calls that may be sent now, and return those that must wait."""
        left = []
        for ready, call in waiting:
            now = time.monotonic()
            if now < self._earliest(ready, call) or len(self._under_way) >= self.settings.concurrency:
                left.append((ready, call))
            elif why := self._limit(call, CallCost()):
                self._write([GivenUp(call.name, call.model, why, limit=True)])
            else:
                self._send(call, now)
        return left

    def _earliest(self, ready: float, call: LlmCall) -> float:
        return max(ready, self._next, self._not_before.get(call.model, 0.0))

    def _send(self, call: LlmCall, now: float) -> None:
        attempt, most = self.log.attempts(call.name) + 1, self._most(call)
        asked = (call.name, attempt, call.model, call.prompt, call.sample)
        self._write([*self._prompt(call), Sent(*asked, most.possibly_tokens, most.possibly_usd)])
        self._under_way[call.name, attempt] = call, now
        if self.settings.rpm:
            self._next = now + 60.0 / self.settings.rpm
        threading.Thread(target=self._request, args=(call, attempt, now), daemon=True).start()

    def _request(self, call: LlmCall, attempt: int, sent_at: float) -> None:
        end: Reply | CallFault
        try:
            end = request(call.model, call.messages, self.settings, _has_tool(call))
        except CallFault as fault:
            end = fault
        self._arrived.put((call, attempt, time.monotonic() - sent_at, end))

    def _next_arrival(self, waiting: Sequence[tuple[float, LlmCall]]) -> Arrival | None:
        """The next arrival, or a timeout at a request's deadline; None as soon as another call may be sent."""
        deadline_s = GRACE * self.settings.timeout_s
        now = time.monotonic()
        overdue = [key for key, (_, sent_at) in self._under_way.items() if now >= sent_at + deadline_s]
        if overdue:
            call, sent_at = self._under_way.pop(overdue[0])
            return call, overdue[0][1], now - sent_at, CallFault("timeout", f"no answer after {deadline_s:g} s")
        events = [now + LISTEN_S, *(sent_at + deadline_s for _, sent_at in self._under_way.values())]
        if len(self._under_way) < self.settings.concurrency:
            events += [self._earliest(ready, call) for ready, call in waiting]
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

    def _note(self, call: LlmCall, attempt: int, seconds: float, end: Reply | CallFault) -> None:
        """Journal the end of a request, and keep an answer in the folder of answers if there is one."""
        if isinstance(end, CallFault):
            self._write([Failed(call.name, attempt, call.model, end.kind, end.why, end.unpaid, round(seconds, 3))])
            return
        line = answered_line(call, attempt, end, self.prices[call.model], self._most_tokens(call))
        self._write([line])
        self._accept_refusals()
        if self.settings.cache:
            keep(self.settings.cache, call, line)

    def _accept_refusals(self) -> None:
        self._write(self._refused)
        self._refused = []

    def _cached(self, call: LlmCall) -> Answered | None:
        return find(self.settings.cache, call) if self.settings.cache and not self.recorded else None

    def _prompt(self, call: LlmCall) -> list[Prompt]:
        """The line for a call's messages, unless the journal has it."""
        if call.prompt in self.log.prompts:
            return []
        return [Prompt(call.prompt, tuple((role, pack(text)) for role, text in call.messages))]

    def _write(self, lines: Sequence[CallLine]) -> None:
        if lines:
            self._journal.append(map(to_json, lines))
            self.log.take(lines)


def _has_tool(call: LlmCall) -> bool:
    """True if the model may answer by a call of the tool: it is asked for programs, and litellm says it can."""
    return proposes(call.purpose) and bool(calls_tools(call.model))


# a folder of answers by (prompt, model, sample), so that another run need not pay for the same question again


def find(folder: str, call: LlmCall) -> Answered | None:
    """The journal line for a call's answer in the folder; None if there is no answer or its file is damaged."""
    path, of_call = _path(folder, call), {"call": call.name, "attempt": 0, "cached": True}
    try:
        kept = read_json(path, "remove it", kept=True)
        line = from_json(Answered, kept | of_call if isinstance(kept, dict) else kept, path)
        unpack(line.answer)
    except (OSError, ValueError):
        return None
    return line if (line.prompt, line.model, line.sample) == (call.prompt, call.model, call.sample) else None


def keep(folder: str, call: LlmCall, answered: Answered) -> None:
    """Write an answer to the folder. Raises InputError if the folder cannot be written."""
    path = _path(folder, call)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({name: getattr(answered, name) for name in CACHED}))
    except OSError as e:
        raise unwritable(f"--cache {folder}", e, "choose another folder") from None


def _path(folder: str, call: LlmCall) -> Path:
    identity = json.dumps([call.prompt, call.model, call.sample])
    return Path(folder) / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json"
