"""Traces in replays: the shipped runs as traces, chains of pieces, windows, other rates, and tables of ingest."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import yaml
from paths import ROOT
from plain_clock import host, step_function
from trace_tables import HEAD, MOONCAKE, columns, csv, experiment, lines, trace_of, written

from evaluator.metrics import run_means_ms, stage_means
from simulator.clock.replay import replay
from simulator.language.complete import complete
from simulator.language.parse import parse
from simulator.serving.bundled import bundled_experiments, load_experiments
from simulator.serving.experiment import Experiment
from simulator.serving.load import load_of
from simulator.serving.trace import Trace, slowed, windows
from simulator.serving.workload import Stage, at_rate, first_stages, is_recorded, seeds_of

CHAMPION = parse((ROOT / "seeds" / "champion.py").read_text())
PROGRAM = complete(parse("def step_time(b, s, *, a=5000.0, c=20.0): return a + c * b.prefill_tokens"))


@pytest.mark.parametrize("e", bundled_experiments(), ids=lambda e: e.id)
def test_a_shipped_run_as_a_trace_is_predicted_alike(e: Experiment, tmp_path: Path) -> None:
    """Its own requests, written with prompts, prefixes and stages, and read back: every latency is equal."""
    assert e.spec
    entry = e.spec.to_entry()
    load = load_of(e, 1)
    table = columns(load.requests)
    name = "trace.csv" if e.workload.name == "reasoning-lite" else "trace.parquet"  # text is slow for the long ones
    written(tmp_path, name, csv(table) if name.endswith("csv") else table)
    as_trace = entry | {"workload": {"name": e.workload.name, "trace": name}}
    (tmp_path / "my.yaml").write_text(yaml.safe_dump({"version": 1, "experiments": [as_trace]}))
    (traced,) = load_experiments(tmp_path / "my.yaml")
    assert (traced.engine, traced.facts, traced.observed) == (e.engine, e.facts, e.observed)
    of_profile, of_trace = replay(e, CHAMPION, 1), replay(traced, CHAMPION, 2)
    np.testing.assert_array_equal(of_trace.requests.arrival_us, load.requests.arrival_us - load.requests.arrival_us[0])
    np.testing.assert_array_equal(of_trace.e2e_us, of_profile.e2e_us)
    np.testing.assert_array_equal(of_trace.ttft_us, of_profile.ttft_us)
    assert run_means_ms(of_trace) == run_means_ms(of_profile)
    stages = len(e.workload.stages)
    np.testing.assert_array_equal(stage_means(of_trace, stages), stage_means(of_profile, stages))
    offered = [stage.rate for stage in e.workload.stages]
    # A drawn stage's first and last arrival are about a mean gap from its ends.
    assert [stage.rate for stage in traced.workload.stages] == pytest.approx(offered, rel=0.005)


@pytest.mark.parametrize("block", [16, 48, 512, 700])
def test_prompts_find_the_blocks_of_common_pieces(block: int, tmp_path: Path) -> None:
    """The second prompt shares two pieces of 512 tokens with the first, the third one piece, of which its 600 tokens
    are 512: whole KV blocks of these are found, also where a block is no part of a piece."""
    written(tmp_path, "m.jsonl", lines(MOONCAKE))
    e = experiment(tmp_path, {"trace": "m.jsonl"}, engine={"block_size": block})
    seen = replay(e, PROGRAM, 1)
    assert seen.spread(seen.run.cached).tolist() == [0, 1024 // block, 512 // block]


def test_random_chains_are_replayed_as_by_the_plain_clock(tmp_path: Path) -> None:
    rng = random.Random(3)
    for block in (16, 24, 100):
        rows = []
        for i in range(40):
            path: list[int] = []
            for _ in range(rng.randint(1, 4)):
                path.append(2 * (path[-1] if path else 0) + rng.randint(1, 2))
            size = 512 * (len(path) - 1) + rng.randint(1, 512)
            rows.append({"timestamp": 20 * i, "input_length": size, "output_length": 5, "hash_ids": path})
        written(tmp_path, "m.jsonl", lines(rows))
        blocks = -(-8000 // block)  # hold three requests: what is shared is evicted now and then
        e = experiment(tmp_path, {"trace": "m.jsonl"}, engine={"block_size": block, "total_kv_blocks": blocks})
        load, seen = load_of(e, 1), replay(e, PROGRAM, 1)
        plain = host(load.requests, seen.queueing_us.tolist(), load.limits, step_function(PROGRAM, e.facts))
        assert [r.cached for r in plain.requests] == seen.spread(seen.run.cached).tolist()
        np.testing.assert_array_equal([r.first for r in plain.requests], seen.spread(seen.run.first_us))
        assert sum(r.cached for r in plain.requests) > 0


def test_the_order_of_rows_does_not_matter(tmp_path: Path) -> None:
    rows = [*MOONCAKE, {"timestamp": 4000, "input_length": 90, "output_length": 2, "hash_ids": [9]}]
    r = trace_of(tmp_path, "a.jsonl", lines(rows)).requests
    shuffled = trace_of(tmp_path, "b.jsonl", lines([rows[i] for i in (2, 3, 0, 1)])).requests
    assert r.arrival_us.tolist() == [0, 3_000_000, 4_000_000, 6_000_000]
    for name in ("arrival_us", "input_len", "output_len"):
        np.testing.assert_array_equal(getattr(r, name), getattr(shuffled, name))
    for a in (r, shuffled):  # numbers may differ, but not which of them are equal
        assert a.chains is not None
        number = a.chains.number.tolist()
        assert [number.index(n) for n in number] == [0, 1, 2, 0, 1, 5, 6, 0, 8]


def test_windows_are_long_and_full_enough() -> None:
    rng = np.random.default_rng(5)
    for rate, least_s, fewest in ((10.0, 60.0, 200), (1.0, 60.0, 200), (50.0, 5.0, 100), (0.1, 1.0, 1)):
        arrival = np.sort(rng.integers(0, 600_000_000, int(600 * rate)))
        window = windows(arrival, least_s, fewest)
        assert window[0] == 0 and set(np.diff(window)) <= {0, 1}
        starts = np.flatnonzero(np.diff(window, prepend=-1))
        assert (np.bincount(window) >= min(fewest, len(arrival))).all()
        assert (np.diff(arrival[starts]) >= least_s * 1e6).all()
        assert len(starts) == 1 or arrival[-1] - arrival[starts[-1]] >= 0.9 * least_s * 1e6
        assert len(starts) >= min(600 / least_s, 600 * rate / fewest) / 2.2
    at_once = np.zeros(10, np.int64)
    assert windows(at_once, 1e-9, 1).tolist() == [0] * 10  # no window is without length


def test_windows_are_the_stages(tmp_path: Path) -> None:
    rows = [f"{t},100,3,{t % 7 + 50},{t % 3 + 5}" for t in range(0, 250)]
    written(tmp_path, "t.csv", "\n".join([HEAD + ",e2e_ms,ttft_ms", *rows, ""]))
    one = experiment(tmp_path, {"trace": "t.csv"})
    two = experiment(tmp_path, {"trace": "t.csv", "window_requests": 100})
    three = experiment(tmp_path, {"trace": "t.csv", "window_s": 80, "window_requests": 2})
    assert [len(e.workload.stages) for e in (one, two, three)] == [1, 2, 3]
    assert three.workload.stages == (Stage(1.0, 80.0), Stage(1.0, 80.0), Stage(1.0, 90.0))
    assert one.workload.source != two.workload.source and is_recorded(one.workload)
    assert one.observed is not None and three.observed is not None and three.observed.summary == one.observed.summary
    e2e = np.arange(250) % 7 + 50
    assert [o.e2e_ms.mean for o in three.observed.stages] == [x.mean() for x in np.split(e2e, (80, 160))]
    assert list(seeds_of(one.workload, (1, 2, 3))) == [1]
    short = first_stages(three.workload, 2)
    assert isinstance(short.source, Trace) and len(short.source.requests) == 160 and len(short.stages) == 2


def test_another_rate_moves_the_same_requests(tmp_path: Path) -> None:
    written(tmp_path, "t.csv", HEAD + ",timeout_s,e2e_ms\n0,100,3,5,9\n2,200,3,,9\n4,300,3,5,9\n")
    w = experiment(tmp_path, {"trace": "t.csv"}).workload
    twice = at_rate(w, 1.0)  # 3 requests in 6 s are 0.5 a second
    assert isinstance(twice.source, Trace) and isinstance(w.source, Trace)
    r = twice.source.requests
    assert r.arrival_us.tolist() == [0, 1_000_000, 2_000_000] and r.deadline_us.tolist() == [5_000_000, 0, 7_000_000]
    assert twice.stages == (Stage(1.0, 3.0),) and twice.source.recorded is None and twice.source != w.source
    assert slowed(twice.source, 2.0).requests.arrival_us.tolist() == w.source.requests.arrival_us.tolist()
    assert r.input_len is w.source.requests.input_len
