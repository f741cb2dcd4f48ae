"""docs/kv-sizing.md: its counts are those of the formulas it names, for the models of the bundled runs."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from paths import ROOT

from simulator.serving.bundled import bundled_experiments
from simulator.serving.experiment import Experiment
from simulator.serving.known import facts_of

GIB = 2**30
PAGE = (ROOT / "docs" / "kv-sizing.md").read_text("utf-8")
ROWS = [
    [cell.strip().replace(",", "") for cell in line.strip("| ").split("|")]
    for line in PAGE.splitlines()
    if re.match(r"\| \S+/\S+ \|", line)
]
RUNS: dict[str, Experiment] = {e.model: e for e in reversed(bundled_experiments())}  # any run of a model: one TP each


def of_host(e: Experiment, *, corrected: bool) -> int:
    """Blocks by the host's formula, in the page's words: free bytes of all GPUs over a block's bytes on one, or on all.

    Two bytes per weight: embedding, output projection, four attention matrices, three of each MLP or expert, router,
    and norms.
    """
    f = {name: int(value) for name, value in e.facts.items() if value.is_integer()}
    d, kv = f["hidden"], f["kv_heads"] * f["head_dim"]
    mlp = 3 * d * f["ffn"]
    if f["is_moe"]:
        mlp = f["experts"] * (3 * d * f["moe_ffn"] + d)
    layer = d * (d + 2 * kv) + d * d + mlp + 2 * d
    weights = 2 * (2 * f["vocab"] * d + f["layers"] * layer + d)
    tp = f["tp"]
    used_gib = (8.0 if f["is_moe"] else 5.5) + (0.15 if tp == 1 else 0.6 * tp)
    free = (80 * e.engine.gpu_memory_utilization * tp - used_gib) * GIB - weights
    one_gpu = f["layers"] * 2 * kv * 2 * f["block_size"] / tp
    return int(free / (one_gpu * tp if corrected else one_gpu))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row[0]))
def test_counts_of_blocks(row: list[str]) -> None:
    model, tp, observed, ours, host, ratio, corrected = row
    e = RUNS[model]
    assert int(tp) == e.facts["tp"]
    assert observed == str(e.engine.total_kv_blocks or "-")
    assert int(ours) == facts_of(e.model, e.hardware, replace(e.engine, total_kv_blocks=None))["kv_blocks"]
    assert int(host) == of_host(e, corrected=False) and int(corrected) == of_host(e, corrected=True)
    assert float(ratio) == pytest.approx(int(host) / int(ours if observed == "-" else observed), abs=0.005)


def test_all_models_but_one_are_there() -> None:
    left_out = RUNS.keys() - {row[0] for row in ROWS}
    assert [name for name in left_out if "Llama-4-Scout" not in name] == []
