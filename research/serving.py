"""`python -m research serving`: public closed-loop runs of many GPUs and precisions against a program, nothing fitted.

Rows are those of the folder's open.csv, the models' configurations those of its model_configs.json.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np

from evaluator.score import predictions, score_set
from evolve.output.columns import figures, words, wrapped
from evolve.output.printing import show
from evolve.output.table import Table
from evolve.processes import default_workers
from evolve.run.program import load
from simulator.common.errors import InputError
from simulator.common.json import JsonObject
from simulator.language.ir import Program
from simulator.model.quantization import with_quant_file
from simulator.serving.experiment import Experiment, deploy
from simulator.serving.spec import read_spec

FLAGS = ("block_size", "cudagraph_capture_max", "max_num_batched_tokens", "max_num_seqs", "stream_interval")
SWITCHES = {"on": True, "off": False}
MEASURED = "InferenceX"  # the origin whose loads are known
SEED = 1
Group = tuple[str, str, str, str]  # model, GPU, weights and doubt


@dataclass(frozen=True)
class ServingRow:
    """A measured run: its experiment, or why no engine here runs it. Means in ms."""

    id: str
    model: str
    gpu: str
    weights: str
    doubt: str
    ttft_ms: float
    tpot_ms: float
    experiment: Experiment | None
    missing: str = ""


@dataclass(frozen=True)
class ServingError:
    """The signed errors of a row in percent, None where it was not replayed."""

    row: ServingRow
    ttft_pct: float | None
    tpot_pct: float | None


def rows_of(folder: Path) -> list[ServingRow]:
    """The rows whose load is known."""
    configs = json.loads((folder / "model_configs.json").read_text())
    with (folder / "open.csv").open() as file:
        return [_row(raw, configs) for raw in csv.DictReader(file) if raw["origin"].startswith(MEASURED)]


def _row(raw: Mapping[str, str], configs: Mapping[str, JsonObject]) -> ServingRow:
    experiment, missing = None, ""
    try:
        experiment = deploy(read_spec(entry_of(raw, configs), raw["id"]))
    except InputError as e:
        missing = str(e).removeprefix(f"{raw['id']}: ")
    means = float(raw["ttft_ms_mean"]), float(raw["tpot_ms_mean"])
    return ServingRow(raw["id"], raw["model"], raw["gpu"], raw["weights"], raw["doubt"], *means, experiment, missing)


def entry_of(raw: Mapping[str, str], configs: Mapping[str, JsonObject]) -> JsonObject:
    """The run as an entry of an experiments file. Empty settings are vLLM's own of that version and GPU.

    Of rows with attention_dp, the ranks share the GPUs that tp counts, with whole experts spread over all of these.
    """
    files = configs.get(f"{raw['model']} ({raw['weights']})") or configs[raw["model"]]
    config = with_quant_file(files["config.json"], files.get("hf_quant_config.json", {}))
    gpus, ranks = int(raw["tp"]), int(raw["attention_dp"])
    engine: JsonObject = {
        "tensor_parallel": gpus // ranks,
        **({"data_parallel": ranks} if ranks > 1 else {}),
        **({"expert_parallel": gpus} if gpus > 1 and _spread(raw) else {}),
        "gpu_memory_utilization": float(raw["gpu_memory_utilization"] or 0.9),
    }
    engine |= {key: int(raw[key]) for key in FLAGS if raw[key]}
    engine |= {key: raw[key].lower() for key in ("cudagraph_mode", "kv_cache_dtype") if raw[key] not in ("", "default")}
    switches = ("async_scheduling", "allreduce_rms_fusion", "prefix_caching")
    engine |= {key: SWITCHES[raw[key]] for key in switches if raw[key] in SWITCHES}
    if raw["version"][:1].isdigit():
        engine["version"] = raw["version"]
    lengths = {key: int(raw[name]) for key, name in (("prompt_len", "input_len"), ("output_len", "output_len"))}
    workload = {
        "name": f"{raw['input_len']}-{raw['output_len']}",
        "concurrency": int(raw["concurrency"]),
        "requests": int(raw["requests"]),
        "warmup_requests": int(raw["warmup_requests"]),
        **{key: {"uniform": {"min": int(0.8 * most), "max": most}} for key, most in lengths.items()},
    }
    about = {"id": raw["id"], "model": raw["model"], "model_config": config, "hardware": raw["gpu"]}
    return {**about, "engine": engine, "workload": workload}


def _spread(raw: Mapping[str, str]) -> bool:
    """True if experts are spread over the GPUs: MiniMax in fp8 is launched so at every degree, because blocks of 128
    weights do not divide an eighth of its experts' 1,536 columns."""
    return int(raw["moe_ep"] or 1) > 1 or ("MiniMax" in raw["model"] and raw["weights"] == "fp8")


