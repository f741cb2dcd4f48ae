"""`evolve plan` of one deployment: the fewest replicas are those that single predictions find one by one, and the surer
counts follow from the intervals of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_world
import yaml
from commands import Capsys, Options, as_json, flat, printed

from evolve.plan import replicas as counting
from evolve.plan.sweep_result import SweepFigures

LOAD = 300.0  # requests/s; a replica of the tiny world's dense deployment serves about 100
SLO = "ttft_p99=65ms,itl_mean=15ms"
LIMITS_MS = (("ttft_ms", "p99", 65.0), ("itl_ms", "mean", 15.0))
ENOUGH = 1000  # requests that a share of one stage lasts for at least


def plan(path: Path, *stages: tuple[float, float], **workload: Any) -> Path:
    """A file with one deployment of the tiny world, TP 1, under (requests/s, seconds)."""
    [entry] = [e for e in yaml.safe_load(tiny_world.DATA)["experiments"] if e["id"] == "dense-chat"]
    entry = {key: value for key, value in entry.items() if key not in ("observed", "quality")}
    entry["engine"] = {"tensor_parallel": 1}
    entry["workload"] |= {"stages": [{"rate": rate, "duration_s": s} for rate, s in stages], **workload}
    path.write_text(yaml.safe_dump({"version": 1, "experiments": [entry]}))
    return path


def predicted(capsys: Capsys, *args: object, status: int = 0) -> dict[str, Any]:
    """The JSON of `evolve predict champion ARGS`, which ends with this exit status."""
    found: dict[str, Any] = as_json(capsys, "predict", "champion", *args, status=status)
    return found


def planned(capsys: Capsys, *args: object, program: str = "champion", status: int = 0) -> dict[str, Any]:
    """The JSON of `evolve plan PROGRAM ARGS`, which ends with this exit status."""
    found: dict[str, Any] = as_json(capsys, "plan", program, *args, status=status)
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


@pytest.fixture
def steady(tmp_path: Path) -> Options:
    """The options of one stage of LOAD."""
    return "--experiments", plan(tmp_path / "own.yaml", (LOAD, 30.0))


def watched(monkeypatch: pytest.MonkeyPatch) -> list[SweepFigures]:
    """The figures of every number of replicas that will be replayed under all seeds."""
    seen: list[SweepFigures] = []
    inner = counting.figures_of

    def figures(*args: Any) -> SweepFigures:
        seen.append(inner(*args))
        return seen[-1]

    monkeypatch.setattr(counting, "figures_of", figures)
    return seen


@pytest.mark.slow
def test_the_fewest_are_those_of_single_predictions(steady: Options, tmp_path: Path, capsys: Capsys) -> None:
    result = planned(capsys, *steady, "--slo", SLO)
    singles = {}
    for count in range(1, 12):
        rate = LOAD / count
        one = plan(tmp_path / f"{count}.yaml", (rate, max(30.0, ENOUGH / rate)))
        [singles[count]] = predicted(capsys, "--experiments", one)["experiments"]
    queues = {n: e["components"]["waiting"] / e["predicted"]["e2e_ms"]["mean"] > 0.05 for n, e in singles.items()}
    holding = [n for n, e in singles.items() if keeps(e) and not queues[n]]
    fewest, surer, surest = (min(n for n in holding if keeps(singles[n], of)) for of in ("", "_80", "_95"))
    assert 1 < fewest < surer <= surest < 11
    [row] = result["rows"]
    assert (result["rate_rps"], result["considered"], result["others"]) == (LOAD, 1, 0)
    assert (row["replicas"], row["gpus"], row["gpus_80"], row["gpus_95"]) == (fewest, fewest, surer, surest)
    for latency in ("e2e_ms", "ttft_ms", "itl_ms"):
        expected = singles[fewest]["predicted"][latency]
        assert row[latency] == {q: expected[q] for q in ("mean", "p50", "p90", "p99")}
    tight = min(1.0 - singles[fewest]["predicted"][of][q] / most_ms for of, q, most_ms in LIMITS_MS)
    assert row["headroom_pct"] == pytest.approx(100.0 * tight)
    said = (
        f"need {fewest} H100s ({surer} to be 80 % sure, {surest} to be 95 % sure): {fewest} replicas of 16-bit, TP 1."
    )
    assert f"300 requests/s of llama-2-7b {said}" in flat(capsys, "plan", "champion", *steady, "--slo", SLO)


def test_deployments_are_listed_by_their_gpus(steady: Options, capsys: Capsys) -> None:
    """Two GPUs as one deployment serve less than two apart would."""
    rows = planned(capsys, *steady, "--slo", SLO, "--tp", "2,1")["rows"]
    assert [(row["rank"], row["tp"]) for row in rows] == [(1, 1), (2, 2)]
    assert all(row["gpus"] == row["tp"] * row["replicas"] for row in rows) and rows[0]["gpus"] < rows[1]["gpus"]


def test_peaks_stay_peaks(tmp_path: Path, capsys: Capsys) -> None:
    """A peak of three times the mean, for a fifth of the time: a replica gets its share of all stages, and more are
    needed than for the mean alone."""
    stages = (150.0, 20.0), (900.0, 10.0), (150.0, 20.0)  # LOAD on average
    file, even = plan(tmp_path / "own.yaml", *stages), plan(tmp_path / "even.yaml", (LOAD, 50.0))
    [row], [of_even] = (planned(capsys, "--experiments", path, "--slo", SLO)["rows"] for path in (file, even))
    assert row["replicas"] > of_even["replicas"]
    one = plan(tmp_path / "one.yaml", *((rate / row["replicas"], s) for rate, s in stages))
    [e] = predicted(capsys, "--experiments", one)["experiments"]
    assert row["ttft_ms"]["p99"] == e["predicted"]["ttft_ms"]["p99"]


def test_conversations_that_are_not_done_have_no_count(tmp_path: Path, capsys: Capsys) -> None:
    """4 turns 60 s apart: two stages of 30 s end before most turns have come. One stage is made to last."""
    talk: dict[str, Any] = {"session": {"turns": 4, "think_time_s": 60.0}, "prompt_len": 100}
    short = plan(tmp_path / "short.yaml", (18.0, 30.0), (22.0, 30.0), **talk)
    one = plan(tmp_path / "one.yaml", (20.0, 30.0), **talk)
    [reason] = planned(capsys, "--experiments", short, status=1)["failing"]
    assert reason.startswith("dense-chat: ") and "the rate is not reached" in reason
    assert planned(capsys, "--experiments", one)["rows"][0]["replicas"]


def test_a_percentile_of_few_requests_says_so(tmp_path: Path, capsys: Capsys) -> None:
    file = plan(tmp_path / "own.yaml", (5.0, 10.0), (6.0, 10.0))
    args = "--experiments", file, "--slo", "ttft_p99=1s,ttft_p90=1s,ttft_mean=1s"
    for found in (predicted(capsys, *args), planned(capsys, *args)):
        [said] = [text for text in found["rows"][0]["warnings"] if "depends on the slowest few" in text]
        assert said.startswith("ttft_p99 of 110 requests")
    assert said in planned(capsys, *args)["cautions"]


def test_a_limit_that_only_a_stage_breaks_is_a_warning(tmp_path: Path, capsys: Capsys) -> None:
    file = plan(tmp_path / "own.yaml", (10.0, 60.0), (80.0, 5.0), (10.0, 60.0))
    [e] = predicted(capsys, "--experiments", file)["experiments"]
    whole, peak = (of["predicted"]["itl_ms"]["mean"] for of in (e, e["stages"][1]))
    limit_ms = round((whole + peak) / 2.0, 3)
    [row] = predicted(capsys, "--experiments", file, "--slo", f"itl_mean={limit_ms}ms")["rows"]
    assert whole < limit_ms < peak and not row["fails"]
    [said] = [text for text in row["warnings"] if text.startswith("itl_mean ")]
    assert "1 of its 3 stages" in said and f"{peak:.4g} ms in stage 2" in said


def test_rates_have_no_stages(tmp_path: Path, capsys: Capsys) -> None:
    """A peak of 80 requests/s is not among the rates of a sweep, so what holds there may not hold for the load."""
    peaks, even = (plan(tmp_path / f"{len(s)}.yaml", *s) for s in (((10.0, 60.0), (80.0, 5.0)), ((10.0, 60.0),)))
    # stages with lengths of their own stay stages at any rate
    stages = [{"rate": 10.0, "duration_s": 60.0}, {"rate": 80.0, "duration_s": 5.0, "output_len": 30}]
    own = plan(tmp_path / "own.yaml", (1.0, 1.0), stages=stages)
    rate = "--sweep", "rate=10"
    for case in ((peaks, rate), (even, rate), (peaks, ("--sweep", "tp=1")), (own, rate)):
        found = predicted(capsys, "--experiments", case[0], *case[1])["warnings"]
        assert any(line.startswith("each rate is constant") for line in found) == (case == (peaks, rate))


def test_a_trace_that_is_hurried_says_so(tmp_path: Path, capsys: Capsys) -> None:
    """10 requests/s for a minute: at 40 they last 15 s. One of several replicas is never hurried."""
    rows = "".join(f"{i / 10},300,50\n" for i in range(600))
    args = "--experiments", with_trace(plan(tmp_path / "own.yaml", (10.0, 60.0)), rows)
    [own, fast] = predicted(capsys, *args, "--sweep", "rate=10,40")["rows"]
    [alone] = planned(capsys, *args)["rows"]
    said = [[text for text in row["warnings"] if "the trace is played" in text] for row in (own, alone, fast)]
    assert said[:2] == [[], []] and "4 times as fast" in said[2][0] and "1/4 of their time" in said[2][0]


def test_intervals_that_may_be_too_narrow_are_said(steady: Options, capsys: Capsys) -> None:
    """No fitted run is on an A100 (README.md)."""
    found = planned(capsys, *steady, "--hardware", "H100,A100-SXM-80GB")
    said = "no fitted run has GPU A100-SXM-80GB: the intervals are widened"
    narrow = {row["hardware"]: any(text.startswith(said) for text in row["warnings"]) for row in found["rows"]}
    assert narrow == {"H100-SXM-80GB": False, "A100-SXM-80GB": True}
    assert not any(text.startswith(said) for text in found["cautions"])  # the H100 is first
    found = planned(capsys, *steady, "--hardware", "A100-SXM-80GB")
    assert any(text.startswith(said) for text in found["cautions"])


def test_intervals_below_constants_errors_are_said(tmp_path: Path, capsys: Capsys) -> None:
    """Llama 2 7B under a load so light, with answers so short, that the delay before the queue is half of a request."""
    file = plan(tmp_path / "own.yaml", (1.0, 600.0), prompt_len=600, output_len=1)
    args = "--experiments", file
    file.write_text(file.read_text().replace("tensor_parallel: 1", "tensor_parallel: 4"))
    [alone] = predicted(capsys, *args)["experiments"]
    said = "the intervals are too narrow, since the standard errors of constants, mostly queueing_time.base_2, "
    assert alone["intervals_of"] == "inside" and any(text.startswith(said) for text in alone["warnings"])
    found = planned(capsys, *args, "--slo", "ttft_p99=2s")
    [row] = found["rows"]
    assert row["gpus_80"] == row["gpus"] == 4
    assert any(text.startswith(said) for text in row["warnings"]) and found["cautions"][0].startswith(said)


def test_figures_that_are_limited_have_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    args = "--experiments", plan(tmp_path / "own.yaml", (7.0, 30.0))
    [row] = planned(capsys, *args, "--slo", "itl_p90=60ms,e2e_p50=9s")["rows"]
    for limits in ([], ["--slo", "itl_p90=60ms,e2e_p50=9s"]):
        lines = printed(capsys, "plan", "champion", *args, *limits).splitlines()
        [heads] = [line for line in lines if line.startswith("deployment ")]
        assert ("  ITL p90" in heads) == ("  E2E p50" in heads) == ("room, %" in heads) == bool(limits)
    cells = lines[lines.index(heads) + 2].split()
    assert f"{row['itl_ms']['p90']:.3g}" in cells and f"{row['e2e_ms']['p50']:,.0f}" in cells


def test_one_replica_may_be_enough(tmp_path: Path, capsys: Capsys) -> None:
    args = "--experiments", plan(tmp_path / "own.yaml", (7.0, 30.0))
    assert planned(capsys, *args)["rows"][0]["replicas"] == 1
    assert "7 requests/s of llama-2-7b need 1 H100 (" in flat(capsys, "plan", "champion", *args)


def test_limits_that_no_number_keeps_end_in_no_count(steady: Options, capsys: Capsys) -> None:
    args = *steady, "--slo", "ttft_p99=1us"
    result = planned(capsys, *args, status=1)
    assert result["rows"] == [] and (result["serve"], result["probe"]) == (None, None)
    [reason] = result["failing"]
    assert reason.startswith("H100-SXM-80GB, tp 1: ") and "TTFT p99 is" in reason
    text = flat(capsys, "plan", "champion", *args, status=1)
    assert text.startswith("No deployment serves 300 requests/s of llama-2-7b with TTFT p99 <= 0.001 ms.")
    assert reason in text


def test_a_limit_that_an_idle_engine_breaks_is_not_searched_for(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One prompt of 3,500 tokens alone takes longer than the limit: two predictions, not a dozen."""
    one = plan(tmp_path / "one.yaml", (0.01, 1e5), prompt_len=3500)
    [e] = predicted(capsys, "--experiments", one)["experiments"]
    ttft_ms = e["predicted"]["ttft_ms"]["p99"]
    args = "--experiments", plan(tmp_path / "own.yaml", (LOAD, 30.0), prompt_len=3500), "--slo"
    replayed = watched(monkeypatch)
    assert not planned(capsys, *args, f"ttft_p99={0.9 * ttft_ms:.3f}ms", status=1)["rows"]
    assert len(replayed) == 2
    assert planned(capsys, *args, f"ttft_p99={1.5 * ttft_ms:.3f}ms")["rows"][0]["replicas"]


