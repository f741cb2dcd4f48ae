"""`evolve sensitivity`: against programs whose elasticities are known, single predictions, and replays one by one."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_world
import yaml
from commands import Capsys, as_json, evolve, flat, printed, refused

from evaluator.fit.meanfield import shape
from evaluator.fit.stages import stages_of
from evolve.plan import sensitivity_view
from evolve.plan.sensitivity import NUMBERS, SWITCHES, sensitivities
from evolve.plan.sensitivity_result import Effect, Sensitivity
from evolve.run.program import Source, load
from simulator.clock.replay import replay
from simulator.language.parse import parse
from simulator.serving.experiment import deploy
from simulator.serving.load import load_of
from simulator.serving.spec import Spec, read_spec

SEEDS = (1, 2, 3)
NO_OVERHEADS = """
def queueing_time(r, s, *, a=0.0): return a

def output_token_time(s, *, a=0.0): return a

def completion_time(s, *, a=0.0): return a
"""


def world(
    folder: Path, ident: str, model: str | None = None, workload: dict[str, Any] | None = None, **engine: Any
) -> Spec:
    """An experiment of the tiny world with these settings of its engine and this of its load."""
    [entry] = [e for e in yaml.safe_load(tiny_world.DATA)["experiments"] if e["id"] == ident]
    entry["engine"] = {**entry.get("engine", {}), **engine}
    entry = {key: value for key, value in entry.items() if key != "observed"}
    entry["workload"] |= workload or {}
    entry["model"] = model or entry["model"]
    return read_spec(entry, "data.yaml")


def of(program: str | Source, spec: Spec) -> Sensitivity:
    source = Source("mine", program, parse(program)) if isinstance(program, str) else program
    [found] = sensitivities(source, [spec], SEEDS)
    assert [e.setting for e in found.effects] == [*NUMBERS, *SWITCHES]
    return found


def effect(found: Sensitivity, setting: str) -> Effect:
    return next(e for e in found.effects if e.setting == setting)


@pytest.mark.parametrize(
    ("term", "setting", "elasticity", "values"),
    [
        ("a / s.tp", "tp", -1.0, [1, 4]),
        ("a * s.max_num_seqs / 64", "max_num_seqs", 1.0, [32, 128]),
        ("a * sqrt(s.max_model_len / 1024)", "max_model_len", 0.5, [512, 2048]),
        ("a * 256 / s.max_num_batched_tokens", "max_num_batched_tokens", -1.0, [512, 2048]),
    ],
)
def test_the_elasticity_of_a_power_is_its_exponent(
    tmp_path: Path, term: str, setting: str, elasticity: float, values: list[int]
) -> None:
    """The ITL has it, as every step lasts equally long. Other settings have 0: no limit is reached."""
    engine = {"tensor_parallel": 2, "max_num_seqs": 64, "max_num_batched_tokens": 1024, "max_model_len": 1024}
    spec = world(tmp_path, "dense-chat", **engine)
    found = of(f"def step_time(b, s, *, a=8192.0): return {term}\n{NO_OVERHEADS}", spec)
    for one in found.effects[: len(NUMBERS)]:
        assert one.elasticity is not None and (itl := one.elasticity["itl"]) is not None
        expected = elasticity if one.setting == setting else 0.0
        assert itl.mean == pytest.approx(expected, abs=1e-3)
    assert [p.value for p in effect(found, setting).points] == values
    assert all(p.impossible is None for p in effect(found, setting).points)


def test_points_are_single_replays_with_paired_seeds(tmp_path: Path) -> None:
    """The other engine is written into a file, and replayed seed by seed."""
    champion = load("champion")
    found = of(champion, world(tmp_path, "dense-chat"))
    own = [replay(deploy(world(tmp_path, "dense-chat")), champion.complete, seed) for seed in SEEDS]
    for setting, value, engine in (
        ("tp", 2, {"tensor_parallel": 2}),
        ("max_num_seqs", 64, {"max_num_seqs": 64}),
        ("prefix_caching", False, {"prefix_caching": False}),
    ):
        changed = [replay(deploy(world(tmp_path, "dense-chat", **engine)), champion.complete, s) for s in SEEDS]
        means = [(a.e2e_us.mean() / 1e3, b.e2e_us.mean() / 1e3) for a, b in zip(own, changed, strict=True)]
        [point] = [p for p in effect(found, setting).points if p.value == value]
        assert point.figures_ms is not None and point.change_pct is not None
        assert point.figures_ms["e2e"] == pytest.approx(np.mean([b for _, b in means]))
        changes = [100.0 * (b / a - 1.0) for a, b in means]
        change = point.change_pct["e2e"]
        assert change is not None and change.mean == pytest.approx(np.mean(changes))
        assert change.standard_error == pytest.approx(np.std(changes, ddof=1) / math.sqrt(3))


def test_chunked_prefill_is_switched_under_a_budget_that_vllm_accepts(tmp_path: Path) -> None:
    """Prompts of 3000 tokens: with 4096 tokens in a step, a second one is split, or it waits. The experiment itself has
    512 tokens in a step, and that is what switching off is compared with."""
    load_ = {"prompt_len": 3000, "stages": [{"rate": 10.0, "duration_s": 10}]}
    spec = world(tmp_path, "dense-chat", workload=load_, max_num_batched_tokens=512)
    champion = load("champion")
    [point] = effect(of(champion, spec), "chunked_prefill").points
    assert point.value is False and point.also == {"max_num_batched_tokens": 4096}

    def mean_ms(chunked: bool) -> float:
        engine = {"max_num_batched_tokens": 4096, "chunked_prefill": chunked}
        e = deploy(world(tmp_path, "dense-chat", workload=load_, **engine))
        return float(np.mean([replay(e, champion.complete, seed).ttft_us.mean() for seed in SEEDS])) / 1e3

    assert point.figures_ms is not None and point.figures_ms["ttft"] == pytest.approx(mean_ms(False))
    assert mean_ms(False) != pytest.approx(mean_ms(True), rel=1e-3)
    own = [float(replay(deploy(spec), champion.complete, seed).ttft_us.mean()) for seed in SEEDS]
    e = deploy(world(tmp_path, "dense-chat", workload=load_, max_num_batched_tokens=4096, chunked_prefill=False))
    off = [float(replay(e, champion.complete, seed).ttft_us.mean()) for seed in SEEDS]
    change = (point.change_pct or {})["ttft"]
    changes = [100.0 * (b / a - 1.0) for a, b in zip(own, off, strict=True)]
    assert change is not None and change.mean == pytest.approx(np.mean(changes))
    # The other way round, the budget is the experiment's own.
    whole = world(tmp_path, "dense-chat", workload=load_, max_num_batched_tokens=4096, chunked_prefill=False)
    [back] = effect(of(champion, whole), "chunked_prefill").points
    assert back.value is True and back.also == {}
    assert back.figures_ms is not None and back.figures_ms["ttft"] == pytest.approx(mean_ms(True))


def test_impossible_values_say_why(tmp_path: Path) -> None:
    champion = load("champion")
    reasons = {
        (e.setting, p.value): p.impossible
        for e in of(champion, world(tmp_path, "dense-chat", tensor_parallel=32, max_model_len=512)).effects
        for p in e.points
        if p.impossible
    }
    assert "32 attention heads" in (reasons["tp", 64] or "")
    assert "requests have up to 350 tokens" in (reasons["max_model_len", 256] or "")
    assert len(reasons) == 2
    long = effect(of(champion, world(tmp_path, "dense-chat")), "max_model_len")
    assert [p.impossible for p in long.points if p.value == 8192] == [
        "dense-chat, max_model_len 8192: the model has at most 4096 tokens"
    ]
    [half, double] = effect(of(champion, world(tmp_path, "dense-chat", "llama-2-70b", tensor_parallel=2)), "tp").points
    assert (half.value, double.impossible) == (1, None)
    assert "leaves no room for KV cache" in (half.impossible or "")
    small = effect(of(champion, world(tmp_path, "dense-chat", max_model_len=350, total_kv_blocks=22)), "max_model_len")
    assert all(p.impossible for p in small.points if p.value < 350)


def test_queues_and_values_outside_the_fit_are_named(tmp_path: Path) -> None:
    """The fitted runs have at most 16,384 tokens in a step."""
    found = of(load("champion"), world(tmp_path, "dense-overloaded", max_num_seqs=128, max_num_batched_tokens=16384))
    [half, _] = effect(found, "max_num_seqs").points
    assert half.value == 64
    low = of(load("champion"), world(tmp_path, "dense-overloaded", max_num_seqs=32))
    assert "queue grows" in low.fails
    [_, double] = effect(found, "max_num_batched_tokens").points
    assert any("max_num_batched_tokens 32768" in line for line in double.outside or ())
    unknown = of(f"def step_time(b, s, *, a=8192.0): return a\n{NO_OVERHEADS}", world(tmp_path, "dense-chat"))
    assert unknown.outside is None and all(p.outside is None for e in unknown.effects for p in e.points)


def test_the_overview_counts_what_the_tables_name(tmp_path: Path) -> None:
    """The fitted runs have at most 16,384 tokens in a step: at 32,768 the first one lies outside as it is, whatever else is
    changed, and of the second only twice its budget does."""
    champion = load("champion")
    found = [of(champion, world(tmp_path, "dense-chat", max_num_batched_tokens=tokens)) for tokens in (32768, 16384)]
    assert found[0].outside and all(p.outside for e in found[0].effects for p in e.points if not p.impossible)
    rows = [row.values for one in found for row in sensitivity_view._table(one).rows]
    named = {s: sum(str(cells[-1]).count("outside the fit") for cells in rows if cells[0] == s) for s in NUMBERS}
    overview = {row.values[0]: str(row.values[-1]) for row in sensitivity_view._summary(found).rows}
    assert {setting: overview[setting].split(" of ")[0] for setting in NUMBERS} == {s: str(n) for s, n in named.items()}
    assert named["max_num_seqs"] == named["max_num_batched_tokens"] - 2


def test_the_command_prints_tables_json_and_csv(tmp_path: Path, capsys: Capsys) -> None:
    file = tmp_path / "data.yaml"
    file.write_text(tiny_world.DATA)
    given = "sensitivity", "champion", "--experiments", file, "--seeds", 2
    found = as_json(capsys, *given, "--id", "dense-chat")
    assert found["seeds"] == [1, 2] and found["data"] and found["engine"]
    [one] = found["experiments"]
    points = {(e["setting"], str(p["value"])): p for e in one["effects"] for p in e["points"]}
    rows = list(csv.DictReader(io.StringIO(printed(capsys, *given, "--id", "dense-chat", "--csv", "-"))))
    assert len(rows) == len(points)
    for row in rows:
        point = points[row["setting"], {"on": "True", "off": "False"}.get(row["value"], row["value"])]
        assert row["impossible"] == (point["impossible"] or "")
        if not point["impossible"]:
            assert float(row["e2e_ms"]) == point["figures_ms"]["e2e"]
            assert float(row["ttft_change_pct"]) == point["change_pct"]["ttft"]["mean"]
    alone, several = flat(capsys, *given, "--id", "dense-chat"), flat(capsys, *given)
    assert "at most 4096 tokens" in alone and one["outside"] is not None
    assert all(alone.count(f": {line}") == 1 for line in one["outside"])  # others have it in common
    assert "4 experiments" in several and "at most 4096 tokens" not in several


def test_an_unknown_experiment_is_refused(capsys: Capsys) -> None:
    assert "--id nothing: no such experiment" in refused(capsys, "sensitivity", "champion", "--id", "nothing")


def test_the_mean_field_has_whole_prompts_without_chunked_prefill(tmp_path: Path) -> None:
    """A prompt of 4000 tokens in steps of 4096: beside up to 128 decodes it is two chunks, or one."""
    chunks = []
    for chunked in (True, False):
        engine = {"max_num_batched_tokens": 4096, "chunked_prefill": chunked, "prefix_caching": False}
        load_ = {"prompt_len": 4000, "stages": [{"rate": 0.5, "duration_s": 30}]}
        e = deploy(world(tmp_path, "dense-chat", workload=load_, **engine))
        stages = stages_of(e, load_of(e, 0))
        chunks.append(shape(stages.table[0], stages.bins[0], False)[2])
    assert chunks == [2.0, 1.0]


def test_emit_says_that_the_host_splits_prompts(tmp_path: Path, capsys: Capsys) -> None:
    for chunked in (True, False):
        spec = world(tmp_path, "dense-chat", chunked_prefill=chunked)
        (tmp_path / "data.yaml").write_text(yaml.safe_dump({"version": 1, "experiments": [spec.to_entry()]}))
        given = "--experiments", tmp_path / "data.yaml", "--id", "dense-chat", "--out", tmp_path / "go"
        assert evolve("emit", "champion", *given) == 0
        said = " ".join(capsys.readouterr().err.split())
        assert ("dense-chat: the host always has chunked prefill" in said) != chunked
