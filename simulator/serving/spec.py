"""The request of a user: a model on GPUs, the engine's settings, a load, and the measurements of a run.

A `Spec` is made from an entry of an experiments file (`read_spec`), from the few words of a command line (`Spec.of`),
or from another one (`Spec.vary`). Nonsense is an error there; a deployment that no engine can run is an error in
`simulator.serving.experiment.deploy`. Every InputError is one line with file, experiment, key and remedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from numbers import Integral
from typing import Any

import numpy as np

from simulator.common.errors import InputError, Section, shown
from simulator.common.json import JsonObject
from simulator.model.config_keys import FREE
from simulator.model.formats import BF16
from simulator.serving import limits, observations
from simulator.serving.engine import SETTINGS, Engine, Setting, read_setting
from simulator.serving.gpu import Gpu, known_gpu, read_hardware
from simulator.serving.keys import EXPERIMENT, ITL, POOL, POOLS, PROMPT_LEN_MEAN, TRANSFER, only
from simulator.serving.model import Model, ModelTable, known_model, read_model
from simulator.serving.observations import CLEAN, Components, Observed
from simulator.serving.pools import DECODE, PREFILL, Pool, Pools
from simulator.serving.speculation import unfolded
from simulator.serving.workload import Workload, at_rate, at_users, output_lengths, prompt_lengths
from simulator.serving.workload_entry import NO_FILES, Files, check_size, read_workload, workload_entry

DURATION_S = 600.0  # of the steady load of `Spec.of`
REQUESTS, WARMUP = 10, 2  # for each of its clients, as public benchmarks have them
LONGEST_NOTES = 20_000  # characters of x_note: they are printed with results
NOTE = "x_note"
UNMODELLED = "it is not modelled, and docs/concepts.md says which figures are off without it: leave it out"
OTHER_SETTINGS = {
    "replicas": "it is no setting of an engine: write `replicas: ...` in an entry of `experiments`",
    **dict.fromkeys(("enable_lora", "scheduling_policy"), UNMODELLED),
    "cpu_offload_gb": "it keeps weights, not KV blocks, in host memory, and each step reads them over the host's link, "
    "which no program knows: leave it out; KV offload is kv_offloading_size",
    "swap_space": "it is for preempted requests of vLLM's V0 engine, and V1, which is replayed, has none: leave it out",
    "kv_offloading_backend": "vLLM's native one is replayed: leave it out",
    **dict.fromkeys(("tensor_parallel_size", "tp"), "it is called tensor_parallel here"),
    **dict.fromkeys(("data_parallel_size", "dp"), "it is called data_parallel here"),
    **dict.fromkeys(("pipeline_parallel_size", "pp"), "it is called pipeline_parallel here"),
    **dict.fromkeys(
        ("enable_expert_parallel", "ep"),
        "here expert_parallel is the number of GPUs over which experts are spread: tensor_parallel x data_parallel",
    ),
    **dict.fromkeys(("max_cudagraph_capture_size", "cuda_graph_sizes"), "it is called cudagraph_capture_max here"),
    **dict.fromkeys(("fuse_allreduce_rms",), "it is called allreduce_rms_fusion here"),
}
"""vLLM's settings that an engine has no key for, and what to do instead."""

Place = tuple[str | int, ...]  # of a key in an entry: ("observed", "stages", 0, "harness_itl_mean_ms")


