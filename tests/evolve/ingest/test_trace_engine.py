"""The small engine of traces follows vLLM's rules, records its own truth, and writes files in the specified forms.

The event table, the traps of the summaries and the formulas of the reports are those of trace-formats, by section.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from paths import SHARED
from trace_blocks import Pool, digest, low64
from trace_engine import HANDLING_NS, simulate
from trace_files import write
from trace_records import CoreSpan, Entry, Row, StepTruth, Truth
from trace_reports import Rows, report

SAMPLE = SHARED / "samples" / "20260101-000000-tiny-llama-tp1-general"
NAME = "20260102-000000-tiny-llama-tp1-general"
CASES: dict[str, dict[str, Any]] = yaml.safe_load("""
easy: {step_rate: 1.0, rich_rate: 1.0}
easy, one batch: {step_rate: 1.0, rich_rate: 1.0, asynchronous: false}
few blocks: {requests: 70, rates: [90.0, 200.0], blocks: 34, step_rate: 0.6, rich_rate: 0.7}
few blocks, one batch: {requests: 70, rates: [200.0], blocks: 34, asynchronous: false}
long prompts: {requests: 60, rates: [150.0], question_len: 300, max_num_batched_tokens: 120, max_num_seqs: 6,
  blocks: 60, abort_share: 0.5, rich_rate: 1.0}
long prompts, one batch: {requests: 60, rates: [150.0], question_len: 300, per_group: 30, max_num_batched_tokens: 120,
  max_num_seqs: 3, blocks: 200, abort_share: 0.5, asynchronous: false, stamps: n+1}
answers of all lengths: {requests: 70, rates: [300.0], blocks: 30, question_len: 100, output_len: 34, output_spread: 33}
short answers: {output_len: 2, output_spread: 1, rates: [120.0], coalesced: 1.0, step_rate: 1.0}
half: {journey_rate: 0.5, step_rate: 0.2, coalesced: 1.0, offload: false}
""")


@functools.cache
def run(case: str, seed: int = 5) -> Truth:
    return simulate(seed, **CASES[case])


@pytest.fixture(params=CASES)
def truth(request: pytest.FixtureRequest) -> Truth:
    return run(request.param)


@pytest.fixture(params=CASES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Truth, Path]:
    write(run(request.param), tmp_path / NAME)
    return run(request.param), tmp_path / NAME


def entries(truth: Truth) -> dict[str, list[tuple[StepTruth, Entry]]]:
    """Core id -> its shares of steps, in order."""
    found = defaultdict(list)
    for step in truth.steps:
        for entry in step.entries:
            found[entry.request_id].append((step, entry))
    return found


def processed(truth: Truth) -> Any:
    """The number of a request's tokens that had been processed when a step was scheduled."""
    tokens = {r.core_id: r.token_ns for r in truth.requests}
    return lambda request_id, step: sum(ns <= step.summary.start_ns for ns in tokens[request_id])


# the engine


def test_cases_reach_their_situations() -> None:
    for name in ("few blocks", "few blocks, one batch"):
        assert sum(r.preemptions for r in run(name).requests) > 5
    for name in ("long prompts", "long prompts, one batch"):
        gone = [r for r in run(name).requests if r.status == "aborted"]
        assert any(not r.admissions for r in gone)
        assert any(r.admissions and not r.output_tokens for r in gone)
        assert any(r.output_tokens for r in gone)
    late = [r for r in run("answers of all lengths").requests if r.preemptions == len(r.admissions)]
    assert any(r.status == "length" for r in late)  # preempted with the last token under way, never resumed
    full = [s.summary.running == 3 and s.summary.waiting > 0 for s in run("long prompts, one batch").steps]
    assert sum(full) > 10
    assert any(not s.entries for s in run("easy").steps)
    truth, count = run("few blocks"), processed(run("few blocks"))
    assert any(not count(e.request_id, s) for s in truth.steps for e in s.entries if e.role == "decode")
    # a recomputation counts as decode with its whole chunk
    assert any(s.summary.decode_tokens > s.summary.decode_requests for s in truth.steps)


