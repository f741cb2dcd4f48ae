"""Traces as files: every format in its published form, and each damaged in many ways."""

from __future__ import annotations

import random
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from trace_tables import (
    AZURE,
    BAILIAN,
    BENCHMARK,
    BURSTGPT,
    HEAD,
    MOONCAKE,
    complaint,
    experiment,
    lines,
    trace_of,
    written,
)

from simulator.clock.replay import replay
from simulator.common.errors import InputError
from simulator.language.complete import complete
from simulator.language.parse import parse
from simulator.serving.load import load_of
from simulator.serving.trace import repeated_share
from simulator.serving.traces.read import files_beside, read_trace

DATES = [datetime(2026, 6, 11, 0, 0, i) for i in range(3)]
PLAIN = HEAD + "\n0.5,10,3\n2.0,20,4\n1.25,30,5\n"
PIECES: dict[str, Any] = {"arrival_s": [0.0, 1.0, 3.5], "input_len": [100, 90, 7], "output_len": [3, 4, 2]}
PIECES |= {"hash_ids": [[5, 9], [5], None], "hash_tokens": [64, 64, 64]}
QUEUED_NS = 1_893_456_000_000_000_000
OURS: dict[str, Any] = {"start_s": [0.0, 1.5, 2.5], "prompt_tokens": [60, None, 70], "output_tokens": [4, None, 5]}
OURS |= {"prompt": [3, None, 3], "stage": [0, 0, 0], "e2e_ms": [90.0, 95.0, 99.0], "ttft_ms": [20.0, 21.0, 22.0]}
OURS |= {"completed": [True, False, True], "queued_ns": [QUEUED_NS] * 3}
OURS |= {"client_prompt_tokens": [61, 65, 71], "max_tokens": [4, 6, 5]}
SERVER: dict[str, Any] = dict.fromkeys(("start_s", "e2e_ms", "ttft_ms"), pa.array([None, None], pa.float64()))
SERVER |= {"prompt_tokens": [60, 70], "output_tokens": [4, 5], "queued_ns": [QUEUED_NS, QUEUED_NS + 2_500_000_000]}
SERVER |= {"server_e2e_us": [9000.0, 9500.0], "server_ttft_us": [900.0, 950.0]}
# file: (content, arrivals in us, prompts, answers in tokens)
FORMATS: dict[str, tuple[Any, list[int], list[int], list[int]]] = {
    "plain.csv": (PLAIN, [0, 750_000, 1_500_000], [10, 30, 20], [3, 5, 4]),
    "marked.csv": ("\ufeff" + PLAIN.replace("\n", "\r\n"), [0, 750_000, 1_500_000], [10, 30, 20], [3, 5, 4]),
    "pieces.parquet": (PIECES, [0, 1_000_000, 3_500_000], [100, 90, 7], [3, 4, 2]),
    "ingested.parquet": (OURS, [0, 1_500_000, 2_500_000], [60, 65, 70], [4, 6, 5]),
    "server.parquet": (SERVER, [0, 2_500_000], [60, 70], [4, 5]),
    "mooncake.jsonl": (lines(MOONCAKE), [0, 3_000_000, 6_000_000], [1300, 1400, 600], [5, 4, 3]),
    "bailian.jsonl": (lines(BAILIAN), [0, 1_500_000], [20, 33], [5, 4]),
    "azure.csv": (AZURE, [0, 52_000, 99_000], [4808, 3180, 110], [10, 8, 27]),
    "azure24.csv": (AZURE.replace("9799600", "979960+00:00"), [0, 52_000, 99_000], [4808, 3180, 110], [10, 8, 27]),
    "burstgpt.csv": (BURSTGPT, [0, 113_000_000], [472, 417], [18, 276]),
    "benchmark.json": (BENCHMARK, [0, 400_000], [512, 640], [2, 3]),
}
PROGRAM = complete(parse("def step_time(b, s, *, a=5000.0, c=20.0): return a + c * b.prefill_tokens"))


