"""Warnings of `predict` about what was observed, settings that a plan leaves to defaults, and what is not replayed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from commands import evolve, refused

from evaluator.score import predictions, score_set
from evolve.plan.warnings import about, contradicted, warnings
from evolve.run.program import load
from simulator.serving.bundled import bundled_experiments, load_experiments
from simulator.serving.experiment import Observation, Statistic

BANDS = {"e2e": {0.8: (900.0, 1100.0), 0.95: (800.0, 1200.0)}, "itl": {0.8: (9.0, 11.0), 0.95: (8.0, 12.0)}}
PLAN = """
version: 1
experiments:
- id: plan
  model: llama-3.1-8b
  hardware: H100
  {engine}
  workload: {{name: x, stages: [{{rate: 2, duration_s: 30}}], prompt_len: 800, output_len: 50}}
"""


def seen(e2e_ms: float | None, itl_ms: float | None, ttft_ms: float | None = None) -> Observation:
    return Observation(ttft_ms=Statistic(mean=ttft_ms), itl_ms=Statistic(mean=itl_ms), e2e_ms=Statistic(mean=e2e_ms))


@pytest.mark.parametrize(
    ("observed", "said"),
    [
        (None, ""),
        (seen(None, None), ""),
        (seen(801.0, 11.9, 1e6), ""),  # of TTFT there is no interval
        (seen(1201.0, 10.0), "(E2E 1201 ms, not 800 to 1200)"),
        (seen(799.0, 12.5), "(E2E 799 ms, not 800 to 1200; ITL 12.5 ms, not 8 to 12)"),
    ],
)
def test_an_observed_mean_outside_the_widest_interval_is_a_line(observed: Observation | None, said: str) -> None:
    for fitted in (False, True):
        lines = contradicted(observed, BANDS, "q4", fitted)
        assert lines == [] if not said else [said in line for line in lines] == [True]
        # A new run may have drifted; one that was fitted is beyond what the form can say.
        advice = "no constants of this form explain it" if fitted else "`evolve drift` with `--id q4` says what"
        assert all(advice in line for line in lines)


def test_a_fitted_run_outside_its_own_interval_is_said_to_be_beyond_the_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two runs under the same load, one of which took twice as long: no constants explain both."""
    plan = tmp_path / "plan.yaml"
    first, other = (
        (PLAN + OBSERVED).format(engine="engine: {}", mean=mean).replace("id: plan", f"id: {name}")
        for name, mean in (("first", 420), ("other", 840))
    )
    plan.write_text(first + other.split("experiments:\n")[1])
    assert evolve("fit", "champion", "--experiments", plan, "--out", tmp_path / "mine.py") == 0
    capsys.readouterr()
    assert evolve("predict", tmp_path / "mine.py", "--experiments", plan, "--json") == 0
    lines = [line for e in json.loads(capsys.readouterr().out)["experiments"] for line in e["warnings"]]
    assert any("outside the 95% intervals" in line and "no constants of this form explain it" in line for line in lines)
    assert not any("`evolve drift`" in line for line in lines)


@pytest.mark.parametrize(
    ("engine", "assumed"),
    [
        (
            "engine: {tensor_parallel: 1}",
            "assumed, as `engine` does not say: max_num_seqs 128, max_num_batched_tokens 2048 (",
        ),
        ("engine: {max_num_seqs: 256}", "does not say: max_num_batched_tokens 2048 ("),
        ("engine: {max_num_seqs: 256, max_num_batched_tokens: 8192}", ""),
    ],
)
def test_a_plan_without_limits_of_the_batch_is_told_which_are_assumed(
    engine: str, assumed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN.format(engine=engine))
    assert evolve("predict", "floor", "--experiments", plan) == 0
    out = capsys.readouterr().out
    assert (assumed in out) if assumed else ("assumed" not in out)


def test_of_a_measured_run_nothing_is_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    assert evolve("predict", "floor", "--id", "llama-2-7b-tp1-codegen") == 0
    assert "assumed" not in capsys.readouterr().out


def test_a_spreadsheet_is_not_written_as_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.xlsx"
    said = refused(capsys, "predict", "floor", "--id", "llama-2-7b-tp1-codegen", "--csv", file)
    assert "write --csv FILE.csv, which spreadsheets open" in said and not file.exists()


FAR = "held-out runs were at most 1.31 times beyond theirs, so the intervals may be too narrow"


