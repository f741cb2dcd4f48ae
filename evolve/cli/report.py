"""The command `report`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from evolve.cli.endings import print_json
from evolve.cli.options import (
    caps_options,
    explain_option,
    explaining,
    ids_option,
    list_option,
    named_experiments,
    quiet_flag,
)
from evolve.cli.pools import Where, pool_options
from evolve.output.files import check_writable
from evolve.output.terminal import say
from evolve.output.writing import STDOUT, write
from evolve.report.html import html
from evolve.report.report import ALL, DIMENSIONS
from evolve.report.report import report as make
from evolve.report.subject import subject_of
from evolve.report.view import page, print_report
from simulator.common.errors import InputError, nearest
from simulator.common.text import counted
from simulator.language.measure import Caps


@click.command()
@click.argument("name", metavar="RUN|PROGRAM", default="champion")
@click.option(
    "--experiments",
    metavar="FILE",
    help="Experiments to judge it on [default: those of its run, else the shipped runs].",
)
@ids_option()
@list_option(
    "--only", "only", "NAME,NAME", f"These dimensions in full (repeatable): {', '.join(DIMENSIONS)}, or {ALL}."
)
@click.option("--md", "as_md", is_flag=True, help="Print Markdown.")
@click.option(
    "--html", "to_html", metavar="FILE|-", help="Write an HTML page to this file, or to standard output for -."
)
@partial(pool_options, default=None)
@click.option("--json", "as_json", is_flag=True, help="Print every figure as JSON.")
@quiet_flag
@caps_options
@explain_option
def report(
    name: str,
    experiments: str | None,
    ids: tuple[str, ...],
    only: tuple[str, ...],
    as_md: bool,
    to_html: str | None,
    where: Where,
    as_json: bool,
    quiet: bool,
    caps: dict[str, int],
) -> int:
    """Report on a program, for a team that decides on its adoption.

    The verdict (adopt, adopt with care, do not adopt) rests on held-out errors of its validation, a replay of its runs
    and what records say of workloads, engine settings, models, hardware, engine versions and reproducibility. Ease of
    use, retraining and overheads must be measured: --only looks at these, and has the tables of every dimension, each
    with the command that repeats it; `--only all` takes minutes. A RUN stands for its champion.

    \b
    evolve report champion
    evolve report runs/0001 --html report.html
    evolve report mine.py --experiments mine.yaml --md > report.md
    evolve report champion --only hardware,versions --json
    """
    outputs = {"--md": as_md, "--json": as_json, "--html -": to_html == STDOUT}
    printed = [option for option, chosen in outputs.items() if chosen]
    if len(printed) > 1:
        raise InputError(f"{' and '.join(printed)} both go to standard output. Give one of them.")
    for dimension in only:
        if dimension not in (*DIMENSIONS, ALL):
            raise InputError(f"--only {dimension}: is no dimension: {nearest(dimension, [*DIMENSIONS, ALL])}")
    if to_html and to_html != STDOUT:
        check_writable(Path(to_html), "--html", ".html", ".htm")
    given = named_experiments(experiments, ids) if experiments or ids else None
    subject = subject_of(name, Caps(**caps), experiments, given, ids)
    with where.pool(quiet) as pool:
        made = make(subject, only, pool)
    if to_html:
        write(html(made), to_html, "--html")
        if to_html != STDOUT:
            say(f"{to_html}: {counted(len(made.dimensions), 'dimension')}", err=True)
    if as_json:
        print_json(made.to_json())
    elif as_md:
        say(page(made), end="")
    elif to_html is None:
        print_report(made, explaining())
    return 0