def test_batches_in_flight(truth: Truth) -> None:
    """schedule(N + 1) follows the output of N, or where two batches fly that of N - 1; the cycle is the step's own
    execution or the one before (5.3)."""
    steps, steady = truth.steps, 0
    for before, step, after in zip(steps, steps[1:], steps[2:], strict=False):
        cycle_us = (after.summary.start_ns - step.summary.start_ns) / 1000
        if not truth.options.asynchronous:
            assert after.summary.start_ns >= step.handled_ns
            if step.entries and after.summary.start_ns - step.handled_ns < 10_000:
                spent = (step.summary.end_ns - step.summary.start_ns + HANDLING_NS) / 1000
                assert abs(cycle_us - step.exec_us - spent) < 20
                steady += 1
            continue
        assert after.summary.start_ns >= before.handled_ns
        if step.entries and not truth.options.abort_share:
            assert step.handled_ns > after.summary.end_ns  # the next batch is under way before this one's output
        if before.entries and step.entries and step.started_ns == before.ended_ns:
            steady += after.summary.start_ns - before.handled_ns < 10_000
    assert steady > len(steps) // 4


def test_a_repeated_prompt_is_cached_except_its_last_token() -> None:
    options = {"system_len": 48, "question_len": 80, "question_spread": 0, "requests": 12, "groups": 2, "per_group": 3}
    truth = simulate(1, **options, rates=(2.0,), output_spread=0, output_len=4, blocks=400)
    first, again = truth.requests[:6], truth.requests[6:]
    assert [r.admissions[0].cached for r in first] == [0, 48, 48, 0, 48, 48]
    assert {r.admissions[0].cached for r in again} == {112}  # 128 tokens: the last block is computed again
    uneven = simulate(1, **options | {"question_len": 85}, rates=(2.0,), output_spread=0, output_len=4, blocks=400)
    assert {r.admissions[0].cached for r in uneven.requests[6:]} == {128}  # of 133
    assert [r.prompt_text for r in first] == [r.prompt_text for r in again]
    assert len({r.prompt_text for r in first}) == 6


def test_the_least_recently_used_block_is_evicted_first() -> None:
    pool, digests = Pool(5), [digest(b"", [k]) for k in range(3)]
    blocks = pool.take((), 3)
    pool.store(blocks, digests, None, list(range(48)))
    pool.give(blocks)
    pool.take((), 2)  # never used
    assert pool.hits(digests, 3) == blocks
    assert not pool.fits(blocks[:2], 2) and pool.fits(blocks[:2], 1)
    pool.take((), 1)
    assert pool.events[1:] == [["BlockRemoved", [low64(digests[2])], "GPU"]]
    assert pool.hits(digests, 3) == blocks[:2]


def test_summaries_follow_the_batches(truth: Truth) -> None:
    """1.5: by processed tokens; what finished since the last schedule(); what was preempted in this one."""
    count = processed(truth)
    preempted = Counter(
        e.step for s in truth.records if isinstance(s, CoreSpan) for e in s.events if e.name == "PREEMPTED"
    )
    previous = 0
    for step in truth.steps:
        s = step.summary
        prefill = [e.new_tokens for e in step.entries if not count(e.request_id, step)]
        decode = [e.new_tokens for e in step.entries if count(e.request_id, step)]
        assert (s.prefill_requests, s.prefill_tokens) == (len(prefill), sum(prefill))
        assert (s.decode_requests, s.decode_tokens) == (len(decode), sum(decode))
        assert s.finished == sum(previous < r.finished_ns <= s.start_ns for r in truth.requests)
        assert s.preempted == preempted[s.step] or truth.options.journey_rate < 1
        previous = s.start_ns
        scheduled = {e.request_id: e for e in step.entries}
        for snapshot in s.snapshots:
            assert snapshot.outputs == count(snapshot.request_id, step)
            entry = scheduled.pop(snapshot.request_id, None)
            assert snapshot.scheduled == (entry.new_tokens if entry else 0)
            assert not entry or snapshot.computed == entry.kv_before
        assert not (step.rich and scheduled)


# the folder


