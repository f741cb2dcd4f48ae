"""The command `view`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import click

from evolve.cli.endings import print_json
from evolve.draw.view.document import document, run_json
from evolve.draw.view.export import export
from evolve.draw.view.followed import Followed
from evolve.draw.view.html import Page, page
from evolve.draw.view.plan import plan_json
from evolve.draw.view.server import PORT, Shown, serve
from evolve.output.progress import Line
from evolve.output.terminal import command, say
from evolve.run.folder import is_run
from simulator.common.errors import InputError
from simulator.common.json import JsonObject

MOST = 16  # runs on one page


@click.command()
@click.argument("paths", metavar="PLAN.json|RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    help=f"Port of the page [default: {PORT}, or the next free one]. 0: any.",
)
@click.option(
    "--export",
    "out",
    metavar="FILE.html",
    type=click.Path(path_type=Path),
    help="Write the page to this file instead, for anyone to open.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the content of the page as JSON instead.")
@click.option("--quiet", is_flag=True, help="No progress line.")
def view(paths: tuple[Path, ...], port: int | None, out: Path | None, as_json: bool, quiet: bool) -> int:
    """Show a plan, or follow runs, in a browser.

    PLAN.json is what `evolve plan ... --json` prints. RUN is a run's folder, or a folder of runs such as that of
    repeats, during the search or afterwards. The page is served on this machine only, at the
    printed address, until Ctrl-C. Nothing is written. With --export the page is one file that needs no server and no
    network. Needs the extra `view`.

    \b
    evolve view plan.json --export plan.html
    evolve view runs/0001
    evolve view runs/0001 runs/0002 --port 9000
    evolve view runs/0001 --export run.html
    """
    if (out is not None) + as_json + (port is not None) > 1:
        raise InputError("--port, --export and --json exclude each other. Give one of them.")
    plan = _plan([path for path in paths if path.is_file()])
    folders = run_folders([path for path in paths if not path.is_file()])
    if as_json:
        print_json(document([run_json(Followed(folder)) for folder in folders], live=False, plan=plan))
        return 0
    parts = page()
    if out is not None:
        return _export(folders, plan, parts, out, quiet)
    shown = Shown([Followed(folder) for folder in folders], plan)
    server = serve(port, parts, shown)
    say(f"{server.address} - Ctrl-C ends it")
    shown.warm()
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        pass  # the only way to end it
    finally:
        server.server_close()
    return 0


def _export(folders: Sequence[Path], plan: JsonObject | None, parts: Page, out: Path, quiet: bool) -> int:
    line = Line(quiet)
    try:
        size = export(folders, plan, parts, out, lambda text: line.update(lambda: text))
    finally:
        line.close()
    say(f"{out}: {size / 1e6:.1f} MB")
    return 0


def _plan(files: Sequence[Path]) -> JsonObject | None:
    """The plan in the only one of these files; None without files."""
    if len(files) > 1:
        raise InputError(f"{len(files)} plans are too many for one page: name one")
    return plan_json(files[0]) if files else None


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """The folders of the runs that these paths name, each once. Raises InputError for a path that names none."""
    folders = list(dict.fromkeys(folder for path in paths for folder in _folders(path)))
    if len(folders) > MOST:
        raise InputError(f"{len(folders)} runs are too many for one page: name at most {MOST}")
    return folders


def _folders(path: Path) -> list[Path]:
    if is_run(path):
        return [path]
    inside = sorted((file.parent for file in path.glob("*/run.json")), key=_natural) if path.is_dir() else []
    if not inside:
        raise InputError(
            f"{path}: is not a run, a folder of runs or a plan: `{command('list')}` names the runs; programs are on the"
            " page of their run"
        )
    return inside


def _natural(path: Path) -> list[tuple[int, str]]:
    """The name in an order in which seed-2 comes before seed-10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", path.name)]
