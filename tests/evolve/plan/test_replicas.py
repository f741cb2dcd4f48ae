"""`evolve predict --load`: the fewest replicas are those that single predictions find one by one, and the surer count
follows from the intervals of these."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest
import tiny_world
import yaml
from commands import Capsys, Options, as_json, printed, refused

LOAD = 300  # requests/s; a replica of the tiny world's dense deployment serves about 100
SLO = "ttft_p99=65ms,itl_mean=15ms"
LIMITS_MS = (("ttft_ms", "p99", 65.0), ("itl_ms", "mean", 15.0))
ENOUGH = 1000  # requests that a share of one stage lasts for at least


def plan(path: Path, *stages: tuple[float, float], **workload: Any) -> Path:
    """A file with one deployment of the tiny world under (requests/s, seconds)."""
    [entry] = [e for e in yaml.safe_load(tiny_world.DATA)["experiments"] if e["id"] == "dense-chat"]
    entry = {key: value for key, value in entry.items() if key not in ("observed", "quality")}
    entry["workload"] |= {"stages": [{"rate": rate, "duration_s": s} for rate, s in stages], **workload}
    path.write_text(yaml.safe_dump({"version": 1, "experiments": [entry]}))
    return path


def predicted(capsys: Capsys, *args: object, program: str = "champion", status: int = 0) -> dict[str, Any]:
    """The JSON of `evolve predict PROGRAM ARGS`, which ends with this exit status."""
    found: dict[str, Any] = as_json(capsys, "predict", program, *args, status=status)
    return found


def with_trace(file: Path, rows: str, **workload: object) -> Path:
    """The plan in this file under a trace with these rows of arrival, prompt and answer."""
    file.with_name("t.csv").write_text(f"arrival_s,input_len,output_len\n{rows}")
    entry = yaml.safe_load(file.read_text())
    entry["experiments"][0]["workload"] = {"name": "trace", "trace": "t.csv", **workload}
    file.write_text(yaml.safe_dump(entry))
    return file


def keeps(e: dict[str, Any], suffix: str = "") -> bool:
    """True if a single prediction, or with a suffix the upper end of its interval, keeps the limits."""
    ends = [(e["predicted"][latency][quantity + suffix], most_ms) for latency, quantity, most_ms in LIMITS_MS]
    return all((end[1] if suffix else end) <= most_ms for end, most_ms in ends)


@pytest.mark.slow
def test_the_fewest_are_those_of_single_predictions(tmp_path: Path, capsys: Capsys) -> None:
    args = "--experiments", plan(tmp_path / "own.yaml", (70.0, 30.0)), "--load", LOAD, "--slo", SLO
    result = predicted(capsys, *args)
    singles = []
    for count in range(1, 12):
        rate = LOAD / count
        one = plan(tmp_path / f"{count}.yaml", (rate, max(30.0, ENOUGH / rate)))
        [e] = predicted(capsys, "--experiments", one)["experiments"]
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


def needed(capsys: Capsys, *args: object, status: int = 0) -> list[str]:
    """The lines of the table of what the load needs, and what follows it."""
    lines = printed(capsys, "predict", "champion", *args, "-v", "--explain", status=status).splitlines()
    [head] = [i for i, line in enumerate(lines) if re.match(r"Deployments for \S+ requests/s$", line)]
    return lines[head + 3 :]


@pytest.fixture
def steady(tmp_path: Path) -> Options:
    """The options of one stage of 70 requests/s."""
    return "--experiments", plan(tmp_path / "own.yaml", (70.0, 30.0))


def test_deployments_are_listed_by_their_gpus(steady: Options, capsys: Capsys) -> None:
    """Two deployments serve less than two GPUs apart would."""
    args = *steady, "--load", LOAD, "--slo", SLO, "--sweep", "tp=2,1"
    knees = {knee["tp"]: knee for knee in predicted(capsys, *args)["knees"]}
    assert {tp: knee["gpus"] for tp, knee in knees.items()} == {tp: tp * knee["replicas"] for tp, knee in knees.items()}
    assert knees[1]["gpus"] < knees[2]["gpus"]
    assert [line.split()[2] for line in needed(capsys, *args)[:2]] == ["1", "2"]
    for row in csv.DictReader(io.StringIO(printed(capsys, "predict", "champion", *args, "--csv", "-"))):
        knee = knees[int(row["tp"])]
        assert (row["needed_gpus"], row["needed_gpus_likely"]) == (str(knee["gpus"]), str(knee["gpus_likely"]))


def test_peaks_stay_peaks(tmp_path: Path, capsys: Capsys) -> None:
    """A peak of three times the mean, for a fifth of the time: a replica gets all stages of a file scaled, and more
    replicas are needed than for the mean alone."""
    stages = (50.0, 20.0), (300.0, 10.0), (50.0, 20.0)  # 100 requests/s on average
    file, flat = plan(tmp_path / "own.yaml", *stages), plan(tmp_path / "flat.yaml", (100.0, 50.0))
    at = "--load", LOAD, "--slo", SLO
    result, of_flat = (predicted(capsys, "--experiments", path, *at) for path in (file, flat))
    assert result["knees"][0]["replicas"] > of_flat["knees"][0]["replicas"]
    for row in result["rows"][:3]:
        one = plan(tmp_path / "one.yaml", *((rate * row["rate_rps"] / 100.0, s) for rate, s in stages))
        [e] = predicted(capsys, "--experiments", one)["experiments"]
        assert row["ttft_ms"]["p99"] == e["predicted"]["ttft_ms"]["p99"]


def test_conversations_that_are_not_done_have_no_count(tmp_path: Path, capsys: Capsys) -> None:
    """4 turns 60 s apart: two stages of 30 s end before most turns have come. One stage is made to last."""
    talk: dict[str, Any] = {"session": {"turns": 4, "think_time_s": 60.0}, "prompt_len": 100}
    short = plan(tmp_path / "short.yaml", (5.0, 30.0), (6.0, 30.0), **talk)
    one = plan(tmp_path / "one.yaml", (5.0, 30.0), **talk)
    lines = needed(capsys, "--experiments", short, "--load", 20, status=1)
    assert lines[0].split() == ["dense-chat", "1", "impossible"]
    assert any("the rate is not reached" in line for line in lines)
    assert predicted(capsys, "--experiments", one, "--load", 20)["knees"][0]["replicas"]


def test_a_trace_that_is_hurried_says_so(tmp_path: Path, capsys: Capsys) -> None:
    rows = "".join(f"{i / 10},300,50\n" for i in range(600))
    file = with_trace(plan(tmp_path / "own.yaml", (10.0, 60.0)), rows)
    rows_by_count = {row["replicas"]: row for row in predicted(capsys, "--experiments", file, "--load", 40)["rows"]}
    said = {n: [text for text in row["warnings"] if "the trace is played" in text] for n, row in rows_by_count.items()}
    assert "4 times as fast" in said[1][0] and "1/4 of their time" in said[1][0]
    assert not said.get(4)  # as fast as it was recorded


def test_a_percentile_of_few_requests_says_so(tmp_path: Path, capsys: Capsys) -> None:
    file = plan(tmp_path / "own.yaml", (5.0, 10.0), (6.0, 10.0))
    [row] = predicted(capsys, "--experiments", file, "--slo", "ttft_p99=1s,ttft_p90=1s,ttft_mean=1s")["rows"]
    [said] = [text for text in row["warnings"] if "depends on the slowest few" in text]
    assert said.startswith("ttft_p99 of 110 requests")


def test_a_limit_that_only_a_stage_breaks_is_a_warning(tmp_path: Path, capsys: Capsys) -> None:
    file = plan(tmp_path / "own.yaml", (10.0, 60.0), (80.0, 5.0), (10.0, 60.0))
    [e] = predicted(capsys, "--experiments", file)["experiments"]
    whole, peak = (of["predicted"]["itl_ms"]["mean"] for of in (e, e["stages"][1]))
    limit_ms = round((whole + peak) / 2.0, 3)
    [row] = predicted(capsys, "--experiments", file, "--slo", f"itl_mean={limit_ms}ms")["rows"]
    assert whole < limit_ms < peak and not row["fails"]
    [said] = [text for text in row["warnings"] if text.startswith("itl_mean ")]
    assert "1 of its 3 stages" in said and f"{peak:.4g} ms in stage 2" in said


def test_rates_have_no_stages_and_a_shared_load_has_them(tmp_path: Path, capsys: Capsys) -> None:
    """A peak of 80 requests/s is not among the rates of a sweep, so what holds there may not hold for the load."""
    peaks, even = (plan(tmp_path / f"{len(s)}.yaml", *s) for s in (((10.0, 60.0), (80.0, 5.0)), ((10.0, 60.0),)))
    # stages with lengths of their own stay stages at any rate
    stages = [{"rate": 10.0, "duration_s": 60.0}, {"rate": 80.0, "duration_s": 5.0, "output_len": 30}]
    own = plan(tmp_path / "own.yaml", (1.0, 1.0), stages=stages)
    rate = "--sweep", "rate=10"
    cases = (peaks, rate), (even, rate), (peaks, ("--load", "20")), (peaks, ("--sweep", "tp=1")), (own, rate)
    for case in cases:
        found = predicted(capsys, "--experiments", case[0], *case[1])["warnings"]
        assert any(line.startswith("each rate is constant") for line in found) == (case == (peaks, rate))


def test_intervals_that_may_be_too_narrow_are_marked(steady: Options, capsys: Capsys) -> None:
    """No fitted run is on an A100 (README.md)."""
    args = *steady, "--load", LOAD, "--sweep", "hardware=H100,A100-SXM-80GB"
    lines = needed(capsys, *args)
    h100, a100 = (next(line for line in lines if f"dense-chat, {gpu}" in line) for gpu in ("H100", "A100"))
    assert a100.count("?") == 2 and h100.count("?") in (0, 2)
    assert any(line.startswith("- no fitted run has GPU A100-SXM-80GB: the intervals are widened") for line in lines)
    knees = {knee["hardware"]: knee["narrow"] for knee in predicted(capsys, *args)["knees"]}
    assert knees == {"H100-SXM-80GB": h100.count("?") == 2, "A100-SXM-80GB": True}
    rows = csv.DictReader(io.StringIO(printed(capsys, "predict", "champion", *args, "--csv", "-")))
    assert {row["hardware"]: row["narrow"] for row in rows} == {gpu: str(narrow) for gpu, narrow in knees.items()}


def test_intervals_below_constants_errors_are_marked(capsys: Capsys) -> None:
    """Llama 2 7B under a load so light, with answers so short, that the delay before the queue is half of a request."""
    args = (
        "--model",
        "llama-2-7b",
        "--hardware",
        "H100",
        "--tp",
        4,
        "--rate",
        1,
        "--prompt-len",
        600,
        "--output-len",
        1,
    )
    [plain] = predicted(capsys, *args)["experiments"]
    said = "the intervals are too narrow, since the standard errors of constants, mostly queueing_time.base_2, "
    assert plain["intervals_of"] == "inside" and any(text.startswith(said) for text in plain["warnings"])
    limits = "--load", 1, "--slo", "ttft_p99=2s"
    result = predicted(capsys, *args, *limits)
    [row], [knee] = result["rows"], result["knees"]
    assert row["likely"] and knee["narrow"] and any(text.startswith(said) for text in row["warnings"])
    lines = needed(capsys, *args, *limits)
    assert lines[0].split()[-1] == "?" and any(line.startswith(f"- {said[:60]}") for line in lines)


def test_figures_that_are_limited_have_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    args = "--experiments", plan(tmp_path / "own.yaml", (7.0, 30.0)), "--load", 7
    [row] = predicted(capsys, *args, "--slo", "itl_p90=60ms,e2e_p50=9s")["rows"]
    for limits in ([], ["--slo", "itl_p90=60ms,e2e_p50=9s"]):
        lines = needed(capsys, *args, *limits)
        [heads] = [line for line in lines if line.startswith("rate  replicas")]
        assert ("  ITL p90" in heads) == ("  E2E p50" in heads) == bool(limits) and "E2E mean" in heads
    cells = lines[lines.index(heads) + 2].split()
    assert f"{row['itl_ms']['p90']:.2f}" in cells and f"{row['e2e_ms']['p50']:.1f}" in cells


def test_a_trace_has_no_count_by_seed(tmp_path: Path, capsys: Capsys) -> None:
    """Its requests are the same under every arrival seed."""
    for file, by_seed in (
        (plan(tmp_path / "own.yaml", (70.0, 30.0)), True),
        (with_trace(plan(tmp_path / "t.yaml", (1.0, 1.0)), "".join(f"{i / 8},64,8\n" for i in range(80))), False),
    ):
        args = "--experiments", file, "--load", 14
        [knee] = predicted(capsys, *args)["knees"]
        assert knee["holds_up_to_rps"] and (knee["holds_under_every_seed_up_to_rps"] is not None) == by_seed
        assert (needed(capsys, *args)[0].split()[4] != "-") == by_seed


def test_one_replica_may_be_enough(steady: Options, capsys: Capsys) -> None:
    """One replica serves 7 requests/s: what it could serve beyond is not looked at."""
    args = *steady, "--load", 7
    result = predicted(capsys, *args)
    assert [row["replicas"] for row in result["rows"]][-1] == result["knees"][0]["replicas"] == 1
    assert result["knees"][0]["rate_rps"] is None
    lines = needed(capsys, *args)
    assert lines[0].split()[:4] == ["dense-chat", "1", "7.00", "7.00"] and "At least: " in " ".join(lines)


def test_limits_that_no_rate_keeps_end_in_no_count(steady: Options, capsys: Capsys) -> None:
    args = *steady, "--load", LOAD, "--slo", "ttft_p99=1us"
    result = predicted(capsys, *args, status=1)
    [knee] = result["knees"]
    assert knee["holds_up_to_rps"] is None and knee["replicas"] is None and knee["replicas_likely"] is None
    lines = needed(capsys, *args, status=1)
    assert lines[0].split() == ["dense-chat", "1", "none", "-", "none", "none", "-", "-", "-"]
    [row] = [row for row in result["rows"] if row["rate_rps"] == knee["rate_rps"]]
    assert row["most_running"] <= 2 and any(f"{row['ttft_ms']['p99']:.2f} ms for TTFT p99" in line for line in lines)


def test_a_limit_that_an_idle_engine_breaks_is_not_searched_for(tmp_path: Path, capsys: Capsys) -> None:
    """One prompt of 3,500 tokens alone takes longer than the limit: two replays, not a dozen."""
    one = plan(tmp_path / "one.yaml", (0.01, 1e5), prompt_len=3500)
    [e] = predicted(capsys, "--experiments", one)["experiments"]
    ttft_ms = e["predicted"]["ttft_ms"]["p99"]
    args = "--experiments", plan(tmp_path / "own.yaml", (20.0, 30.0), prompt_len=3500), "--load", LOAD, "--slo"
    assert len(predicted(capsys, *args, f"ttft_p99={0.9 * ttft_ms:.3f}ms", status=1)["rows"]) == 2
    assert predicted(capsys, *args, f"ttft_p99={1.5 * ttft_ms:.3f}ms")["knees"][0]["replicas"]


def test_conversations_that_overlap_with_themselves_end_the_search_too(tmp_path: Path, capsys: Capsys) -> None:
    """Turns that do not wait for answers are two in a batch however many replicas there are."""
    talk: dict[str, Any] = {"session": {"turns": 3, "think_time_s": 0.05}, "prompt_len": 100}
    file = plan(tmp_path / "own.yaml", (70.0, 30.0), **talk)
    result = predicted(capsys, "--experiments", file, "--load", LOAD, "--slo", "itl_mean=1us", status=1)
    assert result["knees"][0]["replicas"] is None
    assert len(result["rows"]) < 20 and not any(row.get("impossible") for row in result["rows"])


def test_a_program_without_intervals_has_no_surer_count(steady: Options, capsys: Capsys) -> None:
    args = *steady, "--load", LOAD
    result = predicted(capsys, *args, program="floor")
    assert not result["intervals"] and {row["likely"] for row in result["rows"]} == {None}
    assert result["knees"][0]["replicas"] and result["knees"][0]["replicas_likely"] is None
    assert "80 % sure" not in printed(capsys, "predict", "floor", *args)


def test_limits_alone_are_judged_at_the_upper_ends(steady: Options, capsys: Capsys) -> None:
    [e] = predicted(capsys, *steady)["experiments"]
    middle, top = e["predicted"]["ttft_ms"]["p99"], e["predicted"]["ttft_ms"]["p99_80"][1]
    for most_ms, word in ((1.001 * top, "holds"), ((middle + top) / 2.0, "may fail")):
        args = *steady, "--slo", f"ttft_p99={most_ms:.6f}ms"
        [row] = predicted(capsys, *args)["rows"]
        assert not row["fails"] and row["likely"] == (word == "holds")
        assert f"  {word}  " in printed(capsys, "predict", "champion", *args)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ("--load nan", "--load"),
        ("--load 7 --sweep rate=7", "--sweep rate"),
        ("--load 7 --part test", "--load"),
        ("--load 7 --against floor", "--load"),
    ],
)
def test_bad_loads_are_refused(options: str, key: str, steady: Options, capsys: Capsys) -> None:
    assert key in refused(capsys, "predict", "champion", *steady, *options.split())
