"""A page as one file: the document with the details of each run's best programs, thinned until it fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from evolve.draw.view.candidates import marked
from evolve.draw.view.detail import Details
from evolve.draw.view.document import document, run_json
from evolve.draw.view.followed import Followed
from evolve.draw.view.html import GENERATOR, Page, pack, packed_size
from evolve.draw.view.thinning import thinned
from evolve.output.files import check_writable
from evolve.output.writing import write
from simulator.common.errors import InputError
from simulator.common.json import JsonObject

MOST_BYTES = 8_000_000  # of an export
MOST_DETAILS = 40  # details in an export, of programs on the fronts; each takes two seconds on the shipped runs
HEAD = 4096  # bytes of an export that contain its mark


def export(
    folders: Sequence[Path], plan: JsonObject | None, page: Page, path: Path, show: Callable[[str], None]
) -> int:
    """Write the page of a plan and the runs in these folders to a file; returns its size in bytes.

    `show` displays how far it is. Raises InputError if the file cannot be written or holds something other than an
    earlier export, or if a folder has no run.
    """
    _check(path)  # before the runs are read, which may take a while
    runs = [Followed(folder) for folder in folders]
    details = [details_of(followed, MOST_DETAILS // len(runs), show) for followed in runs]
    show("packing ...")
    text = page.export(fitting(runs, details, plan, MOST_BYTES - len(page.export(b"").encode())))
    write(text, str(path), "--export")
    return len(text.encode())


def _check(path: Path) -> None:
    check_writable(path, "--export")
    if not path.is_file():
        return
    with path.open("rb") as file:
        head = file.read(HEAD)
    if GENERATOR.encode() not in head:
        raise InputError(f"cannot write {path}: it is no export of evolve view. Choose another --export, or remove it.")


def fitting(runs: Sequence[Followed], details: Sequence[JsonObject], plan: JsonObject | None, most: int) -> bytes:
    """The packed document, its runs thinned until it takes at most `most` characters, or as far as is possible."""
    whole = [run_json(followed) | {"details": of_run} for followed, of_run in zip(runs, details, strict=True)]
    versions = [
        thinned(run, marked(followed.story, followed.champion)) for run, followed in zip(whole, runs, strict=True)
    ]
    data = b""
    for of_runs in zip(*versions, strict=True) if versions else [()]:
        data = pack(document(of_runs, live=False, plan=plan))
        if packed_size(data) <= most:
            break
    return data


def details_of(followed: Followed, most: int, show: Callable[[str], None]) -> JsonObject:
    """The details of a run's champion and of up to `most` programs of its front, evenly spaced by size."""
    front = [e.id for e in followed.story.population.archive.front_by_size()]
    best = [] if followed.champion is None else [followed.champion]
    ids = list(dict.fromkeys([*best, *_spaced(front, most)]))
    details, made = Details(followed.run, followed.data), {}
    for i, id in enumerate(ids, 1):
        show(f"{followed.name}: details of program {i}/{len(ids)} ...")
        outcome = followed.story.outcome(id)
        assert outcome is not None
        made[str(id)] = details.of(outcome, id in best)
    return made


def _spaced(ids: Sequence[int], most: int) -> Sequence[int]:
    return ids if len(ids) <= most else [ids[i * (len(ids) - 1) // (most - 1)] for i in range(most)]
