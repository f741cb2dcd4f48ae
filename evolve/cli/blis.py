"""The command `evolve-blis`: it takes the command line of the host's `blis run` for a scenario, so that the host's own
scorer scores a program of ours: `metricscore -blis .venv/bin/evolve-blis`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click
import numpy as np

from evaluator.host_scorer import in_completion_order
from evaluator.host_summary import aggregate
from evolve.cli.entry import main
from evolve.cli.values import StrictGroup
from evolve.host.scenario import experiment_of, read_load, read_scenario, replayed
from evolve.output.files import check_writable, save
from evolve.output.terminal import warn
from evolve.run.program import CHAMPION, load
from simulator.clock.replay import Replay
from simulator.common.errors import InputError
from simulator.common.json import JsonObject
from simulator.serving.load import NEVER

PROGRAM = "EVOLVE_PROGRAM"  # of the environment: the program, if not the champion
QUIET = ("error", "fatal", "panic")
LEVELS = ("trace", "debug", "info", "warn", *QUIET)


@click.group(cls=StrictGroup, context_settings={"help_option_names": ["-h", "--help"]})
def blis() -> None:
    """Run a scenario of BLIS with a program of ours: the champion, or the one that EVOLVE_PROGRAM names."""


@blis.command("run")
@click.option("--scenario", required=True, metavar="NAME", help="File of the scenario and its deployment.")
@click.option("--scenarios", required=True, type=click.Path(path_type=Path), help="Folder of that file.")
@click.option(
    "--catalog",
    envvar="BLIS_CATALOG",
    type=click.Path(path_type=Path),
    help="blis-catalog, for models/NAME/config.json [default: models that are known by name].",
)
@click.option(
    "--registry", type=click.Path(path_type=Path), help="Coefficients of BLIS, which no program of ours reads."
)
@click.option(
    "--workload-spec", required=True, type=click.Path(path_type=Path), help="The load: one client with concurrency."
)
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the lengths [default: the workload spec's].")
@click.option(
    "--speculative-acceptance-rate", "acceptance", type=click.FloatRange(0, 1), help="Accepted share of drafts."
)
@click.option("--metrics-path", required=True, type=click.Path(path_type=Path), help="Write the results here, JSON.")
@click.option("--log", default="warn", type=click.Choice(LEVELS), help="Warnings are printed from `warn` on.")
def run(
    scenario: str,
    scenarios: Path,
    catalog: Path | None,
    registry: Path | None,
    workload_spec: Path,
    seed: int | None,
    acceptance: float | None,
    metrics_path: Path,
    log: str,
) -> None:
    """Replay the closed load of a workload spec on the deployment of a scenario.

    A key that changes latencies and is not replayed is an error.
    """
    check_writable(metrics_path, "--metrics-path", ".json")
    source = load(os.environ.get(PROGRAM, CHAMPION))
    closed, own_seed = read_load(workload_spec)
    experiment = experiment_of(read_scenario(scenarios / scenario, catalog, acceptance), closed)
    replay = replayed(experiment, source, own_seed if seed is None else seed)
    if not replay.completed.any():  # the scorer would read latencies of 0
        refused = int((~replay.load.accepted).sum())
        problem = f"no request completes: the engine refuses {refused}, and the clients give up on the others sent"
        raise InputError(f"{workload_spec}: {problem}. Give shorter lengths, or more patience.")
    text = json.dumps(metrics(replay), allow_nan=False) + "\n"
    save(metrics_path, "--metrics-path", lambda draft: draft.write_text(text, "utf-8"), text)
    if log in QUIET:
        return
    for note in (*source.cautions, *experiment.notes):
        warn(note)
    if replay.clamped:
        warn(f"{replay.clamped:,} times were outside [1, 1e10] us and clamped")


def metrics(replay: Replay) -> JsonObject:
    """The host's metrics file: its aggregate figures, and a row for every request that was sent."""
    r, completion = replay.requests, np.zeros(len(replay.requests), np.int64)
    rows = in_completion_order(replay)
    completion[rows] = np.arange(1, len(rows) + 1)
    start_us = replay.spread(replay.run.start_us)
    requests = []
    for i in np.flatnonzero(replay.sent_us < NEVER).tolist():
        row = {
            "arrived_at": int(r.arrival_us[i]) / 1e6,
            "requestID": f"request_{i}",
            "num_prefill_tokens": int(r.input_len[i]),
            "num_decode_tokens": int(r.output_len[i]),
            "ttft_ms": int(replay.ttft_us[i]) / 1e3,
            "itl_ms": float(replay.itl_us[i]) / 1e3,
            "e2e_ms": int(replay.e2e_us[i]) / 1e3,
            "scheduling_delay_ms": int(start_us[i] - r.arrival_us[i]) / 1e3 if completion[i] else 0.0,
            "round_index": 0,
        }
        if completion[i]:
            row["completion_index"] = int(completion[i])
        requests.append(row)
    return {**aggregate(replay), "requests": requests}


def door() -> None:
    """Run `evolve-blis`, and exit with status 1 for whatever fails, as the host's command does."""
    try:
        main(blis, "evolve-blis")
    except SystemExit as end:
        sys.exit(1 if end.code else 0)
