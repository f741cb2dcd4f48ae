"""The commands as a user types them: what they print, where they write, and how they refuse bad input."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import click
import commands
import pytest
import yaml
from commands import Capsys, evolve

from evaluator.judge.gates import GATES
from evolve.cli.entry import GROUPS
from simulator.language.measure import operations
from simulator.language.parse import parse
from simulator.language.unparse import unparse

PROGRAM = """
def step_time(b, s, *, weights: one = 1.1, kv: one = 1.2, layer: us = 50.0):
    return weights * b.weight_read_us + kv * b.kv_read_us + layer * s.layers
"""

# An experiment as a user would write it: model and GPU given inline, nothing observed.
PLAN = """
version: 1
experiments:
- id: plan
  model: my-org/my-model
  model_config: {model_type: llama, hidden_size: 3072, num_hidden_layers: 28, num_attention_heads: 24,
    num_key_value_heads: 8, head_dim: 128, intermediate_size: 8192, vocab_size: 128256, max_position_embeddings: 131072,
    torch_dtype: bfloat16, tie_word_embeddings: true, generation_config: {top_p: 0.9}}
  hardware: {name: my-gpu, bf16_tflops: 400.0, memory_tb_per_s: 2.0, link_gb_per_s: 100.0, memory_gb: 48}
  engine: {tensor_parallel: 2, max_num_seqs: 64}
  workload:
    name: chat
    stages: [{rate: 2.0, duration_s: 60.0}, {rate: 4.0, duration_s: 30.0}]
    shared_prefix: {groups: 3, prompts_per_group: 2, system_prompt_len: 64, question_len: 200}
    output_len: 120
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "p.py").write_text(PROGRAM)
    (tmp_path / "plan.yaml").write_text(PLAN)
    return tmp_path


def run(capsys: Capsys, *args: object) -> tuple[int, str, str]:
    status = evolve(*args)
    out, err = capsys.readouterr()
    return status, out, err


def refused(capsys: Capsys, *args: object) -> str:
    """The one line with which bad input is refused, without the command's name."""
    return commands.refused(capsys, *args).removeprefix("evolve: ").rstrip("\n")


def test_predict_of_an_unseen_file_prints_the_json_of_the_contract(files: Path, capsys: Capsys) -> None:
    args = ("predict", files / "p.py", "--experiments", files / "plan.yaml", "--json")
    status, out, _ = run(capsys, *args)
    assert status == 0
    result = json.loads(out)
    means = {"mean_abs_error_pct", "mean_abs_error_pct_in_sample", "mean_abs_error_pct_new"}
    assert set(result) == {"engine", "data", "seeds", "program", "key", "experiments", "warnings", "deviation", *means}
    assert result["seeds"] == [1, 2, 3] and result["mean_abs_error_pct"] == {"e2e": None, "ttft": None, "itl": None}
    (e,) = result["experiments"]
    keys = """id model hardware tp data_parallel expert_parallel max_num_seqs max_num_batched_tokens weights rate_rps concurrency completed_rps output_tokens_per_s fitted fitted_share fitted_before
        predicted observed error_pct components observed_components stages warnings intervals_of not_calibrated saturated
        depends_on interval_from requests"""
    assert set(e) == set(keys.split())
    assert e["depends_on"] and e["interval_from"] == []  # nothing is known of how far off it may be
    assert e["observed_components"] is None and e["observed"] is None and e["error_pct"] is None
    assert set(e["predicted"]) == {"e2e_ms", "ttft_ms", "itl_ms", "completed", "failed"}
    for name in ("e2e_ms", "ttft_ms", "itl_ms"):
        p = e["predicted"][name]
        assert p["mean"] > 0 and p["p50"] <= p["p90"] <= p["p99"]
    assert e["predicted"]["completed"] == 240 and e["predicted"]["failed"] == 0
    assert len(e["stages"]) == 2 and e["stages"][1]["predicted"]["completed"] == 120
    assert set(e["components"]) == {"queueing", "waiting", "prefill_steps", "decode_steps", "per_token", "completion"}
    assert sum(e["components"].values()) == pytest.approx(e["predicted"]["e2e_ms"]["mean"], rel=1e-9)
    assert parse(result["program"]).function("step_time") == parse(PROGRAM).function("step_time")
    assert run(capsys, *args)[1] == out  # the same seeds, the same bytes


