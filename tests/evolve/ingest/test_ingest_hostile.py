"""Ingest of damaged and malicious files: readable parts are read, others are counted in the quality report or refused in
one line. There is no traceback and no warning, and finished work is kept."""

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
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from console import EVOLVE, TIMEOUT_S, kill, wait_for
from trace_engine import simulate
from trace_files import write
from trace_records import MODEL, TINY, Truth
from worker_pids import worker_pids

from evolve.cli import run_command
from evolve.ingest.batch import ingest
from evolve.ingest.derive import batches, journeys, steps
from evolve.ingest.options import Given
from evolve.ingest.read import clients, kv_events, traces, values
from evolve.ingest.read.sources import find
from evolve.ingest.write.tables import Writer
from evolve.output import files as written_files
from evolve.processes import WorkStopped
from evolve.search.pool import pool

pytestmark = pytest.mark.filterwarnings("error")

NAME = "20260101-000000-tiny-llama-tp1-general"
GPU = "H100-SXM-80GB"
TRACES, KV, ROWS = "traces.json", "kv_events.jsonl", "results/per_request_lifecycle_metrics.json"
FILES = {"traces": TRACES, "kv": KV, "rows": ROWS}
CORE, API, STEP = "vllm.scheduler", "vllm.api", "vllm.scheduler.step"
REQUESTS = 10
NO_SPAN = "contains no span of this server: nothing is taken from it"
NO_EVENT = "contains no readable event: nothing is taken from it"
NO_ROW = "contains no readable row: nothing is taken from it"

Json = dict[str, Any]
Read = Callable[..., Json]
Intact = tuple[Json, Json]
Change = Callable[[Json], Any]


def write_run(truth: Truth, path: Path) -> Path:
    """A run of a model that the model table has."""
    write(truth, path)
    for file in ("exp-config.yaml", "profile.yaml", "results/config.yaml"):
        (path / file).write_text((path / file).read_text().replace(MODEL, "meta-llama/Llama-2-7b-hf"))
    return path


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undamaged folder, with preemptions."""
    truth = simulate(seed=9, requests=REQUESTS, rates=(200.0,), blocks=40)
    return write_run(truth, tmp_path_factory.mktemp("clean") / NAME)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another run."""
    truth = simulate(seed=10, requests=REQUESTS, rates=(200.0,), blocks=40)
    return write_run(truth, tmp_path_factory.mktemp("other") / NAME)


@pytest.fixture(scope="module")
def intact(clean: Path, tmp_path_factory: pytest.TempPathFactory) -> Intact:
    """Report and tables of the undamaged folder."""
    out = tmp_path_factory.mktemp("intact")
    return made(clean, out), tables(out / NAME)


@pytest.fixture
def read(clean: Path, tmp_path: Path) -> Read:
    """Ingests the folder into `out` with other bytes in files named by FILES; returns the quality report."""
    return lambda **files: made(spoiled(clean, tmp_path, **files), tmp_path / "out")


@pytest.fixture
def spoil(clean: Path, read: Read) -> Read:
    """Ingests the folder with the first `many` spans of a scope changed in place."""
    return lambda scope, many, change: read(traces=changed((clean / TRACES).read_bytes(), scope, many, change))


def made(folder: Path, out: Path, **options: Any) -> Json:
    (run,) = ingest(find([folder])[0], out, Given(GPU, options), 1, lambda run, count: None, lambda run: None)
    return run.to_json()


def spoiled(clean: Path, tmp_path: Path, **files: bytes) -> Path:
    """The undamaged folder with other bytes in some files; those of an earlier call are gone."""
    shutil.rmtree(tmp_path / NAME, ignore_errors=True)
    path = Path(shutil.copytree(clean, tmp_path / NAME))
    for key, data in files.items():
        (path / FILES[key]).write_bytes(data)
    return path


def counts(report: Json, source: str) -> Counter[str]:
    found = [(f["text"], f["count"]) for f in report["findings"] if f["source"] == source]
    assert len(found) == len(dict(found)), "one finding for each kind"
    return Counter(dict(found))


