"""`evolve fit` as a user types it: what may change, for which models, by which method, and what is printed about each constant."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import tiny_world
import yaml
from commands import Capsys, as_json, flat, printed, refused

from evaluator.fit.methods import METHODS
from evaluator.fit.uncertainty import IDENTIFIED
from evaluator.score import error_rows, score_set
from evolve.cli.fit import FIT_METHODS
from evolve.run.program import load
from evolve.run.selectors import known_constants
from evolve.run.trust import stale, trust_file, trust_of
from simulator.language.complete import complete
from simulator.language.parse import parse
from simulator.serving.bundled import load_experiments

SEVEN, MIXTRAL = "llama-2-7b-tp1-codegen", "mixtral-8x7b-tp2-roleplay"


def fitted(capsys: Capsys, *args: object) -> Any:
    return as_json(capsys, "fit", *args)


def recorded() -> dict[str, Any]:
    record = load("champion").record
    assert record is not None
    constants: dict[str, Any] = record.to_json()["constants"]
    return constants


def test_only_leaves_the_others_as_they_are_to_the_last_bit(capsys: Capsys, tmp_path: Path) -> None:
    out = tmp_path / "mine.py"
    result = fitted(capsys, "champion", "--id", SEVEN, "--only", "alpha", "--out", str(out))
    before = load("champion").complete
    after = parse(out.read_text())
    assert after.function("step_time").constants == before.function("step_time").constants  # type: ignore[union-attr]
    assert after.function("queueing_time").constants != before.function("queueing_time").constants  # type: ignore[union-attr]
    held = {c["name"]: c["held"] for c in result["constants"] if c["method"] == "step_time"}
    free = [c for c in result["constants"] if c["method"] != "step_time"]
    assert all(held.values()) and result["degrees_of_freedom"]["constants"] == len(free)
    assert result["degrees_of_freedom"]["effective"] < 3  # two stages of one run: TTFT and E2E are all they measure
    for c in result["constants"]:  # what the runs do not decide stays where the prior holds it
        assert c["identified"] or abs(c["after"] - c["before"]) < 0.5 * c["before"] + 1000, c
    record = json.loads(out.with_suffix(".json").read_text())["constants"]
    # for held constants the record keeps what was known before, and that they were held
    sure = [name for name, c in recorded().items() if c["identified"] and name.startswith("step_time.")]
    assert sure and all(record[name] == recorded()[name] | {"held": True} for name in sure)
    assert {name for name, c in record.items() if c["held"]} == {n for n in record if n.startswith("step_time.")}
    assert "held, as an earlier fit left it" in flat(capsys, "show", out, "-v")
    again = fitted(capsys, str(out), "--id", SEVEN, "--only", ",".join(sure))
    moved = next(c for c in again["constants"] if c["standard_error"] and c["standard_error_before"])
    error = math.hypot(moved["standard_error"], moved["standard_error_before"])
    assert moved["moved"] == pytest.approx((moved["after"] - moved["before"]) / error)


def test_factors_of_kernels_that_no_run_has_keep_their_values(capsys: Capsys) -> None:
    """Two runs of a dense model say nothing of experts: what the champion learned of them elsewhere must survive."""
    result = fitted(capsys, "champion", "--id", f"{SEVEN},llama-2-7b-tp1-roleplay")
    kept = {c["name"]: c for c in result["constants"] if c["name"].startswith("kernel_moe")}
    assert kept and all(abs(c["before"] - 1) > 0.005 for c in kept.values())
    assert all(c["after"] == c["before"] and c["data_share"] == 0.0 for c in kept.values())


def test_the_share_from_the_data_is_printed(capsys: Capsys) -> None:
    args = "champion", "--id", SEVEN, "--only", "gemm,queueing_time.base_2"
    result = fitted(capsys, *args)
    out = printed(capsys, "fit", *args, "-v")
    for c in result["constants"]:
        (line,) = (line for line in out.splitlines() if line.startswith(f"{c['method']}.{c['name']} "))
        chooses = c["name"] == "batch_size_limit"  # the champion's only constant in a condition
        state = (
            "a threshold" if chooses else "held" if c["held"] else "identified" if c["identified"] else "NOT identified"
        )
        assert line.rstrip().endswith(f" {state}")
        assert (" - " if c["held"] else f" {c['data_share']:.2f} ") in line
        assert not c["identified"] or c["data_share"] > IDENTIFIED
    effective = result["degrees_of_freedom"]["effective"]
    assert effective == pytest.approx(sum(c["data_share"] for c in result["constants"]))
    assert f"6 observed means decide {effective:.1f} of them" in out


def test_correlated_constants_are_named(tmp_path: Path, capsys: Capsys) -> None:
    """Requests of one length: a time per decode and one per token of its context are nearly the same thing."""
    program, out = tmp_path / "steps.py", tmp_path / "fitted.py"
    program.write_text(
        "def step_time(b, s, *, base: us = 9e3, one: us/request = 20.0, each: us/token = 0.05):\n"
        "    return base + one * b.decode_reqs + each * b.kv_decode_sum\n"
    )
    constants = {c["name"]: c for c in fitted(capsys, program, "--id", SEVEN, "--out", out)["constants"]}
    r = constants["one"]["correlated"]["step_time.each"]
    assert abs(r) > 0.8
    for args in (["fit", program, "--id", SEVEN], ["show", out]):
        words = flat(capsys, *args, "-v")
        assert re.search(rf"step_time.each and step_time.one \([^)]*{re.escape(f'{r:+.2f}')}\)", words)


OWN = """
version: 1
experiments:
- id: my-run
  model: llama-3.1-8b
  hardware: H100
  workload: {name: chat, stages: [{rate: 4.0, duration_s: 60}], prompt_len: 300, output_len: 100}
  observed: {summary: {e2e_ms: {mean: 780.0}, ttft_ms: {mean: 31.0}}}
