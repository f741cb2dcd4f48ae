"""What the small engine of traces is asked for and what it tells: options, truth, and the spans, batches and rows of a folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

BLOCK = 16  # tokens
MODEL = "example-org/tiny-llama-sim"
TINY = {
    **{"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"intermediate_size": 512, "vocab_size": 32000, "max_position_embeddings": 1024},
}
"""The config.json of MODEL."""


@dataclass(frozen=True)
class Options:
    """One experiment. Lengths in tokens, rates of sampling as shares 0..1."""

    seed: int
    requests: int = 40
    rates: tuple[float, ...] = (40.0,)  # 1/s, one per stage; the requests are split evenly over the stages
    groups: int = 2  # system prompts; groups * per_group prompts are cycled
    per_group: int = 5
    system_len: int = 64
    question_len: int = 90
    question_spread: int = 12  # prompts differ by up to so many tokens either way
    output_len: int = 24
    output_spread: int = 6  # requests' max_tokens differ by up to so much either way
    max_num_batched_tokens: int = 256
    max_num_seqs: int = 16
    blocks: int = 256  # as vllm.log counts them: one is the null block
    asynchronous: bool = True
    journey_rate: float = 1.0
    step_rate: float = 0.5
    rich_rate: float = 0.5  # of the sampled steps
    offload: bool = True
    cpu_blocks: int = 40
    abort_share: float = 0.0  # requests whose client gives up, a third each when waiting, within a prefill, in decode
    stamps: str = "2n+2"  # or "n+1": what the load generator's release records
    coalesced: float = 0.1  # share of requests several of whose tokens come in one read
    lognormal: bool = False  # lengths are lognormal with their spreads as standard deviations, and no prompt repeats
    burst: int = 1  # requests that arrive together
    closure_interval: int = 10  # steps of a step span
    spans_per_line: int = 8

    def __post_init__(self) -> None:
        question, answer = self.longest
        longest = self.system_len + question + answer
        if -(-longest // BLOCK) + 1 > self.usable_blocks:
            raise ValueError(f"{self.blocks} blocks do not hold one request of {longest} tokens")
        spread = self.output_len <= self.output_spread or self.question_len <= self.question_spread
        if spread and not self.lognormal:
            raise ValueError("a spread reaches a length: no token would be left")
        if self.stamps not in ("2n+2", "n+1"):
            raise ValueError(f"stamps are 2n+2 or n+1, not {self.stamps}")

    @property
    def usable_blocks(self) -> int:
        return self.blocks - 1

    @property
    def longest(self) -> tuple[int, int]:
        """The most tokens of a question and of an answer."""
        if self.lognormal:
            return 4 * self.question_len, 4 * self.output_len
        return self.question_len + self.question_spread, self.output_len + self.output_spread

    @property
    def max_model_len(self) -> int:
        if self.lognormal:
            return 64 * -(-(self.system_len + sum(self.longest)) // 64)
        return 64 * -(-(self.system_len + self.question_len + self.output_len + 64) // 64)

    def stage_requests(self) -> list[int]:
        """Requests of each stage: their sum is `requests`."""
        each, over = divmod(self.requests, len(self.rates))
        return [each + (k < over) for k in range(len(self.rates))]


class Offsets(NamedTuple):
    """Differences of the three clocks, whole quarters of a second, so that sums with them are exact."""

    client_minus_server_s: float
    epoch_minus_server_ns: int


class Entry(NamedTuple):
    """One request's share of a step. `role` is prefill from an admission until the request has caught up with its
    tokens (so also the recomputation of a resumed one, be it one token), else decode."""

    request_id: str  # core id
    role: str
    new_tokens: int
    kv_before: int
    kv_after: int
    produces_token: bool


class Snapshot(NamedTuple):
    request_id: str
    phase: str
    prompt: int
    computed: int
    outputs: int
    preemptions: int
    scheduled: int
    allocated: int
    cached: int
    effective: int


class Summary(NamedTuple):
    """A step.BATCH_SUMMARY with the step's snapshots, if it has any; server monotonic ns."""

    step: int
    start_ns: int
    end_ns: int
    running: int
    waiting: int
    prefill_requests: int
    decode_requests: int
    prefill_tokens: int
    decode_tokens: int
    finished: int
    preempted: int
    total_blocks: int
    free_blocks: int
    snapshots: tuple[Snapshot, ...]


