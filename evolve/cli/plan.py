"""The command `plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from evolve.cli import options
from evolve.cli.endings import finish
from evolve.cli.loads import Load, load_options
from evolve.cli.options import (
    TableFiles,
    caps_options,
    engine_option,
    explain_option,
    explaining,
    ids_option,
    list_option,
    named_specs,
    only_one,
    quiet,
    quiet_option,
    tables_options,
    verbose,
    verbose_option,
)
from evolve.output.progress import Line
from evolve.plan.axes import axes_of
from evolve.plan.plan import Space
from evolve.plan.plan import plan as make_plan
from evolve.plan.plan_result import ROWS, Plan, plan_row
from evolve.plan.plan_view import print_plan
from evolve.plan.prices import read_prices
from evolve.plan.slo import parse_slo
from simulator.common.errors import InputError
from simulator.serving.engine import Setting
from simulator.serving.spec import Spec

VERSION = "0.19.0"  # of vLLM, the newest of the fitted runs: its defaults hold in a plan without a file
SPREAD = {"on": (True,), "off": (False,)}


@click.command()
@click.argument("program", default="champion")
@click.option("--model", help="Model to serve.")
@list_option("--hardware", "hardware", "GPU,GPU", "GPUs to consider (repeatable).")
@list_option("--weights", "weights", "TYPE,TYPE", "Types of weights (repeatable) [default: the checkpoint's].")
@list_option("--tp", "tp", "N,N", "Tensor-parallel degrees (repeatable) [default: 1, 2, 4, 8 where they fit].")
@list_option("--dp", "dp", "N,N", "Data-parallel ranks (repeatable) [default: of experts as --tp, else 1].")
@click.option("--ep", type=click.Choice(tuple(SPREAD)), help="Experts spread over all GPUs.  [default: both]")
@list_option("--max-num-seqs", "max_num_seqs", "N,N", "Requests of a batch (repeatable) [default: vLLM's].")
@list_option(
    "--max-num-batched-tokens",
    "max_num_batched_tokens",
    "N,N",
    "Tokens of a step (repeatable) [default: vLLM's].",
)
@engine_option(f"Other setting of the engine (repeatable). Without version={VERSION} or another it is this one.")
@load_options
@click.option("--experiments", metavar="FILE", help="Model, engine and load of an experiments file instead.")
@ids_option("The experiment of the file, if it has several (repeatable).")
@list_option(
    "--slo",
    "slo",
    "LATENCY=TIME,...",
    "Limits such as ttft_p99=500ms,tpot_mean=50ms: mean, p50, p90 or p99 of ttft, e2e, itl or tpot (repeatable).",
)
@list_option("--price", "prices", "GPU=DOLLARS,...|FILE", "Dollars per GPU hour, or a YAML file of them (repeatable).")
@click.option(
    "--seeds", type=click.IntRange(1, 100), default=3, show_default=True, help="Arrival seeds to average over."
)
@tables_options("a row for each deployment, as CSV")
@click.option("--json", "as_json", is_flag=True, help="Print every figure as JSON.")
@quiet_option
@caps_options
@explain_option
@verbose_option
def plan(
    program: str,
    model: str | None,
    hardware: tuple[str, ...],
    weights: tuple[str, ...],
    tp: tuple[str, ...],
    dp: tuple[str, ...],
    ep: str | None,
    max_num_seqs: tuple[str, ...],
    max_num_batched_tokens: tuple[str, ...],
    settings: Mapping[str, Setting],
    load: Load,
    experiments: str | None,
    ids: tuple[str, ...],
    slo: tuple[str, ...],
    prices: tuple[str, ...],
    seeds: int,
    tables: TableFiles,
    as_json: bool,
    caps: dict[str, int],
) -> int:
    """Rank the deployments that serve a load within limits: how many of which GPUs, and how sure that is.

    The load is that of the whole service. Every combination of GPU, weights, parallelism and batch limits is counted
    with the fewest replicas that keep the limits. The first line is the answer; the last ones deploy it and test it.

    Exits with status 1 if no deployment keeps the limits.

    \b
    evolve plan --model llama-3.1-70b --hardware H100 --rate 25 --prompt-len 1000 --output-len 300 --slo ttft_p99=1s
    evolve plan --model llama-3.1-70b --hardware H100,H200 --weights bf16,fp8 --price H100=2.5,H200=3.5
        --concurrency 256 --prompt-len uniform:min=800,max=1000 --output-len 300 --shared-prefix 2000:4
        --slo tpot_mean=30ms
    evolve plan --experiments plan.yaml --id chat --slo ttft_p99=500ms --max-num-seqs 64,128,256
    """
    source = options.load(program, caps)
    limits = parse_slo(slo)
    given = {
        "hardware": hardware,
        "tp": tp,
        "data_parallel": dp,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "weights": weights,
    }
    axes = axes_of({name: ",".join(values) for name, values in given.items() if values}, "plan: ")
    spec = (
        only_one(named_specs(experiments, ids), experiments)
        if experiments
        else _described(model, axes.hardware, settings, load)
    )
    if experiments and (model or settings or load.given):
        raise InputError("--experiments has model, engine and load: leave out --model, --engine and those of the load")
    space = Space(axes, SPREAD[ep] if ep else ())
    priced, line = read_prices(prices), Line(quiet())
    result = make_plan(source, spec, range(1, seeds + 1), space, limits, priced, line, drawn=as_json)
    tables.write(ROWS, map(plan_row, result.rows))
    if not tables.on_stdout:
        finish(result, as_json, _print)
    return 0 if result.rows else 1


def _print(result: Plan) -> None:
    print_plan(result, explaining(), verbose())


def _described(model: str | None, hardware: Sequence[str], settings: Mapping[str, Setting], load: Load) -> Spec:
    """The spec of these options, on the first GPU. Raises InputError if one is missing."""
    lacking = [*([] if model else ["--model"]), *([] if hardware else ["--hardware"]), *load.lacking]
    if lacking or not model:
        raise InputError(f"a plan lacks {', '.join(lacking)}: give all of these, or --experiments FILE")
    engine = {"version": VERSION, **settings}
    return Spec.under(model, hardware[0], load.entry(), engine=engine, files=load.files)
