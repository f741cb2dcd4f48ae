"""A constant at its bound is explained where it is shown: by show, check, fit, and the report of a run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import tiny_world

from evolve.cli import run_command

FLOOR = "kv = 1 (at its lower bound: the datasheet's peak, which no kernel beats"
PROGRAM = """def step_time(b, s, *, base: us = 3000.0, kv: one = 1.0, gemm: one = 0.5):
    return base + b.weight_read_us + kv * b.kv_read_us + gemm * b.kernel_gemm_us
"""


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert run_command(list(args)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("command", "mark"), [("show", "- "), ("check", "- note: ")])
def test_show_and_check(command: str, mark: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.py"
    path.write_text(PROGRAM)
    lines = printed(capsys, command, str(path)).splitlines()
    assert f"{mark}{FLOOR})" in lines  # never fitted: no word of what data would like
    assert f"{mark}gemm = 0.5 (at its lower bound: half the measured kernel's time)" in lines


@pytest.mark.parametrize("command", ["show", "check", "fit"])
def test_an_exponent_that_pow_clips_is_said(
    command: str, tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it acts as is the limit of docs/language.md: 6 gives the same times as 4."""
    path = tmp_path / "mine.py"
    path.write_text(PROGRAM.replace("base: us = 3000.0", "base: us = 3000.0, n: one[5, 8] = 6.0")
                    .replace("b.weight_read_us", "b.weight_read_us * pow(b.decode_reqs / (1 + b.decode_reqs), n)"))  # fmt: skip
    data = ["--experiments", str(tiny.parent / "data.yaml"), "--id", "dense-chat"] if command == "fit" else []
    assert run_command([command, str(path), *data]) in (0, 1)  # a gate may refuse it
    assert (
        "n = 6 (beyond 4, to which pow clips its exponent: any such value gives the same times)"
        in capsys.readouterr().out
    )


def test_fit_says_it_but_not_of_what_is_held(tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, data = tmp_path / "mine.py", str(tiny.parent / "data.yaml")
    path.write_text(PROGRAM)
    # the base alone is longer than the observed steps, so that everything else is as small as it may be
    everything = printed(capsys, "fit", str(path), "--experiments", data, "--id", "dense-chat", "--out", str(path))
    assert f"- {FLOOR}; the fitted runs would take it lower, or do not show it)" in everything.splitlines()
    assert (
        f"- {FLOOR}; the fitted runs would take it lower, or do not show it)"
        in printed(capsys, "show", str(path)).splitlines()
    )
    held = printed(capsys, "fit", str(path), "--experiments", data, "--id", "dense-chat", "--only", "alpha")
    assert "kv = 1 (at" not in held


def test_fit_tells_a_bound_that_stops_it_from_a_constant_that_no_run_shows(
    tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a dense model no run shows what a mixture of experts adds; kv is stopped by its bound."""
    path, data = tmp_path / "mine.py", str(tiny.parent / "data.yaml")
    with_moe = PROGRAM.replace("base: us = 3000.0", "base: us = 3000.0, moe: us = 30.0")
    path.write_text(with_moe.replace("base +", "base + moe * s.is_moe +"))
    args = "fit", str(path), "--experiments", data, "--id", "dense-chat"
    lines = (line.rstrip() for line in printed(capsys, *args).splitlines())
    rows = {line.split()[0]: line for line in lines if line.startswith("step_time.")}
    assert rows["step_time.moe"].endswith("not determined: no fitted run shows it")
    assert rows["step_time.kv"].endswith("at its lower bound")
    shown = {c["name"]: c["shown"] for c in json.loads(printed(capsys, *args, "--json"))["constants"]}
    assert not shown.pop("moe") and all(shown.values())
    everything = " ".join(printed(capsys, "show", "champion").split())
    assert "at a bound: the fitted runs would take it further, or do not show it" in everything


def test_the_report_of_a_run(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.py"
    path.write_text(PROGRAM)
    run = tiny_world.run(tiny, tmp_path / "run", "--budget", 1, "--start", path, "--only-start")
    # kv at its bound of 1 does nothing, so the search leaves it out
    line = "- gemm = 0.5 (at its lower bound: half the measured kernel's time; the fitted runs would take it lower, or do not show it)"
    assert line in capsys.readouterr().out.splitlines()
    assert line in (run / "summary.md").read_text().splitlines()


def test_narrow_bounds_hold_outside_a_search(tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, data = tmp_path / "mine.py", str(tiny.parent / "data.yaml")
    path.write_text(PROGRAM.replace("base: us = 3000.0", "base: us[2900, 3100] = 3000.0"))
    refused = "step_time: bounds [2900, 3100] give the value of base within a factor of 10: "
    assert f"- note: a search refuses it: {refused}" in printed(capsys, "check", str(path))
    assert "us[2900.0, 3100.0]" in printed(capsys, "show", str(path))
    fitted = printed(capsys, "fit", str(path), "--experiments", data, "--id", "dense-chat", "--out", str(path))
    assert "base = 2900 (at its lower bound: as annotated" in fitted


def test_show_has_no_empty_column_and_no_coined_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.py"
    path.write_text(PROGRAM)
    out = printed(capsys, "show", str(path))
    assert "0 conditionals, 3 constants" in out and " linearly" in out and "affine" not in out
    assert " where " not in out  # no branch is taken
    path.write_text("def step_time(b, s, *, base: us = 3000.0):\n    return base if b.tokens < 9 else 2 * base\n")
    out = printed(capsys, "show", str(path))
    assert "1 conditional, 2 constants, 1 feature," in out and " where " in out


def test_a_value_outside_its_bounds_is_said_to_be_wherever_it_is_used(
    tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, data = tmp_path / "mine.py", str(tiny.parent / "data.yaml")
    path.write_text("def step_time(b, s, *, a: us[0, 1000] = 3000.0):\n    return a + b.weight_read_us\n")
    said = "a = 3000 lies outside 0 to 1000: a fit of it moves it in"
    of_data = "--experiments", data, "--id", "dense-chat"
    assert f"- note: {said}" in printed(capsys, "check", str(path)).splitlines()
    assert f"- {said}" in printed(capsys, "show", str(path)).splitlines()
    assert said in printed(capsys, "predict", str(path), *of_data)
    assert run_command(["emit", str(path), *of_data, "--out", str(tmp_path / "go")]) == 0
    assert said in " ".join(capsys.readouterr().err.split())
    assert said in " ".join((tmp_path / "go" / "INTEGRATION.md").read_text().split())
    assert f"- {said}" in printed(capsys, "fit", str(path), *of_data, "--only", "alpha").splitlines()
    printed(capsys, "fit", str(path), *of_data, "--out", str(tmp_path / "fitted.py"))
    assert "lies outside" not in printed(capsys, "predict", str(tmp_path / "fitted.py"), *of_data)
    # A record says of a form what it was fitted on, and nothing of values that were written afterwards.
    fitted = (tmp_path / "fitted.py").read_text()
    (tmp_path / "fitted.py").write_text(re.sub(r"(us\[0(?:\.0)?, 1000(?:\.0)?\]) = [\d.]+", r"\1 = 3000.0", fitted))
    assert said in printed(capsys, "predict", str(tmp_path / "fitted.py"), *of_data)