def test_predict_warns_of_what_lies_outside_the_fitted_range(files: Path, capsys: Capsys) -> None:
    fitted = files / "fitted.py"
    assert run(capsys, "fit", files / "p.py", "--id", "llama-2-7b-tp1-codegen", "--out", fitted)[0] == 0
    _, out, _ = run(capsys, "predict", fitted, "--experiments", files / "plan.yaml", "--json")
    warnings = json.loads(out)["experiments"][0]["warnings"]
    for words in (
        "vocabulary 128256 outside the fitted 32000 to 32000",
        "tp 2 not among the fitted [1]",
        "GPU my-gpu not among",
        "a model of 3.2 billion parameters: the fitted runs have at least 6.7",
        "3.2 billion parameters active per token: the fitted runs have at least 6.7",
        "prompts of 264 tokens: the fitted runs have at least 591",
        "KV offload to CPU is off: the fitted runs have it on",
    ):
        assert any(words in w for w in warnings), warnings
    record = json.loads((files / "fitted.json").read_text())  # a record of an earlier release
    record["ranges"] = {key: record["ranges"][key] for key in ("vocab", "tp", "hardware", "requests_in_flight")}
    (files / "fitted.json").write_text(json.dumps(record))
    _, out, _ = run(capsys, "predict", fitted, "--experiments", files / "plan.yaml", "--json")
    less = json.loads(out)["experiments"][0]["warnings"]
    assert set(warnings) - set(less) == {w for w in warnings if "the fitted runs have" in w}


def test_predict_of_the_shipped_runs_compares_with_what_was_observed(capsys: Capsys) -> None:
    status, out, _ = run(capsys, "predict", "floor", "--id", "llama-2-7b-tp1-codegen", "--json")
    (e,) = json.loads(out)["experiments"]
    assert status == 0 and e["observed"]["e2e_ms"]["mean"] == 2080.74  # configs/experiments_h100.yaml
    predicted = e["predicted"]["e2e_ms"]["mean"]
    assert e["error_pct"]["e2e_ms"]["mean"] == pytest.approx(100 * (predicted - 2080.74) / 2080.74)
    assert e["error_pct"]["itl_ms"]["p99"] is None  # ITL percentiles were not observed


def test_predict_says_what_it_depends_on_and_where_the_interval_comes_from(capsys: Capsys) -> None:
    ids = "llama-2-7b-tp1-codegen,mixtral-8x7b-tp2-general,llama-2-70b-tp4-general"
    dense, large, sparse = json.loads(run(capsys, "predict", "champion", "--id", ids, "--json")[1])["experiments"]
    assert [t["method"] for t in dense["depends_on"]] == ["step_time"] * 3
    gemm, attention = (t["term"] for t in dense["depends_on"][:2])
    assert (gemm, attention) == ("gemm * (b.kernel_gemm_us + b.kernel_router_us)", "b.kernel_decode_attention_us")
    experts = sparse["depends_on"][0]
    assert "b.kernel_moe_us" in experts["term"] and 80 < experts["share_pct"] < 100
    for e in (dense, sparse, large):
        shares = [part["share_pct"] for part in e["interval_from"]]
        assert shares == sorted(shares, reverse=True)
        added = [part["share_pct"] for part in e["interval_from"] if part["kind"] != "constant"]
        assert 97 < sum(added) < 103  # without parts that round to nothing
        assert {"held_out_errors", "pace"} <= {part["kind"] for part in e["interval_from"]}
    (constant,) = (part["what"] for part in dense["interval_from"] if part["kind"] == "constant")
    assert constant == "constants, mostly step_time.gemm"
    (most, *_) = (part["what"] for part in large["interval_from"] if part["kind"] == "disagreement")
    assert re.fullmatch(r"b\.\w+ \(\d+ of \d+ differ\)", most)

    _, out, _ = run(capsys, "predict", "champion", "--id", ids, "-v", "--explain")
    lines = out[out.index("Main terms of the mean E2E") :].splitlines()
    named = [line for line in lines if line.startswith(("llama-2-7b-tp1-codegen", "mixtral-8x7b-tp2-general"))]
    assert [round(dense["depends_on"][0]["share_pct"]), round(sparse["depends_on"][0]["share_pct"])] == [
        int(line.split()[1]) for line in named
    ]
    assert "so shares add up to more than 100 %" in " ".join(out.split())