@dataclass(frozen=True)
class Spec:
    """A deployment, its load, and what was measured, as the user gives them.

    quality: CLEAN, OVERLOADED, or what else a user calls a run that is not to be fitted. notes: for the reader of
    results. pools: separate ones for prefill and decode, whose engines have the settings of `engine` and their own.
    replicas: of the engine, which take turns at the requests.
    free: keys that are carried along, by their place in the entry. where: how messages name it.

    >>> chat = evolve.Spec.of("llama-3.1-8b", "H100", rate=5, prompt_len=1000, output_len=300)
    >>> evolve.predict("champion", chat)[
    ...     ["experiment", "ttft_mean_ms", "ttft_mean_80_low_ms", "ttft_mean_80_high_ms"]].round(1)
         experiment  ttft_mean_ms  ttft_mean_80_low_ms  ttft_mean_80_high_ms
    0  llama-3.1-8b          45.0                 40.8                  49.7
    """

    id: str
    model: Model
    gpu: Gpu
    engine: Engine
    workload: Workload
    observed: Observed | None = None
    quality: str = CLEAN
    components: Components | None = None
    pools: Pools | None = None
    replicas: int = 1
    notes: tuple[str, ...] = ()
    free: Mapping[Place, Any] = field(default_factory=dict)
    where: str = field(default="", compare=False)

    def __hash__(self) -> int:
        """The hash of the id: models are mappings, which have none."""
        return hash(self.id)

    @classmethod
    def of(
        cls,
        model: str,
        hardware: str,
        rate: float | None = None,
        prompt_len: int = 0,
        output_len: int = 0,
        tp: int | None = None,
        id: str = "",
        *,
        concurrency: int | None = None,
        requests: int | None = None,
        **engine: Setting | None,
    ) -> Spec:
        """A known model on `tp` known GPUs under one steady load: Poisson arrivals at `rate` requests/s, ten minutes.

        Or `concurrency` clients, each of whom waits for its answer before it asks again: `requests` in all, by default
        REQUESTS for each, after a warm-up of WARMUP for each.

        prompt_len, output_len: tokens of every prompt, without shared prefixes, and of every answer. id: by default the
        name of the model. engine: its other settings, as in `vary`. Raises InputError for an unknown name or a value
        out of range.
        """
        where = f"{model} on {hardware}, TP {tp or 1}"
        for name, value in (("prompt_len", prompt_len), ("output_len", output_len)):
            if isinstance(value, bool) or not isinstance(value, Integral):
                problem = f"{name} must be a whole number of tokens, got {shown(value)}"
                raise InputError(f"{where}: {problem}: give one, or write an experiments file for a distribution")
        if (rate is None) == (concurrency is None) or (requests is not None and concurrency is None):
            raise InputError(f"{where}: needs a rate, or concurrency and with it requests: give one of the two")
        load: JsonObject = {"stages": [{"rate": _plain(rate), "duration_s": DURATION_S}]}
        if concurrency is not None:
            given = Section(where, "", {"concurrency": _plain(concurrency)})
            users = given.whole("concurrency", "give a number of clients", least=1, most=limits.MOST_USERS)
            count = REQUESTS * users if requests is None else _plain(requests)
            load = {"concurrency": users, "requests": count, "warmup_requests": WARMUP * users}
        workload = {"name": "plan", **load, "prompt_len": _plain(prompt_len), "output_len": _plain(output_len)}
        return cls.under(model, hardware, workload, tp, id, engine)

    @classmethod
    def under(
        cls,
        model: str,
        hardware: str,
        workload: JsonObject,
        tp: int | None = None,
        id: str = "",
        engine: Mapping[str, Setting | None] | None = None,
        files: Files = NO_FILES,
    ) -> Spec:
        """A known model on `tp` known GPUs under the `workload` of an experiments file, whose files `files` reads.

        Raises InputError for an unknown name, a value out of range, and a load of which no request fits.
        """
        known_model(str(model), f"model {model}")
        known_gpu(str(hardware), f"hardware {hardware}")
        where = f"{model} on {hardware}, TP {tp or 1}"
        own = {"tensor_parallel": tp} if tp is not None else {}
        entry = {
            "id": id or model,
            "model": model,
            "hardware": hardware,
            "engine": {key: _plain(value) for key, value in {**own, **(engine or {})}.items()},
            "workload": workload,
        }
        spec = read_spec(entry, where, files)
        tokens = int(prompt_lengths(spec.workload).min() + output_lengths(spec.workload).min())
        most = spec.model.architecture.longest
        if tokens > most > 0:
            problem = f"the shortest prompt and answer have {tokens:,} tokens, at most {most:,} fit"
            raise InputError(f"{where}: {problem}: give shorter ones")
        return spec

    def vary(
        self,
        *,
        model: str | None = None,
        hardware: str | None = None,
        tp: int | None = None,
        rate: float | None = None,
        concurrency: int | None = None,
        workload: Workload | None = None,
        **engine: Setting | None,
    ) -> Spec:
        """Change model, GPU, TP degree, load or settings of the engine, and drop the measurements.

        rate: requests/s of a load that has one; concurrency: clients of a closed one.

        A setting of None is the default. `total_kv_blocks` is dropped, with a note, where the model, the GPU, the TP
        degree, the ranks, the type of weights or the draft change, and expert parallelism goes on over all GPUs. Raises
        InputError for an unknown name or a value out of range.

        >>> chat = evolve.Spec.of("llama-3.1-8b", "H100", rate=5, prompt_len=1000, output_len=300)
        >>> chat.vary(tp=2, max_num_seqs=64).to_entry()["engine"]
        {'tensor_parallel': 2, 'max_num_seqs': 64}
        """
        where = self.where
        if self.pools and (tp is not None or engine):
            text = "cannot be varied, as prefill and decode have pools of their own: give them in the engine of a pool"
            raise InputError(f"{where}: settings of the engine {text}")
        settings = {**self.engine.to_entry(), **({} if tp is None else {"tensor_parallel": tp}), **engine}
        names = Section(where, "", {key: name for key, name in (("model", model), ("hardware", hardware)) if name})
        to_model = read_model(names) if model else self.model
        to_gpu = read_hardware(names) if hardware else self.gpu
        notes = self.notes
        if self.engine.expert_parallel > 1 and "expert_parallel" not in engine:  # over all GPUs again
            settings["expert_parallel"] = settings.get("tensor_parallel", 1) * (settings.get("data_parallel") or 1)
        here = (
            *(self.model.name, self.gpu.name, self.engine.tensor_parallel, self.engine.data_parallel),
            *(self.engine.quantization or BF16.name, self.engine.speculative_method, self.engine.draft_model),
        )
        there = (
            *(to_model.name, to_gpu.name, settings.get("tensor_parallel", 1), settings.get("data_parallel") or 1),
            *(
                settings.get("quantization") or BF16.name,
                settings.get("speculative_method"),
                settings.get("draft_model"),
            ),
        )
        if self.engine.total_kv_blocks is not None and "total_kv_blocks" not in engine and here != there:
            settings["total_kv_blocks"] = None
            on = f" on {self.gpu.name}" if to_gpu.name != self.gpu.name else ""
            text = f"total_kv_blocks was measured with tp {self.engine.tensor_parallel}{on}"
            notes = (*notes, f"{text}: here it is computed from memory")
        given = {key: _plain(value) for key, value in settings.items() if value is not None}
        load = workload or self.workload
        if rate is not None:
            rates = Section(where, "", {"rate": _plain(rate)})
            if load.closed:
                raise rates.error("rate", "is given, but the load has concurrency", "give concurrency")
            load = at_rate(load, rates.number("rate", "give requests/s", above=0, most=limits.MOST_RATE))
            check_size(Section(where, "workload", {}), load)
        if concurrency is not None:
            users = Section(where, "", {"concurrency": _plain(concurrency)})
            if not load.closed:
                raise users.error("concurrency", "is given, but the load has a rate", "give rate")
            load = at_users(load, users.whole("concurrency", "give clients", least=1, most=limits.MOST_USERS))
            check_size(Section(where, "workload", {}), load)
        return replace(
            self,
            model=to_model,
            gpu=to_gpu,
            engine=engine_of(Section(where, "engine", given)),
            workload=load,
            observed=None,
            quality=CLEAN,
            components=None,
            notes=notes,
            free={place: value for place, value in self.free.items() if place[0] != "observed"},
        )

    def to_entry(self) -> JsonObject:
        """The entry of an experiments file, in the order of those that ship: `read_spec` reads this spec from it.

        Raises InputError for a part of a trace, and for a trace at another rate.
        """
        sources = {str(place[0]): value for place, value in self.free.items() if str(place[0]).startswith("source")}
        entry: JsonObject = {"id": self.id, **sources, "model": self.model.called}
        if self.model.given is not None:
            entry["model_config"] = dict(self.model.given)
        entry |= {"hardware": self.gpu.to_entry(), "engine": self.engine.to_entry()}
        if self.replicas > 1:
            entry["replicas"] = self.replicas
        if self.pools:
            entry |= self.pools.to_entry()
        entry["workload"] = workload_entry(self.workload)
        if self.observed:
            entry |= {"observed": observations.observed_entry(self.observed), "quality": self.quality}
        elif self.quality != CLEAN:
            entry["quality"] = self.quality
        if self.notes:
            entry[NOTE] = list(self.notes)
        if self.components:
            entry |= observations.components_entry(self.components)
        for place, value in self.free.items():
            _put(entry, place, value)
        return entry


