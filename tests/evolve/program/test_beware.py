"""Warnings of `predict` about what was observed, and about engine settings that a plan leaves to defaults."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import evolve, refused

from evolve.program.beware import contradicted
from simulator.experiment.experiment import Observation, Statistic

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
    lines = contradicted(observed, BANDS)
    assert lines == [] if not said else [said in line for line in lines] == [True]


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
