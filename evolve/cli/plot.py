"""The command that draws pictures: plot."""

from __future__ import annotations

import importlib
import logging
import os
from pathlib import Path
from types import ModuleType

import click

from evolve.cli.options import caps_options, experiments_in, ids_option, load, named_experiments
from evolve.output.files import check_writable
from evolve.output.printing import prose
from evolve.output.terms import legend
from evolve.run.folder import is_run
from evolve.run.program import Source
from evolve.summary.searched import searched
from simulator.common.errors import InputError
from simulator.serving.experiment import Experiment

OF_RUNS, OF_PROGRAMS = ("front", "history", "grid"), ("fit", "terms")
FORMATS = ("svg", "png", "pdf")
# By kind, the words of a picture with a meaning of their own, and what else to know.
WORDS: dict[str, tuple[tuple[str, ...], str]] = {
    "front": (("complexity", "joint error", "worst 3", "transfer error", "sound", "front"), ""),
    "history": (
        ("joint error", "transfer error", "merit"),
        "Errors are those that the search saw. From three runs on, their median and quartiles are drawn",
    ),
    "grid": (
        ("features", "joint error", "sound"),
        "A cell shows the best of its programs; one that is not sound only if there is no other",
    ),
    "fit": (
        (),
        "fitted: the program was fitted on this experiment, so its errors are in sample; predicted: it was not. "
        "An interval, where there is one, is that of `evolve predict`",
    ),
    "terms": ((), "The shares of the terms add up to the step time. Constants are as fitted"),
}


@click.command()
@click.argument("names", metavar="RUN|PROGRAM...", nargs=-1, required=True)
@click.option("--kind", type=click.Choice([*OF_RUNS, *OF_PROGRAMS]), required=True, help="What to draw.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="File to write: .svg, .png or .pdf.")
@click.option("--experiments", metavar="FILE", help="For fit and terms [default: a run's own, else the shipped runs].")
@ids_option()
@caps_options
def plot(
    names: tuple[str, ...], kind: str, out: Path, experiments: str | None, ids: tuple[str, ...], caps: dict[str, int]
) -> int:
    """Draw a picture of a run: front, history, grid, fit or terms.

    front: joint error against complexity, coloured by transfer error. history: the champion's errors as the search went
    on; several runs may be named. grid: the MAP-Elites grid. fit: predicted against observed E2E, TTFT and ITL. terms:
    what each term adds to a decode step. The last two are of a PROGRAM, or of the champion of a RUN. Needs the extra
    `view`.

    \b
    evolve plot runs/0001 --kind front --out front.svg
    evolve plot runs/0002/seed-* --kind history --out history.pdf
    evolve plot champion --kind fit --out fit.png
    evolve plot runs/0001:137 --kind terms --id llama-2-7b-tp1-general --out terms.svg
    """
    suffix = out.suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise InputError(f"--out {out}: is not a picture: name a file that ends in .svg, .png or .pdf")
    if len(names) > 1 and kind != "history":
        raise InputError(f"--kind {kind} is of one: several runs go with --kind history")
    if kind in OF_RUNS and (experiments or ids):
        raise InputError(f"--experiments and --id go with --kind fit or terms: leave them out for {kind}")
    check_writable(out, "--out")
    pictures, style = map(_drawing, ("pictures", "style"))
    if kind in OF_RUNS:
        figure = pictures.of_runs(kind, [searched(Path(name)) for name in names])
    else:
        figure = pictures.of_program(kind, *_program(names[0], experiments, ids, caps))
    title = pictures.title(kind, names)
    style.write(figure, out, suffix, title)
    words, also = WORDS[kind]
    legend(*words, also=also)
    prose(f"{out}: {title}")
    return 0


def _drawing(name: str) -> ModuleType:
    """A module of evolve.draw.plot. Raises InputError if the extra is missing."""
    # No window is opened, whatever the user's settings are. Where no folder can be written for them, as in a home that
    # is read-only, matplotlib takes a temporary one, of which nobody needs to know.
    os.environ["MPLBACKEND"] = "agg"
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        return importlib.import_module(f"evolve.draw.plot.{name}")
    except ModuleNotFoundError:
        raise InputError("plot: needs the extra: pip install 'evolve-latency[view]'") from None


def _program(
    name: str, file: str | None, ids: tuple[str, ...], caps: dict[str, int]
) -> tuple[Source, list[Experiment]]:
    """The program, a run's champion if a run is named, and the experiments to show it on."""
    if not is_run(Path(name)):
        return load(name, caps), named_experiments(file, ids)
    run = searched(Path(name))
    return run.source, named_experiments(file, ids) if file else experiments_in(run.run, ids)
