"""TraceV2 by hand: how the host makes requests of its columns, what it cannot hold, and how bad files are refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from simulator.clock.bind import bind
from simulator.clock.replay import Replay, replay_bound
from simulator.common.errors import InputError
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.serving.load import EngineLimits, Load
from simulator.serving.trace import Requests
from simulator.serving.traces import tracev2
from simulator.serving.traces.tracev2 import COLUMNS, NEVER, Header, Recording, TraceServer

HEADER = "trace_version: 2\ntime_unit: microseconds\nmode: real\nwarm_up_requests: 1\n"
EPOCH = 1_790_000_000_000_000  # of send times: microseconds since 1970, as the host's observe has them
ROW = dict.fromkeys(COLUMNS, "") | {"streaming": "true", "input_tokens": "10", "output_tokens": "5", "status": "ok"}
ROW |= {name: "0" for name in COLUMNS if name.endswith(("_us", "_length", "_index", "_chunks", "_ratio"))}
ROW |= dict.fromkeys(("request_id", "text_tokens", "image_tokens", "audio_tokens", "video_tokens"), "0")
ROW["server_input_tokens"] = "0"


def written(tmp_path: Path, *rows: dict[str, object], header: str = HEADER, names: tuple[str, ...] = COLUMNS) -> Path:
    """A folder with header.yaml and data.csv; a row has ROW's values and its own."""
    (tmp_path / "header.yaml").write_text(header)
    lines = [",".join(str({**ROW, **row}.get(name, "")) for name in names) for row in rows]
    (tmp_path / "data.csv").write_text("\n".join([",".join(names), *lines]) + "\n")
    return tmp_path


def read(folder: Path) -> Recording:
    return tracev2.read_recording(folder / "header.yaml", folder / "data.csv")


def test_prompts_are_the_prefix_and_the_rest_or_what_the_server_counted(tmp_path: Path) -> None:
    """The host prepends a group's prefix, as long as the group's first row with one says, to every prompt of the group,
    and takes the server's count of a prompt in no group."""
    r = read(
        written(
            tmp_path,
            {"request_id": 0, "prefix_group": "b", "prefix_length": 0, "server_input_tokens": 999},
            {"request_id": 1, "prefix_group": "b", "prefix_length": 32},
            {"request_id": 2, "prefix_group": "b", "prefix_length": 64, "input_tokens": 0},
            {"request_id": 3, "prefix_group": "a", "prefix_length": 16},
            {"request_id": 4, "server_input_tokens": 17},
            {"request_id": 5, "prefix_length": 8},
        )
    ).requests
    assert r.input_len.tolist() == [42, 42, 32, 26, 17, 10]
    assert r.group.tolist() == [0, 0, 0, 1, -1, -1]
    assert r.shared_len.tolist() == [32, 32, 32, 16, 0, 0]


def test_send_times_are_moved_to_the_clock_of_arrivals(tmp_path: Path) -> None:
    """The first request waited 300 us for a connection, the other 500 us: the host injects them at their send times,
    moved so that the earliest is at the earliest arrival. Deadlines are on the clock of arrivals already."""
    late: dict[str, object] = {
        "request_id": 1,
        "arrival_time_us": 2000,
        "send_time_us": EPOCH + 2500,
        "deadline_us": 9000,
    }
    late |= {"first_chunk_time_us": EPOCH + 2700, "last_chunk_time_us": EPOCH + 3000, "streaming": "False"}
    lost = {"request_id": 0, "arrival_time_us": 1000, "send_time_us": EPOCH + 1300, "status": "timeout"}
    recording = read(written(tmp_path, late, lost))
    assert recording.number.tolist() == [0, 1] and recording.line.tolist() == [3, 2]
    assert recording.requests.arrival_us.tolist() == [1000, 2200]
    assert recording.requests.deadline_us.tolist() == [0, 9000]
    assert (recording.first_us.tolist(), recording.last_us.tolist()) == ([NEVER, 2400], [NEVER, 2700])
    assert (recording.status.tolist(), recording.streamed.tolist()) == (["timeout", "ok"], [True, False])
    assert recording.warm_up.tolist() == [True, False]


def test_optional_columns_are_found_by_name(tmp_path: Path) -> None:
    names = list(COLUMNS)
    names.insert(names.index("slo_class") + 1, "vllm_priority")
    names.insert(names.index("deadline_us") + 1, "slo_target_us")
    row = {"vllm_priority": 3, "slo_target_us": 7, "adapter": "x", "input_tokens": 21, "arrival_time_us": 5}
    recording = read(written(tmp_path, row, names=(*names, "x_request_id", "adapter")))
    assert recording.requests.input_len.tolist() == [21] and recording.requests.arrival_us.tolist() == [5]


