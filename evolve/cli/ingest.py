"""The command `ingest`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from evolve import __version__
from evolve.cli.endings import print_json, resumable
from evolve.cli.options import engine_option, explain_option, explaining, two_files
from evolve.ingest import batch
from evolve.ingest.options import Given, check_hardware, parse_models
from evolve.ingest.output import data_of
from evolve.ingest.read.sources import find
from evolve.ingest.read.values import plain
from evolve.ingest.trace import convert
from evolve.ingest.trace_source import of_files, of_recordings
from evolve.ingest.view import print_converted, print_runs, watching
from evolve.processes import default_workers
from simulator.common.errors import InputError
from simulator.serving.engine import Setting
from simulator.serving.traces.formats import NAMES


@click.command()
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path), metavar="FOLDER...")
@click.option(
    "--trace",
    "traces",
    metavar="FILE",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Instead of folders: recorded requests as CSV or parquet, or a file of "
    f"{', '.join(NAMES[:-1])} or {NAMES[-1]} (repeatable, or give several files).",
)
@click.option(
    "--tracev2",
    "recordings",
    nargs=2,
    metavar="HEADER DATA",
    multiple=True,
    type=click.Path(path_type=Path),
    callback=two_files,
    help="Instead of folders: a trace that the host observed, YAML and CSV (repeatable).",
)
@click.option(
    "--model",
    metavar="MODEL",
    help="With --trace: the model [default: a known one in a benchmark's file]. With --tracev2: replaces the header's.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for experiments.yaml and tables.")
@click.option("--hardware", metavar="GPU", help="GPU, e.g. H100-SXM-80GB, if no manifest names it.")
@engine_option("Engine setting that no file gives, e.g. version=0.15.1 (repeatable).")
@click.option(
    "--model-config",
    "models",
    metavar="MODEL=FILE",
    multiple=True,
    help="config.json of a model that `evolve list` does not have (repeatable).",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Folders to read in parallel [default: one per core, as memory allows].",
)
@click.option("--json", "as_json", is_flag=True, help="Print the quality report of every folder as JSON.")
@click.option("--quiet", is_flag=True, help="No progress.")
@explain_option
def ingest(
    folders: tuple[Path, ...],
    traces: tuple[Path, ...],
    recordings: tuple[tuple[Path, Path], ...],
    model: str | None,
    out: Path,
    hardware: str | None,
    settings: Mapping[str, Setting],
    models: tuple[str, ...],
    workers: int | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Make experiments from vLLM traces and load-generator reports.

    The command reads traces.json, kv_events.jsonl, vllm.log, exp-config.yaml and profile.yaml of each folder. From its
    results/ (or inference-perf-data/) it reads config.yaml, the per-request file, the summary and the stages. The
    report lists missing files; without them the output has less. A folder of such folders is read as a whole.

    OUT gets experiments.yaml and, for every run, a folder with quality.json and the parquet tables requests, steps,
    journeys, kv_events and cycles. A second call reads only changed files, and adds new folders. A run without a
    described load is replayed request by request.

    With --trace, OUT gets a parquet table of every trace and, given --model and --hardware, traces.yaml. Your own CSV
    or parquet has arrival_s, input_len, output_len, and optionally prompt or conversation, prefix_group, prefix_len,
    stage, timeout_s, e2e_ms, ttft_ms, completed, scheduled_ms (docs/ingest.md, Recorded requests). Results of load
    generators are known by their content; one without requests becomes an experiment of its means.

    With --tracev2, the header gives the model and the engine's settings, unless options do. Latencies are the
    client's, and warm-up requests are in no figure. A trace with too many failed or waiting requests is marked
    overloaded.

    \b
    evolve ingest runs/* --out ingested --hardware H100-SXM-80GB --engine version=0.15.1
    evolve ingest mine --out ingested --hardware H100-SXM-80GB --model-config my-org/my-model=config.json
    evolve ingest --trace mooncake.jsonl --out traces --model llama-2-7b --hardware H100 --engine max_num_seqs=64
    evolve ingest --trace bench/*.json --out traces --model qwen2.5-7b --hardware H100
    evolve ingest --tracev2 header.yaml observed.csv --out traces --hardware H100 --engine total_kv_blocks=7403
    evolve fit champion --experiments ingested/experiments.yaml --out mine.py
    """
    if traces:  # a shell expands --trace *.json to one option and many arguments
        traces, folders = (*traces, *folders), ()
    if bool(folders) == bool(traces or recordings):
        raise InputError("ingest reads folders, or --trace and --tracev2 files: name one or the other")
    given = Given(hardware, settings, parse_models(models))
    if traces or recordings:
        check_hardware(hardware)
        read = [*of_files(traces, model, given)] if traces else []
        converted = convert([*read, *of_recordings(recordings, model, given)], out, given)
        if as_json:
            data = data_of(c.source.digest for c in converted)
            as_values = [c.to_json() for c in converted]
            print_json({"engine": __version__, "data": data, "seeds": [], "traces": as_values})
        else:
            print_converted(converted, out, explaining())
        return 0
    if model:
        raise InputError("--model goes with --trace or --tracev2: the files of a folder name the model")
    experiments, findings = find(folders)
    sizes = {folder.name: batch.bytes_of(folder) for folder in experiments}
    with resumable("evolve ingest ..."), watching(sizes, quiet) as watch:
        runs = batch.ingest(experiments, out, given, workers or default_workers(), watch.on_read, watch.on_done)
    reports = [run.report for run in runs]
    if as_json:
        as_values = [run.to_json() for run in runs]
        print_json({"engine": __version__, "data": data_of(r.data for r in reports), "seeds": [], "runs": as_values})
    else:
        for name in sorted(set(given.models) - {report.model for report in reports}):
            findings.note("--model-config", f"{plain(name)}: no run has this model")
        print_runs(runs, findings, out, explaining())
    return 0 if any(report.experiment or report.tables for report in reports) else 1
