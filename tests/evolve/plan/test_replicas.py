"""`evolve predict --load`: the fewest replicas are those that single predictions find one by one, and the surer count
follows from the intervals of these."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import tiny_world
import yaml
from commands import evolve, refused

LOAD = 300  # requests/s; a replica of the tiny world's dense deployment serves about 100
SLO = "ttft_p99=60ms,itl_mean=15ms"
LIMITS_MS = (("ttft_ms", "p99", 60.0), ("itl_ms", "mean", 15.0))
ENOUGH = 1000  # requests that a share of one stage lasts for at least


def plan(path: Path, *stages: tuple[float, float], **workload: Any) -> Path:
    """A file with one deployment of the tiny world under (requests/s, seconds)."""
    [entry] = [e for e in yaml.safe_load(tiny_world.DATA)["experiments"] if e["id"] == "dense-chat"]
    entry = {key: value for key, value in entry.items() if key not in ("observed", "quality")}
    entry["workload"] |= {"stages": [{"rate": rate, "duration_s": s} for rate, s in stages], **workload}
    path.write_text(yaml.safe_dump({"version": 1, "experiments": [entry]}))
    return path


def printed(
    capsys: pytest.CaptureFixture[str], *args: object, program: str = "champion", status: int = 0
) -> dict[str, Any]:
    """The JSON of `evolve predict PROGRAM ARGS`, which ends with this exit status."""
    capsys.readouterr()
    assert evolve("predict", program, *args, "--json") == status, capsys.readouterr().err
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def keeps(e: dict[str, Any], suffix: str = "") -> bool:
    """Whether a single prediction, or with a suffix the upper end of its interval, keeps the limits."""
    ends = [(e["predicted"][latency][quantity + suffix], most_ms) for latency, quantity, most_ms in LIMITS_MS]
    return all((end[1] if suffix else end) <= most_ms for end, most_ms in ends)


@pytest.mark.slow
def test_the_fewest_are_those_of_single_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = "--experiments", plan(tmp_path / "own.yaml", (70.0, 30.0)), "--load", LOAD, "--slo", SLO
    result = printed(capsys, *args)
    singles = []
    for count in range(1, 12):
        rate = LOAD / count
        one = plan(tmp_path / f"{count}.yaml", (rate, max(30.0, ENOUGH / rate)))
        [e] = printed(capsys, "--experiments", one)["experiments"]
        queue = e["components"]["waiting"] / e["predicted"]["e2e_ms"]["mean"] > 0.05
        singles.append((count, keeps(e) and not queue, keeps(e, "_80")))
    fewest = min(count for count, holds, _ in singles if holds)
    surer = min(count for count, holds, likely in singles if holds and likely)
    assert 1 < fewest < surer < 11
    [knee] = result["knees"]
    assert result["load_rps"] == LOAD and result["intervals"]
    assert (knee["replicas"], knee["holds_up_to_rps"]) == (fewest, LOAD / fewest)
    assert (knee["replicas_likely"], knee["likely_holds_up_to_rps"]) == (surer, LOAD / surer)
    rows = {row["replicas"]: row for row in result["rows"]}
    assert rows[fewest - 1]["fails"] and not rows[fewest]["fails"] and not rows[surer - 1]["likely"]
    assert [row["rate_rps"] for row in result["rows"]] == sorted(LOAD / count for count in rows)
    cells = [cell for cell in needed(capsys, *args)[0].split() if cell != "?"]
    assert cells[-3:] == [str(fewest), str(fewest), str(surer)]  # of one GPU each


def needed(capsys: pytest.CaptureFixture[str], *args: object, status: int = 0) -> list[str]:
    """The lines of the table of what the load needs, and what follows it."""
    capsys.readouterr()
    assert evolve("predict", "champion", *args) == status
    lines = capsys.readouterr().out.splitlines()
    [head] = [i for i, line in enumerate(lines) if line.startswith("What ") and line.endswith(" requests/s need")]
    return lines[head + 3 :]


def test_deployments_are_listed_by_their_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two deployments serve less than two GPUs apart would."""
    args = "--experiments", plan(tmp_path / "own.yaml", (70.0, 30.0)), "--load", LOAD, "--slo", SLO, "--sweep", "tp=2,1"
    knees = {knee["tp"]: knee for knee in printed(capsys, *args)["knees"]}
    assert {tp: knee["gpus"] for tp, knee in knees.items()} == {tp: tp * knee["replicas"] for tp, knee in knees.items()}
    assert knees[1]["gpus"] < knees[2]["gpus"]
    assert [line.split()[2] for line in needed(capsys, *args)[:2]] == ["1", "2"]
    assert evolve("predict", "champion", *args, "--csv", "-") == 0
    for row in csv.DictReader(io.StringIO(capsys.readouterr().out)):
        knee = knees[int(row["tp"])]
        assert (row["needed_gpus"], row["needed_gpus_likely"]) == (str(knee["gpus"]), str(knee["gpus_likely"]))


