"""The command `plot`."""

from __future__ import annotations

import importlib
import logging
import os
import re
from itertools import chain, count
from pathlib import Path
from types import ModuleType

import click

from evolve.cli.options import caps_options, experiments_in, ids_option, load, named_experiments
from evolve.output.files import check_writable
from evolve.output.printing import prose
from evolve.output.terms import legend
from evolve.plan.pictures import read_pictures
from evolve.run.folder import is_run
from evolve.run.program import Source
from evolve.summary.searched import searched
from simulator.common.errors import InputError
from simulator.serving.experiment import Experiment

OF_RUNS, OF_PROGRAMS = ("front", "history", "grid"), ("fit", "curve", "terms")
OF_PLANS = ("latency", "speed", "cost")
FORMATS = ("svg", "png", "pdf")
# By kind: the terms of a picture for its legend, and a further explanation.
WORDS: dict[str, tuple[tuple[str, ...], str]] = {
    "front": (("complexity", "mean error", "worst-3 E2E", "group-out", "consistent", "Pareto front"), ""),
    "history": (
        ("mean error", "group-out"),
        "Errors are those of the search. Three or more runs are drawn as median and quartiles",
    ),
    "grid": (
        ("features", "mean error", "consistent"),
        "A cell shows its best program, an inconsistent one only if there is no other",
    ),
    "fit": (
        (),
        "fitted: the program was fitted on this experiment, so its errors are in sample; predicted: it was not. "
        "Intervals are those of `evolve predict`",
    ),
    "curve": ((), "Dots: the clients, or requests/s, of the experiments; crosses: what was measured"),
    "latency": ((), "Latencies of the first deployment. Beyond the knee they depend on the length of the load"),
    "speed": ((), "Numbers: the clients of the last point; crosses: shipped measurements with lengths within 10 %"),
    "cost": ((), "The fewest replicas of each deployment that keep the limits"),
    "terms": ((), "The shares of the terms add up to the step time. Constants are as fitted"),
}


@click.command()
@click.argument("names", metavar="RUN|PROGRAM|PLAN...", nargs=-1, required=True)
@click.option("--kind", type=click.Choice([*OF_RUNS, *OF_PROGRAMS, *OF_PLANS]), required=True, help="What to draw.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="File to write: .svg, .png or .pdf [default: a new NAME-KIND.svg in this folder].",
)
@click.option(
    "--experiments", metavar="FILE", help="For fit, curve and terms [default: a run's own, else the shipped runs]."
)
@ids_option()
@caps_options
def plot(
    names: tuple[str, ...],
    kind: str,
    out: Path | None,
    experiments: str | None,
    ids: tuple[str, ...],
    caps: dict[str, int],
) -> int:
    """Draw a picture of a run, a program or a plan.

    Of a RUN, front: mean error against complexity, coloured by leave-group-out error; history: the champion's errors
    during the search, of one run or several; grid: the MAP-Elites grid. Of a PROGRAM, or the champion of a RUN, fit:
    predicted against observed E2E, TTFT and ITL; curve: throughput against speed along the clients or the rate; terms:
    the time that each term adds to a decode step. Of a PLAN, the file that `evolve plan --json` prints, latency:
    limited latencies against the load; speed: throughput of a GPU against speed of a client; cost: against the load.
    Needs the extra `view`.

    \b
    evolve plot runs/0001 --kind front
    evolve plot runs/0002/seed-* --kind history --out history.pdf
    evolve plot champion --kind fit --out fit.png
    evolve plot champion --kind curve --experiments closed.yaml --out curve.svg
    evolve plot plan.json --kind latency
    evolve plot runs/0001:137 --kind terms --id llama-2-7b-tp1-general --out terms.svg
    """
    out = out or _free(names[0], kind)
    suffix = out.suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise InputError(f"--out {out}: is not a picture: name a file that ends in .svg, .png or .pdf")
    if len(names) > 1 and kind != "history":
        raise InputError(f"--kind {kind} draws one run, program or plan. Give --kind history for several runs.")
    if kind not in OF_PROGRAMS and (experiments or ids):
        raise InputError(f"--experiments and --id go with --kind fit, curve or terms: leave them out for {kind}")
    check_writable(out, "--out")
    pictures, style = map(_drawing, ("pictures", "style"))
    if kind in OF_RUNS:
        figure = pictures.of_runs(kind, [searched(Path(name)) for name in names])
    elif kind in OF_PLANS:
        figure = pictures.of_plan(kind, read_pictures(Path(names[0])))
    else:
        figure = pictures.of_program(kind, *_program(names[0], experiments, ids, caps))
    title = pictures.title(kind, names)
    style.write(figure, out, suffix, title)
    words, also = WORDS[kind]
    legend(*words, also=also)
    prose(f"{out}: {title}")
    return 0


def _free(name: str, kind: str) -> Path:
    """A name in this folder that no file has: champion-curve.svg, champion-curve-2.svg and so on."""
    stem = (
        f"{re.sub('[^A-Za-z0-9.-]+', '-', Path(name).resolve().name.removesuffix('.py').removesuffix('.json'))}-{kind}"
    )
    every = (Path(f"{stem}{end}.svg") for end in chain([""], (f"-{n}" for n in count(2))))
    return next(path for path in every if not path.exists())


def _drawing(name: str) -> ModuleType:
    """A module of evolve.draw.plot. Raises InputError if the extra is missing."""
    # No window opens, whatever the user's settings. In a read-only home matplotlib would warn of its temporary folder.
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
