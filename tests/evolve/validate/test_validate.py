"""Validation: nothing that is held out reaches a fold, every look is counted, and the statistics are what they say."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from commands import Capsys, as_json, evolve, flat, printed, refused
from tiny_world import BRIEF, DATA, FITTED, copy, write
from tiny_world import run as tiny
from worker_pids import worker_pids

from archive.population import Population
from evaluator.metrics import mean_abs
from evaluator.score import predictions, score_set
from evaluator.statistics import bias, clustered_interval, mean_abs_interval, median_abs, signed_rank
from evolve.host.emit import WITHOUT
from evolve.output.progress import Line
from evolve.output.terminal import command
from evolve.run import validations
from evolve.run.config import FOLDS as KINDS
from evolve.run.config import Config, DataSettings
from evolve.run.config_file import config_from, load_config
from evolve.run.data import but_last, chosen, fittable
from evolve.run.folder import open_run
from evolve.run.lock import lock
from evolve.run.program import load, with_true_names
from evolve.run.trust import read_trust
from evolve.search.pool.local import Here
from evolve.validate.folds import Fold, folds_of
from evolve.validate.held_out import FIGURES, HeldOutRow, held_out_errors
from evolve.validate.held_out_views import HELD, rows_table
from evolve.validate.statistics import summary
from evolve.validate.study import Member, MemberProgress, carry_out
from evolve.validate.validation import Validation
from simulator.common.errors import InputError
from simulator.language.measure import features
from simulator.language.parse import parse
from simulator.serving.bundled import bundled_experiments
from simulator.serving.observations import Observed
from simulator.serving.workload import Stage

IDS = ("llama-2-7b-tp1-codegen", "llama-2-7b-tp1-roleplay", "codellama-34b-tp2-codegen")
MODELS = ["--folds", "models", "--workers", "1", "--quiet"]
FOLDS = ["--folds", "models,stages", "--budget", "12", "--workers", "1", "--quiet"]
HINDSIGHT = ["--hindsight", "--workers", "1", "--quiet"]
NAMES = ["models-llama-2-7b-hf", "models-mixtral-8x7b-v0.1", "stages-last"]


@pytest.fixture(scope="module")
def reference(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three experiments of two models, two of them of two stages, validated once."""
    path = copy(tiny_run, tmp_path_factory.mktemp("validated"))
    assert evolve("validate", path, *FOLDS) == 0
    return path


@pytest.fixture
def again(reference: Path, tmp_path: Path) -> Path:
    return copy(reference, tmp_path)


def result(path: Path) -> Any:
    return json.loads((path / "validate.json").read_text())


def test_no_fold_is_given_what_it_holds_out(reference: Path) -> None:
    found = result(reference)
    assert [f["folder"] for f in found["folds"]] == NAMES
    for fold in found["folds"]:
        run = open_run(reference / "validate" / fold["folder"])
        assert list(run.about.fitted) == fold["fitted"]
        elites = [outcome.elite for outcome in run.outcomes() if outcome.elite]
        assert {row[0] for elite in elites for row in elite.score.rows} == set(fold["fitted"])
        assert run.config.budget == 12 and run.config.seed == 0
        shown = json.loads((run.path / "report.json").read_text())["errors"]
        # of the earlier stages, where the last is held out
        assert [row["experiment"] for row in shown] == fold["fitted"]
        if fold["kind"] == "models":
            assert not set(fold["held_out"]) & set(fold["fitted"])
            assert set(fold["held_out"]) | set(fold["fitted"]) == set(FITTED)
        assert fold["champion"]["text"] in [with_true_names(elite).text for elite in elites]
    assert sorted(r["experiment"] for r in found["rows"] if r["kind"] == "models") == sorted(FITTED)


def experiments_file(path: Path, factor: float) -> Config:
    """The tiny world; what was observed of the last stage of Mixtral, and so of the whole run, times `factor`."""
    raw = yaml.safe_load(DATA)
    last = next(e for e in raw["experiments"] if e["id"] == "sparse-chat")["observed"]
    for figures in (last["summary"], last["stages"][-1]):
        for latency in ("e2e_ms", "ttft_ms"):
            figures[latency] = {name: factor * value for name, value in figures[latency].items()}
    path.write_text(yaml.safe_dump(raw))
    config = Config(data=DataSettings(files=(str(path),), predict_files=()))
    return replace(config, search=replace(config.search, finalists=0), score=replace(config.score, physics=False))