def test_a_message_may_contain_line_breaks(tmp_path: Path) -> None:
    """The line of a later error counts them: the second request begins in line 4."""
    folder = written(tmp_path, {"error_message": '"refused\nby the server"'}, {"request_id": 1, "output_tokens": "x"})
    with pytest.raises(InputError, match=r"data\.csv:4: output_tokens is 'x': give a whole number of tokens"):
        read(folder)


GROWTH = HEADER + "session_context_growth: accumulate\n"
NAMES = (*COLUMNS, "input_tokens_reset")


def turn(number: int, session: str, rounds: int, tokens: int, answer: int, **row: object) -> dict[str, object]:
    """A round of a session, a second after that of the number before."""
    about = {"request_id": number, "session_id": session, "round_index": rounds, "arrival_time_us": 1_000_000 * number}
    return about | {"input_tokens": tokens, "output_tokens": answer, **row}


CHAT = (turn(0, "a", 0, 100, 50), turn(1, "a", 1, 30, 40), turn(2, "a", 2, 25, 20))


def test_a_prompt_is_all_that_was_said_where_sessions_accumulate(tmp_path: Path) -> None:
    """By the host's rule, prompt + answer + what is new: 100, 100 + 50 + 30 = 180, 180 + 40 + 25 = 245 tokens.

    Session b has a prefix of 32 tokens, which its first round says: 32 + 10, 42 + 5 + 8. Then it begins another text of
    60 tokens, without the prefix, and goes on with it: 60 + 5 + 7. The server's count is of whole prompts, and is read
    in the first round alone; that of request 7 is no session's.
    """
    b = (
        turn(3, "b", 0, 10, 5, prefix_group="p", prefix_length=32),
        turn(4, "b", 1, 8, 5, server_input_tokens=55),
        turn(5, "b", 2, 0, 5, input_tokens_reset=60),
        turn(6, "b", 3, 7, 5),
    )
    rows = (*CHAT, *b, {"request_id": 7, "arrival_time_us": 7_000_000, "server_input_tokens": 17})
    r = read(written(tmp_path, *rows[::-1], header=GROWTH, names=NAMES)).requests
    assert r.input_len.tolist() == [100, 180, 245, 42, 55, 60, 72, 17]
    assert r.turns and r.prompt.tolist() == [0, 0, 0, 1, 1, 2, 2, -1]
    assert r.group.tolist() == [-1, -1, -1, 0, 0, -1, -1, -1] and r.shared_len.tolist() == [0] * 3 + [32] * 2 + [0] * 3


def test_later_rounds_find_earlier_prompts_and_answers_in_the_cache(tmp_path: Path) -> None:
    """Whole blocks of 16 tokens of what was said: (100 + 50) // 16 = 9 and (180 + 40) // 16 = 13. A step is as long as
    its prompt tokens: 100, 180 - 144, 245 - 208. Without growth the rounds are prompts of 100, 30 and 25 tokens, and as
    whole prompts 180 and 245 are computed."""
    bound = bind(assemble(program := parse("def step_time(b, s): return 1 + b.prefill_tokens")), program.theta, {})
    limits = EngineLimits(8, 2048, 0, 16, 1000)

    def ran(*rows: dict[str, object], header: str) -> Replay:
        return replay_bound(Load(read(written(tmp_path, *rows, header=header, names=NAMES)).requests, limits), bound)

    seen = ran(*CHAT, header=GROWTH)
    assert seen.run.cached.tolist() == [0, 9, 13] and seen.ttft_us.tolist() == [101, 37, 38]
    assert ran(*CHAT, header=HEADER).ttft_us.tolist() == [101, 31, 26]
    whole = [row | {"input_tokens": tokens} for row, tokens in zip(CHAT, (100, 180, 245), strict=True)]
    absolute = ran(*whole, header=HEADER)
    assert absolute.run.cached.tolist() == [0, 0, 0] and absolute.ttft_us.tolist() == [101, 181, 246]


def test_a_missing_round_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data\.csv:3: round_index is 2: the rounds of a session are numbered 0, 1"):
        read(written(tmp_path, CHAT[0], CHAT[2], header=GROWTH))
    assert read(written(tmp_path, CHAT[0], CHAT[2])).requests.input_len.tolist() == [100, 25]


