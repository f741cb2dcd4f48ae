"""Ingest of files that are cut, mixed, doubled, of wrong types or built to hurt: what can be read is read, what cannot
is counted in the quality report, or refused in one line; no traceback, no warning, no work lost that is done."""

import copy
import errno
import io
import json
import os
import random
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from console import EVOLVE, TIMEOUT_S, kill, wait_for
from trace_engine import simulate
from trace_files import write
from trace_records import MODEL, Truth
from worker_pids import worker_pids

from evolve.cli import run_command
from evolve.ingest.batch import ingest
from evolve.ingest.derive import batches, journeys, steps
from evolve.ingest.options import Given
from evolve.ingest.read import clients, files, kv_events, otlp, traces
from evolve.ingest.read.sources import find
from evolve.ingest.write.tables import Writer
from evolve.output import files as written_files
from evolve.processes import WorkStopped
from evolve.search.pool import pool

pytestmark = pytest.mark.filterwarnings("error")

NAME = "20260101-000000-tiny-llama-tp1-general"
GPU = "H100-SXM-80GB"
TRACES, KV, ROWS = "traces.json", "kv_events.jsonl", "results/per_request_lifecycle_metrics.json"
REQUESTS = 10
Report = dict[str, Any]


def write_run(truth: Truth, path: Path) -> None:
    """A run of a model that the model table has."""
    write(truth, path)
    for file in ("exp-config.yaml", "profile.yaml", "results/config.yaml"):
        (path / file).write_text((path / file).read_text().replace(MODEL, "meta-llama/Llama-2-7b-hf"))


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound folder, with preemptions."""
    path = tmp_path_factory.mktemp("clean") / NAME
    write_run(simulate(seed=9, requests=REQUESTS, rates=(200.0,), blocks=40), path)
    return path


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another run."""
    path = tmp_path_factory.mktemp("other") / NAME
    write_run(simulate(seed=10, requests=REQUESTS, rates=(200.0,), blocks=40), path)
    return path


@pytest.fixture(scope="module")
def sound(clean: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, dict[str, Any]]:
    """Report and tables of the sound folder."""
    out = tmp_path_factory.mktemp("sound")
    return made(clean, out), tables(out / NAME)


def made(folder: Path, out: Path, **options: Any) -> Report:
    given = Given(GPU, options)
    (run,) = ingest(find([folder])[0], out, given, 1, lambda run, count: None, lambda run: None)
    return run.to_json()


def spoiled(clean: Path, tmp_path: Path, **files: bytes) -> Path:
    """The sound folder with other bytes in the files traces, kv and rows; those of an earlier call are gone."""
    shutil.rmtree(tmp_path / NAME, ignore_errors=True)
    path = Path(shutil.copytree(clean, tmp_path / NAME))
    for key, data in files.items():
        (path / {"traces": TRACES, "kv": KV, "rows": ROWS}[key]).write_bytes(data)
    return path


def read(clean: Path, tmp_path: Path, **files: bytes) -> Report:
    return made(spoiled(clean, tmp_path, **files), tmp_path / "out")


def counts(report: Report, source: str) -> Counter[str]:
    found = [(f["text"], f["count"]) for f in report["findings"] if f["source"] == source]
    assert len(found) == len(dict(found)), "one finding for each kind"
    return Counter(dict(found))


