"""What OpenEvolve (0.4) reads: a run as a checkpoint, and the files with which it evolves a program on our evaluator.

OpenEvolve loads a checkpoint, and its visualizer shows it. The scored programs of the run are members, its champion the
best program, its front the archive, its islands the islands. The cells of an island are those of our grid, by
operations and features. Rejected candidates are left out, because every member of OpenEvolve's database may become a
parent. The same run gives the same files: a program's number stands for the time at which it was found.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from textwrap import indent

from archive.champion import Rule, contenders
from archive.elite import UNMEASURED, Elite
from archive.grid import Grid
from archive.proposal import Outcome, Rejected
from evaluator.assess import read
from evolve.processes import default_workers
from evolve.run.config import Config
from evolve.run.config_file import to_mapping
from evolve.run.data import chosen, located
from evolve.run.folder import empty_archive
from evolve.run.program import Source, with_true_names
from evolve.search.llm.setup import task_of
from evolve.search.pool.pool import TRIES
from evolve.search.vocabulary import field_set
from evolve.summary.searched import Searched
from simulator.common.documents import yaml_text
from simulator.common.errors import InputError, unwritable
from simulator.common.files import write_text
from simulator.common.json import JsonObject
from simulator.common.records import fields_to_json, record_class, stored

DIMENSIONS = ("operations", "features_in_grid")
ROOM = 1000  # programs that OpenEvolve may add before it removes the worst ones
CHECKPOINT_EVERY = 10  # iterations
NEVER_S = 10**6
# The files of a task. OpenEvolve puts the folder before ours in the path of imports: none may have a package's name.
PROGRAM, EVALUATOR, CONFIG, SEARCH = "initial_program.py", "evaluate.py", "config.yaml", "search.yaml"
EVALUATE = f'''"""Scores programs for OpenEvolve on the data and by the settings of {SEARCH} beside this file."""

from pathlib import Path

from evolve.engines.openevolve import evaluate_with

evaluate = evaluate_with(Path(__file__).with_name("{SEARCH}"))
'''
# The end of CONFIG: our programs are longer than what OpenEvolve calls long, and the task is a text to be edited.
PROMPT = """\
prompt:
  suggest_simplification_after_chars: null
  system_message: |2
"""


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
    path, files = out / f"checkpoint_{found.outcomes[-1].proposal.id}", dict(_files(found))
    _write(path, files)
    programs = len(found.archive.by_id)
    size = sum(len(text.encode()) for text in files.values())
    return Checkpoint(path, programs, len(found.outcomes) - programs, size, found.champion.id)


def write_task(source: Source, config: Config, out: Path) -> None:
    """Write the files that `openevolve-run` needs to evolve a program on the data and by the settings of `config`.

    OpenEvolve rewrites whole programs: ours are short, and what it cannot read as a program gets a complaint. Nothing
    is marked EVOLVE-BLOCK, since all of a program may change.

    Raises InputError if nothing can be fitted, if a search would refuse the program, or if `out` exists already.
    """
    config = replace(config, data=located(config.data))
    chosen(config.data)
    if isinstance(refused := read(source.text, config.caps, field_set(config.search.fields)), Rejected):
        raise InputError(f"cannot start from {source.name}: {refused.why}. Give another program or --config.")
    search, llm = config.search, config.llm
    settings = {
        "language": "python",
        "random_seed": config.seed,
        "diff_based_evolution": False,
        "checkpoint_interval": CHECKPOINT_EVERY,
        "llm": {"max_tokens": llm.answer_tokens, "timeout": int(llm.timeout_s), "retries": llm.attempts - 1},
        "database": _database(config, 0, 0),
        "evaluator": {
            "timeout": (TRIES + 1) * int(search.limit_s) or NEVER_S,  # our own limit comes first
            "max_retries": 0,
            "cascade_evaluation": False,
            "parallel_evaluations": default_workers(),
        },
    }
    prompt = f"{yaml_text(settings)}{PROMPT}{indent(task_of(config), '    ')}\n"
    texts = {PROGRAM: source.text, EVALUATOR: EVALUATE, CONFIG: prompt, SEARCH: yaml_text(to_mapping(config))}
    _write(out, texts)


def _write(path: Path, files: Mapping[str, str]) -> None:
    """Write the files of a new folder. Raises InputError if it exists already or cannot be written."""
    if path.exists():
        raise InputError(f"{path}: exists already: choose another --out")
    try:
        with _draft_of(path) as draft:
            for name, text in files.items():
                (draft / name).parent.mkdir(exist_ok=True)
                write_text(draft / name, text)
    except OSError as e:
        raise unwritable(path, e, "choose another --out") from None


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
    generations, rule = _generations(found.outcomes), contenders(elites.values(), config.score.rule)[1]
    for outcome in found.outcomes:
        if outcome.elite:
            program = _program(outcome, home[outcome.elite.id], generations, config, rule)
            yield f"programs/{outcome.elite.id}.json", json.dumps(program, allow_nan=False)
    yield "metadata.json", json.dumps(_metadata(found, home, rule), allow_nan=False)
    yield CONFIG, yaml_text({"database": _database(config, len(elites), len(found.archive.front))})


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


def combined_score(elite: Elite, rule: Rule) -> float:
    """The score that OpenEvolve maximises: 1 / (1 + selection score in percent), below 0.001 if not consistent.

    0 for an error that is not finite.
    """
    error = rule.selection_score(elite) + (0.0 if elite.consistent else UNMEASURED)
    return 1.0 / (1.0 + error) if math.isfinite(error) else 0.0


def metrics_of(elite: Elite, config: Config, rule: Rule) -> dict[str, float]:
    """The finite figures of an elite. `features_in_grid`: those beyond the grid's last row count as that row.

    rule: as `archive.champion.contenders` returns it, for no run can be left out of a single one.
    """
    score = elite.score
    figures = {
        "combined_score": combined_score(elite, rule),
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


def _program(outcome: Outcome, island: int, generations: Mapping[int, int], config: Config, rule: Rule) -> JsonObject:
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
        "metrics": metrics_of(elite, config, rule),
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


def _metadata(found: Searched, home: Mapping[int, int], rule: Rule) -> JsonObject:
    config, elites = found.run.config, found.archive.by_id
    islands = [[elites[id] for id in home if home[id] == i] for i in range(config.search.islands)]
    grids = [_grid(members, config) for members in islands]
    best = [max(members, key=lambda e: (combined_score(e, rule), -e.id), default=None) for members in islands]
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


def _database(config: Config, programs: int, front: int) -> JsonObject:
    """The settings of OpenEvolve's database for so many programs, and so many on the front, to begin with."""
    bins = {name: bins for name, (bins, _) in _dimensions(config).items()}
    return {
        "num_islands": config.search.islands,
        "population_size": programs + ROOM,
        "archive_size": max(100, front),
        "feature_dimensions": list(bins),
        "feature_bins": bins,
        "migration_interval": config.search.migrate_every,
    }
