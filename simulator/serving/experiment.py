"""One serving experiment as values: its deployment, its load, and what was measured, if anything.

The workload is in seconds and requests per second, observed latencies are milliseconds, lengths tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from simulator.serving.distribution import Distribution
from simulator.serving.facts import Facts
from simulator.serving.trace import Trace

ARRIVALS = ("constant", "poisson", "even", "gamma", "burst")


@dataclass(frozen=True, slots=True)
class Arrival:
    """How the requests of a stage arrive.

    `kind` is one of ARRIVALS: constant and poisson both mean sorted uniform times in the stage, even means evenly
    spaced times, gamma gaps with the coefficient of variation `cv`, burst `size` requests at once at sorted uniform
    times.
    """

    kind: str
    cv: float = 1.0
    size: int = 1


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the load: `rate` requests/s offered for `duration_s` seconds. What it has of its own, the
    arrivals or the lengths in tokens, takes the place of the profile's."""

    rate: float
    duration_s: float
    arrival: Arrival | None = None
    question_len: Distribution | None = None
    output_len: Distribution | None = None


@dataclass(frozen=True, slots=True)
class Engine:
    """The serving engine's settings, under vLLM's names.

    `max_model_len` (tokens) None is the model's own limit, `total_kv_blocks` None is computed from memory.
    `max_num_batched_tokens` and `long_prefill_token_threshold` are tokens per step (threshold 0: none), `block_size` is
    tokens per KV block.
    """

    tensor_parallel: int = 1
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    chunked_prefill: bool = True
    prefix_caching: bool = True
    long_prefill_token_threshold: int = 0
    total_kv_blocks: int | None = None
    kv_cpu_offload: bool = False
    name: str = "vllm"
    version: str | None = None


STANDARD = Engine()  # vLLM's defaults


def unsplit_tokens(longest: int) -> int:
    """vLLM's default for max_num_batched_tokens, in tokens, without chunked prefill: a step has room for the `longest`
    request, which is max_model_len (vllm/engine/arg_utils.py)."""
    return max(longest, STANDARD.max_num_batched_tokens)


@dataclass(frozen=True, slots=True)
class Session:
    """Conversations: how many turns each has, and the seconds from one turn's arrival to that of the next."""

    turns: Distribution
    think_time_s: Distribution


@dataclass(frozen=True, slots=True)
class Profile:
    """What a load generator draws requests from. Lengths in tokens.

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
class Workload:
    """The load. `name` is a label and never a feature.

    `source`: what the requests are drawn from, or the recorded ones; of a trace the stages are its time windows.
    `timeout_s` limits the time from arrival to the last token at the client; None is no limit.
    """

    name: str
    stages: tuple[Stage, ...]
    source: Profile | Trace
    ignore_eos: bool
    timeout_s: float | None


QUANTITIES: tuple[str, ...] = ("mean", "p50", "p90", "p99")  # the fields of Statistic


@dataclass(frozen=True, slots=True)
class Statistic:
    """Mean and percentiles over completed requests; None where not observed."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """What was measured over a run or a stage, in ms.

    Where all answers are equally long, the mean ITL is (mean E2E - mean TTFT) / (output_len - 1).
    """

    e2e_ms: Statistic
    ttft_ms: Statistic
    itl_ms: Statistic
    completed: int | None = None
    failed: int | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """The measurements of a run, as a whole and per stage (none, or one for each stage of the workload)."""

    summary: Observation | None
    stages: tuple[Observation, ...]


@dataclass(frozen=True, slots=True)
class Components:
    """The parts of a request's E2E as request traces show them, means in ms; None where not observed."""

    arrival_to_queue: float | None = None
    waiting: float | None = None  # first scheduled - queued
    prefill_steps: float | None = None
    decode_steps: float | None = None
    after_finish: float | None = None
    client: float | None = None  # the client's E2E less the server's, whose parts the others are
    requests: int | None = None  # how many requests the means are over


@dataclass(frozen=True, slots=True)
class Mfu:
    """The shares of a GPU's peak FLOP/s that the host's roofline assumes in prefill and decode. Used nowhere else."""

    prefill: float = 0.65
    decode: float = 0.12


CLEAN = "clean"  # the quality of runs that are fitted
OVERLOADED = "overloaded"  # that of runs in which a queue grew or requests failed
NOT_MEASURED = "are a simulation's, not measured"  # what a note says of times


@dataclass(frozen=True, slots=True)
class Experiment:
    """One run of a load on a deployment."""

    id: str
    model: str  # the Hugging Face id, if the model is in the table
    hardware: str  # the canonical name of the GPU
    engine: Engine
    workload: Workload
    observed: Observed | None
    quality: str  # CLEAN, OVERLOADED, or whatever else a user calls a run that is not to be fitted
    facts: Facts  # the static deployment fields (simulator.serving.deployment)
    notes: tuple[str, ...] = field(default=())  # what a reader of the results has to know
    components: Components | None = None  # observed parts of the E2E, if there were request traces
    mfu: Mfu = Mfu()
    weight_bits: int = 16  # of a weight of the layers

    def __hash__(self) -> int:
        """That of the id: its facts are a mapping, which has none."""
        return hash(self.id)

    @property
    def simulated(self) -> bool:
        """Whether its notes say that what was observed is itself a simulation."""
        return any(NOT_MEASURED in note for note in self.notes)

    @property
    def observed_stages(self) -> tuple[Observation, ...]:
        """What was observed in each load stage; of a single stage also where only the run has figures. Empty where
        nothing was observed per stage."""
        if self.observed is None:
            return ()
        if self.observed.stages or self.observed.summary is None or len(self.workload.stages) != 1:
            return self.observed.stages
        return (self.observed.summary,)


def simulated(experiments: Iterable[Experiment]) -> tuple[str, ...]:
    """The ids of those whose observed times are themselves a simulation's."""
    return tuple(e.id for e in experiments if e.simulated)
