"""The inputs of `evolve simulate`: a case (engine limits, backend constants) and a trace (one request a row).

The formats are those of the host simulator's recordings, which the exactness tests compare with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from simulator.common.documents import read_json
from simulator.common.errors import InputError, Section, unreadable
from simulator.common.json import JsonObject
from simulator.serving.engine import LARGEST as MOST
from simulator.serving.engine import STANDARD, Engine, read_setting
from simulator.serving.limits import HOST_ENGINE, MOST_USERS
from simulator.serving.load import NEVER, Clients, EngineLimits, Load
from simulator.serving.spec import read_replicas
from simulator.serving.speculation import lacks_acceptance
from simulator.serving.trace import Requests
from simulator.serving.traces.csv import EMPTY, header, line_of, mistyped, read_columns

ALPHA = ("base_us", "per_input_token_us", "per_output_token_us", "completion_us")
LINEAR = ("b0_us", "per_prefill_token_us", "per_decode_request_us", "per_decode_kv_token_us", "floor_us")
TRACE = ("row", "arrival_s", "input_len", "output_len", "prefix_group", "prefix_len", "timeout_s")
NEEDED = ("arrival_s", "input_len", "output_len")
LOAD = ("concurrency", "think_time_us", "requests")
SETTINGS = (
    *("kv_cache_dtype", "speculative_method", "num_speculative_tokens", "speculative_acceptance", "draft_model"),
    *("kv_offloading_size", "kv_offload_gb_per_s", "kv_offload_latency_us", "offload_prompt_only"),
)
"""Settings of a case's engine beside its limits: for the fields that programs read, drafts and KV offload."""
LONGEST = 2**30  # tokens of a prompt or an answer
LATEST_S = 1e11  # seconds: 10^17 us, far below what an int64 holds


@dataclass(frozen=True)
class HostCase:
    """Engine limits, the backend's overheads in us, the constants of its step time (None if the case has none), and
    its clients (None for a trace with arrivals), who send `requests` in all (0: those of the trace). engine: has the
    SETTINGS. replicas: that take turns, each with these limits."""

    limits: EngineLimits
    alpha: dict[str, float]
    linear: dict[str, float] | None
    users: int | None = None
    think_us: int = 0
    requests: int = 0
    engine: Engine = STANDARD
    replicas: int = 1

    def load(self, requests: Requests) -> Load:
        """The requests under the limits; from the clients as the host has them, where the case has some.

        User u of N begins at floor(u * think time / N), and thinks from the engine's completion on.
        """
        if self.users is None:
            return Load(requests, self.limits, replicas=self.replicas)
        think, n = np.full(len(requests), self.think_us, np.int64), len(requests)
        clients = Clients(np.array([0, n]), np.array([self.users]), think[:1], think, at_engine=True)
        return Load(requests, self.limits, clients, replicas=self.replicas)


def read_case(path: Path, defaults: Mapping[str, int] = HOST_ENGINE) -> HostCase:
    """Read the case in a JSON file; `defaults` are the engine limits that it does not give. Raises InputError."""
    try:
        value = read_json(path, "correct it")
    except OSError as e:
        raise unreadable(path, e, "name a JSON file") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: must be a mapping. Give `engine`, `alpha` and, without --program, `step_linear_kv`.")
    top = Section(str(path), "", value)
    _only(top, "name", "why", "alpha", "step_linear_kv", "engine", "replicas", "horizon_us", "load", "host_summary")
    linear = _numbers(top, "step_linear_kv", LINEAR) if top.has("step_linear_kv") else None
    alpha = _numbers(top, "alpha", ALPHA) if top.has("alpha") else dict.fromkeys(ALPHA, 0.0)
    engine, own = dict(defaults), STANDARD
    if top.has("engine"):
        given = top.section("engine", "give a mapping of engine limits")
        _only(given, *HOST_ENGINE, *SETTINGS)
        own = _settings(given)
        for key in (key for key in HOST_ENGINE if given.has(key)):
            least = 0 if key in ("long_prefill_token_threshold", "max_model_len") else 1
            engine[key] = given.whole(key, "give a whole number", least=least, most=MOST[key])
    horizon = top.whole("horizon_us", "give microseconds, or null for none") if top.has("horizon_us") else NEVER
    drafts, acceptance = own.num_speculative_tokens, own.speculative_acceptance or 0.0
    limits = replace(limits_from(engine, horizon), drafts=drafts, acceptance=acceptance)
    case = HostCase(limits, alpha, linear, engine=own, replicas=read_replicas(top))
    if not top.has("load"):
        return case
    load = top.section("load", "give concurrency, think_time_us and requests")
    _only(load, *LOAD)
    users = load.whole("concurrency", "give a number of users", least=1, most=MOST_USERS)
    think = load.whole("think_time_us", "give microseconds", least=0) if load.has("think_time_us") else 0
    requests = load.whole("requests", "give a number of requests", least=1) if load.has("requests") else 0
    return replace(case, users=users, think_us=think, requests=requests)