"""


def test_a_fit_on_own_runs_keeps_intervals_of_a_refitted_ensemble(capsys: Capsys, own: Path, tmp_path: Path) -> None:
    mine, again = tmp_path / "mine.py", tmp_path / "again.py"
    result = fitted(capsys, "champion", "--experiments", own, "--out", mine)
    source = load(str(mine))
    trust, before = trust_of(source), trust_of(load("champion"))
    assert trust and before and source.record and not stale(source)
    assert (trust.key, trust.data) == (source.record.key, source.record.data)
    assert (trust.inside, trust.outside) == (before.inside, before.outside)
    assert len(trust.ensemble) == len(before.ensemble) == result["ensemble"]
    run = load_experiments(own)
    far, near = ([e.e2e for p in t.programs for e in error_rows(p, score_set(run))] for t in (before, trust))
    assert all(abs(x) > 8.0 for x in far if x is not None)  # the run is 12 % slower than predicted
    assert all(abs(x) < 5.0 for x in near if x is not None)
    forecast = predicted(capsys, mine, own)
    assert forecast["intervals_of"] == "outside" and not any("fitted runs have" in w for w in forecast["warnings"])
    low, high = forecast["predicted"]["e2e_ms"]["mean_80"]
    assert low < 780.0 < high
    twice = fitted(capsys, mine, "--experiments", own, "--out", again)
    record = load(str(again)).record  # ranges are inherited over two fits
    assert twice["ensemble"] == len(before.ensemble) and record and len(record.ranges_before) == 2


def test_a_fit_without_intervals_says_why(capsys: Capsys, own: Path, tmp_path: Path) -> None:
    mine, at = tmp_path / "mine.py", ("--experiments", own)
    fitted(capsys, "champion", *at, "--out", mine, "--only", "alpha")
    assert trust_of(load(str(mine)))
    record = json.loads(mine.with_suffix(".json").read_text())
    mine.with_suffix(".json").write_text(json.dumps(record | {"data": "0" * 16}))  # of another fit
    assert trust_of(load(str(mine))) is None
    assert str(trust_file(mine)) in str(predicted(capsys, mine, own))
    only = fitted(capsys, "champion", *at, "--out", mine, "--only", "kernel_small")
    assert "near-optimal programs lack" in str(only["no_intervals"]) and only["ensemble"] is None
    assert not trust_file(mine).exists()  # it was that of the program before
    scoped = fitted(capsys, "champion", *at, "--scope", "per-model")
    assert "for all models" in str(scoped["no_intervals"])
    assert fitted(capsys, "kernels", *at)["no_intervals"] is None


def predicted(capsys: Capsys, program: Path, data: Path) -> Any:
    return as_json(capsys, "predict", program, "--experiments", data)["experiments"][0]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own.yaml").write_text(OWN)
    return tmp_path / "own.yaml"


def test_constants_per_model_are_written_as_a_program_each(capsys: Capsys, tmp_path: Path) -> None:
    args = ("floor", "--id", f"{SEVEN},{MIXTRAL}")
    result = fitted(capsys, *args, "--per-model", "weights", "--out", tmp_path / "own.py")
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {f"own-{m}.{x}" for m in ("llama-2-7b", "mixtral-8x7b") for x in ("py", "json")}
    one, other = (parse((tmp_path / f"own-{m}.py").read_text()) for m in ("llama-2-7b", "mixtral-8x7b"))
    differ = [i for i, (a, b) in enumerate(zip(one.theta, other.theta, strict=True)) if a != b]
    assert differ == [1]  # weights, the second constant of seeds/floor.py
    assert result["degrees_of_freedom"]["constants"] == 9 and len(result["constants"]) == 9  # 7 shared, 2 x 1
    record = json.loads((tmp_path / "own-mixtral-8x7b.json").read_text())
    assert record["fitted"] == [MIXTRAL] and record["fitted_with"] == [SEVEN, MIXTRAL]
    assert list(record["errors_pct"]) == [MIXTRAL]
    each = fitted(capsys, *args, "--scope", "per-model", "--out", tmp_path)
    assert (tmp_path / "floor-llama-2-7b.py").is_file() and each["degrees_of_freedom"]["constants"] == 16
    assert "By model" in printed(capsys, "fit", *args, "--per-model", "weights", "-v")


@pytest.mark.slow
def test_methods_side_by_side(capsys: Capsys) -> None:
    assert (*METHODS, "all") == FIT_METHODS
    result = fitted(capsys, "linear", "--id", SEVEN, "--method", "all")
    assert [m["method"] for m in result["methods"]] == list(METHODS)
    assert result["loss"] == min(m["loss"] for m in result["methods"])
    again = fitted(capsys, "linear", "--id", SEVEN, "--method", "all", "--workers", "2")
    for method in (*result["methods"], *again["methods"]):
        assert method.pop("seconds") > 0
    assert again == result
    assert fitted(capsys, "linear", "--id", SEVEN, "--method", "cma")["method"] == "cma"


@pytest.mark.slow
def test_a_constant_that_a_max_hides_is_fitted_from_other_starts(capsys: Capsys, tmp_path: Path) -> None:
    """From a floor of 4,000 us, below every step of these runs, Gauss-Newton sees no slope in it, and ends at twice the
    loss that it reaches from 9,000 us."""
    qwen = "64-qwen2-5-7b-instruct-tp1-roleplay-1-1,66-qwen2-5-7b-instruct-tp1-reasoning-lite-1-1"
    at = "--id", f"llama-2-7b-tp1-codegen,llama-2-7b-tp1-general,{qwen}"
    low = fitted(capsys, "floor", *at)
    assert low["started"].startswith("step_time.floor = ") and low["started"].endswith(" instead of 4000")
    assert low["methods"][0]["loss"] > 1.5 * low["loss"]
    high = tmp_path / "high.py"
    high.write_text((Path("seeds") / "floor.py").read_text().replace("floor: us = 4000.0", "floor: us = 9000.0"))
    assert fitted(capsys, high, *at)["loss"] == pytest.approx(low["loss"], rel=0.03)
    assert fitted(capsys, "floor", *at, "--only", "alpha")["started"] is None  # nothing in queueing_time branches
    assert f"Started from {low['started']}" in printed(capsys, "fit", "floor", *at, "-v")


def test_runs_that_are_not_fitted_are_named_with_the_reason(capsys: Capsys, tmp_path: Path) -> None:
    data = yaml.safe_load(tiny_world.DATA)
    plan = {key: value for key, value in data["experiments"][0].items() if key != "observed"} | {"id": "plan"}
    p99_only = data["experiments"][1] | {"id": "p99-only", "observed": {"summary": {"e2e_ms": {"p99": 300.0}}}}
    data["experiments"] += [plan, p99_only]
    file = tmp_path / "data.yaml"
    file.write_text(yaml.safe_dump(data))
    said = "dense-overloaded (overloaded), plan (nothing observed), p99-only (no observed mean)"
    out = printed(capsys, "fit", "floor", "--experiments", file)
    assert f"Not fitted: {said}\n" in out and out.count("\n") <= 40
    assert out.startswith("Mean absolute error on 3 fitted runs, before -> after: E2E ")
    assert "shipped" not in out and "Next:" not in out  # nothing was written


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("champion --only layer", "--only layer: "),
        ("components --only base", "step_time.base or queueing_time.base"),
        ("floor --only alpha --per-model weights", "--only"),
        ("floor --scope shared --per-model weights", "--per-model"),
        ("floor --scope per-model --out x.txt", "ends in .py"),
    ],
)
def test_wrong_names_are_refused(args: str, words: str, capsys: Capsys) -> None:
    assert words in refused(capsys, "fit", *args.split())


def test_an_older_record_tells_what_its_runs_decided() -> None:
    source = load("champion")
    assert source.record is not None
    written = known_constants(source.record, source.complete)
    assert written is not None and {name: asdict(c) for name, c in written.items()} == recorded()
    assert set(written) == {f"{f.name}.{c.name}" for f in source.complete.functions for c in f.constants}
    bare = replace(source.record, constants=None)
    computed = known_constants(bare, source.complete)
    assert computed is not None
    for name, c in written.items():
        assert computed[name].identified == c.identified and computed[name].bound == c.bound
    assert known_constants(replace(bare, data="other"), source.complete) is None
    assert known_constants(None, complete(parse("def step_time(b, s, *, k=9000.0): return k"))) is None
