"""The header of a trace in TraceV2, the host's format of recorded requests: what served them, as YAML."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from simulator.common.documents import parse_yaml, read_bytes, yaml_text
from simulator.common.errors import InputError, Section, shown, unreadable
from simulator.serving.limits import ENGINE

WRITTEN, VERSIONS, UNITS, MODES = 2, (2, 3), ("microseconds", "us"), ("real", "generated", "replayed")
HEADER = ("trace_version", "time_unit", "mode", "warm_up_requests", "server")
ABOUT = ("created_at", "workload_seed", "workload_spec", "network", "goodput_slo_targets", "observed_kv_metrics")
DATA, BOM = b"request_id,", b"\xef\xbb\xbf"  # how the other file begins, perhaps after a mark of its encoding
GROWTH = "session_context_growth"
MEMORY = "gpu_memory_utilization"
CASE = "case.json"  # next to an exported header: the engine settings that a header has no place for


@dataclass(frozen=True)
class TraceServer:
    """What served the requests; None where the header does not say. Lengths in tokens."""

    type: str | None = None
    model: str | None = None
    tensor_parallel: int | None = None
    max_num_seqs: int | None = None
    block_size: int | None = None
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None


@dataclass(frozen=True)
class Header:
    """A trace's header. The first `warm_up_requests` ids are part of no figure. notes: what is not replayed of it."""

    mode: str
    warm_up_requests: int = 0
    server: TraceServer = TraceServer()
    notes: tuple[str, ...] = ()


def read_header(path: Path) -> Header:
    """The header in a YAML file. Raises InputError naming file, key and remedy."""
    begin = f"begin with trace_version: {WRITTEN}"
    try:
        content = read_bytes(path)
    except OSError as e:
        raise unreadable(path, e, "name the header, a YAML file") from None
    if content.removeprefix(BOM).startswith(DATA):
        raise InputError(f"{path}: is the data of a trace, a CSV file, not its header: swap the two, the header first")
    raw = parse_yaml(content, str(path), begin)
    if not isinstance(raw, dict):
        raise InputError(f"{path}: must be a mapping, got {shown(raw)}: {begin}")
    top = Section(str(path), "", raw)
    kinds: tuple[tuple[str, tuple[object, ...]], ...]
    kinds = (("trace_version", VERSIONS), ("time_unit", UNITS), ("mode", MODES))
    for key, values in kinds:
        value = top.required(key, f"write {key}: {values[0]}")
        if value not in values or isinstance(value, bool):
            expected = " or ".join(map(str, values))
            raise top.error(key, f"must be {expected}, got {shown(value)}", "write the trace again")
    if (growth := raw.get(GROWTH)) not in (None, ""):
        problem = f"is {shown(growth)}: the lengths of a session's later prompts follow only as it is played"
        raise top.error(GROWTH, problem, "play it with the host, and export what it sent")
    known = (*HEADER, *ABOUT, GROWTH)
    notes = tuple(f"{path.name}: {shown(key)} of the header is not replayed" for key in raw if key not in known)
    server = _server(top.section("server", "give its settings")) if top.has("server") else TraceServer()
    warm_up = top.whole("warm_up_requests", "give a number of requests") if top.has("warm_up_requests") else 0
    return Header(raw["mode"], warm_up, server, notes)


def _server(s: Section) -> TraceServer:
    s.only(tuple(TraceServer.__dataclass_fields__))

    def whole(key: str) -> int | None:  # the host takes 0 for "not known"
        return (s.whole(key, "give a whole number", most=ENGINE[key]) or None) if s.has(key) else None

    memory = s.number(MEMORY, "give a fraction of the GPU's memory, as 0.9", least=0, most=1) if s.has(MEMORY) else 0
    return TraceServer(
        type=s.name("type") if s.has("type") else None,
        model=s.name("model") if s.has("model") else None,
        tensor_parallel=whole("tensor_parallel"),
        max_num_seqs=whole("max_num_seqs"),
        block_size=whole("block_size"),
        gpu_memory_utilization=memory or None,
        max_model_len=whole("max_model_len"),
    )


def header_text(header: Header) -> str:
    """The header as YAML."""
    server = {key: value for key, value in asdict(header.server).items() if value is not None}
    values = (WRITTEN, UNITS[0], header.mode, header.warm_up_requests, server)
    raw = {key: value for key, value in zip(HEADER, values, strict=True) if key != "server" or value}
    text = yaml_text(raw, 80)
    return text