def test_folds_of_any_name_have_folders_of_their_own(tmp_path: Path) -> None:
    """Names that differ in letters that no folder has, in case or in spaces are different folds all the same."""
    raw = yaml.safe_load(DATA)
    folders = {"聊天": "x", "代码": "x-2", "Chat 1k": "chat-1k", "chat_1k": "chat-1k-2"}
    [first, *_] = raw["experiments"]
    raw["experiments"] = []
    for i, name in enumerate(folders):
        raw["experiments"].append(first | {"id": f"e{i}", "workload": first["workload"] | {"name": name}})
    (tmp_path / "names.yaml").write_text(yaml.safe_dump(raw, allow_unicode=True))
    config = Config(data=DataSettings(files=(str(tmp_path / "names.yaml"),), predict_files=()))
    found, _ = folds_of(config, ("workloads",), 10, chosen(config.data)[0])
    assert {f.name: f.folder for f in found} == {name: f"workloads-{folder}" for name, folder in folders.items()}


def test_the_best_baseline_predicts_every_observed_e2e() -> None:
    def row(number: int, e2e: float | None, known: dict[str, float | None]) -> HeldOutRow:
        errors = dict.fromkeys(FIGURES, None if e2e is None else 3.0)
        answers = {name: {"e2e": error, "ttft": 5.0, "itl": 5.0} for name, error in known.items()}
        start = "models", "m", f"e{number}", "m", "m bf16 g", "w", 1, False, "k"
        return HeldOutRow(*start, e2e is not None, {}, errors, False, {}, answers)

    answers = {"partial": 1.0, "whole": 4.0}, {"partial": None, "whole": 6.0}, {"partial": None, "whole": None}
    rows = [row(i, e2e, of_run) for i, (e2e, of_run) in enumerate(zip((3.0, 3.0, None), answers, strict=True))]
    found = summary(rows, 0)
    assert found.best_baseline == "whole" and found.against is not None
    assert (found.against.label, found.against.e2e) == ("whole", 5.0)