def tables(home: Path) -> Json:
    return {path.stem: pq.read_table(path).to_pydict() for path in sorted(home.glob("*.parquet"))}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def lines(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


def json_line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


def spans_in(parsed: list[Json], scope: str) -> Iterator[Json]:
    for line in parsed:
        for resource in line["resourceSpans"]:
            for scoped in resource["scopeSpans"]:
                yield from scoped["spans"] if scoped["scope"]["name"] == scope else ()


def spans(data: bytes, scope: str) -> list[Json]:
    return list(spans_in([json.loads(line) for line in lines(data)], scope))


def changed(data: bytes, scope: str, many: int | None, change: Change) -> bytes:
    """The trace file with the first `many` spans of a scope, or all, changed in place."""
    parsed = [json.loads(line) for line in lines(data)]
    found = list(spans_in(parsed, scope))[:many]
    assert many is None or len(found) == many
    for span in found:
        change(span)
    return b"".join(map(json_line, parsed))


def put(key: str, value: Any, event: int | None = None) -> Change:
    """Sets an attribute's value, of the span or of one of its events."""

    def change(span: Json) -> None:
        holder = span if event is None else span["events"][event]
        (pair,) = [p for p in holder["attributes"] if p["key"] == key]
        pair["value"] = value

    return change


def edit(key: str, value: Any, event: int | None = None) -> Change:
    """Sets a key of the span, or of one of its events."""
    return lambda span: (span if event is None else span["events"][event]).__setitem__(key, value)


def attribute(pair: Any) -> Change:
    """Adds an attribute to the span."""
    return lambda span: span["attributes"].append(pair)


def renamed(name: Any) -> Change:
    return put("gen_ai.request.id", {"stringValue": name})


# ---- traces.json


def test_the_undamaged_folder_has_no_findings(intact: Intact) -> None:
    report, found = intact
    assert not counts(report, TRACES) and not counts(report, ROWS)
    assert report["requests"]["usable_journeys"] == report["requests"]["matched_with_client"] == REQUESTS
    assert report["requests"]["preemptions"] > 0 and report["cycles"]["usable"] > 0
    assert report["batches"]["summaries_reproduced"] == report["batches"]["summaries"]
    assert set(found) == {"requests", "steps", "journeys", "cycles", "kv_events"}


@pytest.mark.slow
def test_traces_cut_anywhere(clean: Path, read: Read) -> None:
    data = (clean / TRACES).read_bytes()
    for at in range(1, len(data), len(data) // 30):
        report = read(traces=data[:at])
        whole = b"".join(line for line in lines(data[:at]) if line.endswith(b"\n"))
        assert counts(report, TRACES)[values.CUT_OFF] == (len(whole) < at), at
        left = len(spans(whole, CORE))
        assert report["requests"].get("journeys", 0) == left
        if left < REQUESTS:
            assert any("journey" in text or text == NO_SPAN for text in counts(report, TRACES)), at
        assert report["requests"]["client_rows"] == REQUESTS


def test_the_order_of_lines_does_not_matter(clean: Path, tmp_path: Path, read: Read, intact: Intact) -> None:
    shuffled = lines((clean / TRACES).read_bytes())
    random.Random(1).shuffle(shuffled)
    assert read(traces=b"".join(shuffled))["findings"] == intact[0]["findings"]
    found, whole = tables(tmp_path / "out" / NAME), dict(intact[1])
    first, second = (sorted(map(repr, zip(*t.pop("journeys").values(), strict=True))) for t in (found, whole))
    assert first == second and found == whole


def test_every_line_twice_changes_counts_alone(clean: Path, tmp_path: Path, read: Read, intact: Intact) -> None:
    data = (clean / TRACES).read_bytes()
    report = read(traces=b"".join(line * 2 for line in lines(data)))
    assert counts(report, TRACES) == {traces.TWICE: sum(len(spans(data, s)) for s in (CORE, API, STEP))}
    assert tables(tmp_path / "out" / NAME) == intact[1]


def test_repeats_are_known_without_span_ids(clean: Path, tmp_path: Path, read: Read, intact: Intact) -> None:
    data = (clean / TRACES).read_bytes()
    many = sum(len(spans(data, scope)) for scope in (CORE, API, STEP))
    for scope in (CORE, API, STEP):
        data = changed(data, scope, None, lambda span: span.pop("spanId"))
    report = read(traces=data * 2)
    found = counts(report, TRACES)
    assert found[traces.NO_ID] == 2 * many and found[traces.ONCE_MORE] == 2 * REQUESTS
    assert found[steps.REPEATED] == report["sampling"]["sampled_steps"] == intact[0]["sampling"]["sampled_steps"]
    assert tables(tmp_path / "out" / NAME) == intact[1]


@pytest.mark.parametrize("summaries", [True, False])
def test_two_runs_in_one_file_give_no_figures_by_step(
    clean: Path, other: Path, tmp_path: Path, read: Read, summaries: bool
) -> None:
    first, second = (lines((path / TRACES).read_bytes()) for path in (clean, other))
    mixed = b"".join(a + b for a, b in zip(first, second, strict=False))
    mixed += b"".join([*first[len(second) :], *second[len(first) :]])
    if not summaries:
        mixed = changed(mixed, STEP, None, lambda span: span["events"].clear())
    report = read(traces=mixed)
    found = counts(report, TRACES)
    assert found[steps.MIXED] == 1 and found[steps.BACKWARDS] > steps.FEW
    assert (found[steps.CONFLICTING] > 0) == summaries
    assert report["batches"] is None and report["cycles"] is None
    assert report["requests"]["journeys"] == 2 * REQUESTS
    assert set(tables(tmp_path / "out" / NAME)) == {"requests", "journeys", "kv_events"}


@pytest.mark.parametrize(
    ("data", "kind", "count"),
    [
        (b"", NO_SPAN, 1),
        (b"\n \n\t\n" * 99, NO_SPAN, 1),
        (b"[1, 2, 3]\n", traces.MALFORMED, 1),
        (b'null\n12\n"x"\n', traces.MALFORMED, 3),
        (b"{}\n" * 4, traces.MALFORMED, 4),
        (b"[" * 10_000 + b"]" * 10_000 + b"\n", values.MALFORMED, 1),
        (b'{"resourceSpans":' * 10_000, values.CUT_OFF, 1),
        (b'{"resourceSpans": ' + b"9" * 100_000 + b"}\n", values.MALFORMED, 1),
        (b"\xff\xfe" + '{"resourceSpans": []}\n'.encode("utf-16-le"), values.MALFORMED, 1),
        (b'{"resourceSpans": null}\n{"resourceSpans": {}}\n{"resourceSpans": [1, null]}\n', traces.MALFORMED, 4),
        (b'{"resourceSpans": [{"scopeSpans": [{}, {"spans": 1}, {"spans": [{}, 3]}]}]}\n', traces.MALFORMED, 4),
    ],
)
def test_files_without_a_trace(read: Read, data: bytes, kind: str, count: int) -> None:
    report = read(traces=data)
    assert counts(report, TRACES)[kind] == count and counts(report, TRACES)[NO_SPAN] == 1
    assert report["requests"]["client_rows"] == REQUESTS and "journeys" not in report["requests"]


def test_traces_as_an_array_or_on_several_lines(clean: Path, read: Read) -> None:
    parsed = [json.loads(line) for line in lines((clean / TRACES).read_bytes())]
    assert counts(read(traces=json.dumps(parsed).encode()), TRACES)[traces.MALFORMED] == 1
    text = "".join(json.dumps(value, indent=1) + "\n" for value in parsed)
    found = counts(read(traces=text.encode()), TRACES)
    assert found[NO_SPAN] == 1
    assert found[values.MALFORMED] + found[values.CUT_OFF] + found[traces.MALFORMED] == text.count("\n")


@pytest.mark.parametrize("end", [b"\n", b""])
def test_only_a_line_that_is_too_long_is_lost(clean: Path, read: Read, end: bytes) -> None:
    report = read(traces=(clean / TRACES).read_bytes() + b'{"a": "' + b"x" * (40 << 20) + b'"}' + end)
    assert counts(report, TRACES) == {values.TOO_LONG: 1}
    assert report["requests"]["usable_journeys"] == REQUESTS


def test_a_byte_order_mark_is_ignored(clean: Path, tmp_path: Path, read: Read, intact: Intact) -> None:
    report = read(**{key: b"\xef\xbb\xbf" + (clean / name).read_bytes() for key, name in FILES.items()})
    assert report["findings"] == intact[0]["findings"]
    assert tables(tmp_path / "out" / NAME) == intact[1]


NO_TIME = ("ts.monotonic_ns", "ts.monotonic")


def without_time(span: Json) -> None:
    for key in NO_TIME:
        put(key, {"intValue": "0"}, 0)(span)


def tokens(value: Any) -> Change:
    return put("decode.done_tokens", value, 1)


# Each change of three spans, and the kinds of findings in `traces`, each of which counts three.
SPOILED: dict[str, tuple[str, Change, str]] = {
    "attributes no list": (CORE, edit("attributes", "x"), "MALFORMED NO_REQUEST"),
    "attributes null": (CORE, edit("attributes", None), "NO_REQUEST"),
    "an attribute no mapping": (CORE, attribute(7), "BAD_VALUE"),
    "a key that is a list": (CORE, attribute({"key": [], "value": {"intValue": "1"}}), "BAD_VALUE"),
    "an unknown kind": (CORE, attribute({"key": "k", "value": {"arrayValue": {}}}), "UNKNOWN_KIND"),
    "id a number": (CORE, put("gen_ai.request.id", {"intValue": "1"}), "NO_REQUEST"),
    "id a list": (CORE, renamed([]), "BAD_VALUE NO_REQUEST"),
    "id empty": (CORE, renamed(""), "NO_REQUEST"),
    "events null": (CORE, edit("events", None), ""),
    "events a text": (CORE, edit("events", "x"), "MALFORMED"),
    "events an empty mapping": (CORE, edit("events", {}), "MALFORMED"),
    "an event without a name": (CORE, edit("name", None, 1), "MALFORMED"),
    "an event of another name": (CORE, edit("name", "journey.LOST", 1), "UNKNOWN_EVENT"),
    "an epoch of the wrong type": (CORE, edit("timeUnixNano", [], 1), "BAD_VALUE"),
    "a step beyond all": (CORE, put("scheduler.step", {"intValue": str(10**15)}, 1), "OUT_OF_RANGE NO_PLACE"),
    "a negative step": (CORE, put("scheduler.step", {"intValue": "-1"}, 1), "OUT_OF_RANGE NO_PLACE"),
    "a step that is text": (CORE, put("scheduler.step", {"stringValue": "12"}, 1), "OUT_OF_RANGE NO_PLACE"),
    "no time": (CORE, without_time, "NO_PLACE"),
    "beyond 64 bits": (CORE, put("prefill.total_tokens", {"intValue": str(2**64)}, 1), "BAD_VALUE"),
    "a billion billion": (CORE, tokens({"intValue": 10**18}), "OUT_OF_RANGE"),
    "true": (CORE, tokens({"intValue": True}), "BAD_VALUE"),
    "a list": (CORE, tokens({"intValue": ["1"]}), "BAD_VALUE"),
    "a mapping": (CORE, tokens({"intValue": {"x": 1}}), "BAD_VALUE"),
    "two values": (CORE, tokens({"intValue": "1", "boolValue": True}), "BAD_VALUE"),
    "no value": (CORE, tokens({}), "BAD_VALUE"),
    "an unknown status": (CORE, put("finish.status", {"stringValue": "exploded"}, -1), "UNKNOWN_NAME"),
    "no span id": (CORE, lambda span: span.pop("spanId"), "NO_ID"),
    "an unknown name": (CORE, edit("name", "llm_cor"), "FOREIGN"),
    "no name": (CORE, edit("name", None), "MALFORMED"),
    "arrival not a number": (API, put("event.ts.monotonic", {"doubleValue": "NaN"}, 0), "NO_PLACE"),
    "arrival infinite": (API, put("event.ts.monotonic", {"doubleValue": float("inf")}, 0), "NO_PLACE"),
    "arrival before the clock": (API, put("event.ts.monotonic", {"doubleValue": -5.0}, 0), "NO_PLACE"),
    "an unknown departure": (API, edit("name", "api.GONE", 1), "UNKNOWN_EVENT"),
    "a summary without step": (STEP, put("step.id", {"stringValue": "1"}, 0), "OUT_OF_RANGE NO_PLACE"),
    "a usage of two": (STEP, put("kv.usage_gpu_ratio", {"doubleValue": 2.0}, 0), "OUT_OF_RANGE"),
    "a start of 0": (STEP, put("step.ts_start_ns", {"intValue": "0"}, 0), "OUT_OF_RANGE"),
    "blocks beyond all": (STEP, put("kv.blocks_total_gpu", {"intValue": str(2**31)}, 0), "OUT_OF_RANGE"),
    "one id for three": (CORE, renamed("cmpl-same-0-x"), "ONCE_MORE"),
    "one id for three APIs": (API, renamed("cmpl-same"), "ONCE_MORE"),
}


@pytest.mark.parametrize("case", SPOILED)
def test_each_spoiled_span_is_counted(spoil: Read, case: str) -> None:
    scope, change, kinds = SPOILED[case]
    report = spoil(scope, 3, change)
    found = counts(report, TRACES)
    of_readers = {text for m in (traces, values) for text in vars(m).values() if isinstance(text, str)}
    of_three = 2 if kinds == "ONCE_MORE" else 3  # the first span with an id is kept
    expected = {getattr(traces, kind): of_three for kind in kinds.split()}
    assert {text: n for text, n in found.items() if text in of_readers} == expected
    whole = report["requests"]["usable_journeys"]
    assert whole >= REQUESTS - 3 and (found or whole == REQUESTS)
    assert report["requests"]["client_rows"] == REQUESTS


@pytest.mark.parametrize("event", ["QUEUED", "SCHEDULED", "FIRST_TOKEN", "PREEMPTED", "FINISHED"])
def test_a_journey_without_one_of_its_events_is_reported(spoil: Read, event: str) -> None:
    lost = 0

    def drop(span: Json) -> None:
        nonlocal lost
        kept = [e for e in span["events"] if e["name"] != f"journey.{event}"]
        lost += len(kept) < len(span["events"])
        span["events"] = kept

    report = spoil(CORE, REQUESTS, drop)
    found = counts(report, TRACES)
    if event == "PREEMPTED":
        assert lost > 0 and found[journeys.NO_PREEMPTION] > 0
    else:
        lacking = [n for text, n in found.items() if text.startswith("journeys that lack one of")]
        assert lacking == [lost] == [REQUESTS] and report["requests"]["usable_journeys"] == 0


def test_times_that_run_backwards_give_no_durations(tmp_path: Path, spoil: Read) -> None:
    def swapped(span: Json) -> None:
        """FINISHED at the time of QUEUED, and the other way round; the steps stay."""
        first, last = span["events"][0]["attributes"], span["events"][-1]["attributes"]
        for key in NO_TIME:
            (a,), (b,) = ([p for p in holder if p["key"] == key] for holder in (first, last))
            a["value"], b["value"] = b["value"], a["value"]

    report = spoil(CORE, 3, swapped)
    assert counts(report, TRACES)[journeys.OUT_OF_ORDER] == 3
    found = tables(tmp_path / "out" / NAME)["requests"]
    assert sum(found["usable"]) == report["requests"]["usable_journeys"] == REQUESTS - 3
    assert all(us > 0 for us, usable in zip(found["server_e2e_us"], found["usable"], strict=True) if usable)


def test_events_of_a_span_in_any_order(tmp_path: Path, spoil: Read, intact: Intact) -> None:
    assert spoil(CORE, REQUESTS, lambda span: span["events"].reverse())["findings"] == intact[0]["findings"]
    found = tables(tmp_path / "out" / NAME)
    assert all(found[table] == intact[1][table] for table in ("requests", "steps", "cycles"))


def test_lone_surrogates_and_nulls_in_ids(clean: Path, tmp_path: Path, read: Read, spoil: Read) -> None:
    assert counts(spoil(CORE, 1, renamed("cmpl-\ud800\x00-0-x")), TRACES)[values.HALVES] == 1
    assert "cmpl-?\x00-0-x" in tables(tmp_path / "out" / NAME)["requests"]["request_id"]
    broken = (clean / TRACES).read_bytes().replace(b"cmpl-", b"cm\xff\xfe-", 3)
    assert counts(read(traces=broken), TRACES)[values.NOT_UTF8] == sum(b"\xff" in line for line in lines(broken)) > 0


def test_a_request_of_two_thousand_preemptions(spoil: Read) -> None:
    def preempted(span: Json) -> None:
        first = span["events"][1]
        more = []
        for k in range(4_000):
            event = first | {"attributes": [dict(pair) for pair in first["attributes"]]}
            event["name"] = "journey.PREEMPTED" if k % 2 == 0 else "journey.SCHEDULED"
            new = {"scheduler.step": 1000 + k, "num_preemptions": k // 2 + 1, "schedule.kind": "RESUME"}
            for pair in event["attributes"]:
                if pair["key"] in NO_TIME:
                    ((kind, at),) = pair["value"].items()
                    pair["value"] = {kind: int(at) + k * 10**6 if kind == "intValue" else float(at) + k * 1e-3}
                elif pair["key"] in new:
                    value = new[pair["key"]]
                    pair["value"] = {"stringValue" if isinstance(value, str) else "intValue": value}
            more.append(event)
        span["events"][2:2] = more

    report = spoil(CORE, 1, preempted)
    assert report["requests"]["preemptions"] >= 2_000
    assert counts(report, TRACES)[journeys.OUT_OF_ORDER] == 1, "they come after FINISHED"
    assert report["requests"]["usable_journeys"] == REQUESTS - 1


def stretched(span: Json, steps: int, tokens: int) -> None:
    """The answer lasts so many steps, and has so many tokens."""
    for key, value in (("scheduler.step", steps), ("decode.done_tokens", tokens)):
        put(key, {"intValue": str(value)}, -1)(span)


def huge(span: Json) -> None:
    for event in range(len(span["events"])):
        put("prefill.total_tokens", {"intValue": str(2**31 - 1)}, event)(span)


def slow(span: Json) -> None:
    for event, e in enumerate(span["events"]):
        put("prefill.total_tokens", {"intValue": str(10**7 - 100)}, event)(span)
        if e["name"] in ("journey.FIRST_TOKEN", "journey.FINISHED"):
            put("scheduler.step", {"intValue": str(10**6 - 10)}, event)(span)


@pytest.mark.parametrize(
    "change",
    [
        partial(stretched, steps=10**9, tokens=24),
        partial(stretched, steps=10**9, tokens=10**9),
        partial(stretched, steps=2**31 - 1, tokens=2**31 - 1),
        partial(stretched, steps=10**8, tokens=10**7),
        huge,
        slow,
    ],
)
def test_implausible_journeys_are_left_out(spoil: Read, change: Change) -> None:
    report = spoil(CORE, 2, change)
    assert counts(report, TRACES)[journeys.IMPLAUSIBLE] == 2
    assert report["batches"]["steps"] < 1000


def test_steps_of_all_requests_together_have_a_limit(
    read: Read, monkeypatch: pytest.MonkeyPatch, intact: Intact
) -> None:
    intervals = intact[1]["requests"]["intervals"]
    lengths = [sum(i["end_step"] - i["start_step"] + 1 for i in of_one) for of_one in intervals]
    monkeypatch.setattr(batches, "MOST_STEPS_IN_ALL", sum(lengths) - 1)
    assert counts(read(), TRACES)[journeys.TOO_MANY] == 1


def each(name: str, key: str, value: Any) -> Change:
    """Sets an attribute of all events of a name."""

    def change(span: Json) -> None:
        for event, e in enumerate(span["events"]):
            if e["name"] == name:
                put(key, value, event)(span)

    return change


def test_block_counts_cannot_exhaust_memory(spoil: Read) -> None:
    report = spoil(STEP, None, each("step.BATCH_SUMMARY", "kv.blocks_total_gpu", {"intValue": str(2**31 - 1)}))
    assert report["kv"]["gpu_blocks_from_trace"] == 2**31 - 1
    assert report["kv"]["gpu_blocks_from_log"] == 40


def test_summaries_without_their_durations(clean: Path, read: Read) -> None:
    report = read(traces=(clean / TRACES).read_bytes().replace(b'"step.duration_us"', b'"step.other"'))
    assert report["cycles"]["usable"] > 0 and report["cycles"]["mean_duration_us"] is None


def test_snapshots_of_unknown_requests(spoil: Read, intact: Intact) -> None:
    report = spoil(STEP, None, each("step.REQUEST_SNAPSHOT", "request.id", {"stringValue": "cmpl-nobody-0-1"}))
    assert report["requests"]["matched_with_client"] == REQUESTS
    assert "snapshot" not in report["batches"]["admissions_by_evidence"]
    assert intact[0]["batches"]["admissions_by_evidence"]["snapshot"] > 0


def test_a_line_of_two_hundred_thousand_tiny_spans(clean: Path, read: Read) -> None:
    line = b'{"resourceSpans":[{"scopeSpans":[{"scope":{"name":"vllm.scheduler"},"spans":['
    line += b'{"name":"llm_core"},' * 200_000
    report = read(traces=(clean / TRACES).read_bytes() + line[:-1] + b"]}]}]}\n")
    assert counts(report, TRACES)[traces.NO_REQUEST] == 200_000
    assert report["requests"]["usable_journeys"] == REQUESTS


def test_twenty_thousand_kinds_of_attributes(spoil: Read) -> None:
    more = [{"key": "k", "value": {f"kind{i}": 1}} for i in range(20_000)]
    assert counts(spoil(CORE, 1, lambda span: span["attributes"].extend(more)), TRACES) == {traces.UNKNOWN_KIND: 20_000}


WRONG = [
    *(None, True, -1, 2**31, 2**64, 10**15, 1.5, float("nan"), float("inf")),
    *("", "x", "9" * 30, [], [[]], {}, {"a": 1}),
]


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
def test_a_wrong_value_is_reported_or_changes_nothing(clean: Path, tmp_path: Path) -> None:
    data = (clean / TRACES).read_bytes()
    chosen = {scope: copy.deepcopy(spans(data, scope)[0]) for scope in (CORE, API, STEP)}
    chosen[STEP]["events"] = chosen[STEP]["events"][:2]
    line = {"resourceSpans": [{"scopeSpans": [{"scope": {"name": s}, "spans": [x]} for s, x in chosen.items()]}]}
    file = tmp_path / TRACES

    def content(value: Any) -> tuple[Any, ...]:
        file.write_text(json.dumps(value) + "\n")
        t = traces.read_traces(file, lambda count: None)
        groups = (t.journey_events, t.api_events, t.steps, t.snapshots)
        columns = [c.tobytes() for group in groups for c in group.values()]
        return (t.core_ids, t.api_ids, t.api_of, columns), t.tally

    whole, tally = content(line)
    assert not tally
    # values that no reader can know to be wrong
    free = {"traceId", "spanId", "parentSpanId", "timeUnixNano"}
    for i, path in enumerate(leaves(line)):
        for value in WRONG[i % 4 :: 4]:
            found, tally = content(placed(line, path, value))
            if found != whole and not free.intersection(path):
                missing = value is None or value == [] or path[-1] in ("key", "events")
                fits = (path[-1] == "stringValue" and isinstance(value, str)) or path[-1] in ("intValue", "doubleValue")
                assert tally or missing or fits, (path, value)


# ---- kv_events.jsonl


def test_kv_events_cut_anywhere(clean: Path, read: Read) -> None:
    data = (clean / KV).read_bytes()
    for at in range(1, len(data), len(data) // 6):
        report = read(kv=data[:at])
        assert counts(report, KV)[values.CUT_OFF] == (not data[:at].endswith(b"\n"))
        assert report["requests"]["usable_journeys"] == REQUESTS
        assert report["batches"]["summaries_reproduced"] == report["batches"]["summaries"]


STORED = '["BlockStored", [1], null, [5, 5, 5, 5], 4, null, "GPU"]'
# The lines of a file, with the kind of finding and its count, and the rows of the table.
EVENTS = f"""
[T] ; [[]] | MALFORMED 2 | 0
[T, null] ; [T, {{}}] ; [T, "x"] | MALFORMED 3 | 0
["1", []] ; [NaN, []] ; [Infinity, []] ; [null, []] ; [true, []] | MALFORMED 5 | 0
{{}} ; 1 ; null ; "x" | MALFORMED 4 | 0
[T, [[], {{}}, 1, [1], [null], null]] | MALFORMED 6 | 0
[T, [["BlockStored"], ["BlockStored", [1]], ["BlockRemoved"], ["CacheEviction", 1]]] | MALFORMED 4 | 0
[T, [[GONE, [1.5]], [GONE, [true]], [GONE, ["%%"]], [GONE, "abcd"], [GONE, {{}}], [GONE, [null]]]] | MALFORMED 6 | 0
[T, [[GONE, [{2**256 + 7}]], [GONE, ["AAAABw=="]]]] | MALFORMED 1 | 1
[T, [["Melted", 1], ["Gone"]]] | UNKNOWN 2 | 2
[T, [["AllBlocksCleared"], STORED]] | | 2
[T, [["BlockStored", [1], null, "tokens", 16]]] | MALFORMED 1 | 0
[T, [["BlockStored", [1], null, [5], "16"]]] | MALFORMED 1 | 0
[T, [["BlockStored", [1], null, [5], -1]]] | MALFORMED 1 | 0
[T, [["BlockStored", [1], null, [5], {2**40}]]] | MALFORMED 1 | 0
[T, [STORED]] ; [1.5, [STORED]] ; [T, [STORED]] | BACKWARDS 1 | 3
[T, [["TransferInitiated", 1, "r", "GPU", "CPU", 1, 3], ["TransferInitiated", 1, "r", "GPU", "CPU", 1, 3]]] | TWICE 1 | 1
"""


@pytest.mark.parametrize("case", EVENTS.strip().splitlines())
def test_spoiled_kv_events_are_counted(tmp_path: Path, read: Read, case: str) -> None:
    text, kinds, rows = (part.strip() for part in case.split("|"))
    for word, value in {" ; ": "\n", "STORED": STORED, "GONE": '"BlockRemoved"', "[T": "[1767225600.5"}.items():
        text = text.replace(word, value)
    report = read(kv=text.encode() + b"\n")
    kind, count = kinds.split() if kinds else ("", 0)
    expected = {getattr(kv_events, kind): int(count)} if kind else {}
    assert counts(report, KV) == (expected if int(rows) else {**expected, NO_EVENT: 1})
    assert report["tables"].get("kv_events", 0) == int(rows)
    if "AAAABw==" in text:  # beyond 64 bits
        assert tables(tmp_path / "out" / NAME)["kv_events"]["hashes"] == [[7]]


def test_kv_events_that_are_bytes_or_of_two_runs(clean: Path, other: Path, read: Read) -> None:
    data = (clean / KV).read_bytes()
    found = counts(read(kv=bytes(range(256)) * 100), KV)
    assert found[NO_EVENT] == 1 and found[values.MALFORMED] + found[values.CUT_OFF] == 101
    report = read(kv=b"".join(line.replace(b"cmpl-", b"\xff\xfe-") for line in lines(data)))
    assert counts(report, KV)[values.NOT_UTF8] == sum(b"cmpl-" in line for line in lines(data)) > 0
    report = read(kv=data + (other / KV).read_bytes())
    assert counts(report, KV)[kv_events.BACKWARDS] == 1


# ---- per_request_lifecycle_metrics.json


@pytest.fixture
def rows(clean: Path) -> list[Json]:
    loaded: list[Json] = json.loads((clean / ROWS).read_bytes())
    return loaded


def test_client_rows_cut_anywhere(clean: Path, read: Read) -> None:
    data = (clean / ROWS).read_bytes()
    for at in range(0, len(data), len(data) // 11):
        report = read(rows=data[:at])
        whole = data[:at].count(b"\n  }")
        found = counts(report, ROWS)
        assert found[clients.CUT_OFF] == (at < len(data.rstrip())), at
        if whole:
            assert report["requests"]["client_rows"] == whole
            unlike = any("requests, but the per-request file has" in f["text"] for f in report["findings"])
            assert whole == REQUESTS or unlike
        else:
            assert found[NO_ROW] == 1
        assert report["requests"]["usable_journeys"] == REQUESTS


def stamped(change: Callable[[list[float]], Any]) -> Change:
    return lambda row: row["info"].update(output_token_times=change(row["info"]["output_token_times"]))


def with_(**new: Any) -> Change:
    return lambda row: row.update(new)


CHAT = json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 24})
# Each change of three rows, and the kind of finding.
CLIENTS: dict[str, tuple[Change, str]] = {
    "times of text": (with_(start_time="1.0"), "NOT_ROWS"),
    "start after end": (lambda row: row.update(start_time=row["end_time"] + 1), "NOT_ROWS"),
    "a time beyond all": (with_(end_time=1e300), "NOT_ROWS"),
    "no info": (with_(info=None), "NOT_ROWS"),
    "info a list": (with_(info=[1]), "NOT_ROWS"),
    "request no JSON": (with_(request="{not json"), ""),
    "request a number": (with_(request=12), ""),
    "a chat": (with_(request=CHAT), ""),
    "a request in a request": (with_(request={"prompt": json.loads("[" * 900 + "]" * 900)}), ""),
    "stamps of text": (stamped(lambda times: list(map(str, times))), "NOT_ROWS"),
    "stamps with null": (stamped(lambda times: [None, *times]), "NOT_ROWS"),
    "stamps no list": (stamped(lambda times: 7), "NOT_ROWS"),
    "stamps that fall": (stamped(lambda times: times[::-1]), "NO_TIMES"),
    "stamps before the start": (stamped(lambda times: [-1.0, *times]), "NO_TIMES"),
    "stamps after the end": (stamped(lambda times: [*times, times[-1] + 99]), "NO_TIMES"),
    "a stamp too many": (stamped(lambda times: [times[0], *times]), ""),
    "no stamps": (stamped(lambda times: []), ""),
    "twenty thousand stamps": (stamped(lambda times: times[:1] * 20_000), ""),
    "counts of wrong types": (lambda row: row["info"].update(input_tokens="x", output_tokens=-3), ""),
}


@pytest.mark.parametrize("case", CLIENTS)
def test_each_spoiled_row_is_counted(tmp_path: Path, read: Read, rows: list[Json], case: str) -> None:
    change, kind = CLIENTS[case]
    for row in rows[:3]:
        change(row)
    report = read(rows=json.dumps(rows).encode())
    assert counts(report, ROWS) == ({getattr(clients, kind): 3} if kind else {})
    assert report["requests"]["client_rows"] == (7 if kind == "NOT_ROWS" else 10)
    assert report["requests"]["usable_journeys"] == REQUESTS
    ttft = tables(tmp_path / "out" / NAME)["requests"]["ttft_ms"]
    assert all(ms is None or ms >= 0 for ms in ttft)
    stamps = report["requests"]["stamps"]
    if kind == "NO_TIMES" or case == "no stamps":
        assert ttft[:REQUESTS].count(None) == 3 and sum(stamps.values()) == 7
    elif case in ("a stamp too many", "twenty thousand stamps"):
        assert stamps["other"] >= 3


def test_rows_twice_are_dropped(tmp_path: Path, read: Read, rows: list[Json], intact: Intact) -> None:
    report = read(rows=json.dumps([row for row in rows for _ in range(2)]).encode())
    assert counts(report, ROWS) == {clients.TWICE: REQUESTS}
    assert tables(tmp_path / "out" / NAME) == intact[1]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", {clients.CUT_OFF: 1}),
        (b"[]", {}),
        (b"{}", {}),
        (b'{"start_time": 1.0, "end_time": 2.0}', {}),
        (b'[1, null, [], "x", {}]', {clients.NOT_ROWS: 5}),
        (b"[[[[", {clients.CUT_OFF: 1}),
        (b"[" * 100_000, {clients.CUT_OFF: 1, clients.TOO_DEEP: 1}),
        (b'[{"a\\"": ' * 50_000, {clients.CUT_OFF: 1, clients.TOO_DEEP: 1}),
        (b"\x00\x01\x02", {clients.CUT_OFF: 1}),
    ],
)
def test_files_without_rows(read: Read, data: bytes, found: dict[str, int]) -> None:
    report = read(rows=data)
    assert counts(report, ROWS) == {**found, NO_ROW: 1}
    assert report["requests"]["usable_journeys"] == REQUESTS and "client_rows" not in report["requests"]


def test_a_row_with_nan_ends_the_file(read: Read, rows: list[Json]) -> None:
    rows[6]["end_time"] = float("nan")
    report = read(rows=json.dumps(rows, indent=2).encode())
    assert counts(report, ROWS) == {clients.CUT_OFF: 1}
    assert report["requests"]["client_rows"] == 6
    assert any("but the per-request file has 6 of them" in f["text"] for f in report["findings"])


def test_rows_that_are_not_utf_8(read: Read, rows: list[Json]) -> None:
    rows[2]["response"] = "MARK"
    report = read(rows=json.dumps(rows).encode().replace(b"MARK", b"\xff\xfe\xc3"))
    assert counts(report, ROWS) == {clients.NOT_UTF8: 1}
    assert report["requests"]["client_rows"] == REQUESTS


def test_no_output_contains_addresses_of_errors(tmp_path: Path, read: Read, rows: list[Json]) -> None:
    errors: list[Any] = [
        "localhost:8000 refused",
        "ClientConnectorError: Cannot connect to host 192.0.2.10:8000",
        "192.0.2.10",
        {"error_type": "localhost", "error_msg": "/workspace/x"},
        {"error_type": "node1.localhost", "error_msg": ""},
        {"error_type": "aiohttp.client_exceptions.ClientOSError", "error_msg": "/mnt/y"},
        "/mnt/z: TimeoutError",
        ["192.0.2.10"],
    ]
    for row, error in zip(rows, errors, strict=False):
        row["error"] = error
    report = read(rows=json.dumps(rows).encode())
    assert report["requests"]["client_errors"] == {"ClientConnectorError": 1, "ClientOSError": 1, "other": 6}
    texts = {name: data.decode("latin-1") for name, data in contents(tmp_path / "out").items()}
    texts |= {name: repr(rows) for name, rows in tables(tmp_path / "out" / NAME).items()}
    for name, text in texts.items():
        assert not [word for word in ("192.0.2", "/workspace", "/mnt", "localhost") if word in text], name


# ---- folders


def ingest_command(*args: object) -> int:
    return run_command(["ingest", *map(str, args), "--hardware", GPU, "--workers", "1", "--quiet"])


def refused(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """The one line of stderr."""
    capsys.readouterr()
    assert ingest_command(*args) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.startswith("evolve: ")
    return err


def test_folders_of_strange_names(clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strange = ["-dash", "two words", "two\nlines", "größe 模型", "dot.", "a" * 200]
    for name in (*(f"runs/{name}" for name in strange), "more/two lines"):
        shutil.copytree(clean, tmp_path / name)
    out = tmp_path / "out"
    assert ingest_command(tmp_path / "runs", "--out", out) == 0
    assert {path.name for path in out.iterdir()} == {*(s.replace("\n", " ") for s in strange), "experiments.yaml"}
    one, two = tmp_path / "runs" / "two\nlines", tmp_path / "more" / "two lines"
    assert "has the same name as" in refused(capsys, one, two, "--out", out)
    for name in (".hidden", "experiments.yaml", "\n"):
        shutil.copytree(clean, tmp_path / "odd" / name)
        assert "its name cannot be used" in refused(capsys, tmp_path / "odd" / name, "--out", tmp_path / "elsewhere")


SOURCES = (TRACES, KV, ROWS, "vllm.log")


@pytest.mark.parametrize("kind", ["a directory", "a pipe", "a loop", "a device"])
def test_sources_that_are_no_files(clean: Path, tmp_path: Path, kind: str) -> None:
    folder = spoiled(clean, tmp_path)
    for path in map(folder.joinpath, SOURCES):
        path.unlink()
        if kind == "a directory":
            path.mkdir()
        elif kind == "a pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(path.name if kind == "a loop" else "/dev/zero")
    report = made(folder, tmp_path / "out")
    assert [counts(report, file)["is not a file: ignored"] for file in SOURCES] == [1] * 4


def test_files_that_vanish_before_they_are_read(clean: Path, tmp_path: Path) -> None:
    path = spoiled(clean, tmp_path)
    folders, _ = find([path])
    for file in (*SOURCES, "exp-config.yaml"):
        (path / file).unlink()
    (run,) = ingest(folders, tmp_path / "out", Given(GPU), 1, lambda run, count: None, lambda run: None)
    for file in (*SOURCES, "exp-config.yaml"):
        assert any("cannot be read" in text or "is not a file" in text for text in counts(run.to_json(), file)), file


def test_a_file_that_grows_is_reported_and_read_again(clean: Path, tmp_path: Path) -> None:
    path = spoiled(clean, tmp_path)
    more = lines((path / TRACES).read_bytes())[0]
    grown: list[int] = []

    def grow(run: str, count: int) -> None:
        if count and not grown:
            grown.append(count)
            with (path / TRACES).open("ab") as file:
                file.write(more)

    (run,) = ingest(find([path])[0], tmp_path / "out", Given(GPU), 1, grow, lambda run: None)
    assert any("changed while it was read" in text for text in counts(run.to_json(), "folder"))
    again = made(path, tmp_path / "out")
    assert again["was"] == "replaced" and not counts(again, "folder") and counts(again, TRACES)[traces.TWICE] > 0


def test_an_unusable_out_is_refused(clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = spoiled(clean, tmp_path / "runs")
    (tmp_path / "file").write_text("mine")
    before = contents(tmp_path)
    for out in (path / "out", path):
        assert "is inside" in refused(capsys, path, "--out", out)
    assert f"contains {NAME}, which is read" in refused(capsys, path, "--out", path.parent)
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        assert "cannot be written" in refused(capsys, path, "--out", out)
    assert contents(tmp_path) == before


def test_files_of_others_are_kept(clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, theirs, named = tmp_path / "out", tmp_path / "theirs", tmp_path / "named"
    for folder in (out / "mine", theirs, named / NAME):
        folder.mkdir(parents=True)
    (out / "mine" / "notes").write_text("kept")
    (out / "table.csv").write_text("kept")
    made(clean, out)
    (out / NAME / "notes").write_text("kept")
    assert made(clean, out)["was"] == "as before", "nothing is replaced"
    assert "notes: is not ours" in refused(capsys, clean, "--out", out, "--engine", "max_num_seqs=8")
    assert [(out / name).read_text() for name in ("mine/notes", "table.csv", f"{NAME}/notes")] == ["kept"] * 3
    (theirs / "experiments.yaml").write_text("version: 1")
    for folder in (theirs, named):
        assert "exists and is not an output of ours" in refused(capsys, clean, "--out", folder)


def test_a_full_disk_costs_no_finished_work(
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
        message = refused(capsys, clean, tmp_path / "other", "--out", out)
    assert f"{out / 'other'}: cannot be written (No space left on device)" in message
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
        assert "cannot be written (No space left" in refused(capsys, clean, "--out", tmp_path)
    assert made(clean, tmp_path)["was"] == "as before" and (tmp_path / "experiments.yaml").exists()


# ---- again, interrupted, side by side


@pytest.fixture(scope="module")
def many_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four folders of different sizes."""
    runs = tmp_path_factory.mktemp("many")
    for k in range(4):
        write_run(simulate(seed=20 + k, requests=20 + 30 * k), runs / f"2026010{k}-000000-tiny-llama-tp1-general")
    return runs


@pytest.fixture(scope="module")
def whole(many_folders: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("whole")
    assert ingest_command(many_folders, "--out", out) == 0
    return contents(out)


def started(runs: Path, out: Path) -> subprocess.Popen[str]:
    command = [*EVOLVE, "ingest", str(runs), "--out", str(out), "--hardware", GPU, "--workers", "2"]
    return subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_an_interrupted_ingest_continues(many_folders: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    process = started(many_folders, tmp_path)
    wait_for(lambda: any(tmp_path.glob("*/ingest.json")) or any(tmp_path.glob(".part-*/*")), process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert err == "evolve: interrupted; nothing is lost: `evolve ingest ...` goes on\n"
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]
    done = {p.parent.name: p.stat().st_mtime_ns for p in tmp_path.glob("2*/ingest.json")}
    assert len(done) < 4
    assert ingest_command(many_folders, "--out", tmp_path) == 0 and contents(tmp_path) == whole
    assert done.items() <= {p.parent.name: p.stat().st_mtime_ns for p in tmp_path.glob("2*/ingest.json")}.items()


@pytest.mark.slow
def test_a_killed_ingest_continues(
    many_folders: Path, whole: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = started(many_folders, tmp_path)
    wait_for(lambda: any(tmp_path.glob("2*/ingest.json")), process)
    kill(process)
    assert ingest_command(many_folders, "--out", tmp_path) == 0 and contents(tmp_path) == whole
    assert not capsys.readouterr().err


def test_a_second_ingest_reads_only_damaged_runs(
    many_folders: Path,
    whole: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, data in whole.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    with monkeypatch.context() as patch:
        patch.setattr("evolve.ingest.batch.ingest_folder", lambda *_: pytest.fail("it was read again"))
        assert ingest_command(many_folders, "--out", tmp_path) == 0
    assert capsys.readouterr().out.count("as before") == 4 and contents(tmp_path) == whole
    first, second, third, *others = sorted(path.name for path in many_folders.iterdir())
    (tmp_path / first / "steps.parquet").unlink()
    (tmp_path / second / "quality.json").write_text("{")
    (tmp_path / third / "ingest.json").write_text("[" * 10_000)
    assert ingest_command(many_folders, "--out", tmp_path, "--json") == 0
    reused = {run["run"] for run in json.loads(capsys.readouterr().out)["runs"] if run["was"] == "as before"}
    assert reused == set(others) and contents(tmp_path) == whole


def test_a_draft_left_by_a_kill_is_replaced_with_its_folder(clean: Path, tmp_path: Path) -> None:
    path, out = spoiled(clean, tmp_path), tmp_path / "out"
    made(path, out)
    (out / NAME / "ingest.json.4711.new").write_text("{")
    assert made(path, out)["was"] == "as before"
    assert made(path, out, max_num_seqs=8)["was"] == "replaced"
    assert not list(out.rglob("*.new"))


def test_changed_options_and_files_are_read_again(clean: Path, tmp_path: Path) -> None:
    path, out = spoiled(clean, tmp_path), tmp_path / "out"
    assert [made(path, out)["was"] for _ in range(2)] == ["made", "as before"]
    assert made(path, out, max_num_seqs=8)["was"] == "replaced"
    # options that are not given again are as they were
    assert made(path, out, max_num_seqs=8)["was"] == made(path, out)["was"] == "as before"
    with (path / KV).open("ab") as file:
        file.write(b"\n")
    assert made(path, out)["was"] == "replaced"
    assert "max_num_seqs: 8" in (out / "experiments.yaml").read_text()
    before = contents(out)
    table = out / NAME / "steps.parquet"
    table.write_bytes(table.read_bytes()[:1000])
    assert made(path, out)["was"] == "replaced" and contents(out) == before


def test_the_work_of_a_killed_worker_is_repeated(
    many_folders: Path, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel kills where memory runs out. If it continues to do so, the work is stopped."""
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


def test_experiments_keep_their_ids(clean: Path, other: Path, tmp_path: Path) -> None:
    """The run that comes later has the longer id, though its folder's name is first."""
    out, first = tmp_path / "out", "20250101-000000-tiny-llama-tp1-general"
    made(clean, out)
    made(Path(shutil.copytree(other, tmp_path / first)), out)
    made(clean, out, max_num_seqs=8)
    ids = {e["source_run"]: e["id"] for e in yaml.safe_load((out / "experiments.yaml").read_text())["experiments"]}
    assert ids == {first: first, NAME: "llama-2-7b-tp1-general"}


def test_a_model_without_a_run_is_reported(clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(TINY))
    assert ingest_command(clean, "--out", tmp_path / "out", "--model-config", f"my/model={config}") == 0
    assert "my/model: no run has this model" in capsys.readouterr().out


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
    all_lines[at] = json_line(tree)
    return b"".join(all_lines)


# The first seeds stand for the others: ten mutations each.
@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (3, 4, 5))])
def test_mutations_are_read_in_part_or_refused(clean: Path, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(10):
        key = rng.choice(("traces", "traces", "kv", "rows"))
        data = (clean / FILES[key]).read_bytes()
        damaged = mutated(data, rng) if rng.random() < 0.5 else mutated_value(data, rng, key == "rows")
        stdout, stderr = io.StringIO(), io.StringIO()
        with redirect_stdout(stdout), redirect_stderr(stderr):
            status = ingest_command(spoiled(clean, tmp_path, **{key: damaged}), "--out", tmp_path / "out")
        assert status in (0, 2) and stderr.getvalue().count("\n") == (status == 2), stderr.getvalue()
        if status == 0:
            quality = json.loads((tmp_path / "out" / NAME / "quality.json").read_text())
            warnings = [f for f in quality["findings"] if f["severity"] == "warning"]
            printed = "".join(stdout.getvalue().split())
            assert all("".join(f["text"].split()) in printed for f in warnings[:12])
