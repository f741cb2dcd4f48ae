"""`evolve fit --score-steps`: which batch a measured time belongs to, the figures, and how bad tables are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import Capsys, as_json, flat, printed, refused
from paths import SHARED
from step_tables import (
    PROGRAM,
    as_summaries,
    decoding,
    experiment,
    experiments_file,
    ingested_rows,
    law_us,
    unsampled,
    write,
)

from evolve.calibrate.steps.estimate import Summary, estimate
from evolve.calibrate.steps.sources import sources
from evolve.calibrate.steps.targets import cycle_targets
from simulator.clock.fields import Active, raw_fields
from simulator.schema import RECORDED
from simulator.serving.bundled import STEPS, load_experiments

SCORE = "fit", "--score-steps"
DECODES = [4, 9, 9, 30, 2, 17, 40, 8, 33, 12, 5, 21]
REAL = SHARED / "data" / "steps" / "vllm_0_15_1_h100_steps.parquet"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "p.py").write_text(PROGRAM)
    experiments_file(tmp_path / "e.yaml", experiment(), experiment("other", source_run="20260101-plan"))
    return tmp_path


def command(files: Path, table: Path, *more: object) -> tuple[object, ...]:
    return *SCORE, files / "p.py", "--steps", table, "--experiments", files / "e.yaml", *more


def scored(capsys: Capsys, *args: object) -> Any:
    return as_json(capsys, *args)


def count(result: Any, group: str) -> dict[str, int]:
    return {name: figures["steps"] for name, figures in result[f"by_{group}"].items()}


def wrong(predicted: list[int], measured: list[int]) -> tuple[float, float]:
    """Mean absolute error and bias in percent of the law on the wrong batches."""
    errors = [law_us(p) / law_us(m) - 1 for p, m in zip(predicted, measured, strict=True)]
    return 100 * sum(map(abs, errors)) / len(errors), 100 * sum(errors) / len(errors)


def test_the_law_of_the_cycles_has_no_error(files: Path, capsys: Capsys) -> None:
    rows = ingested_rows(DECODES, asynchronous=True)
    rows[0] = unsampled(rows[0])  # known from journeys only, and measured by the first cycle
    result = scored(capsys, *command(files, write(files / "s.parquet", rows)))
    (e,) = result["experiments"]
    assert (e["rows"], e["sampled"], e["candidates"], e["usable"], e["dropped"]) == (12, 11, 10, 10, {})
    for part in (e["all"], result["overall"]["all"]):
        assert part["steps"] == 10 and part["pearson_r"] == pytest.approx(1.0)
        assert part["mape_pct"] == pytest.approx(0.0, abs=1e-9) and part["bias_pct"] == pytest.approx(0.0, abs=1e-9)
        assert part["mean_predicted_us"] == pytest.approx(np.mean([law_us(n) for n in DECODES[:-2]]))
    assert count(e, "batch") == {"own batch": 10}
    assert count(e, "load") == {"1-8": 3, "9-32": 5, "33-64": 2}
    assert count(e, "evidence") == {"exact": 10} and result["seeds"] == [] and len(result["data"]) == 16
    assert e["steps"] == {"train": [*range(1, 8)], "valid": [8, 9], "test": [10, 11]}


def test_under_async_scheduling_the_cycle_is_of_the_step_before(files: Path, capsys: Capsys) -> None:
    ahead = write(files / "a.parquet", ingested_rows([3, *DECODES], asynchronous=True, first=10))
    own, measured = DECODES[:-1], [3, *DECODES[:-2]]  # of the pairs from step 11 on
    result = scored(capsys, *command(files, ahead, "--sync"))["overall"]["all"]
    mape, bias = wrong([3, *own], [3, *measured])
    assert (result["mape_pct"], result["bias_pct"]) == (pytest.approx(mape), pytest.approx(bias)) and mape > 20
    assert result["pearson_r"] == pytest.approx(np.corrcoef([3, *own], [3, *measured])[0, 1])
    at_once = write(files / "s.parquet", ingested_rows(DECODES, asynchronous=False))
    result = scored(capsys, *command(files, at_once))
    assert result["overall"]["all"]["mape_pct"] == pytest.approx(0.0, abs=1e-9) and not result["assumed"]
    assert not result["experiments"][0]["asynchronous"]


def test_a_neighbour_of_an_unknown_batch_is_scored_apart(files: Path, capsys: Capsys) -> None:
    rows = ingested_rows([3, *DECODES], asynchronous=True)
    kept = [rows[i] for i in (1, 2, 3, 6, 7)]  # pairs 1, 2 and 6; the steps before 1 and 6 are in no row
    kept.append(unsampled(rows[8]) | {"decode_reqs": None})  # no batch either
    args = command(files, write(files / "s.parquet", kept))
    result = scored(capsys, *args)["overall"]
    n = [3, *DECODES]
    mape, bias = wrong([n[1], n[6]], [n[0], n[5]])
    stand_in, own = result["by_batch"]["neighbour's batch"], result["by_batch"]["own batch"]
    assert (stand_in["steps"], own["steps"]) == (2, 1)
    assert (stand_in["mape_pct"], stand_in["bias_pct"]) == (pytest.approx(mape), pytest.approx(bias))
    assert own["mape_pct"] == pytest.approx(0.0, abs=1e-9)
    assert result["all"]["mape_pct"] == pytest.approx(mape * 2 / 3)
    assert "2 cycles measure a step whose batch is not known" in printed(capsys, *args)


def test_phases_and_splits_are_told_apart(files: Path, capsys: Capsys) -> None:
    rows = ingested_rows([5] * 10, asynchronous=False)
    rows[2] |= raw_fields([Active(100, 0, 100), *decoding(5)])
    rows[3] |= raw_fields([Active(100, 0, 50), Active(100, 50, 50)])
    result = scored(capsys, *command(files, write(files / "s.parquet", rows)))["overall"]
    assert count(result, "phase") == {"pure decode": 7, "mixed with prefill": 1, "prefill only": 1}
    assert result["by_phase"]["prefill only"]["bias_pct"] == pytest.approx(100 * (5000 / 5500 - 1))
    assert result["by_phase"]["prefill only"]["pearson_r"] is None  # of one step
    assert count(result, "split") == {"train": 6, "valid": 2, "test": 1}
    only = scored(capsys, *command(files, files / "s.parquet", "--part", "valid"))
    assert only["overall"]["all"]["steps"] == 2 and list(only["overall"]["by_split"]) == ["valid"]
    for row in rows:  # a split in the table is kept
        row["split"] = "test" if row["step_id"] < 3 else "train"
    result = scored(capsys, *command(files, write(files / "t.parquet", rows)))["experiments"][0]
    assert result["steps"] == {"train": [*range(3, 10)], "valid": [], "test": [0, 1, 2]}


def test_duration_is_the_time_of_schedule_on_the_same_step(files: Path, capsys: Capsys) -> None:
    rows = ingested_rows(DECODES, asynchronous=True)
    rows[1]["duration_us"], rows[2]["duration_us"] = None, 0
    rows[3] |= raw_fields([])
    args = command(files, write(files / "s.parquet", rows), "--target", "duration")
    result = scored(capsys, *args)
    (e,) = result["experiments"]
    assert e["dropped"] == {"no duration": 2, "empty step": 1} and e["usable"] == 9
    others = [law_us(n) / 200 - 1 for i, n in enumerate(DECODES) if i not in (1, 2, 3)]
    assert e["all"]["bias_pct"] == pytest.approx(100 * np.mean(others)) and e["all"]["mean_observed_us"] == 200
    assert "CPU time of schedule()" in result["target_is"]
    out = flat(capsys, *args, "--quiet")
    assert result["target_is"] in out and "By kind of step" not in out


def test_the_output_names_the_basis_of_its_figures(files: Path, capsys: Capsys) -> None:
    rows = ingested_rows(DECODES, asynchronous=True)
    rows[6]["running_depth"] = 0
    other = [row | {"experiment_id": "20260101-plan"} for row in as_summaries(ingested_rows(DECODES, True))]
    table = write(files / "a.parquet", rows)
    out = flat(capsys, *command(files, table), "--steps", write(files / "b.parquet", other))
    said = "all 2 runs/1 nothing running/Nothing was fitted on these steps here/--sync if not (other)"
    for words in (*said.split("/"), "Batches from summaries are estimates"):
        assert words in out, words


def test_a_folder_of_ingest_brings_its_experiments(files: Path, capsys: Capsys) -> None:
    folder = files / "ingested"
    for name in ("one", "two"):
        write(folder / name / "steps.parquet", ingested_rows(DECODES, asynchronous=False, ident=name))
    experiments_file(folder / "experiments.yaml", experiment("one"), experiment("two"))
    args = *SCORE, files / "p.py", "--steps", folder
    result = scored(capsys, *args)
    assert [e["id"] for e in result["experiments"]] == ["one", "two"] and result["overall"]["all"]["steps"] == 22
    assert [e["id"] for e in scored(capsys, *args, "--id", "two")["experiments"]] == ["two"]
    assert "there are one, two" in refused(capsys, *args, "--id", "three")
    whole = folder / "experiments.yaml"
    assert "were in" in refused(capsys, *args, "--steps", folder / "one" / "steps.parquet", "--experiments", whole)
    whole.unlink()
    assert "has no experiments.yaml" in refused(capsys, *args)


def summarised(**changes: int) -> Summary:
    usual = dict.fromkeys(("decode_reqs", "decode_tokens", "running"), 10)
    return Summary(**{**usual, "prefill_reqs": 0, "prefill_tokens": 0, "blocks": 110, **changes})


def test_a_batch_of_a_summary_is_what_its_assumptions_say(files: Path) -> None:
    """By hand: prompts of 264, 16 whole blocks of them, 64 tokens shared in 3 groups; 6 prompts; blocks of 16."""
    e = load_experiments(files / "e.yaml")[0]
    batch, moved = estimate(summarised(), e, True)
    # 1760 in blocks, less 8 a request; 7 requests do not hold the system prompt themselves, 4 nothing of the prompt
    kv = 110 * 16 - 80 + 7 * 64 + 4 * (256 - 64)
    assert kv == 2896 and not moved
    assert sum(r.progress for r in batch) == pytest.approx(kv, abs=5) and all(r.new == 1 for r in batch)
    progress = [r.progress for r in batch]
    assert min(progress) >= 264 and max(progress) <= 264 + 2 * 25.6 and np.ptp(progress) > 40
    # too many blocks for answers of 120 tokens
    batch, moved = estimate(summarised(blocks=10_000), e, True)
    assert moved and {r.progress for r in batch} == {264 + 118}
    # under async scheduling half of the prefills are first decodes, all of them with a token each
    for asynchronous, tokens, chunks, firsts in (True, 40, [20, 19], 1), (False, 40, [14, 13, 13], 0), (True, 3, [], 3):
        batch, _ = estimate(summarised(prefill_reqs=3, prefill_tokens=tokens, running=13, blocks=150), e, asynchronous)
        prefills = [r for r in batch if r.progress < r.input_len]
        assert [r.new for r in prefills] == chunks and all(r.progress == 0 for r in prefills)
        assert len(batch) == 13 and sum(r.progress == 264 for r in batch) == firsts
    # a preempted request computes 100 tokens again, and its next one
    batch, _ = estimate(summarised(decode_tokens=110), e, True)
    assert [r.new for r in batch if r.progress == 0] == [101] and len(batch) == 10


def test_summaries_without_journeys_are_estimated(files: Path, capsys: Capsys) -> None:
    rows = as_summaries(ingested_rows([3, *DECODES], asynchronous=True))
    rows[5]["kv.blocks_free_gpu"] = None  # its batch is unknown: the next one's is used
    rows[7]["batch.num_decode_reqs"] = -1  # nor this one's
    for row in rows:
        del row["experiment_id"]
    table = write(files / "s.parquet", rows)
    result = scored(capsys, *command(files, table, "--id", "plan"))
    (e,) = result["experiments"]
    assert count(e, "evidence") == {"estimated": 12} and e["asynchronous"]
    assert count(e, "batch") == {"own batch": 9, "neighbour's batch": 3}
    off = e["by_batch"]["own batch"]["mape_pct"]
    assert off == pytest.approx(0.0, abs=1e-9)  # the law depends on the decodes alone
    assert any("estimates" in text for text in result["assumed"])
    assert "name one experiment" in refused(capsys, *command(files, table))


def test_an_ingested_table_without_batches_is_estimated_from_its_summaries(files: Path, capsys: Capsys) -> None:
    rows = ingested_rows([3, *DECODES], asynchronous=True)
    bare = [row | dict.fromkeys((*RECORDED, "evidence")) for row in rows]
    result = scored(capsys, *command(files, write(files / "s.parquet", bare)))["experiments"][0]
    same = scored(capsys, *command(files, write(files / "t.parquet", as_summaries(rows))))["experiments"][0]
    assert count(result, "evidence") == {"estimated": 12} and result["all"] == same["all"]
    one = [*rows[:5], bare[5], *rows[6:]]
    result = scored(capsys, *command(files, write(files / "u.parquet", one)))["experiments"][0]
    assert count(result, "evidence") == {"exact": 11, "estimated": 1}


def test_damaged_rows_are_mended_and_counted(files: Path, capsys: Capsys) -> None:
    rows = ingested_rows(DECODES, asynchronous=False)
    clean = scored(capsys, *command(files, write(files / "s.parquet", rows)))["experiments"][0]
    hostile = [*rows[6:], *rows[:6], rows[3] | {"ts_start_ns": 7}, rows[0] | {"step_id": None}]
    result = scored(capsys, *command(files, write(files / "h.parquet", hostile)))["experiments"][0]
    counts = {"without a step id": 1, "of a step id that was there before": 1, "out of order": 2}
    assert result["mended"] == {f"rows {kind}": n for kind, n in counts.items()}
    assert result["all"] == clean["all"] and result["steps_digest"] == clean["steps_digest"] and not clean["mended"]
    rows[4]["ts_start_ns"] = None
    rows[8]["kv_var"] = float("inf")
    rows[9]["kv_sum"] = -1.0
    result = scored(capsys, *command(files, write(files / "n.parquet", rows)))["experiments"][0]
    assert result["mended"] == {"sampled steps without a start": 1, "batches of impossible figures": 2}
    assert result["candidates"] == 9 and count(result, "evidence") == {"exact": 7, "estimated": 2}


ROWS = ingested_rows(DECODES, asynchronous=True)
NO_TABLES: dict[str, list[dict[str, Any]]] = {
    "needs a column step_id": [{"x": 1}],
    "column kv_sum is missing": [{k: v for k, v in row.items() if k != "kv_sum"} for row in ROWS],
    "column step_id holds string": [row | {"step_id": str(row["step_id"])} for row in ROWS],
    "column kv_sum holds list<": [row | {"kv_sum": [1.0]} for row in ROWS],
    "both true and false": [row | {"async_scheduling": row["step_id"] < 5} for row in ROWS],
    "elsewhere: 12 steps of no experiment": [row | {"experiment": "elsewhere"} for row in ROWS],
    "no two consecutive steps": [row | {"sampled": False} for row in ROWS],
    "no two consecutive": ROWS[::2],
    "no usable step": [row | {"running_depth": 0} for row in ROWS],
}


@pytest.mark.parametrize("words", NO_TABLES)
def test_tables_without_usable_steps_are_refused(words: str, files: Path, capsys: Capsys) -> None:
    assert words in refused(capsys, *command(files, write(files / "t.parquet", NO_TABLES[words])))


def test_damaged_files_are_refused(files: Path, capsys: Capsys) -> None:
    table = write(files / "s.parquet", ROWS)
    whole = table.read_bytes()
    torn = whole[:40] + bytes(len(whole) // 2) + whole[40 + len(whole) // 2 :]
    (files / "empty").mkdir()
    assert "*/steps.parquet" in refused(capsys, *command(files, files / "empty"))
    assert "No such file or directory" in refused(capsys, *command(files, files / "none.parquet"))
    for damaged in (b"step.id,1\n", whole[:-200], torn):
        (files / "d.parquet").write_bytes(damaged)
        assert "is not a parquet file" in refused(capsys, *command(files, files / "d.parquet"))
    pq.write_table(pa.Table.from_pylist(ROWS).slice(0, 0), files / "j.parquet")
    assert "holds no step" in refused(capsys, *command(files, files / "j.parquet"))
    (files / "p.py").write_text("def step_time(b, s, *, a: us = 1e300):\n    return a * s.layers * s.vocab * s.vocab\n")
    assert "not finite on step 0 of plan" in refused(capsys, *command(files, table))
    (files / "p.py").write_text(PROGRAM)
    experiments_file(files / "e.yaml", experiment("a", source_run="r"), experiment("b", source_run="r"))
    assert "source_run 'r' is also that of 'a'" in refused(capsys, *command(files, table))


def test_the_real_steps_hold_the_tokens_of_their_runs(capsys: Capsys) -> None:
    """Prompts of 575 and 592 tokens with half of 248 and 247 generated (configs/experiments_h100.yaml): 699 and 715."""
    by_id = {run.experiment.id: cycle_targets(run) for run in sources([Path(STEPS)], None, (), False).runs}
    for ident, tokens in (("llama-2-70b-tp4-general", 699), ("llama-2-70b-tp4-codegen", 715)):
        raw = by_id[ident].raw
        decodes = raw[:, 0] == 0
        assert raw[decodes, 5].sum() / raw[decodes, 1].sum() == pytest.approx(tokens, rel=0.02)
    result = scored(capsys, *SCORE)
    steps = {"llama-2-70b-tp4-general": 593, "llama-2-70b-tp4-codegen": 658, "codellama-34b-tp2-general": 716}
    assert {e["id"]: e["all"]["steps"] for e in result["experiments"]} == steps
    own, stand_in = (result["overall"]["by_batch"][name] for name in ("own batch", "neighbour's batch"))
    assert own["mape_pct"] < 3 and own["pearson_r"] > 0.9 and own["mape_pct"] < stand_in["mape_pct"] < 5
    assert result["fitted"]["steps_of"] == [] and len(result["fitted"]["means_of"]) == 3


def test_the_shipped_steps_are_the_public_ones_that_measure_cycles() -> None:
    if not REAL.exists():
        pytest.skip("../shared absent: no real steps")
    shipped, whole = ([cycle_targets(run) for run in sources([p], None, (), False).runs] for p in (Path(STEPS), REAL))
    for ours, theirs in zip(shipped, whole, strict=True):
        assert ours.run.experiment.id == theirs.run.experiment.id
        for name in ("step", "observed_us", "raw", "batch", "split"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), name)
