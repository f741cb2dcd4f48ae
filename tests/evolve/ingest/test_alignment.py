"""The schema's sources of fields are the attributes, files and options that ingest reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from trace_engine import simulate
from trace_files import write

from evolve.ingest.columns import NONE
from evolve.ingest.read.settings import ENGINE_KEYS
from evolve.ingest.read.traces import ATTRIBUTES, SUMMARY, Traces, read_traces
from evolve.ingest.write.schema import COLUMNS
from simulator.schema import FIELDS, RAW, SPECIAL
from simulator.serving.engine import SETTINGS

FILES = ("config.json", "generation_config.json", "vllm.log", "--hardware")
SOURCES = {f"{f.scope}.{f.name}": f.learned_from.split(", ") for f in FIELDS.values() if f.learned_from}
NAMED = sorted({name for names in SOURCES.values() for name in names if name in ATTRIBUTES})


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("run") / "20260102-000000-tiny-llama-tp1-general"
    write(simulate(1, requests=30), folder)
    return (folder / "traces.json").read_text()


def numbers(t: Traces) -> dict[str, np.ndarray]:
    """Every column of numbers that is read, by table and name."""
    tables = {"journeys": t.journey_events, "steps": t.steps, "snapshots": t.snapshots}
    return {f"{table}.{name}": column for table, columns in tables.items() for name, column in columns.items()}


def known(column: np.ndarray) -> bool:
    return bool((~np.isnan(column) if column.dtype == float else column != NONE).any())


def read(text: str, folder: Path) -> dict[str, np.ndarray]:
    (folder / "traces.json").write_text(text)
    return numbers(read_traces(folder / "traces.json", lambda _: None))


def test_every_source_is_an_attribute_a_file_or_an_option() -> None:
    for field, names in SOURCES.items():
        for name in names:
            first, _, key = name.partition(" ")
            if first == "exp-config.yaml":
                assert ENGINE_KEYS[key] == {"s.tp": "tensor_parallel"}.get(field, field.removeprefix("s."))
            elif first == "--engine":
                several = (
                    "cudagraph_mode",
                    "data_parallel",
                    "expert_parallel",
                    "pipeline_parallel",
                    "num_speculative_tokens",
                )
                assert key in SETTINGS and (f"s.{key}" == field or key in several or field == "s.schedule_us")
            else:
                assert name in ATTRIBUTES or name in FILES, f"{field}: {name}"


def test_every_field_of_a_batch_is_learned_or_computed() -> None:
    """A sum that no formula gives must be seen in a server; everything else follows from those."""
    for (scope, name), f in FIELDS.items():
        if scope == "b":
            computed = f.formula is not None or bool(f.curve) or name in SPECIAL
            assert computed or f.learned_from, name
            assert (name in RAW) <= (name in {c.name for c in COLUMNS["steps"]})
    counts = ("prefill_reqs", "decode_reqs", "prefill_tokens", "decode_tokens")
    assert {n: FIELDS["b", n].learned_from for n in counts} == {n: SUMMARY[f"summary_{n}"] for n in counts}
    assert FIELDS["b", "tokens"].learned_from == SUMMARY["summary_scheduled_tokens"]
    assert FIELDS["s", "kv_blocks"].learned_from == SUMMARY["kv_blocks_total"]


@pytest.mark.parametrize("attribute", NAMED)
def test_an_attribute_that_a_field_is_learned_from_is_read(attribute: str, traces: str, tmp_path: Path) -> None:
    """Under another name in the file it is missing from exactly one kind of column."""
    whole, without = read(traces, tmp_path), read(traces.replace(f'"{attribute}"', '"renamed"'), tmp_path)
    lost = [name for name, column in whole.items() if known(column) and not known(without[name])]
    assert len(lost) == 1, (attribute, lost)
