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
from commands import Capsys, as_json, evolve, flat, printed, refused
from scipy import stats

from evaluator.intervals import scales
from evaluator.score import predictions, score_set
from evolve.calibrate.drift import ALPHA, BETA, BOTH, CANNOT_TELL, FORM, NONE, Refit, drift, verdict
from evolve.calibrate.drift_tests import LEVEL, ChannelTest, StageResidual, channel_tests, least_shift
from evolve.run.program import load
from evolve.run.trust import INSIDE, trust_of
from simulator.serving.bundled import bundled_experiments, load_experiments
from simulator.serving.observations import Observation

MEANS = ("e2e", "ttft", "itl")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data.yaml").write_text(tiny_world.DATA)
    return tmp_path / "data.yaml"


def residual(model: str, stage: int, ttft: float | None, itl: float | None, e2e: float | None = None) -> StageResidual:
    """A residual of a scale of 1."""
    ratios = {"e2e": e2e, "ttft": ttft, "itl": itl}
    return StageResidual("run", model, stage, 1.0, ratios, dict.fromkeys(MEANS, 1.0))


def rejecting(*channels: str) -> tuple[ChannelTest, ...]:
    return tuple(ChannelTest(c, "shift", 0.0, (1, 9), 0.5, c in channels) for c in ("pace", "ttft"))


def refit(name: str, *channels: str) -> Refit:
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


def test_the_pace_is_of_the_e2e_without_an_itl() -> None:
    for itl, expected in (None, 2.5), (1.5, 1.5):
        (shift,) = channel_tests([residual("a", 0, None, itl, e2e=2.5)], 9)
        assert (shift.channel, shift.statistic) == ("pace", expected)


def test_false_alarms_are_no_more_often_than_stated() -> None:
    """Errors of models that are shared by their stages, and the scale from fourteen others: 2000 draws of the null."""
    rng, alarms, draws = np.random.default_rng(5), 0, 2000
    for _ in range(draws):
        scale = dict.fromkeys(MEANS, math.sqrt(np.square(rng.normal(size=14)).mean()))
        rows = []
        for m in range(4):
            error = dict(zip(MEANS, rng.normal(size=3), strict=True))
            rows += [StageResidual("run", str(m), s, 1.0, error, scale) for s in range(3)]
        alarms += any(t.rejects for t in channel_tests(rows, 14))
    assert alarms / draws < LEVEL + 2.0 * math.sqrt(LEVEL / draws)


def test_errors_of_held_out_runs_are_no_drift() -> None:
    assert drift_power.false_alarms(500, 4) <= 2.0 * LEVEL


