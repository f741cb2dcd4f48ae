"""The load: its stages, what its requests are drawn from, and what that says of them before any is drawn.

Times are in seconds, rates in requests/s, lengths in tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulator.serving.distribution import GRID, Distribution, constant
from simulator.serving.splits import SPANS
from simulator.serving.trace import Requests, Trace, bounds_us, cut, slowed

CLIENT, HOST = RELEASES = ("client", "host")
SEND, DUE = MOMENTS = ("send", "due")
NOTHING = constant(0.0)
ARRIVALS = ("constant", "poisson", "even", "gamma", "burst")
HISTORIES = 100  # quantiles that stand for the histories of all turns
ENOUGH = 1000  # requests in a replica's share of a load: ten are slower than its p99
CONVERSATIONS = 20  # mean lengths of a conversation that such a share lasts at least


@dataclass(frozen=True, slots=True)
class Arrival:
    """The arrivals of the requests of a stage.

    `kind` is one of ARRIVALS: constant and poisson both mean sorted uniform times in the stage, even means evenly
    spaced times, gamma gaps with the coefficient of variation `cv`, burst `size` requests at once at sorted uniform
    times.
    """

    kind: str
    cv: float = 1.0
    size: int = 1


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the load: `rate` requests/s offered for `duration_s` seconds. Its own arrivals and lengths replace
    those of the profile.

    Of a closed load, `users` send `requests` requests, each the next one when its last is answered; rate and duration
    follow from that and are 0 here.
    """

    rate: float
    duration_s: float
    arrival: Arrival | None = None
    question_len: Distribution | None = None
    output_len: Distribution | None = None
    users: int | None = None
    requests: int | None = None

    @property
    def offered(self) -> float:
        """The requests that arrive, before their number is rounded."""
        return self.rate * self.duration_s if self.requests is None else float(self.requests)

    @property
    def label(self) -> str:
        """The load in words: `5 requests/s`, `32 users`."""
        return f"{self.rate:g} requests/s" if self.users is None else f"{self.users:,} users"

    @property
    def level(self) -> float:
        """The load as a number: its rate or its users."""
        return self.rate if self.users is None else float(self.users)

    def rate_at(self, e2e_ms: float) -> float:
        """Its requests/s if each takes `e2e_ms`; of a closed load by Little's law."""
        return self.rate if self.users is None else self.users / e2e_ms * 1e3

    def in_flight(self, e2e_ms: float) -> float:
        """The requests in flight if each takes `e2e_ms`, by Little's law; of a queue that grows, at most all."""
        return min(self.rate * e2e_ms / 1e3 if self.users is None else float(self.users), self.offered)


@dataclass(frozen=True, slots=True)
class Session:
    """Conversations: the number of turns of each, and the seconds from one turn's arrival to that of the next."""

    turns: Distribution
    think_time_s: Distribution


@dataclass(frozen=True, slots=True)
class Profile:
    """The distributions that a load generator draws requests from. Lengths in tokens.

    `groups` * `prompts_per_group` distinct prompts are used in turn; the first `system_prompt_len` tokens are shared
    within a group. With prompts_per_group = 0 no prompt repeats, and with groups = 0 nothing is shared: every request
    has its own prompt of `question_len` tokens. With a `session`, requests are the turns of conversations: a prompt is
    that of the turn before, its answer, and `question_len` new tokens. `prompt_len_mean` is the observed mean of
    prompts whose lengths are constant.
    """

    arrival: Arrival
    groups: int
    prompts_per_group: int
    system_prompt_len: int
    question_len: Distribution
    prompt_len_mean: float | None
    output_len: Distribution
    session: Session | None = None


@dataclass(frozen=True, slots=True)
class Clients:
    """How clients wait: those of a closed load for every answer; those of other loads once `max_in_flight` requests
    are in flight, from which on they hold requests back.

    `warmup_requests` come first, a load of their own that ends before the measured ones begin, and count in no figure.
    Clients think for `think_time_s` between answer and next request, and begin over `ramp_s` seconds. `release`: they
    are free at the last token that they see (CLIENT), or at the engine's completion (HOST), as in the host, where they
    begin over one time to think and are gone once they give up. `measured_from`: the moment from which the latencies of
    requests that were held back count, SEND or DUE.
    """

    warmup_requests: int = 0
    think_time_s: Distribution = NOTHING
    ramp_s: float = 0.0
    release: str = CLIENT
    max_in_flight: int | None = None
    measured_from: str = SEND