def read_spec(
    raw: Mapping[str, Any],
    where: str,
    files: Files = NO_FILES,
    models: ModelTable | None = None,
    workload: Workload | None = None,
) -> Spec:
    """The spec of an entry of an experiments file. Every message begins with `where`, as `my.yaml: experiment 'x'`.

    `files` reads the files that it names; `models` are known by name, by default `known_models`; `workload` is the load
    of an entry without one.
    """
    top = Section(where, "", raw)
    only(top, EXPERIMENT)
    ident, model, gpu = _id(top), read_model(top, models), read_hardware(top)
    engine = Engine()
    if top.has("engine"):
        engine = engine_of(top.section("engine", "give a mapping of engine settings"))
    workload = workload or read_workload(top, files)
    named = isinstance(gpu.to_entry(), str)
    pools = _pools(top) if any(top.has(key) for key in POOLS) else None
    return Spec(
        id=ident,
        model=model,
        gpu=gpu,
        engine=engine,
        workload=workload,
        observed=observations.read_observed(top, workload) if top.has("observed") else None,
        quality=_quality(top) if "quality" in raw else CLEAN,
        components=observations.read_components(top),
        pools=pools,
        replicas=read_replicas(top),
        notes=_notes(top),
        free={place: value for place, value in _free(raw) if not (named and place[0] == "hardware")},
        where=where,
    )


