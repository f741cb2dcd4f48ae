"""The command `predict`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from evolve.cli import options
from evolve.cli.endings import print_json
from evolve.cli.loads import Load, load_options
from evolve.cli.options import (
    TableFiles,
    caps_options,
    engine_option,
    exclude_option,
    explain_option,
    explaining,
    ids_option,
    list_option,
    named_experiments,
    named_specs,
    quiet,
    quiet_option,
    tables_options,
    verbose,
    verbose_option,
)
from evolve.output.progress import Line
from evolve.plan.against import Rivalry, print_against
from evolve.plan.axes import Axes, parse_axes
from evolve.plan.predict import predict as predict_all
from evolve.plan.predict_view import print_prediction
from evolve.plan.prediction_rows import PREDICTIONS, prediction_row
from evolve.plan.slo import parse_slo
from evolve.plan.sweep import sweep as predict_sweep
from evolve.plan.sweep_rows import SWEEP, sweep_rows
from evolve.plan.sweep_view import print_sweep
from evolve.run.data import part
from simulator.common.errors import InputError
from simulator.serving.engine import Setting
from simulator.serving.experiment import deploy
from simulator.serving.limits import MOST_GPUS
from simulator.serving.pools import Pool, Pools
from simulator.serving.spec import Spec
from simulator.serving.splits import SPLITS


def _planned(given: Mapping[str, Any], load: Load, axes: Axes) -> Spec | None:
    """The spec that these options describe, by option; None without any.

    Values that a sweep replaces may be missing. Raises InputError if another one is.
    """
    if all(value is None for value in given.values()) and not load.given:
        return None
    tp = given["--tp"] or max(axes.tp, default=1)  # the largest is the most likely to have room
    if axes.concurrency and load.concurrency is None:
        load = replace(load, concurrency=1)  # whichever it is
    if axes.rate and load.concurrency is None:
        load = replace(load, rate_rps=load.rate_rps or 1.0)
    model, hardware = given["--model"], given["--hardware"] or next(iter(axes.hardware), None)
    lacking = [*([] if model else ["--model"]), *([] if hardware else ["--hardware"]), *load.lacking]
    if lacking or not hardware:
        missing = ", ".join(lacking)
        rates = " (or --concurrency, or --sweep rate=FIRST:LAST:STEP)" if "--rate" in lacking else ""
        raise InputError(f"a plan without a file lacks {missing}: give {missing}{rates}, or --experiments FILE instead")
    prefill, decode = given["--prefill"], given["--decode"]
    if axes.prefill or axes.decode or axes.gpus:
        prefill, decode = prefill or 1, decode or 1
    spec = Spec.under(model, hardware, load.entry(), tp, engine=given["--engine"], files=load.files)
    if not (prefill or decode):
        return spec
    first, second = (Pool(count, spec.engine) if count else None for count in (prefill, decode))
    return replace(spec, pools=Pools(first, second))


@click.command()
@click.argument("program", default="champion")
@click.option("--experiments", metavar="FILE", help="Experiments to predict [default: the shipped runs].")
@ids_option()
@exclude_option()
@click.option(
    "--model", help="Instead of a file: a model under one steady load, described by the options up to --output-len."
)
@click.option("--hardware", metavar="GPU", help="GPU that serves the model.")
@click.option("--tp", type=click.IntRange(1, 10_000), help="Tensor-parallel degree.  [default: 1]")
@engine_option("Other setting of the engine, e.g. expert_parallel=8 (repeatable).")
@load_options
@click.option(
    "--prefill",
    type=click.IntRange(1, MOST_GPUS),
    metavar="INSTANCES",
    help="Separate pools: instances that compute prompts. Alone: what becomes of prompts there.",
)
@click.option(
    "--decode",
    type=click.IntRange(1, MOST_GPUS),
    metavar="INSTANCES",
    help="Separate pools: instances that decode. Alone: prompts come computed.",
)
@click.option(
    "--seeds", type=click.IntRange(1, 100), default=3, show_default=True, help="Arrival seeds to average over."
)
@click.option(
    "--part",
    "named_part",
    type=click.Choice(SPLITS),
    help="Predict only this part of each trace, after a replay of the earlier requests: the first 60 %, the next 20 % "
    "or the last 20 %.",
)
@click.option(
    "--sweep",
    "sweeps",
    metavar="KEY=VALUES",
    multiple=True,
    help="Predict every combination of these values, FIRST:LAST:STEP or A,B,C, of rate (requests/s) or concurrency "
    "(clients), hardware, tp, data_parallel, expert_parallel, max_num_seqs, max_num_batched_tokens, weights, or of "
    "separate pools prefill, decode or gpus: all splits of so many (repeatable).",
)
@list_option(
    "--slo",
    "slo",
    "LATENCY=TIME,...",
    "Limits such as ttft_p99=500ms,itl_mean=50ms on the mean, p50, p90 or p99 of ttft, e2e or itl (repeatable). "
    "ITL is the mean of each request.",
)
@click.option("--against", metavar="PROGRAM", help="Compare predictions and errors with this program.")
@tables_options("a row for each experiment, or each combination of --sweep, as CSV")
@click.option("--json", "as_json", is_flag=True, help="Print every figure as JSON.")
@quiet_option
@caps_options
@explain_option
@verbose_option
def predict(
    program: str,
    experiments: str | None,
    ids: tuple[str, ...],
    exclude: tuple[str, ...],
    model: str | None,
    hardware: str | None,
    tp: int | None,
    settings: Mapping[str, Setting],
    load: Load,
    prefill: int | None,
    decode: int | None,
    seeds: int,
    named_part: str | None,
    sweeps: tuple[str, ...],
    slo: tuple[str, ...],
    against: str | None,
    tables: TableFiles,
    as_json: bool,
    caps: dict[str, int],
) -> int:
    """Predict TTFT, ITL and E2E, and sweep rates, GPUs and settings.

    The output compares predictions with observations, if there are any, and names the main terms of each. Predictions
    have intervals if the program is the shipped champion, the champion of a validated run, or fitted from one of these.

    --sweep predicts latencies and throughput at other rates, GPUs, TP degrees and engine limits. It also finds the
    knee: the first rate at which a limit of --slo fails, the queue grows, or more than 1 % of the requests are refused
    or given up. With --slo alone, check each experiment against the limits.

    --against predicts the same requests with another program, and shows which one is closer to the observations. --csv
    has the first program's rows.

    Exits with status 1 if no request of any experiment completes, or if no combination is possible. With --slo it also
    does so if no combination of an experiment meets the limits.

    \b
    evolve predict champion --model llama-3.1-8b --hardware H100 --rate 5 --prompt-len 1000 --output-len 300
    evolve predict champion --experiments plan.yaml
    evolve predict champion --experiments plan.yaml --csv predictions.csv
    evolve predict mine.py --experiments traces.yaml --part test
    evolve predict mine.py --experiments mine.yaml --against champion
    evolve predict champion --experiments plan.yaml --sweep rate=2:40:2 --sweep tp=1,2,4 --slo ttft_p99=500ms
    evolve predict champion --experiments closed.yaml --sweep concurrency=1,4,16,64
    evolve predict champion --experiments pools.yaml --sweep gpus=8 --sweep rate=5:40:5 --slo ttft_p99=500ms
    """
    source = options.load(program, caps)
    arrival_seeds = range(1, seeds + 1)
    plans, of_limits = sweeps or slo, "--sweep" if sweeps else "--slo"
    if plans and named_part:
        raise InputError(f"--part compares with measurements, and {of_limits} does not. Give one of them.")
    if plans and against:
        raise InputError(
            f"--against compares programs on unchanged experiments, and {of_limits} changes them. Give one of them."
        )
    axes, limits = parse_axes(sweeps), parse_slo(slo)
    described: dict[str, Any] = {"--model": model, "--hardware": hardware, "--tp": tp, "--engine": settings or None}
    described |= {"--prefill": prefill, "--decode": decode}
    if (experiments or ids or exclude) and (load.given or any(value is not None for value in described.values())):
        raise InputError(
            "--experiments and --id (or --exclude) name experiments, and the other options describe one. Leave out "
            f"{', '.join(described)} and the load, or vary them with --sweep."
        )
    planned = _planned(described, load, axes)
    if plans:
        specs = [planned] if planned else named_specs(experiments, ids, exclude=exclude)
        if not sweeps:
            for spec in specs:
                deploy(spec)  # what no engine can run is an error where nothing is varied
        swept = predict_sweep(source, specs, arrival_seeds, axes, limits, Line(quiet()))
        tables.write(SWEEP, sweep_rows(swept))
        if as_json and not tables.on_stdout:
            print_json(swept.to_json())
        elif not tables.on_stdout:
            print_sweep(swept, explaining(), verbose())
        return 1 if swept.all_impossible or (slo and swept.any_hopeless) else 0
    named = [deploy(planned)] if planned else named_experiments(experiments, ids, exclude=exclude)
    parts = [part(e, named_part) for e in named] if named_part else named
    forecasts = predict_all(source, parts, arrival_seeds, named)
    tables.write(PREDICTIONS, map(prediction_row, forecasts.experiments))
    compared = (
        Rivalry(forecasts, predict_all(options.load(against, caps), parts, arrival_seeds, named)) if against else None
    )
    if as_json and not tables.on_stdout:
        print_json(compared.to_json() if compared else forecasts.to_json())
    elif compared and not tables.on_stdout:
        print_against(compared, explaining(), verbose())
    elif not tables.on_stdout:
        print_prediction(forecasts, explaining(), verbose())
    return 1 if all(e.empty for e in forecasts.experiments) else 0
