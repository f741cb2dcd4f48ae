"""Cycles of sampled steps and the temporal split, on hand-made runs, the synthetic sample and real steps."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from paths import SHARED

from evolve.ingest.derive.steps import EMPTY, IDLE, LONG, SHORT, STALLED, Cycles, cycles, sampled_steps, temporal_split
from evolve.ingest.read.traces import SUMMARY, read_traces

SAMPLES = SHARED / "samples"
REAL = SHARED / "data" / "steps" / "vllm_0_15_1_h100_steps.parquet"


def of(steps: list[tuple[int, float, float, int, int]], asynchronous: bool = True) -> Cycles:
    """Of rows (step id, start in us, duration in us, running, scheduled tokens)."""
    ids, start, duration, running, tokens = (np.array(column) for column in zip(*steps, strict=True))
    return cycles(ids, (start * 1000).astype(np.int64), duration, running, tokens, asynchronous)


def test_a_cycle_measures_the_step_before_under_async_scheduling() -> None:
    steps = [(3, 0.0, 200.0, 4, 4), (4, 10_000.0, 200.0, 4, 4), (6, 31_000.0, 210.0, 4, 4), (7, 42_000.5, 200.0, 4, 4)]
    found = of(steps)
    assert found.step.tolist() == [3, 6] and found.cycle_us.tolist() == [10_000.0, 11_000.5]
    assert found.duration_us.tolist() == [200.0, 210.0] and found.measures.tolist() == [2, 5]
    assert found.usable.all() and found.why.tolist() == ["", ""]
    assert of(steps, asynchronous=False).measures.tolist() == [3, 6]


def test_unusable_cycles_have_a_reason() -> None:
    usual = [(i, i * 10_000.0, 100.0, 4, 4) for i in range(10)]

    def why(changed: dict[int, tuple[float, int, int]]) -> list[str]:
        """Of ten steps, some of them with another duration, running depth or tokens."""
        return list(of([(*row[:2], *changed.get(row[0], row[2:])) for row in usual]).why)

    assert why({}) == [""] * 9
    assert why({4: (100.0, 4, 0)}) == ["", "", "", EMPTY, EMPTY, EMPTY, "", "", ""]  # N+1, N, N-1 of these
    assert why({4: (100.0, 0, 4)}) == ["", "", "", "", IDLE, "", "", "", ""]
    assert why({4: (9_701.0, 4, 4)})[4] == SHORT and why({4: (9_700.0, 4, 4)})[4] == ""
    gap = of([(i, t + (0 if i < 5 else 41_000.0), d, r, k) for i, t, d, r, k in usual])
    assert gap.why.tolist() == ["", "", "", "", STALLED, "", "", "", ""] and gap.cycle_us[4] == 51_000.0
    assert not of(usual[:1]).step.size  # one step makes no pair


def test_long_cycles_are_compared_with_steps_of_as_many_tokens() -> None:
    """Steps 10, 11 and 12 compute whole chunks and take more than LONG decode steps each, as they do."""
    long = LONG * 10_000.0 + 10_000.0
    starts = np.concatenate([np.arange(12) * 10_000.0, 110_000.0 + long * np.arange(1, 4)])
    tokens = [2048 if i in (10, 11, 12) else 4 for i in range(15)]
    found = of([(i, float(starts[i]), 100.0, 4, tokens[i]) for i in range(15)])
    assert found.cycle_us[11:].tolist() == [long] * 3  # measure steps 10, 11, 12
    assert found.usable.all()
    tokens[11] = 4  # a decode step that took as long
    found = of([(i, float(starts[i]), 100.0, 4, tokens[i]) for i in range(15)])
    assert found.why[found.measures == 11].tolist() == [STALLED] and found.usable.sum() == 13


def test_backward_clocks_and_unknown_figures_make_no_usable_cycle() -> None:
    nan = float("nan")
    found = of([(1, 5000.0, nan, 1, 1), (2, 4000.0, nan, 1, 1), (3, 9000.0, nan, 1, 1)])
    assert found.why.tolist() == [SHORT, ""]


@pytest.mark.parametrize(
    ("n", "sizes"), [(0, (0, 0, 0)), (1, (1, 0, 0)), (5, (3, 1, 1)), (30, (18, 6, 6)), (7, (4, 1, 2))]
)
def test_the_split_follows_the_step_ids_whatever_their_order(n: int, sizes: tuple[int, int, int]) -> None:
    ids = np.arange(n)[::-1] * 3
    found = temporal_split(ids)
    assert tuple((found == name).sum() for name in ("train", "valid", "test")) == sizes
    assert found[::-1].tolist() == sorted(found, key=["train", "valid", "test"].index)


NAMES = ("step.id", "step.ts_start_ns", "step.duration_us", "queue.running_depth", "batch.scheduled_tokens")


@pytest.fixture(scope="module")
def sampled() -> dict[str, np.ndarray]:
    """The synthetic sample's sampled steps by attribute, sorted."""
    file = SAMPLES / "20260101-000000-tiny-llama-tp1-general" / "traces.json"
    if not file.exists():
        pytest.skip("../shared absent: no sample of traces")
    steps = sampled_steps(read_traces(file, lambda _: None).steps, Counter())
    return {attribute: steps[column] for column, attribute in SUMMARY.items()}


def test_the_sample_has_its_expected_cycles_and_split(sampled: dict[str, np.ndarray]) -> None:
    expected = json.loads((SAMPLES / "expected.json").read_text())
    s = sampled
    found = cycles(*(s[name] for name in NAMES), True)
    pairs = expected["cycle_time_pairs"]
    assert found.step.tolist() == [p["step_id"] for p in pairs] and len(pairs) == 14
    np.testing.assert_allclose(found.cycle_us, [p["cycle_us"] for p in pairs], atol=1e-3)
    assert found.duration_us.tolist() == [p["duration_us"] for p in pairs]
    previous = np.array([p["true_exec_us_previous_step"] for p in pairs])
    assert np.abs(found.cycle_us - previous).max() < 10
    assert found.why.tolist() == [""] * 13 + [EMPTY]  # step 60 came with nothing left to run
    split = temporal_split(s["step.id"])
    for name, ids in expected["temporal_split"].items():
        assert s["step.id"][split == name].tolist() == ids


def test_the_real_steps_have_the_counted_cycles() -> None:
    """Counts and means found independently when the data were looked at first (design notes, findings 4)."""
    if not REAL.exists():
        pytest.skip("../shared absent: no real steps")
    import pyarrow.parquet as pq

    table = pq.read_table(REAL).sort_by("step.id").to_pydict()
    runs = np.array(table["experiment_id"])
    for run, pairs, mean in (
        ("20260217-202857-llama-2-70b-tp4-general", 593, 20059.5),
        ("20260217-203421-llama-2-70b-hf-tp4-codegen", 658, 18077.0),
        ("20260218-150304-codellama-34b-tp2-general", 716, 15740.9),
    ):
        s = {name: np.array(table[name])[runs == run] for name in table if "." in name}
        found = cycles(*(s[name] for name in NAMES), True)
        assert len(found.step) == pairs and found.cycle_us.mean() == pytest.approx(mean, abs=0.05)
        assert found.usable.mean() > 0.99
