"""The `workload` of an experiments file, read and written: stages of a profile, or a trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from simulator.common.errors import InputError, Section, nearest, shown
from simulator.common.json import JsonObject
from simulator.serving import limits
from simulator.serving.distribution import KINDS, Distribution, constant
from simulator.serving.keys import (
    CLIENTS,
    CLOSED,
    PROFILE,
    SESSION,
    SHARED_PREFIX,
    STAGE,
    TRACE,
    WAITING,
    WORKLOAD,
    only,
)
from simulator.serving.trace import Trace
from simulator.serving.workload import (
    ARRIVALS,
    CLIENT,
    MOMENTS,
    NOTHING,
    RELEASES,
    SEND,
    Arrival,
    Clients,
    Profile,
    Session,
    Stage,
    Workload,
    duration_s,
    offered_requests,
    output_lengths,
    prompt_lengths,
    stages_of,
)

STAGES = "give at least one {rate, duration_s}, or concurrency and requests"
OF_STAGES = dict.fromkeys(("rate", "duration_s"), "it belongs to a stage: write stages: [{rate: 5, duration_s: 60}]")
THEIRS = {  # what load generators call a key
    "max_concurrency": "it is called concurrency here, or max_in_flight beside a rate",
    "num_prompts": "it is called requests here",
    "num_warmups": "it is called warmup_requests here",
}
PARAMETERS = {"uniform": "min, max", "normal": "mean, sd, min, max", "lognormal": "mean, sd, min, max"}
TOKENS = "give a whole number of tokens, or a distribution as {lognormal: {mean: 250, sd: 120}}"
SECONDS = "give seconds, or a distribution as {lognormal: {mean: 20, sd: 10}}"
TURNS = "give a whole number of turns, or a distribution as {uniform: {min: 1, max: 8}}"
FORMS = "give constant, poisson, even, {gamma: {cv: 2}} or {burst: {size: 10}}"
LEAST_CV, MOST_CV = 0.01, 20.0  # of gamma gaps: nearly even, and nearly all requests at once
MOST_SPREAD = 1e6  # of a distribution, its standard deviation over its mean


@dataclass(frozen=True)
class Files:
    """Readers of the files that an experiment names; names are as the experiments file gives them.

    `trace(name, window_s, window_requests, timed)`, with None for the default of either, and False where arrivals are
    not needed; `lengths(name)`: the listed values and how often each occurs. Both raise InputError; `trace` also
    FileNotFoundError, with the folder that was searched.
    """

    trace: Callable[[str, float | None, int | None, bool], Trace]
    lengths: Callable[[str], tuple[tuple[float, ...], tuple[int, ...]]]


def _no_file(name: str, *_: object) -> NoReturn:
    raise InputError(f"{name}: only an experiments file can name a file: write one")


NO_FILES = Files(_no_file, _no_file)


def read_workload(top: Section, files: Files) -> Workload:
    """The key `workload` of an experiment."""
    w = top.section("workload", "describe the load: name, stages, prompts, output_len; or name and trace")
    only(w, WORKLOAD, {**OF_STAGES, **THEIRS})
    if w.has("concurrency") and w.has("stages"):
        remedy = "leave out stages, or write it in each of them in place of a rate (max_in_flight caps a rate)"
        raise w.error("concurrency", "and stages exclude each other", remedy)
    workload = _trace(w, files) if w.has("trace") else _profile(w, files)
    workload = replace(workload, clients=_clients(w, workload.closed, files))
    if w.has("timeout_s"):
        patience = w.number("timeout_s", "give seconds, or null for none", above=0, most=limits.MOST_SECONDS)
        workload = _patient(workload, patience)
    return replace(workload, name=w.name("name"), ignore_eos=w.flag("ignore_eos", True))


def _patient(workload: Workload, patience: float) -> Workload:
    """The load whose clients give up after `patience` seconds."""
    source = workload.source
    if isinstance(source, Trace):
        deadline = source.requests.arrival_us + int(patience * 1e6)
        requests = replace(source.requests, deadline_us=deadline)
        source = replace(source, digest=f"{source.digest}:{patience} s", requests=requests)
    return replace(workload, timeout_s=patience, source=source)


def _trace(w: Section, files: Files) -> Workload:
    for key in PROFILE:
        if w.has(key):
            raise w.error(key, "and trace exclude each other", "give one of them")
    least_s = w.number("window_s", "give seconds", above=0, most=limits.MOST_SECONDS) if w.has("window_s") else None
    fewest = w.whole("window_requests", "give a number of requests", least=1) if w.has("window_requests") else None
    name = w.name("trace")
    try:
        trace = files.trace(name, least_s, fewest, not w.has("concurrency"))
    except FileNotFoundError as e:
        problem = f"is {shown(name)}, and there is no such file in {e.filename}"
        raise w.error("trace", problem, "name a file relative to that folder") from None
    count = int(trace.requests.stage.max()) + 1
    if count > limits.MOST_STAGES:
        problem = f"has {count:,} windows, at most {limits.MOST_STAGES:,} are replayed"
        raise w.error("trace", problem, "give a larger window_s")
    trace = replace(trace, window_s=least_s, window_requests=fewest)
    if not w.has("concurrency"):
        return Workload("", stages_of(trace), trace, True, None)
    users, r = _users(w), trace.requests
    none, stage = np.zeros(len(r), np.int64), np.minimum(r.stage, 0)
    requests = replace(r, arrival_us=none, stage=stage, deadline_us=np.maximum(r.deadline_us - r.arrival_us, 0))
    trace = replace(trace, digest=f"{trace.digest}:closed", requests=requests)
    return Workload("", (Stage(0.0, 0.0, users=users, requests=int((stage >= 0).sum())),), trace, True, None)


def _profile(w: Section, files: Files) -> Workload:
    for key in TRACE[1:]:
        if w.has(key):
            raise w.error(key, "applies to a trace only", "leave it out")
    if w.has("concurrency"):
        stages: tuple[Stage, ...] = (_closed(w, None, None),)
    else:
        stages = tuple(_stage(s, files) for s in w.sections("stages", STAGES, most=limits.MOST_STAGES))
        if len({stage.users is None for stage in stages}) > 1:
            raise w.error("stages", "have a rate in one, concurrency in another", "write two experiments")
    workload = Workload("", stages, _drawn(w, stages, files), True, None)
    check_size(w, workload)
    return workload


def check_size(w: Section, workload: Workload) -> None:
    """Raises InputError for a load of no requests, and for one that is too large to replay."""
    requests, lasting = offered_requests(workload), duration_s(workload)
    if round(requests) < 1:
        raise w.error("stages", f"offer no request in {lasting:g} s", "give a higher rate or a longer duration_s")
    if requests > limits.MOST_REQUESTS:
        problem = f"offer {requests:.3g} requests, at most {limits.MOST_REQUESTS:.0e} are replayed"
        raise w.error("stages", problem, "shorten the stages")
    if lasting > limits.MOST_SECONDS:
        raise w.error("stages", f"last {lasting:.3g} s, at most {limits.MOST_SECONDS:.0e} are replayed", "shorten them")
    prompts, answers = prompt_lengths(workload).mean(), output_lengths(workload).mean()
    if (tokens := requests * (prompts + answers)) > limits.MOST_LOAD_TOKENS:
        most = f"at most {limits.MOST_LOAD_TOKENS:.0e} are replayed"
        problem = f"of {answers:.6g} and the prompts make {tokens:.3g} tokens, {most}"
        raise w.error("output_len", problem, "shorten the stages, the prompts or the answers")


def _drawn(w: Section, stages: Sequence[Stage], files: Files) -> Profile:
    """The distributions that the requests are drawn from."""
    most, own_lengths = limits.MOST_TOKENS, any(stage.question_len for stage in stages)
    if w.has("shared_prefix") == w.has("prompt_len"):
        problem = "and prompt_len exclude each other" if w.has("shared_prefix") else "is missing"
        raise w.error("shared_prefix", problem, "give either shared_prefix or prompt_len")
    closed = stages[0].users is not None
    for key in ("session", "arrival") if closed else ():
        if w.has(key):
            raise w.error(key, "and concurrency exclude each other", "leave one of them out")
    session = _session(w.section("session", "give turns and think_time_s"), files) if w.has("session") else None
    groups = per_group = system = 0  # nothing is shared, and no prompt repeats
    if w.has("shared_prefix"):
        p = w.section("shared_prefix", "give groups, prompts_per_group, system_prompt_len, question_len")
        only(p, SHARED_PREFIX)
        groups = p.whole("groups", "give the number of shared prefixes", least=1, most=limits.MOST_PROMPTS)
        if p.has("prompts_per_group"):
            per_group = _prompts_per_group(p, groups, bool(session), own_lengths)
        system = p.whole("system_prompt_len", "give the shared tokens of a prompt", most=most)
        question = _lengths(p, "question_len", files)
    else:
        question = _lengths(w, "prompt_len", files)
    mean = w.number("prompt_len_mean", "give tokens", least=1, most=most) if w.has("prompt_len_mean") else None
    if mean is not None and (question.fixed is None or session or own_lengths):
        raise w.error("prompt_len_mean", "applies only where all prompts have one length", "leave it out")
    arrival = _arrival(w) if "arrival" in w.raw else Arrival("poisson")
    return Profile(arrival, groups, per_group, system, question, mean, _lengths(w, "output_len", files), session)


def _prompts_per_group(p: Section, groups: int, sessions: bool, own_lengths: bool) -> int:
    key = "prompts_per_group"
    if sessions:
        raise p.error(key, "and session exclude each other", "leave it out: no turn repeats")
    if own_lengths:
        problem = "repeats the prompts in all stages, but a stage has its own prompt_len"
        raise p.error(key, problem, "leave one of them out")
    count = p.whole(key, "give the number of prompts per shared prefix, or null", least=1)
    if groups * count > limits.MOST_PROMPTS:
        problem = f"times groups are {groups * count:.3g} prompts, at most {limits.MOST_PROMPTS:.0e} are replayed"
        raise p.error(key, problem, "give fewer")
    return count


def _clients(w: Section, closed: bool, files: Files) -> Clients | None:
    """How clients wait, None if they do not."""
    for keys, has, remedy in ((CLIENTS, closed, "give concurrency"), (WAITING[1:], not closed, "leave it out")):
        for key in keys:
            if w.has(key) and not has:
                kind = "a load with concurrency" if keys is CLIENTS else "a load with a rate"
                raise w.error(key, f"applies to {kind} only", remedy)
    capped = w.has("max_in_flight")
    for key in ("release", "measured_from"):
        if w.has(key) and not (closed or capped):
            raise w.error(key, "applies to clients that wait", "give concurrency or max_in_flight, or leave it out")
    if not closed and not capped:
        return None
    most, seconds = limits.MOST_SECONDS, "give seconds"
    warmup = w.whole("warmup_requests", "give a number of requests", least=0) if w.has("warmup_requests") else 0
    if warmup and w.has("trace"):
        raise w.error("warmup_requests", "and trace exclude each other", "give its rows stage -1")
    think = NOTHING
    if w.has("think_time_s"):
        think = _distribution(w, "think_time_s", files, SECONDS, least=0, most=most, whole=False)
    ramp_s = w.number("ramp_s", seconds, least=0, most=most) if w.has("ramp_s") else 0.0
    count = "give a number of requests"
    in_flight = w.whole("max_in_flight", count, least=1, most=limits.MOST_USERS) if capped else None
    words = {"release": CLIENT, "measured_from": SEND}
    for key, known in (("release", RELEASES), ("measured_from", MOMENTS)):
        if w.has(key):
            words[key] = w.name(key)
            if words[key] not in known:
                raise w.error(key, f"{shown(words[key])} is not known", nearest(words[key], known))
    return Clients(warmup, think, ramp_s, words["release"], in_flight, words["measured_from"])


def _users(s: Section) -> int:
    return s.whole("concurrency", "give a number of clients", least=1, most=limits.MOST_USERS)


def _closed(s: Section, question: Distribution | None, output: Distribution | None) -> Stage:
    """A stage whose clients wait for answers."""
    requests = s.whole("requests", "give the number of requests of all clients", least=1, most=limits.MOST_REQUESTS)
    return Stage(0.0, 0.0, None, question, output, _users(s), requests)


def _stage(s: Section, files: Files) -> Stage:
    only(s, STAGE)
    question, output = (_lengths(s, k, files) if s.has(k) else None for k in ("prompt_len", "output_len"))
    if s.has("concurrency"):
        for key in ("rate", "duration_s", "arrival"):
            if s.has(key):
                raise s.error(key, "and concurrency exclude each other", "leave one of them out")
        return _closed(s, question, output)
    rate = s.number("rate", "give the offered load in requests/s", above=0, most=limits.MOST_RATE)
    duration_s = s.number("duration_s", "give the stage's length in seconds", above=0, most=limits.MOST_SECONDS)
    if round(rate * duration_s) < 1:
        raise s.error("duration_s", f"of {duration_s:g} s at {rate:g} requests/s offers no request", "lengthen it")
    arrival = _arrival(s) if s.has("arrival") else None
    return Stage(rate, duration_s, arrival, question, output)


def _arrival(s: Section) -> Arrival:
    """One of ARRIVALS by name, or {gamma: {cv}}, {burst: {size}}."""
    value = s.raw["arrival"]
    if isinstance(value, str) and value in ARRIVALS[:3]:
        return Arrival(value)
    if isinstance(value, dict) and len(value) == 1:
        a = s.section("arrival", FORMS)
        if "gamma" in value:
            gamma = a.section("gamma", "give cv, the coefficient of variation of the gaps")
            only(gamma, ("cv",))
            cv = gamma.number("cv", "give the gaps' coefficient of variation", least=LEAST_CV, most=MOST_CV)
            return Arrival("gamma", cv=cv)
        if "burst" in value:
            burst = a.section("burst", "give size, the requests that arrive at once")
            only(burst, ("size",))
            size = burst.whole("size", "give the requests that arrive at once", least=1, most=limits.MOST_REQUESTS)
            return Arrival("burst", size=size)
    remedy = nearest(value, ARRIVALS) if isinstance(value, str) and value not in ARRIVALS else FORMS
    raise s.error("arrival", f"{shown(value)} is not known", remedy)


def _session(s: Section, files: Files) -> Session:
    only(s, SESSION)
    turns = _distribution(s, "turns", files, TURNS, least=1, most=limits.MOST_TURNS)
    thought = _distribution(s, "think_time_s", files, SECONDS, least=0, most=limits.MOST_SECONDS, whole=False)
    return Session(turns, thought)


def _lengths(s: Section, key: str, files: Files) -> Distribution:
    """A number of tokens, or the distribution of one."""
    return _distribution(s, key, files, TOKENS, least=1, most=limits.MOST_TOKENS)


def _distribution(
    s: Section, key: str, files: Files, remedy: str, *, least: int, most: float, whole: bool = True
) -> Distribution:
    """A number, or one of KINDS with its parameters; all values within `least` and `most`.

    `whole`: values are rounded, so a constant has to be a whole number.
    """

    def number(s: Section, key: str) -> float:
        if whole:
            return s.whole(key, remedy, least=least, most=int(most))
        return s.number(key, remedy, least=least, most=most)

    value = s.required(key, remedy)
    if not isinstance(value, dict):
        return constant(number(s, key))
    d = s.section(key, remedy)
    kinds = [kind for kind in KINDS if kind in value]
    if len(kinds) != 1 or len(value) != 1:
        raise s.error(key, f"must name one distribution, got {shown(value)}", f"known are {', '.join(KINDS)}")
    [kind] = kinds
    if kind == "constant":
        return constant(number(d, kind))
    if kind == "empirical":
        file = d.name(kind, "give the file that lists the values")
        values, counted = files.lengths(file)
        if not (least <= min(values) and max(values) <= most):
            raise d.error(kind, f"lists {min(values):g} to {max(values):g}", f"give values from {least:g} to {most:g}")
        return Distribution(kind, low=least, high=most, values=values, counted=counted, file=file)
    p = d.section(kind, f"give {PARAMETERS[kind]}")
    only(p, tuple(PARAMETERS[kind].split(", ")))
    required = kind == "uniform"
    low = p.number("min", "give the least value", least=least, most=most) if required or p.has("min") else least
    high = p.number("max", "give the largest value", least=low, most=most) if required or p.has("max") else most
    if whole and math.ceil(low) > math.floor(high):
        raise p.error("max", f"{high:g} and min {low:g} have no whole number between them", "correct one of them")
    if required:
        return Distribution(kind, low=low, high=high)
    mean = p.number("mean", "give the mean", above=0, most=most)
    sd = p.number("sd", "give the standard deviation", above=0, most=most)
    if sd > MOST_SPREAD * mean:
        raise p.error("sd", f"{sd:g} is more than {MOST_SPREAD:g} times the mean, {mean:g}", "correct one of them")
    if not low <= mean <= high:
        raise p.error("mean", f"{mean:g} is not within min and max, {low:g} to {high:g}", "correct one of them")
    return Distribution(kind, mean=mean, sd=sd, low=low, high=high)


def workload_entry(w: Workload) -> JsonObject:
    """The load as `read_workload` reads it. Raises InputError for a part of a trace, or one at another rate."""
    entry: JsonObject = {"name": w.name}
    if isinstance(w.source, Trace):
        if not w.source.whole:
            raise InputError(f"workload {w.name}: no file has these requests of {w.source.file}: write the whole trace")
        windows = {key: getattr(w.source, key) for key in ("window_s", "window_requests")}
        entry |= {"trace": w.source.file} | {key: value for key, value in windows.items() if value is not None}
        if w.closed:
            entry["concurrency"] = w.stages[0].users
        if not w.ignore_eos:
            entry["ignore_eos"] = False
    else:
        entry |= _profile_entry(w.source, w.stages) | {"ignore_eos": w.ignore_eos}
    if w.timeout_s is not None:
        entry["timeout_s"] = w.timeout_s
    return entry | (_clients_entry(w.clients) if w.clients else {})


def _clients_entry(c: Clients) -> JsonObject:
    """The keys of clients that are no defaults."""
    values = {key: getattr(c, key) for key in (*CLIENTS, *WAITING) if getattr(c, key) != getattr(Clients(), key)}
    return {key: _length_entry(value) if isinstance(value, Distribution) else value for key, value in values.items()}


def _profile_entry(p: Profile, stages: Sequence[Stage]) -> JsonObject:
    entry: JsonObject = {"arrival": _arrival_entry(p.arrival), "stages": [stage_entry(s) for s in stages]}
    if stages[0].users is not None:
        entry = stage_entry(stages[0]) if stages == (_bare(stages[0]),) else {"stages": entry["stages"]}
    if p.groups:
        repeated = {"prompts_per_group": p.prompts_per_group} if p.prompts_per_group else {}
        lengths = {"system_prompt_len": p.system_prompt_len, "question_len": _length_entry(p.question_len)}
        entry["shared_prefix"] = {"groups": p.groups, **repeated, **lengths}
    else:
        entry["prompt_len"] = _length_entry(p.question_len)
    if p.prompt_len_mean is not None:
        entry["prompt_len_mean"] = p.prompt_len_mean
    entry["output_len"] = _length_entry(p.output_len)
    if p.session:
        entry["session"] = {key: _length_entry(getattr(p.session, key)) for key in SESSION}
    return entry


def _bare(s: Stage) -> Stage:
    """The stage without lengths of its own."""
    return replace(s, question_len=None, output_len=None)


def stage_entry(s: Stage) -> JsonObject:
    """A stage as the entry of a load has it."""
    entry: JsonObject = {"rate": s.rate, "duration_s": s.duration_s}
    if s.users is not None:
        entry = dict(zip(CLOSED, (s.users, s.requests), strict=True))
    if s.arrival:
        entry["arrival"] = _arrival_entry(s.arrival)
    lengths = {"prompt_len": s.question_len, "output_len": s.output_len}
    return entry | {key: _length_entry(length) for key, length in lengths.items() if length}


def _arrival_entry(a: Arrival) -> str | JsonObject:
    parameters = {"gamma": {"cv": a.cv}, "burst": {"size": a.size}}
    return {a.kind: parameters[a.kind]} if a.kind in parameters else a.kind


def _length_entry(d: Distribution) -> float | JsonObject:
    match d.kind:
        case "constant":
            return d.mean
        case "empirical":
            return {"empirical": d.file}
        case "uniform":
            return {"uniform": {"min": d.low, "max": d.high}}
        case kind:
            return {kind: {"mean": d.mean, "sd": d.sd, "min": d.low, "max": d.high}}
