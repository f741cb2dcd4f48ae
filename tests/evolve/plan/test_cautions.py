"""Reasons not to rely on a program: they stay with it, from the fit through later fits to predictions and Go."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Capsys

from archive.score import Errors
from evolve.cli import run_command
from evolve.run.program import load
from evolve.run.records import USELESS_PCT, record
from simulator.serving.bundled import bundled_experiments

GENERAL = next(e for e in bundled_experiments() if e.id == "llama-2-7b-tp1-general")
TOY = "the constants are fitted to times of trace"
INHERITED = "the last fit began with constants that were fitted to times of trace"
TOYS = "--experiments", "toy/traces.yaml", "--id", "trace"  # a simulated trace as an experiment
CHAT = "--experiments", "data.yaml", "--id", "dense-chat"
CONTRADICTS = "the program contradicts a datasheet or measured kernels"
Run = Callable[..., tuple[str, str]]


@pytest.fixture
def run(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> Run:
    """A command's stdout and stderr, each in one line. data.yaml has the tiny world's measured runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.yaml").write_text((tiny.parent / "data.yaml").read_text())

    def spoken(*args: str) -> tuple[str, str]:
        assert run_command(list(args)) == 0
        out, err = capsys.readouterr()
        return " ".join(out.split()), " ".join(err.split())

    spoken("simulate", *CHAT, "--program", "floor", "--export", "tracev2", "--out", "t", "--quiet")
    spoken("ingest", "--tracev2", "t/header.yaml", "t/trace.csv", "--hardware", "H100", "--out", "toy")
    return spoken


@pytest.fixture
def searched(run: Run) -> Callable[..., tuple[str, dict[str, Any]]]:
    """A search of two candidates with these settings: its stdout, and its archive."""

    def search(files: str, score: str = "{}") -> tuple[str, dict[str, Any]]:
        text = f"data: {{files: [{files}], predict_files: []}}\nsearch: {{finalists: 0}}\nscore: {score}\n"
        Path("own.config.yaml").write_text(text)
        options = "--budget", "2", "--workers", "1", "--quiet", "--out", "searched"
        out, _ = run("run", "--config", "own.config.yaml", *options)
        return out, json.loads(run("archive", "searched", "--json")[0])

    return search


def page() -> str:
    return " ".join(Path("go/INTEGRATION.md").read_text().split())


def test_a_fit_to_simulated_times_is_known_wherever_its_program_goes(run: Run) -> None:
    out, _ = run("fit", "floor", *TOYS, "--out", "toy.py")
    assert TOY in out and "evolve emit" not in out
    assert TOY in run("show", "toy.py")[0] and TOY in run("predict", "toy.py", *TOYS)[0]
    _, err = run("emit", "toy.py", *TOYS, "--out", "go")
    go = " ".join(Path("go/fitted.go").read_text().replace("//", "").split())
    assert TOY in err and f"Caution: {TOY}" in go and f"**Before you use it**: {TOY}" in page()


def test_a_second_fit_to_measured_times_does_not_hide_the_first(run: Run) -> None:
    run("fit", "floor", *TOYS, "--out", "toy.py")
    of_code = "--experiments", "data.yaml", "--id", "dense-code", "--only", "alpha"
    for start, out_file in (("toy.py", "second.py"), ("second.py", "third.py")):
        out, _ = run("fit", start, *of_code, "--out", out_file)
        assert INHERITED in out and TOY not in out
    out, _ = run("predict", "third.py", "--experiments", "data.yaml", "--json")
    assert any(text.startswith(INHERITED) for text in json.loads(out)["experiments"][0]["warnings"])
    # A fit to the same simulated run says it once, of this fit.
    out, _ = run("fit", "second.py", *TOYS, "--out", "fourth.py")
    assert TOY in out and INHERITED not in out


def test_a_search_on_simulated_times_says_so_of_its_programs(searched: Any) -> None:
    _, archive = searched("toy/traces.yaml", "{physics: false}")
    assert json.loads(Path("searched/run.json").read_text())["simulated"] == ["trace"]
    assert any(TOY in text for text in load(f"searched:{archive['front'][0]['id']}").cautions)