def _settings(given: Section) -> Engine:
    """The engine with SETTINGS. Raises InputError for drafts of which nobody says how many are accepted."""
    settings = {key: value for key in SETTINGS if (value := read_setting(given, key)) is not None}
    engine = Engine(**settings, given=frozenset(settings))  # type: ignore[arg-type]
    if lacks_acceptance(engine):
        raise given.error("speculative_acceptance", "is missing", "give the share of drafted tokens that are accepted")
    return engine


def case_of(limits: EngineLimits, engine: Engine, replicas: int) -> JsonObject:
    """The case of replicas of an engine with these limits: what `read_case` reads as the same."""
    settings = {key: value for key, value in engine.to_entry().items() if key in SETTINGS}
    case: JsonObject = {"engine": engine_of(limits) | settings}
    return {**case, "replicas": replicas} if replicas > 1 else case


def limits_from(engine: Mapping[str, int], horizon_us: int = int(NEVER)) -> EngineLimits:
    """The limits in engine settings with the keys of HOST_ENGINE."""
    blocks, block, seqs, budget, threshold, longest = (engine[key] for key in HOST_ENGINE)
    return EngineLimits(seqs, budget, threshold, block, blocks, max_model_len=longest, horizon_us=horizon_us)


def engine_of(limits: EngineLimits) -> dict[str, int]:
    """The engine settings of a case with these limits."""
    values = (limits.blocks, limits.block, limits.max_seqs, limits.budget, limits.threshold, limits.max_model_len)
    return dict(zip(HOST_ENGINE, values, strict=True))


def _only(section: Section, *keys: str) -> None:
    section.only(keys, ("x_",), "a key of a case")


def _numbers(top: Section, key: str, names: tuple[str, ...]) -> dict[str, float]:
    """Times in microseconds, 0 where not given."""
    section = top.section(key, "give its constants")
    _only(section, *names)
    return {name: section.number(name, "give microseconds", least=0) if section.has(name) else 0.0 for name in names}


def program_text(case: HostCase) -> str | None:
    """The case's backend as a program, in the host's order of evaluation; None if it has no step time."""
    if case.linear is None:
        return None
    k, a = case.linear, case.alpha
    return f"""
def step_time(b, s, *, floor={k["floor_us"]!r}, b0={k["b0_us"]!r}, prefill={k["per_prefill_token_us"]!r},
              decode={k["per_decode_request_us"]!r}, kv={k["per_decode_kv_token_us"]!r}):
    return max(floor, b0 + prefill * b.prefill_tokens + decode * b.decode_reqs + kv * b.kv_decode_sum)

def queueing_time(r, s, *, base={a["base_us"]!r}, each={a["per_input_token_us"]!r}):
    return base + each * r.input_len

def output_token_time(s, *, t={a["per_output_token_us"]!r}):
    return t

def completion_time(s, *, t={a["completion_us"]!r}):
    return t
"""


