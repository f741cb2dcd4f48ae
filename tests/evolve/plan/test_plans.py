"""`evolve plan`: options and files say the same, prices rank, the commands it prints run, and what it considers."""

from __future__ import annotations

import csv
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import Capsys, as_json, evolve, printed, refused

from evolve.plan.axes import axes_of
from evolve.plan.plan import Space
from evolve.plan.plan_result import SHOWN
from evolve.plan.prices import read_prices
from evolve.plan.vllm import serve
from simulator.common.errors import InputError
from simulator.serving.experiment import deploy
from simulator.serving.spec import Spec

MODEL = "--model llama-3.1-8b --hardware H100 --seeds 1"
LOAD = "--rate 30 --prompt-len 300 --output-len 40"
STEADY = {"stages": [{"rate": 30, "duration_s": 600}], "prompt_len": 300, "output_len": 40}


def planned(capsys: Capsys, options: str, *more: object, status: int = 0) -> dict[str, Any]:
    """The JSON of `evolve plan floor OPTIONS`, whose program is quick and has no intervals."""
    found: dict[str, Any] = as_json(capsys, "plan", "floor", *options.split(), *more, status=status)
    return found


@pytest.mark.parametrize(
    ("options", "engine", "workload"),
    [
        (f"{LOAD} --slo ttft_p99=500ms", {}, STEADY),
        (
            f"{LOAD} --engine kv_cache_dtype=fp8 --engine version=0.10.0",
            {"kv_cache_dtype": "fp8", "version": "0.10.0"},
            STEADY,
        ),
        (
            "--rate 30 --prompt-len 100 --output-len 40 --shared-prefix 200:4",
            {},
            {
                **STEADY,
                "prompt_len": None,
                "shared_prefix": {"groups": 4, "system_prompt_len": 200, "question_len": 100},
            },
        ),
        (
            "--rate 30 --prompt-len uniform:min=200,max=400 --output-len lognormal:mean=40,sd=20.5",
            {},
            {
                **STEADY,
                "prompt_len": {"uniform": {"min": 200, "max": 400}},
                "output_len": {"lognormal": {"mean": 40, "sd": 20.5}},
            },
        ),
        # ten requests for each client, and two of a warm-up
        (
            "--concurrency 16 --prompt-len 300 --output-len 40 --slo tpot_p90=9ms",
            {},
            {"concurrency": 16, "requests": 160, "warmup_requests": 32, "prompt_len": 300, "output_len": 40},
        ),
        (
            "--concurrency 16 --requests 99 --prompt-len 300 --output-len 40 --slo e2e_mean=2s",
            {},
            {"concurrency": 16, "requests": 99, "warmup_requests": 32, "prompt_len": 300, "output_len": 40},
        ),
        ("--trace t.csv", {}, {"trace": "t.csv"}),
    ],
)
def test_options_plan_what_a_file_plans(
    options: str, engine: Any, workload: Any, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a version in the options that of the newest fitted runs, 0.19.0 (README.md)."""
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("arrival_s,input_len,output_len\n" + "".join(f"{i / 30},300,40\n" for i in range(300)))
    entry = {
        "id": "llama-3.1-8b",
        "model": "llama-3.1-8b",
        "hardware": "H100",
        "engine": {"version": "0.19.0", **engine},
    }
    entry["workload"] = {"name": "plan", **{key: value for key, value in workload.items() if value is not None}}
    Path("same.yaml").write_text(yaml.safe_dump({"version": 1, "experiments": [entry]}))
    [slo] = re.findall("--slo .*", options) or [""]
    described = planned(capsys, f"{MODEL} --tp 1,2 {options}")
    assert described["rows"] and described == planned(capsys, f"--experiments same.yaml --tp 1,2 --seeds 1 {slo}")


def test_prices_rank_the_deployments(tmp_path: Path, capsys: Capsys) -> None:
    """An A100 at a tenth of the price of an H100 is first, though it takes as many or more of them."""
    file = tmp_path / "prices.yaml"
    file.write_text("H100: 5\nA100-80GB: 0.5\n")
    for given in ("H100=5,A100=0.5", str(file)):
        options = f"--model llama-3.1-8b --hardware H100,A100 --tp 1 --seeds 1 {LOAD} --price {given}"
        found = planned(capsys, options)
        assert found["usd_per_gpu_hour"] == {"H100-SXM-80GB": 5.0, "A100-SXM-80GB": 0.5}
        a100, h100 = found["rows"]
        assert (a100["hardware"], h100["hardware"]) == ("A100-SXM-80GB", "H100-SXM-80GB")
        assert a100["gpus"] >= h100["gpus"]
        for row, usd in ((a100, 0.5), (h100, 5.0)):
            assert row["usd_per_hour"] == usd * row["gpus"]
            # 30 answers of 40 tokens a second: 1,200 tokens/s, 4.32 million an hour
            assert row["output_tokens_per_s"] == pytest.approx(1200.0, rel=0.02)
            per_million = row["usd_per_hour"] / (row["output_tokens_per_s"] * 3600 / 1e6)
            assert row["usd_per_million_output_tokens"] == pytest.approx(per_million)
    rows = list(csv.DictReader(io.StringIO(printed(capsys, "plan", "floor", *options.split(), "--csv", "-"))))
    assert [float(row["usd_per_hour"]) for row in rows] == [row["usd_per_hour"] for row in found["rows"]]
    unpriced = planned(capsys, options.partition(" --price")[0])["rows"]
    assert unpriced[0]["hardware"] == "H100-SXM-80GB" and unpriced[0]["usd_per_hour"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["H20=2"], "--price H20: is not a known GPU: the closest are"),
        (["H100=cheap"], "--price H100=cheap: 'cheap' is no price: write GPU=DOLLARS an hour"),
        (["H100=0"], "--price H100=0: '0' is no price"),
        (["H100=nan"], "--price H100=nan: 'nan' is no price"),
        (["H100=2", "H100-SXM=3"], "--price H100-SXM=3: H100-SXM has two prices: give one"),
        (["no.yaml"], "no.yaml: "),
        (["list.yaml"], "--price list.yaml: has no prices: write"),
        (["flag.yaml"], "--price flag.yaml: true is no price"),
    ],
)
def test_bad_prices_are_refused_in_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("list.yaml").write_text("- H100\n")
    Path("flag.yaml").write_text("H100: true\n")
    with pytest.raises(InputError) as caught:
        read_prices(words)
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


SERVED = {
    "bf16 at vLLM's limits": (
        "llama-3.1-8b",
        {"version": "0.19.0"},
        "vllm serve meta-llama/Llama-3.1-8B-Instruct",
    ),
    "limits that are not vLLM's": (
        "llama-3.1-8b",
        {},
        "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-seqs 128 --max-num-batched-tokens 2048",
    ),
    "fp8 of a checkpoint of 16 bits": (
        "llama-3.1-70b",
        {"version": "0.19.0", "tp": 4, "quantization": "fp8", "max_num_seqs": 256, "prefix_caching": False},
        "vllm serve meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size 4 --max-num-seqs 256 "
        "--no-enable-prefix-caching --quantization fp8",
    ),
    "a checkpoint in fp8": (
        "llama-4-scout",
        {"version": "0.19.0", "tp": 4, "quantization": "fp8", "max_model_len": 4096},
        "vllm serve RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic --tensor-parallel-size 4 --max-model-len 4096",
    ),
    "a checkpoint that is to be made": (
        "llama-3.1-8b",
        {"version": "0.19.0", "quantization": "nvfp4", "gpu_memory_utilization": 0.85},
        "vllm serve CHECKPOINT --gpu-memory-utilization 0.85 # CHECKPOINT: meta-llama/Llama-3.1-8B-Instruct as nvfp4",
    ),
    "ranks with spread experts": (
        "mixtral-8x7b",
        {"version": "0.19.0", "tp": 2, "data_parallel": 2, "expert_parallel": 4, "kv_cache_dtype": "fp8"},
        "vllm serve mistralai/Mixtral-8x7B-v0.1 --tensor-parallel-size 2 --data-parallel-size 2 --kv-cache-dtype fp8 "
        "--enable-expert-parallel",
    ),
    "drafts": (
        "llama-3.1-8b",
        {
            "version": "0.19.0",
            "speculative_method": "ngram",
            "num_speculative_tokens": 3,
            "speculative_acceptance": 0.5,
            "enforce_eager": True,
        },
        "vllm serve meta-llama/Llama-3.1-8B-Instruct --enforce-eager --speculative-config "
        """'{"method": "ngram", "num_speculative_tokens": 3}'""",
    ),
}


@pytest.mark.parametrize("what", SERVED)
def test_vllm_is_started_with_what_was_predicted(what: str) -> None:
    """Options as in vllm/engine/arg_utils.py; fp8 checkpoints refuse `--quantization fp8`."""
    model, engine, command = SERVED[what]
    assert serve(deploy(Spec.of(model, "H100", 1, 100, 10, **engine))) == command


@pytest.mark.parametrize(
    "options",
    [
        f"{MODEL} --tp 1",
        pytest.param(
            "--model mixtral-8x7b --hardware H200 --seeds 1 --weights fp8 --tp 2 --ep on", marks=pytest.mark.slow
        ),
    ],
)
def test_the_test_that_is_printed_runs(options: str, capsys: Capsys) -> None:
    found = as_json(capsys, "plan", "champion", *f"{options} {LOAD}".split())
    command = shlex.split(found["probe"])
    assert command[:3] == ["evolve", "probe", "champion"]
    assert 1 <= len(as_json(capsys, *command[1:])["runs"]) <= 3  # about four minutes each, of an hour of GPUs


def test_without_intervals_there_is_no_test_to_narrow_them(capsys: Capsys) -> None:
    options = f"{MODEL} --tp 1 {LOAD}"
    assert planned(capsys, options)["probe"] is None
    assert "Test:" not in printed(capsys, "plan", "floor", *options.split())


def test_nothing_that_holds_is_status_1_with_reasons(capsys: Capsys) -> None:
    """140 GB of weights have no room on one H100, and no first token is there after a microsecond."""
    options = f"--model llama-3.1-70b --hardware H100 --tp 1,4 --seeds 1 {LOAD} --slo ttft_mean=1us"
    found = planned(capsys, options, status=1)
    assert (found["considered"], found["others"], found["rows"]) == (2, 1, [])
    assert "tp 1" in found["impossible"][0] and "no room for KV cache" in found["impossible"][0]
    assert "TTFT mean is" in found["failing"][0]
    text = printed(capsys, "plan", "floor", *options.split(), status=1)
    assert text.startswith("No deployment serves 30 requests/s of llama-3.1-70b with TTFT mean <= 0.001 ms.\n")
    assert found["impossible"][0] in text and found["failing"][0] in text and "vllm serve" not in text


def test_max_model_len_is_what_the_cache_holds(capsys: Capsys) -> None:
    """Llama 3.1 70B on two H100s has room for less than its 131,072 tokens: the whole thousands (1,024) of what vLLM's
    check leaves."""
    options = f"--model llama-3.1-70b --hardware H100 --tp 2 --seeds 1 --engine gpu_memory_utilization=0.95 {LOAD}"
    described = "predict --model llama-3.1-70b --hardware H100 --tp 2 --engine version=0.19.0 --engine"
    e = as_json(capsys, *described.split(), "gpu_memory_utilization=0.95", *LOAD.replace("30", "1", 1).split())
    [holds] = {
        int(n) for w in e["experiments"][0]["warnings"] for n in re.findall(r"max_model_len to at most (\d+)", w)
    }
    found = planned(capsys, options)
    [row] = found["rows"]
    assert 340 < row["max_model_len"] == holds // 1024 * 1024 < 131_072
    assert f" --max-model-len {row['max_model_len']} " in f"{found['serve']} "
    # a limit of the user's is left as it is
    found = planned(capsys, f"{options} --engine max_model_len=131072", status=1)
    assert f"at most {holds}" in found["impossible"][0]


SPACES = [
    ("llama-3.1-8b", {}, {}, (), [(1, 1, 1), (2, 1, 1), (4, 1, 1), (8, 1, 1)]),
    ("llama-3.1-8b", {"tp": [2]}, {}, (), [(2, 1, 1)]),
    ("llama-3.1-8b", {"tp": [16]}, {}, (), [(16, 1, 1)]),  # two servers, if that is asked for
    ("llama-3.1-8b", {}, {"tp": 4}, (), [(4, 1, 1)]),
    ("llama-3.1-8b", {"tp": [1], "data_parallel": [2]}, {}, (), [(1, 2, 1)]),
    ("mixtral-8x7b", {"tp": [2], "data_parallel": [1, 2]}, {}, (), [(2, 1, 1), (2, 1, 2), (2, 2, 1), (2, 2, 4)]),
    ("mixtral-8x7b", {"tp": [2], "data_parallel": [1, 2]}, {}, (True,), [(2, 1, 2), (2, 2, 4)]),
    ("mixtral-8x7b", {"tp": [2], "data_parallel": [1, 2]}, {}, (False,), [(2, 1, 1), (2, 2, 1)]),
    ("mixtral-8x7b", {"tp": [8]}, {}, (), [(8, 1, 1), (8, 1, 8)]),  # eight GPUs to a server
    ("mixtral-8x7b", {"expert_parallel": [8]}, {}, (), [(1, 8, 8), (2, 4, 8), (4, 2, 8), (8, 1, 8)]),
    (
        "mixtral-8x7b",
        {"tp": [2, 4]},
        {"data_parallel": 1, "expert_parallel": 2, "tp": 2},
        (),
        [(2, 1, 2), (4, 1, 4)],
    ),
]


@pytest.mark.parametrize(("model", "vary", "engine", "spread", "expected"), SPACES)
def test_ranks_and_spread_experts_are_of_mixtures_alone(
    model: str, vary: Any, engine: Any, spread: tuple[bool, ...], expected: list[tuple[int, int, int]]
) -> None:
    spec = Spec.of(model, "H100", 30, 300, 40, **engine)
    _, settings = Space(axes_of(vary, "vary: "), spread).of(spec)
    assert [(s.tp, s.data_parallel, s.expert_parallel) for s in settings] == expected


def test_without_degrees_all_that_fit_a_server_are_considered(capsys: Capsys) -> None:
    """Ten pairs of degrees of 1, 2, 4 and 8 are at most eight GPUs; nine of these may spread experts."""
    options = "--hardware H200 --seeds 1 --rate 2 --prompt-len 300 --output-len 40"
    dense = planned(capsys, f"--model llama-3.1-8b {options}")
    assert dense["considered"] == 4 and {row["expert_parallel"] for row in dense["rows"]} == {1}
    mixed = planned(capsys, f"--model mixtral-8x7b {options}")
    assert mixed["considered"] == 19 and {row["data_parallel"] for row in mixed["rows"]} > {1, 2}
    found = planned(capsys, f"--model mixtral-8x7b {options} --ep on")
    assert found["considered"] == len(found["rows"]) == 10
    assert all(row["expert_parallel"] == row["tp"] * row["data_parallel"] for row in found["rows"])


def test_the_answer_fits_one_screen(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """19 deployments that hold are 15 rows; nothing is wider than the terminal but commands, to be pasted."""
    monkeypatch.setenv("COLUMNS", "100")
    options = f"--model mixtral-8x7b --hardware H200 --seeds 1 {LOAD} --slo ttft_p99=1s,tpot_mean=50ms --price H200=3.5"
    lines = printed(capsys, "plan", "floor", *options.split()).splitlines()
    assert len(lines) <= 40 and max(len(x) for x in lines if not x.startswith(("  vllm", "  evolve"))) <= 100
    assert lines[0].startswith("30 requests/s of mixtral-8x7b need ")
    assert sum(line.startswith("H200 ") for line in lines) == SHOWN == 15
    assert sum(line.startswith("  vllm serve mistralai/") for line in lines) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "a plan lacks --model, --hardware, --rate, --prompt-len, --output-len"),
        ("--hardware H100 LOAD", "a plan lacks --model:"),
        ("--model llama-3.1-8b --hardware H100 --concurrency 4 --prompt-len 9 --output-len 9", "give --slo"),
        ("--model llama-3.1-8b --hardware H100 LOAD --concurrency 4", "--rate and --concurrency exclude each other"),
        ("--model llama-3.1-8b --hardware H100 LOAD --requests 4", "--requests goes with --concurrency"),
        ("--model llama-3.1-8b --hardware H100 LOAD --trace t.csv", "--trace has rates and lengths of its own"),
        ("--model llama-3.1-8b --hardware H100 LOAD --price H200=3", "there is none of H100-SXM-80GB"),
        ("--model llama-3.1-8b --hardware H100 LOAD --tp none", "plan: tp: must be whole numbers"),
        ("--model llama-3.1-8b --hardware H20 LOAD", "plan: hardware: 'H20' is not in the hardware table"),
        ("--model llama-3.1-8 --hardware H100 LOAD", "model llama-3.1-8: is not a known model: did you mean"),
        ("--model llama-3.1-8b --hardware H100 LOAD --slo tpot=9ms", "'tpot' is not a figure: end it in _mean"),
        ("--model llama-3.1-8b --hardware H100 LOAD --shared-prefix 0:4", "--shared-prefix '0:4': is no prefix"),
        ("--model llama-3.1-8b --hardware H100 --rate 1 --output-len 9 --prompt-len normal", "'normal': is no length"),
        (
            "--model llama-3.1-8b --hardware H100 --rate 1 --output-len 9 --prompt-len cauchy:mean=9",
            "workload.prompt_len",
        ),
        ("--model llama-3.1-8b --hardware H100 --rate 1 --prompt-len 131072 --output-len 1", "at most 131,072 fit"),
        ("--experiments two.yaml", "has 2 experiments: name one with --id, a say"),
        ("--experiments two.yaml --id a --rate 5", "leave out --model, --engine and those of the load"),
        ("--experiments two.yaml --id b", "has 2 replicas, and a plan counts them"),
    ],
)
def test_what_cannot_be_planned_is_one_line(
    options: str, said: str, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    entry = {"model": "llama-3.1-8b", "hardware": "H100", "workload": {"name": "w", **STEADY}}
    two = [{"id": "a", **entry}, {"id": "b", "replicas": 2, **entry}]
    Path("two.yaml").write_text(yaml.safe_dump({"version": 1, "experiments": two}))
    assert said in refused(capsys, "plan", *options.replace("LOAD", LOAD).split())


def test_a_plan_goes_to_tables(tmp_path: Path, capsys: Capsys) -> None:
    options = f"{MODEL} --tp 1,2 {LOAD} --slo ttft_p99=1s".split()
    found = as_json(capsys, "plan", "floor", *options)
    assert evolve("plan", "floor", *options, "--csv", tmp_path / "t.csv", "--latex", tmp_path / "t.tex") == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text())))
    for row, expected in zip(rows, found["rows"], strict=True):
        assert (int(row["tp"]), int(row["gpus"])) == (expected["tp"], expected["gpus"])
        assert float(row["ttft_p99_ms"]) == expected["ttft_ms"]["p99"]
    assert (tmp_path / "t.tex").read_text().count(r" \\") == 3