def test_peaks_stay_peaks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A peak of three times the mean, for a fifth of the time: what a replica gets is what a file says with all stages
    scaled, and more of them are needed than for the mean alone."""
    stages = (50.0, 20.0), (300.0, 10.0), (50.0, 20.0)  # 100 requests/s on average
    file = plan(tmp_path / "own.yaml", *stages)
    result = printed(capsys, "--experiments", file, "--load", LOAD, "--slo", SLO)
    flat = printed(capsys, "--experiments", plan(tmp_path / "flat.yaml", (100.0, 50.0)), "--load", LOAD, "--slo", SLO)
    assert result["knees"][0]["replicas"] > flat["knees"][0]["replicas"]
    for row in result["rows"][:3]:
        one = plan(tmp_path / "one.yaml", *((rate * row["rate_rps"] / 100.0, s) for rate, s in stages))
        [e] = printed(capsys, "--experiments", one)["experiments"]
        assert row["ttft_ms"]["p99"] == e["predicted"]["ttft_ms"]["p99"]
    said = " ".join(needed(capsys, "--experiments", file, "--load", LOAD, "--slo", SLO))
    assert "The load is the mean over the stages" in said


def test_conversations_that_are_not_done_have_no_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 4 turns 60 s apart: two stages of 30 s end before most turns have come. One stage is made to last."""
    talk: dict[str, Any] = {"session": {"turns": 4, "think_time_s": 60.0}, "prompt_len": 100}
    short = plan(tmp_path / "short.yaml", (5.0, 30.0), (6.0, 30.0), **talk)
    one = plan(tmp_path / "one.yaml", (5.0, 30.0), **talk)
    lines = needed(capsys, "--experiments", short, "--load", 20, status=1)
    assert lines[0].split() == ["dense-chat", "1", "impossible"]
    assert any(
        "later turns that come after the last stage has ended: the rate is not reached" in line for line in lines
    )
    [knee] = printed(capsys, "--experiments", one, "--load", 20)["knees"]
    assert knee["replicas"]


def test_a_trace_that_is_hurried_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"{i / 10},300,50\n" for i in range(600))
    (tmp_path / "t.csv").write_text(f"arrival_s,input_len,output_len\n{rows}")
    file = plan(tmp_path / "own.yaml", (10.0, 60.0))
    entry = yaml.safe_load(file.read_text())
    entry["experiments"][0]["workload"] = {"name": "trace", "trace": "t.csv"}
    file.write_text(yaml.safe_dump(entry))
    rows_by_count = {row["replicas"]: row for row in printed(capsys, "--experiments", file, "--load", 40)["rows"]}
    said = {n: [text for text in row["warnings"] if "the trace is played" in text] for n, row in rows_by_count.items()}
    assert said[1] and "4 times as fast, so its peaks last only 1/4 of their time" in said[1][0]
    assert not said.get(4)  # as fast as it was recorded


def test_a_percentile_of_few_requests_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = plan(tmp_path / "own.yaml", (5.0, 10.0), (6.0, 10.0))
    args = "--experiments", file, "--slo", "ttft_p99=1s,ttft_p90=1s,ttft_mean=1s"
    [row] = printed(capsys, *args)["rows"]
    said = [text for text in row["warnings"] if "depends on the slowest few" in text]
    assert said == ["ttft_p99 of 110 requests depends on the slowest few: lengthen the stages"]


