"""`python -m research rejudged`: compute the verdicts, print them, and write the page."""

from __future__ import annotations

from pathlib import Path

import click

from evaluator.score import SCORE_SEEDS
from evolve import __version__
from evolve.output.files import write_json
from evolve.output.printing import show
from evolve.output.progress import Line
from evolve.output.terminal import say
from evolve.search.pool.local import local
from research.rejudged.claims import CLAIMS, Claim, Judgement, judged
from research.rejudged.page import complete, overview, page
from research.rejudged.verdict import SEED
from research.rejudged.world import World, world
from simulator.common.errors import InputError, nearest, shown
from simulator.common.files import write_text
from simulator.common.json import JsonObject
from simulator.common.text import visible
from simulator.serving.bundled import STEPS
from simulator.serving.digests import data_hash

TRAININGS = Path("runs/rejudged")


@click.command("rejudged")
@click.argument("names", nargs=-1)
@click.option(
    "--steps",
    type=click.Path(path_type=Path),
    multiple=True,
    default=[Path(STEPS)],
    show_default=True,
    help="Tables of recorded steps of shipped runs.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=TRAININGS,
    show_default=True,
    help="Folder of the trainings; finished ones are not repeated.",
)
@click.option("--page", "file", type=click.Path(path_type=Path), help="Write the page here.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write every figure here as JSON.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option("--quiet", is_flag=True, help="No progress line.")
def rejudge(
    names: tuple[str, ...],
    steps: tuple[Path, ...],
    out: Path,
    file: Path | None,
    json_file: Path | None,
    workers: int,
    quiet: bool,
) -> None:
    """Judge the beliefs of earlier rounds again on the corrected data. NAMES selects some of them."""
    claims = _chosen(names)
    if file and names:
        raise InputError("--page needs every belief. Give no names with it.")
    line = Line(quiet)
    pool = local(workers, line)
    try:
        everything = world(steps, out, pool)
        judgements = list[Judgement]()
        for n, claim in enumerate(claims, 1):
            line.show(f"{n}/{len(claims)}: {claim.name}")
            judgements.append(judged(everything, claim))
    finally:
        pool.close()
        line.close()
    if json_file:
        write_json(json_file, to_json(everything, judgements))
    if file and complete(judgements):
        write_text(file, visible(page(judgements, everything), keep="\n"))
        say(f"Wrote {file}.")
    else:
        show(overview(judgements))


def to_json(everything: World, judgements: list[Judgement]) -> JsonObject:
    """Every figure, and what it rests on."""
    return {
        "engine": __version__,
        "data": data_hash(everything.experiments),
        "seeds": [*SCORE_SEEDS, SEED],
        "step_tables": {t.run.experiment.id: t.run.steps.digest() for t in everything.targets},
        "beliefs": [judgement.to_json() for judgement in judgements],
    }


def _chosen(names: tuple[str, ...]) -> tuple[Claim, ...]:
    known = [claim.name for claim in CLAIMS]
    for name in names:
        if name not in known:
            raise InputError(f"{shown(name)}: no such belief: {nearest(name, known)}")
    return tuple(claim for claim in CLAIMS if not names or claim.name in names)