def test_an_inconsistent_champion_is_always_marked(run: Run, searched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evaluator.assess.contradictions", lambda *_: ("kernels: decode: too fast",))
    out, archive = searched("data.yaml")
    assert not any(e["consistent"] for e in archive["front"])
    best = "searched:" + str(json.loads(Path("searched/report.json").read_text())["champion"]["id"])
    for text in (out, " ".join(Path("searched/summary.md").read_text().split())):
        assert f"evolve show {best} --check --physics" in text
        assert "a datasheet or measured kernels" in text
        assert "that contradict no datasheet" not in text and "cannot be the champion" not in text
    assert CONTRADICTS in run("show", best)[0]
    assert CONTRADICTS in run("predict", best, *CHAT)[0]
    assert CONTRADICTS in run("emit", best, *CHAT, "--out", "go")[1]
    assert f"**Before you use it**: {CONTRADICTS}" in page()
    assert f"evolve show {best} --check --physics" in run("report", "searched")[0]
    # The constants of a fit are others: their own judgement counts.
    for name, consistent in (("good.py", True), ("bad.py", False)):
        monkeypatch.setattr("evolve.calibrate.result.consistent", lambda _, consistent=consistent: consistent)
        assert (CONTRADICTS in run("fit", best, *CHAT, "--out", name)[0]) is not consistent
        assert (CONTRADICTS in run("predict", name, *CHAT)[0]) is not consistent
    # Nobody has judged a form by hand, and a fit does not either.
    assert CONTRADICTS not in run("fit", "linear", *CHAT, "--out", "by_hand.py")[0]


def test_fitted_constants_that_no_gpu_has_are_a_caution(run: Run) -> None:
    """An engine half as fast: the champion is consistent, and its constants from these runs are not. A form that
    contradicted kernels before is not judged."""
    text = Path("data.yaml").read_text()
    slow = re.sub(r"(mean|p90|p99): ([\d.]+)", lambda figure: f"{figure[1]}: {2.0 * float(figure[2])}", text)
    Path("slow.yaml").write_text(slow)
    of_data = "--experiments", "slow.yaml", "--id", "dense-chat,dense-code"
    out, _ = run("fit", "champion", *of_data, "--out", "slow.py")
    assert f"Caution: {CONTRADICTS}" in out and "evolve emit" not in out
    assert json.loads(Path("slow.json").read_text())["consistent"] is False
    assert CONTRADICTS in run("predict", "slow.py", *of_data)[0]
    assert CONTRADICTS in run("emit", "slow.py", *of_data, "--out", "go")[1]
    assert CONTRADICTS not in run("fit", "floor", *of_data)[0]
    assert CONTRADICTS not in run("fit", "champion", *CHAT)[0]


def test_a_consistent_champion_has_no_such_caution(searched: Any) -> None:
    out, archive = searched("data.yaml", "{physics: false}")
    record = load(f"searched:{archive['front'][0]['id']}").record
    assert record and record.consistent and "consistent" not in record.to_json()
    assert "--check --physics" not in out


@pytest.mark.parametrize(
    ("e2e_pct", "useless"), [(USELESS_PCT, False), (-USELESS_PCT, False), (-USELESS_PCT - 0.1, True)]
)
def test_a_program_that_misses_its_own_runs_is_useless(e2e_pct: float, useless: bool) -> None:
    kept = record("key", [GENERAL], [Errors(GENERAL.id, e2e_pct, 0.0, 0.0)], [1], "2026-01-01")
    assert len(kept.cautions) == useless and all("mean E2E is 25 % off" in text for text in kept.cautions)


def test_coefficients_that_do_not_fit_their_run_are_a_caution(run: Run) -> None:
    """Two constants that are held apart cannot make up for the eleven that the published form has wrong there."""
    args = "fit", "trained_physics", "--id", GENERAL.id, "--only", "b3,b5"
    fitted = json.loads(run(*args, "--out", "mine.py", "--json")[0])
    off = f"mean E2E is {fitted['after'][0]['e2e']:.0f} % off"
    [caution] = fitted["programs"][0]["cautions"]
    assert caution.startswith(off)
    out, _ = run(*args)
    assert f"Caution: {off}" in out and "evolve emit" not in out
    out, err = run("emit", "mine.py", "--coefficients")
    assert f"# Before you use it: {off}" in out and f"warning: {off}" in err


def test_go_for_a_gpu_that_no_run_had_says_so(run: Run) -> None:
    """No shipped run is on an A100 (configs/experiments_*.yaml)."""
    said = "no fitted run was on A100-SXM-80GB, only on B200-SXM-180GB, H100-SXM-80GB, H200-SXM-141GB"
    for gpu, warned in (("A100-SXM-80GB", True), ("H100", False)):
        _, err = run("emit", "champion", "--out", "go", "--model", "llama-3.1-8b", "--hardware", gpu)
        assert (said in err) == (said in page()) == warned
