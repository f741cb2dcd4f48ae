"""The use of experiments in the fits of a program, by its record and those of its predecessors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from evolve.cli import run_command
from evolve.run.data import but_last
from evolve.run.records import record
from evolve.run.use import fitted_by_predecessor, fitted_share, saw, use
from simulator.serving.bundled import bundled_experiments

GENERAL, CODEGEN = (
    next(e for e in bundled_experiments() if e.id == f"llama-2-7b-tp1-{name}") for name in ("general", "codegen")
)


def test_a_run_without_its_last_stage_is_fitted_in_part() -> None:
    stages = GENERAL.workload.stages
    assert len(stages) == 2
    first, second = (s.rate * s.duration_s for s in stages)
    kept = record("key", [but_last(GENERAL)], [], [1], "2026-01-01")
    assert fitted_share(kept, GENERAL) == first / (first + second)
    assert saw(kept, GENERAL) is None and use(fitted_share(kept, GENERAL)).endswith("% fitted")
    assert fitted_share(kept, but_last(GENERAL)) == 1.0
    assert fitted_share(kept, CODEGEN) == 0.0


def test_a_refit_knows_the_experiments_of_earlier_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also two fits later, and only while the first is not fitted again."""
    ids = GENERAL.id, CODEGEN.id
    first, second, third = (tmp_path / f"{name}.py" for name in ("first", "second", "third"))
    for start, name, out in (("kernels", ids[0], first), (first, ids[1], second), (second, ids[1], third)):
        assert run_command(["fit", str(start), "--id", name, "--out", str(out), "--json"]) == 0
    capsys.readouterr()
    for program, before in ((first, []), (second, [ids[0]]), (third, [ids[0]])):
        assert run_command(["predict", str(program), "--id", ",".join(ids), "--json"]) == 0
        forecasts = json.loads(capsys.readouterr().out)
        rows = {e["id"]: e for e in forecasts["experiments"]}
        assert [name for name, e in rows.items() if e["fitted_before"] and not e["fitted"]] == before
        for command, key in (("explain", "experiments"), ("diagnose", "experiments")):
            assert run_command([command, str(program), "--id", ",".join(ids), "--json"]) == 0
            rows = {e.get("id", e.get("experiment")): e for e in json.loads(capsys.readouterr().out)[key]}
            assert [name for name, e in rows.items() if e["fitted_before"] and not e["fitted"]] == before
            assert run_command([command, str(program), "--id", ",".join(ids)]) == 0
            shown = [line.split() for line in capsys.readouterr().out.splitlines()]
            assert [words[0] for words in shown if words[1:2] == ["before"]] == before
        # An experiment of an earlier fit is no new run.
        assert (forecasts["mean_abs_error_pct_new"]["e2e"] is None) == bool(before)
    assert run_command(["predict", str(third), "--id", ",".join(ids)]) == 0
    out = capsys.readouterr().out
    assert "Mean absolute error, before, not in this fit (1): E2E" in out and "not fitted (1)" not in out


def test_experiments_of_records_without_digests_are_known_by_ids() -> None:
    old = replace(record("key", [GENERAL], [], [1], "2026-01-01"), measured=None)
    kept = record("key", [CODEGEN], [], [1], "2026-01-02", old)
    assert fitted_by_predecessor(kept, GENERAL) and not fitted_by_predecessor(kept, CODEGEN)
    assert not fitted_by_predecessor(None, GENERAL)