@pytest.mark.parametrize(
    ("rows", "header", "said"),
    [
        # 180 tokens of which 150 were said, and 245 of which 220 were: 370 of 525
        ((CHAT[0], CHAT[1] | {"input_tokens": 180}, CHAT[2] | {"input_tokens": 245}), "", "2 of 3 requests .* 70.5 %"),
        (
            ({"vllm_priority": 0}, {"vllm_priority": 3}, {"vllm_priority": 3}),
            "",
            r"vllm_priority differs \(0 1, 3 2 of 3",
        ),
        (({"slo_class": "batch"}, {}), "", r"slo_class differs \(batch 1, standard 1 of 2 requests"),
        (({"model": "m/x"}, {"model": "m/y"}), "", r"model differs \(m/x 1, m/y 1 of 2 requests"),
        (({"model": "m/y"}, {}), "server: {model: m/x}\n", r"model differs \(m/x 1, m/y 1 of 2 requests"),
        (({"adapter": "sql"}, {}), "", r"adapter: .* \(sql 1 of 2 requests of data.csv\), .* by up to 6 %"),
        (({},), "kv_offload: {cpu_bytes_to_use: 1}\n", r"header.yaml: kv_offload: .* is not replayed"),
        (({},), "observed_kv_metrics: {source: tiered, hit_rate: 0.625}\n", "62.5 % .* in GPU and host memory"),
        (({},), "network: {measured_rtt_ms: 2.5}\n", "a round trip of 2.5 ms"),
        (({},), "max_nodes_spanned: 2\n", "GPUs of 2 nodes"),
    ],
)
def test_what_no_replay_has_is_a_line(
    tmp_path: Path, rows: Sequence[dict[str, object]], header: str, said: str
) -> None:
    names = list(COLUMNS)
    names.insert(names.index("slo_class") + 1, "vllm_priority")
    numbered = [{"vllm_priority": 0, "request_id": i} | row for i, row in enumerate(rows)]
    (loss,) = read(written(tmp_path, *numbered, header=HEADER + header, names=(*names, "adapter"))).losses
    assert re.search(said, loss.text), loss.text


def test_a_trace_of_one_kind_of_request_loses_nothing(tmp_path: Path) -> None:
    alike = {"slo_class": "batch", "model": "m/x", "client_id": "c", "tenant_id": "t", "session_id": "s"}
    header = HEADER + "observed_kv_metrics:\nnetwork: {measured_rtt_ms: 0}\nmax_nodes_spanned: 1\n"
    rows = [alike | {"request_id": i, "session_id": f"s{i}", "deadline_us": 9} for i in range(2)]
    assert read(written(tmp_path, *rows, header=header)).losses == ()
    assert read(written(tmp_path, *CHAT, header=GROWTH)).losses == ()
    assert read(written(tmp_path, *CHAT[:2])).losses == ()  # 100 and 30 tokens: the context was cut


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    header = Header("generated", 3, TraceServer("vllm", "m/x", 2, 64, 16, 0.9, 4096))
    none = np.full(3, -1, np.int32)
    stages, inputs, outputs, groups, shared = np.array(
        [[0, 0, 0], [40, 48, 7], [3, 1, 0], [0, 0, -1], [32, 32, 0]], np.int32
    )
    arrivals, deadlines = np.array([5, 9, 9]), np.array([0, 500, 0])
    requests = Requests(arrivals, stages, inputs, outputs, none, groups, shared, deadlines)
    first, last = np.array([20, NEVER, NEVER]), np.array([30, NEVER, NEVER])
    states = np.array(["ok", "timeout", "incomplete"])
    recording = Recording(header, np.array([0, 1, 2]), requests, states, first, last, np.array([True, True, True]))
    (tmp_path / "header.yaml").write_text(tracev2.header_text(header))
    with (tmp_path / "data.csv").open("w", newline="") as file:
        tracev2.write_data(recording, file)
    assert (tmp_path / "data.csv").read_text().splitlines()[1] == (
        "0,,,,,0,prefix-0,32,true,8,3,0,0,0,0,0,,0,0,5,5,20,30,0,ok,,"
    )
    again = read(tmp_path)
    assert again.header == header
    assert again.line.tolist() == [2, 3, 4]
    for name in ("number", "status", "first_us", "last_us", "streamed"):
        assert getattr(again, name).tolist() == getattr(recording, name).tolist(), name
    for f in fields(Requests):
        if f.name not in ("chains", "turns"):
            assert getattr(again.requests, f.name).tolist() == getattr(requests, f.name).tolist(), f.name