def test_a_limit_that_only_a_stage_breaks_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = plan(tmp_path / "own.yaml", (10.0, 60.0), (80.0, 5.0), (10.0, 60.0))
    [e] = printed(capsys, "--experiments", file)["experiments"]
    whole, peak = (of["predicted"]["itl_ms"]["mean"] for of in (e, e["stages"][1]))
    limit_ms = round((whole + peak) / 2.0, 3)
    [row] = printed(capsys, "--experiments", file, "--slo", f"itl_mean={limit_ms}ms")["rows"]
    assert whole < limit_ms < peak and not row["fails"]
    said = f"itl_mean holds over the whole run, but not in 1 of its 3 stages: {peak:.4g} ms in stage 2"
    assert said in row["warnings"]


def test_rates_have_no_stages_and_a_shared_load_has_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A peak of 80 requests/s is not among the rates of a sweep, so what holds there may not hold for the load."""
    peaks, flat = (plan(tmp_path / f"{len(s)}.yaml", *s) for s in (((10.0, 60.0), (80.0, 5.0)), ((10.0, 60.0),)))
    said = "each rate is constant over the whole load, which has no stages then"
    for file, option, value, warned in ((peaks, "--sweep", "rate=10", True), (flat, "--sweep", "rate=10", False),
                                        (peaks, "--load", "20", False), (peaks, "--sweep", "tp=1", False)):  # fmt: skip
        assert (
            any(line.startswith(said) for line in printed(capsys, "--experiments", file, option, value)["warnings"])
            == warned
        )
    # stages with lengths of their own stay stages at any rate
    stages = [{"rate": 10.0, "duration_s": 60.0}, {"rate": 80.0, "duration_s": 5.0, "output_len": 30}]
    own = plan(tmp_path / "own.yaml", (1.0, 1.0), stages=stages)
    assert not any(
        line.startswith(said) for line in printed(capsys, "--experiments", own, "--sweep", "rate=10")["warnings"]
    )


def test_without_limits_or_for_several_services_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = plan(tmp_path / "own.yaml", (70.0, 30.0))
    entry = yaml.safe_load(file.read_text())
    entry["experiments"].append({**entry["experiments"][0], "id": "other"})
    file.write_text(yaml.safe_dump(entry))
    said = " ".join(needed(capsys, "--experiments", file, "--load", LOAD))
    assert "Without --slo only a queue that grows is too much" in said
    assert "Each experiment is a service of its own with this load" in said


def test_intervals_that_may_be_too_narrow_are_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No run on an H200 was held out (README.md)."""
    args = "--experiments", plan(tmp_path / "own.yaml", (70.0, 30.0)), "--load", LOAD, "--sweep", "hardware=H100,H200"
    lines = needed(capsys, *args)
    h100, h200 = (next(line for line in lines if f"dense-chat, {gpu}" in line) for gpu in ("H100", "H200"))
    assert h200.count("?") == 2 and h100.count("?") in (0, 2)
    assert any(line.startswith("- no run on another GPU was held out") for line in lines)
    knees = {knee["hardware"]: knee["narrow"] for knee in printed(capsys, *args)["knees"]}
    assert knees == {"H100-SXM-80GB": h100.count("?") == 2, "H200-SXM-141GB": True}
    assert evolve("predict", "champion", *args, "--csv", "-") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["hardware"]: row["narrow"] for row in rows} == {gpu: str(narrow) for gpu, narrow in knees.items()}


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}