@pytest.mark.parametrize("name", FORMATS)
def test_a_published_form_is_read_and_replayed(name: str, tmp_path: Path) -> None:
    content, arrivals, prompts, answers = FORMATS[name]
    r = trace_of(tmp_path, name, content).requests
    assert (r.arrival_us.tolist(), r.input_len.tolist(), r.output_len.tolist()) == (arrivals, prompts, answers)
    assert r.stage.tolist() == [0] * len(r) and not r.deadline_us.any()
    e = experiment(tmp_path, {"trace": name}, engine={"max_model_len": 8192})
    assert len(e.workload.stages) == 1 and load_of(e, 5).requests is load_of(e, 6).requests
    seen = replay(e, PROGRAM, 1)
    assert seen.completed.all()
    assert (seen.ttft_us >= 5000 + 20 * (r.input_len - seen.spread(seen.run.cached) * 16)).all()


def test_optional_columns(tmp_path: Path) -> None:
    rows = "0,100,3,7,2,64,,50,5,1\n1,100,3,7,,,30,60,6,1\n2,100,3,9,2,64,,,,1\n3,100,3,,-1,,0.5,70,7,0\n"
    trace = trace_of(
        tmp_path, "t.csv", HEAD + ",prompt,prefix_group,prefix_len,timeout_s,e2e_ms,ttft_ms,completed\n" + rows
    )
    r, recorded = trace.requests, trace.recorded
    assert r.prompt.tolist() == [0, 0, -1, -1]  # that of a single request is nobody's
    assert r.group.tolist() == [0, -1, 0, -1] and r.shared_len.tolist() == [64, 0, 64, 0]
    assert r.deadline_us.tolist() == [0, 31_000_000, 0, 3_500_000]
    assert recorded is not None
    np.testing.assert_array_equal(recorded.e2e_ms, [50, 60, np.nan, np.nan])
    e = experiment(tmp_path, {"trace": "t.csv"})
    assert e.observed is not None and e.observed.summary is not None
    summary = e.observed.summary
    assert (summary.e2e_ms.mean, summary.ttft_ms.mean, summary.itl_ms.mean) == (55.0, 5.5, (45 / 2 + 54 / 2) / 2)
    assert (summary.completed, summary.failed) == (2, 2) and len(e.observed.stages) == 1
    patient = experiment(tmp_path, {"trace": "t.csv", "timeout_s": 9}).workload
    assert patient.source != e.workload.source  # another load, for all that keeps what is known of one
    assert load_of(experiment(tmp_path, {"trace": "t.csv", "timeout_s": 9}), 1).requests.deadline_us[2] == 11_000_000


def test_turns_of_a_conversation_share_what_was_said(tmp_path: Path) -> None:
    """The second turn's 200 tokens begin with 100 + 30 of the first, of 320 prompt tokens in all."""
    rows = "0,100,30,7\n1,20,30,\n2,200,30,7\n"
    shared = {name: trace_of(tmp_path, "t.csv", HEAD + f",{name}\n" + rows) for name in ("conversation", "prompt")}
    for name, tokens in ("conversation", 130), ("prompt", 100):
        r = shared[name].requests
        assert r.prompt.tolist() == [0, -1, 0] and r.turns == (name == "conversation")
        assert repeated_share(r) == tokens / 320


def test_times_to_first_token_alone_are_observed(tmp_path: Path) -> None:
    written(tmp_path, "t.csv", HEAD + ",ttft_ms\n0,100,3,20\n1,100,3,40\n2,100,3,\n")
    observed = experiment(tmp_path, {"trace": "t.csv"}).observed
    assert observed is not None and observed.summary is not None
    assert (observed.summary.ttft_ms.mean, observed.summary.e2e_ms.mean) == (30.0, None)
    assert (observed.summary.completed, observed.summary.failed) == (2, 1)


def test_what_is_left_out_is_noted(tmp_path: Path) -> None:
    written(tmp_path, "b.csv", BURSTGPT)
    note = "1 of 3 requests of b.csv have no tokens or no arrival: left out"
    assert experiment(tmp_path, {"trace": "b.csv"}).notes == (note,)