def test_a_run_outside_its_intervals_is_named_and_alone_is_no_proof(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three runs are as the champion has them, but for the steps of one, slower by less than one run can show; `--id`
    looks at it alone. `drift` judges each run by its interval, without what unmeasured kernels add."""
    monkeypatch.chdir(tmp_path)
    as_champion(tmp_path / "one.yaml", {"dense-code": 1.085}, 1.0)
    file = "--experiments", "one.yaml"
    out = flat(capsys, "drift", "champion", *file)
    again = "drift champion --experiments one.yaml --id dense-code"
    assert "dense-code (E2E +8.2 %, ITL +8.2 %)" in out and f"`evolve {again}`" in out
    assert set(as_json(capsys, "drift", "champion", *file)["alone"]) == {"dense-code"}
    found = as_json(capsys, *again.split(), status=1)
    assert found["verdict"] == CANNOT_TELL and set(found["alone"]) == {"dense-code"}


@pytest.mark.parametrize(
    ("off", "refits", "expected"),
    [
        ("", [], NONE),
        ("ttft", ["", "ttft", ""], ALPHA),
        ("ttft", ["ttft", "", ""], BETA),
        ("ttft", ["ttft", "ttft", ""], BOTH),
        ("ttft", ["ttft", "pace", "ttft"], FORM),
        ("ttft", [], FORM),  # a program without constants
        ("pace ttft", ["", "", ""], BETA),  # no delay makes steps slower
    ],
)
def test_the_verdict_is_the_least_refit_that_is_enough(off: str, refits: list[str], expected: str) -> None:
    found = [refit(name, *left.split()) for name, left in zip((ALPHA, BETA, BOTH), refits, strict=False)]
    assert verdict(rejecting(*off.split()), found) == expected


@pytest.mark.parametrize(
    ("kind", "size", "turn"), [("none", 0.0, 3), ("alpha", 2.5, 0), ("beta", 0.15, 0), ("form", 6.0, 0)]
)
def test_a_large_drift_of_each_kind_is_found(kind: str, size: float, turn: int) -> None:
    """The first case of each kind of tools/drift_power.py, with a drift larger than those there, but for memory: where
    it is a fifth slower, the champion's factors, which only some kernels have, no longer follow. Of no drift the fourth:
    two of the first three cannot be told, and one is a false alarm."""
    number = turn * len(drift_power.KINDS) + drift_power.KINDS.index(kind)
    case = drift_power.Case(number, kind, size, 4)
    assert drift_power.carried_out(case) == drift_power.RIGHT[kind]


def test_residuals_are_divided_by_held_out_errors_and_noise_of_arrivals() -> None:
    """For one run: the standard deviation of the errors of its class, at its own scale."""
    (run,) = [e for e in bundled_experiments() if e.id == "mixtral-8x7b-tp2-roleplay"]
    source = load("champion")
    found, trust = drift(source, [run]), trust_of(source)
    (row,) = found.residuals
    (p,) = predictions(source.complete, score_set([run]))
    assert run.observed and run.observed.summary and p.predicted.summary and trust
    for name in MEANS:
        ours, theirs = (getattr(o, f"{name}_ms").mean for o in (p.predicted.summary, run.observed.summary))
        assert row.log_ratio[name] == pytest.approx(math.log(theirs / ours))
        least = scales(trust.residuals(INSIDE, closed=False))[name].deviation(0.0)
        assert least < (row.scale[name] or 0.0) < 4.0 * least, "wider by the ensemble and the arrivals"
    assert found.freedom == len({r.experiment for r in trust.residuals(INSIDE, closed=False)}) - 1
    assert len(found.undecided) == 2 and "one model" in found.undecided[0] and "load stages" in found.undecided[1]


def test_without_held_out_errors_those_in_sample_are_taken(data: Path, tmp_path: Path, capsys: Capsys) -> None:
    mine = tmp_path / "mine.py"
    assert evolve("fit", "floor", "--experiments", data, "--out", mine) == 0
    out = flat(capsys, "drift", mine, "--experiments", data, status=1)
    assert "errors in sample stand for them" in out
    # Student's t of 2 degrees of freedom at 0.0025: of the TTFT, unlike the pace, nothing below 400 % would be seen
    assert "TTFT: not even times that double" in out and "pace and TTFT" not in out
    assert "cannot tell (3 runs, 5 load stages)" in out and "dense-overloaded" in out
    source = load(str(mine))
    assert source.record
    for origin, advised in (("floor", True), ("champion", False)):
        found = drift(replace(source, record=replace(source.record, fitted_from=origin)), load_experiments(data))
        assert any("from the shipped champion" in line for line in found.undecided) == advised


def test_the_next_command_mends_it(tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny world's runs as the champion has them, and steps a quarter slower: the printed command fits the constants
    that the drift was decided by, and what it writes has no drift."""
    monkeypatch.chdir(tmp_path)
    as_champion(tmp_path / "slow.yaml", {}, 1.25)
    found = as_json(capsys, "drift", "champion", "--experiments", "slow.yaml", status=1)
    assert found["verdict"] in (BETA, BOTH) and found["used"] == list(tiny_world.FITTED)
    words = shlex.split(found["next"])[1:]
    expected = ["fit", "champion", "--experiments", "slow.yaml", "--id", ",".join(tiny_world.FITTED)]
    only = ["--only", "beta"] if found["verdict"] == BETA else []
    assert words == [*expected, *only, "--out", "recalibrated.py"]
    assert evolve(*words) == 0
    program = load("recalibrated.py").complete
    values = {f"{f.name}.{c.name}": c.value for f in program.functions for c in f.constants}
    (chosen,) = (r for r in found["refits"] if r["verdict"] == found["verdict"])
    assert chosen["constants"] and all(values[name] == after for name, (_, after) in chosen["constants"].items())
    assert "no drift found" in printed(capsys, "drift", "recalibrated.py", "--experiments", "slow.yaml")


def as_champion(data: Path, factors: Mapping[str, float], others: float) -> None:
    data.write_text(tiny_world.DATA)
    ours = {p.experiment: p for p in predictions(load("champion").complete, score_set(load_experiments(data)))}
    document = yaml.safe_load(tiny_world.DATA)
    for entry in document["experiments"]:
        p, factor = ours[entry["id"]].predicted, factors.get(entry["id"], others)
        assert p.summary
        entry["observed"] = {"summary": slow(p.summary, factor), "stages": [slow(s, factor) for s in p.stages]}
    data.write_text(yaml.safe_dump(document))


def slow(o: Observation, factor: float) -> dict[str, Any]:
    return {
        "e2e_ms": {"mean": factor * (o.e2e_ms.mean or 0.0)},
        "ttft_ms": {"mean": o.ttft_ms.mean},
        "itl_mean_ms": factor * (o.itl_ms.mean or 0.0),
    }


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("champion --id dense-overloaded", "dense-overloaded: overloaded"),
        ("floor", "no record"),
        ("champion --id dense", "no such experiment"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(args: str, words: str, data: Path, capsys: Capsys) -> None:
    assert words in refused(capsys, "drift", *args.split(), "--experiments", data)
    assert "--experiments" in refused(capsys, "drift", "champion")


def test_a_run_in_which_a_queue_may_grow_is_left_out() -> None:
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


def test_a_run_without_a_completed_request_is_left_out(data: Path, capsys: Capsys) -> None:
    """Clients of the second give up after 0.22 s: sooner than by the champion's times, not than by the datasheet's."""
    impatient = NEVER.replace("engine: {max_model_len: 128}", "engine: {}").replace("{name:", "{timeout_s: 0.22, name:")
    data.write_text(tiny_world.DATA.rstrip() + impatient)
    args = "drift", "champion", "--experiments", data, "--id"
    evolve(*args, "dense-code,never", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["used"] == ["dense-code"] and list(found["left_out"]) == ["never"]
    assert "every client gives up" in found["left_out"]["never"]
    assert f"never: {found['left_out']['never']}" in refused(capsys, *args, "never")


def test_without_anything_to_compare_nobody_can_tell(data: Path, capsys: Capsys) -> None:
    """Only the second stage was observed, and its prompts are longer than the engine takes."""
    load = "{name: chat, prompt_len: 30, output_len: 50, stages: [{rate: 5.0, duration_s: 15}, "
    load += "{rate: 5.0, duration_s: 15, prompt_len: 300}]}"
    text = NEVER.replace("{name: chat, stages: [{rate: 5.0, duration_s: 15}], prompt_len: 300, output_len: 50}", load)
    seen = "{stages: [{}, {e2e_ms: {mean: 330.2}, ttft_ms: {mean: 26.1}}]}"
    text = text.replace("{summary: {e2e_ms: {mean: 330.2}, ttft_ms: {mean: 26.1}}}", seen)
    data.write_text("version: 1\nexperiments:" + text)
    out = flat(capsys, "drift", "champion", "--experiments", data, status=1)
    assert "cannot tell (1 run, 2 load stages)" in out and "would show a shift" not in out
    assert "no TTFT could be compared" in out and "neither ITL nor E2E could be compared" in out


def test_the_smallest_shift_is_found_and_no_smaller_one() -> None:
    def tests_at(shift: float) -> tuple[ChannelTest, ...]:
        residuals = [residual(model, 0, 0.0, shift) for model in ("a", "b", "c")]
        return channel_tests(residuals, 15)

    least = least_shift([residual(model, 0, 0.0, 0.0) for model in ("a", "b", "c")], tests_at(0.0), "pace")
    assert least is not None
    edge = math.log1p(least)  # residuals are logarithms, of a scale of 1
    assert [t.rejects for t in tests_at(1.01 * edge) if (t.channel, t.kind) == ("pace", "shift")] == [True]
    assert [t.rejects for t in tests_at(0.99 * edge) if (t.channel, t.kind) == ("pace", "shift")] == [False]
