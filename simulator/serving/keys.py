"""The keys of each mapping of an experiments file, and where a key belongs that is in the wrong mapping."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.common.errors import Section
from simulator.model.config_keys import FREE
from simulator.serving.engine import SETTINGS
from simulator.serving.gpu import GPU_KEYS
from simulator.serving.pools import DECODE, PREFILL

TOP = ("version", "experiments")
POOLS = (PREFILL, DECODE, "transfer")
POOL = ("instances", "engine")
TRANSFER = ("link_gb_per_s", "latency_us")
EXPERIMENT = (
    *("id", "model", "model_config", "hardware", "engine", "replicas", *POOLS, "workload", "observed", "quality"),
)
PROFILE = ("stages", "arrival", "shared_prefix", "prompt_len", "prompt_len_mean", "output_len", "session")
TRACE = ("trace", "window_s", "window_requests")
CLOSED = ("concurrency", "requests")  # of a stage, or of the load if it has one stage
CLIENTS = ("warmup_requests", "think_time_s", "ramp_s")  # of a closed load
WAITING = ("release", "max_in_flight", "measured_from")
WORKLOAD = ("name", "ignore_eos", "timeout_s", *PROFILE, *TRACE, *CLOSED, *CLIENTS, *WAITING)
STAGE = ("rate", "duration_s", *CLOSED, "arrival", "prompt_len", "output_len")
SHARED_PREFIX = ("groups", "prompts_per_group", "system_prompt_len", "question_len")
SESSION = ("turns", "think_time_s")
OBSERVED = ("summary", "stages")
PROMPT_LEN_MEAN = "prompt_len_mean"  # of an observation: carried along like a free key
ITL = "itl_mean_ms"
OBSERVATION = ("e2e_ms", "ttft_ms", ITL, PROMPT_LEN_MEAN, "completed", "failed")

# The forms in which the entry of an experiment has a key, and the keys of each form.
FORMS = {
    "{key}: ...": EXPERIMENT,
    "engine: {{{key}: ...}}": SETTINGS,
    "prefill: {{{key}: ...}}": POOL,
    "transfer: {{{key}: ...}}": TRANSFER,
    "workload: {{{key}: ...}}": WORKLOAD,
    "workload: {{stages: [{{{key}: ...}}]}}": STAGE,
    "workload: {{shared_prefix: {{{key}: ...}}}}": SHARED_PREFIX,
    "workload: {{session: {{{key}: ...}}}}": SESSION,
    "observed: {{{key}: ...}}": OBSERVED,
    "observed: {{summary: {{{key}: ...}}}}": OBSERVATION,
    "hardware: {{{key}: ...}}": tuple(key for key in GPU_KEYS if key not in ("name", "aliases")),
}


def only(section: Section, known: tuple[str, ...], remedies: Mapping[str, str] | None = None) -> None:
    """Raise InputError at a key that is neither known nor free. `remedies`: what to do instead, by key; a key of
    another mapping gets its place there."""
    places = {key: place for key in section.raw if (place := place_of(key))}
    section.only(known, FREE, remedies={**places, **(remedies or {})})


def place_of(key: object) -> str:
    """The remedy that writes a key where it belongs, "" if no mapping of an experiments file has it.

    >>> place_of("max_num_seqs"), place_of("window_s")
    ('write `engine: {max_num_seqs: ...}`', 'write `workload: {window_s: ...}`')
    """
    forms = [f"`{form.format(key=key)}`" for form, keys in FORMS.items() if key in keys]
    if key in EXPERIMENT:
        return f"write {forms[0]} in an entry of `experiments`"
    if key in TOP:
        forms.append(f"`{key}: ...` at the top of the file")
    return f"write {' or '.join(forms)}" if forms else ""
