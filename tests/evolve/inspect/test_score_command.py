"""`evolve score`: errors by group, and shapes, by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from commands import Capsys, evolve

from archive.score import Errors
from evolve.inspect import score as module
from evolve.run.program import load
from simulator.common.errors import InputError
from simulator.serving.bundled import SERVING, bundled_experiments, bundled_file

RUNS = [e for e in bundled_file(SERVING) if e.id.startswith("llama-3.1-70b-fp8-b200-tp2-1k-1k")]


def test_a_shape_is_over_the_lowest_concurrency(monkeypatch: pytest.MonkeyPatch) -> None:
    """TPOT predicted 10 % high at 4 clients and 21 % high at 8 is 10 % too steep."""
    errors = {4: (10.0, 0.0), 8: (21.0, -10.0)}
    runs = [e for e in RUNS if e.workload.stages[0].users in errors]
    assert len(runs) == 2

    def made_up(*_: object) -> list[Errors]:
        return [Errors(e.id, None, *reversed(errors[e.workload.stages[0].users or 0])) for e in runs]

    monkeypatch.setattr(module, "error_rows", made_up)
    every = module.runs_score(load("kernels"), runs).rows[0]
    assert (every.runs, every.shape_runs) == (2, 1)
    assert (every.tpot_pct, every.tpot_bias_pct, every.ttft_pct) == pytest.approx((15.5, 15.5, 5.0))
    assert (every.tpot_shape_pct, every.ttft_shape_pct) == pytest.approx((10.0, 10.0))


def test_runs_without_measurements_cannot_be_scored() -> None:
    with pytest.raises(InputError, match="cannot score"):
        module.runs_score(load("kernels"), [replace(RUNS[0], quality="doubtful")])


def test_the_command_prints_groups_and_json(capsys: Capsys, tmp_path: Path) -> None:
    ids = ",".join(e.id for e in RUNS[:3])
    assert evolve("score", "kernels", "--id", ids, "--csv", tmp_path / "rows.csv") == 0
    out = capsys.readouterr().out
    assert "Errors of kernels on 3 measured runs" in out and "B200-SXM-180GB" in out
    assert (tmp_path / "rows.csv").read_text().startswith("by,group,runs,tpot_pct")
    assert evolve("score", "kernels", "--id", ids, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["runs"]) == 3 and found["rows"][0]["by"] == "all"
    open_loop = bundled_experiments()[0]
    row = module.runs_score(load("kernels"), [open_loop]).rows[0]
    assert row.e2e_pct is not None and row.shape_runs == 0 and row.tpot_shape_pct is None
