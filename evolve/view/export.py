"""A run's page as one file: the document with the details of its best programs, thinned until it fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from evolve.report.run import thinned as spaced
from evolve.run.files import cannot_write, check_writable, write_text
from evolve.view.candidates import marked
from evolve.view.detail import Details
from evolve.view.document import document, run_json
from evolve.view.followed import Followed
from evolve.view.html import GENERATOR, Page, pack, packed_size
from evolve.view.thinning import thinned
from simulator.errors import InputError
from simulator.json import JsonObject

MOST_BYTES = 8_000_000  # of an export
HEAD = 4096  # bytes within which an export says that it is one


def check_target(path: Path) -> None:
    """Raises InputError if the file cannot be written, or holds something other than an earlier export."""
    check_writable(path, "--export")
    if path.is_file() and GENERATOR.encode() not in _head(path):
        raise InputError(f"{path}: exists, and is not an export of evolve view: choose another --export, or remove it")


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD)


def export(runs: Sequence[Followed], page: Page, path: Path, show: Callable[[str], None]) -> int:
    """Write the page of these runs to a file; returns its size in bytes. `show` displays how far it is."""
    check_target(path)
    details = [details_of(followed, show) for followed in runs]
    show("packing the document ...")
    text = page.export(fitting(runs, details, MOST_BYTES - len(page.export(b"").encode())))
    try:
        write_text(path, text)
    except OSError as e:
        raise cannot_write(path, e, "--export") from None
    return len(text.encode())


def fitting(runs: Sequence[Followed], details: Sequence[JsonObject], most: int) -> bytes:
    """The packed document of these runs, thinned until it takes at most `most` characters, or as far as is possible."""
    whole = [run_json(followed) | {"details": of_run} for followed, of_run in zip(runs, details, strict=True)]
    versions = [
        thinned(run, marked(followed.story, followed.champion)) for run, followed in zip(whole, runs, strict=True)
    ]
    data = b""
    for of_runs in zip(*versions, strict=True):
        data = pack(document(of_runs, live=False))
        if packed_size(data) <= most:
            break
    return data


def details_of(followed: Followed, show: Callable[[str], None]) -> JsonObject:
    """The details of a run's champion and of some programs of its front, evenly spaced by size."""
    outcomes = {row.outcome.proposal.id: row.outcome for row in followed.story.rows}
    front = followed.story.population.archive.front_by_size()
    ids = list(
        dict.fromkeys([*([] if followed.champion is None else [followed.champion]), *(e.id for e in spaced(front))])
    )
    details, made = Details(followed.run, followed.data), {}
    for i, id in enumerate(ids, 1):
        show(f"{followed.name}: details of program {i}/{len(ids)} ...")
        made[str(id)] = details.of(outcomes[id], id == followed.champion)
    return made