@dataclass(frozen=True, slots=True)
class Workload:
    """The load. `name` is a label and never a feature.

    `source`: distributions, or recorded requests, whose time windows are the stages. `timeout_s` limits the time from
    arrival to the last token at the client; None is no limit. `clients`: None if every request is sent when it is due.
    """

    name: str
    stages: tuple[Stage, ...]
    source: Profile | Trace
    ignore_eos: bool
    timeout_s: float | None
    clients: Clients | None = None

    @property
    def closed(self) -> bool:
        """True if a request is sent when another one is answered, so that no rate is given."""
        return self.stages[0].users is not None


def steady(name: str, rate: float, duration_s: float, prompt_len: int, output_len: int) -> Workload:
    """Poisson arrivals at one rate, with prompts of one length that share nothing, and answers of one length."""
    profile = Profile(Arrival("poisson"), 0, 0, 0, constant(prompt_len), None, constant(output_len))
    return Workload(name, (Stage(rate, duration_s),), profile, True, None)


def duration_s(workload: Workload) -> float:
    """The seconds over which requests arrive; 0 for a closed load, whose answers decide."""
    return sum(stage.duration_s for stage in workload.stages)


def offered_requests(workload: Workload) -> float:
    """The requests that arrive, before their number is rounded; those of a warm-up do not count."""
    return sum(stage.offered for stage in workload.stages)


def mean_rate(workload: Workload) -> float | None:
    """The requests/s that arrive, on average over the stages; None for a closed load."""
    return None if workload.closed else offered_requests(workload) / duration_s(workload)


def at_users(workload: Workload, users: int) -> Workload:
    """A closed load with so many users, and as many requests for each of them, at least as many as it had.

    Raises ValueError for a load that has a rate.
    """
    if not workload.closed:
        raise ValueError("a load with a rate has no number of users")
    clients, most = workload.clients or Clients(), max(stage.users or 1 for stage in workload.stages)
    warmup = round(clients.warmup_requests * users / most)
    requests = sum(stage.requests or 0 for stage in workload.stages)
    if isinstance(workload.source, Trace):  # it has no more
        stage = Stage(0.0, 0.0, users=users, requests=requests)
    else:
        stage = Stage(0.0, 0.0, users=users, requests=max(math.ceil(requests * users / most), requests))
    return replace(workload, stages=(stage,), clients=replace(clients, warmup_requests=warmup))


def phases(workload: Workload) -> tuple[Stage, ...]:
    """The stages, after that of a warm-up if there is one."""
    clients, first = workload.clients, workload.stages[0]
    if clients is None or not clients.warmup_requests:
        return workload.stages
    return (replace(first, requests=clients.warmup_requests), *workload.stages)


def late_requests(workload: Workload, sent: Requests) -> int:
    """The number of requests `sent` that arrive after the last stage, as only later turns of conversations may."""
    return int((sent.arrival_us > duration_s(workload) * 1e6).sum()) if _has_sessions(workload) else 0


def _has_sessions(workload: Workload) -> bool:
    return isinstance(workload.source, Profile) and workload.source.session is not None


def at_rate(workload: Workload, rate: float) -> Workload:
    """The same load at `rate` requests/s: a single stage that lasts as long as all stages together.

    Stages with arrivals or lengths of their own keep their shares of the load, and a trace its requests, which arrive
    closer together or further apart.
    """
    match workload.source:
        case Trace() as trace:
            faster = _faster(workload, rate)
            stages = tuple(replace(s, rate=s.rate * faster, duration_s=s.duration_s / faster) for s in workload.stages)
            return replace(workload, stages=stages, source=slowed(trace, 1.0 / faster))
        case _ if any(s.arrival or s.question_len or s.output_len for s in workload.stages):
            return replace(workload, stages=_scaled(workload, rate))
        case _:
            return replace(workload, stages=(Stage(rate, duration_s(workload)),))