def test_list_names_the_overloaded_runs(tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of `quality: overloaded` in the shipped files, the four of the workload reasoning."""
    monkeypatch.setenv("COLUMNS", "200")
    models = ("llama-2-7b-tp1", "llama-2-70b-tp4", "mixtral-8x7b-tp2", "codellama-34b-tp2")
    overloaded = [f"{model}-reasoning" for model in models]
    status, text, _ = run(capsys, "list", "--runs", tmp_path, "--json")
    listed = json.loads(text)
    assert status == 0 and listed["overloaded"] == overloaded
    assert len(listed["experiments"]) == 24 and set(overloaded) < set(listed["experiments"])
    _, out, _ = run(capsys, "list", "--runs", tmp_path)
    assert f"Of these overloaded, so never fitted\n  {', '.join(overloaded)}\n" in out


@pytest.mark.parametrize(
    ("args", "answer"),
    [
        ("floor", "Mean absolute error: E2E "),
        (
            "champion --id llama-2-7b-tp1-codegen,llama-2-7b-tp1-reasoning",
            "Mean absolute error, fitted, in sample (1): ",
        ),
        ("floor --slo ttft_p99=30ms", "Predictions of floor, "),
        ("floor --id llama-2-7b-tp1-codegen --sweep rate=2:80:2", "Predictions of floor, "),
        ("floor --seeds 1 --sweep rate=1,2 --sweep tp=4,8", "Predictions of floor, "),
    ],
)
def test_predict_opens_with_the_answer_in_40_lines(
    args: str, answer: str, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the 24 shipped experiments, too; the last line says how to see the rest."""
    monkeypatch.setenv("COLUMNS", "120")
    _, out, _ = run(capsys, "predict", *args.split())
    lines = out.splitlines()
    assert lines[0].startswith(answer) and len(lines) <= 40 and lines[-1].startswith("More: -v (")


def test_fit_writes_the_program_and_its_record(files: Path, capsys: Capsys) -> None:
    out = files / "fitted.py"
    status, text, _ = run(
        capsys, "fit", files / "p.py", "--id", "llama-2-7b-tp1-codegen,llama-2-7b-tp1-roleplay", "--out", out, "--json"
    )
    result, record = json.loads(text), json.loads((files / "fitted.json").read_text())
    assert status == 0
    assert out.read_text() == result["program"] == unparse(parse(out.read_text()))
    assert record["fitted"] == result["fitted"] == ["llama-2-7b-tp1-codegen", "llama-2-7b-tp1-roleplay"]
    assert sum(abs(r["e2e"]) for r in result["after"]) < sum(abs(r["e2e"]) for r in result["before"])
    status, shown, _ = run(capsys, "show", out)
    assert status == 0 and "on 2 fitted runs" in shown


@pytest.mark.parametrize("target", ["blis-4", "blis-5"])
def test_emit_writes_the_go_and_what_goes_with_it(files: Path, target: str, capsys: Capsys) -> None:
    program, out = files / "p.py", files / target
    assert evolve("emit", program, "--host", target, "--out", out, "--id", "mixtral-8x7b-tp2-general") == 0
    names = {p.name for p in (files / target).iterdir()}
    assert names == {"fitted.go", "fitted_test.go", "INTEGRATION.md"} | (
        {"defaults.yaml"} if target == "blis-5" else set()
    )
    source = (files / target / "fitted.go").read_text()
    assert "package latency" in source and "NewFittedForMixtral_8x7bTp2General" in source
    assert ("PostDecodeFixedOverhead" in source.split("package latency")[1]) == (target == "blis-4")
    named = "--model", "llama-3.1-70b", "--hardware", "H200", "--tp", "4"
    assert evolve("emit", program, "--out", files / "named", *named) == 0


def test_check_counts_and_shows_fields(files: Path, capsys: Capsys) -> None:
    status, out, _ = run(capsys, "show", "--check", files / "p.py")
    assert status == 0 and "ok: 5 operations, 0 conditionals, 3 constants, 3 features" in out
    status, out, _ = run(capsys, "show", "--fields", "--json")
    assert status == 0 and {"field": "r.input_len"}.items() <= json.loads(out)["fields"][-1].items()


def test_check_names_the_step_that_falls_the_most_wherever_a_condition_puts_it(tmp_path: Path, capsys: Capsys) -> None:
    """Between 98 and 99 decodes no gate looks."""
    falls = "def step_time(b, s, *, most=98.4, few=20000.0, many=16000.0): return few if b.decode_reqs < most else many"
    (tmp_path / "falls.py").write_text(falls)
    _, out, _ = run(capsys, "show", "--check", tmp_path / "falls.py")
    line = "a step gets shorter with one more decode: Llama-2-7b-hf tp1, 20,000 us with 98 decodes, 16,000 us with 99"
    assert line in " ".join(out.split()).replace("meta-llama/", "")
    assert "one more prompt token" not in out
    assert "a step gets shorter" not in run(capsys, "show", "--check", "champion")[1]


def test_shipped_programs_are_exempt_from_the_caps_and_all_check(capsys: Capsys) -> None:
    from evolve.run.program import seed_names

    assert {"champion", "linear", "linear_kv", "regimes", "roofline", "threshold", "floor"} <= set(seed_names())
    for name in seed_names():
        status, out, _ = run(capsys, "show", "--check", name)
        assert (status, "refused: monotone" in out) == ((1, True) if name == "threshold" else (0, False)), name


# 38 + 1 + 1 operations
SUM = "def step_time(b, s, *, k: us/token = 1.0): return 2 + k * (" + " + ".join(["b.tokens"] * 39) + ")"

BAD_PROGRAMS = {
    b"import os\n": "1: only functions are allowed here",
    b"def step_time(b, s):\n    for i in b:\n        x = 1\n    return x\n": "2: a loop is not part of the language",
    b"def step_time(b, s): return b.tokenz\n": "1: unknown field b.tokenz: did you mean b.tokens?",
    f"{SUM} + 1".encode(): "1: 41 operations, at most 40 are allowed",
    b"def step_time(b, s): return " + b"(" * 10_000 + b"1" + b")" * 10_000: "1: ",
    b"": "1: empty: define `def step_time(b, s, *, ...): return ...`",
    bytes(range(256)): "1: ",
}


@pytest.mark.parametrize("raw", BAD_PROGRAMS, ids=range(len(BAD_PROGRAMS)))
@pytest.mark.parametrize("command", ["show --check", "predict", "fit", "emit --out go"])
def test_bad_programs_are_one_line(
    files: Path, raw: bytes, command: str, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    (files / "p.py").write_bytes(raw)
    assert refused(capsys, *command.split(), files / "p.py").startswith(f"{files}/p.py:{BAD_PROGRAMS[raw]}")
    assert not (files / "go").exists()


def test_forty_operations_pass_and_the_cap_can_be_raised(files: Path, capsys: Capsys) -> None:
    assert operations(parse(SUM)) == 40
    (files / "p.py").write_text(SUM)
    assert run(capsys, "show", "--check", files / "p.py")[0] == 0
    (files / "p.py").write_text(SUM + " + 1")
    assert run(capsys, "show", "--check", files / "p.py", "--max-operations", "41")[0] == 0


@pytest.mark.parametrize(
    ("line", "wrong", "problem"),
    [
        ("output_len: 120", "", "workload.output_len is missing"),
        ("rate: 2.0", "rate: .nan", "workload.stages[0].rate must be finite, got nan"),
        ("duration_s: 60.0", "duration_s: 0", "workload.stages[0].duration_s must be > 0, got 0"),
        ("  engine:", "  wrokload: {}\n  engine:", "wrokload is not a known key: did you mean 'workload'?"),
    ],
)
def test_bad_experiments_are_one_line(files: Path, line: str, wrong: str, problem: str, capsys: Capsys) -> None:
    (files / "bad.yaml").write_text(PLAN.replace(line, wrong))
    for command in (["predict", files / "p.py"], ["fit", files / "p.py"], ["run", "--out", files / "run"]):
        said = refused(capsys, *command, "--experiments", files / "bad.yaml")
        assert said.startswith(f"{files}/bad.yaml: experiment 'plan': {problem}"), said
    assert not (files / "run").exists()


# COMMAND => the beginning of what is said.
BAD_ARGUMENTS = """
predict nothing.py => nothing.py: cannot be read (No such file or directory)
simulate --id llama-2-7b-tp1-codegen,llama-2-7b-tp1-general => --id llama-2-7b-tp1-codegen,llama-2-7b-tp1-general: is not
predict floor --id Llama-2-7b-tp1-genral => --id Llama-2-7b-tp1-genral: no such experiment: the closest of 24 are llama-
emit champion --out go --id nope => --id nope: no such experiment: the closest of 24 are llama-2-7b-tp1-general,
predict floor --id ' ,' => --id ' ,': names nothing
run --models gpt => model gpt: is not among the experiments
run --workloads chess => workloads chess: no such workload
run --config nowhere.yaml => nowhere.yaml: cannot be read (No such file or directory)
predict floor --experiments - => -: cannot be read (No such file or directory): name /dev/stdin
resume nowhere => nowhere: is not a run (no run.json, config.yaml)
archive nowhere => nowhere: is not a run
run --budget 0 => Invalid value for '--budget': 0 is not in the range x>=1: see `evolve run --help`
frobnicate => cannot run 'frobnicate': no such command. `evolve --help` lists the commands.
predic => cannot run 'predic': no such command. Did you mean `evolve predict`?
leaderboard direct => cannot run leaderboard: it is part of a clone of the project, not of the package. In a clone, run `
emit floor => emit needs a place for the files. Give --out FOLDER or --into CHECKOUT.
emit floor --out x --model llama-2-7b => --model and --hardware go together
show floor --fields => --fields lists the fields of all programs
show floor --physics => --physics applies only together with --check
predict --model llama-2-7b => a plan without a file lacks --hardware, --rate, --prompt-len, --output-len:
""".strip().splitlines()


@pytest.mark.parametrize("line", BAD_ARGUMENTS)
def test_bad_arguments_are_one_line(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    monkeypatch.chdir(tmp_path)
    given, _, message = line.partition(" => ")
    assert refused(capsys, *shlex.split(given)).startswith(message)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ablate p.py --id a", "show --ablate"),
        ("blend nowhere", "fit --blend"),
        ("check none.py", "show --check"),
        ("diagnose none.py", "show --diagnose"),
        ("explain none.py", "show --explain"),
        ("llm-check 'q[/x]'", "llm check"),
        ("prompt nowhere 1", "llm prompt"),
        ("score-steps floor --split test --id nobody", "fit --score-steps"),
    ],
)
def test_an_old_name_of_a_command_warns_and_works(
    old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    name, *args = shlex.split(old)
    status, out, err = run(capsys, name, *args)
    warning, rest = err.split("\n", 1)
    assert warning == f"evolve: warning: `evolve {name}` is now `evolve {new}`; the old name works until 0.6"
    args = [arg.replace("--split", "--part") for arg in args]
    assert (status, out, rest) == run(capsys, *new.split(), *args) and status == 2


def test_a_folder_that_cannot_be_written_is_one_line_and_loses_nothing(files: Path, capsys: Capsys) -> None:
    (files / "in_the_way").write_text("a file, not a folder")
    for command in (["run", "--budget", "5"], ["emit", "floor"], ["fit", "floor", "--id", "llama-2-7b-tp1-codegen"]):
        blocked = str(files / "in_the_way" / ("out.py" if command[0] == "fit" else "out"))
        line = refused(capsys, *command, "--out", blocked)
        assert line.startswith(f"{blocked}: cannot be written (Not a directory)")
    assert (files / "in_the_way").read_text() == "a file, not a folder"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write read-only folders")
def test_a_read_only_folder_is_one_line(files: Path, capsys: Capsys) -> None:
    locked = files / "locked"
    locked.mkdir(mode=0o500)
    assert "cannot be written (Permission denied)" in refused(
        capsys, "run", "--budget", "5", "--out", str(locked / "r")
    )


def test_an_existing_run_folder_is_not_overwritten(files: Path, capsys: Capsys) -> None:
    line = refused(capsys, "run", "--budget", "5", "--out", str(files))
    assert line == f"{files}: exists already, and nothing in it can be resumed: choose another --out"


def test_repeats_take_no_folder_of_a_single_run(tiny_run: Path, capsys: Capsys) -> None:
    line = refused(capsys, "run", "--repeats", "2", "--budget", "5", "--out", tiny_run)
    assert line == f"{tiny_run}: is a single run: choose another --out for repeats"


def test_a_run_a_program_of_it_and_their_folder_are_told_apart(tiny_run: Path, capsys: Capsys) -> None:
    assert refused(capsys, "archive", f"{tiny_run}:3") == (
        f"{tiny_run}:3: is one program of a run, and this is for the whole run: name {tiny_run}"
    )
    assert refused(capsys, "predict", f"{tiny_run}:abc") == (
        f"{tiny_run}:abc: is no number of a proposal: `evolve archive {tiny_run}` lists them"
    )
    nowhere = tiny_run.parent / "nowhere"
    assert refused(capsys, "list", "--runs", nowhere).startswith(f"--runs {nowhere}: no such folder")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("plan.yaml", "is a YAML file, not a program: give experiments with --experiments plan.yaml"),
        ("mine.json", "is JSON, as the record beside a program, not a program: the program is mine.py"),
        ("mine.trees.json", "is JSON, as the record beside a program, not a program: the program is mine.py"),
        ("other.json", "is JSON, as the record beside a program, not a program: name a file of program text, MY.py"),
    ],
)
def test_another_file_in_place_of_a_program_is_told_from_one(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("mine.py", "mine.json", "mine.trees.json", "other.json", "plan.yaml"):
        Path(file).write_text("{}\n")
    for command in ("predict", "show"):
        assert refused(capsys, command, name) == f"{name}: {said}"


def test_every_json_says_which_engine_data_and_seeds(capsys: Capsys) -> None:
    commands = (
        ["show", "--check", "floor"],
        ["show", "--fields"],
        ["show", "champion"],
        ["list"],
        ["predict", "floor", "--id", "llama-2-7b-tp1-codegen"],
        ["fit", "floor", "--id", "llama-2-7b-tp1-codegen"],
    )
    for command in commands:
        result = json.loads(run(capsys, *command, "--json")[1])
        assert {"engine", "data", "seeds"} <= set(result), command


def test_an_unknown_model_gets_the_closest_names_only(files: Path, capsys: Capsys) -> None:
    plan = yaml.safe_load(PLAN)
    del plan["experiments"][0]["model_config"]
    plan["experiments"][0]["model"] = "gpt-17"
    (files / "gpt.yaml").write_text(yaml.safe_dump(plan))
    remedy = "; `evolve list` has all"
    for args in (
        ["predict", "floor", "--experiments", files / "gpt.yaml"],
        ["kernels", "gpt-17", "--hardware", "H100"],
        ["kernels", "llama-3.1-8b", "--hardware", "TPU"],
        ["emit", "floor", "--out", files / "go", "--model", "gpt-17", "--hardware", "H100"],
    ):
        line = refused(capsys, *args)
        assert remedy in line and len(line.split("the closest are ")[1].split(remedy)[0].split(", ")) == 3, line
    assert "did you mean 'llama-3.1-8b'?" in refused(capsys, "kernels", "llama-3.1-8", "--hardware", "H100")


def test_predict_marks_what_the_program_was_fitted_on(files: Path, capsys: Capsys) -> None:
    """By the record next to the program, by what was measured; a bare file has none, and nothing is claimed."""
    ids = "llama-2-7b-tp1-codegen", "llama-2-7b-tp1-roleplay"
    assert run(capsys, "fit", "floor", "--id", ids[0], "--out", files / "mine.py")[0] == 0
    out = run(capsys, "predict", files / "mine.py", "--id", ",".join(ids))[1]
    assert re.search(rf"^{ids[0]} +fitted ", out, re.MULTILINE) and re.search(rf"^{ids[1]} +new ", out, re.MULTILINE)
    assert (
        "Mean absolute error, fitted, in sample (1): E2E" in out
        and "Mean absolute error, new, not fitted (1): E2E" in out
    )
    mine = json.loads(run(capsys, "predict", files / "mine.py", "--id", ",".join(ids), "--json")[1])
    for of, row in zip(("in_sample", "new"), mine["experiments"], strict=True):
        assert mine[f"mean_abs_error_pct_{of}"]["e2e"] == abs(row["error_pct"]["e2e_ms"]["mean"])
    for program, marks in ((files / "mine.py", [True, False]), (files / "p.py", [None, None])):
        result = json.loads(run(capsys, "predict", program, "--id", ",".join(ids), "--json")[1])
        assert [e["fitted"] for e in result["experiments"]] == marks
    assert "in sample" not in run(capsys, "predict", files / "p.py", "--id", ids[0])[1]


@pytest.mark.parametrize(
    "args",
    [
        ("predict", "p.py", "--experiments", "plan.yaml", "--csv", "plan.yaml"),
        ("predict", "p.py", "--experiments", "plan.yaml", "--parquet", "p.py"),
        ("show", "p.py", "--csv", "p.py"),
        ("sensitivity", "p.py", "--experiments", "plan.yaml", "--csv", "plan.yaml"),
        ("simulate", "--experiments", "plan.yaml", "--program", "p.py", "--out", "plan.yaml"),
        ("simulate", "--experiments", "plan.yaml", "--program", "p.py", "--results", "p.py"),
        ("report", "p.py", "--experiments", "plan.yaml", "--html", "plan.yaml"),
        ("export", "p.py", "--to", "sympy", "--out", "p.py"),
        ("export", "p.py", "--to", "json", "--out", "p.json"),
    ],
)
def test_an_output_does_not_replace_what_somebody_wrote(
    args: tuple[str, ...], files: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    (files / "p.json").write_text("{}")  # as a record
    before = {path: path.read_bytes() for path in files.iterdir()}
    said = refused(capsys, *args)
    assert said.startswith(f"{args[-1]}: ") and f"choose another {args[-2]}" in said
    assert {path: path.read_bytes() for path in files.iterdir()} == before


@pytest.mark.parametrize(
    "observed", ["e2e_ms: {mean: 330.2}, ttft_ms: {mean: 26.1}", "ttft_ms: {mean: 26.1}", "itl_mean_ms: 6.1"]
)
def test_a_run_without_a_completed_request_says_why(observed: str, files: Path, capsys: Capsys) -> None:
    (files / "long.yaml").write_text(f"""
version: 1
experiments:
- {{id: long, model: llama-2-7b, hardware: H100, engine: {{max_model_len: 300}},
   workload: {{name: chat, stages: [{{rate: 5.0, duration_s: 15}}], prompt_len: 400, output_len: 50}},
   observed: {{summary: {{{observed}}}}}}}
""")
    out = run(capsys, "predict", "floor", "--experiments", files / "long.yaml")[1]
    assert "nothing completes" in out and "No request completes, for the reasons below: long" in out
    assert "75 of 75 requests are longer than max_model_len and were refused" in out
    args = ("run", "--experiments", files / "long.yaml", "--budget", "8", "--workers", "1", "--quiet")
    status, _, err = run(capsys, *args, "--out", files / "run")
    assert status == 2 and "experiment 'long': latencies were observed, but no request completes" in err
    assert "(all are longer than max_model_len and were refused): correct max_model_len" in err
    assert not (files / "run").exists()


def test_predict_warns_where_the_datasheet_is_beaten(files: Path, capsys: Capsys) -> None:
    """A step of 2 ms that does not know prefill: 3500 fresh tokens of a 7B model take 47 ms at the H100's peak."""
    (files / "fast.py").write_text("def step_time(b, s, *, a: us = 2000.0): return a")
    load = "{name: x, stages: [{rate: 1.0, duration_s: 60}], prompt_len: 3500, output_len: 30}"
    plan = f"version: 1\nexperiments: [{{id: fresh, model: llama-2-7b, hardware: H100, workload: {load}}}]\n"
    (files / "fresh.yaml").write_text(plan)
    result = json.loads(run(capsys, "predict", files / "fast.py", "--experiments", files / "fresh.yaml", "--json")[1])
    warnings = result["experiments"][0]["warnings"]
    assert any(w.startswith("time in prefill steps") and "below the datasheet's bound of" in w for w in warnings), (
        warnings
    )


def test_tables_never_lose_a_figure_on_a_narrow_terminal(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    _, out, _ = run(capsys, "predict", "floor", "--id", "llama-2-7b-tp1-codegen")
    text = click.unstyle(out)
    # a name that has no room is broken into lines, so nothing is lost
    assert re.search(r"^llama-2-7b-tp1- .*\ncodegen ", text, re.MULTILINE) and "…" not in text and text != out
    assert all(head in text.split() for head in ("E2E", "mean", "error", "p90", "p99", "limits"))


def test_evolve_alone_prints_its_help(capsys: Capsys) -> None:
    status, out, err = run(capsys)
    assert status == 0 and all(f"\n{heading}:\n" in out for heading in GROUPS) and err == ""


def test_fit_wants_a_python_file(files: Path, capsys: Capsys) -> None:
    line = refused(capsys, "fit", files / "p.py", "--id", "llama-2-7b-tp1-codegen", "--out", files / "x.json")
    assert line.endswith("a program's file ends in .py, its record is next to it: write --out x.py")
    assert not (files / "x.json").exists()


REFUSED = "def step_time(b, s, *, k: us/token = 1.0): return k * b.tokens"  # an empty batch takes no time


def test_what_a_gate_refuses_is_said_wherever_the_program_is_used(files: Path, capsys: Capsys) -> None:
    (files / "p.py").write_text(REFUSED)
    status, out, _ = run(capsys, "show", "--check", files / "p.py", "--json")
    gates = {g["name"]: g for g in json.loads(out)["gates"]}
    assert status == 1 and not json.loads(out)["ok"] and "empty batch" in gates["finite"]["complaint"]
    status, _, err = run(capsys, "emit", files / "p.py", "--out", files / "go")
    assert status == 0 and (files / "go" / "fitted.go").exists()
    assert [line.split(":")[2] for line in err.splitlines()] == [" gate finite", " no queueing_time"]
    status, out, _ = run(capsys, "predict", files / "p.py", "--id", "llama-2-7b-tp1-codegen", "--json")
    warnings = json.loads(out)["experiments"][0]["warnings"]
    assert any(w.startswith("gate finite: ") for w in warnings)
    assert any(w.startswith("no queueing_time: 5000 us") for w in warnings)


def test_check_lists_gates_units_and_what_a_fit_would_move(files: Path, capsys: Capsys) -> None:
    (files / "p.py").write_text("def step_time(b, s, *, e=1.3, c=90.0): return b.weight_read_us / e + c * s.layers")
    status, out, _ = run(capsys, "show", "--check", files / "p.py", "--physics")
    assert "e = 1.3 lies outside 0.01 to 1: a fit of it moves it in" in out
    for name in (*GATES, "deterministic", "pure", "quick", "roofline", "parallel", "sublinear", "size", "sampling"):
        assert re.search(rf"^{name} ", out, re.MULTILINE)
    assert status == 1 and "roofline: " in out
    shown = json.loads(run(capsys, "show", files / "p.py", "--json")[1])
    assert [(c["name"], c["unit"], c["enters"]) for c in shown["constants"]] == [
        ("e", "one", "otherwise"),
        ("c", "us", "affine"),
    ]
    terms = shown["products"]["step_time"]["pieces"][0]["terms"]
    assert terms == [{"constant": "c", "feature": "s.layers"}, {"constant": None, "feature": "b.weight_read_us / e"}]


def test_units_that_do_not_fit_are_one_line_everywhere(files: Path, capsys: Capsys) -> None:
    (files / "p.py").write_text("def step_time(b, s):\n    return b.tokens + b.weight_read_us\n")
    why = "p.py:2: units: cannot add b.tokens (token) and b.weight_read_us (us): multiply the first by a constant of us/token"
    for command in (
        "show --check",
        "show",
        "fit",
        "predict",
        "emit --out go",
        "simulate --id llama-2-7b-tp1-codegen --program",
    ):
        assert refused(capsys, *command.split(), files / "p.py") == f"{files}/{why}"


def test_all_caps_that_are_exceeded_are_named_at_once(files: Path, capsys: Capsys) -> None:
    (files / "p.py").write_text(SUM)
    caps = "--max-operations", 9, "--max-constants", 0
    line = refused(capsys, "simulate", "--id", "llama-2-7b-tp1-codegen", "--program", files / "p.py", *caps)
    # the constants: c, and the number of times that b.tokens is added
    assert (
        line.startswith(f"{files}/p.py:1: 40 operations, at most 9 are allowed") and "; 2 constants, at most 0" in line
    )


def test_a_search_by_language_models_needs_one(capsys: Capsys, tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text("search: {proposer: llm}\n")
    for args in (["--proposer", "llm"], ["--config", own]):
        status, _, err = run(capsys, "run", "--out", tmp_path / "run", *args)
        assert status == 2 and "without a model. Give --llm provider/model" in err and err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_quiet_sweep_says_nothing_on_stderr(files: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evolve.output.progress.EVERY_S", 0.0)
    args = ["predict", "floor", "--experiments", files / "plan.yaml", "--sweep", "tp=1,2", "--json"]
    status, out, err = run(capsys, *args)
    assert status == 0 and "plan: 2 combinations" in err
    assert run(capsys, *args, "--quiet") == (0, out, "")
