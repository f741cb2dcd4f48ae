"""A run as a checkpoint folder that OpenEvolve (0.4) loads, and that its visualizer shows.

Its scored programs are members, its champion the best program, its front the archive, its islands the islands. The
cells of an island are those of our grid, by operations and features. Rejected candidates are left out, because every
member of OpenEvolve's database may become a parent. The same run gives the same files: a program's number stands for
the time at which it was found.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from archive.archive import Archive
from archive.elite import Elite
from archive.grid import Grid
from archive.proposal import Outcome
from evolve.run.config import Config
from evolve.run.folder import empty_archive
from evolve.run.program import with_true_names
from evolve.summary.searched import Searched
from simulator.common.errors import InputError, unwritable
from simulator.common.files import write_text
from simulator.common.json import JsonObject
from simulator.common.records import fields_to_json, record_class, stored

DIMENSIONS = ("operations", "features_in_grid")
ROOM = 1000  # programs that OpenEvolve may add before it removes the worst ones


@record_class
class Checkpoint:
    """The folder that was written, its number of programs, and how many candidates were rejected and left out."""

    path: Path = stored(key="out", write=str)
    programs: int
    rejected: int
    bytes: int
    champion: int

    def to_json(self) -> JsonObject:
        return fields_to_json(self)


def write_checkpoint(found: Searched, out: Path) -> Checkpoint:
    """Write the run to `out`/checkpoint_N, where N is its last proposal. The visualizer looks for such a name.

    Raises InputError if that folder exists already or cannot be written.
    """
    path = out / f"checkpoint_{found.outcomes[-1].proposal.id}"
    if path.exists():
        raise InputError(f"{path}: exists already: choose another --out")
    files = dict(_files(found))
    try:
        with _draft_of(path) as draft:
            (draft / "programs").mkdir()
            for name, text in files.items():
                write_text(draft / name, text)
    except OSError as e:
        raise unwritable(path, e, "choose another --out") from None
    programs = len(found.archive.by_id)
    size = sum(len(text.encode()) for text in files.values())
    return Checkpoint(path, programs, len(found.outcomes) - programs, size, found.champion.id)


@contextmanager
def _draft_of(path: Path) -> Iterator[Path]:
    """A folder to fill, which takes the name `path` when the block ends, and is removed if the block fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    draft.mkdir()
    try:
        yield draft
        draft.rename(path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _files(found: Searched) -> Iterator[tuple[str, str]]:
    config, elites = found.run.config, found.archive.by_id
    home = {o.elite.id: _island(o, config.search.islands) for o in found.outcomes if o.elite}
    generations = _generations(found.outcomes)
    for outcome in found.outcomes:
        if outcome.elite:
            program = _program(outcome, home[outcome.elite.id], generations, config)
            yield f"programs/{outcome.elite.id}.json", json.dumps(program, allow_nan=False)
    yield "metadata.json", json.dumps(_metadata(found, home), allow_nan=False)
    yield "config.yaml", yaml.safe_dump({"database": _database(config, len(elites), found.archive)}, sort_keys=False)


def _island(outcome: Outcome, islands: int) -> int:
    """The island of a program. Those that all islands got, seeds and polished finalists, are dealt out in turn: a
    member of OpenEvolve's database has one island."""
    proposal = outcome.proposal
    return proposal.id % islands if proposal.island is None else proposal.island


def _generations(outcomes: Sequence[Outcome]) -> dict[int, int]:
    """The number of first-parent ancestors of each elite, by id."""
    generations: dict[int, int] = {}
    for elite in (outcome.elite for outcome in outcomes if outcome.elite):
        generations[elite.id] = 1 + generations.get(elite.parents[0], 0) if elite.parents else 0
    return generations


def combined_score(elite: Elite) -> float:
    """The score that OpenEvolve maximises: 1 / (1 + mean error in percent); 0 for an error that is not finite."""
    return 1.0 / (1.0 + elite.mean_error) if math.isfinite(elite.mean_error) else 0.0


def _metrics(elite: Elite, config: Config) -> dict[str, float]:
    """The finite figures of an elite. `features_in_grid`: those beyond the grid's last row count as that row."""
    score = elite.score
    figures = {
        "combined_score": combined_score(elite),
        "mean_error": score.mean_error,
        "group_out": elite.group_out,
        "worst3": score.worst3,
        "e2e": score.e2e,
        "ttft": score.ttft,
        "itl": score.itl,
        "ttft_p99": score.ttft_p99,
        "operations": elite.operations,
        "features": elite.features,
        "features_in_grid": min(elite.features, 2 * config.search.feature_bins),
        "constants": elite.constants,
        "consistent": float(elite.consistent),
    }
    return {name: float(x) for name, x in figures.items() if x is not None and math.isfinite(x)}


def _program(outcome: Outcome, island: int, generations: Mapping[int, int], config: Config) -> JsonObject:
    elite, proposal = outcome.elite, outcome.proposal
    assert elite
    errors = {r.experiment: {"e2e": r.e2e, "ttft": r.ttft, "itl": r.itl} for r in elite.score.rows}
    return {
        "id": str(elite.id),
        "code": with_true_names(elite).text,
        "changes_description": proposal.idea or elite.operator,
        "language": "python",
        "parent_id": str(elite.parents[0]) if elite.parents else None,
        "generation": generations[elite.id],
        "timestamp": float(elite.id),
        "iteration_found": elite.id,
        "metrics": _metrics(elite, config),
        "complexity": float(elite.complexity),
        "diversity": 0.0,
        "metadata": {
            "island": island,
            "operator": elite.operator,
            "parents": [str(p) for p in elite.parents],
            "key": elite.key,
        },
        "prompts": None,
        "artifacts_json": json.dumps({"errors_pct": json.dumps(errors)}),
        "artifact_dir": None,
        "embedding": None,
    }


def _metadata(found: Searched, home: Mapping[int, int]) -> JsonObject:
    config, elites = found.run.config, found.archive.by_id
    islands = [[elites[id] for id in home if home[id] == i] for i in range(config.search.islands)]
    grids = [_grid(members, config) for members in islands]
    best = [max(members, key=lambda e: (combined_score(e), -e.id), default=None) for members in islands]
    proposals = [sum(o.proposal.island == i for o in found.outcomes) for i in range(config.search.islands)]
    generations = [-(-count // config.search.batch) for count in proposals]
    return {
        "island_feature_maps": [{f"{x}-{y}": str(e.id) for (x, y), e in sorted(grid.cells.items())} for grid in grids],
        "islands": [[str(e.id) for e in members] for members in islands],
        "archive": [str(e.id) for e in found.archive.front_by_size()],
        "best_program_id": str(found.champion.id),
        "island_best_programs": [str(e.id) if e else None for e in best],
        "last_iteration": found.outcomes[-1].proposal.id,
        "current_island": 0,
        "island_generations": generations,
        "last_migration_generation": max(generations) // config.search.migrate_every * config.search.migrate_every,
        "feature_stats": {
            name: {"min": 1.0, "max": 1.0 + most, "values": []} for name, (_, most) in _dimensions(config).items()
        },
    }


def _grid(members: Sequence[Elite], config: Config) -> Grid:
    grid = empty_archive(config).grid
    for elite in members:
        grid.add(elite)
    return grid


def _dimensions(config: Config) -> dict[str, tuple[int, float]]:
    """The bins of each dimension, and the range that they divide. With these OpenEvolve finds our cells: both begin at
    1, and a row of our grid is two features."""
    search = config.search
    return {
        "operations": (search.operation_bins, float(max(config.caps.operations, 1))),
        "features_in_grid": (search.feature_bins, 2.0 * search.feature_bins),
    }


def _database(config: Config, programs: int, archive: Archive) -> JsonObject:
    """The settings of OpenEvolve's database that fit the checkpoint."""
    bins = {name: bins for name, (bins, _) in _dimensions(config).items()}
    return {
        "num_islands": config.search.islands,
        "population_size": programs + ROOM,
        "archive_size": max(100, len(archive.front)),
        "feature_dimensions": list(bins),
        "feature_bins": bins,
        "migration_interval": config.search.migrate_every,
    }
