"""A constant at its bound is explained where it is shown: by show, its check, fit, and the report of a run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tiny_world
from commands import Capsys, Options, as_json, evolve, flat, printed

FLOOR = "kv = 1 (at its lower bound: the datasheet's peak, which no kernel beats"
GEMM = "gemm = 0.5 (at its lower bound: half the measured kernel's time"
WANTED = "the fitted runs would take it lower"  # a fit's addition to either
PROGRAM = """def step_time(b, s, *, base: us = 3000.0, kv: one = 1.0, gemm: one = 0.5):
    return base + b.weight_read_us + kv * b.kv_read_us + gemm * b.kernel_gemm_us
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(PROGRAM)
    return tmp_path / "mine.py"


@pytest.fixture
def of_data(tiny: Path) -> Options:
    return "--experiments", tiny.parent / "data.yaml", "--id", "dense-chat"


@pytest.mark.parametrize("options", [[], ["--check"]])
def test_show_explains_constants_at_their_bounds(options: list[str], path: Path, capsys: Capsys) -> None:
    out = flat(capsys, "show", path, *options)
    assert f"{FLOOR})" in out and f"{GEMM})" in out  # never fitted: no word of what data would like


@pytest.mark.parametrize("command", ["show", "show --check", "fit"])
def test_a_clipped_exponent_is_named(command: str, path: Path, of_data: Options, capsys: Capsys) -> None:
    """It acts as the limit of docs/language.md: 6 gives the same times as 4."""
    text = PROGRAM.replace("base: us = 3000.0", "base: us = 3000.0, n: one[5, 8] = 6.0")
    path.write_text(text.replace("weight_read_us", "weight_read_us * pow(b.decode_reqs / (1 + b.decode_reqs), n)"))
    assert evolve(*command.split(), path, *(of_data if command == "fit" else [])) in (0, 1)  # a gate may refuse it
    out = capsys.readouterr().out
    assert re.search(r"n = [5-8][.\d]* \(beyond 4, ", out)  # a fit may move it where it changes nothing


def test_fit_explains_what_it_moved_to_a_bound(path: Path, of_data: Options, capsys: Capsys) -> None:
    """The base alone is longer than the observed steps, so that everything else is as small as it may be."""
    everything = flat(capsys, "fit", path, *of_data, "--out", path)
    for out in (everything, flat(capsys, "show", path)):
        assert f"{FLOOR}; {WANTED}" in out
    assert "kv = 1 (at" not in printed(capsys, "fit", path, *of_data, "--only", "alpha")


def test_fit_tells_a_bound_from_a_constant_that_no_run_shows(path: Path, of_data: Options, capsys: Capsys) -> None:
    """No run of a dense model shows what a mixture of experts adds; kv is stopped by its bound."""
    with_moe = PROGRAM.replace("base: us = 3000.0", "base: us = 3000.0, moe: us = 30.0")
    path.write_text(with_moe.replace("base +", "base + moe * s.is_moe +"))
    lines = printed(capsys, "fit", path, *of_data).splitlines()
    rows = {line.split()[0]: line for line in lines if line.startswith("step_time.")}
    assert "no fitted run shows it" in rows["step_time.moe"]
    assert rows["step_time.kv"].rstrip().endswith("at its lower bound")
    shown = {c["name"]: c["shown"] for c in as_json(capsys, "fit", path, *of_data)["constants"]}
    assert not shown.pop("moe") and all(shown.values())


def test_the_report_of_a_run_explains_bounds(tiny: Path, path: Path, tmp_path: Path, capsys: Capsys) -> None:
    run = tiny_world.run(tiny, tmp_path / "run", "--budget", 1, "--start", path, "--only-start")
    # kv at its bound of 1 does nothing, so the search leaves it out
    line = f"{GEMM}; {WANTED}"
    assert line in capsys.readouterr().out and line in (run / "summary.md").read_text()


def test_narrow_bounds_hold_outside_a_search(path: Path, of_data: Options, capsys: Capsys) -> None:
    path.write_text(PROGRAM.replace("base: us = 3000.0", "base: us[2900, 3100] = 3000.0"))
    out = flat(capsys, "show", "--check", path)
    assert "a search refuses it: step_time: bounds [2900, 3100]" in out and "within a factor of 10" in out
    assert "us[2900.0, 3100.0]" in printed(capsys, "show", path)
    assert "base = 2900 (at its lower bound: as annotated" in flat(capsys, "fit", path, *of_data, "--out", path)


def test_a_value_outside_its_bounds_is_named_wherever_it_is_used(
    path: Path, tmp_path: Path, of_data: Options, capsys: Capsys
) -> None:
    path.write_text("def step_time(b, s, *, a: us[0, 1000] = 3000.0):\n    return a + b.weight_read_us\n")
    fitted, said = tmp_path / "fitted.py", "a = 3000 lies outside 0 to 1000"
    for args in (["show", path, "--check"], ["show", path], ["predict", path, *of_data]):
        assert said in flat(capsys, *args)
    assert evolve("emit", path, *of_data, "--out", tmp_path / "go") == 0
    assert said in " ".join(capsys.readouterr().err.split())
    assert said in " ".join((tmp_path / "go" / "INTEGRATION.md").read_text().split())
    assert said in flat(capsys, "fit", path, *of_data, "--only", "alpha")
    printed(capsys, "fit", path, *of_data, "--out", fitted)
    assert "lies outside" not in printed(capsys, "predict", fitted, *of_data)
    # A record tells of a form's fit, and nothing of values that were written afterwards.
    text = re.sub(r"(us\[0(?:\.0)?, 1000(?:\.0)?\]) = [\d.]+", r"\1 = 3000.0", fitted.read_text())
    fitted.write_text(text)
    assert said in flat(capsys, "predict", fitted, *of_data)
