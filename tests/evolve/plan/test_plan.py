"""A plan in the options of `evolve predict`: the same figures as a file that says the same, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evolve.cli import run_command

LENGTHS = ["--prompt-len", "300", "--output-len", "40"]
DEPLOYMENT = ["--model", "llama-3.1-8b", "--hardware", "H100", "--tp", "2"]
FILE = """
version: 1
experiments:
- id: llama-3.1-8b
  model: meta-llama/Llama-3.1-8B-Instruct
  hardware: H100-SXM-80GB
  engine: {tensor_parallel: 2}
  workload: {name: plan, stages: [{rate: 2, duration_s: 600}], prompt_len: 300, output_len: 40}
"""


def figures(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    """What `predict` prints as JSON."""
    assert run_command(["predict", *args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("swept", [[], ["--sweep", "rate=2,5"], ["--load", "50", "--slo", "itl_mean=6ms"]])
def test_options_predict_what_a_file_predicts(
    swept: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "same.yaml"
    file.write_text(FILE, "utf-8")
    described = figures(capsys, "champion", *DEPLOYMENT, *LENGTHS, "--rate", "2", *swept)
    assert described == figures(capsys, "champion", "--experiments", str(file), *swept)


def test_a_sweep_of_rates_needs_no_other_rate(capsys: pytest.CaptureFixture[str]) -> None:
    with_rate, without = (
        figures(capsys, *DEPLOYMENT, *LENGTHS, *rate, "--sweep", "rate=2,5") for rate in (["--rate", "9"], [])
    )
    assert with_rate["rows"] == without["rows"]


def test_a_sweep_replaces_what_a_plan_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    """70 billion parameters have no room on one H100, so such a plan stands only on several."""
    big = ["--model", "llama-3.1-70b", "--rate", "1", *LENGTHS, "--sweep", "hardware=H100", "--sweep", "tp=1,4"]
    one, four = figures(capsys, *big)["rows"]
    assert "leaves no room for KV cache" in one["impossible"] and four["fails"] == []
    alone = figures(capsys, "--model", "llama-3.1-70b", "--hardware", "H100", "--tp", "4", "--rate", "1", *LENGTHS)
    assert alone["experiments"][0]["predicted"]["e2e_ms"]["mean"] == four["e2e_ms"]["mean"]


def test_more_gpus_than_a_server_has_are_mentioned(capsys: pytest.CaptureFixture[str]) -> None:
    """An HGX board has eight GPUs."""
    asked = ["--model", "llama-3.1-8b", "--hardware", "H100", *LENGTHS, "--sweep", "rate=2", "--sweep", "tp=8,16"]
    for row in figures(capsys, *asked, "--seeds", "1")["rows"]:
        assert any("the slower link between servers" in text for text in row["warnings"]) == (row["tp"] == 16)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([*DEPLOYMENT, *LENGTHS], "a plan without a file lacks --rate: give --rate (or --sweep rate=FIRST:LAST:STEP, or "),
        (["--rate", "2"], "a plan without a file lacks --model, --hardware, --prompt-len, --output-len: give --model, -"),
        (["--tp", "2", "--experiments", "x"], "--experiments and --id name what is described already: leave out --mode"),
        ([*DEPLOYMENT, *LENGTHS, "--rate", "2", "--id", "x"], "--experiments and --id name what is described already: "),
        ([*DEPLOYMENT, *LENGTHS, "--rate", "nan"], "llama-3.1-8b on H100, TP 2: workload.stages[0].rate must be finite"),
        ([*DEPLOYMENT, *LENGTHS, "--rate", "1e5"], "Invalid value for '--rate': 100000.0 is not in the range 0.0017<=x"),
        (
            [*DEPLOYMENT, "--rate", "2", "--prompt-len", "131000", "--output-len", "300"],
            "llama-3.1-8b on H100, TP 2: prompt and answer have 131,300 tokens, at most 131,072 fit: give shorter ones",
        ),
        (
            ["--model", "llama-3.1-8b", "--hardware", "H100", "--tp", "3", "--rate", "2", *LENGTHS],
            "llama-3.1-8b on H100, TP 3: engine.tensor_parallel must divide the model's 32 attention",
        ),
        (
            ["--model", "llama-3.1-8", "--hardware", "H100", "--rate", "2", *LENGTHS],
            "model llama-3.1-8: is not a known model: did you mean 'llama-3.1-8b'? Or keep your own with `evolve model add",
        ),
        (
            ["--model", "llama-3.1-8b", "--hardware", "h100", "--rate", "2", *LENGTHS],
            "hardware h100: is not a known GPU: did you mean 'H100'? Or describe your own as `hardware: {...}` in",
        ),
    ],
)  # fmt: skip
def test_what_no_plan_is_made_of_is_one_line(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["predict", *args]) == 2
    assert capsys.readouterr().err.startswith(f"evolve: {message}")


def test_legends_explain_what_their_tables_show(capsys: pytest.CaptureFixture[str]) -> None:
    """A plan is new and calm; of the run `llama-2-7b-tp1-codegen` the champion has seen everything."""
    plan = ["champion", *DEPLOYMENT, *LENGTHS, "--rate", "2"]
    words = {
        "use: new, the program was not fitted": True, "use: fitted, ": False, "in sample": False, "before, only": False,
        "saturated, those": False, "-, none were held out": False, "so that latencies may depend": False,
    }  # fmt: skip
    for args, new in ((plan, True), (["champion", "--id", "llama-2-7b-tp1-codegen"], False)):
        assert run_command(["predict", *args]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        for text, of_plan in words.items():
            expected = of_plan if new else text in ("use: fitted, ", "in sample")
            assert (text in printed) == expected, (text, new)