def test_pieces_are_numbered_and_those_without_a_number_are_their_own(tmp_path: Path) -> None:
    chains = trace_of(tmp_path, "pieces.parquet", PIECES).requests.chains
    assert chains is not None and chains.piece_len == 64
    a, b, c = (chains.number[chains.first[i] : chains.first[i + 1]].tolist() for i in range(3))
    assert a[0] == b[0] and len({*a, *b, *c}) == 4 and [len(x) for x in (a, b, c)] == [2, 2, 1]


def test_an_infinite_latency_is_refused(tmp_path: Path) -> None:
    rows = [f"{i / 2},100,50,{'inf' if i == 2 else 2000}" for i in range(9)]
    with pytest.raises(InputError, match=r"t\.csv:4: e2e_ms is inf"):
        trace_of(tmp_path, "t.csv", "\n".join([HEAD + ",e2e_ms", *rows]))


@pytest.mark.parametrize(
    ("gap", "e2e_ms", "unit"),
    [(0.5, 2, "latencies are in s, give ms"), (100, 2000, "arrivals are in ms, give seconds"), (0.1, 2000, None)],
)
def test_latencies_and_arrivals_of_another_unit_are_noted(gap: float, e2e_ms: int, unit: str, tmp_path: Path) -> None:
    """Ten requests/s of 2 s each are 20 in flight, and a thousandth of that if ms are taken for seconds."""
    rows = [f"{gap * i},100,50,{e2e_ms}" for i in range(300)]
    notes = trace_of(tmp_path, "t.csv", "\n".join([HEAD + ",e2e_ms", *rows])).notes
    assert len(notes) == (unit is not None) and all(note.endswith(f"if its {unit}") for note in notes)


@pytest.mark.parametrize(
    ("first", "gap", "requests", "said"),
    [
        (0, 500, 2000, "arrival_s of t.csv spans 999,500 s, 12 days, and its 2,000 requests come 500 s apart (median)"),
        (7, 20_000, 300, "arrival_s of t.csv spans 5,980,000 s, 69 days, and its 300 requests come 20,000 s apart"),
        (1.75e12, 50, 10, "arrival_s of t.csv begins at 1750000000000, which is no date in seconds since 1970"),
        (0, 1200, 504, None),  # three an hour, for a week
        (1.75e9, 1200, 2160, None),  # for a month, by the clock
        (0, 60, 5000, None),
    ],
)
def test_arrivals_that_are_hardly_seconds_are_noted_without_latencies(
    first: float, gap: float, requests: int, said: str | None, tmp_path: Path
) -> None:
    rows = [f"{first + gap * i:.0f},100,50" for i in range(requests)]
    notes = trace_of(tmp_path, "t.csv", "\n".join([HEAD, *rows])).notes
    assert len(notes) == (said is not None) and all(note.startswith(said or "") for note in notes)


def test_nights_without_requests_are_no_milliseconds(tmp_path: Path) -> None:
    rows = [f"{86_400 * (i // 100) + 20 * (i % 100)},100,50" for i in range(9000)]
    assert trace_of(tmp_path, "t.csv", "\n".join([HEAD, *rows])).notes == ()


LEFT_OUT = "1 of 3 requests of b.{} have no tokens or no arrival: left out"
TEN = "".join(f",{i}_s" for i in range(10))


@pytest.mark.parametrize(
    ("name", "content", "notes"),
    [
        ("t.csv", f"{HEAD},e2e_s,user\n0,100,3,20,7\n", ["the column 'e2e_s' is not read: did you mean 'e2e_ms'?"]),
        ("t.csv", f"{HEAD},E2E_ms,TTFT (ms)\n0,100,3,20,7\n", ["the column 'E2E_ms' is", "the column 'TTFT (ms)' is"]),
        ("b.json", BENCHMARK | {"model_id": "meta-llama/Llama-3.1-8B"}, [LEFT_OUT.format("json")]),
        ("t.csv", f"{HEAD},hash_ids\n0,100,3,5\n", ["the column hash_ids is not read: a CSV file has no lists"]),
        ("t.csv", f"{HEAD},prompt,prompts\n0,100,3,1,1\n", []),
        ("p.parquet", PIECES | {"timeout": [1, 2, 3]}, ["the column 'timeout' is not read: did you mean 'timeout_s'?"]),
        ("p.parquet", PIECES, []),
        ("t.csv", f"{HEAD},latency_ms,first_token_ms,e2e_ms\n0,100,3,20,9,20\n", ["the columns 'latency_ms', 'first"]),
        ("t.csv", f"{HEAD},e2e_ms,ttft_ms,Prompt Tokens\n0,100,3,20,9,7\n", ["the column 'Prompt Tokens' is not read"]),
        (
            "t.csv",
            f"{HEAD}{TEN}\n0,100,3{',1' * 10}\n",
            ["the columns '0_s', '1_s', '2_s', '3_s', '4_s', '5_s', '6_s'"],
        ),
        ("i.parquet", OURS | {"queue_ms": [1, 2, 3]}, []),
        ("b.csv", BURSTGPT, [LEFT_OUT.format("csv")]),
    ],
)
def test_a_column_that_is_nearly_one_of_ours_is_noted(
    name: str, content: Any, notes: list[str], tmp_path: Path
) -> None:
    found = trace_of(tmp_path, name, content).notes
    assert len(found) == len(notes) and all(map(str.startswith, found, notes))


