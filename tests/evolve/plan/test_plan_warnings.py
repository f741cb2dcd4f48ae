"""Warnings of `predict` about what was observed, settings that a plan leaves to defaults, and what is not replayed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import Capsys, as_json, evolve, flat, printed, refused

from evaluator.intervals import Bands
from evaluator.score import predictions, score_set
from evolve.plan.warnings import contradicted, warnings
from evolve.run.program import load
from simulator.serving.bundled import bundled_experiments
from simulator.serving.observations import Observation, Statistic

BANDS = {
    "e2e": Bands({0.8: (900.0, 1100.0), 0.95: (800.0, 1200.0)}, True),
    "itl": Bands({0.8: (9.0, 11.0), 0.95: (8.0, 12.0)}, True),
    "ttft": Bands({0.8: (20.0, 30.0), 0.95: (10.0, 40.0)}, False),
}
LEARNING = ["fit", "fit --learning-curve", "drift", "show --ablate", "show --diagnose"]


def written(tmp_path: Path, *entries: str) -> Path:
    """A file of experiments a, b, c ... with these keys. A later `workload` key replaces the first one."""
    path = tmp_path / "plans.yaml"
    load = "workload: {name: x, stages: [{rate: 2, duration_s: 30}], prompt_len: 800, output_len: 50}"
    both = "model: llama-3.1-8b", "hardware: H100", load
    lines = []
    for ident, entry in zip("abc", entries, strict=False):
        given = [key for key in both if f"{key.split(':')[0]}:" not in entry]
        lines.append(f"- {{id: {ident}, {', '.join([*given, *([entry] if entry else [])])}}}")
    path.write_text("\n".join(["version: 1", "experiments:", *lines]) + "\n")
    return path


def observed(e2e_ms: float, more: str = "") -> str:
    return f"observed: {{summary: {{e2e_ms: {{mean: {e2e_ms}}}{more}}}}}"


def said(experiments: dict[str, Any], part: str) -> Iterator[str]:
    return (line for e in experiments["experiments"] for line in e["warnings"] if part in line)


def seen(e2e_ms: float | None, itl_ms: float | None, ttft_ms: float | None = None) -> Observation:
    return Observation(ttft_ms=Statistic(mean=ttft_ms), itl_ms=Statistic(mean=itl_ms), e2e_ms=Statistic(mean=e2e_ms))


@pytest.mark.parametrize(
    ("run", "found"),
    [
        (None, ""),
        (seen(None, None), ""),
        (seen(801.0, 11.9, 1e6), ""),  # that of TTFT is not calibrated
        (seen(1201.0, 10.0), "(E2E 1201 ms, not 800 to 1200)"),
        (seen(799.0, 12.5), "(E2E 799 ms, not 800 to 1200; ITL 12.5 ms, not 8 to 12)"),
    ],
)
def test_a_mean_outside_the_widest_interval_is_a_warning(run: Observation | None, found: str) -> None:
    for fitted in (False, True):
        lines = contradicted(run, BANDS, "q4", fitted)
        assert len(lines) == bool(found) and all(found in line for line in lines)
        assert all(("evolve drift" in line) != fitted for line in lines)  # the form cannot explain a fitted one


def test_a_fitted_run_outside_its_interval_is_beyond_the_form(tmp_path: Path, capsys: Capsys) -> None:
    """Two runs under the same load, one of which took twice as long: no constants explain both."""
    plan = written(tmp_path, observed(420), observed(840))
    assert evolve("fit", "champion", "--experiments", plan, "--out", tmp_path / "mine.py") == 0
    found = as_json(capsys, "predict", tmp_path / "mine.py", "--experiments", plan)
    assert any("no constants of this form" in line for line in said(found, "outside the 95 % intervals"))
    assert not any(said(found, "`evolve drift`"))


@pytest.mark.parametrize(
    ("engine", "assumed"),
    [
        ("engine: {tensor_parallel: 1}", "max_num_seqs 128, max_num_batched_tokens 2048 ("),
        ("engine: {max_num_seqs: 256}", "does not say: max_num_batched_tokens 2048 ("),
        ("engine: {max_num_seqs: 256, max_num_batched_tokens: 8192}", ""),
    ],
)
def test_assumed_limits_of_the_batch_are_named(engine: str, assumed: str, tmp_path: Path, capsys: Capsys) -> None:
    out = printed(capsys, "predict", "floor", "--experiments", written(tmp_path, engine))
    assert assumed in out if assumed else "assumed" not in out
    assert "assumed" not in printed(capsys, "predict", "floor", "--id", "llama-2-7b-tp1-codegen")  # it was measured


@pytest.mark.parametrize(("tokens", "far"), [(800, False), (1340, False), (20_000, True)])
def test_extrapolation_is_a_warning(tokens: int, far: bool, tmp_path: Path, capsys: Capsys) -> None:
    """Prompts of the fitted runs have at most 8,191 tokens; no held-out run was beyond (`reach` of its trust.json)."""
    plan = written(tmp_path, "engine: {}")
    plan.write_text(plan.read_text().replace("prompt_len: 800", f"prompt_len: {tokens}"))
    found = as_json(capsys, "predict", "champion", "--experiments", plan)
    lines = list(said(found, "times beyond"))
    assert len(lines) == far and all("at most 1 times beyond theirs" in line for line in lines)
    assert found["experiments"][0]["predicted"]["e2e_ms"]["mean_95"]


@pytest.mark.slow
def test_a_fit_names_measurements_that_count_twice(tmp_path: Path, capsys: Capsys) -> None:
    """A copy under another id, and a run with other figures."""
    plan = written(tmp_path, observed(420), observed(420), observed(421))
    fit = "fit", "floor", "--experiments", plan, "--out", tmp_path / "mine.py"
    [twice] = [line for line in as_json(capsys, *fit)["warnings"] if "counted twice" in line]
    assert "the same measurements as a" in twice
    out = flat(capsys, *fit, "-v")
    assert f"- {twice} (b)" in out and "fitted on it before" not in out
    # The same again, from what they were fitted to, and one with other figures.
    written(tmp_path, observed(420), observed(500))
    again = flat(capsys, "fit", tmp_path / "mine.py", "--experiments", plan)
    assert "fitted on it before" in again and "fit new runs alone (a)" in again
    # What was held then counts it once.
    printed(capsys, "fit", "floor", "--experiments", plan, "--only", "alpha", "--out", tmp_path / "alpha.py")
    for only, told in (("beta", False), ("alpha", True)):
        out = printed(capsys, "fit", tmp_path / "alpha.py", "--experiments", plan, "--only", only)
        assert ("fitted on it before" in out) == told


def test_fitting_a_program_on_its_own_run_is_a_warning(tiny_run: Path, tiny: Path, capsys: Capsys) -> None:
    args = "fit", f"{tiny_run}:0", "--experiments", tiny.parent / "data.yaml", "--id", "dense-chat"
    assert "fitted on it before" in flat(capsys, *args)


@pytest.mark.parametrize(("e2e_ms", "wrong"), [(0.42, True), (420, False)])
def test_a_latency_in_seconds_is_noticed(e2e_ms: float, wrong: bool, tmp_path: Path, capsys: Capsys) -> None:
    """No GPU answers 50 tokens of a model of 8 billion parameters in half a millisecond: `fit` refuses it."""
    plan, mine = written(tmp_path, observed(e2e_ms)), tmp_path / "mine.py"
    line = "observed E2E of 0.42 ms is below the datasheet's bound"
    assert any(said(as_json(capsys, "predict", "floor", "--experiments", plan), line)) == wrong
    fit = "fit", "floor", "--experiments", plan, "--out", mine
    if wrong:
        assert line in refused(capsys, *fit) and not mine.exists()
    else:
        assert "the observed" not in printed(capsys, *fit)


@pytest.mark.parametrize(("ttft_ms", "warned"), [(0.03, None), (6.0, True), (30.0, False)])
def test_each_latency_has_its_own_bound(ttft_ms: float, warned: bool | None, tmp_path: Path, capsys: Capsys) -> None:
    """A TTFT in seconds beside an E2E in ms: a prefill of 800 tokens of 8 billion parameters takes over 10 ms. Below half
    of the bound is a warning, below a tenth (None) is refused by `fit`, `drift` and searches."""
    plan, run = written(tmp_path, observed(420, f", ttft_ms: {{mean: {ttft_ms}}}")), tmp_path / "r"
    line = f"observed TTFT of {ttft_ms:g} ms is below the datasheet's bound"
    for command in (["fit", "floor"], ["drift", "champion"], ["run", "--out", run]):
        args = *command, "--experiments", plan
        if warned is None:
            assert line in refused(capsys, *args) and not run.exists()
        elif command[0] == "fit":
            assert (line in printed(capsys, *args)) == warned


@pytest.mark.parametrize("command", LEARNING)
@pytest.mark.parametrize(
    ("key", "entry"),
    [
        ("give ms, not us", observed(4.2e5)),
        ("not seconds", observed(0.042)),
        ("max_model_len", observed(420) + ", engine: {max_model_len: 500}"),
        (
            "every client gives up",
            observed(420) + ", workload: {name: x, timeout_s: 0.001, stages: [{rate: 2, "
            "duration_s: 30}], prompt_len: 800, output_len: 50}",
        ),
    ],
)
def test_an_impossible_run_is_refused(command: str, key: str, entry: str, tmp_path: Path, capsys: Capsys) -> None:
    """420 ms are plausible for 50 tokens of a model of 8 billion parameters. Two runs, as `ablate` leaves one out."""
    plan = written(tmp_path, observed(420), entry)
    program = [] if command == "drift" else ["floor"]
    line = refused(capsys, *command.split(), *program, "--experiments", plan)
    assert "experiment 'b'" in line and key in line


@pytest.mark.parametrize(("p99", "doubted"), [(300, True), (500, False)])
def test_a_mean_above_its_p99_is_doubted(p99: int, doubted: bool, tmp_path: Path, capsys: Capsys) -> None:
    plan = written(tmp_path, f"observed: {{summary: {{e2e_ms: {{mean: 420, p99: {p99}}}}}}}")
    assert ("is above its p99" in printed(capsys, "predict", "floor", "--experiments", plan)) == doubted


def test_without_a_completed_request_a_prediction_fails(tmp_path: Path, capsys: Capsys) -> None:
    plan = written(tmp_path, "engine: {max_model_len: 500}")  # prompts of 800 tokens are refused
    out = printed(capsys, "predict", "champion", "--experiments", plan, status=1)
    assert "No request completes" in out and "No intervals" not in out


def test_offload_that_would_matter_is_a_warning() -> None:
    def offload(*args: Any) -> list[str]:
        return [line for line in warnings(None, *args) if line.startswith("KV offload to CPU is not replayed: ")]

    runs = {e.id: e for e in bundled_experiments()}
    codegen, roleplay = runs["llama-2-7b-tp1-codegen"], runs["llama-2-7b-tp1-roleplay"]
    made, fits = predictions(load("floor").complete, score_set([codegen, roleplay], seeds=(1,)))
    assert not offload(roleplay, fits)  # nothing is evicted
    assert made.evicted > 1000 and made.preemptions == 0
    [line] = offload(codegen, made)
    assert f" {made.evicted} evicted prompts and 0 preemptions " in line
    [line] = offload(roleplay, replace(fits, preemptions=3))
    assert " 0 evicted prompts and 3 preemptions " in line
    assert not offload(replace(codegen, engine=replace(codegen.engine, kv_cpu_offload=False)), made)


def test_a_cache_too_small_names_a_length_that_fits(tmp_path: Path, capsys: Capsys) -> None:
    """Llama 3.1 70B on two H100: 131.4 GiB of weights leave 1,920 blocks of 16 tokens; its own limit is 131,072."""
    model = "model: llama-3.1-70b, engine: {{tensor_parallel: 2{0}}}".format
    path = written(tmp_path, model(""), model(", max_model_len: 30720"), model(", max_model_len: 30721"))
    path.write_text(path.read_text().replace("rate: 2", "rate: 0.5"))
    at = "predict", "champion", "--experiments", path
    found = [[w for w in e["warnings"] if "does not start" in w] for e in as_json(capsys, *at)["experiments"]]
    assert [len(lines) for lines in found] == [1, 0, 1]
    line = found[0][0]
    assert "30720 tokens" in line and "131072 tokens" in line and "engine.max_model_len to at most 30720" in line
    for varied in ("tp=2,4", "rate=0.5"):
        rows = as_json(capsys, *at, "--sweep", varied)["rows"]
        never = {row["experiment"] for row in rows if row["tp"] == 2 and row["impossible"]}
        assert never == {"a", "c"} and not any(row["impossible"] for row in rows if row["tp"] == 4)
        assert all(line in row["impossible"] for row in rows if row["experiment"] == "a" and row["tp"] == 2)
        assert line in flat(capsys, *at, "--sweep", varied)
    assert line in printed(capsys, *at, "--id", "a", "--slo", "ttft_p99=9s", "--csv", "-", status=1)


@pytest.mark.parametrize(
    ("program", "same"),
    [
        ("roofline", True),  # its peak and its bandwidth are constants
        ("linear", True),
        ("components", False),
        ("champion", False),
        ("def step_time(b, s, *, share=0.5): return b.tokens / share / s.bytes_per_us", False),
        ("def step_time(b, s, *, a=9.0): return a * b.tokens * s.bytes_per_us * s.kv_us_per_token", True),
    ],
)
def test_a_program_that_knows_one_gpu_says_so(program: str, same: bool, tmp_path: Path, capsys: Capsys) -> None:
    if "def " in program:
        (tmp_path / "mine.py").write_text(program)
        program = str(tmp_path / "mine.py")
    path = written(tmp_path, "hardware: A100")
    for command in ("predict", "sensitivity"):
        assert (
            "its steps take as long on every other" in flat(capsys, command, program, "--experiments", path)
        ) == same


def test_kernels_scaled_from_another_gpu_are_a_warning(tmp_path: Path, capsys: Capsys) -> None:
    own = (
        "hardware: {{name: {0}, bf16_tflops: 989.5, fp8_tflops: 1979, memory_tb_per_s: {1}, link_gb_per_s: 450, "
        "memory_gb: 80, kernels: h100_sxm}}"
    )
    plan = written(tmp_path, own.format("same", 3.35), own.format("faster", 6.7))
    found = as_json(capsys, "predict", "champion", "--experiments", plan)
    assert len(list(said(found, "h100_sxm, scaled to the peaks of faster"))) == 1
    assert not any(said(found, "peaks of same"))
    same, faster = (e["predicted"]["itl_ms"]["mean"] for e in found["experiments"])
    assert faster < 0.7 * same


@pytest.mark.parametrize("command", ["predict", "sensitivity", "show --explain", *LEARNING])
def test_a_gpu_without_kernels_is_named_with_its_experiment(command: str, tmp_path: Path, capsys: Capsys) -> None:
    path = written(tmp_path, observed(400), f"hardware: H100-NVL, {observed(400)}")
    name, *options = command.split()
    assert evolve(name, "champion", *options, "--experiments", path) == 2
    line = capsys.readouterr().err.splitlines()[-1]  # a command with many fits says first that it prepares them
    assert f"{path}: experiment 'b': kernels: " in line


def test_a_gpu_without_kernels_has_a_line_to_paste(tmp_path: Path, capsys: Capsys) -> None:
    line = refused(capsys, "predict", "champion", "--experiments", written(tmp_path, "hardware: H100-NVL"))
    [pasted] = re.findall(r"`hardware: ([^`]*)`", line)
    assert 'name: "H100-NVL-94GB"' in pasted and 'kernels: "h100_sxm"}' in pasted
    found = as_json(capsys, "predict", "champion", "--experiments", written(tmp_path, f"hardware: {pasted}"))
    assert any(said(found, "scaled to the peaks of H100-NVL-94GB"))


@pytest.mark.slow
def test_constants_less_certain_than_the_intervals_are_a_warning(tmp_path: Path, capsys: Capsys) -> None:
    """One of two equal runs took half as long again, so the factor of matrix products is hardly known."""
    mine = tmp_path / "mine.py"
    for slower, uncertain in ((401, False), (600, True)):
        path = written(tmp_path, observed(400), observed(slower))
        path.write_text(path.read_text().replace("rate: 2", "rate: 0.5").replace("duration_s: 30", "duration_s: 60"))
        printed(capsys, "fit", "champion", "--experiments", path, "--out", mine)
        found = as_json(capsys, "predict", mine, "--experiments", path)
        assert len(
            list(said(found, "the intervals are too narrow, since the standard errors of constants, mostly "))
        ) == (2 if uncertain else 0)


@pytest.mark.parametrize(("think_time_s", "share"), [("1.9", "100"), ("{uniform: {min: 0, max: 8}}", "2."), ("60", "")])
def test_turns_before_the_answer_are_a_warning(think_time_s: str, share: str, tmp_path: Path, capsys: Capsys) -> None:
    """An answer of 300 tokens takes about two seconds: a quarter of what is uniform from 0 to 8 s is shorter."""
    chat = (
        "workload: {name: x, stages: [{rate: 1.0, duration_s: 120}], prompt_len: 100, output_len: 300, "
        f"session: {{turns: 3, think_time_s: {think_time_s}}}}}"
    )
    found = as_json(capsys, "predict", "champion", "--experiments", written(tmp_path, chat))
    assert 1900 < found["experiments"][0]["predicted"]["e2e_ms"]["mean"] < 2400
    lines = list(said(found, "turns come before the answer"))
    assert len(lines) == bool(share) and all(re.match(share, line) for line in lines)


@pytest.mark.parametrize(("apart_s", "share"), [(1, "100 %"), (10, "")])
def test_recorded_turns_before_the_answer_are_a_warning(
    apart_s: int, share: str, tmp_path: Path, capsys: Capsys
) -> None:
    """Three turns of each of two conversations, with answers of 300 tokens, which take about two seconds."""
    turns = [f"{apart_s * turn},{100 + 400 * turn},300,{of}" for turn in range(3) for of in range(2)]
    (tmp_path / "t.csv").write_text("\n".join(["arrival_s,input_len,output_len,conversation", *turns]) + "\n")
    path = written(tmp_path, "workload: {name: x, trace: t.csv}")
    found = as_json(capsys, "predict", "champion", "--experiments", path)
    lines = list(said(found, "turns come before the answer"))
    assert len(lines) == bool(share) and all(line.startswith(share) for line in lines)
