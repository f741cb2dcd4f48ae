"""The command `kernels`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import click

from evolve.cli.endings import finish
from evolve.cli.options import engine_option, explain_option, explaining, verbose, verbose_option
from evolve.plan.kernels import breakdown, print_kernels
from simulator.serving.engine import Setting


@click.command()
@click.argument("model")
@click.option("--hardware", required=True, help="GPU with measured kernels, e.g. H100-SXM-80GB.")
@click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True, help="Tensor parallelism.")
@engine_option("Other setting of the engine, e.g. expert_parallel=8, quantization=fp8 (repeatable).")
@click.option(
    "--context",
    type=click.IntRange(0, 10_000_000),
    default=1024,
    show_default=True,
    help="Tokens of each decode in the KV cache.",
)
@click.option("--json", "as_json", is_flag=True, help="Print every figure, and the source of the tables, as JSON.")
@explain_option
@verbose_option
def kernels(model: str, hardware: str, tp: int, settings: Mapping[str, Setting], context: int, as_json: bool) -> int:
    """Show where the time of a step goes, from measured kernels.

    MODEL is a known name, a config.json or its folder. The table has the microseconds of every operation, the origin of
    each figure, and the datasheet's bound. Its steps have 1, 8, 32 and 128 decodes, or a 2048-token uncached prompt. No
    program is used, and nothing is fitted.

    \b
    evolve kernels llama-3.1-8b --hardware H100
    evolve kernels mixtral-8x7b --hardware H200 --tp 2 --context 4096
    evolve kernels qwen3-235b-a22b --hardware B200 --tp 4 --engine quantization=fp8 --engine expert_parallel=4
    evolve kernels my-model/config.json --hardware B200 --tp 4 --json
    """
    printed = partial(print_kernels, explain=explaining(), verbose=verbose())
    finish(breakdown(model, hardware, tp, context, settings), as_json, printed)
    return 0
