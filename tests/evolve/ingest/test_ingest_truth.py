"""The output of `evolve ingest` equals the truth of the small engine that made the traces.

Journeys name steps, not tokens, so a step's batch is put together from several sources. `exact` ones must be right
always; of the `inferred` ones the share that is right was measured (SHARES), and may not fall.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from trace_engine import HANDLING_NS, simulate
from trace_files import write
from trace_records import MODEL, TINY, CoreSpan, RequestTruth, StepTruth, Truth

from evolve.ingest.batch import ingest
from evolve.ingest.options import Given
from evolve.ingest.read.sources import look
from simulator.clock.fields import Active, raw_fields
from simulator.schema import RECORDED

NAME = "20260102-000000-tiny-llama-tp1-general"
PER_REQUEST = "results/per_request_lifecycle_metrics.json"
REPORTS = "results/*_lifecycle_metrics.json"
BUSY: dict[str, Any] = {"requests": 100, "rates": (30.0, 60.0)}
TIGHT: dict[str, Any] = {"requests": 80, "rates": (20.0, 80.0), "blocks": 50}
LONG: dict[str, Any] = {"requests": 60, "rates": (30.0,), "max_num_batched_tokens": 48, "max_num_seqs": 8}
CUT_SHORT: dict[str, Any] = {"requests": 120, "rates": (20.0,), "offload": False, "max_num_batched_tokens": 32}
TWICE: dict[str, Any] = {"requests": 120, "rates": (10.0, 80.0), "offload": False, "max_num_batched_tokens": 64}
BURSTS: dict[str, Any] = {"requests": 80, "rates": (400.0,), "output_spread": 0, "max_num_seqs": 64, "blocks": 1000}
# Options of the engine; `without` are sources taken away from the folder.
CASES: dict[str, dict[str, Any]] = {
    "plain": {"seed": 1},
    "one batch": {"seed": 2, "asynchronous": False},
    "all steps": {"seed": 3, "step_rate": 1.0, "rich_rate": 1.0},
    "all steps, one batch": {"seed": 4, "step_rate": 1.0, "rich_rate": 0.0, "asynchronous": False},
    "a third": {"seed": 5, "step_rate": 0.3, "rich_rate": 0.1, **BUSY},
    "a tenth": {"seed": 6, "step_rate": 0.1, "rich_rate": 0.1, "offload": False, **BUSY},
    "no steps": {"seed": 7, "step_rate": 0.0, **BUSY},
    "no steps, no offload": {"seed": 8, "step_rate": 0.0, "offload": False, **BUSY},
    "few blocks": {"seed": 9, "step_rate": 0.3, "rich_rate": 0.3, **TIGHT},
    "few blocks, summaries": {"seed": 10, "step_rate": 1.0, "rich_rate": 0.0, "offload": False, **TIGHT},
    "few blocks, one batch": {"seed": 11, "step_rate": 1.0, "asynchronous": False, **TIGHT},
    "few blocks, no steps": {"seed": 12, "step_rate": 0.0, **TIGHT},
    "few blocks, small budget": {"seed": 13, "step_rate": 0.3, "rich_rate": 0.1, **TIGHT, **LONG},
    "chunks": {"seed": 14, "step_rate": 0.5, "rich_rate": 0.5, **LONG},
    "chunks, a tenth": {"seed": 15, "step_rate": 0.1, "rich_rate": 0.1, "offload": False, **LONG},
    "chunks, one batch": {"seed": 16, "step_rate": 0.3, "rich_rate": 0.0, "asynchronous": False, **LONG},
    "cut short": {"seed": 105, "blocks": 50, "step_rate": 0.1, "rich_rate": 0.1, **CUT_SHORT},
    "resumed twice": {"seed": 118, "blocks": 64, "step_rate": 0.3, "rich_rate": 0.0, **TWICE},
    "aborts": {"seed": 17, "abort_share": 0.2, "step_rate": 1.0, "rich_rate": 1.0},
    "aborts, a tenth": {"seed": 18, "abort_share": 0.2, "step_rate": 0.1, "rich_rate": 0.1, **BUSY, **LONG},
    "n+1": {"seed": 19, "stamps": "n+1", "coalesced": 0.5},
    "coalesced": {"seed": 20, "coalesced": 1.0},
    "bursts": {"seed": 21, **BURSTS},
    "no kv": {"seed": 22, "step_rate": 0.3, "rich_rate": 0.3, **BUSY, "without": "kv_events.jsonl"},
    "no kv, no steps": {"seed": 23, "step_rate": 0.0, **BUSY, "without": "kv_events.jsonl"},
    "no rows": {"seed": 24, "step_rate": 0.3, "rich_rate": 0.1, **BUSY, "without": PER_REQUEST},
    "no log": {"seed": 25, "step_rate": 0.5, "without": "vllm.log"},
    "no log, one batch": {"seed": 26, "step_rate": 0.5, "asynchronous": False, "without": "vllm.log"},
    "no reports": {"seed": 27, "rates": (20.0, 40.0), "abort_share": 0.05, "without": REPORTS},
}

SHARES = {"few blocks, small budget": 0.97}
"""Of the inferred steps; all where no figure stands. Measured over all cases: 899 of 902 are right, in this one 135 of
138; over 60 random options beside these 4954 of 4970."""
GIVEN = Given("H100-SXM-80GB", {}, {MODEL: TINY})


class Made:
    """A case's truth, and everything that was written of it."""

    def __init__(self, home: Path, without: str = "", **options: Any) -> None:
        self.without = without
        self.truth: Truth = simulate(**options)
        folder = home / NAME
        write(self.truth, folder)
        for path in folder.glob(without) if without else ():
            if without == PER_REQUEST or path != folder / PER_REQUEST:
                path.unlink()
        (run,) = ingest([look(folder)], home / "out", GIVEN, 1, lambda run, n: None, lambda run: None)
        self.quality = run.to_json()
        self.out = home / "out"

    def table(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(self.out / NAME / f"{name}.parquet").to_pylist()
        return rows

    @cached_property
    def requests(self) -> list[dict[str, Any]]:
        return self.table("requests")

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        return self.table("steps")

    @cached_property
    def told(self) -> dict[str, RequestTruth]:
        return {r.core_id: r for r in self.truth.requests}

    @cached_property
    def ran(self) -> dict[int, StepTruth]:
        return {s.step: s for s in self.truth.steps}

    @cached_property
    def experiment(self) -> dict[str, Any]:
        (found,) = yaml.safe_load((self.out / "experiments.yaml").read_text())["experiments"]
        assert isinstance(found, dict)
        return found

    def entries(self, row: dict[str, Any]) -> list[tuple[Any, ...]]:
        ids = [r["request_id"] for r in self.requests]
        return sorted((ids[e["request"]], e["prefill"], e["new_tokens"], e["kv_before"]) for e in row["batch"] or ())

    def true_entries(self, step: int) -> list[tuple[Any, ...]]:
        found = self.ran[step].entries if step in self.ran else ()
        return sorted((e.request_id, e.role == "prefill", e.new_tokens, e.kv_before) for e in found)

    def right(self, row: dict[str, Any]) -> bool:
        return self.entries(row) == self.true_entries(row["step_id"])


@pytest.fixture(scope="module")
def cases() -> dict[str, Made]:
    return {}


@pytest.fixture
def made(request: pytest.FixtureRequest, cases: dict[str, Made], tmp_path_factory: pytest.TempPathFactory) -> Made:
    name: str = request.param
    if name not in cases:
        cases[name] = Made(tmp_path_factory.mktemp("made"), **CASES[name])
    return cases[name]


def of(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("made", names or list(CASES), indirect=True)


ROWS = [name for name, case in CASES.items() if case.get("without") != PER_REQUEST]


# steps


@of()
def test_exact_batches_are_the_engines(made: Made) -> None:
    exact = [row for row in made.steps if row["evidence"] == "exact"]
    assert exact
    for row in exact:
        assert made.right(row), (row["step_id"], made.entries(row), made.true_entries(row["step_id"]))


@of()
def test_every_step_that_ran_is_there(made: Made) -> None:
    there = {row["step_id"] for row in made.steps if row["batch"]}
    assert there == {step for step, s in made.ran.items() if s.entries}
    sampled = {row["step_id"] for row in made.steps if row["sampled"]}
    assert sampled == set(made.truth.sampled_steps)


@of()
def test_inferred_batches_are_mostly_the_engines(made: Made, request: pytest.FixtureRequest) -> None:
    inferred = [row for row in made.steps if row["evidence"] == "inferred"]
    right = sum(made.right(row) for row in inferred)
    assert right >= SHARES.get(request.node.callspec.params["made"], 1.0) * len(inferred)


BLOCKS = [name for name, case in CASES.items() if case.get("without") not in ("kv_events.jsonl", PER_REQUEST)]


@of(*BLOCKS)
def test_blocks_leave_few_batches_without_evidence(made: Made) -> None:
    # a prefill cut short before it has filled a block leaves nothing; the most, 4 of 294, with few blocks, small budget
    assumed = [row for row in made.steps if row["evidence"] == "assumed"]
    assert len(assumed) <= 0.015 * len(made.steps)


@of("cut short")
def test_prefills_cut_short_are_known_by_their_blocks(made: Made) -> None:
    # 27 admissions that nothing else tells of; without their prompts' hashes 81 of the 730 batches are wrong
    assert sum(len(r.admissions) for r in made.truth.requests) > len(made.truth.requests) + 20
    assert all(made.right(row) for row in made.steps)


@of()
def test_raw_columns_are_the_hosts_view_of_the_batch(made: Made) -> None:
    begun = {(r.core_id, a.step) for r in made.truth.requests for a in r.admissions}
    compared = 0
    for row in made.steps:
        if row["evidence"] == "contradicted":
            assert {row[name] for name in RECORDED} == {None}
        elif made.right(row):
            entries = made.ran[row["step_id"]].entries if row["step_id"] in made.ran else ()
            progress = [0 if (e.request_id, row["step_id"]) in begun else e.kv_before for e in entries]
            targets = [2**30 if e.role == "prefill" else 0 for e in entries]
            batch = [Active(t, p, e.new_tokens) for t, p, e in zip(targets, progress, entries, strict=True)]
            raw = raw_fields(batch)
            expected = {name: raw[name] for name in RECORDED}
            assert {name: row[name] for name in RECORDED} == pytest.approx(expected, rel=1e-12), row["step_id"]
            assert row["kv_read_tokens"] == sum(e.kv_before for e in entries)
            compared += 1
    assert compared > 0.9 * len(made.steps)


@of()
def test_the_published_batches_are_never_better(made: Made) -> None:
    ids = [r["request_id"] for r in made.requests]
    wrong: Counter[str] = Counter()
    for row in made.steps:
        true = Counter((i, p, n, None if p else kv) for i, p, n, kv in made.true_entries(row["step_id"]))
        ours = Counter((i, p, n, None if p else kv) for i, p, n, kv in made.entries(row))
        theirs = Counter(
            (ids[e["request"]], e["prefill"], e["tokens"], None if e["prefill"] else e["context"] - 1)
            for e in row["published"] or ()
        )
        for name, entries in (("ours", ours), ("theirs", theirs)):
            wrong[name] += (entries - true).total() + (true - entries).total()
    assert wrong["ours"] < wrong["theirs"]


@of()
def test_summaries_are_reproduced(made: Made) -> None:
    batches = made.quality["batches"]
    assert batches["summaries"] == len(made.truth.sampled_steps)
    assert batches["summaries_reproduced"] == batches["summaries"]
    assert batches["summaries_reproduced_as_published"] <= batches["summaries"]
    assert batches["asynchronous"] == made.truth.options.asynchronous


@of()
def test_summaries_are_carried_over(made: Made) -> None:
    rows = {row["step_id"]: row for row in made.steps if row["sampled"]}
    for step in made.truth.sampled_steps:
        s, row = made.ran[step].summary, rows[step]
        assert (row["ts_start_ns"], row["ts_end_ns"]) == (s.start_ns, s.end_ns)
        assert row["duration_us"] == (s.end_ns - s.start_ns) // 1000
        assert (row["running_depth"], row["waiting_depth"]) == (s.running, s.waiting)
        assert (row["summary_finished"], row["summary_preempted"]) == (s.finished, s.preempted)
        assert (row["kv_blocks_total"], row["kv_blocks_free"]) == (s.total_blocks, s.free_blocks)
        assert row["kv_usage_ratio"] == pytest.approx(1 - s.free_blocks / s.total_blocks)
    train, valid = round(0.6 * len(rows)), round(0.2 * len(rows))
    split = dict(zip(sorted(rows), ["train"] * train + ["valid"] * valid + ["test"] * len(rows), strict=False))
    assert {step: row["split"] for step, row in rows.items()} == split
    assert all(cycle["split"] == split[cycle["step_id"]] for cycle in made.table("cycles"))


# cycles


PAIRS = [name for name, case in CASES.items() if case.get("step_rate", 0.5) >= 0.3]


@of(*PAIRS)
def test_cycles_are_the_execution_that_they_measure(made: Made) -> None:
    rows = made.table("cycles")
    usable = [c for c in rows if c["usable"]]
    assert len(usable) > 0.5 * len(rows) > 0
    off = []
    for c in usable:
        assert c["measures"] == c["step_id"] - made.truth.options.asynchronous
        step = made.ran[c["measures"]]
        assert step.exec_us > 0, c
        cpu_us = (step.summary.end_ns - step.summary.start_ns + HANDLING_NS) / 1e3
        off.append(c["cycle_us"] - step.exec_us - (0 if made.truth.options.asynchronous else cpu_us))
    assert np.median(np.abs(off)) <= 3
    # a request that arrives, or leaves, takes 1 us; a step whose successor had to wait differs by an output's handling
    assert max(np.abs(off)) < HANDLING_NS / 1e3 + 20


# requests


@of()
def test_requests_are_those_of_the_engine(made: Made) -> None:
    rows = {row["request_id"]: row for row in made.requests}
    assert set(rows) == set(made.told)
    for core, true in made.told.items():
        row = rows[core]
        assert row["api_id"] == true.api_id
        assert row["prompt_tokens"] == true.prompt_tokens
        assert row["preemptions"] == true.preemptions
        assert row["finish_status"] == true.status
        assert row["usable"] == (true.status == "length")
        assert row["output_tokens"] == true.output_tokens
        assert row["first_step"] == (true.admissions[0].step if true.admissions else None)
        times = ("queued_ns", "scheduled_ns", "first_token_ns", "finished_ns")
        assert [row[name] for name in times] == [getattr(true, name) for name in times]
        # written as seconds in double precision
        assert abs(row["arrived_ns"] - true.arrived_ns) <= 120
        if row["departed_ns"] is not None:
            assert abs(row["departed_ns"] - true.left_ns) <= 120
            assert abs(row["finish_to_departure_us"] - (true.left_ns - true.finished_ns) / 1e3) < 1
        assert abs(row["arrival_to_queue_us"] - (true.queued_ns - true.arrived_ns) / 1e3) < 1


@of()
def test_cached_prompts(made: Made) -> None:
    right = told = 0
    for row in made.requests:
        admissions = made.told[row["request_id"]].admissions
        if not admissions:
            assert row["cached_tokens"] is None
            continue
        assert row["cached_tokens"] + row["computed_tokens"] == row["prompt_tokens"]
        good = row["cached_tokens"] == admissions[0].cached
        if row["cached_how"] in ("snapshot", "summary", "short"):
            assert good, row
        elif row["cached_how"] in ("kv_events", "prompt"):
            told += 1
            right += good
    assert right == told


@of()
def test_labels_are_those_of_the_events(made: Made) -> None:
    events = {s.request_id: s.events for s in made.truth.records if isinstance(s, CoreSpan)}
    for row in made.requests:
        true = made.told[row["request_id"]]
        if None in (true.scheduled_ns, true.first_token_ns):
            assert row["server_ttft_us"] is None
            continue
        gaps, gone = {"PREFILL": 0, "DECODE": 0}, 0
        for e in events[row["request_id"]]:
            if e.name == "PREEMPTED":
                gone = e.ns
            elif e.name == "SCHEDULED" and gone:
                gaps[e.phase] += e.ns - gone
                gone = 0
        queued, first, done = true.queued_ns, true.first_token_ns, true.finished_ns
        prefill, decode = first - true.scheduled_ns - gaps["PREFILL"], done - first - gaps["DECODE"]
        assert row["queueing_us"] == (true.scheduled_ns - queued) / 1e3
        assert row["server_ttft_us"] == (first - queued) / 1e3
        assert row["server_e2e_us"] == (done - queued) / 1e3
        assert row["prefill_processing_us"] == prefill / 1e3
        assert row["decode_processing_us"] == decode / 1e3
        assert row["processing_us"] == (prefill + decode) / 1e3


@of()
def test_intervals_are_the_steps_it_ran_in(made: Made) -> None:
    for row in made.requests:
        true = made.told[row["request_id"]]
        if true.status != "length":
            continue
        spans = [(i["start_step"], i["end_step"], i["prefill"]) for i in row["intervals"]]
        assert [s for start, end, _ in spans for s in range(start, end + 1)] == list(true.steps)
        assert row["last_step"] == true.steps[-1]
        kinds = [prefill for *_, prefill in spans]
        assert kinds == sorted(kinds, reverse=True)


@of(*ROWS)
def test_client_rows(made: Made) -> None:
    told = sorted(made.truth.requests, key=lambda r: r.row.start_time)
    rows = [row for row in made.requests if row["client_index"] is not None]
    assert [row["client_index"] for row in rows] == list(range(len(told)))
    assert made.quality["requests"]["matched_with_client"] == len(told)
    apart = made.truth.options.rates[0] < 400
    texts: dict[int, str] = {}
    exchanged = 0
    for row, true in zip(rows, told, strict=True):
        r = true.row
        if apart and row["request_id"] != true.core_id:
            # they reached the server in the other order, and nothing but their prompts tells them apart
            other = made.told[row["request_id"]]
            assert abs(other.row.start_time - r.start_time) < 0.001 and other.max_tokens == r.max_tokens
            exchanged += 1
        assert row["completed"] is not r.failed
        assert row["stage"] == r.stage
        assert row["error"] == ("TimeoutError" if r.failed else None)
        assert row["max_tokens"] == r.max_tokens
        assert (row["client_prompt_tokens"], row["client_output_tokens"]) == (r.input_tokens, r.output_tokens)
        assert texts.setdefault(row["prompt"], r.prompt) == r.prompt
        assert row["start_s"] == pytest.approx(r.start_time - told[0].row.start_time, abs=1e-9)
        assert row["e2e_ms"] == pytest.approx((r.end_time - r.start_time) * 1e3, abs=1e-6)
        if r.failed:
            assert row["token_times_us"] is None and row["ttft_ms"] is None and row["itl_ms"] is None
            continue
        times = (np.array(true.token_times) - r.start_time) * 1e6
        assert row["stamps"] == made.truth.options.stamps
        assert len(row["token_times_us"]) == true.output_tokens
        assert np.abs(np.array(row["token_times_us"]) - times).max() <= 1
        assert row["ttft_ms"] == pytest.approx(times[0] / 1e3, abs=1e-6)
        itl = (row["e2e_ms"] - row["ttft_ms"]) / (true.output_tokens - 1)
        assert row["itl_ms"] == pytest.approx(itl)
    assert len(set(texts.values())) == len(texts)
    assert exchanged <= 2


@of("no rows")
def test_without_client_rows_the_server_speaks(made: Made) -> None:
    for row in made.requests:
        assert row["client_index"] is None and row["e2e_ms"] is None and row["token_times_us"] is None
        assert row["completed"] is row["usable"]
    assert "per-request report" in made.quality["missing"]


@of(*ROWS)
def test_clocks(made: Made) -> None:
    clocks, true = made.quality["clocks"], made.truth.offsets
    assert true.client_minus_server_s - 0.010 < clocks["client_minus_server_s"] < true.client_minus_server_s
    assert clocks["epoch_minus_server_s"] == pytest.approx(true.epoch_minus_server_ns / 1e9, abs=1e-6)
    assert clocks["epoch_spread_s"] < 1e-6


# figures of the run


@of()
def test_alpha_targets(made: Made) -> None:
    whole = [r for r in made.truth.requests if r.status == "length"]
    alpha = made.quality["alpha_targets"]
    assert alpha["requests"] == len(whole)
    before = np.array([(r.queued_ns - r.arrived_ns) / 1e3 for r in whole])
    after = np.array([(r.left_ns - r.finished_ns) / 1e3 for r in whole])
    tokens = np.array([r.output_tokens for r in whole])
    told = alpha["finish_to_departure_us"]
    assert alpha["arrival_to_queue_us"]["mean"] == pytest.approx(before.mean(), abs=0.2)
    assert alpha["arrival_to_queue_us"]["sd"] == pytest.approx(before.std(), abs=0.2)
    assert told["mean"] == pytest.approx(after.mean(), abs=0.2)
    if len(set(tokens.tolist())) == 1:  # nothing tells a constant from a part per token
        assert told["constant"] is None and told["per_output_token"] is None
        return
    assert told["constant"] + told["per_output_token"] * tokens.mean() == pytest.approx(after.mean(), rel=1e-3)
    assert told["constant"] >= 0 and told["per_output_token"] >= 0


@of()
def test_parts_of_the_latency_add_up(made: Made) -> None:
    whole = [r for r in made.truth.requests if r.status == "length"]
    assert made.experiment["x_components_requests"] == len(whole)
    parts = made.experiment["x_components_ms"]
    if made.without == PER_REQUEST:
        expected = np.mean([(r.left_ns - r.arrived_ns) / 1e6 for r in whole])
        assert "client" not in parts
    else:
        expected = np.mean([(r.row.end_time - r.row.start_time) * 1e3 for r in whole])
    assert sum(parts.values()) == pytest.approx(expected, abs=0.001)
    assert min(parts.values()) >= 0


def test_observed_from_rows_is_observed_from_reports(tmp_path: Path) -> None:
    options = {"seed": 27, "rates": (20.0, 40.0), "abort_share": 0.05}
    reports, rows = (
        Made(tmp_path / str(len(without)), without, **options).experiment["observed"] for without in ("", REPORTS)
    )
    assert len(rows["stages"]) == 2
    for ours, theirs in zip([rows["summary"], *rows["stages"]], [reports["summary"], *reports["stages"]], strict=True):
        assert theirs.pop("harness_itl_mean_ms") > 0
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert ours[key] == pytest.approx(value, abs=0.0011), key


def test_coalesced_events_leave_first_and_last_time(tmp_path: Path) -> None:
    truth, folder = simulate(seed=28, coalesced=0.0), tmp_path / NAME
    write(truth, folder)
    path = folder / PER_REQUEST
    rows = json.loads(path.read_text())
    for row in rows:  # the server put the third and fourth token into one event
        del row["info"]["output_token_times"][6:8]
    path.write_text(json.dumps(rows))
    quality, found = carried_out(tmp_path, folder)
    assert quality["requests"]["stamps"] == {"other": len(rows)}
    told = {r.core_id: r for r in truth.requests}
    for row in found:
        true = told[row["request_id"]]
        assert row["token_times_us"] is None
        assert row["output_tokens"] == true.output_tokens
        assert row["ttft_ms"] == pytest.approx((true.token_times[0] - true.row.start_time) * 1e3, abs=1e-6)


@pytest.mark.parametrize("rate", [0.95, 0.8, 0.3])
def test_sampled_journeys_give_no_batches_and_no_wrong_rows(tmp_path: Path, rate: float) -> None:
    # at 0.95 it is 85 of this seed's 100 requests
    truth, folder = simulate(seed=10, requests=100, journey_rate=rate), tmp_path / NAME
    write(truth, folder)
    quality, found = carried_out(tmp_path, folder)
    traced = {r.core_id for r in truth.requests if r.traced}
    assert quality["batches"] is None
    assert any("too few to reconstruct batches" in f["text"] for f in quality["findings"])
    assert quality["requests"]["matched_with_client"] == len(traced) == quality["requests"]["journeys"]
    rows = [row for row in found if row["client_index"] is not None]
    told = sorted(truth.requests, key=lambda r: r.row.start_time)
    for row, true in zip(rows, told, strict=True):
        assert row["request_id"] == (true.core_id if true.traced else None)
        assert row["output_tokens"] == true.output_tokens
        times = (np.array(true.token_times) - true.row.start_time) * 1e6
        assert np.abs(np.array(row["token_times_us"]) - times).max() <= 1
    steps = pq.read_table(tmp_path / "out" / NAME / "steps.parquet").to_pylist()
    assert [row["step_id"] for row in steps] == truth.sampled_steps
    assert {row["batch"] for row in steps} == {row["evidence"] for row in steps} == {None}


def carried_out(tmp_path: Path, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The quality report and the requests table of a folder."""
    (run,) = ingest([look(folder)], tmp_path / "out", GIVEN, 1, lambda run, n: None, lambda run: None)
    return run.to_json(), pq.read_table(tmp_path / "out" / folder.name / "requests.parquet").to_pylist()


def test_side_by_side_gives_the_same_bytes(tmp_path: Path) -> None:
    folders = [tmp_path / f"2026010{k}-000000-tiny-llama-tp1-general" for k in (2, 3)]
    for k, folder in enumerate(folders):
        write(simulate(seed=40 + k, requests=60, blocks=60, step_rate=0.3), folder)
    for workers in (1, 2):
        found = [look(folder) for folder in folders]
        ingest(found, tmp_path / f"out{workers}", GIVEN, workers, lambda run, n: None, lambda run: None)
    one, two = (
        {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}
        for out in (tmp_path / "out1", tmp_path / "out2")
    )
    assert len(one) == 2 * 7 + 1
    assert one == two