def test_whole_prompts_or_prefixes_are_kept_whichever_repeats_more() -> None:
    """Two prompts of one group, with 16 tokens in common. Sent twice each, whole prompts repeat 2 x 100 tokens and the
    prefix repeats once more; TraceV2 holds the former: 200 of 216 tokens, 7.4 % are lost. Sent once each, only the
    prefix repeats, and nothing is lost."""
    group, shared = np.zeros(4, np.int32), np.full(4, 16, np.int32)
    prompt, lengths = np.array([0, 1, 0, 1], np.int32), np.full(4, 100, np.int32)
    zeros = np.zeros(4, np.int64)
    requests = Requests(zeros, group, lengths, lengths, prompt, group, shared, zeros)
    held, lost = tracev2.with_one_prefix(requests)
    assert held.group.tolist() == [0, 1, 0, 1] and held.shared_len.tolist() == [100] * 4
    assert held.prompt.tolist() == [-1] * 4 and lost == pytest.approx(16 / 216)
    once, lost = tracev2.with_one_prefix(replace(requests, prompt=np.full(4, -1, np.int32)))
    assert once.group.tolist() == [0] * 4 and once.shared_len.tolist() == [16] * 4 and lost == 0


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"request_id": "x"}, "data.csv:2: request_id is 'x': give a whole number from 0"),
        ({"input_tokens": "0"}, "data.csv:2: input_tokens is 0: give at least 1 token, or a prefix"),
        ({"arrival_time_us": ""}, "data.csv:2: arrival_time_us is '': give a whole number of microseconds"),
        ({"deadline_us": "3", "arrival_time_us": "4"}, "data.csv:2: deadline_us is 3: give a time after"),
        ({"streaming": "yes"}, "data.csv:2: streaming is 'yes': give true or false"),
        ({"output_tokens": "9" * 19}, "data.csv:2: output_tokens is '9999999999999999999': give a whole number"),
    ],
)
def test_a_bad_value_is_named_with_its_line(tmp_path: Path, row: dict[str, object], problem: str) -> None:
    with pytest.raises(InputError) as refused:
        read(written(tmp_path, row))
    assert problem in str(refused.value) and "\n" not in str(refused.value)


def test_bad_data_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data\.csv:3: request_id is 0: an earlier line has it"):
        read(written(tmp_path, {}, {}))
    swapped = ("client_id", "request_id", *COLUMNS[2:])
    with pytest.raises(InputError, match=r"data\.csv:1: column 1 must be request_id, got 'client_id'"):
        read(written(tmp_path, {}, names=swapped))
    with pytest.raises(InputError, match=r"data\.csv:1: column 27 must be finish_reason, got nothing"):
        read(written(tmp_path, {}, names=COLUMNS[:-1]))
    with pytest.raises(InputError, match="holds no request"):
        read(written(tmp_path))
    (tmp_path / "data.csv").write_text(",".join(COLUMNS) + "\n0,,\n")
    with pytest.raises(InputError, match=r"data\.csv:2: has 3 fields but the header has 27"):
        read(tmp_path)
    (tmp_path / "data.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not a CSV file"):
        read(tmp_path)
    (tmp_path / "data.csv").unlink()
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("trace_version: 9\n", "trace_version must be 2 or 3, got 9"),
        (HEADER.replace("microseconds", "ms"), "time_unit must be microseconds or us, got 'ms'"),
        (HEADER.replace("real", "dream"), "mode must be real or generated or replayed"),
        (HEADER.replace(": 1", ": -1"), "warm_up_requests"),
        (HEADER + "server: {max_num_seq: 3}\n", "server.max_num_seq is not a known key"),
        (HEADER + "session_context_growth: played\n", "session_context_growth is 'played'"),
        ("- 1\n", "must be a mapping"),
    ],
)
def test_a_bad_header_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InputError) as refused:
        read(written(tmp_path, {}, header=text))
    assert problem in str(refused.value) and str(tmp_path / "header.yaml") in str(refused.value)


def test_an_unknown_key_of_the_header_is_noted(tmp_path: Path) -> None:
    (tmp_path / "h.yaml").write_text(HEADER + "created_at: today\nlora: {x: 1}\nserver: {max_num_seqs: 0}\n")
    header = tracev2.read_header(tmp_path / "h.yaml")
    assert [note.partition(": ")[2] for note in header.notes] == ["'lora' of the header is not replayed"]
    assert header.server == TraceServer()


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_header_and_data_that_are_swapped_are_said_to_be(mark: str, tmp_path: Path) -> None:
    written(tmp_path, {})
    data = tmp_path / "data.csv"
    data.write_text(mark + data.read_text(), encoding="utf-8")
    with pytest.raises(
        InputError, match=r"data\.csv: is the data of a trace, a CSV file, not its header: swap the two"
    ):
        tracev2.read_recording(data, tmp_path / "header.yaml")