@pytest.mark.slow
def test_a_folds_search_does_not_depend_on_held_out_figures(tmp_path: Path) -> None:
    """Held-out figures half as large again change not a byte of the fold's journal; figures that are fitted do."""
    journals: dict[str, list[bytes]] = {}
    for factor in (1.0, 1.5):
        config = experiments_file(tmp_path / f"{factor}.yaml", factor)
        folds, _ = folds_of(config, ("models", "stages"), 10, chosen(config.data)[0])
        members = [Member(tmp_path / str(factor) / fold.folder, fold.config) for fold in folds]
        carry_out(members, "fold", Here(Line(quiet=True)), False, lambda number, search, progress: None)
        for member in members:
            journals.setdefault(member.folder.name, []).append((member.folder / "journal.jsonl").read_bytes())
    assert {name: a == b for name, (a, b) in journals.items()} == dict(zip(NAMES, (False, True, True), strict=True))
    assert all(a.count(b"\n") >= 10 for a, _ in journals.values())


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_an_interrupted_validation_equals_an_uninterrupted_one(
    workers: int, tiny_run: Path, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    path, update, met = copy(tiny_run, tmp_path), MemberProgress.update, set[str]()
    args = "validate", path, *FOLDS[:4], "--workers", workers, "--quiet"

    def interrupt(self: MemberProgress, population: Population) -> None:
        update(self, population)
        met.add(self._name)
        if population.proposals == 4 and (self._name == NAMES[1] if workers == 1 else len(met) == len(NAMES)):
            raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(MemberProgress, "update", interrupt)
        assert evolve(*args) == 130
    assert f"`{command('validate', path, *FOLDS[:4])}` goes on" in capsys.readouterr().err and not worker_pids()
    assert not (path / "validate.jsonl").exists() and not (path / "validate.json").exists()
    finished = path / "validate" / NAMES[0] / "report.json"
    before = finished.stat().st_mtime_ns if workers == 1 else None
    assert evolve(*args) == 0
    if workers == 1:
        assert finished.stat().st_mtime_ns == before
        assert [call["searched_folds"] for call in validations.calls(path)] == [2]
    one, other = result(path), result(reference)
    assert one.pop("run") != other.pop("run")
    assert one == other
    for name in NAMES:
        journals = [(run / "validate" / name / "journal.jsonl").read_bytes() for run in (path, reference)]
        assert journals[0] == journals[1]


def test_every_call_is_counted(again: Path, capsys: Capsys) -> None:
    assert result(again)["call"] == 1
    assert validations.calls_note(again) == "1 validate call"
    assert "Validate call number 2 on this run" in printed(capsys, "validate", again, *FOLDS)
    told = validations.calls(again)
    assert [(c["call"], c["searched_folds"]) for c in told] == [(1, 3), (2, 0)]
    assert all((c["budget"], c["kinds"]) == (12, ["models", "stages"]) for c in told)
    assert told[0]["champions"] == told[1]["champions"]
    assert told[0]["protocol"]["score.within"] == 0.05
    assert "2 validate calls" in printed(capsys, "archive", again)


def test_a_changed_rule_or_budget_is_refused_and_named(again: Path, capsys: Capsys) -> None:
    stages = "validate", again, "--folds", "stages"
    assert "fold budget was 12, is 8" in refused(capsys, *stages, "--budget", 8)
    before = (again / "validate" / "stages-last" / "journal.jsonl").read_bytes()
    out = printed(capsys, *stages, "--budget", 8, "--workers", 1, "--quiet", "--again")
    assert "CHANGED since the first validate: fold budget was 12, is 8." in out
    assert (again / "validate" / "stages-last" / "journal.jsonl").read_bytes() == before
    assert open_run(again / "validate" / "stages-last.2").config.budget == 8
    raw = yaml.safe_load((again / "config.yaml").read_text())
    raw["score"]["within"] = 0.2
    (again / "config.yaml").write_text(yaml.safe_dump(raw))
    change = "score.within was 0.05, is 0.2"
    assert change in refused(capsys, *stages, *HINDSIGHT)
    assert len(validations.calls(again)) == 2
    assert f"CHANGED since the first validate: {change}." in printed(capsys, *stages, *HINDSIGHT, "--again")
    assert validations.calls(again)[2]["changed_since_first_call"] == [change]


def test_a_validated_champion_is_predicted_with_intervals(reference: Path, capsys: Capsys) -> None:
    found = result(reference)
    trust = read_trust((reference / "trust.json").read_bytes(), "trust.json")
    rows = [row for row in found["rows"] if row["spread"]]
    assert trust.key == found["champion"] and {row["kind"] for row in rows} == {"models", "stages"}
    kept = {(r.experiment, r.log_ratio["e2e"], r.spread["e2e"]) for r in (*trust.inside, *trust.outside)}
    assert kept == {(r["experiment"], -math.log1p(r["e2e"] / 100.0), r["spread"]["e2e"]) for r in rows}
    assert {r.experiment for r in trust.outside} == {row["experiment"] for row in rows if row["outside"]}
    champion = json.loads((reference / "report.json").read_text())["champion"]["id"]
    other = next(o.elite.id for o in open_run(reference).outcomes() if o.elite and o.elite.key != trust.key)
    ours, without = (
        as_json(capsys, "predict", f"{reference}:{number}", "--id", IDS[0])["experiments"][0]
        for number in (champion, other)
    )
    assert ours["intervals_of"] == "outside" and ours["saturated"] == 0.0  # no model of the shipped runs was fitted
    e2e = ours["predicted"]["e2e_ms"]
    assert e2e["mean_95"][0] <= e2e["mean_80"][0] < e2e["mean"] < e2e["mean_80"][1] <= e2e["mean_95"][1]
    assert "mean_80" not in ours["stages"][0]["predicted"]["e2e_ms"]
    assert without["intervals_of"] is None and "mean_80" not in without["predicted"]["e2e_ms"]
    assert "No intervals: " in flat(capsys, "predict", f"{reference}:{other}", "--id", IDS[0])


@pytest.mark.slow
def test_hindsight_is_marked_everywhere(again: Path, tmp_path: Path, capsys: Capsys) -> None:
    table = tmp_path / "rows.csv"
    out = printed(capsys, "validate", again, "--folds", "models", "--hindsight", "-v", "--quiet", "--csv", table)
    assert out.count("; form chosen with hindsight") >= 3 and "inside the fold" not in out
    found = json.loads((again / "validate-hindsight.json").read_text())
    assert found["form_chosen_with_hindsight"] is True and found["budget"] is None
    assert result(again)["form_chosen_with_hindsight"] is False
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert {r["form_chosen_with_hindsight"] for r in rows} == {"True"} and len(rows) == len(FITTED)
    # the run's form in every fold, the constants not the run's: it was fitted on three experiments, a fold on fewer
    best = json.loads((again / "report.json").read_text())["champion"]
    for fold in found["folds"]:
        assert fold["champion"]["fields"] == list(features(parse(best["text"])))
        assert fold["champion"]["text"] != best["text"]


def test_the_json_is_the_file_and_against_names_its_program(again: Path, capsys: Capsys) -> None:
    found = as_json(capsys, "validate", again, *MODELS, "--budget", 12, "--against", "linear_kv")
    assert found == result(again)
    assert {"engine", "data", "seeds"} <= set(found) and found["call"] == 2
    models = found["summary"]["models"]
    assert models["against"]["label"] == "linear_kv, form refitted"
    assert models["against"]["test"]["pairs"] == 3
    assert models["mean_abs_error_pct"]["e2e"] == pytest.approx(sum(abs(r["e2e"]) for r in found["rows"]) / 3)
    # a constant per model has no model to be fitted on in these folds
    names = (
        "blackbox/naive mean/overhead floor/roofline/host roofline/kernel sum/trained physics/seed kernels/seed terms"
    )
    assert {a["name"] for a in models["baselines"]} == {*names.split("/"), "trained physics published"}
    assert models["best_baseline"] == min(models["baselines"], key=lambda a: a["e2e"])["name"]
    groups = {f"{g['by']} {g['group']}": g["experiments"] for g in found["breakdown"]["models"]}
    one = dict.fromkeys(("architecture MoE", "workload code", "tp 2"), 1)
    assert groups == one | dict.fromkeys(("architecture dense", "workload chat", "tp 1"), 2)
    [never] = found["never_fitted"]
    assert never["experiment"] == "dense-overloaded" and never["failed"]["observed"] == 230
    assert never["failed"]["predicted"] > 0
    assert sum(never[x]["predicted"] for x in ("completed", "failed")) == 800  # 80/s, 10 s


def test_impossible_folds_are_named(again: Path, capsys: Capsys) -> None:
    (file,) = open_run(again).config.data.files
    for kind, why in (("files", file), ("hardware", "H100-SXM-80GB")):
        out = printed(capsys, "validate", again, "--folds", f"{kind},stages", *HINDSIGHT)
        [said] = [line for line in out.splitlines() if line.startswith(f"No {kind} fold: ")]
        line = refused(capsys, "validate", again, "--folds", kind, "--hindsight", "--quiet")
        assert why in said and f"nothing can be held out ({kind}: " in line and why in line


def test_impossible_validations_are_refused(again: Path, capsys: Capsys) -> None:
    for args, words in (
        (
            ["--folds", "seeds"],
            "models, workloads, tp, architectures, hardware, precisions, parallelism, versions, cells, files, stages",
        ),
        (["--csv", again / "no" / "x.csv"], f"{again}/no/x.csv: cannot be written"),
        (["--against", "nothing.py"], "nothing.py: cannot be read"),
    ):
        assert words in refused(capsys, "validate", again, *args)
    held = lock(again)
    assert evolve("validate", again) == 2
    held.close()
    (again / "report.json").unlink()
    assert f"`evolve resume {again}`" in refused(capsys, "validate", again)


def test_a_run_on_two_gpu_types_is_validated_without_each(tmp_path: Path) -> None:
    config = write(tmp_path, **BRIEF)
    lines = DATA.splitlines()
    one = "\n".join(lines[3 : lines.index("- id: dense-code")])
    other = one.replace("dense-chat", "dense-a100").replace("hardware: H100", "hardware: A100")
    (tmp_path / "data.yaml").write_text("\n".join(["version: 1", "experiments:", one, other, ""]))
    run = tiny(config, tmp_path / "run", "--budget", 9)
    assert evolve("validate", run, "--folds", "hardware", "--budget", 9, "--workers", 1, "--quiet") == 0
    found = result(run)
    fitted = {(f["kind"], f["name"]): f["fitted"] for f in found["folds"]}
    assert fitted == {("hardware", "H100-SXM-80GB"): ["dense-a100"], ("hardware", "A100-SXM-80GB"): ["dense-chat"]}
    assert {r["experiment"] for r in found["rows"]} == {"dense-chat", "dense-a100"}


def folds(name: str, *kinds: str) -> list[Fold]:
    config = load_config(name)
    return folds_of(config, kinds, 9, chosen(config.data)[0])[0]


def test_every_kind_of_fold_is_told_in_words() -> None:
    assert set(HELD) == set(WITHOUT) == set(KINDS)


def test_folds_of_the_shipped_data() -> None:
    """Counts from configs/experiments_h100*.yaml: 20 experiments of 8 models, 4 workloads, TP 1, 2 and 4, 2 files, two types of weights."""
    found = folds("both")
    counts = {
        "models": 8,
        "workloads": 4,
        "tp": 3,
        "architectures": 2,
        "precisions": 2,
        "cells": 8,
        "files": 2,
        "stages": 1,
    }
    assert Counter(f.kind for f in found) == counts
    assert [f.name for f in found if f.kind == "architectures"] == ["dense", "MoE"]
    everything = {e.id for e in chosen(load_config("both").data)[0]}
    for fold in found:
        held, train = {e.id for e in fold.held}, {e.id for e in fold.train()}
        if fold.kind != "stages":
            assert held | train == everything and not held & train
    one, other = (f for f in found if f.kind == "files")
    assert {e.id for e in one.held} == {e.id for e in other.train()}
    assert len({f.folder for f in found}) == len(found)
    with pytest.raises(InputError, match="one experiments file only"):
        folds("smoke", "files")


def test_the_last_stage_is_cut_from_load_and_observations() -> None:
    for e in fittable(bundled_experiments()):
        cut = but_last(e)
        assert e.observed is not None and cut.observed is not None
        if len(e.workload.stages) == 1:
            assert cut == e
            continue
        assert cut.workload.stages == e.workload.stages[:-1]
        assert cut.observed == Observed(e.observed.stages[0], e.observed.stages[:1])
    fold = folds("both", "stages")[0]
    assert all(len(e.workload.stages) == 1 for e in fold.train())
    assert len(fold.held) == 11 and all(len(e.workload.stages) == 2 for e in fold.held)


@pytest.mark.parametrize(("second", "weights"), [(Stage(10.0, 300.0), (0.5, 0.5)), (Stage(20.0, 450.0), (0.25, 0.75))])
def test_the_rest_of_three_stages_is_weighted_by_requests(second: Stage, weights: tuple[float, float]) -> None:
    """5/s for 600 s and 10/s for 300 s: 3,000 requests each, so the plain mean; with 20/s for 450 s: weights 1 and 3."""
    e = next(e for e in bundled_experiments() if e.id == IDS[0])
    assert e.observed is not None
    one, two = e.observed.stages
    means = one.e2e_ms.mean, two.e2e_ms.mean
    assert means[0] is not None and means[1] is not None
    load = replace(e.workload, stages=(Stage(5.0, 600.0), second, Stage(30.0, 10.0)))
    cut = but_last(replace(e, workload=load, observed=Observed(e.observed.summary, (one, two, one)))).observed
    assert cut is not None and cut.summary is not None
    assert cut.summary.e2e_ms.mean == pytest.approx(weights[0] * means[0] + weights[1] * means[1])
    assert cut.summary.e2e_ms.p99 is None


def test_errors_of_the_whole_of_later_stages_and_of_the_last() -> None:
    program = load("floor").complete
    held = [e for e in bundled_experiments() if e.id in IDS[:2]]
    found = [held_out_errors(program, held, last_stage) for last_stage in (False, True)]
    (whole, single), (last, _) = ([row.errors for row in rows] for rows in found)
    first, second = found[0][0].stages
    assert second == {name: last[name] for name in second} != first and found[1][0].stages == ()
    made, seen = predictions(program, score_set(held[:1]))[0].predicted, held[0].observed
    assert seen is not None and made.summary is not None and seen.summary is not None
    assert whole["e2e"] == pytest.approx(100 * (made.summary.e2e_ms.mean / seen.summary.e2e_ms.mean - 1))  # type: ignore[operator]
    for name, statistic in (("ttft_p99", "p99"), ("ttft", "mean")):
        a, b = (getattr(o.stages[1].ttft_ms, statistic) for o in (made, seen))
        assert last[name] == whole[f"{name}_later"] == pytest.approx(100 * (a / b - 1))
    unobserved = {"itl_p50", "itl_p90", "itl_p99"}
    assert {n for n in FIGURES if single[n] is None} == unobserved | {n for n in FIGURES if n.endswith("_later")}


def test_statistics_by_hand() -> None:
    """Two experiments of errors 2 and 6 percent: a resample is both twice or one each, so the 95 % interval is 2 to 6.
    Clusters {2} and {6, 6, 6}: their mean is 5 (20/4), resamples of clusters reach from 2 to 6."""
    assert mean_abs([-2.0, 6.0, None]) == 4.0 and bias([-2.0, 6.0, None]) == 2.0 and median_abs([-1.0, 2.0, 9.0]) == 2.0
    assert mean_abs([None]) is None and bias([]) is None and median_abs([None]) is None
    assert mean_abs_interval([-2.0, 6.0, None], 0) == (2.0, 6.0)
    assert clustered_interval([2.0, -6.0, 6.0, 6.0], ["a", "b", "b", "b"], 0) == (2.0, 6.0)
    assert clustered_interval([2.0, 6.0], ["a", "a"], 0) is None and mean_abs_interval([5.0], 0) is None
    many = [float(x) for x in range(30)]
    assert mean_abs_interval(many, 1) == mean_abs_interval(many, 1) != mean_abs_interval(many, 2)
    low, high = mean_abs_interval(many, 1) or (0.0, 0.0)
    # 14.5 and about 1.96 standard errors: population deviation 8.655 over the root of 30
    assert (low, high) == pytest.approx((14.5 - 1.96 * 1.580, 14.5 + 1.96 * 1.580), abs=0.2)


def test_each_figure_of_a_held_out_run_is_below_its_head() -> None:
    """Every figure has an error that says which it is."""
    figures = {name: float(i) for i, name in enumerate(FIGURES)}
    row = HeldOutRow("models", "f", "run", "m", "m bf16 g", "w", 1, False, "c", True, {}, figures, False, {}, {})
    validation = cast(Validation, SimpleNamespace(rows=[row], summary={"models": SimpleNamespace(against=None)}))
    table = rows_table(validation, "models", "")
    shown = dict(zip((column.name for column in table.columns), table.cells()[0], strict=True))
    assert [*shown][:5] == ["experiment", "E2E", "TTFT", "ITL", "limits"]
    for name in ("E2E", "ITL", "E2E p90", "TTFT p99", "later E2E", "later TTFT p99"):
        figure = name.lower().removeprefix("later ").replace(" ", "_") + ("_later" if "later" in name else "")
        assert shown[name] == f"{figures[figure]:+.1f}", name


def test_signed_rank_by_hand() -> None:
    """Five pairs that are all better: of 2^5 sign patterns 2 are as extreme, p = 2/32; the rank sum of the worse is 0.
    Differences -1, -2, 3 (ranks 1, 2, 3): both rank sums are 3, nothing is more central, p = 1."""
    found = signed_rank([1.0, -1.0, 1.0, 1.0, 1.0, None], [2.0, 3.0, -4.0, 5.0, 6.0, 7.0])
    assert found is not None
    assert (found.pairs, found.better, found.statistic, found.median_difference) == (5, 5, 0.0, -3.0)
    assert found.p == pytest.approx(0.0625)
    even = signed_rank([1.0, 1.0, 4.0], [2.0, 3.0, 1.0])
    assert even is not None and (even.statistic, even.p) == (3.0, 1.0)
    same = signed_rank([1.0, 2.0], [-1.0, 2.0])
    assert same is not None and same.p is None and same.better == 0
    assert signed_rank([None], [1.0]) is None


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"validate": {"budget": 0}}, "x: validate.budget must be > 0, got 0"),
        ({"validate": {"folds": ["seeds"]}}, "x: validate.folds must be one of models, workloads"),
        ({"data": {"stages": "first"}}, "x: data.stages must be one of all, but_last, train, got 'first'"),
    ],
)
def test_settings_are_checked(raw: dict[str, Any], message: str) -> None:
    assert config_from({"validate": {"budget": 50, "folds": ["models"]}}, "x").validate.budget == 50
    with pytest.raises(InputError, match=re.escape(message)):
        config_from(raw, "x")