@pytest.mark.parametrize(("tokens", "far"), [(800, False), (1340, False), (20_000, True)])
def test_farther_beyond_the_fitted_runs_than_any_held_out_one_is_said(
    tokens: int, far: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prompts of the fitted runs have at most 1,034 tokens; without the longest ones, 1.31 times as few
    (`reach` of seeds/champion/trust.json)."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN.format(engine="engine: {}").replace("prompt_len: 800", f"prompt_len: {tokens}"))
    assert evolve("predict", "champion", "--experiments", plan, "--json") == 0
    [e] = json.loads(capsys.readouterr().out)["experiments"]
    assert [FAR in line for line in e["warnings"] if "times beyond" in line] == [True] * far
    assert e["predicted"]["e2e_ms"]["mean_95"]


OBSERVED = "  observed: {{summary: {{e2e_ms: {{mean: {mean}}}}}}}\n"


@pytest.mark.parametrize(("mean", "said"), [(0.42, True), (420, False)])
def test_a_latency_in_seconds_is_noticed_by_predict_and_fit(
    mean: float, said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No GPU answers 50 tokens of a model of 8 billion parameters in half a millisecond: `fit` refuses it."""
    plan = tmp_path / "plan.yaml"
    plan.write_text((PLAN + OBSERVED).format(engine="engine: {}", mean=mean))
    line = "the observed E2E of 0.42 ms is below the datasheet's bound of"
    assert evolve("predict", "floor", "--experiments", plan, "--json") == 0
    [e] = json.loads(capsys.readouterr().out)["experiments"]
    assert any(line in text for text in e["warnings"]) == said
    fit = "fit", "floor", "--experiments", plan, "--out", tmp_path / "mine.py"
    if said:
        assert f"experiment 'plan': {line}" in refused(capsys, *fit) and not (tmp_path / "mine.py").exists()
    else:
        assert evolve(*fit) == 0 and "the observed" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_fit_says_which_measurements_it_counts_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A copy under another id, and a run with other figures."""
    plan = tmp_path / "plan.yaml"
    first, copy, other = (
        (PLAN + OBSERVED).format(engine="engine: {}", mean=mean).replace("id: plan", f"id: {name}")
        for name, mean in (("first", 420), ("copy", 420), ("other", 421))
    )
    plan.write_text(first + "".join(text.split("experiments:\n")[1] for text in (copy, other)))
    assert evolve("fit", "floor", "--experiments", plan, "--out", tmp_path / "mine.py", "--json") == 0
    twice = [line for line in json.loads(capsys.readouterr().out)["warnings"] if "counted twice" in line]
    assert twice == ["has the same measurements as first: they are counted twice: leave one of the two out"]
    assert evolve("fit", "floor", "--experiments", plan, "--out", tmp_path / "mine.py") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"- {twice[0]} (copy)" in said and "fitted on it before" not in said
    # The same again, from what they were fitted to, and one with other figures.
    plan.write_text(first + other.split("experiments:\n")[1].replace("421", "500"))
    assert evolve("fit", tmp_path / "mine.py", "--experiments", plan) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "fitted on it before, so it counts twice; standard errors are too small: fit new runs alone (first)" in said
    # What was held then counts it once.
    assert evolve("fit", "floor", "--experiments", plan, "--only", "alpha", "--out", tmp_path / "alpha.py") == 0
    for only, told in (("beta", False), ("alpha", True)):
        capsys.readouterr()
        assert evolve("fit", tmp_path / "alpha.py", "--experiments", plan, "--only", only) == 0
        assert ("fitted on it before" in capsys.readouterr().out) == told


def test_a_fit_of_a_search_s_program_says_that_the_search_was_fitted_on_the_run(
    tiny_run: Path, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evolve("fit", f"{tiny_run}:0", "--experiments", tiny.parent / "data.yaml", "--id", "dense-chat") == 0
    assert "the program was fitted on it before, so it counts twice" in " ".join(capsys.readouterr().out.split())


def test_each_latency_has_its_own_bound_and_nothing_is_learned_from_an_absurd_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A TTFT in seconds beside an E2E in ms: a prefill of 800 tokens of 8 billion parameters takes over 10 ms. Below half
    of the bound is a warning, below a tenth is refused by `fit`, `drift` and searches."""
    plan = tmp_path / "plan.yaml"
    both = OBSERVED.replace("{{mean: {mean}}}", "{{mean: {mean}}}, ttft_ms: {{mean: {ttft}}}")
    for ttft, word in ((0.03, "refused"), (6.0, "warned"), (30.0, "")):
        plan.write_text((PLAN + both).format(engine="engine: {}", mean=420, ttft=ttft))
        line = f"the observed TTFT of {ttft:g} ms is below the datasheet's bound of "
        for command in (["fit", "floor"], ["drift", "champion"], ["run", "--out", tmp_path / "r"]):
            args = *command, "--experiments", plan
            if word == "refused":
                assert line in refused(capsys, *args) and not (tmp_path / "r").exists()
            elif command[0] != "run":
                assert evolve(*args) in (0, 1)
                out = capsys.readouterr().out
                assert (line in out) == (word == "warned") or command[0] == "drift"


@pytest.mark.parametrize("command", ["fit", "fit --learning-curve", "drift", "ablate", "diagnose"])
@pytest.mark.parametrize(
    ("mean", "said"), [(4.2e5, "times the datasheet's bound: give ms, not us"), (0.042, "not seconds")]
)
def test_nothing_is_learned_from_microseconds_or_seconds(
    command: str, mean: float, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """420 ms are plausible for 50 tokens of a model of 8 billion parameters. Two runs, as `ablate` leaves one out."""
    plan = tmp_path / "plan.yaml"
    one = OBSERVED.format(mean=420.0)
    other = (
        (PLAN + OBSERVED)
        .format(engine="engine: {}", mean=mean)
        .split("experiments:\n")[1]
        .replace("id: plan", "id: wrong")
    )
    plan.write_text(PLAN.format(engine="engine: {}") + one + other)
    line = refused(capsys, *command.split(), *(["floor"] if command != "drift" else []), "--experiments", plan)
    assert f"experiment 'wrong': the observed E2E of {mean:.4g} ms is " in line and said in line


@pytest.mark.parametrize("command", ["fit", "fit --learning-curve", "drift", "ablate", "diagnose"])
@pytest.mark.parametrize(
    ("engine", "load", "said"),
    [
        (
            "{max_model_len: 500}",
            "",
            "datasheet allows (all are longer than max_model_len and were refused): correct max_model_len",
        ),
        (
            "{}",
            "timeout_s: 0.001, ",
            "no request completes at what the datasheet allows (every client gives up): correct",
        ),
    ],
)
def test_nothing_is_learned_from_a_run_of_which_no_request_completes(
    command: str, engine: str, load: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prompts of 800 tokens, 420 ms. A fit used to move the constants for the latencies of such a run."""
    plan = tmp_path / "plan.yaml"
    one = (PLAN + OBSERVED).format(engine="engine: {}", mean=420.0)
    other = (PLAN + OBSERVED).format(engine=f"engine: {engine}", mean=420.0).split("experiments:\n")[1]
    assert "workload: {" in other
    other = other.replace("id: plan", "id: never").replace("workload: {", "workload: {" + load)
    plan.write_text(one + other)
    line = refused(capsys, *command.split(), *(["floor"] if command != "drift" else []), "--experiments", plan)
    assert "experiment 'never': " in line and said in line


def test_a_mean_above_its_p99_is_doubted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.yaml"
    for p99, said in ((300, True), (500, False)):
        figures = f"{{{{mean: 420, p99: {p99}}}}}"
        plan.write_text((PLAN + OBSERVED.replace("{{mean: {mean}}}", figures)).format(engine="engine: {}"))
        assert evolve("predict", "floor", "--experiments", plan) == 0
        assert ("the observed mean E2E, 420 ms, is above its p99, 300 ms: check" in capsys.readouterr().out) == said


def test_without_a_completed_request_a_prediction_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN.format(engine="engine: {max_model_len: 500}"))  # prompts of 800 tokens are refused
    assert evolve("predict", "champion", "--experiments", plan) == 1
    out = capsys.readouterr().out
    assert "no request completes" in out and "No intervals" not in out


def test_offload_that_would_matter_is_said_to_be_missing() -> None:
    line = "KV offload to CPU is not replayed: "
    runs = {e.id: e for e in bundled_experiments()}
    codegen, roleplay = runs["llama-2-7b-tp1-codegen"], runs["llama-2-7b-tp1-roleplay"]
    made, fits = predictions(load("floor").complete, score_set([codegen, roleplay], seeds=(1,)))
    assert not any(w.startswith(line) for w in warnings(None, roleplay, fits))  # nothing is evicted
    assert made.evicted > 1000 and made.preemptions == 0
    lines = [w for w in warnings(None, codegen, made) if w.startswith(line)]
    assert lines == [f"{line}{made.evicted} evicted prompts and 0 preemptions are prefilled again"]
    assert line + "0 evicted prompts and 3 preemptions are prefilled again" in warnings(
        None, roleplay, replace(fits, preemptions=3)
    )
    without = replace(codegen, engine=replace(codegen.engine, kv_cpu_offload=False))
    assert not any(w.startswith(line) for w in warnings(None, without, made))


def planned(tmp_path: Path, *entries: str) -> Path:
    """A file of plans a, b, c ...: a deployment each."""
    path = tmp_path / "plans.yaml"
    load = "workload: {name: x, stages: [{rate: 0.5, duration_s: 60}], prompt_len: 800, output_len: 50}"
    lines = [f"- {{id: {ident}, {entry}, {load}}}" for ident, entry in zip("abc", entries, strict=False)]
    path.write_text("\n".join(["version: 1", "experiments:", *lines]) + "\n")
    return path


def test_a_cache_too_small_for_the_longest_request_is_told_what_would_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Llama 3.1 70B on two H100: 131.4 GiB of weights leave 1,920 blocks of 16 tokens; its own limit is 131,072."""
    model = "model: llama-3.1-70b, hardware: H100, engine: {{tensor_parallel: 2{0}}}".format
    path = planned(tmp_path, model(""), model(", max_model_len: 30720"), model(", max_model_len: 30721"))
    assert evolve("predict", "champion", "--experiments", path, "--json") == 0
    lines = [e["warnings"] for e in json.loads(capsys.readouterr().out)["experiments"]]
    said = [[line for line in of if "does not start" in line] for of in lines]
    assert [len(of) for of in said] == [1, 0, 1]
    assert said[0][0] == (
        "the KV cache of 30720 tokens cannot hold a request of max_model_len, 131072 tokens, so vLLM does not start: set "
        "engine.max_model_len to at most 30720, or use more or larger GPUs"
    )
    for varied in ("tp=2,4", "rate=0.5"):
        args = "predict", "champion", "--experiments", path, "--sweep", varied
        assert evolve(*args, "--json") == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        never = {row["experiment"] for row in rows if row["tp"] == 2 and row["impossible"]}
        assert never == {"a", "c"} and not any(row["impossible"] for row in rows if row["tp"] == 4)
        assert all(said[0][0] in row["impossible"] for row in rows if row["experiment"] == "a" and row["tp"] == 2)
        assert evolve(*args) == 0
        assert "Impossible: a" in (out := capsys.readouterr().out) and said[0][0] in " ".join(out.split())
    assert evolve("predict", "champion", "--experiments", path, "--id", "a", "--slo", "ttft_p99=9s", "--csv", "-") == 1
    assert said[0][0] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("program", "text", "same"),
    [
        ("roofline", "", True),  # its peak and its bandwidth are constants
        ("linear", "", True),
        ("components", "", False),
        ("champion", "", False),
        ("mine", "def step_time(b, s, *, share=0.5): return b.tokens / share / s.bytes_per_us", False),
        ("mine", "def step_time(b, s, *, a=9.0): return a * b.tokens * s.bytes_per_us * s.kv_us_per_token", True),
    ],
)
def test_a_program_that_knows_one_gpu_alone_says_so(
    program: str, text: str, same: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text:
        (tmp_path / "mine.py").write_text(text)
    path = planned(tmp_path, "model: llama-3.1-8b, hardware: A100")
    for command in ("predict", "sensitivity"):
        assert evolve(command, tmp_path / "mine.py" if text else program, "--experiments", path) == 0
        assert ("its steps take as long on every other one" in " ".join(capsys.readouterr().out.split())) == same


def test_kernels_of_another_gpu_are_said_to_be_scaled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = "{{name: {0}, bf16_tflops: 989.5, fp8_tflops: 1979, memory_tb_per_s: {1}, link_gb_per_s: 450, memory_gb: 80, " \
          "kernels: h100_sxm}}"  # fmt: skip
    entries = (f"model: llama-3.1-8b, hardware: {own.format(*gpu)}" for gpu in (("same", 3.35), ("faster", 6.7)))
    assert evolve("predict", "champion", "--experiments", planned(tmp_path, *entries), "--json") == 0
    same, faster = json.loads(capsys.readouterr().out)["experiments"]
    said = "its kernels are those of h100_sxm, scaled to the peaks of faster: where that could be compared, "
    assert [any(line.startswith(said) for line in e["warnings"]) for e in (same, faster)] == [False, True]
    assert faster["predicted"]["itl_ms"]["mean"] < 0.7 * same["predicted"]["itl_ms"]["mean"]


@pytest.mark.parametrize(
    "command", ["predict", "fit", "fit --learning-curve", "diagnose", "explain", "drift", "ablate", "sensitivity"]
)
def test_a_gpu_without_kernels_is_named_with_its_experiment(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = "model: llama-3.1-8b, hardware: {0}, observed: {{summary: {{e2e_ms: {{mean: 400}}}}}}".format
    path = planned(tmp_path, entry("H100"), entry("H100-NVL"))
    name, *options = command.split()
    assert evolve(name, "champion", *options, "--experiments", path) == 2
    said = capsys.readouterr().err.splitlines()[-1]  # a command with many fits says first that it prepares them
    assert said.startswith(f"evolve: {path}: experiment 'b': kernels: the program reads measured kernels, and this")


@pytest.mark.slow
def test_constants_that_are_less_certain_than_the_intervals_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two equal runs one took half as long again: the champion's factor of matrix products is anybody's guess."""
    entry = "model: llama-3.1-8b, hardware: H100, observed: {{summary: {{e2e_ms: {{mean: {0}}}}}}}".format
    mine = tmp_path / "mine.py"
    for slower, said in (("401", False), ("600", True)):
        path = planned(tmp_path, entry("400"), entry(slower))
        assert evolve("fit", "champion", "--experiments", path, "--out", mine) == 0, capsys.readouterr().err
        capsys.readouterr()
        assert evolve("predict", mine, "--experiments", path, "--json") == 0
        for e in json.loads(capsys.readouterr().out)["experiments"]:
            assert any("the standard errors of its constants, mostly " in line for line in e["warnings"]) == said


@pytest.mark.parametrize(("think_time_s", "share"), [("1.9", "100"), ("{uniform: {min: 0, max: 8}}", "2."), ("60", "")])
def test_turns_that_come_before_the_answer_are_mentioned(
    think_time_s: str, share: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An answer of 300 tokens takes about two seconds: a quarter of what is uniform from 0 to 8 s is shorter."""
    path = tmp_path / "plan.yaml"
    path.write_text(f"""
version: 1
experiments:
- id: chat
  model: llama-3.1-8b
  hardware: H100
  workload:
    {{name: x, stages: [{{rate: 1.0, duration_s: 120}}], prompt_len: 100, output_len: 300,
     session: {{turns: 3, think_time_s: {think_time_s}}}}}
""")
    assert evolve("predict", "champion", "--experiments", path, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["experiments"]
    assert 1900 < found["predicted"]["e2e_ms"]["mean"] < 2400
    said = [line for line in found["warnings"] if "of later turns come before the answer to the turn before" in line]
    assert [re.match(share, line) is not None for line in said] == [True] * bool(share)


def test_experts_that_beat_the_datasheet_are_said_of_a_program_that_reads_kernels_alone(tmp_path: Path) -> None:
    experts = {
        "model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16,
        "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2,
        "num_experts_per_tok": 6, "first_k_dense_replace": 1, "vocab_size": 102400, "max_position_embeddings": 4096,
    }  # fmt: skip
    load_of_one = {"name": "w", "stages": [{"rate": 1, "duration_s": 60}], "prompt_len": 100, "output_len": 100}
    entry = {"id": "e", "model": "small", "model_config": experts, "hardware": "H100", "workload": load_of_one}
    (tmp_path / "e.yaml").write_text(json.dumps({"version": 1, "experiments": [entry]}), "utf-8")
    experiments = load_experiments(tmp_path / "e.yaml")
    (tmp_path / "p.py").write_text("def step_time(b, s):\n    return max(1000, 10 * b.decode_reqs)\n", "utf-8")
    start = "routed experts of small on 1 H100-SXM-80GB are taken as up to 19 % faster than bytes and FLOPs take"
    assert [line[: len(start)] for line in about(load("champion"), experiments) if "routed" in line] == [start]
    assert not [line for line in about(load(str(tmp_path / "p.py")), experiments) if "routed" in line]


def test_a_gpu_without_kernels_has_a_line_to_paste(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = planned(tmp_path, "model: llama-3.1-8b, hardware: H100-NVL")
    assert evolve("predict", "champion", "--experiments", path) == 2
    [pasted] = re.findall(r"write `hardware: ([^`]*)` in its experiment", capsys.readouterr().err)
    assert 'name: "H100-NVL-94GB"' in pasted and 'kernels: "h100_sxm"}' in pasted
    path = planned(tmp_path, f"model: llama-3.1-8b, hardware: {pasted}")
    assert evolve("predict", "champion", "--experiments", path, "--json") == 0
    [e] = json.loads(capsys.readouterr().out)["experiments"]
    assert any("scaled to the peaks of H100-NVL-94GB" in line for line in e["warnings"])
