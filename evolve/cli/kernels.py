"""The command on measured kernels: kernels."""

from __future__ import annotations

import click

from evolve.cli.endings import print_json
from evolve.plan.kernels import breakdown, print_kernels


@click.command()
@click.argument("model")
@click.option("--hardware", required=True, help="GPU name, e.g. H100-SXM-80GB: one that has measured kernels.")
@click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True, help="Tensor parallelism.")
@click.option("--context", type=click.IntRange(0, 10_000_000), default=1024, show_default=True,
              help="Tokens that every decode has in the KV cache.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Every figure as JSON, with the source of the tables.")
def kernels(model: str, hardware: str, tp: int, context: int, as_json: bool) -> int:
    """Show where a step's time goes, from measured kernels.

    MODEL is a known name, a config.json or its folder. The table has the microseconds of every operation in steps of 1,
    8, 32 and 128 decodes and of a 2048-token uncached prompt, the origin of each figure, and the datasheet's bound. No
    program is involved and nothing is fitted.

    \b
    evolve kernels llama-3.1-8b --hardware H100
    evolve kernels mixtral-8x7b --hardware H200 --tp 2 --context 4096
    evolve kernels my-model/config.json --hardware B200 --tp 4 --json
    """
    times = breakdown(model, hardware, tp, context)
    if as_json:
        print_json(times.to_json())
    else:
        print_kernels(times)
    return 0
