"""The acceptance of drafted tokens by a measured latency: that which made the latency, and said to be found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import Capsys, as_json, refused

from evaluator.metrics import run_means_ms
from evolve.run.program import load
from simulator.clock.replay import replay
from simulator.serving.experiment import deploy
from simulator.serving.spec import Spec, read_spec

ENTRY = Spec.of("llama-3.1-8b", "H100", rate=4, prompt_len=500, output_len=200).to_entry()
DRAFTS: dict[str, Any] = {"speculative_method": "eagle3", "num_speculative_tokens": 3}


def measured(tmp_path: Path, e2e_ms: float) -> Path:
    """A run with drafts and this mean E2E, whose acceptance nobody gives."""
    entry = {**ENTRY, "id": "mine", "engine": {**ENTRY["engine"], **DRAFTS}}
    entry["observed"] = {"summary": {"e2e_ms": {"mean": e2e_ms}, "ttft_ms": {"mean": 20.0}}}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"version": 1, "experiments": [entry]}))
    return path


def of_acceptance(found: dict[str, Any]) -> str:
    (line,) = (line for line in found["warnings"] if line.startswith("speculative_acceptance"))
    return str(line)


def e2e_ms_at(share: float) -> float:
    entry = {**ENTRY, "engine": {**ENTRY["engine"], **DRAFTS, "speculative_acceptance": share}}
    means = [run_means_ms(replay(deploy(read_spec(entry, "x")), load("kernels").complete, seed)) for seed in (1, 2, 3)]
    return sum(e2e or 0.0 for e2e, _, _ in means) / len(means)


@pytest.mark.parametrize(
    ("e2e_ms", "said"),
    [(1e6, "0.00, as none is given: even so the program is faster"), (100.0, "1.00, as none is given: even so")],
)
def test_a_latency_that_no_acceptance_gives_is_said(tmp_path: Path, capsys: Capsys, e2e_ms: float, said: str) -> None:
    (found,) = as_json(capsys, "predict", "kernels", "--experiments", measured(tmp_path, e2e_ms))["experiments"]
    assert of_acceptance(found).startswith(f"speculative_acceptance {said}")


@pytest.mark.parametrize("share", [0.25, 0.7])
def test_the_acceptance_that_made_the_latency_is_found(tmp_path: Path, capsys: Capsys, share: float) -> None:
    path = measured(tmp_path, e2e_ms_at(share))
    (found,) = as_json(capsys, "predict", "kernels", "--experiments", path)["experiments"]
    assert float(of_acceptance(found).split()[1].rstrip(",")) == pytest.approx(share, abs=0.02)
    # E2E jumps where an answer takes a whole step less: by 1.4 % at a share of 0.7
    assert found["error_pct"]["e2e_ms"]["mean"] == pytest.approx(0.0, abs=2.0)
    why = refused(capsys, "fit", "kernels", "--experiments", path)
    assert (
        "cannot predict speculative decoding" in why and "to a plain `evolve predict` the E2E that was measured" in why
    )