def test_a_request_of_a_benchmark_without_times_failed(tmp_path: Path) -> None:
    """Of four answered requests one has no TTFT, one null for all ITLs, and one null among them."""
    detailed: dict[str, Any] = {
        "input_lens": [9] * 5,
        "output_lens": [2, 2, 2, 3, None],
        "start_times": [1, 2, 3, 4, 5],
    }
    detailed |= {"ttfts": [0.04, None, 0.04, 0.04, 0.04], "itls": [[0.02], [0.02], None, [0.02, None], []]}
    written(tmp_path, "b.json", BENCHMARK | detailed)
    e = experiment(tmp_path, {"trace": "b.json"})
    assert e.observed is not None and e.observed.summary is not None
    summary = e.observed.summary
    assert (summary.completed, summary.failed, summary.e2e_ms.mean) == (1, 3, pytest.approx(60.0))
    assert e.notes[0].startswith("3 of 5 requests of b.json have output tokens, but no time to first token")
    assert e.notes[1] == "1 of 5 requests of b.json have no tokens or no arrival: left out"


# the model of the file, the one that the benchmark says, and the end of the note
SERVED = """
llama-3.1-8b | meta-llama/Llama-3.1-8B-Instruct |
llama-3.1-8b | /weights/Meta-Llama-3.1-8B-Instruct/ |
mistral-nemo-12b | mistralai/Mistral-Nemo-Instruct-2407 |
llama-3.1-8b | our-fine-tune | 'our-fine-tune', as it says
qwen3-14b | Qwen/Qwen3-14B-FP8 | 'Qwen/Qwen3-14B-FP8', as it says
llama-3.1-8b | Qwen/Qwen2.5-7B-Instruct | not on llama-3.1-8b: name the model that was measured
llama-3.1-8b | meta-llama/Llama-3.2-1B | not on llama-3.1-8b: name the model that was measured
llama-3.1-8b | google/gemma-8b | not on llama-3.1-8b: name the model that was measured
"""


@pytest.mark.parametrize("case", SERVED.strip().splitlines())
def test_another_model_than_that_of_the_file_is_noted(case: str, tmp_path: Path) -> None:
    model, said, end = (cell.strip() for cell in case.split("|"))
    written(tmp_path, "b.json", BENCHMARK | {"model_id": said})
    notes = experiment(tmp_path, {"trace": "b.json"}, model=model).notes
    found = [note for note in notes if note.startswith("b.json was measured on")]
    assert len(found) == bool(end) and all(note.endswith(end) for note in found)


MANY_PIECES = {"arrival_s": [0.0] * 9, "input_len": [10**7] * 9, "output_len": [1] * 9, "hash_ids": [[1]] * 9}
MANY_PIECES |= {"hash_tokens": [1] * 9}
IN_LOOP = BENCHMARK | {"max_concurrency": 2}
SECONDS = BENCHMARK | {"ttfts": [41, 38, 0]}


def without(given: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name != key}


