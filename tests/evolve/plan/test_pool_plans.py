"""Plans with separate pools for prefill and decode: parts, one pool alone, and sweeps over the splits of some GPUs."""

from __future__ import annotations

from typing import Any

import pytest
from commands import Capsys, as_json, printed, refused

from evolve.plan.axes import parse_axes
from simulator.serving.engine import Engine
from simulator.serving.pools import Pool, Pools

PLAN = "--model", "llama-3.1-8b", "--hardware", "H100", "--prompt-len", "2000", "--output-len", "50"
BOTH = *PLAN, "--rate", "6", "--prefill", "2", "--decode", "1", "--seeds", "1"


def told(capsys: Capsys, *words: object, status: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = as_json(capsys, "predict", "champion", *words, status=status)
    return found


def test_the_parts_of_the_e2e_have_those_between_the_pools(capsys: Capsys) -> None:
    """A prompt of 2,000 tokens has 125 blocks, 262,144,000 bytes, which take 583 us at 450 GB/s."""
    [found] = told(capsys, *BOTH)["experiments"]
    parts = found["components"]
    assert parts["transfer"] == 0.583 and parts["decode_waiting"] > 0.0
    assert sum(parts.values()) == pytest.approx(found["predicted"]["e2e_ms"]["mean"], rel=1e-12)
    assert (found["prefill"], found["decode"], found["tp"]) == (2, 1, 1)
    assert any("separate" in line for line in found["warnings"])
    [csv] = printed(capsys, "predict", "champion", *BOTH, "--csv", "-").splitlines()[1:]
    assert ",0.583," in csv


def test_one_pool_alone_has_its_part_of_both(capsys: Capsys) -> None:
    """A prefill pool does what it does beside another one; a decode pool as much, if prompts come to it at the same times."""
    load = *PLAN, "--rate", "6", "--seeds", "1"
    [both] = told(capsys, *BOTH)["experiments"]
    [prefill] = told(capsys, *load, "--prefill", "2")["experiments"]
    for part in ("queueing", "waiting", "prefill_steps"):
        assert prefill["components"][part] == both["components"][part]
    assert prefill["predicted"]["e2e_ms"]["p99"] == prefill["predicted"]["ttft_ms"]["p99"]
    assert (prefill["prefill"], prefill["decode"], prefill["predicted"]["itl_ms"]["mean"]) == (2, 0, None)
    [decode] = told(capsys, *load, "--decode", "1")["experiments"]
    assert decode["components"]["prefill_steps"] == decode["components"]["transfer"] == 0.0
    assert decode["components"]["decode_steps"] == pytest.approx(both["components"]["decode_steps"], rel=0.02)


def test_the_splits_of_some_gpus_are_ranked_by_the_rate_that_holds(capsys: Capsys) -> None:
    """Four GPUs for long prompts and short answers: one instance of prefill fills up first, and one of decode is enough."""
    words = "--sweep", "gpus=4", "--sweep", "rate=20:60:20", "--slo", "ttft_p99=400ms,itl_p99=20ms", "--seeds", "1"
    found = told(capsys, *PLAN, *words)
    knees = [(knee["prefill"], knee["decode"], knee["holds_up_to_rps"]) for knee in found["knees"]]
    assert {pair[:2] for pair in knees} == {(1, 3), (2, 2), (3, 1)}
    held = [rate or 0.0 for *_, rate in knees]
    assert held == sorted(held, reverse=True) and knees[0][:2] == (3, 1) and held[0] > held[-1]
    shown = printed(capsys, "predict", "champion", *PLAN, *words)
    assert shown.index("prefill 3, decode 1") < shown.index("prefill 1, decode 3")
    # with one's own rate, what holds comes first
    words = "--rate", "40", "--sweep", "gpus=4", "--slo", "ttft_p99=400ms,itl_p99=20ms", "--seeds", "1"
    rows = told(capsys, *PLAN, *words)["rows"]
    assert [bool(row["fails"]) for row in rows] == sorted(bool(row["fails"]) for row in rows)
    assert rows[0]["prefill"] == 3 and rows[-1]["fails"]


def test_no_gpu_is_left_over_that_would_make_an_instance() -> None:
    """Of prefill on one GPU and decode on two: of 6 GPUs 2 + 2 x 2 and 4 + 2, and not 3 + 2 with one left."""
    pools = Pools(Pool(1, Engine()), Pool(1, Engine(tensor_parallel=2)))
    found = list(parse_axes(["gpus=6"]).settings("H100", Engine(), pools))
    assert [(s.prefill, s.decode, s.gpus, s.tp) for s in found] == [(2, 2, 6, 2), (4, 1, 6, 2)]
    wide = Pools(Pool(1, Engine(tensor_parallel=4)), Pool(1, Engine(tensor_parallel=2)))
    found = list(parse_axes(["gpus=5,8,11"]).settings("H100", Engine(), wide))
    assert [(s.prefill, s.decode, s.gpus) for s in found] == [(1, 2, 8), (1, 3, 10), (2, 1, 10)]


def test_instances_are_swept_on_their_own(capsys: Capsys) -> None:
    words = *PLAN, "--rate", "2", "--seeds", "1", "--sweep", "prefill=1,2", "--sweep", "decode=1,2"
    rows = told(capsys, *words)["rows"]
    assert [(row["prefill"], row["decode"]) for row in rows] == [(1, 1), (1, 2), (2, 1), (2, 2)]


REFUSED = (
    (("--sweep", "gpus=4", "--sweep", "prefill=2"), "--sweep gpus"),
    (("--concurrency", "4", "--prefill", "2", "--decode", "1"), "workload.concurrency"),
    (("--rate", "2", "--prefill", "9", "--decode", "1"), "transfer.link_gb_per_s"),
    (("--rate", "2", "--prefill", "0"), "--prefill"),
)


@pytest.mark.parametrize(("words", "place"), REFUSED)
def test_wrong_plans_are_refused_in_a_line(capsys: Capsys, words: tuple[str, ...], place: str) -> None:
    assert place in refused(capsys, "predict", "champion", *PLAN, *words)


@pytest.mark.parametrize("command", [("simulate",), ("emit", "champion", "--out", "x")])
def test_one_instance_of_the_host_has_no_pools(
    capsys: Capsys, command: tuple[str, ...], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "pools.yaml"
    file.write_text(
        "version: 1\nexperiments:\n- id: split\n  model: llama-3.1-8b\n  hardware: H100\n  prefill: {instances: 1}\n"
        "  decode: {instances: 1}\n"
        "  workload: {name: x, stages: [{rate: 1, duration_s: 10}], prompt_len: 100, output_len: 10}\n"
    )
    assert "pools" in refused(capsys, *command, "--experiments", file, "--id", "split")
    assert "separate pools" in refused(capsys, "sensitivity", "champion", "--experiments", file)