def test_intervals_smaller_than_the_errors_of_constants_are_marked_as_predict_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Llama 3.1 70B with fp8 weights, of which only a mixture of experts was fitted."""
    monkeypatch.setenv("EVOLVE_MODELS", str(tmp_path / "kept"))
    assert evolve("model", "show", "llama-3.1-70b", "--json") == 0
    config = json.loads(capsys.readouterr().out)["config"] | {"quantization_config": FP8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert evolve("model", "add", tmp_path / "config.json", "--id", "fp8") == 0
    args = ("--model", "fp8", "--hardware", "H100", "--tp", 4, "--rate", 8, "--prompt-len", 700, "--output-len", 200)
    [plain] = printed(capsys, *args)["experiments"]
    said = (
        "the standard errors of its constants, mostly step_time.kv_decode_sum_is_fp8, are larger than these intervals"
    )
    assert plain["intervals_of"] == "outside" and any(text.startswith(said) for text in plain["warnings"])
    assert "fp8 weights of a dense model not among the fitted 16-bit" in plain["warnings"]
    limits = "--slo", "ttft_p99=2s,itl_p90=60ms"
    result = printed(capsys, *args, "--load", 8, *limits)
    [row], [knee] = result["rows"], result["knees"]
    assert row["likely"] and knee["narrow"] and any(text.startswith(said) for text in row["warnings"])
    lines = needed(capsys, *args, "--load", 8, *limits)
    assert lines[0].split()[-1] == "?" and any(line.startswith(f"- {said[:60]}") for line in lines)


def test_figures_that_are_limited_have_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By how much does a row fail?"""
    monkeypatch.setenv("COLUMNS", "250")
    args = "--experiments", plan(tmp_path / "own.yaml", (7.0, 30.0)), "--load", 7
    [row] = printed(capsys, *args, "--slo", "itl_p90=60ms,e2e_p50=9s")["rows"]
    for limits, itl, e2e in (([], "", ""), (["--slo", "itl_p90=60ms,e2e_p50=9s"], "  ITL p90", "  E2E p50")):
        lines = needed(capsys, *args, *limits)
        [heads] = [line for line in lines if line.startswith("rate  replicas")]
        assert f"  E2E mean{e2e}  E2E p99  ITL mean{itl}  ITL p99  " in heads
    cells = lines[lines.index(heads) + 2].split()
    assert f"{row['itl_ms']['p90']:.2f}" in cells and f"{row['e2e_ms']['p50']:.1f}" in cells


def test_by_seed_says_nothing_of_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its requests are the same under every arrival seed."""
    (tmp_path / "t.csv").write_text("arrival_s,input_len,output_len\n" + "".join(f"{i / 8},64,8\n" for i in range(80)))
    file = plan(tmp_path / "own.yaml", (70.0, 30.0))
    [entry] = yaml.safe_load(file.read_text())["experiments"]
    trace = {**entry, "id": "trace", "workload": {"name": "t", "trace": "t.csv"}}
    file.write_text(yaml.safe_dump({"version": 1, "experiments": [entry, trace]}))
    args = "--experiments", file, "--load", 14
    knees = {knee["experiment"]: knee for knee in printed(capsys, *args)["knees"]}
    assert all(knee["holds_up_to_rps"] for knee in knees.values())
    assert {name: knee["holds_under_every_seed_up_to_rps"] is None for name, knee in knees.items()} == {
        "dense-chat": False, "trace": True}  # fmt: skip
    lines = needed(capsys, *args)
    by_seed = {line.split()[0]: line.split()[4] for line in lines[:2]}
    assert by_seed["trace"] == "-" and float(by_seed["dense-chat"]) > 0.0
    assert "under each arrival seed alone (-: a trace, the same under every seed)" in " ".join(lines)
    assert "(under each arrival seed alone" not in "\n".join(lines)


def test_a_share_is_the_least_that_holds_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 7 requests/s one replica serves all: what it could serve beyond is not looked at."""
    args = "--experiments", plan(tmp_path / "own.yaml", (70.0, 30.0)), "--load", 7
    lines = needed(capsys, *args)
    assert lines[0].split()[:4] == ["dense-chat", "1", "7.00", "7.00"]
    assert "At least: only load / n for whole n was tried." in " ".join(lines)
    assert evolve("predict", "champion", *args) == 0
    assert "holds at least  per GPU" in capsys.readouterr().out


def test_one_replica_may_be_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = printed(capsys, "--experiments", plan(tmp_path / "own.yaml", (70.0, 30.0)), "--load", 7)
    assert [row["replicas"] for row in result["rows"]][-1] == result["knees"][0]["replicas"] == 1
    assert result["knees"][0]["rate_rps"] is None


