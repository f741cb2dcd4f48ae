"""Which keys each mapping of an experiments file has, and where one belongs that is in another mapping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from simulator.common.errors import Section
from simulator.serving.experiment import Engine
from simulator.serving.hardware import OWN

FREE = ("source", "published", "reported", "harness", "x_", "completed", "failed")  # how free keys begin
TOP = ("version", "experiments")
EXPERIMENT = ("id", "model", "model_config", "hardware", "engine", "workload", "observed", "quality")
ENGINE = tuple(f.name for f in fields(Engine))
COMMON = ("name", "ignore_eos", "timeout_s")
PROFILE = ("stages", "arrival", "shared_prefix", "prompt_len", "prompt_len_mean", "output_len", "session")
TRACE = ("trace", "window_s", "window_requests")
WORKLOAD = (*COMMON, *PROFILE, *TRACE)
STAGE = ("rate", "duration_s", "arrival", "prompt_len", "output_len")
SHARED_PREFIX = ("groups", "prompts_per_group", "system_prompt_len", "question_len")
SESSION = ("turns", "think_time_s")
OBSERVED = ("summary", "stages")
OBSERVATION = ("e2e_ms", "ttft_ms", "itl_mean_ms", "prompt_len_mean", "completed", "failed")

# How a key is written in the entry of an experiment, and the keys that are written so.
FORMS = {
    "{key}: ...": EXPERIMENT,
    "engine: {{{key}: ...}}": ENGINE,
    "workload: {{{key}: ...}}": WORKLOAD,
    "workload: {{stages: [{{{key}: ...}}]}}": STAGE,
    "workload: {{shared_prefix: {{{key}: ...}}}}": SHARED_PREFIX,
    "workload: {{session: {{{key}: ...}}}}": SESSION,
    "observed: {{{key}: ...}}": OBSERVED,
    "observed: {{summary: {{{key}: ...}}}}": OBSERVATION,
    "hardware: {{{key}: ...}}": tuple(key for key in OWN if key not in ("name", "aliases")),
}


def only(section: Section, known: tuple[str, ...], remedies: Mapping[str, str] | None = None) -> None:
    """Raise InputError at a key that is neither known nor one of the free ones. `remedies`: as of `Section.only`; a
    key of another mapping gets its place there."""
    places = {key: place for key in section.raw if (place := place_of(key))}
    section.only(known, FREE, remedies={**places, **(remedies or {})})


def place_of(key: object) -> str:
    """How to write a key where it belongs, "" if no mapping of an experiments file has it.

    >>> place_of("max_num_seqs"), place_of("window_s")
    ('write `engine: {max_num_seqs: ...}`', 'write `workload: {window_s: ...}`')
    """
    forms = [f"`{form.format(key=key)}`" for form, keys in FORMS.items() if key in keys]
    if key in EXPERIMENT:
        return f"write {forms[0]} in an entry of `experiments`"
    if key in TOP:
        forms.append(f"`{key}: ...` at the top of the file")
    return f"write {' or '.join(forms)}" if forms else ""