def tables(home: Path) -> dict[str, Any]:
    return {path.stem: pq.read_table(path).to_pydict() for path in sorted(home.glob("*.parquet"))}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def lines(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


def changed(data: bytes, scope: str, many: int, change: Callable[[dict[str, Any]], Any]) -> bytes:
    """The trace file with the first `many` spans of a scope changed in place."""
    parsed = [json.loads(line) for line in lines(data)]
    left = many
    for line in parsed:
        for resource in line["resourceSpans"]:
            for scoped in resource["scopeSpans"]:
                for span in scoped["spans"] if scoped["scope"]["name"] == scope else ():
                    if left:
                        change(span)
                        left -= 1
    assert not left
    return b"".join(json.dumps(line).encode() + b"\n" for line in parsed)


def spans(data: bytes, scope: str) -> Iterator[dict[str, Any]]:
    for line in lines(data):
        for resource in json.loads(line)["resourceSpans"]:
            for scoped in resource["scopeSpans"]:
                if scoped["scope"]["name"] == scope:
                    yield from scoped["spans"]


def put(key: str, value: Any, event: int | None = None) -> Callable[[dict[str, Any]], Any]:
    """Sets an attribute's value, of the span or of one of its events."""

    def change(span: dict[str, Any]) -> None:
        holder = span if event is None else span["events"][event]
        (pair,) = [p for p in holder["attributes"] if p["key"] == key]
        pair["value"] = value

    return change


def edit(key: str, value: Any, event: int | None = None) -> Callable[[dict[str, Any]], Any]:
    """Sets a key of the span, or of one of its events."""
    return lambda span: (span if event is None else span["events"][event]).__setitem__(key, value)


CORE, API, STEP = "vllm.scheduler", "vllm.api", "vllm.scheduler.step"


# ---- traces.json


def test_the_sound_folder_is_sound(sound: tuple[Report, dict[str, Any]]) -> None:
    report, found = sound
    assert not counts(report, TRACES) and not counts(report, ROWS)
    assert report["requests"]["usable_journeys"] == report["requests"]["matched_with_client"] == REQUESTS
    assert report["requests"]["preemptions"] > 0 and report["cycles"]["usable"] > 0
    assert report["batches"]["summaries_reproduced"] == report["batches"]["summaries"]
    assert set(found) == {"requests", "steps", "journeys", "cycles", "kv_events"}


@pytest.mark.slow
def test_traces_cut_anywhere(clean: Path, tmp_path: Path) -> None:
    data = (clean / TRACES).read_bytes()
    for at in range(1, len(data), len(data) // 30):
        report = read(clean, tmp_path, traces=data[:at])
        whole = b"".join(line for line in lines(data[:at]) if line.endswith(b"\n"))
        assert counts(report, TRACES)[files.CUT_OFF] == (len(whole) < at), at
        left = sum(1 for _ in spans(whole, CORE))
        assert report["requests"].get("journeys", 0) == left
        if left < REQUESTS:
            assert any("journey" in text or "contains no span" in text for text in counts(report, TRACES)), at
        assert report["requests"]["client_rows"] == REQUESTS


def test_the_order_of_lines_is_of_no_account(clean: Path, tmp_path: Path, sound: tuple[Report, dict[str, Any]]) -> None:
    shuffled = lines((clean / TRACES).read_bytes())
    random.Random(1).shuffle(shuffled)
    report = read(clean, tmp_path, traces=b"".join(shuffled))
    assert report["findings"] == sound[0]["findings"]
    found = tables(tmp_path / "out" / NAME)
    by_row = {key: sorted(map(repr, zip(*t["journeys"].values(), strict=True))) for key, t in
              (("clean", sound[1]), ("shuffled", found))}  # fmt: skip
    assert by_row["clean"] == by_row["shuffled"]
    assert {k: v for k, v in found.items() if k != "journeys"} == {k: v for k, v in sound[1].items() if k != "journeys"}


def test_every_line_twice_changes_counts_alone(
    clean: Path, tmp_path: Path, sound: tuple[Report, dict[str, Any]]
) -> None:
    data = (clean / TRACES).read_bytes()
    report = read(clean, tmp_path, traces=b"".join(line * 2 for line in lines(data)))
    assert counts(report, TRACES) == {traces.TWICE: sum(1 for s in (CORE, API, STEP) for _ in spans(data, s))}
    assert tables(tmp_path / "out" / NAME) == sound[1]


def test_repeats_are_known_without_span_ids(clean: Path, tmp_path: Path, sound: tuple[Report, dict[str, Any]]) -> None:
    data = (clean / TRACES).read_bytes()
    many = {scope: sum(1 for _ in spans(data, scope)) for scope in (CORE, API, STEP)}
    for scope in many:
        data = changed(data, scope, many[scope], lambda span: span.pop("spanId"))
    report = read(clean, tmp_path, traces=data * 2)
    said = counts(report, TRACES)
    assert said[traces.NO_ID] == 2 * sum(many.values())
    assert said[traces.ONCE_MORE] == 2 * REQUESTS
    assert said[steps.REPEATED] == report["sampling"]["sampled_steps"] == sound[0]["sampling"]["sampled_steps"]
    assert tables(tmp_path / "out" / NAME) == sound[1]


@pytest.mark.parametrize("summaries", [True, False])
def test_two_runs_in_one_file_give_no_figures_by_step(
    clean: Path, other: Path, tmp_path: Path, summaries: bool
) -> None:
    both = [lines((path / TRACES).read_bytes()) for path in (clean, other)]
    mixed = b"".join(a + b for a, b in zip(*both, strict=False)) + b"".join(
        [*both[0][len(both[1]) :], *both[1][len(both[0]) :]]
    )
    if not summaries:
        many = sum(1 for _ in spans(mixed, STEP))
        mixed = changed(mixed, STEP, many, lambda span: span["events"].clear())
    report = read(clean, tmp_path, traces=mixed)
    said = counts(report, TRACES)
    assert said[steps.MIXED] == 1 and said[steps.BACKWARDS] > steps.FEW
    assert (said[steps.CONFLICTING] > 0) == summaries
    assert report["batches"] is None and report["cycles"] is None
    assert report["requests"]["journeys"] == 2 * REQUESTS
    assert set(tables(tmp_path / "out" / NAME)) == {"requests", "journeys", "kv_events"}


@pytest.mark.parametrize(
    ("data", "said", "count"),
    [
        (b"", "contains no span of this server: nothing is taken from it", 1),
        (b"\n \n\t\n" * 99, "contains no span of this server: nothing is taken from it", 1),
        (b"[1, 2, 3]\n", otlp.MALFORMED, 1),
        (b"null\n12\n\"x\"\n", otlp.MALFORMED, 3),
        (b"{}\n" * 4, otlp.MALFORMED, 4),
        (b"[" * 10_000 + b"]" * 10_000 + b"\n", files.MALFORMED, 1),
        (b'{"resourceSpans":' * 10_000, files.CUT_OFF, 1),
        (b'{"resourceSpans": ' + b"9" * 100_000 + b"}\n", files.MALFORMED, 1),
        (b"\xff\xfe" + '{"resourceSpans": []}\n'.encode("utf-16-le"), files.MALFORMED, 1),
        (b'{"resourceSpans": null}\n{"resourceSpans": {}}\n{"resourceSpans": [1, null]}\n', otlp.MALFORMED, 4),
        (b'{"resourceSpans": [{"scopeSpans": [{}, {"spans": 1}, {"spans": [{}, 3]}]}]}\n', otlp.MALFORMED, 4),
    ],
)  # fmt: skip
def test_files_that_hold_no_trace(clean: Path, tmp_path: Path, data: bytes, said: str, count: int) -> None:
    report = read(clean, tmp_path, traces=data)
    assert counts(report, TRACES)[said] == count
    assert counts(report, TRACES)["contains no span of this server: nothing is taken from it"] == 1
    assert report["requests"]["client_rows"] == REQUESTS and "journeys" not in report["requests"]


def test_traces_that_are_laid_out_or_an_array(clean: Path, tmp_path: Path) -> None:
    values = [json.loads(line) for line in lines((clean / TRACES).read_bytes())]
    report = read(clean, tmp_path, traces=json.dumps(values).encode())
    assert counts(report, TRACES)[otlp.MALFORMED] == 1
    text = "".join(json.dumps(value, indent=1) + "\n" for value in values)
    report = read(clean, tmp_path, traces=text.encode())
    said = counts(report, TRACES)
    assert said["contains no span of this server: nothing is taken from it"] == 1
    assert said[files.MALFORMED] + said[files.CUT_OFF] + said[otlp.MALFORMED] == text.count("\n")


@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_line_too_long_costs_itself_alone(clean: Path, tmp_path: Path, end: bytes) -> None:
    data = (clean / TRACES).read_bytes()
    report = read(clean, tmp_path, traces=data + b'{"a": "' + b"x" * (40 << 20) + b'"}' + end)
    assert counts(report, TRACES) == {files.TOO_LONG: 1}
    assert report["requests"]["usable_journeys"] == REQUESTS


def test_a_mark_of_utf_8_costs_nothing(clean: Path, tmp_path: Path, sound: tuple[Report, dict[str, Any]]) -> None:
    mark = b"\xef\xbb\xbf"
    files = {key: mark + (clean / name).read_bytes() for key, name in (("traces", TRACES), ("kv", KV), ("rows", ROWS))}
    assert read(clean, tmp_path, **files)["findings"] == sound[0]["findings"]
    assert tables(tmp_path / "out" / NAME) == sound[1]


NO_TIME = ("ts.monotonic_ns", "ts.monotonic")


def without_time(span: dict[str, Any]) -> None:
    for key in NO_TIME:
        put(key, {"intValue": "0"}, 0)(span)


def wrong_place(span: dict[str, Any]) -> None:
    put("scheduler.step", {"intValue": str(10**15)}, 1)(span)


def renamed(name: str) -> Callable[[dict[str, Any]], Any]:
    return put("gen_ai.request.id", {"stringValue": name})


SPOILED: dict[str, tuple[str, Callable[[dict[str, Any]], Any], dict[str, int]]] = {
    "attributes no list": (CORE, edit("attributes", "x"), {otlp.MALFORMED: 3, traces.NO_REQUEST: 3}),
    "attributes null": (CORE, edit("attributes", None), {traces.NO_REQUEST: 3}),
    "an attribute no mapping": (CORE, lambda s: s["attributes"].append(7), {otlp.BAD_VALUE: 3}),
    "a key that is a list": (CORE, lambda s: s["attributes"].append({"key": [], "value": {"intValue": "1"}}),
                             {otlp.BAD_VALUE: 3}),
    "an unknown kind": (CORE, lambda s: s["attributes"].append({"key": "k", "value": {"arrayValue": {}}}),
                        {otlp.UNKNOWN_KIND: 3}),
    "id a number": (CORE, put("gen_ai.request.id", {"intValue": "1"}), {traces.NO_REQUEST: 3}),
    "id a list": (CORE, put("gen_ai.request.id", {"stringValue": []}), {otlp.BAD_VALUE: 3, traces.NO_REQUEST: 3}),
    "id empty": (CORE, put("gen_ai.request.id", {"stringValue": ""}), {traces.NO_REQUEST: 3}),
    "one id for three": (CORE, renamed("cmpl-same-0-x"), {traces.ONCE_MORE: 2}),
    "one id for three APIs": (API, renamed("cmpl-same"), {traces.ONCE_MORE: 2}),
    "events null": (CORE, edit("events", None), {}),
    "events a text": (CORE, edit("events", "x"), {otlp.MALFORMED: 3}),
    "events an empty mapping": (CORE, edit("events", {}), {otlp.MALFORMED: 3}),
    "an event without a name": (CORE, edit("name", None, 1), {otlp.MALFORMED: 3}),
    "an event of another name": (CORE, edit("name", "journey.LOST", 1), {traces.UNKNOWN_EVENT: 3}),
    "an epoch of the wrong type": (CORE, edit("timeUnixNano", [], 1), {otlp.BAD_VALUE: 3}),
    "a step beyond all": (CORE, wrong_place, {traces.OUT_OF_RANGE: 3, traces.NO_PLACE: 3}),
    "a negative step": (CORE, put("scheduler.step", {"intValue": "-1"}, 1),
                        {traces.OUT_OF_RANGE: 3, traces.NO_PLACE: 3}),
    "a step that is text": (CORE, put("scheduler.step", {"stringValue": "12"}, 1),
                            {traces.OUT_OF_RANGE: 3, traces.NO_PLACE: 3}),
    "no time": (CORE, without_time, {traces.NO_PLACE: 3}),
    "beyond 64 bits": (CORE, put("prefill.total_tokens", {"intValue": str(2**64)}, 1), {otlp.BAD_VALUE: 3}),
    "a billion billion": (CORE, put("decode.done_tokens", {"intValue": 10**18}, 1), {traces.OUT_OF_RANGE: 3}),
    "true": (CORE, put("decode.done_tokens", {"intValue": True}, 1), {otlp.BAD_VALUE: 3}),
    "a list": (CORE, put("decode.done_tokens", {"intValue": ["1"]}, 1), {otlp.BAD_VALUE: 3}),
    "a mapping": (CORE, put("decode.done_tokens", {"intValue": {"x": 1}}, 1), {otlp.BAD_VALUE: 3}),
    "two values": (CORE, put("decode.done_tokens", {"intValue": "1", "boolValue": True}, 1), {otlp.BAD_VALUE: 3}),
    "no value": (CORE, put("decode.done_tokens", {}, 1), {otlp.BAD_VALUE: 3}),
    "a status unheard of": (CORE, put("finish.status", {"stringValue": "exploded"}, -1), {traces.UNKNOWN_NAME: 3}),
    "no span id": (CORE, lambda s: s.pop("spanId"), {traces.NO_ID: 3}),
    "a name unheard of": (CORE, edit("name", "llm_cor"), {traces.FOREIGN: 3}),
    "no name": (CORE, edit("name", None), {otlp.MALFORMED: 3}),
    "arrival not a number": (API, put("event.ts.monotonic", {"doubleValue": "NaN"}, 0), {traces.NO_PLACE: 3}),
    "arrival without end": (API, put("event.ts.monotonic", {"doubleValue": float("inf")}, 0), {traces.NO_PLACE: 3}),
    "arrival before the clock": (API, put("event.ts.monotonic", {"doubleValue": -5.0}, 0), {traces.NO_PLACE: 3}),
    "departure unheard of": (API, edit("name", "api.GONE", 1), {traces.UNKNOWN_EVENT: 3}),
    "a summary without step": (STEP, put("step.id", {"stringValue": "1"}, 0),
                               {traces.OUT_OF_RANGE: 3, traces.NO_PLACE: 3}),
    "a usage of two": (STEP, put("kv.usage_gpu_ratio", {"doubleValue": 2.0}, 0), {traces.OUT_OF_RANGE: 3}),
    "a start of 0": (STEP, put("step.ts_start_ns", {"intValue": "0"}, 0), {traces.OUT_OF_RANGE: 3}),
    "blocks beyond all": (STEP, put("kv.blocks_total_gpu", {"intValue": str(2**31)}, 0), {traces.OUT_OF_RANGE: 3}),
}  # fmt: skip


@pytest.mark.parametrize("case", SPOILED)
def test_three_spoiled_spans_are_three_in_the_report(
    clean: Path, tmp_path: Path, sound: tuple[Report, dict[str, Any]], case: str
) -> None:
    scope, change, expected = SPOILED[case]
    data = (clean / TRACES).read_bytes()
    report = read(clean, tmp_path, traces=changed(data, scope, 3, change))
    said = counts(report, TRACES)
    of_readers = {getattr(m, n) for m in (traces, otlp, files) for n in dir(m) if isinstance(getattr(m, n), str)}
    assert {text: n for text, n in said.items() if text in of_readers} == expected
    whole = report["requests"]["usable_journeys"]
    assert whole >= REQUESTS - 3
    if whole < REQUESTS:
        assert said
    assert report["requests"]["client_rows"] == REQUESTS


@pytest.mark.parametrize("event", ["QUEUED", "SCHEDULED", "FIRST_TOKEN", "PREEMPTED", "FINISHED"])
def test_a_journey_without_one_of_its_events_is_said(clean: Path, tmp_path: Path, event: str) -> None:
    data = (clean / TRACES).read_bytes()
    lost = 0

    def drop(span: dict[str, Any]) -> None:
        nonlocal lost
        kept = [e for e in span["events"] if e["name"] != f"journey.{event}"]
        lost += len(kept) < len(span["events"])
        span["events"] = kept

    report = read(clean, tmp_path, traces=changed(data, CORE, REQUESTS, drop))
    said = counts(report, TRACES)
    assert lost > 0
    if event == "PREEMPTED":
        assert said[journeys.NO_PREEMPTION] > 0
    else:
        lacking = [n for text, n in said.items() if text.startswith("journeys that lack one of")]
        assert lacking == [lost] == [REQUESTS] and report["requests"]["usable_journeys"] == 0


def swapped(span: dict[str, Any]) -> None:
    """FINISHED at the time of QUEUED, and the other way round; the steps stay."""
    first, last = span["events"][0]["attributes"], span["events"][-1]["attributes"]
    for key in NO_TIME:
        (a,), (b,) = ([p for p in holder if p["key"] == key] for holder in (first, last))
        a["value"], b["value"] = b["value"], a["value"]


def test_times_that_run_backwards_are_no_durations(clean: Path, tmp_path: Path) -> None:
    data = changed((clean / TRACES).read_bytes(), CORE, 3, swapped)
    report = read(clean, tmp_path, traces=data)
    assert counts(report, TRACES)[journeys.OUT_OF_ORDER] == 3
    assert report["requests"]["usable_journeys"] == REQUESTS - 3
    found = tables(tmp_path / "out" / NAME)["requests"]
    assert sum(found["usable"]) == REQUESTS - 3
    assert all(us > 0 for us, fine in zip(found["server_e2e_us"], found["usable"], strict=True) if fine)


def test_events_of_a_span_in_any_order(clean: Path, tmp_path: Path, sound: tuple[Report, dict[str, Any]]) -> None:
    data = changed((clean / TRACES).read_bytes(), CORE, REQUESTS, lambda span: span["events"].reverse())
    assert read(clean, tmp_path, traces=data)["findings"] == sound[0]["findings"]
    found = tables(tmp_path / "out" / NAME)
    assert all(found[table] == sound[1][table] for table in ("requests", "steps", "cycles"))


def test_halves_of_characters_and_nulls_in_ids(clean: Path, tmp_path: Path) -> None:
    data = (clean / TRACES).read_bytes()
    strange = changed(data, CORE, 1, renamed("cmpl-\ud800\x00-0-x"))
    report = read(clean, tmp_path, traces=strange)
    assert counts(report, TRACES)[files.HALVES] == 1
    assert "cmpl-?\x00-0-x" in tables(tmp_path / "out" / NAME)["requests"]["request_id"]
    broken = data.replace(b"cmpl-", b"cm\xff\xfe-", 3)
    said = counts(read(clean, tmp_path, traces=broken), TRACES)
    assert said[files.NOT_UTF8] == sum(b"\xff" in line for line in lines(broken)) > 0


def test_a_request_of_ten_thousand_preemptions(clean: Path, tmp_path: Path) -> None:
    def preempted(span: dict[str, Any]) -> None:
        first = span["events"][1]
        more = []
        for k in range(20_000):
            event = first | {"attributes": [dict(pair) for pair in first["attributes"]]}
            event["name"] = "journey.PREEMPTED" if k % 2 == 0 else "journey.SCHEDULED"
            values = {"scheduler.step": 1000 + k, "num_preemptions": k // 2 + 1, "schedule.kind": "RESUME"}
            for pair in event["attributes"]:
                if pair["key"] in ("ts.monotonic_ns", "ts.monotonic"):
                    (kind,) = pair["value"]
                    unit = 10**6 if kind == "intValue" else 1e-3
                    pair["value"] = {kind: (int if kind == "intValue" else float)(pair["value"][kind]) + k * unit}
                elif pair["key"] in values:
                    value = values[pair["key"]]
                    pair["value"] = {"stringValue" if isinstance(value, str) else "intValue": value}
            more.append(event)
        span["events"][2:2] = more

    report = read(clean, tmp_path, traces=changed((clean / TRACES).read_bytes(), CORE, 1, preempted))
    assert report["requests"]["preemptions"] >= 10_000
    assert counts(report, TRACES)[journeys.OUT_OF_ORDER] == 1, "they come after FINISHED"
    assert report["requests"]["usable_journeys"] == REQUESTS - 1


def stretched(steps: int, tokens: int) -> Callable[[dict[str, Any]], Any]:
    """The answer lasts so many steps, and has so many tokens."""

    def change(span: dict[str, Any]) -> None:
        for key, value in (("scheduler.step", steps), ("decode.done_tokens", tokens)):
            put(key, {"intValue": str(value)}, -1)(span)

    return change


@pytest.mark.parametrize(("steps", "tokens"), [(10**9, 24), (10**9, 10**9), (2**31 - 1, 2**31 - 1), (10**8, 10**7)])
def test_an_interval_of_a_billion_steps_is_left_out(clean: Path, tmp_path: Path, steps: int, tokens: int) -> None:
    data = changed((clean / TRACES).read_bytes(), CORE, 2, stretched(steps, tokens))
    report = read(clean, tmp_path, traces=data)
    assert counts(report, TRACES)[journeys.UNSOUND] == 2
    assert report["batches"]["steps"] < 1000


def test_prompts_and_prefills_beyond_all_are_left_out(clean: Path, tmp_path: Path) -> None:
    def huge(span: dict[str, Any]) -> None:
        for event in range(len(span["events"])):
            put("prefill.total_tokens", {"intValue": str(2**31 - 1)}, event)(span)

    report = read(clean, tmp_path, traces=changed((clean / TRACES).read_bytes(), CORE, 2, huge))
    assert counts(report, TRACES)[journeys.UNSOUND] == 2

    def slow(span: dict[str, Any]) -> None:
        for event, e in enumerate(span["events"]):
            put("prefill.total_tokens", {"intValue": str(10**7 - 100)}, event)(span)
            if e["name"] in ("journey.FIRST_TOKEN", "journey.FINISHED"):
                put("scheduler.step", {"intValue": str(10**6 - 10)}, event)(span)

    report = read(clean, tmp_path, traces=changed((clean / TRACES).read_bytes(), CORE, 2, slow))
    assert counts(report, TRACES)[journeys.UNSOUND] == 2


def test_steps_of_all_requests_together_have_a_limit(
    clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sound: tuple[Report, dict[str, Any]]
) -> None:
    intervals = sound[1]["requests"]["intervals"]
    lengths = sorted(sum(i["end_step"] - i["start_step"] + 1 for i in life) for life in intervals)
    monkeypatch.setattr(batches, "MOST_STEPS_IN_ALL", sum(lengths) - 1)
    report = read(clean, tmp_path)
    assert counts(report, TRACES)[journeys.TOO_MANY] == 1


def test_block_counts_cannot_exhaust_memory(clean: Path, tmp_path: Path) -> None:
    data = (clean / TRACES).read_bytes()
    many = sum(1 for _ in spans(data, STEP))

    def enormous(span: dict[str, Any]) -> None:
        for event, e in enumerate(span["events"]):
            if e["name"] == "step.BATCH_SUMMARY":
                put("kv.blocks_total_gpu", {"intValue": str(2**31 - 1)}, event)(span)

    report = read(clean, tmp_path, traces=changed(data, STEP, many, enormous))
    assert report["kv"]["gpu_blocks_from_trace"] == 2**31 - 1
    assert report["kv"]["gpu_blocks_from_log"] == 40


def test_summaries_without_their_durations(clean: Path, tmp_path: Path) -> None:
    data = (clean / TRACES).read_bytes().replace(b'"step.duration_us"', b'"step.other"')
    report = read(clean, tmp_path, traces=data)
    assert report["cycles"]["usable"] > 0 and report["cycles"]["mean_duration_us"] is None


def test_snapshots_of_requests_that_are_not_there(
    clean: Path, tmp_path: Path, sound: tuple[Report, dict[str, Any]]
) -> None:
    def stranger(span: dict[str, Any]) -> None:
        for event, e in enumerate(span["events"]):
            if e["name"] == "step.REQUEST_SNAPSHOT":
                put("request.id", {"stringValue": "cmpl-nobody-0-1"}, event)(span)

    data = (clean / TRACES).read_bytes()
    report = read(clean, tmp_path, traces=changed(data, STEP, sum(1 for _ in spans(data, STEP)), stranger))
    assert report["requests"]["matched_with_client"] == REQUESTS
    assert "snapshot" not in report["batches"]["admissions_by_evidence"]
    assert sound[0]["batches"]["admissions_by_evidence"]["snapshot"] > 0


def test_a_line_of_two_hundred_thousand_tiny_spans(clean: Path, tmp_path: Path) -> None:
    span = b'{"name":"llm_core"},'
    line = b'{"resourceSpans":[{"scopeSpans":[{"scope":{"name":"vllm.scheduler"},"spans":[' + span * 200_000
    report = read(clean, tmp_path, traces=(clean / TRACES).read_bytes() + line[:-1] + b"]}]}]}\n")
    assert counts(report, TRACES)[traces.NO_REQUEST] == 200_000
    assert report["requests"]["usable_journeys"] == REQUESTS


def test_a_hundred_thousand_kinds_of_attributes(clean: Path, tmp_path: Path) -> None:
    more = [{"key": "k", "value": {f"kind{i}": 1}} for i in range(10**5)]
    data = changed((clean / TRACES).read_bytes(), CORE, 1, lambda span: span["attributes"].extend(more))
    report = read(clean, tmp_path, traces=data)
    assert counts(report, TRACES) == {otlp.UNKNOWN_KIND: 10**5}


WRONG = [None, True, -1, 2**31, 2**64, 10**15, 1.5, float("nan"), float("inf"), "", "x", "9" * 30, [], [[]], {},
         {"a": 1}]  # fmt: skip


def leaves(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from leaves(value, (*path, key))
    if path:
        yield path


def placed(node: Any, path: tuple[Any, ...], value: Any) -> Any:
    node = copy.deepcopy(node)
    at = node
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return node


@pytest.mark.slow
def test_any_value_wrong_is_said_or_changes_nothing(clean: Path, tmp_path: Path) -> None:
    data = (clean / TRACES).read_bytes()
    chosen = {scope: copy.deepcopy(next(spans(data, scope))) for scope in (CORE, API, STEP)}
    chosen[STEP]["events"] = chosen[STEP]["events"][:2]
    line = {"resourceSpans": [{"scopeSpans": [{"scope": {"name": s}, "spans": [x]} for s, x in chosen.items()]}]}
    file = tmp_path / TRACES

    def told(value: Any) -> tuple[Any, ...]:
        file.write_text(json.dumps(value) + "\n")
        t = traces.read_traces(file, lambda count: None)
        groups = (t.journey_events, t.api_events, t.steps, t.snapshots)
        columns = [c.tobytes() for group in groups for c in group.values()]
        return (t.core_ids, t.api_ids, t.api_of, columns), t.tally

    whole, tally = told(line)
    assert not tally
    # values that no reader can know to be wrong
    free = {"traceId", "spanId", "parentSpanId", "timeUnixNano"}
    for i, path in enumerate(leaves(line)):
        for value in WRONG[i % 4 :: 4]:
            found, said = told(placed(line, path, value))
            if found != whole and not free.intersection(path):
                missing = value is None or value == [] or path[-1] in ("key", "events")
                fits = (path[-1] == "stringValue" and isinstance(value, str)) or path[-1] in ("intValue", "doubleValue")
                assert said or missing or fits, (path, value)


# ---- kv_events.jsonl


def test_kv_events_cut_anywhere(clean: Path, tmp_path: Path) -> None:
    data = (clean / KV).read_bytes()
    for at in range(1, len(data), len(data) // 12):
        report = read(clean, tmp_path, kv=data[:at])
        assert counts(report, KV)[files.CUT_OFF] == (not data[:at].endswith(b"\n"))
        assert report["requests"]["usable_journeys"] == REQUESTS
        assert report["batches"]["summaries_reproduced"] == report["batches"]["summaries"]


AT = 1767225600.5
STORED: list[Any] = ["BlockStored", [1], None, [5] * 16, 16, None, "GPU"]
EVENTS: dict[str, tuple[list[Any], dict[str, int], int]] = {  # lines, what is said, rows of the table
    "batches of length 1": ([[AT], [[]]], {kv_events.MALFORMED: 2}, 0),
    "no list of events": ([[AT, None], [AT, {}], [AT, "x"]], {kv_events.MALFORMED: 3}, 0),
    "times that are none": ([["1", []], [float("nan"), []], [float("inf"), []], [None, []], [True, []]],
                            {kv_events.MALFORMED: 5}, 0),
    "no lists at all": ([{}, 1, None, "x"], {kv_events.MALFORMED: 4}, 0),
    "events of no form": ([[AT, [[], {}, 1, [1], [None], None]]], {kv_events.MALFORMED: 6}, 0),
    "wrong arity": ([[AT, [["BlockStored"], ["BlockStored", [1]], ["BlockRemoved"], ["CacheEviction", 1]]]],
                    {kv_events.MALFORMED: 4}, 0),
    "hashes of wrong types": ([[AT, [["BlockRemoved", [1.5]], ["BlockRemoved", [True]], ["BlockRemoved", ["%%"]],
                                     ["BlockRemoved", "abcd"], ["BlockRemoved", {}], ["BlockRemoved", [None]]]]],
                              {kv_events.MALFORMED: 6}, 0),
    "hashes beyond 64 bits": ([[AT, [["BlockRemoved", [2**256 + 7]], ["BlockRemoved", ["AAAABw=="]]]]], {kv_events.MALFORMED: 1}, 1),
    "unknown types": ([[AT, [["Melted", 1], ["Gone"]]]], {kv_events.UNKNOWN: 2}, 2),
    "all cleared": ([[AT, [["AllBlocksCleared"], STORED]]], {}, 2),
    "tokens no list": ([[AT, [["BlockStored", [1], None, "tokens", 16]]]], {kv_events.MALFORMED: 1}, 0),
    "sizes of wrong types": ([[AT, [[*STORED[:4], "16"], [*STORED[:4], -1], [*STORED[:4], 2**40]]]],
                             {kv_events.MALFORMED: 3}, 0),
    "times that fall": ([[AT, [STORED]], [AT - 1, [STORED]], [AT, [STORED]]], {kv_events.BACKWARDS: 1}, 3),
    "the same transfer twice": ([[AT, [["TransferInitiated", 1, "r", "GPU", "CPU", 1, 3]] * 2]],
                                {kv_events.TWICE: 1}, 1),
}  # fmt: skip


@pytest.mark.parametrize("case", EVENTS)
def test_spoiled_kv_events_are_counted(clean: Path, tmp_path: Path, case: str) -> None:
    given, said, rows = EVENTS[case]
    report = read(clean, tmp_path, kv=b"".join(json.dumps(line).encode() + b"\n" for line in given))
    none = {} if rows else {"contains no readable event: nothing is taken from it": 1}
    assert counts(report, KV) == {**said, **none}
    assert report["tables"].get("kv_events", 0) == rows
    if rows:
        found = tables(tmp_path / "out" / NAME)["kv_events"]
        assert found["hashes"] == [[7]] if "beyond" in case else len(found["event"]) == rows


def test_kv_events_that_are_no_text_and_of_two_runs(clean: Path, other: Path, tmp_path: Path) -> None:
    data = (clean / KV).read_bytes()
    report = read(clean, tmp_path, kv=bytes(range(256)) * 100)
    assert counts(report, KV)["contains no readable event: nothing is taken from it"] == 1
    assert counts(report, KV)[files.MALFORMED] + counts(report, KV)[files.CUT_OFF] == 101
    report = read(clean, tmp_path, kv=b"".join(line.replace(b"cmpl-", b"\xff\xfe-") for line in lines(data)))
    assert counts(report, KV)[files.NOT_UTF8] == sum(b"cmpl-" in line for line in lines(data)) > 0
    report = read(clean, tmp_path, kv=data + (other / KV).read_bytes())
    assert counts(report, KV)[kv_events.BACKWARDS] == 1


# ---- per_request_lifecycle_metrics.json


def rows_of(clean: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((clean / ROWS).read_bytes())
    return rows


def test_client_rows_cut_anywhere(clean: Path, tmp_path: Path) -> None:
    data = (clean / ROWS).read_bytes()
    for at in range(0, len(data), len(data) // 30):
        report = read(clean, tmp_path, rows=data[:at])
        whole = data[:at].count(b"\n  }")
        said = counts(report, ROWS)
        assert said[clients.CUT_OFF] == (at < len(data.rstrip())), at
        if whole:
            assert report["requests"]["client_rows"] == whole
            assert whole == REQUESTS or any(
                "requests, but the per-request file has" in f["text"] for f in report["findings"]
            )
        else:
            assert said["contains no readable row: nothing is taken from it"] == 1
        assert report["requests"]["usable_journeys"] == REQUESTS


def with_info(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda row: row["info"].update(values)


def with_(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda row: row.update(values)


def stamped(change: Callable[[list[float]], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda row: row["info"].__setitem__("output_token_times", change(row["info"]["output_token_times"]))


CLIENTS: dict[str, tuple[Callable[[dict[str, Any]], Any], dict[str, int], int]] = {  # change of 3 rows, said, rows left
    "times of text": (with_(start_time="1.0"), {clients.NOT_ROWS: 3}, 7),
    "start after end": (lambda row: row.update(start_time=row["end_time"] + 1), {clients.NOT_ROWS: 3}, 7),
    "a time beyond all": (with_(end_time=1e300), {clients.NOT_ROWS: 3}, 7),
    "no info": (with_(info=None), {clients.NOT_ROWS: 3}, 7),
    "info a list": (with_(info=[1]), {clients.NOT_ROWS: 3}, 7),
    "request no JSON": (with_(request="{not json"), {}, 10),
    "request a number": (with_(request=12), {}, 10),
    "a chat": (with_(request=json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 24})), {}, 10),
    "a request in a request": (with_(request={"prompt": json.loads("[" * 900 + "]" * 900)}), {}, 10),
    "stamps of text": (stamped(lambda times: list(map(str, times))), {clients.NOT_ROWS: 3}, 7),
    "stamps with null": (stamped(lambda times: [None, *times]), {clients.NOT_ROWS: 3}, 7),
    "stamps no list": (with_info(output_token_times=7), {clients.NOT_ROWS: 3}, 7),
    "stamps that fall": (stamped(lambda times: times[::-1]), {clients.NO_TIMES: 3}, 10),
    "stamps before the start": (stamped(lambda times: [-1.0, *times]), {clients.NO_TIMES: 3}, 10),
    "stamps after the end": (stamped(lambda times: [*times, times[-1] + 99]), {clients.NO_TIMES: 3}, 10),
    "a stamp too many": (stamped(lambda times: [times[0], *times]), {}, 10),
    "no stamps": (with_info(output_token_times=[]), {}, 10),
    "a hundred thousand stamps": (stamped(lambda times: times[:1] * 100_000), {}, 10),
    "counts of wrong types": (with_info(input_tokens="x", output_tokens=-3), {}, 10),
}  # fmt: skip


@pytest.mark.parametrize("case", CLIENTS)
def test_three_spoiled_rows_are_three_in_the_report(clean: Path, tmp_path: Path, case: str) -> None:
    change, said, left = CLIENTS[case]
    rows = rows_of(clean)
    for row in rows[:3]:
        change(row)
    report = read(clean, tmp_path, rows=json.dumps(rows).encode())
    assert counts(report, ROWS) == said
    assert report["requests"]["client_rows"] == left
    assert report["requests"]["usable_journeys"] == REQUESTS
    found = tables(tmp_path / "out" / NAME)["requests"]
    assert all(ttft is None or ttft >= 0 for ttft in found["ttft_ms"])
    read_as = report["requests"]["stamps"]
    if case in ("stamps that fall", "stamps before the start", "stamps after the end", "no stamps"):
        assert found["ttft_ms"][:REQUESTS].count(None) == 3 and sum(read_as.values()) == 7
    elif case in ("a stamp too many", "a hundred thousand stamps"):
        assert read_as["other"] >= 3


def test_rows_twice_are_dropped(clean: Path, tmp_path: Path, sound: tuple[Report, dict[str, Any]]) -> None:
    rows = rows_of(clean)
    report = read(clean, tmp_path, rows=json.dumps([row for row in rows for _ in range(2)]).encode())
    assert counts(report, ROWS) == {clients.TWICE: REQUESTS}
    assert tables(tmp_path / "out" / NAME) == sound[1]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", {clients.CUT_OFF: 1}),
        (b"[]", {}),
        (b"{}", {}),
        (b'{"start_time": 1.0, "end_time": 2.0}', {}),
        (b"[1, null, [], \"x\", {}]", {clients.NOT_ROWS: 5}),
        (b"[[[[", {clients.CUT_OFF: 1}),
        (b"[" * 100_000, {clients.CUT_OFF: 1, clients.TOO_DEEP: 1}),
        (b'[{"a\\"": ' * 50_000, {clients.CUT_OFF: 1, clients.TOO_DEEP: 1}),
        (b"\x00\x01\x02", {clients.CUT_OFF: 1}),
    ],
)  # fmt: skip
def test_files_that_hold_no_rows(clean: Path, tmp_path: Path, data: bytes, said: dict[str, int]) -> None:
    report = read(clean, tmp_path, rows=data)
    assert counts(report, ROWS) == {**said, "contains no readable row: nothing is taken from it": 1}
    assert report["requests"]["usable_journeys"] == REQUESTS and "client_rows" not in report["requests"]


def test_a_row_with_nan_ends_the_file(clean: Path, tmp_path: Path) -> None:
    rows = rows_of(clean)
    rows[6]["end_time"] = float("nan")
    report = read(clean, tmp_path, rows=json.dumps(rows, indent=2).encode())
    assert counts(report, ROWS) == {clients.CUT_OFF: 1}
    assert report["requests"]["client_rows"] == 6
    assert any(f["text"] == f"{REQUESTS} requests, but the per-request file has 6 of them" for f in report["findings"])


def test_rows_that_are_not_utf_8(clean: Path, tmp_path: Path) -> None:
    rows = rows_of(clean)
    rows[2]["response"] = "MARK"
    data = json.dumps(rows).encode().replace(b"MARK", b"\xff\xfe\xc3")
    report = read(clean, tmp_path, rows=data)
    assert counts(report, ROWS) == {clients.NOT_UTF8: 1}
    assert report["requests"]["client_rows"] == REQUESTS


def test_addresses_in_errors_are_in_no_output(clean: Path, tmp_path: Path) -> None:
    rows = rows_of(clean)
    told: list[Any] = [
        "localhost:8000 refused", "ClientConnectorError: Cannot connect to host 192.0.2.10:8000", "192.0.2.10",
        {"error_type": "localhost", "error_msg": "/workspace/x"}, {"error_type": "node1.localhost", "error_msg": ""},
        {"error_type": "aiohttp.client_exceptions.ClientOSError", "error_msg": "/mnt/y"}, "/mnt/z: TimeoutError",
        ["192.0.2.10"],
    ]  # fmt: skip
    for row, error in zip(rows, told, strict=False):
        row["error"] = error
    report = read(clean, tmp_path, rows=json.dumps(rows).encode())
    assert report["requests"]["client_errors"] == {"ClientConnectorError": 1, "ClientOSError": 1, "other": 6}
    for name, data in contents(tmp_path / "out").items():
        raw = (
            data if not name.endswith(".parquet") else repr(pq.read_table(tmp_path / "out" / name).to_pydict()).encode()
        )
        for word in (b"192.0.2", b"/workspace", b"/mnt", b"localhost"):
            assert word not in raw, (name, word)


# ---- folders


def refused(capsys: pytest.CaptureFixture[str], *args: object, status: int = 2) -> str:
    """The one line of stderr."""
    assert run_command(["ingest", *map(str, args), "--hardware", GPU, "--quiet"]) == status
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.startswith("evolve: ")
    return err


def test_folders_that_are_none(clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert "there is no such folder" in refused(capsys, tmp_path / "nowhere", "--out", out)
    assert "is a file" in refused(capsys, clean / TRACES, "--out", out)
    (tmp_path / "empty").mkdir()
    assert "contains none of" in refused(capsys, tmp_path / "empty", "--out", out)
    (tmp_path / "loop").symlink_to("loop")
    assert "cannot be read" in refused(capsys, tmp_path / "loop", "--out", out)
    assert "there is no such folder" in refused(capsys, "--out", out, "--", "-dash")
    assert not out.exists()


def test_folders_of_strange_names(clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strange = ["-dash", "two words", "two\nlines", "größe 模型", "dot.", "a" * 200]
    for name in strange:
        shutil.copytree(clean, tmp_path / "runs" / name)
    out = tmp_path / "out"
    args = ["ingest", str(tmp_path / "runs"), "--out", str(out), "--hardware", GPU, "--workers", "1", "--quiet"]
    assert run_command(args) == 0
    kept = {path.name for path in out.iterdir()} - {"experiments.yaml"}
    assert kept == {name.replace("\n", " ") for name in strange}
    capsys.readouterr()
    shutil.copytree(clean, tmp_path / "more" / "two lines")
    assert "has the same name as" in refused(
        capsys, tmp_path / "runs" / "two\nlines", tmp_path / "more" / "two lines", "--out", out
    )
    for name in (".hidden", "experiments.yaml", "\n"):
        shutil.copytree(clean, tmp_path / "odd" / name)
        assert "its name cannot be used for an output: rename it" in refused(
            capsys, tmp_path / "odd" / name, "--out", tmp_path / "elsewhere"
        )


def test_a_folder_in_a_folder_and_loops_of_links(clean: Path, tmp_path: Path) -> None:
    path = spoiled(clean, tmp_path / "set")
    shutil.copytree(clean, path / "inner")
    (path / "again").symlink_to(path)
    (tmp_path / "set" / "loop").symlink_to(tmp_path / "set")
    folders, said = find([tmp_path / "set", path])
    assert [f.name for f in folders] == [NAME]
    assert "is given more than once: read once" in [f.text for f in said]


@pytest.mark.parametrize("file", [TRACES, KV, ROWS, "vllm.log"])
@pytest.mark.parametrize("kind", ["a directory", "a pipe", "a loop", "a device"])
def test_sources_that_are_no_files(clean: Path, tmp_path: Path, file: str, kind: str) -> None:
    path = spoiled(clean, tmp_path) / file
    path.unlink()
    if kind == "a directory":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path.name if kind == "a loop" else "/dev/zero")
    report = made(tmp_path / NAME, tmp_path / "out")
    assert counts(report, file)["is not a file: left out"] == 1


@pytest.mark.parametrize("file", [TRACES, KV, ROWS, "vllm.log", "exp-config.yaml"])
def test_files_that_vanish_before_they_are_read(clean: Path, tmp_path: Path, file: str) -> None:
    path = spoiled(clean, tmp_path)
    folders, _ = find([path])
    (path / file).unlink()
    (run,) = ingest(folders, tmp_path / "out", Given(GPU), 1, lambda run, count: None, lambda run: None)
    assert any("cannot be read" in text or "is not a file" in text for text in counts(run.to_json(), file))


def test_a_file_that_grows_is_said_and_read_again(clean: Path, tmp_path: Path) -> None:
    path = spoiled(clean, tmp_path)
    more = lines((path / TRACES).read_bytes())[0]

    def grow(run: str, count: int) -> None:
        if count and not grown:
            grown.append(count)
            with (path / TRACES).open("ab") as file:
                file.write(more)

    grown: list[int] = []
    (run,) = ingest(find([path])[0], tmp_path / "out", Given(GPU), 1, grow, lambda run: None)
    assert counts(run.to_json(), "folder")["changed while it was read: ingest it again once it is complete"] == 1
    again = made(path, tmp_path / "out")
    assert again["was"] == "replaced" and not counts(again, "folder") and counts(again, TRACES)[traces.TWICE] > 0


def test_an_out_that_cannot_be_is_refused(clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = spoiled(clean, tmp_path / "runs")
    before = contents(tmp_path)
    assert "is inside" in refused(capsys, path, "--out", path / "out")
    assert "is inside" in refused(capsys, path, "--out", path)
    assert f"contains {NAME}, which is read" in refused(capsys, path, "--out", path.parent)
    (tmp_path / "file").write_text("mine")
    assert "cannot be written" in refused(capsys, path, "--out", tmp_path / "file")
    assert "cannot be written" in refused(capsys, path, "--out", tmp_path / "file" / "below")
    assert contents(tmp_path) == {**before, "file": b"mine"}


def test_what_is_not_ours_is_kept(clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    (out / "mine").mkdir(parents=True)
    (out / "mine" / "notes").write_text("kept")
    (out / "table.csv").write_text("kept")
    made(clean, out)
    assert (out / "mine" / "notes").read_text() == (out / "table.csv").read_text() == "kept"
    (out / NAME / "notes").write_text("kept")
    assert made(clean, out)["was"] == "as before", "nothing is replaced"
    message = refused(capsys, clean, "--out", out, "--engine", "max_num_seqs=8")
    assert "notes: is not ours, and its folder is going to be replaced: move it away" in message
    assert (out / NAME / "notes").read_text() == "kept"
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "experiments.yaml").write_text("version: 1")
    assert "exists and is not an output of ours" in refused(capsys, clean, "--out", tmp_path / "theirs")
    (tmp_path / "named" / NAME).mkdir(parents=True)
    assert "exists and is not an output of ours" in refused(capsys, clean, "--out", tmp_path / "named")


def test_a_full_disk_is_one_line_and_costs_nothing_done(
    clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(clean, tmp_path / "other")
    made(clean, out)
    before = contents(out)

    def full(self: Writer, columns: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "write", full)
        message = refused(capsys, clean, tmp_path / "other", "--out", out, "--workers", 1)
    assert f"{out / 'other'}: cannot be written (No space left on device): choose another --out" in message
    assert contents(out) == before
    made(tmp_path / "other", out)
    assert len(contents(out)) == 2 * len(before) - 1


def test_a_disk_that_is_full_at_the_end(
    clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace = os.replace

    def full(draft: Path, target: Path) -> None:
        if target.name == "experiments.yaml":
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(draft, target)

    with monkeypatch.context() as patch:
        patch.setattr(written_files.os, "replace", full)
        assert "cannot be written (No space left" in refused(capsys, clean, "--out", tmp_path, "--workers", 1)
    assert made(clean, tmp_path)["was"] == "as before" and (tmp_path / "experiments.yaml").exists()


# ---- again, interrupted, side by side


@pytest.fixture(scope="module")
def many_folders(clean: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four folders of different sizes."""
    runs = tmp_path_factory.mktemp("many")
    for k in range(4):
        write_run(simulate(seed=20 + k, requests=20 + 60 * k), runs / f"2026010{k}-000000-tiny-llama-tp1-general")
    return runs


@pytest.fixture(scope="module")
def whole(many_folders: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("whole")
    assert run_command(["ingest", str(many_folders), "--out", str(out), "--hardware", GPU, "--workers", "1"]) == 0
    return contents(out)


def go_on(runs: Path, out: Path) -> int:
    """The exit status of the same ingest, called again."""
    return run_command(["ingest", str(runs), "--out", str(out), "--hardware", GPU, "--workers", "1", "--quiet"])


def started(runs: Path, out: Path) -> subprocess.Popen[str]:
    command = [*EVOLVE, "ingest", str(runs), "--out", str(out), "--hardware", GPU, "--workers", "2"]
    return subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_interrupted_it_goes_on(many_folders: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    process = started(many_folders, tmp_path)
    wait_for(lambda: any(tmp_path.glob("*/ingest.json")) or any(tmp_path.glob(".part-*/*")), process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert err == "evolve: interrupted; nothing is lost: `evolve ingest ...` goes on\n"
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]
    done = {p.parent.name: p.stat().st_mtime_ns for p in tmp_path.glob("2*/ingest.json")}
    assert len(done) < 4
    assert go_on(many_folders, tmp_path) == 0 and contents(tmp_path) == whole
    assert done.items() <= {p.parent.name: p.stat().st_mtime_ns for p in tmp_path.glob("2*/ingest.json")}.items()


@pytest.mark.slow
def test_killed_it_goes_on(
    many_folders: Path, whole: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = started(many_folders, tmp_path)
    wait_for(lambda: any(tmp_path.glob("2*/ingest.json")), process)
    kill(process)
    assert go_on(many_folders, tmp_path) == 0 and contents(tmp_path) == whole
    assert not capsys.readouterr().err


def test_again_reads_nothing(
    many_folders: Path, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name, data in whole.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    with monkeypatch.context() as patch:
        patch.setattr("evolve.ingest.batch.ingest_folder", lambda *_: pytest.fail("it was read again"))
        command = ["ingest", str(many_folders), "--out", str(tmp_path), "--hardware", GPU]
        assert run_command(command) == 0
    assert capsys.readouterr().out.count("as before") == 4 and contents(tmp_path) == whole
    # what is damaged is made again, and nothing else
    first, second, third, *others = sorted(path.name for path in many_folders.iterdir())
    (tmp_path / first / "steps.parquet").unlink()
    (tmp_path / second / "quality.json").write_text("{")
    (tmp_path / third / "ingest.json").write_text("[" * 10_000)
    assert run_command([*command, "--json", "--quiet", "--workers", "1"]) == 0
    reused = {run["run"] for run in json.loads(capsys.readouterr().out)["runs"] if run["was"] == "as before"}
    assert reused == set(others) and contents(tmp_path) == whole


def test_a_draft_that_a_kill_left_is_replaced_with_its_folder(clean: Path, tmp_path: Path) -> None:
    path, out = spoiled(clean, tmp_path), tmp_path / "out"
    made(path, out)
    (out / NAME / "ingest.json.4711.new").write_text("{")
    assert made(path, out)["was"] == "as before"
    assert made(path, out, max_num_seqs=8)["was"] == "replaced"
    assert not list(out.rglob("*.new"))


def test_options_and_changes_are_read_again(clean: Path, tmp_path: Path) -> None:
    path = spoiled(clean, tmp_path)
    out = tmp_path / "out"
    assert made(path, out)["was"] == "made" and made(path, out)["was"] == "as before"
    assert made(path, out, max_num_seqs=8)["was"] == "replaced"
    # options that are not given again are as they were
    assert made(path, out, max_num_seqs=8)["was"] == made(path, out)["was"] == "as before"
    with (path / KV).open("ab") as file:
        file.write(b"\n")
    assert made(path, out)["was"] == "replaced"
    assert "max_num_seqs: 8" in (out / "experiments.yaml").read_text()


def test_what_a_killed_worker_read_is_read_again(
    many_folders: Path, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel kills where memory runs out. If it goes on doing so, the work is stopped."""
    folders, _ = find([many_folders])
    killed = list[int]()

    def end_one(run: str, count: int) -> None:
        if not killed:
            killed.extend(worker_pids()[:1])
            os.kill(killed[0], signal.SIGKILL)

    ingest(folders, tmp_path / "out", Given(GPU), 2, end_one, lambda run: None)
    assert killed and contents(tmp_path / "out") == whole

    def end_all(run: str, count: int) -> None:
        for pid in worker_pids():
            os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(pool, "DEATHS", 1)
    with pytest.raises(WorkStopped, match="worker processes died"):
        ingest(folders, tmp_path / "none", Given(GPU), 2, end_all, lambda run: None)
    assert not [path for path in (tmp_path / "none").iterdir() if path.name.startswith(".")]


# ---- anything


def mutated(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 2, 20))):
        i, kind = rng.randrange(len(out)), rng.randrange(5)
        if kind == 0:
            out[i] = rng.randrange(256)
        elif kind == 1:
            del out[i : i + rng.choice((1, 50, 3000))]
        elif kind == 2:
            out[i:i] = out[rng.randrange(len(out)) :][: rng.choice((9, 300, 5000))]
        elif kind == 3 and out[i : i + 1].isdigit():
            out[i : i + 1] = b"9" * rng.choice((2, 9, 25))
        else:
            out[i:i] = rng.choice((b"null", b"{", b"]", b'"', b"\n", b"NaN", b"-", b"\xff", b"1e999", b"\\ud800"))
    return bytes(out)


def mutated_value(data: bytes, rng: random.Random, whole_file: bool) -> bytes:
    """One or several values of a tree, of the file or of one of its lines, wrong, gone, doubled or moved."""
    all_lines = [data] if whole_file else lines(data)
    at = rng.randrange(len(all_lines))
    tree = json.loads(all_lines[at])
    places = list(leaves(tree))
    for place in rng.sample(places, min(len(places), rng.choice((1, 3, 30)))):
        try:
            tree = placed(tree, place, rng.choice([*WRONG, "\ud800", "99999999", 10**6, "journey.FINISHED", "RESUME"]))
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    all_lines[at] = json.dumps(tree).encode() + b"\n"
    return b"".join(all_lines)


# The first seeds stand for the others: ten mutations each.
@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (3, 4, 5))])
def test_mutations_are_read_in_part_or_refused(clean: Path, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(10):
        key, file = rng.choice((("traces", TRACES), ("traces", TRACES), ("kv", KV), ("rows", ROWS)))
        data = (clean / file).read_bytes()
        damaged = mutated(data, rng) if rng.random() < 0.5 else mutated_value(data, rng, key == "rows")
        stdout, stderr = io.StringIO(), io.StringIO()
        command = ["ingest", str(spoiled(clean, tmp_path, **{key: damaged})), "--out", str(tmp_path / "out")]
        with redirect_stdout(stdout), redirect_stderr(stderr):
            status = run_command([*command, "--hardware", GPU, "--workers", "1", "--quiet"])
        assert status in (0, 2) and stderr.getvalue().count("\n") == (status == 2), stderr.getvalue()
        if status == 0:
            quality = json.loads((tmp_path / "out" / NAME / "quality.json").read_text())
            warnings = [f for f in quality["findings"] if f["severity"] == "warning"]
            printed = "".join(stdout.getvalue().split())
            assert all("".join(f["text"].split()) in printed for f in warnings[:12])


def test_experiments_keep_their_ids(clean: Path, other: Path, tmp_path: Path) -> None:
    """The run that comes later has the longer id, though its folder's name is first."""
    out = tmp_path / "out"
    made(clean, out)
    shutil.copytree(other, tmp_path / "20250101-000000-tiny-llama-tp1-general")
    made(tmp_path / "20250101-000000-tiny-llama-tp1-general", out)
    made(clean, out, max_num_seqs=8)
    ids = {e["source_run"]: e["id"] for e in yaml.safe_load((out / "experiments.yaml").read_text())["experiments"]}
    first = "20250101-000000-tiny-llama-tp1-general"
    assert ids == {first: first, NAME: "llama-2-7b-tp1-general"}


def test_a_table_cut_short_is_made_again(clean: Path, tmp_path: Path) -> None:
    made(clean, tmp_path)
    before = contents(tmp_path)
    table = tmp_path / NAME / "steps.parquet"
    table.write_bytes(table.read_bytes()[:1000])
    assert made(clean, tmp_path)["was"] == "replaced" and contents(tmp_path) == before


def test_a_model_that_no_run_has_is_said(clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 512, '
                      '"vocab_size": 32000, "max_position_embeddings": 1024}')  # fmt: skip
    args = ["ingest", str(clean), "--out", str(tmp_path / "out"), "--hardware", GPU]
    assert run_command([*args, "--model-config", f"my/model={config}"]) == 0
    assert "my/model: no run has this model" in capsys.readouterr().out
