"""The use of experiments in the fits of a program, by its record and those of its predecessors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from commands import Capsys, as_json, printed

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


def test_a_refit_knows_the_experiments_of_earlier_fits(tmp_path: Path, capsys: Capsys) -> None:
    """Also two fits later, and only while the first is not fitted again."""
    ids = GENERAL.id, CODEGEN.id
    first, second, third = (tmp_path / f"{name}.py" for name in ("first", "second", "third"))
    for start, name, out in (("kernels", ids[0], first), (first, ids[1], second), (second, ids[1], third)):
        as_json(capsys, "fit", start, "--id", name, "--out", out)
    for program, before in ((first, []), (second, [ids[0]]), (third, [ids[0]])):
        for command in ("predict", "explain", "diagnose"):
            found = as_json(capsys, command, program, "--id", ",".join(ids))
            rows = {e.get("id", e.get("experiment")): e for e in found["experiments"]}
            assert [name for name, e in rows.items() if e["fitted_before"] and not e["fitted"]] == before
            if command == "predict":  # an experiment of an earlier fit is no new run
                assert (found["mean_abs_error_pct_new"]["e2e"] is None) == bool(before)
                continue
            shown = [line.split() for line in printed(capsys, command, program, "--id", ",".join(ids)).splitlines()]
            assert [words[0] for words in shown if words[1:2] == ["before"]] == before
    out = printed(capsys, "predict", third, "--id", ",".join(ids))
    assert "Mean absolute error, before, not in this fit (1): E2E" in out and "not fitted (1)" not in out
    # experiments of records without digests are known by their ids
    old = replace(record("key", [GENERAL], [], [1], "2026-01-01"), measured=None)
    kept = record("key", [CODEGEN], [], [1], "2026-01-02", old)
    assert fitted_by_predecessor(kept, GENERAL) and not fitted_by_predecessor(kept, CODEGEN)
    assert not fitted_by_predecessor(None, GENERAL)