def errors_of(program: Program, rows: Sequence[ServingRow], workers: int) -> list[ServingError]:
    """The errors of every row, one replay each."""
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(_error, [program] * len(rows), rows, chunksize=4))


def _error(program: Program, row: ServingRow) -> ServingError:
    if row.experiment is None:
        return ServingError(row, None, None)
    try:
        run = predictions(program, score_set([row.experiment], [SEED]))[0].predicted.summary
    except InputError as e:
        return ServingError(replace(row, experiment=None, missing=str(e)), None, None)
    if run is None or run.ttft_ms.mean is None or run.itl_ms.mean is None:
        return ServingError(row, None, None)
    return ServingError(
        row, 100.0 * (run.ttft_ms.mean / row.ttft_ms - 1.0), 100.0 * (run.itl_ms.mean / row.tpot_ms - 1.0)
    )


def table_of(errors: Sequence[ServingError], name: str) -> Table:
    """Mean absolute and signed errors by model, GPU and weights, rows of doubt apart."""
    groups: dict[Group, list[ServingError]] = defaultdict(list)
    for e in errors:
        groups[e.row.model, e.row.gpu, e.row.weights, e.row.doubt].append(e)
    sure = [e for e in errors if not e.row.doubt]
    rows = [_cells(("all without doubt", "", "", ""), sure)]
    rows += [_cells(group, of_group) for group, of_group in sorted(groups.items(), key=lambda g: (bool(g[0][3]), g[0]))]
    heads = ("rows", "replayed"), ("TPOT", "TPOT, signed", "TTFT", "TTFT, signed")
    columns = [words("model", "GPU", "weights"), figures("d", *heads[0]), figures("+.1f", *heads[1])]
    title = f"Errors of {name}, nothing fitted, mean absolute and signed, percent"
    return Table.of(title, [*columns, wrapped("not replayed"), wrapped("doubt")], rows)


def _cells(group: Group, errors: Sequence[ServingError]) -> list[object]:
    model, gpu, weights, doubt = group
    known = np.array([(e.tpot_pct, e.ttft_pct) for e in errors if e.tpot_pct is not None and e.ttft_pct is not None])
    means: list[float | None] = [None] * 4
    if len(known):
        absolute, signed = np.abs(known).mean(axis=0), known.mean(axis=0)
        means = [absolute[0], signed[0], absolute[1], signed[1]]
    missing = ", ".join(dict.fromkeys(e.row.missing for e in errors if e.row.missing))
    return [model.split("/")[-1], gpu.split("-")[0], weights, len(errors), len(known), *means, missing, doubt]


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--program", default="champion", show_default=True, help="Program that predicts.")
def serving(folder: Path, program: str) -> int:
    """Predict public closed-loop runs of many GPUs and precisions, and compare.

    FOLDER has open.csv, a row for each run with its settings, and model_configs.json. Nothing is fitted.
    """
    source = load(program)
    show(table_of(errors_of(source.complete, rows_of(folder), default_workers()), source.name))
    return 0