def test_conversations_that_overlap_with_themselves_end_the_search_too(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns that do not wait for answers are two in a batch however many replicas there are."""
    talk: dict[str, Any] = {"session": {"turns": 3, "think_time_s": 0.05}, "prompt_len": 100}
    file, replayed = plan(tmp_path / "own.yaml", (LOAD, 30.0), **talk), watched(monkeypatch)
    assert not planned(capsys, "--experiments", file, "--slo", "itl_mean=1us", status=1)["rows"]
    assert 0 < len(replayed) < 20 and all(f.run and f.run.completed for f in replayed)


def test_a_program_without_intervals_has_no_surer_count(steady: Options, capsys: Capsys) -> None:
    [row] = planned(capsys, *steady, program="floor")["rows"]
    assert row["replicas"] and row["gpus_80"] is None and row["gpus_95"] is None and row["intervals_ms"] == {}
    assert "sure" not in printed(capsys, "plan", "floor", *steady)


def test_limits_alone_are_judged_at_the_upper_ends(tmp_path: Path, capsys: Capsys) -> None:
    steady = "--experiments", plan(tmp_path / "own.yaml", (70.0, 30.0))
    [e] = predicted(capsys, *steady)["experiments"]
    middle, top = e["predicted"]["ttft_ms"]["p99"], e["predicted"]["ttft_ms"]["p99_80"][1]
    for most_ms, word in ((1.001 * top, "holds"), ((middle + top) / 2.0, "may fail")):
        args = *steady, "--slo", f"ttft_p99={most_ms:.6f}ms"
        [row] = predicted(capsys, *args)["rows"]
        assert not row["fails"] and row["likely"] == (word == "holds")
        assert f"  {word}  " in printed(capsys, "predict", "champion", *args)