DAMAGED: list[tuple[str, Any, str]] = [
    ("t.csv", "", "t.csv: is empty: begin with the names of the columns"),
    ("t.csv", HEAD + "\n", "t.csv: holds no request: give a row for each below the header"),
    ("t.csv", "input_len,output_len\n1,2\n", "t.csv: the column arrival_s is missing among input_len, output_len:"),
    ("t.csv", HEAD + ",input_len\n0,1,2,3\n", "t.csv: has the column input_len twice: leave one out"),
    ("t.csv", HEAD + "\n0,10,3\n2026-06-11T00:00:02.608Z,10,3\n", "t.csv:3: arrival_s is '2026-06-11T00:00:02.608Z'"),
    ("p.parquet", PIECES | {"arrival_s": DATES}, "p.parquet: arrival_s is of dates (timestamp[us]): give seconds"),
    ("t.csv", HEAD + "\n\n0,10,3\n\n1,x,3\n", "t.csv:5: input_len is 'x': give a number that fits"),
    ("t.csv", HEAD + "\n\n0,10,3\n\n1,,3\n", "t.csv:5: input_len is empty: give a number"),
    ("t.csv", HEAD + "\n\n0,10,3\n\n1,10\n", "t.csv:5: has 2 fields but the header has 3: correct the line"),
    ("t.csv", HEAD + "\n0,10,3\n1,10", "t.csv:3: has 2 fields but the header has 3: correct the line"),
    ("t.csv", HEAD + "\n0,10,3\n\n1,-10,3\n", "t.csv:4: input_len is -10: give whole tokens from 1 to 1e+07"),
    ("t.csv", HEAD + "\n0,10.5,3\n", "t.csv:2: input_len is 10.5: give whole tokens from 1 to 1e+07"),
    ("t.csv", HEAD + "\n0,0,3\n", "t.csv: no request has an arrival, a prompt and an answer: name another file"),
    ("t.csv", HEAD + "\n0,10,3\n1e10,10,3\n", "t.csv:3: arrives 1e+10 s after the first, at most 1e+09 are replayed"),
    ("t.csv", HEAD + ",prompt\n0,10,3,\n1,10,3,1.5\n", "t.csv:3: prompt is 1.5: give whole numbers from -1 to"),
    ("t.csv", HEAD + ",prompt,conversation\n0,10,3,1,1\n", "t.csv: prompt and conversation exclude each other"),
    (
        "t.csv",
        HEAD + ",conversation,prefix_group,prefix_len\n0,10,3,1,5,8\n1,30,3,1,5,9\n",
        "t.csv:3: has another prefix than its conversation",
    ),
    ("t.csv", HEAD + ",prefix_group\n0,10,3,1\n", "t.csv: prefix_group and prefix_len go together"),
    ("t.csv", HEAD + ",prefix_group,prefix_len\n0,10,3,1,11\n", "t.csv:2: prefix_len is above input_len"),
    ("t.csv", HEAD + ",stage\n0,10,3,1\n1,10,3,0\n", "t.csv:3: its stage is below that of an earlier arrival"),
    ("t.csv", HEAD + ",stage\n0,10,3,0\n0,10,3,1\n", "t.csv:3: its stage begins at the same time as that before"),
    ("t.csv", HEAD + ",e2e_ms,ttft_ms\n0,10,3,5,11\n", "t.csv:2: ttft_ms is 11, above e2e_ms, 5"),
    ("t.csv", HEAD + ",completed\n0,10,3,2\n", "t.csv:2: completed is 2: give whole numbers from 0 to 1"),
    ("t.csv", HEAD + ",completed\n0,10,3,True\n", "t.csv:2: completed is 'True': give 1 or 0"),
    ("t.csv", HEAD.replace(",", ";") + "\n0;10;3\n", "t.csv:1: has semicolons between the names of columns"),
    ("a.csv", AZURE.replace("GeneratedTokens", "Generated"), "a.csv: the column GeneratedTokens is missing among"),
    ("t.csv", HEAD.encode("utf-16"), "t.csv:1: is not text: name a CSV file"),
    ("a.csv", AZURE.replace("2023-11-16 18:17:04.0319600", "yesterday"), "a.csv:3: TIMESTAMP is 'yesterday'"),
    ("b.csv", BURSTGPT.replace("417", ""), "b.csv:4: Request tokens is empty: give a number"),
    ("p.parquet", b"", "p.parquet: is not a parquet file with these columns (Parquet file size is 0 bytes)"),
    ("p.parquet", PIECES | {"arrival_s": ["a", "b", "c"]}, "p.parquet: is not a parquet file with these columns"),
    ("p.parquet", PIECES | {"input_len": [100, -3, 7]}, "p.parquet: row 1: input_len is -3"),
    ("p.parquet", without(PIECES, "hash_tokens"), "p.parquet: hash_ids and hash_tokens go"),
    ("p.parquet", PIECES | {"hash_tokens": [64, 64, 32]}, "p.parquet: hash_tokens differs from row to row"),
    ("p.parquet", PIECES | {"hash_tokens": [0, 0, 0]}, "p.parquet: hash_tokens is 0"),
    ("p.parquet", PIECES | {"hash_ids": ["a", "b", "c"]}, "p.parquet: hash_ids must be lists of whole numbers, got"),
    ("p.parquet", PIECES | {"hash_ids": [[1], [2, None], [3]]}, "p.parquet: row 1: hash_ids has an empty item"),
    ("p.parquet", without(SERVER, "queued_ns"), "p.parquet: no request has an arrival, a"),
    ("p.parquet", MANY_PIECES, "p.parquet: its prompts have 90,000,000 pieces, at most 5e+07 are replayed"),
    ("m.jsonl", "", "m.jsonl: Empty JSON file: write a JSON object on each line"),
    ("m.jsonl", lines(MOONCAKE) + "nonsense\n", "m.jsonl:4: is not JSON: correct or remove the line"),
    ("m.jsonl", "[1, 2]\n", "m.jsonl:1: must be an object with timestamp, input_length, output_length: correct it"),
    ("m.jsonl", lines(MOONCAKE).replace("1400", '"1400"'), "m.jsonl:2: input_length is '1400': give a number"),
    ("m.jsonl", lines([*MOONCAKE, {"timestamp": 1}]), "m.jsonl:4: input_length is missing: give a number"),
    ("m.jsonl", lines(MOONCAKE).replace("[0, 4]", '[0, "x"]'), "m.jsonl:3: hash_ids must be a list of whole numbers"),
    ("m.jsonl", lines(MOONCAKE).replace("[0, 4]", "[0, null]"), "m.jsonl:3: hash_ids has an empty item"),
    ("m.jsonl", lines(MOONCAKE).replace("[0, 4]", "[0, 4, 5]"), "m.jsonl:3: hash_ids has 3 pieces for 600 tokens"),
    ("m.jsonl", "\n" + lines(MOONCAKE).replace("600,", "-600,"), "m.jsonl:4: input_len is -600"),
    ("m.jsonl", lines(MOONCAKE).replace("[0, 4]", f"[0, {2**63}]"), "m.jsonl:3: hash_ids has"),
    ("t.csv.gz", b"\x1f\x8b\x08", "t.csv.gz: is compressed: unpack it, and name the file that comes out"),
    *(("v.json", other, "v.json: is JSON of no known format: a trace has") for other in ([], {"requests": []}, 5)),
    ("v.json", {"model_id": "m"}, "v.json: is a result of vLLM's benchmark without requests, no trace: `evolve ingest"),
    ("v.json", lines([BENCHMARK] * 2), "v.json: has 2 results, no trace: `evolve ingest --trace"),
    ("v.json", without(IN_LOOP, "start_times"), "v.json: does not say when requests were sent: `evolve ingest"),
    ("v.json", BENCHMARK | {"ttfts": [0.1]}, "v.json: ttfts must be a list with one entry a request"),
    ("v.json", BENCHMARK | {"start_times": [1, 10**310, 3]}, "v.json: start_times[1] must be a finite number, got 10"),
    ("v.json", BENCHMARK | {"itls": [[0.1], "x", []]}, "v.json: itls[1] must be a list of seconds, got 'x'"),
    ("v.json", without(BENCHMARK, "itls"), "v.json: has no itls, without which no request's E2E"),
    ("v.json", without(BENCHMARK, "ttfts"), "v.json: has no ttfts, without which no request's TTFT"),
    ("v.json", SECONDS | {"itls": [[12], [12, 13], []], "duration": 1.9}, "v.json: a request takes 58 s in the mean"),
    ("v.json", SECONDS | {"duration": 600, "mean_ttft_ms": 39.5}, "v.json: the mean of ttfts is 39.5 s, but mean_ttft"),
    ("v.json", BENCHMARK | {"itls": [[-9], [1], []]}, "v.json: request 0: e2e_ms is -8959"),
]