def _faster(workload: Workload, rate: float) -> float:
    """The ratio of `rate` to the mean rate of the load."""
    return rate * duration_s(workload) / offered_requests(workload)


def _scaled(workload: Workload, rate: float) -> tuple[Stage, ...]:
    """The stages with a mean of `rate` requests/s, of which each keeps its share."""
    faster = _faster(workload, rate)
    return tuple(replace(s, rate=s.rate * faster) for s in workload.stages)


def share_of(workload: Workload, rate: float) -> Workload:
    """The load of one of several replicas that share a service equally, a mean of `rate` requests/s.

    All stages keep their shares of the load, so that peaks stay peaks. A load of one stage lasts until there are enough
    requests for a p99, and for longer than conversations: only where it is short next to them is it not the service's.
    """
    if isinstance(workload.source, Trace):
        return at_rate(workload, rate)
    stages = _scaled(workload, rate)
    if len(stages) == 1:
        least_s = max(ENOUGH / rate, CONVERSATIONS * _conversation_s(workload.source.session))
        stages = (replace(stages[0], duration_s=max(stages[0].duration_s, least_s)),)
    return replace(workload, stages=stages)


def _conversation_s(session: Session | None) -> float:
    """The mean seconds from the first turn of a conversation to its last one; 0 without conversations."""
    if session is None:
        return 0.0
    turns, think_time_s = (float(d.quantiles().mean()) for d in (session.turns, session.think_time_s))
    return max(turns - 1.0, 0.0) * think_time_s


