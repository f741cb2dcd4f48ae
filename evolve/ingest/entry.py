"""An entry of an experiments file as values: its workload, what was observed, and the parts of the E2E."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from evolve.ingest.options import Setting, Terms
from evolve.ingest.read.reports import LoadReport, observed_json
from evolve.ingest.read.settings import SharedPrefix
from simulator.common.json import JsonObject
from simulator.serving.experiment import Stage


@dataclass(frozen=True, slots=True)
class WorkloadEntry:
    """The `workload` of an entry; lengths in tokens."""

    name: str
    arrival: str
    stages: tuple[Stage, ...]
    shared_prefix: SharedPrefix
    prompt_len_mean: float | None
    output_len: int
    ignore_eos: bool | None
    timeout_s: float | None

    def to_json(self) -> JsonObject:
        fields = {**asdict(self), "stages": [{"rate": s.rate, "duration_s": s.duration_s} for s in self.stages]}
        return {key: value for key, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """The `workload` of an entry whose requests are replayed one by one; `trace` is their file."""

    name: str
    trace: str
    ignore_eos: bool | None
    timeout_s: float | None

    def to_json(self) -> JsonObject:
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class ObservedEntry:
    """The `observed` of an entry: the reports of the run and of every stage of its workload, None if missing."""

    summary: LoadReport | None
    stages: tuple[LoadReport | None, ...]
    output_len: int

    def to_json(self) -> JsonObject:
        observed: JsonObject = {}
        if self.summary:
            observed["summary"] = observed_json(self.summary, self.output_len)
        if any(self.stages):
            observed["stages"] = [observed_json(stage, self.output_len) if stage else {} for stage in self.stages]
        return observed


@dataclass(frozen=True, slots=True)
class EntryComponents:
    """The parts of the mean E2E by name in ms, how many requests they rest on, and a note if these are not all."""

    parts_ms: Mapping[str, float]
    requests: int
    note: str | None


@dataclass(frozen=True, slots=True)
class ExperimentEntry:
    """An entry of an experiments file. `model_config` are the model's terms, if the user gave them."""

    id: str
    source_run: str
    model: str
    model_config: Terms | None
    hardware: str
    engine: Mapping[str, Setting]
    workload: WorkloadEntry | TraceEntry
    observed: ObservedEntry | None
    quality: str
    notes: tuple[str, ...]
    components: EntryComponents | None = None

    def to_json(self) -> JsonObject:
        """The entry as a mapping, its keys in the order of the files that ship."""
        entry: JsonObject = {"id": self.id, "source_run": self.source_run, "model": self.model}
        if self.model_config:
            entry["model_config"] = dict(self.model_config)
        entry |= {"hardware": self.hardware, "engine": dict(self.engine), "workload": self.workload.to_json()}
        if self.observed and (observed := self.observed.to_json()):
            entry["observed"] = observed
        entry["quality"] = self.quality
        if self.notes:
            entry["x_note"] = list(self.notes)
        if self.components:
            entry |= {"x_components_ms": self.components.parts_ms, "x_components_requests": self.components.requests}
            if self.components.note:
                entry["x_note"] = [*self.notes, self.components.note]
        return entry