def test_limits_that_no_rate_keeps_end_in_no_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = "--experiments", plan(tmp_path / "own.yaml", (70.0, 30.0)), "--load", LOAD, "--slo", "ttft_p99=1us"
    [knee] = printed(capsys, *args, status=1)["knees"]
    assert knee["holds_up_to_rps"] is None and knee["replicas"] is None and knee["replicas_likely"] is None
    lines = needed(capsys, *args, status=1)
    assert lines[0].split() == ["dense-chat", "1", "none", "-", "none", "none", "-", "-", "-"]
    [row] = [row for row in printed(capsys, *args, status=1)["rows"] if row["rate_rps"] == knee["rate_rps"]]
    alone = f"dense-chat: even an idle engine takes {row['ttft_ms']['p99']:.2f} ms for TTFT p99: no number of replicas helps."
    assert row["most_running"] <= 2 and any(line.startswith(alone) for line in lines)


def test_a_limit_that_an_idle_engine_breaks_is_not_searched_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prompts of 3,500 tokens of which one alone takes longer than the limit: two replays, not a dozen."""
    file = plan(tmp_path / "own.yaml", (20.0, 30.0), prompt_len=3500)
    alone = printed(capsys, "--experiments", plan(tmp_path / "one.yaml", (0.01, 1e5), prompt_len=3500))
    [e] = alone["experiments"]
    ttft_ms = e["predicted"]["ttft_ms"]["p99"]
    args = "--experiments", file, "--load", LOAD, "--slo"
    assert len(printed(capsys, *args, f"ttft_p99={0.9 * ttft_ms:.3f}ms", status=1)["rows"]) == 2
    [knee] = printed(capsys, *args, f"ttft_p99={1.5 * ttft_ms:.3f}ms")["knees"]
    assert knee["replicas"]


def test_conversations_that_overlap_with_themselves_end_the_search_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Turns that do not wait for answers are two in a batch however many replicas there are."""
    talk: dict[str, Any] = {"session": {"turns": 3, "think_time_s": 0.05}, "prompt_len": 100}
    file = plan(tmp_path / "own.yaml", (70.0, 30.0), **talk)
    result = printed(capsys, "--experiments", file, "--load", LOAD, "--slo", "itl_mean=1us", status=1)
    assert result["knees"][0]["replicas"] is None
    assert len(result["rows"]) < 20 and not any(row.get("impossible") for row in result["rows"])


def test_a_program_without_intervals_has_no_surer_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = "--experiments", plan(tmp_path / "own.yaml", (70.0, 30.0)), "--load", LOAD
    result = printed(capsys, *args, program="floor")
    assert not result["intervals"] and {row["likely"] for row in result["rows"]} == {None}
    assert result["knees"][0]["replicas"] and result["knees"][0]["replicas_likely"] is None
    assert evolve("predict", "floor", *args) == 0
    assert "80 % sure" not in capsys.readouterr().out


def test_limits_alone_say_whether_they_hold_at_the_upper_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = plan(tmp_path / "own.yaml", (70.0, 30.0))
    [e] = printed(capsys, "--experiments", file)["experiments"]
    middle, top = e["predicted"]["ttft_ms"]["p99"], e["predicted"]["ttft_ms"]["p99_80"][1]
    for most_ms, word in ((1.001 * top, "holds"), ((middle + top) / 2.0, "may fail")):
        args = "--experiments", file, "--slo", f"ttft_p99={most_ms:.6f}ms"
        [row] = printed(capsys, *args)["rows"]
        assert not row["fails"] and row["likely"] == (word == "holds")
        assert evolve("predict", "champion", *args) == 0
        assert f"  {word}  " in capsys.readouterr().out


def test_bad_loads_are_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = "predict", "champion", "--experiments", plan(tmp_path / "own.yaml", (70.0, 30.0))
    assert "--load must be requests/s above 0" in refused(capsys, *at, "--load", "nan")
    assert "leave --sweep rate=... out" in refused(capsys, *at, "--load", "7", "--sweep", "rate=7")
    assert "--load does not: give one of the two" in refused(capsys, *at, "--load", "7", "--part", "test")
    assert "as they are, --load predicts others: give one of the two" in refused(
        capsys, *at, "--load", "7", "--against", "floor"
    )