def prompt_lengths(workload: Workload) -> np.ndarray:
    """int64[prompts]: the lengths of the prompts in tokens, each distinct one once.

    Quantiles stand for a distribution; in conversations, each of these comes after quantiles of the history.
    """
    match workload.source:
        case Trace(requests=requests):
            return requests.input_len.astype(np.int64)
        case profile:
            if has_constant_prompts(workload, profile):
                return _constant_lengths(profile)
            questions = dict.fromkeys(s.question_len or profile.question_len for s in workload.stages)
            lengths = np.concatenate([q.quantiles() for q in questions])
            histories = np.zeros(1)
            if profile.session:
                turn = lengths.mean() + output_lengths(workload).mean()
                histories = turn * _turns_before(profile.session)
                lengths = lengths[:: -(-len(lengths) // GRID)]  # with those of many stages, too many to combine
            whole = profile.system_prompt_len + lengths[None] + histories[:, None]
            return np.maximum(np.rint(whole.ravel()), 1).astype(np.int64)


def _turns_before(session: Session) -> np.ndarray:
    """int64[HISTORIES]: the number of turns before a turn, at evenly spaced probabilities."""
    turns = np.maximum(np.rint(session.turns.quantiles()), 1)
    longer = len(turns) - np.searchsorted(turns, np.arange(int(turns[-1])), side="right")
    ends = np.cumsum(longer)
    p = (np.arange(HISTORIES) + 0.5) / HISTORIES
    return np.asarray(np.searchsorted(ends, p * ends[-1], side="right"))


def has_constant_prompts(workload: Workload, profile: Profile) -> bool:
    """True if all prompts are equally long, but for those that have an observed mean."""
    own = any(stage.question_len for stage in workload.stages)
    return profile.question_len.fixed is not None and not own and profile.session is None


def _constant_lengths(profile: Profile) -> np.ndarray:
    """int64[prompts]: the length of every distinct prompt in tokens, with long and short ones evenly interleaved."""
    count = max(profile.groups * profile.prompts_per_group, 1)
    if profile.prompt_len_mean is None:
        return np.full(count, profile.system_prompt_len + int(profile.question_len.mean), dtype=np.int64)
    low = math.floor(profile.prompt_len_mean)
    longer = round((profile.prompt_len_mean - low) * count)
    index = np.arange(count)
    return np.asarray(low + ((index + 1) * longer // count - index * longer // count))


def output_lengths(workload: Workload) -> np.ndarray:
    """int64[answers]: the lengths of the answers in tokens; of a distribution, its quantiles stand for them."""
    match workload.source:
        case Trace(requests=requests):
            return requests.output_len.astype(np.int64)
        case profile:
            answers = dict.fromkeys(s.output_len or profile.output_len for s in workload.stages)
            lengths = np.rint(np.concatenate([a.quantiles() for a in answers]))
            return np.asarray(np.maximum(lengths, 1).astype(np.int64))


def longest_request(workload: Workload) -> int:
    """The most tokens that a request may have, prompt and answer."""
    match workload.source:
        case Trace(requests=r):
            return int((r.input_len.astype(np.int64) + r.output_len).max())
        case profile:
            question = max((s.question_len or profile.question_len).most for s in workload.stages)
            answer = max((s.output_len or profile.output_len).most for s in workload.stages)
            turns = profile.session.turns.most if profile.session else 1.0
            fixed = profile.prompt_len_mean
            prompt = math.ceil(fixed) if fixed is not None else profile.system_prompt_len + turns * question
            return round(prompt + turns * answer)


def gaps_of(workload: Workload) -> int | None:
    """The tokens of every answer after its first, None if answers differ in length."""
    lengths = output_lengths(workload)
    return int(lengths[0]) - 1 if (lengths == lengths[0]).all() else None


def distinct_prompts(workload: Workload) -> int:
    """The number of distinct prompts that requests use in turn; 0 if no prompt repeats."""
    match workload.source:
        case Profile(session=None) as profile:
            return profile.groups * profile.prompts_per_group
        case _:
            return 0


def rates(workload: Workload, sent: Requests) -> list[float]:
    """Requests/s of every stage. In conversations, later turns may come in later stages: there those `sent` count."""
    if not _has_sessions(workload):
        return [stage.rate for stage in workload.stages]
    counts = np.bincount(sent.stage, minlength=len(workload.stages))
    return [float(n) / stage.duration_s for n, stage in zip(counts, workload.stages, strict=True)]


def is_recorded(workload: Workload) -> bool:
    """True for a load that is the same under every arrival seed."""
    clients = workload.clients
    return isinstance(workload.source, Trace) and (clients is None or clients.think_time_s.fixed is not None)


def seeds_of(workload: Workload, seeds: Sequence[int]) -> Sequence[int]:
    """The arrival seeds under which the load differs: the first alone for a trace."""
    return seeds[:1] if is_recorded(workload) else seeds


def stages_of(trace: Trace) -> tuple[Stage, ...]:
    """The windows of a trace as load stages."""
    numbers = np.bincount(trace.requests.stage[trace.requests.stage >= 0])
    bounds = bounds_us(trace.requests, len(numbers))
    return tuple(
        Stage(int(n) / ((end - start) / 1e6), (end - start) / 1e6)
        for n, (start, end) in zip(numbers, bounds, strict=True)
    )


def first_stages(workload: Workload, count: int) -> Workload:
    """The load in its first `count` stages alone; of a trace, that of its first windows."""
    match workload.source:
        case _ if workload.closed:
            return replace(workload, stages=workload.stages[:count])
        case Trace() as trace:
            stage = trace.requests.stage
            rows = np.arange(len(stage)) <= np.flatnonzero(stage < count)[-1]
            return replace(workload, stages=workload.stages[:count], source=cut(trace, rows, f"{count} windows"))
        case _:
            return replace(workload, stages=workload.stages[:count])


def rows_of_part(part: str, requests: int) -> tuple[int, int]:
    """The first row of a part of SPLITS of a trace with so many requests, and the one after its last."""
    first, last = (round(share * requests) for share in SPANS[part])
    return first, last


def part_of(workload: Workload, part: str) -> Workload:
    """The load of a trace up to the end of a part of SPLITS, with figures of the requests of that part alone.

    Those before it are replayed, because they are still there when it begins. Raises ValueError for another load.
    """
    if not isinstance(workload.source, Trace):
        raise ValueError("requests that are drawn have no parts")
    count = len(workload.source.requests)
    first, last = rows_of_part(part, count)
    number = np.arange(count)
    trace = cut(workload.source, number < last, part, number >= first)
    if workload.closed:
        return replace(workload, stages=(replace(workload.stages[0], requests=last - first),), source=trace)
    return replace(workload, stages=stages_of(trace), source=trace)
