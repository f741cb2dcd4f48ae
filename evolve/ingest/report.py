"""The quality report of a run as values, and as quality.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evolve.ingest.read.values import Finding
from simulator.common.records import record_class, stored


@record_class
class RequestCounts:
    """Requests according to the reports, to the per-request file (`client_rows` to `stamps`) and to the traces; None
    without that source. Errors, readings of stamps and ends are counted by their names."""

    reported_completed: int | None
    reported_failed: int | None
    client_rows: int | None = stored(default=None, brief=True)
    client_errors: Mapping[str, int] | None = stored(default=None, brief=True)
    stamps: Mapping[str, int] | None = stored(default=None, brief=True)
    journeys: int | None = stored(default=None, brief=True)
    complete_journeys: int | None = stored(default=None, brief=True)
    usable_journeys: int | None = stored(default=None, brief=True)
    finish_status: Mapping[str, int] | None = stored(default=None, brief=True)
    preemptions: int | None = stored(default=None, brief=True)
    matched_with_client: int | None = stored(default=None, brief=True)


@dataclass(frozen=True, slots=True)
class StepSampling:
    """The traced share of steps and requests."""

    sampled_steps: int
    of_steps: int
    step_rate: float
    steps_with_snapshots: int
    snapshot_rate: float
    journey_rate: float | None


@dataclass(frozen=True, slots=True)
class Clocks:
    """Offsets between the clocks in s."""

    client_minus_server_s: float | None
    client_minus_server_is: str
    epoch_minus_server_s: float | None
    epoch_spread_s: float | None


@dataclass(frozen=True, slots=True)
class AlphaTargets:
    """Times in us before requests are queued and after they have finished, each as mean and sd.

    The latter also as a constant and a part per output token, by non-negative least squares; both None if all answers
    have one length, because then nothing tells them apart.
    """

    requests: int
    arrival_to_queue_us: Mapping[str, float]
    finish_to_departure_us: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """The evidence of the reconstructed batches, and the number of the engine's summaries that they reproduce."""

    asynchronous: bool
    steps: int
    steps_by_evidence: Mapping[str, int]
    admissions_by_evidence: Mapping[str, int]
    exact_admissions: int
    prompt_tokens: int
    cached_prompt_tokens: int
    summaries: int
    summaries_reproduced: int
    summaries_reproduced_as_published: int


@dataclass(frozen=True, slots=True)
class CycleCounts:
    """Pairs of consecutive sampled steps, the numbers left out by reason, and means of the usable ones."""

    pairs: int
    usable: int
    excluded: Mapping[str, int]
    mean_cycle_us: float | None
    mean_duration_us: float | None
    measures: str
    async_scheduling: str


@dataclass(frozen=True, slots=True)
class KvBlocks:
    """KV blocks on the GPU and the CPU; a list from the trace if its steps disagree."""

    gpu_blocks_from_log: int | None
    gpu_blocks_from_trace: int | list[int] | None
    cpu_blocks: int | None
    block_stored_without_parent: int | None


@dataclass(frozen=True, slots=True)
class QualityReport:
    """The fields are the keys of quality.json, in order. `data` is the hash of the tables and the experiment,
    `experiment` is True if there is one, `tables` the rows of each table."""

    engine: str
    seeds: Sequence[int]
    run: str
    model: str | None
    quality: str
    reasons: Sequence[str]
    missing: Mapping[str, str]
    requests: RequestCounts
    excluded: Mapping[str, int]
    sampling: StepSampling | None
    clocks: Clocks
    alpha_targets: AlphaTargets | None
    batches: BatchCounts | None
    cycles: CycleCounts | None
    kv: KvBlocks
    tables: Mapping[str, int]
    findings: Sequence[Finding]
    data: str
    experiment: bool
