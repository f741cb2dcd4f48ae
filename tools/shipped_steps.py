"""How configs/steps_h100.parquet was made: the steps of the public step table that measure cycles.

    python tools/shipped_steps.py TABLE [OUT]

TABLE holds all sampled steps. Kept are those next to another sampled step, because a cycle needs both; the split is that
of all sampled steps, times count from the first step of a run, and batches are left empty: summaries give them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from evolve.calibrate.steps.sources import TableRun, sources
from evolve.calibrate.steps.table import INGESTED, SUMMARY
from evolve.ingest.derive.steps import temporal_split
from simulator.schema import RAW

ABOUT = {
    "source": "inference-sim/training, default_args/: vLLM 0.15.1 on H100, step.BATCH_SUMMARY of the runs named",
    "kept": "sampled steps next to another sampled step",
    "split": "of all sampled steps of the run, by time: 60, 20 and 20 %",
    "ts_start_ns": "from the run's first sampled step",
}


def thinned(run: TableRun) -> pa.Table:
    """The rows of a run whose step before or after was sampled too, under the names of `evolve ingest`."""
    steps = run.steps
    at = np.flatnonzero(steps.sampled)
    ids = steps.step_id[at]
    near = np.isin(ids + 1, ids) | np.isin(ids - 1, ids)
    kept = at[near]
    n = len(kept)
    columns: dict[str, pa.Array] = {
        "experiment": pa.array([run.experiment.id] * n),
        "step_id": pa.array(steps.step_id[kept]),
        "start_ns": pa.array(steps.start_ns[kept] - steps.start_ns[at[0]]),
        "duration_us": pa.array(steps.figures["duration_us"][kept].astype(np.int64)),
        **{name: pa.array(steps.figures[name][kept].astype(np.int64)) for name in SUMMARY},
        "sampled": pa.array([True] * n),
        "asynchronous": pa.nulls(n, pa.bool_()),  # the source does not say, so neither do we
        "split": pa.array(temporal_split(ids)[near]),
        "evidence": pa.nulls(n, pa.string()),
        **{f"b.{name}": pa.nulls(n, pa.float64()) for name in RAW},
    }
    return pa.table({INGESTED[name]: columns[name] for name in INGESTED})


def write(table: Path, out: Path) -> None:
    """Write the thinned runs of `table` to `out`."""
    runs = sources([table], None, (), False).runs
    whole = pa.concat_tables([thinned(run) for run in runs])
    pq.write_table(whole.replace_schema_metadata(ABOUT), out, compression="zstd", compression_level=19)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "configs/steps_h100.parquet"))
