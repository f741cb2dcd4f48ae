"""Observed parts of the E2E: from an experiments file to what `evolve predict` shows next to its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import Capsys, as_json, printed
from step_tables import PROGRAM, experiment, experiments_file

from simulator.common.errors import InputError
from simulator.serving.bundled import load_experiments
from simulator.serving.digests import data_hash
from simulator.serving.observations import Components

PARTS: dict[str, float] = yaml.safe_load("""
{arrival_to_queue: 8.5, waiting: 0.25, prefill_steps: 31.0, decode_steps: 900.5, after_finish: 2.0, client: -0.5}""")


def of(tmp_path: Path, **more: Any) -> Path:
    return experiments_file(tmp_path / "e.yaml", experiment(**more), experiment("bare"))


def test_they_travel_and_count_in_the_hash_only_where_they_are(tmp_path: Path) -> None:
    with_them, bare = load_experiments(of(tmp_path, x_components_ms=PARTS, x_components_requests=120))
    assert with_them.components == Components(**PARTS, requests=120) and bare.components is None
    assert data_hash([with_them]) != data_hash([replace(with_them, components=None)])
    (some, _) = load_experiments(of(tmp_path, x_components_ms={"waiting": 1, "client": None}))
    assert some.components == Components(waiting=1.0)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"x_components_ms": 3}, "x_components_ms must be a mapping, got 3"),
        ({"x_components_ms": {"wait": 1.0}}, "x_components_ms.wait is not a known key: did you mean 'waiting'?"),
        ({"x_components_ms": {"waiting": "1"}}, "x_components_ms.waiting must be a number, got '1'"),
        ({"x_components_ms": {"waiting": -1.0}}, "x_components_ms.waiting must be >= 0, got -1.0"),
        ({"x_components_ms": {"client": float("nan")}}, "x_components_ms.client must be finite, got nan"),
        ({"x_components_ms": PARTS, "x_components_requests": 1.5}, "x_components_requests must be a whole number"),
    ],
)
def test_what_is_wrong_with_them_is_said_in_a_line(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as error:
        load_experiments(of(tmp_path, **more))
    assert words in str(error.value) and "\n" not in str(error.value) and "experiment 'plan'" in str(error.value)


def test_predict_shows_them_beside_its_own(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "p.py").write_text(PROGRAM)
    data = of(tmp_path, x_components_ms=PARTS, x_components_requests=120)
    args = "predict", tmp_path / "p.py", "--experiments", data
    plan, bare = as_json(capsys, *args)["experiments"]
    assert plan["observed_components"] == {**PARTS, "requests": 120} and bare["observed_components"] is None
    out = printed(capsys, *args, "-v", "--explain")
    assert "Parts of the mean E2E in ms, predicted / observed" in out
    (row,) = (line for line in out.splitlines() if line.lstrip().startswith("plan ") and " / " in line)
    c = plan["components"]
    shown = [c["queueing"] + c["waiting"], c["prefill_steps"], c["decode_steps"], c["per_token"] + c["completion"]]
    seen = [8.5 + 0.25, 31.0, 900.5, 2.0 - 0.5]  # PARTS, those that no stamp tells apart together
    pairs = [f"{a:.1f} / {b:.1f}" for a, b in zip(shown, seen, strict=True)]
    assert row.split() == ["plan", *" ".join([*pairs, "120"]).split()]
    assert "no stamp tells the wait for a step from what comes before" in " ".join(out.split())
    assert "Parts of the mean E2E" not in printed(capsys, *args, "--id", "bare")