def attributes(of: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for pair in of["attributes"]:
        ((kind, value),) = pair["value"].items()
        assert isinstance(value, {"intValue": str, "stringValue": str, "doubleValue": float}[kind])
        found[pair["key"]] = int(value) if kind == "intValue" else value
    return found


def spans(folder: Path) -> list[tuple[int, str, dict[str, Any]]]:
    """(line, scope, span) in the order of the file."""
    found = []
    for number, text in enumerate((folder / "traces.json").read_text().splitlines()):
        for process in json.loads(text)["resourceSpans"]:
            assert attributes(process["resource"])["service.name"] == "vllm-inference-perf"
            for scope in process["scopeSpans"]:
                found += [(number, scope["scope"]["name"], span) for span in scope["spans"]]
    return found


def test_journeys_follow_the_table(folder: tuple[Truth, Path]) -> None:
    """1.4: which step an event names, when it is stamped, and what it counts."""
    truth, path = folder
    requests = {r.core_id: r for r in truth.requests}
    steps = {s.step: s for s in truth.steps}
    shares = entries(truth)
    found = [span for _, scope, span in spans(path) if scope == "vllm.scheduler"]
    assert {attributes(s)["gen_ai.request.id"] for s in found} == {r.core_id for r in truth.requests if r.traced}
    for span in found:
        r = requests[attributes(span)["gen_ai.request.id"]]
        events = [attributes(e) | {"name": e["name"], "epoch": int(e["timeUnixNano"])} for e in span["events"]]
        assert events[0]["name"] == "journey.QUEUED" and events[-1]["name"] == "journey.FINISHED"
        kinds, preemptions, high = [], 0, 0
        for e in events:
            ns, step, name = e["ts.monotonic_ns"], e["scheduler.step"], e["event.type"]
            preemptions += name == "PREEMPTED"
            assert e["name"] == "journey." + name
            assert e["ts.monotonic"] == ns / 1e9
            assert abs(e["epoch"] - ns - truth.offsets.epoch_minus_server_ns) <= 256
            assert (e["prefill.total_tokens"], e["decode.max_tokens"]) == (r.prompt_tokens, r.max_tokens)
            assert e["num_preemptions"] == preemptions
            assert e["decode.done_tokens"] == sum(t <= ns for t in r.token_ns)
            assert high <= (high := e["prefill.done_tokens"]) <= r.prompt_tokens
            done = "DECODE" if e["decode.done_tokens"] else "PREFILL"
            assert e["phase"] == ("WAITING" if name == "QUEUED" else done)
            counter = max((s.step for s in truth.steps if s.summary.start_ns <= ns), default=0)
            if name == "QUEUED":
                assert (step, ns) == (counter, r.queued_ns)
            elif name in ("SCHEDULED", "PREEMPTED"):
                assert steps[step].summary.start_ns < ns < steps[step].summary.end_ns
                assert (step in r.steps) == (name == "SCHEDULED")
                before = [x.kv_after for s, x in shares[r.core_id] if s.step < step]
                assert e["prefill.done_tokens"] == min(max(before, default=0), r.prompt_tokens)
            elif name == "FIRST_TOKEN":
                assert step == next(s.step for s, x in shares[r.core_id] if x.produces_token)
                assert ns == steps[step].handled_ns == r.first_token_ns
                assert e["prefill.done_tokens"] == r.prompt_tokens
            elif e["finish.status"] == "length":
                assert (step, ns) == (r.steps[-1], steps[step].handled_ns)
            else:
                assert step == counter
            if name == "SCHEDULED":
                kinds.append(e["schedule.kind"])
                assert step == r.admissions[len(kinds) - 1].step
        assert kinds == ["FIRST", "RESUME", *["RESUME"] * r.preemptions][: len(r.admissions)]
        assert events[-1]["finish.status"] == r.status
        assert events[-1]["decode.done_tokens"] == r.output_tokens


def test_output_tokens_have_the_published_quirks() -> None:
    rows = [(r.row.output_tokens, r.output_tokens) for seed in range(6) for r in run("easy", seed).requests]
    assert sum(told == n + 1 for told, n in rows) > 0.8 * len(rows)
    assert any(told == 0 for told, _ in rows)
    assert any(0 < told <= n for told, n in rows)


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    texts = []
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        write(simulate(seed, **CASES["few blocks"]), tmp_path / name / NAME)
        texts.append({p.relative_to(tmp_path / name): p.read_bytes() for p in sorted((tmp_path / name).rglob("*.*"))})
    assert texts[0] == texts[1]
    assert len(texts[0]) == 11
    changed = {p.name for p, text in texts[0].items() if texts[2][p] != text}
    assert {"traces.json", "kv_events.jsonl", "per_request_lifecycle_metrics.json"} <= changed


# against the sample, made independently


def shapes(of: Any) -> Any:
    """Keys in order and kinds of values, lists by the kinds in them."""
    if isinstance(of, dict):
        return tuple((k, shapes(v)) for k, v in of.items())
    if isinstance(of, list):
        return tuple(sorted({repr(shapes(v)) for v in of}))
    return type(of).__name__


def kinds_of_spans(folder: Path) -> dict[str, set[str]]:
    found = defaultdict(set)
    for _, scope, span in spans(folder):
        found[scope].add(repr([(k, shapes(v)) for k, v in span.items() if k not in ("attributes", "events")]))
        found[scope + " attributes"].add(
            repr([shapes(a) for a in span["attributes"]] + [a["key"] for a in span["attributes"]])
        )
        for e in span["events"]:
            found[e["name"]].add(repr([list(e), [(a["key"], shapes(a)) for a in e["attributes"]]]))
    for text in (folder / "traces.json").read_text().splitlines():
        for process in json.loads(text)["resourceSpans"]:
            names = {scope["scope"]["name"].split(".")[1] for scope in process["scopeSpans"]}
            found[f"process of {min(names)}"].add(repr([list(process), process["resource"]]))
            assert len(names) == 1
    return dict(found)


def test_the_files_have_the_forms_of_the_sample(tmp_path: Path) -> None:
    if not SAMPLE.is_dir():
        pytest.skip("../shared absent: no sample to compare forms with")
    forms: dict[str, set[str]] = defaultdict(set)
    for case in ("few blocks", "long prompts"):
        write(run(case), tmp_path / case / NAME)
        for name, kinds in kinds_of_spans(tmp_path / case / NAME).items():
            forms[name] |= kinds
    assert forms == kinds_of_spans(SAMPLE)
    mine = tmp_path / "long prompts" / NAME
    for name in ("results/per_request_lifecycle_metrics.json", "results/stage_0_lifecycle_metrics.json"):
        left, right = (json.loads((f / name).read_text()) for f in (mine, SAMPLE))
        if isinstance(left, list):
            assert shapes(left) == shapes(right)
        else:
            left["failures"] = right["failures"] = None  # the sample's first stage has none
            assert shapes(left) == shapes(right)
    for name in ("exp-config.yaml", "profile.yaml", "results/config.yaml"):
        left, right = (yaml.safe_load((f / name).read_text()) for f in (mine, SAMPLE))
        assert list(left) == list(right)
        assert [list(v) for v in left.values() if isinstance(v, dict)] == [
            list(v) for v in right.values() if isinstance(v, dict)
        ]
    left, right = ((f / "vllm.log").read_text() for f in (mine, SAMPLE))
    assert re.sub(r"\d[\d,.]*", "#", left) == re.sub(r"\d[\d,.]*", "#", right)
    events = [
        {
            (e[0], len(e), tuple(type(v).__name__ for v in e if v is not None))
            for t in (f / "kv_events.jsonl").read_text().splitlines()
            for e in json.loads(t)[1]
        }
        for f in (mine, SAMPLE)
    ]
    assert events[0] == events[1]
    row = json.loads((mine / "results/per_request_lifecycle_metrics.json").read_text())
    assert (mine / "results/per_request_lifecycle_metrics.json").read_text() == json.dumps(row, indent=2) + "\n"


@pytest.mark.parametrize("stage", [0, 1, None])
def test_the_rows_of_the_sample_give_its_reports(stage: int | None) -> None:
    """The sample's rows, put through these formulas, give the sample's reports; the schedule's delays are not in rows."""
    if not SAMPLE.is_dir():
        pytest.skip("../shared absent: no reports to compare with")
    rows = json.loads((SAMPLE / "results/per_request_lifecycle_metrics.json").read_text())
    rows.sort(key=lambda row: row["start_time"])
    rows = rows[:6] if stage == 0 else rows[6:] if stage == 1 else rows  # 6 requests in the first stage
    gathered = Rows()
    for row in rows:
        info = row["info"]
        of = (info["input_tokens"], info["output_tokens"], tuple(info["output_token_times"]))
        gathered.add(Row(row["start_time"], row["end_time"], "", 0, *of, row["error"] is not None, 0.0, 0))
    name = "summary" if stage is None else f"stage_{stage}"
    expected = json.loads((SAMPLE / f"results/{name}_lifecycle_metrics.json").read_text())
    told = report([gathered], None if stage is None else (6.0, 7.0)[stage])
    for part in (told, expected):
        del part["load_summary"]["schedule_delay"]
    flat, wanted = dict(_leaves(told)), dict(_leaves(expected))
    assert list(flat) == list(wanted)
    for place, value in wanted.items():
        assert flat[place] is None if value is None else flat[place] == pytest.approx(value, rel=1e-4, abs=1e-8), place


def _leaves(of: Any, place: str = "") -> Any:
    if isinstance(of, dict):
        for key, value in of.items():
            yield from _leaves(value, f"{place}/{key}")
    else:
        yield place, of
