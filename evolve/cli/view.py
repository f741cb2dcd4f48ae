"""The command that shows runs in a browser: view."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from evolve.cli.endings import print_json
from evolve.draw.view.document import document, run_json
from evolve.draw.view.export import export
from evolve.draw.view.followed import Followed
from evolve.draw.view.html import Page, page
from evolve.draw.view.runs import run_folders
from evolve.draw.view.server import PORT, Shown, serve
from evolve.output.progress import Line
from evolve.output.terminal import say
from simulator.common.errors import InputError


@click.command()
@click.argument("paths", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), metavar="N",
              help=f"Port of the page [default: {PORT}, or the next free one]; 0: any.")  # fmt: skip
@click.option("--export", "out", metavar="FILE.html", type=click.Path(path_type=Path),
              help="Write the page to this file instead, for anyone to open.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print what the page shows as JSON instead.")
@click.option("--quiet", is_flag=True, help="No progress line.")
def view(paths: tuple[Path, ...], port: int | None, out: Path | None, as_json: bool, quiet: bool) -> int:
    """Show runs in a browser, while they search and afterwards.

    RUN is a run's folder, or a folder of runs such as that of repeats. The page is served on this machine alone, at the
    address that is printed, until Ctrl-C; nothing is written. With --export it is one file that needs no server and no
    network. Needs the extra `view`.

    \b
    evolve view runs/0001
    evolve view runs/0001 runs/0002 --port 9000
    evolve view runs/0001 --export run.html
    """
    if (out is not None) + as_json + (port is not None) > 1:
        raise InputError("--port, --export and --json exclude each other: give one of them")
    folders = run_folders(paths)
    if as_json:
        print_json(document([run_json(Followed(folder)) for folder in folders], live=False))
        return 0
    parts = page()
    if out is not None:
        return _export(folders, parts, out, quiet)
    shown = Shown([Followed(folder) for folder in folders])
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


def _export(folders: Sequence[Path], parts: Page, out: Path, quiet: bool) -> int:
    line = Line(quiet)
    try:
        size = export(folders, parts, out, lambda text: line.update(lambda: text))
    finally:
        line.close()
    say(f"{out}: {size / 1e6:.1f} MB")
    return 0
