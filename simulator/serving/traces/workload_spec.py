"""The host's workload specification, a YAML file of clients, as a load and back (sim/workload/spec.go).

The loads that both hold are those of one client there: requests at a rate, or users that wait for their answers. The
host draws lengths and arrivals with random numbers of its own. A normal length is rounded within its bounds in both. A
uniform one is `empirical` there, every whole number equally often; a lognormal one `pareto_lognormal` without Pareto.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from simulator.common.documents import parse_yaml, read_bytes, yaml_text
from simulator.common.errors import InputError, Section, shown, unreadable
from simulator.common.json import JsonObject
from simulator.serving import limits
from simulator.serving.distribution import Distribution, constant
from simulator.serving.trace import Trace
from simulator.serving.workload import HOST, Arrival, Clients, Profile, Stage, Workload
from simulator.serving.workload_entry import LEAST_CV, MOST_CV, check_size

BEGIN = 'begin with version: "2"'
LOAD = ("num_requests", "aggregate_rate", "clients")
ABOUT = ("version", "seed", "category")
OTHERS = ("cohorts", "horizon", "servegen_data", "inference_perf")  # loads that are not held
HELD = (
    *("id", "concurrency", "think_time_us", "rate_fraction", "arrival", "timeout", "prefix_group", "prefix_length"),
    *("input_distribution", "output_distribution"),
)
IDLE = ("tenant_id", "slo_class", "slo_target_us", "gie_priority", "model", "streaming", "closed_loop")  # no latency
UNHELD = ("network", "lifecycle", "multimodal", "reasoning", "adapter")
PATIENCE_US = 300_000_000  # of a user without `timeout`
PREFIX = 50  # tokens of a `prefix_group` without `prefix_length`
ARRIVALS = {"poisson": "poisson", "constant": "even", "gamma": "gamma"}  # the host's word -> ours
MOST_VALUES = 100_000  # of an empirical length
WEIGHT = 2**40  # into which the shares of an empirical length are rounded
BEGIN_OVER = "how its users begin: the host's begin over one time to think"
KINDS = ("constant", "gaussian", "empirical", "pareto_lognormal")


def read_workload_spec(path: Path) -> tuple[Workload, int]:
    """The load in a file and its seed. Its name is the id of the client. Raises InputError for what no load here holds.

    Keys with an empty value are ignored: the host writes the keys that were not set.
    """
    try:
        raw = parse_yaml(read_bytes(path), str(path), BEGIN)
    except OSError as e:
        raise unreadable(path, e, "name a workload spec of the host, a YAML file") from None
    if not isinstance(raw, Mapping):
        raise InputError(f"{path}: must be a mapping, got {shown(raw)}: {BEGIN}")
    top = _said(Section(str(path), "", raw))
    top.only((*ABOUT, *LOAD, *OTHERS), (), "a key of the host's workload spec")
    for key in OTHERS:
        if top.has(key):
            raise top.error(key, "is not read", "give one client and num_requests")
    if top.has("category") and raw["category"] != "language":
        raise top.error("category", f"is {shown(raw['category'])}, and only texts are replayed", "give language")
    clients = top.sections("clients", "give one client")
    if len(clients) > 1:
        raise top.error("clients", f"has {len(clients)} entries, and a load here is that of one", "give one client")
    c = _said(clients[0], "timeout")
    c.only((*HELD, *IDLE, *UNHELD), (), "a key of a client")
    for key in UNHELD:
        if c.has(key):
            raise c.error(key, "is not replayed", "leave it out")
    requests = top.whole("num_requests", "give the requests of all users", least=1, most=limits.MOST_REQUESTS)
    users = c.whole("concurrency", "give a number of users", most=limits.MOST_USERS) if c.has("concurrency") else 0
    stage, arrival, clients_of = _closed(c, users, requests) if users else _open(top, c, requests)
    groups = 1 if c.has("prefix_group") else 0
    prefix = c.whole("prefix_length", "give tokens", most=limits.MOST_TOKENS) if c.has("prefix_length") else 0
    question, answer = (_length(c, f"{which}_distribution") for which in ("input", "output"))
    profile = Profile(arrival, groups, 0, (prefix or PREFIX) * groups, question, None, answer)
    name = c.name("id") if c.has("id") else path.stem
    workload = Workload(name, (stage,), profile, True, _patience_s(c, bool(users)), clients_of)
    check_size(top, workload)
    return workload, top.whole("seed", "give a whole number") if top.has("seed") else 0


def _said(s: Section, *kept: str) -> Section:
    """The section without keys that have an empty value, but for those `kept`."""
    return Section(s.where, s.path, {key: x for key, x in s.raw.items() if key in kept or not _is_empty(x)})


def _is_empty(value: object) -> bool:
    return all(map(_is_empty, value.values())) if isinstance(value, Mapping) else not value


def _closed(c: Section, users: int, requests: int) -> tuple[Stage, Arrival, Clients | None]:
    if c.has("rate_fraction"):
        raise c.error("rate_fraction", "and concurrency exclude each other", "give one of them")
    think_us = c.whole("think_time_us", "give microseconds") if c.has("think_time_us") else 0
    waits = Clients(think_time_s=constant(_seconds(think_us)), release=HOST)
    return Stage(0.0, 0.0, users=users, requests=requests), Arrival("poisson"), waits


def _open(top: Section, c: Section, requests: int) -> tuple[Stage, Arrival, Clients | None]:
    rate = top.number("aggregate_rate", "give requests/s, or a client with concurrency", above=0, most=limits.MOST_RATE)
    if c.has("think_time_us"):
        raise c.error("think_time_us", "applies to concurrency only", "leave it out")
    a = c.section("arrival", "give {process: poisson}")
    a.only(("process", "cv", "shape", "scale"))
    process = a.name("process", f"give {', '.join(ARRIVALS)}")
    if process not in ARRIVALS:
        raise a.error("process", f"{shown(process)} is not held by a load here", f"give {', '.join(ARRIVALS)}")
    for key in ("shape", "scale"):
        if a.has(key):
            raise a.error(key, "is not read", "give cv")
    arrival = Arrival(ARRIVALS[process])
    if process == "gamma" and a.has("cv"):
        cv = a.number("cv", "give the gaps' coefficient of variation", least=LEAST_CV, most=MOST_CV)
        arrival = Arrival("gamma", cv=cv)
    return Stage(rate, requests / rate), arrival, None


def _patience_s(c: Section, waits: bool) -> float | None:
    """Seconds until a client gives up: those who wait do so after PATIENCE_US unless `timeout` says otherwise."""
    default_us = PATIENCE_US if waits else 0
    given = c.whole("timeout", "give microseconds, or 0 for none") if c.has("timeout") else default_us
    return _seconds(given) if given else None


def _seconds(us: int) -> float:
    """The seconds that are so many whole microseconds again."""
    s = us / 1e6
    return s if int(s * 1e6) == us else math.nextafter(s, math.inf)


def _length(c: Section, key: str) -> Distribution:
    d = c.section(key, "give type and params")
    d.only(("type", "params", "file"))
    kind = d.name("type", f"give {', '.join(KINDS)}")
    if kind not in KINDS:
        raise d.error("type", f"{shown(kind)} is not held by a load here", f"give {', '.join(KINDS)}")
    if d.raw.get("file"):
        raise d.error("file", "is not read", "give params")
    p, most = d.section("params", "give its parameters"), limits.MOST_TOKENS
    if kind == "constant":
        return constant(p.number("value", "give tokens", least=1, most=most) // 1)
    if kind == "empirical":
        return _empirical(p)
    if kind == "gaussian":
        low, high = (max(p.number(name, "give tokens", least=0, most=most) // 1, 1.0) for name in ("min", "max"))
        mean, sd = (p.number(name, "give tokens", least=0, most=most) for name in ("mean", "std_dev"))
        if low > high:
            raise p.error("max", f"{high:g} is less than min, {low:g}", "correct one of them")
        if low == high or sd == 0:
            return constant(int(np.rint(np.clip(mean, low, high))))
        return Distribution("normal", mean=mean, sd=sd, low=low, high=high)
    if p.number("mix_weight", "give the share of the Pareto part") != 0:
        raise p.error("mix_weight", "is not 0, and no length here has a Pareto part", "give 0, or an empirical length")
    mu = p.number("mu", "give the mean of the logarithm", most=20)
    sigma = p.number("sigma", "give the standard deviation of the logarithm", above=0, most=5)
    mean = math.exp(mu + sigma * sigma / 2.0)
    return Distribution("lognormal", mean=mean, sd=mean * math.sqrt(math.expm1(sigma * sigma)), low=1.0, high=most)


def _empirical(p: Section) -> Distribution:
    """Lengths with their shares; uniform if they are all whole numbers of a range, equally often."""
    shares: dict[int, float] = {}
    for key in p.raw:
        text = str(key)
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= limits.MOST_TOKENS):
            raise p.error(key, "is no number of tokens", f"give 1 to {limits.MOST_TOKENS}")
        if (share := p.number(key, "give its share", least=0)) > 0:
            shares[int(text)] = share
    if not shares:
        raise p.error("params", "have no length with a share", "give some")
    values = sorted(shares)
    if len(values) == 1:
        return constant(values[0])
    if len(set(shares.values())) == 1 and values[-1] - values[0] + 1 == len(values):
        return Distribution("uniform", low=values[0], high=values[-1])
    whole = all(share == int(share) for share in shares.values())
    total = sum(shares.values())
    counted = tuple(int(shares[v]) if whole else max(round(shares[v] / total * WEIGHT), 1) for v in values)
    floats = tuple(map(float, values))
    return Distribution("empirical", low=1.0, high=limits.MOST_TOKENS, values=floats, counted=counted)


def unheld(workload: Workload) -> str:
    """What of a load no workload spec holds, in a few words; "" if it holds all that `left_out` does not name."""
    source, [first, *others] = workload.source, workload.stages
    if isinstance(source, Trace):
        return "recorded requests"
    question, answer = first.question_len or source.question_len, first.output_len or source.output_len
    unlike: dict[str, object] = {
        "several stages": others,
        "a cap on the requests in flight": workload.clients and workload.clients.max_in_flight is not None,
        "conversations": source.session,
        "prompts that repeat": source.prompts_per_group,
        "several prefixes": source.groups > 1,
        "a mean of constant lengths": source.prompt_len_mean is not None,
        "times to think that differ": workload.clients and workload.clients.think_time_s.fixed is None,
        "arrivals in bursts": not workload.closed and (first.arrival or source.arrival).kind == "burst",
        "such lengths": not all(map(_is_held, (question, answer))),
    }
    return next((what for what, has in unlike.items() if has), "")


def left_out(workload: Workload) -> list[str]:
    """What a workload spec of the load has not: its warm-up, and how its users begin."""
    of = workload.clients
    if of is None:
        return []
    think_s = of.think_time_s.fixed or 0.0
    begin_s = of.ramp_s or (think_s if of.release == HOST else 0.0)
    lacks = [f"the warm-up of {of.warmup_requests} requests"] if of.warmup_requests else []
    return [*lacks, BEGIN_OVER] if begin_s != think_s else lacks


def _is_held(d: Distribution) -> bool:
    whole = all(float(x).is_integer() for x in (d.low, d.high))
    match d.kind:
        case "uniform":
            return math.floor(d.high) - math.ceil(d.low) < MOST_VALUES
        case "normal":
            return whole
        case "lognormal":
            return d.low == 1.0 and d.high == limits.MOST_TOKENS
        case "empirical":
            return len(d.values) <= MOST_VALUES and all(float(v).is_integer() for v in d.values)
        case _:
            return True


def workload_spec_text(workload: Workload, ident: str, seed: int) -> str:
    """The spec of a load that is not `unheld`, with `ident` as the id of its client."""
    source, [stage] = workload.source, workload.stages
    assert isinstance(source, Profile)
    client: JsonObject = {"id": ident}
    top: JsonObject = {"version": "2", "seed": seed, "category": "language", "num_requests": round(stage.offered)}
    if workload.closed:
        of = workload.clients or Clients()
        client |= {"concurrency": stage.users, "think_time_us": int((of.think_time_s.fixed or 0.0) * 1e6)}
    else:
        top["aggregate_rate"] = stage.rate
        arrival = stage.arrival or source.arrival
        process = {"even": "constant", "gamma": "gamma"}.get(arrival.kind, "poisson")
        client["rate_fraction"] = 1.0
        client["arrival"] = {"process": process, **({"cv": arrival.cv} if process == "gamma" else {})}
    client["timeout"] = int((workload.timeout_s or 0.0) * 1e6)
    if source.groups and source.system_prompt_len:
        client |= {"prefix_group": "prefix-0", "prefix_length": source.system_prompt_len}
    client["input_distribution"] = _written(stage.question_len or source.question_len)
    client["output_distribution"] = _written(stage.output_len or source.output_len)
    return yaml_text({**top, "clients": [{**client, "streaming": True}]})


def _written(d: Distribution) -> JsonObject:
    kind, params = _parameters(d)
    return {"type": kind, "params": params}


def _parameters(d: Distribution) -> tuple[str, JsonObject]:
    match d.kind:
        case "constant":
            return "constant", {"value": int(d.mean)}
        case "uniform":
            return "empirical", {str(value): 1 for value in range(math.ceil(d.low), math.floor(d.high) + 1)}
        case "empirical":
            return "empirical", {str(int(value)): n for value, n in zip(d.values, d.counted, strict=True)}
        case "normal":
            return "gaussian", {"mean": d.mean, "std_dev": d.sd, "min": int(d.low), "max": int(d.high)}
        case _:
            variance = math.log1p((d.sd / d.mean) ** 2)
            of_logarithm = {"mu": math.log(d.mean) - variance / 2.0, "sigma": math.sqrt(variance)}
            return "pareto_lognormal", {"alpha": 1.0, "xm": 1.0, **of_logarithm, "mix_weight": 0.0}