@pytest.mark.parametrize(("name", "content", "message"), DAMAGED, ids=[f"{n}-{m[-40:]}" for n, _, m in DAMAGED])
def test_a_damaged_file_is_refused_in_one_line(name: str, content: Any, message: str, tmp_path: Path) -> None:
    said = complaint(tmp_path, name, content)
    assert said.startswith(message) and ": " in said.removeprefix(f"{name}: ")  # a problem, and a remedy


# name, content, the file that the line of the message writes, its arrivals
REMEDIED: list[tuple[str, Any, str, list[int]]] = [
    ("I.csv", HEAD + "\n2026-06-11T00:00:02.608Z,9,3\n2026-06-11T00:00:05Z,9,3\n", "OUT.csv", [0, 2_392_000]),
    ("I.parquet", {"arrival_s": DATES[1:], "input_len": [9, 9], "output_len": [3, 3]}, "OUT.csv", [0, 1_000_000]),
    ("I.csv", "t,input_len,output_len\n0,100,3\n2.5,100,3\n", "OUT.csv", [0, 2_500_000]),
]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a short line leaves its file open
@pytest.mark.parametrize(("name", "content", "out", "arrivals"), REMEDIED)
def test_the_line_of_python_in_a_message_makes_a_trace(
    name: str, content: Any, out: str, arrivals: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(complaint(tmp_path, name, content).split("`")[1].replace("'IN'", f"'{name}'").replace("YOURS", "t"), {})
    assert read_trace(tmp_path / out, out).requests.arrival_us.tolist() == arrivals


@pytest.mark.parametrize("name", ["none.csv", "x" * 300 + ".csv", "."])
def test_a_file_that_cannot_be_opened(name: str, tmp_path: Path) -> None:
    for read in (lambda: read_trace(tmp_path / name, name), lambda: files_beside(tmp_path / "my.yaml").lengths(name)):
        with pytest.raises(InputError, match=r"^[^\n]*$"):
            read()


@pytest.mark.parametrize("name", FORMATS)
def test_bytes_changed_anywhere_are_read_or_refused_in_one_line(name: str, tmp_path: Path) -> None:
    """Flipped bits, other bytes, cuts and repeats at random places."""
    sound = written(tmp_path, name, FORMATS[name][0]).read_bytes()
    rng = random.Random(7)
    for _ in range(150):
        data = bytearray(sound)
        for _ in range(rng.choice([1, 1, 2, 10])):
            i = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[i] ^= 1 << rng.randrange(8)
                case 1:
                    data[i] = rng.randrange(256)
                case 2:
                    del data[i : i + rng.randrange(1, 20)]
                case _:
                    data[i:i] = data[i : i + rng.randrange(1, 20)]
            data = data or bytearray(b" ")
        try:
            r = trace_of(tmp_path, name, bytes(data)).requests
        except InputError as e:
            assert "\n" not in str(e) and str(e).startswith(str(tmp_path / name))
            continue
        assert len(r) and (r.input_len > 0).all() and (np.diff(r.arrival_us) >= 0).all()


def test_a_parquet_file_of_another_program(tmp_path: Path) -> None:
    """Small integers, dictionaries and several row groups, as other writers choose them."""
    arrivals, inputs, outputs = pa.array([3, 1, 2], pa.uint8()), pa.array([5, 6, 7], pa.int16()), [2.0, 3.0, 4.0]
    columns = {"arrival_s": arrivals, "input_len": inputs, "output_len": pa.array(outputs, pa.float32())}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=1, compression="gzip")
    r = read_trace(tmp_path / "t.parquet", "t").requests
    assert (r.arrival_us.tolist(), r.input_len.tolist()) == ([0, 1_000_000, 2_000_000], [6, 7, 5])
