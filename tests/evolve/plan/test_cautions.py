"""Reasons not to rely on a program: they stay with it, from the fit through later fits to predictions and Go."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from evaluator.score import Errors
from evolve.cli import run_command
from evolve.run.program import load
from evolve.run.records import USELESS_PCT, record
from simulator.serving.bundled import bundled_experiments

GENERAL = next(e for e in bundled_experiments() if e.id == "llama-2-7b-tp1-general")
TOY = "the constants are fitted to times of trace, which are a simulation's, not measured"
INHERITED = "the last fit began with constants that were fitted to times of trace, which are a simulation's"
TOYS = "toy/traces.yaml"  # a simulated trace as an experiment
Run = Callable[..., tuple[str, str]]


@pytest.fixture
def run(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A command's stdout and stderr, each in one line. data.yaml has the tiny world's measured runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.yaml").write_text((tiny.parent / "data.yaml").read_text())

    def spoken(*args: str) -> tuple[str, str]:
        assert run_command(list(args)) == 0
        out, err = capsys.readouterr()
        return " ".join(out.split()), " ".join(err.split())

    of_chat = "--experiments", "data.yaml", "--id", "dense-chat"
    spoken("simulate", *of_chat, "--program", "floor", "--export", "tracev2", "--out", "t", "--quiet")
    spoken("ingest", "--tracev2", "t/header.yaml", "t/trace.csv", "--hardware", "H100", "--out", "toy")
    return spoken


def test_a_fit_to_simulated_times_is_known_as_one_wherever_its_program_goes(run: Run) -> None:
    out, _ = run("fit", "floor", "--experiments", TOYS, "--id", "trace", "--out", "toy.py")
    assert TOY in out and "evolve emit" not in out
    for command in ("show", "predict"):
        out, _ = run(command, "toy.py", *(["--experiments", TOYS] if command == "predict" else []))
        assert TOY in out, command
    _, err = run("emit", "toy.py", "--experiments", TOYS, "--id", "trace", "--out", "go")
    go = " ".join(Path("go/fitted.go").read_text().replace("//", "").split())
    page = " ".join(Path("go/INTEGRATION.md").read_text().split())
    assert TOY in err and f"Caution: {TOY}" in go and f"**Before you use it**: {TOY}" in page


def test_a_second_fit_to_measured_times_does_not_hide_the_first(run: Run) -> None:
    run("fit", "floor", "--experiments", TOYS, "--id", "trace", "--out", "toy.py")
    for start, out_file in (("toy.py", "second.py"), ("second.py", "third.py")):
        out, _ = run(
            "fit", start, "--experiments", "data.yaml", "--id", "dense-code", "--only", "alpha", "--out", out_file
        )
        assert INHERITED in out and TOY not in out
    out, _ = run("predict", "third.py", "--experiments", "data.yaml", "--json")
    assert any(text.startswith(INHERITED) for text in json.loads(out)["experiments"][0]["warnings"])
    # A fit to the same simulated run says it once, of this fit.
    out, _ = run("fit", "second.py", "--experiments", TOYS, "--id", "trace", "--out", "fourth.py")
    assert TOY in out and INHERITED not in out


def test_a_search_on_simulated_times_says_so_of_its_programs(run: Run) -> None:
    Path("toy.config.yaml").write_text(
        "data: {files: [toy/traces.yaml], predict_files: []}\nsearch: {finalists: 0}\nscore: {physics: false}\n"
    )
    run("run", "--config", "toy.config.yaml", "--budget", "2", "--workers", "1", "--quiet", "--out", "searched")
    assert json.loads(Path("searched/run.json").read_text())["simulated"] == ["trace"]
    kept = json.loads(run("archive", "searched", "--json")[0])["front"][0]["id"]
    assert any(TOY in text for text in load(f"searched:{kept}").cautions)


def test_a_champion_that_is_not_sound_says_so_wherever_it_goes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evaluator.assess.contradictions", lambda *_: ("kernels: decode: too fast",))
    Path("own.config.yaml").write_text("data: {files: [data.yaml], predict_files: []}\nsearch: {finalists: 0}\n")
    out, _ = run(
        "run", "--config", "own.config.yaml", "--budget", "2", "--workers", "1", "--quiet", "--out", "searched"
    )
    front = json.loads(run("archive", "searched", "--json")[0])["front"]
    assert not any(e["sound"] for e in front)
    best = "searched:" + str(json.loads(Path("searched/report.json").read_text())["champion"]["id"])
    of_run = (
        "The champion is not sound: it contradicts a datasheet or measured kernels, as every program does that this"
    )
    chosen = "all of which contradict a datasheet or measured kernels; where none is that good"
    page = " ".join(Path("searched/summary.md").read_text().split())
    for text in (out, page):
        assert of_run in text and f"evolve check {best} --physics" in text and chosen in text
        assert "that contradict no datasheet" not in text and "cannot be the champion" not in text
    said = "the program contradicts a datasheet or measured kernels"
    of_data = "--experiments", "data.yaml", "--id", "dense-chat"
    assert said in run("show", best)[0]
    assert said in run("predict", best, *of_data)[0]
    assert said in run("emit", best, *of_data, "--out", "go")[1]
    assert f"**Before you use it**: {said}" in " ".join(Path("go/INTEGRATION.md").read_text().split())
    assert (
        f"It is not sound: it contradicts a datasheet or measured kernels (`evolve check {best} --physics`)"
        in (run("report", "searched", "--only", "ease")[0])
    )
    # The constants of a fit are others: what is found of them decides.
    for name, sound in (("sound.py", True), ("unsound.py", False)):
        monkeypatch.setattr("evolve.calibrate.result.consistent", lambda _, sound=sound: sound)
        assert (said in run("fit", best, *of_data, "--out", name)[0]) is not sound
    assert said in run("predict", "unsound.py", *of_data)[0] and said not in run("predict", "sound.py", *of_data)[0]
    # Nobody has judged a form by hand, and a fit does not either.
    assert said not in run("fit", "linear", *of_data, "--out", "by_hand.py")[0]


def test_a_fit_that_leads_to_constants_that_no_gpu_has_says_so_wherever_its_program_goes(run: Run) -> None:
    """Of an engine half as fast: the champion is sound, and its constants from these runs are not. A form that
    contradicted kernels before is not judged."""
    text = Path("data.yaml").read_text()
    slow = re.sub(r"(mean|p90|p99): ([\d.]+)", lambda figure: f"{figure[1]}: {2.0 * float(figure[2])}", text)
    Path("slow.yaml").write_text(slow)
    of_data = "--experiments", "slow.yaml", "--id", "dense-chat,dense-code"
    said = "the program contradicts a datasheet or measured kernels"
    out, _ = run("fit", "champion", *of_data, "--out", "slow.py")
    assert f"Caution: {said}" in out and "evolve emit" not in out
    assert json.loads(Path("slow.json").read_text())["sound"] is False
    assert said in run("predict", "slow.py", *of_data)[0]
    assert said in run("emit", "slow.py", *of_data, "--out", "go")[1]
    assert f"**Before you use it**: {said}" in " ".join(Path("go/INTEGRATION.md").read_text().split())
    assert said not in run("fit", "floor", *of_data)[0]
    assert said not in run("fit", "champion", "--experiments", "data.yaml", "--id", "dense-chat")[0]


def test_a_sound_champion_has_no_such_caution(run: Run) -> None:
    Path("own.config.yaml").write_text(
        "data: {files: [data.yaml], predict_files: []}\nsearch: {finalists: 0}\nscore: {physics: false}\n"
    )
    out, _ = run(
        "run", "--config", "own.config.yaml", "--budget", "2", "--workers", "1", "--quiet", "--out", "searched"
    )
    kept = json.loads(run("archive", "searched", "--json")[0])["front"][0]["id"]
    record = load(f"searched:{kept}").record
    assert record and record.sound and "sound" not in record.to_json()
    assert "not sound:" not in out and "that contradict no datasheet" in out


@pytest.mark.parametrize(
    ("e2e_pct", "useless"), [(USELESS_PCT, False), (-USELESS_PCT, False), (-USELESS_PCT - 0.1, True)]
)
def test_a_program_that_misses_even_its_own_runs_is_useless(e2e_pct: float, useless: bool) -> None:
    kept = record("key", [GENERAL], [Errors(GENERAL.id, e2e_pct, 0.0, 0.0)], [1], "2026-01-01")
    assert [text.startswith("mean E2E is 25 % off on the very runs") for text in kept.cautions] == [True] * useless


def test_coefficients_that_do_not_even_fit_their_run_say_so(run: Run) -> None:
    """Two constants that are held apart cannot make up for the eleven that the published form has wrong there."""
    out, _ = run("fit", "trained_physics", "--id", GENERAL.id, "--only", "b3,b5", "--out", "mine.py", "--json")
    off = (
        f"mean E2E is {json.loads(out)['after'][0]['e2e']:.0f} % off on the very runs that the constants are fitted on"
    )
    assert json.loads(out)["programs"][0]["cautions"] == [
        f"{off}: do not use it, fit all of its constants, or another form"
    ]
    out, _ = run("fit", "trained_physics", "--id", GENERAL.id, "--only", "b3,b5")
    assert f"Caution: {off}" in out and "evolve emit" not in out
    out, err = run("emit", "mine.py", "--coefficients")
    assert f"# Before you use it: {off}" in out and f"warning: {off}" in err


def test_go_for_a_gpu_that_no_run_had_says_so(run: Run) -> None:
    """All shipped runs are on the H100 (configs/experiments_h100.yaml)."""
    said = "no run on H200-SXM-141GB was fitted, only on H100-SXM-80GB: how far off it is there is not known"
    for gpu, warned in (("H200", True), ("H100", False)):
        _, err = run("emit", "champion", "--out", f"go-{gpu}", "--model", "llama-3.1-8b", "--hardware", gpu)
        page = " ".join(Path(f"go-{gpu}/INTEGRATION.md").read_text().split())
        assert (said in err) == (said in page) == warned