class StepTruth(NamedTuple):
    """A step as it ran: times on the server's clock, execution in us (0 for an empty step)."""

    step: int
    entries: tuple[Entry, ...]
    exec_us: float
    started_ns: int  # execution
    ended_ns: int
    handled_ns: int  # its output had been processed
    sampled: bool  # its summary is in the file
    rich: bool  # and its snapshots
    summary: Summary


class Journey(NamedTuple):
    """A journey event; `detail` is the schedule.kind or the finish.status."""

    name: str
    ns: int
    step: int
    phase: str
    prefill_done: int
    decode_done: int
    preemptions: int
    detail: str | None = None


class CoreSpan(NamedTuple):
    request_id: str
    start_ns: int
    end_ns: int
    prompt: int
    max_tokens: int
    events: tuple[Journey, ...]


class ApiSpan(NamedTuple):
    request_id: str  # API id
    start_ns: int
    end_ns: int
    prompt: int
    max_tokens: int
    arrived_ns: int
    left_ns: int
    aborted: bool


class StepSpan(NamedTuple):
    sequence: int
    first: int
    last: int
    interval: int
    start_ns: int
    end_ns: int
    summaries: tuple[Summary, ...]


class KvBatch(NamedTuple):
    """A line of kv_events.jsonl: server ns of its publishing and the events as they are written."""

    ns: int
    events: tuple[list[Any], ...]


class Row(NamedTuple):
    """A row of the client: seconds on its clock."""

    start_time: float
    end_time: float
    prompt: str
    max_tokens: int
    input_tokens: int
    output_tokens: int
    times: tuple[float, ...]
    failed: bool
    schedule_delay: float
    stage: int


class Admission(NamedTuple):
    """A SCHEDULED: its step, the tokens the request had then, and those found in the prefix cache."""

    step: int
    tokens: int
    cached: int


class RequestTruth(NamedTuple):
    """A request as it went. Times: `_ns` on the server's monotonic clock, `token_times` on the client's in s."""

    index: int  # in the order of arrival
    api_id: str
    core_id: str
    prompt: int  # of the fixed set
    prompt_text: str
    prompt_tokens: int
    max_tokens: int
    output_tokens: int  # processed
    status: str  # length or aborted
    admissions: tuple[Admission, ...]
    preemptions: int
    steps: tuple[int, ...]  # in which it ran, in order
    arrived_ns: int
    queued_ns: int
    scheduled_ns: int | None  # first
    first_token_ns: int | None
    finished_ns: int
    left_ns: int  # api.DEPARTED or api.ABORTED
    token_ns: tuple[int, ...]  # when the engine had processed each token
    token_times: tuple[float, ...]  # when the client had read each; none of a failed row
    traced: bool  # its journey is in the file
    row: Row


Record = CoreSpan | ApiSpan | StepSpan | KvBatch | StepTruth | RequestTruth


@dataclass(frozen=True)
class Truth:
    """A whole run: its records in order of time, and what of them is truth by name."""

    options: Options
    offsets: Offsets
    records: tuple[Record, ...]

    @property
    def steps(self) -> list[StepTruth]:
        return [r for r in self.records if isinstance(r, StepTruth)]

    @property
    def requests(self) -> list[RequestTruth]:
        """In the order of arrival."""
        return sorted((r for r in self.records if isinstance(r, RequestTruth)), key=lambda r: r.index)

    @property
    def sampled_steps(self) -> list[int]:
        return [s.step for s in self.steps if s.sampled]