def _pools(top: Section) -> Pools:
    """The pools for prefill and decode: an engine has the settings of `engine` that it does not give itself."""
    prefill, decode = (_pool(top, key) if top.has(key) else None for key in (PREFILL, DECODE))
    if not (prefill or decode):
        raise top.error("transfer", "is given without pools", "give prefill and decode, or leave it out")
    moved = top.section("transfer", "give link_gb_per_s or latency_us") if top.has("transfer") else Section("", "", {})
    only(moved, TRANSFER)
    link, latency_us = None, 0.0
    if moved.has("link_gb_per_s"):
        least, most = limits.GPU["link_gb_per_s"]
        link = moved.number("link_gb_per_s", "give the link's GB/s in one direction", least=least, most=most)
    if moved.has("latency_us"):
        latency_us = moved.number("latency_us", "give microseconds", least=0, most=1e6 * limits.MOST_SECONDS)
    return Pools(prefill, decode, link, latency_us)


def _pool(top: Section, key: str) -> Pool:
    pool = top.section(key, "give instances and engine")
    only(pool, POOL)
    own = pool.section("engine", "give a mapping of engine settings").raw if pool.has("engine") else {}
    count = pool.whole("instances", "give a number of instances", least=1, most=limits.MOST_GPUS)
    return Pool(count, engine_of(Section(top.where, pool.at("engine"), {**(top.raw.get("engine") or {}), **own})))


def read_replicas(top: Section) -> int:
    """The key `replicas`."""
    if not top.has("replicas"):
        return 1
    return top.whole("replicas", "give a number of replicas", least=1, most=limits.MOST_GPUS)


def _id(top: Section) -> str:
    """The id. It has no comma, because the command line separates ids by commas."""
    ident = top.name("id")
    if "," in ident:
        raise top.error("id", f"must not contain a comma, got {shown(ident)}", "rename it: `--id A,B` names two ids")
    return ident


def _quality(top: Section) -> str:
    """A word for how the run went. Raises InputError for one that is nearly `clean`, which would not be fitted."""
    quality = top.name("quality")
    if quality != CLEAN and get_close_matches(quality.lower(), [CLEAN], 1, 0.7):
        raise top.error("quality", f"is {shown(quality)}, which is not fitted", f"did you mean {CLEAN!r}?")
    return quality


def _notes(top: Section) -> tuple[str, ...]:
    given = top.raw.get(NOTE, [])
    notes = given if isinstance(given, list) else [given]
    if not all(isinstance(note, str) for note in notes):
        raise top.error(NOTE, f"must be text or a list of texts, got {shown(given)}", "write it as text")
    if sum(map(len, notes)) > LONGEST_NOTES:
        raise top.error(NOTE, f"has more than {LONGEST_NOTES:,} characters", "shorten it")
    return tuple(" ".join(note.split()) for note in notes)


def engine_of(e: Section) -> Engine:
    """The engine with the settings in a mapping. Raises InputError for an unknown key or a value of the wrong type."""
    e = unfolded(e)
    only(e, SETTINGS, OTHER_SETTINGS)
    given = {key: value for key in SETTINGS if (value := read_setting(e, key)) is not None}
    return Engine(**given, given=frozenset(given))  # type: ignore[arg-type]


def _free(value: object, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """The free keys of an entry that nothing else reads, with their places; those of model_config belong to it."""
    items: Mapping[Any, Any] = dict(enumerate(value)) if isinstance(value, list) else {}
    for key, item in (value if isinstance(value, Mapping) else items).items():
        if _is_free(key, place):
            yield (*place, key), item
        elif (*place, key) != ("model_config",):
            yield from _free(item, (*place, key))


def _is_free(key: object, place: Place) -> bool:
    observation = place[:1] == ("observed",) and len(place) > 1
    if observation and key == PROMPT_LEN_MEAN:
        return True
    read = ("completed", "failed") if observation else (NOTE, observations.COMPONENTS, observations.COMPONENT_REQUESTS)
    return isinstance(key, str) and key.startswith(FREE) and key not in read


def _put(entry: JsonObject, place: Place, value: object) -> None:
    """Put the value of a free key into an entry; the mean ITL stays the last of an observation."""
    node: Any = entry
    for step in place[:-1]:
        node = node.setdefault(step, {}) if isinstance(node, dict) else node[step]
    node[place[-1]] = value
    if ITL in node:
        node[ITL] = node.pop(ITL)


def _plain(value: Any) -> Any:
    """A number of numpy's as one of Python's, which files have."""
    return value.item() if isinstance(value, np.generic) else value
