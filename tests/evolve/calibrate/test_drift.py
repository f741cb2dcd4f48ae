"""`evolve drift`: whether new runs are still as a program predicts, and what to recalibrate if not."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import drift_power
import numpy as np
import pytest
import tiny_world
import yaml
from scipy import stats

from evaluator.intervals import scales
from evaluator.score import predictions, score_set
from evolve.calibrate.drift import ALPHA, BETA, BOTH, FORM, NONE, Refit, drift, verdict
from evolve.calibrate.drift_tests import LEVEL, ChannelTest, StageResidual, channel_tests, far_off, least_shift
from evolve.cli import run_command
from evolve.run.program import load
from evolve.run.trust import trust_of
from simulator.serving.bundled import bundled_experiments, load_experiments
from simulator.serving.experiment import Observation

MEANS = ("e2e", "ttft", "itl")


def residual(model: str, stage: int, ttft: float | None, itl: float | None, e2e: float | None = None) -> StageResidual:
    """A residual of a scale of 1."""
    ratios = {"e2e": e2e, "ttft": ttft, "itl": itl}
    return StageResidual("run", model, stage, 1.0, ratios, dict.fromkeys(MEANS, 1.0))


def rejecting(*channels: str) -> tuple[ChannelTest, ...]:
    """The tests of both channels, of which these reject."""
    return tuple(ChannelTest(c, "shift", 0.0, (1, 9), 0.5, c in channels) for c in ("pace", "ttft"))


def refit(name: str, *channels: str) -> Refit:
    """A refit after which these channels are still off."""
    return Refit(name, {}, rejecting(*channels), "")


def test_the_tests_are_students_and_fishers() -> None:
    """Two models, one of two stages, by hand: means 2 and 5 of the ITL, so t = 7/sqrt(2); around their mean of 3.5 they
    are 2 * 1.5**2 apart, and the two stages of the first 2 * 1**2: 6.5 in 2 degrees of freedom."""
    rows = [residual("a", 0, None, 1.0), residual("a", 1, None, 3.0), residual("b", 0, None, 5.0)]
    shift, spread = channel_tests(rows, 9)
    assert (shift.channel, shift.kind, spread.kind) == ("pace", "shift", "spread")
    assert shift.statistic == pytest.approx(7.0 / math.sqrt(2.0))
    assert shift.p == pytest.approx(2.0 * stats.t.sf(7.0 / math.sqrt(2.0), 9))
    assert spread.statistic == pytest.approx(6.5 / 2.0) and spread.freedom == (2, 9)
    assert spread.p == pytest.approx(stats.f.sf(3.25, 2, 9))
    assert shift.rejects == (shift.p < LEVEL / 2) and not spread.rejects


def test_the_pace_is_that_of_the_e2e_only_where_no_itl_was_measured() -> None:
    (shift,) = channel_tests([residual("a", 0, None, None, e2e=2.5)], 9)
    assert (shift.channel, shift.statistic) == ("pace", 2.5)
    (shift,) = channel_tests([residual("a", 0, None, 1.5, e2e=2.5)], 9)
    assert shift.statistic == 1.5


def test_normal_errors_of_a_scale_that_is_estimated_are_called_a_drift_no_more_often_than_stated() -> None:
    """Errors of models that are shared by their stages, and the scale from fourteen others: 2000 draws of the null."""
    rng, alarms, draws = np.random.default_rng(5), 0, 2000
    for _ in range(draws):
        scale = math.sqrt(np.square(rng.normal(size=14)).mean())
        rows = [
            StageResidual("run", str(m), s, 1.0, dict(zip(MEANS, error, strict=True)), dict.fromkeys(MEANS, scale))
            for m in range(4)
            for error in [rng.normal(size=3)]
            for s in range(3)
        ]
        alarms += any(t.rejects for t in channel_tests(rows, 14))
    assert alarms / draws < LEVEL + 2.0 * math.sqrt(LEVEL / draws)


def test_errors_of_held_out_runs_are_no_drift() -> None:
    """Each model off as a held-out run of the champion was, judged by the others."""
    assert drift_power.false_alarms(500, 4) <= 2.0 * LEVEL


def test_a_run_that_is_far_off_by_itself_is_named_where_all_together_are_no_drift(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three runs as the champion has them, one with steps an eighth slower, which `--id` then looks at alone."""
    assert far_off([residual("a", 0, 0.0, 2.2), replace(residual("a", 0, 0.0, 0.1), experiment="other")], 15) == {
        "run": {"pace": pytest.approx(220.0)}
    }
    monkeypatch.chdir(tmp_path)
    as_champion(tmp_path / "one.yaml", {"dense-code": 1.11}, 1.0)
    assert run_command(["drift", "champion", "--experiments", "one.yaml"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Farther off than 95 % of held-out runs, taken alone: dense-code (pace +10.4 %)." in out
    again = "evolve drift champion --experiments one.yaml --id dense-code"
    assert f"Among 3 runs that is not enough for a drift of all: `{again}` tests it without the others." in out
    run_command([*shlex.split(again)[1:], "--json"])
    assert json.loads(capsys.readouterr().out)["alone"] == {}


def test_the_verdict_is_the_least_refit_that_is_enough() -> None:
    off = rejecting("ttft")
    assert verdict(rejecting(), []) == NONE
    assert verdict(off, [refit(ALPHA), refit(BETA, "ttft"), refit(BOTH)]) == ALPHA
    assert verdict(off, [refit(ALPHA, "ttft"), refit(BETA), refit(BOTH)]) == BETA
    assert verdict(off, [refit(ALPHA, "ttft"), refit(BETA, "ttft"), refit(BOTH)]) == BOTH
    assert verdict(off, [refit(ALPHA, "ttft"), refit(BETA, "pace"), refit(BOTH, "ttft")]) == FORM
    assert verdict(off, []) == FORM, "a program without constants"
    slower = rejecting("pace", "ttft")
    assert verdict(slower, [refit(ALPHA), refit(BETA), refit(BOTH)]) == BETA, "no delay makes steps slower"


@pytest.mark.parametrize(("kind", "size"), [("none", 0.0), ("alpha", 1.5), ("beta", 0.2), ("form", 6.0)])
def test_a_large_drift_of_each_kind_is_found_and_called_by_its_name(kind: str, size: float) -> None:
    """The first case of each kind of tools/drift_power.py, with a drift larger than those there."""
    case = drift_power.Case(drift_power.KINDS.index(kind), kind, size, 4)
    assert drift_power.carried_out(case) == drift_power.RIGHT[kind]


@pytest.mark.slow
def test_over_many_cases_few_are_false_alarms_and_most_large_drifts_are_found() -> None:
    """Forty cases: of ten without drift at most one is an alarm; of the others most are found."""
    found = [(case, drift_power.carried_out(case)) for case in drift_power.cases(40, 4)]
    alarms = [v for case, v in found if case.kind == "none" and v != NONE]
    missed = [v for case, v in found if case.kind in ("beta", "form") and v == NONE]
    assert len(alarms) <= 1 and len(missed) <= 4


def test_residuals_are_divided_by_held_out_errors_and_noise_of_arrivals() -> None:
    """For one run by hand: the root mean square of the quotients of its class, times its own scale."""
    (run,) = [e for e in bundled_experiments() if e.id == "mixtral-8x7b-tp2-roleplay"]
    source = load("champion")
    found, trust = drift(source, [run]), trust_of(source)
    (row,) = found.residuals
    (p,) = predictions(source.complete, score_set([run]))
    assert run.observed and run.observed.summary and p.predicted.summary and trust
    for name in MEANS:
        ours, theirs = (getattr(o, f"{name}_ms").mean for o in (p.predicted.summary, run.observed.summary))
        assert row.log_ratio[name] == pytest.approx(math.log(theirs / ours))
        scale = scales(trust.inside)[name]
        least = math.sqrt(np.square(scale.quotients).mean()) * scale.floor
        assert least < (row.scale[name] or 0.0) < 4.0 * least, "wider by the committee and the arrivals"
    assert found.freedom == len({r.experiment for r in trust.inside}) - 1
    assert found.undecided == (
        "one model: an error of this model alone cannot be told from a drift of its size or less",
        "no run has several load stages: whether the form still fits all loads is hardly shown",
    )


def test_without_held_out_errors_those_in_sample_are_taken_and_the_output_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data.yaml"
    data.write_text(tiny_world.DATA)
    assert run_command(["fit", "floor", "--experiments", str(data), "--out", str(tmp_path / "mine.py")]) == 0
    capsys.readouterr()
    assert run_command(["drift", str(tmp_path / "mine.py"), "--experiments", str(data)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "errors in sample stand for them" in out
    # Student's t of 2 degrees of freedom at 0.0025: of the TTFT, unlike the pace, nothing below 400 % would be seen
    assert "TTFT: not even times that double would be seen" in out and "pace and TTFT" not in out
    source = load(str(tmp_path / "mine.py"))
    assert source.record
    for origin, advised in (("floor", True), ("champion", False)):
        found = drift(replace(source, record=replace(source.record, fitted_from=origin)), load_experiments(data))
        assert any(line.endswith("or from the shipped champion") for line in found.undecided) == advised
    assert "mine.py: cannot tell (3 runs, 5 load stages)" in out
    assert "dense-overloaded is left out: overloaded" in out


def test_the_command_that_follows_a_drift_brings_the_program_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny world's runs as the champion has them, and steps a quarter slower: the printed command fits the constants
    that the drift was decided by, and what it writes has no drift."""
    monkeypatch.chdir(tmp_path)
    as_champion(tmp_path / "slow.yaml", {}, 1.25)
    assert run_command(["drift", "champion", "--experiments", "slow.yaml", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] in (BETA, BOTH) and found["used"] == list(tiny_world.FITTED)
    only = " --only beta" if found["verdict"] == BETA else ""
    ids = ",".join(tiny_world.FITTED)
    assert found["next"] == f"evolve fit champion --experiments slow.yaml --id {ids}{only} --out recalibrated.py"
    assert run_command(shlex.split(found["next"])[1:]) == 0
    program = load("recalibrated.py").complete
    values = {f"{f.name}.{c.name}": c.value for f in program.functions for c in f.constants}
    (chosen,) = (r for r in found["refits"] if r["verdict"] == found["verdict"])
    assert chosen["constants"] and all(values[name] == after for name, (_, after) in chosen["constants"].items())
    assert run_command(["drift", "recalibrated.py", "--experiments", "slow.yaml"]) == 0
    assert "recalibrated.py: no drift found" in capsys.readouterr().out


def as_champion(data: Path, factors: Mapping[str, float], others: float) -> None:
    """Write the tiny world's runs as the champion has them, with steps slower by the factor of each run."""
    data.write_text(tiny_world.DATA)
    ours = {p.experiment: p for p in predictions(load("champion").complete, score_set(load_experiments(data)))}
    document = yaml.safe_load(tiny_world.DATA)
    for entry in document["experiments"]:
        p, factor = ours[entry["id"]].predicted, factors.get(entry["id"], others)
        assert p.summary
        entry["observed"] = {"summary": slow(p.summary, factor), "stages": [slow(s, factor) for s in p.stages]}
    data.write_text(yaml.safe_dump(document))


def slow(o: Observation, factor: float) -> dict[str, Any]:
    """The observation with steps slower by this factor, as an experiments file has it."""
    return {"e2e_ms": {"mean": factor * (o.e2e_ms.mean or 0.0)}, "ttft_ms": {"mean": o.ttft_ms.mean},
            "itl_mean_ms": factor * (o.itl_ms.mean or 0.0)}  # fmt: skip


def test_what_cannot_be_compared_is_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data.yaml"
    data.write_text(tiny_world.DATA)
    for args, words in (
        (("champion", "--id", "dense-overloaded"), "no run can show drift (dense-overloaded: overloaded): give clean"),
        (("floor",), "has no record of how far off it was"),
        (("champion", "--id", "dense"), "no such experiment"),
    ):
        assert run_command(["drift", args[0], "--experiments", str(data), *args[1:]]) == 2
        err = capsys.readouterr().err
        assert words in err and err.count("\n") == 1, err
    assert run_command(["drift", "champion"]) == 2
    assert "--experiments" in capsys.readouterr().err


def test_a_run_in_which_a_queue_may_grow_is_left_out_with_the_reason() -> None:
    """The overloaded run of Llama-2-7B, called clean, beside one that is."""
    known = {e.id: e for e in bundled_experiments()}
    full = replace(known["llama-2-7b-tp1-reasoning"], quality="clean")
    found = drift(load("champion"), [full, known["llama-2-7b-tp1-roleplay"]])
    assert found.used == ("llama-2-7b-tp1-roleplay",) and "a queue may grow" in found.left_out[full.id]


NEVER = """
- id: never
  model: llama-2-7b
  hardware: H100
  engine: {max_model_len: 128}
  workload: {name: chat, stages: [{rate: 5.0, duration_s: 15}], prompt_len: 300, output_len: 50}
  observed: {summary: {e2e_ms: {mean: 330.2}, ttft_ms: {mean: 26.1}}}
"""


def test_a_run_of_which_no_request_completes_in_the_replay_is_left_out_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Clients of the second give up after 0.22 s: sooner than by the champion's times, not than by the datasheet's."""
    data = tmp_path / "data.yaml"
    impatient = NEVER.replace("engine: {max_model_len: 128}", "engine: {}").replace("{name:", "{timeout_s: 0.22, name:")
    data.write_text(tiny_world.DATA.rstrip() + impatient)
    command = ["drift", "champion", "--experiments", str(data), "--id"]
    run_command([*command, "dense-code,never", "--json"])
    found = json.loads(capsys.readouterr().out)
    why = "no request of it completes in the replay: every client gives up"
    assert found["used"] == ["dense-code"] and found["left_out"] == {"never": why}
    assert run_command([*command, "never"]) == 2
    assert f"no run can show drift (never: {why})" in capsys.readouterr().err


def test_without_anything_to_compare_nobody_can_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the second stage was observed, and its prompts are longer than the engine takes."""
    load = "{name: chat, prompt_len: 30, output_len: 50, stages: [{rate: 5.0, duration_s: 15}, "
    load += "{rate: 5.0, duration_s: 15, prompt_len: 300}]}"
    text = NEVER.replace("{name: chat, stages: [{rate: 5.0, duration_s: 15}], prompt_len: 300, output_len: 50}", load)
    seen = "{stages: [{}, {e2e_ms: {mean: 330.2}, ttft_ms: {mean: 26.1}}]}"
    text = text.replace("{summary: {e2e_ms: {mean: 330.2}, ttft_ms: {mean: 26.1}}}", seen)
    (tmp_path / "data.yaml").write_text("version: 1\nexperiments:" + text)
    assert run_command(["drift", "champion", "--experiments", str(tmp_path / "data.yaml")]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "champion: cannot tell (1 run, 2 load stages)" in out and "would show a shift" not in out
    assert "no TTFT could be compared" in out and "neither ITL nor E2E could be compared" in out


def test_the_smallest_shift_that_is_found_is_found_and_a_smaller_one_is_not() -> None:
    def tests_at(shift: float) -> tuple[ChannelTest, ...]:
        residuals = [residual(model, 0, 0.0, shift) for model in ("a", "b", "c")]
        return channel_tests(residuals, 15)

    least = least_shift([residual(model, 0, 0.0, 0.0) for model in ("a", "b", "c")], tests_at(0.0), "pace")
    assert least is not None
    edge = math.log1p(least)  # residuals are logarithms, of a scale of 1
    assert [t.rejects for t in tests_at(1.01 * edge) if (t.channel, t.kind) == ("pace", "shift")] == [True]
    assert [t.rejects for t in tests_at(0.99 * edge) if (t.channel, t.kind) == ("pace", "shift")] == [False]
