"""The command that averages a run's programs: blend."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from evolve.cli.endings import print_json
from evolve.cli.options import caps_options_from
from evolve.inspect.blend import CAPS, blend_run, print_blend
from evolve.run.folder import open_run
from evolve.summary.searched import tell_unfinished


@click.command()
@click.argument("run_path", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--top", type=click.IntRange(min=2), metavar="N",
              help="Average the N best programs by merit [default: the run's committee].")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="Write the program here, with its record next to it.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@caps_options_from(CAPS)
def blend(run_path: Path, top: int | None, out: Path | None, as_json: bool, caps: dict[str, int]) -> int:
    """Average the near-optimal programs of a run into one program.

    Each of its times is the mean of theirs on every batch: a term has the mean of their constants, a program without
    the term counts as 0, and what is not affine joins as a share. The committee is up to twelve programs within 10 % of
    the lowest merit that read different fields. The blend is held to the gates of the search: if one refuses it, no
    file is written, and the exit status is 1.

    \b
    evolve blend runs/0001
    evolve blend runs/0001 --out blend.py
    evolve blend runs/0001 --top 5 --json
    """
    run = open_run(run_path)
    result = blend_run(run, top, replace(CAPS, **caps), out)
    if as_json:
        print_json(result.to_json())
    else:
        print_blend(result)
    tell_unfinished(run)
    return 0 if result.verdict.ok else 1