def read_trace(path: Path, case: HostCase) -> tuple[Requests, np.ndarray]:
    """The requests in order of arrival (ties in the file's order), and the number of each.

    Columns: arrival_s, input_len, output_len; optionally row, prefix_group, prefix_len and timeout_s. Requests of a
    group >= 0 begin with the same prefix_len tokens, part of input_len. Where the case has clients, arrival_s is not
    read: these send the requests in the file's order. Raises InputError naming file and line.
    """
    columns = _columns(path, [name for name in TRACE if case.users is None or name != "arrival_s"])
    n = len(columns["input_len"])
    if n == 0:
        raise InputError(f"{path}: no request. Give a row for each below the header.")
    if n < case.requests:
        raise InputError(f"{path}: {n:,} requests, but the case's `load` has {case.requests:,}. Give as many rows.")
    if case.users is not None:
        n = case.requests or n
        columns = {"arrival_s": np.zeros(n), **{name: values[:n] for name, values in columns.items()}}
    arrival_s, inputs, outputs = (columns[name] for name in NEEDED)
    group = columns.get("prefix_group", np.full(n, -1, np.int32))
    prefix = np.where(group >= 0, columns.get("prefix_len", np.zeros(n, np.int32)), 0)
    late = f"Give seconds from 0 to {LATEST_S:g}"
    _refuse(path, "arrival_s", ~((arrival_s >= 0) & (arrival_s <= LATEST_S)), arrival_s, late)
    _refuse(path, "input_len", (inputs < 1) | (inputs > LONGEST), inputs, f"Give 1 to {LONGEST} tokens")
    _refuse(path, "output_len", (outputs < 0) | (outputs > LONGEST), outputs, f"Give 0 to {LONGEST} tokens")
    _refuse(path, "prefix_len", (prefix < 0) | (prefix > inputs), prefix, "Give at most input_len, which includes it")
    if group.max() > n:  # the clock keeps an entry per group number: number the groups from 0
        distinct, place = np.unique(group, return_inverse=True)
        group = (place - int((distinct < 0).sum())).astype(np.int32)
    arrival = (arrival_s * 1e6).astype(np.int64)
    deadline = np.zeros(n, np.int64)
    if "timeout_s" in columns:
        given = columns["timeout_s"]
        limited = given != EMPTY
        wrong = limited & ~((given >= 1e-6) & (given <= LATEST_S))
        _refuse(path, "timeout_s", wrong, given, f"Give seconds from 1e-6 to {LATEST_S:g}, or nothing")
        deadline[limited] = arrival[limited] + (given[limited] * 1e6).astype(np.int64)
    number = columns.get("row", np.arange(n, dtype=np.int64))
    stage, alone = np.zeros(n, np.int32), np.full(n, -1, np.int32)
    of_group = np.where(prefix > 0, group, -1).astype(np.int32)
    requests = Requests(arrival, stage, inputs, outputs, alone, of_group, prefix.astype(np.int32), deadline)
    if (arrival[1:] >= arrival[:-1]).all():
        return requests, number
    order = np.argsort(arrival, kind="stable")
    return requests.of(order), number[order]


def _columns(path: Path, known: Sequence[str]) -> dict[str, np.ndarray]:
    names = header(path)
    for name in NEEDED:
        if name in known and name not in names:
            raise InputError(f"{path}:1: no column {name}, only {','.join(names)[:100]!r}. Add it.")
    if ("prefix_group" in names) != ("prefix_len" in names):
        raise InputError(f"{path}:1: prefix_group and prefix_len go together. Give both columns or neither.")
    for name, near in mistyped(names, known).items():
        raise InputError(f"{path}:1: unknown column {name!r}. Did you mean {near!r}?")
    kinds = {"arrival_s": pa.float64(), "timeout_s": pa.float64(), "row": pa.int64()}
    wanted = {name: kinds.get(name, pa.int32()) for name in known if name in names}
    return read_columns(path, names, wanted, ("timeout_s",))


def _refuse(path: Path, name: str, wrong: np.ndarray, values: np.ndarray, remedy: str) -> None:
    """Raise InputError for the first line whose value is `wrong`."""
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        raise InputError(f"{path}:{line_of(path, i + 1)}: {name} is {values[i]:g}. {remedy}.")
