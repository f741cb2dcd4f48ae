"""One run from start to report: data, workers, loop, champion, known answers."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from archive.champion import champion
from archive.journal import Journal
from evaluator import baselines as known
from evaluator.experiments import data_hash
from evaluator.score import SCORE_SEEDS, Errors, error_rows, score_set, summarise
from evolve import __version__
from evolve.propose.llm import ledger
from evolve.propose.llm.setup import check, desk_of, keep_prompts
from evolve.report import markdown as summary
from evolve.report.progress import Progress
from evolve.run import folder as run_folder
from evolve.run.config import Config
from evolve.run.data import chosen
from evolve.run.folder import Run
from evolve.run.program import seed_texts
from evolve.run.ranges import ranges_of
from evolve.search.assessor import executor, solve_known, stop
from evolve.search.search import evolve
from evolve.search.state import MODEL, State
from simulator.errors import InputError
from simulator.experiment.experiment import Experiment
from simulator.experiment.facts import has_curves
from simulator.language.parse import parse


def start(config: Config, out: Path | None) -> Run:
    """A new run folder for this configuration; nothing is computed yet. Raises InputError where its language models
    could not be called."""
    if config.search.proposer != "offline":
        check(config)
    fitted, _ = chosen(config.data)
    if config.search.fields == "all":
        for e in fitted:
            if not has_curves(e.facts):
                raise InputError(
                    f"experiment {e.id!r}: {e.hardware} has no measured kernels: write `fields: datasheet` under "
                    "`search:` (or take --config datasheet), or name tables of a like GPU as `kernels` of its hardware"
                )
    about = {
        "engine": __version__,
        "data": data_hash(fitted),
        "fitted": [e.id for e in fitted],
        "ranges": asdict(ranges_of(fitted)),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    run = run_folder.create(out or run_folder.next_path(), config, about)
    if config.search.proposer != "offline":
        keep_prompts(run)
    return run


def work(
    run: Run, workers: int, quiet: bool = False, progress: Progress | None = None, full: bool = True
) -> dict[str, Any]:
    """Search from wherever the journal stands to the end of the budget, then report (report.json).

    `full`: with the known answers and predictions of what is not fitted; a fold of a validation does without, so that
    its report shows no held-out error. Ctrl-C leaves the journal whole: `evolve resume` goes on from it.
    """
    fitted, others = chosen(run.config.data)
    run_folder.check_same(run, fitted)
    with run_folder.lock(run):
        progress = progress or Progress(run.config.budget, len(run.entries()), quiet)
        state, answers, calls = _search(run, fitted, others, workers, progress, full)
        run_folder.write_programs(run, state.archive.members())
        report = _report(run, state, fitted, others if full else [], answers)
        if calls:
            report["llm"] = calls
        run_folder.write_json(run.path / "report.json", report)
        summary.write(run, report)
    return report


def _models(run: Run, fitted: Sequence[Experiment], journal: Journal, pool: Executor, progress: Progress) -> Any:
    """The language models that propose in this run, None in an offline one. Raises InputError for a missing library or
    key, or an unknown price."""
    config = run.config
    if config.search.proposer == "offline":
        return None

    moe = frozenset(e.id for e in fitted if e.facts["is_moe"])
    desk = desk_of(run, moe, journal, pool, progress.asking)
    if desk.lost:
        progress.stage(f"possibly paid, since a process died before an answer came: {', '.join(desk.lost)}")
    progress.models = lambda: desk.status
    return desk


def _search(
    run: Run,
    fitted: Sequence[Experiment],
    others: Sequence[Experiment],
    workers: int,
    progress: Progress,
    full: bool,
) -> tuple[State, dict[str, list[Errors]], dict[str, Any]]:
    """The loop, then the known answers, with one pool of workers; and the totals of calls to language models, {} for an
    offline run."""
    config, past = run.config, run.entries()
    pool = executor(workers, fitted, config)
    journal = Journal(run.journal)
    models, calls = None, dict[str, Any]()
    try:
        models = _models(run, fitted, journal, pool, progress)
        state = evolve(config, seed_texts(), past, journal, pool, progress.update, models)
        answers: dict[str, list[Errors]] = {}
        if full:
            progress.stage("known answers")
            answers = _known_answers(run, fitted, [*fitted, *others], pool)
    except BaseException:
        stop(pool)
        raise
    finally:
        progress.close()
        if models:
            models.close()
        journal.close()
        if models:
            calls = _ledger(run, models.stopped)
    pool.shutdown()
    return state, answers, calls


def _known_answers(
    run: Run, fitted: Sequence[Experiment], everything: Sequence[Experiment], pool: Any
) -> dict[str, list[Errors]]:
    """Known answers, kept in the run's folder, since they depend on the data only."""
    path = run.path / "known.json"
    identity = [data_hash(fitted), data_hash(everything)]
    if path.exists():
        stored = json.loads(path.read_text())
        if stored["data"] == identity and set(stored["answers"]) == set(known.NAMES):
            return {name: [Errors(*row) for row in rows] for name, rows in stored["answers"].items()}
    work = known.tasks(fitted, everything)
    futures = [pool.submit(solve_known, task) for task in work]
    answers: dict[str, list[Errors]] = {name: [] for name in known.NAMES}
    for task, future in zip(work, futures, strict=True):
        answers[task.name] += future.result()
    rows = {name: [(r.experiment, r.e2e, r.ttft, r.itl) for r in found] for name, found in answers.items()}
    run_folder.write_json(path, {"data": identity, "answers": rows})
    return answers


def _report(
    run: Run,
    state: State,
    fitted: Sequence[Experiment],
    others: Sequence[Experiment],
    answers: dict[str, list[Errors]],
) -> dict[str, Any]:
    """Everything the printed report shows, as plain values."""
    archive, rule = state.archive, run.config.score
    best = champion(archive.members(), rule.rule)
    report: dict[str, Any] = {
        "engine": __version__,
        "data": run.about["data"],
        "run": str(run.path),
        "seed": run.config.seed,
        "seeds": list(SCORE_SEEDS),
        "search_seeds": rule.arrival_seeds,
        "rule": asdict(rule.rule),
        "fitted": [e.id for e in fitted],
        "candidates": state.fitted,
        "proposals": state.proposals,
        "accepted": len(archive.members()),
        "champion": None,
        "best": [[None if joint == math.inf else joint, transfer] for joint, transfer in state.best],
        "rejected": _rejections(run),
        "cascade": {
            "verdicts": dict(state.stages.most_common()),
            "cpu_s": {name: round(s, 2) for name, s in state.seconds.items()} or _spent_before(run),
        },
    }
    if best is None:
        return report
    everything = [*fitted, *others]
    rows = error_rows(parse(best.text), score_set(everything))
    seeds = [e for e in archive.by_id.values() if e.operator.startswith("seed:")]
    first = min(seeds, key=lambda e: e.joint, default=None)
    return report | {
        "champion": best.to_json(),
        "errors": [asdict(r) for r in rows],
        "fitted_mean": _means(summarise(rows[: len(fitted)])),
        "predicted_mean": _means(summarise(rows[len(fitted) :])),
        "best_seed": first.to_json() if first else None,
        "front": [e.to_json() for e in archive.front_by_size()],
        "known": {name: [asdict(r) for r in found] for name, found in answers.items()},
        "published": {name: [asdict(r) for r in found] for name, found in known.published().items()},
        "quality": {e.id: e.quality for e in everything},
        "observed_ms": {e.id: _observed(e) for e in everything},
    }


def _ledger(run: Run, stopped: str) -> dict[str, Any]:
    """Totals of the calls to language models; every one of them goes to ledger.csv. `stopped`: why no more were made
    before the end of the search, "" if it came to that."""
    lines = run.lines()
    ledger.write(run.path / ledger.FILE, lines)
    about = {"replayed": run.about.get("replayed", ""), "substitutes": _substitutes(run), "stopped": stopped}
    return ledger.summary(lines) | about


def _substitutes(run: Run) -> int:
    """Proposals of operators where models alone were to propose."""
    if run.config.search.proposer != "llm":
        return 0
    models = (MODEL, "seed:", "polish")
    return sum(not entry["operator"].startswith(models) for entry in run.entries())


def _spent_before(run: Run) -> dict[str, float]:
    """CPU seconds by stage as an earlier report of the run has them, where nothing was left to assess."""
    path = run.path / "report.json"
    found: dict[str, float] = json.loads(path.read_text())["cascade"]["cpu_s"] if path.exists() else {}
    return found


def _rejections(run: Run) -> list[tuple[str, int, str]]:
    """(stage, how many, an example of why), the commonest first."""
    why: dict[str, list[str]] = {}
    for entry in run.entries():
        if entry["verdict"] == "rejected":
            why.setdefault(entry["stage"], []).append(entry["why"])
    return sorted(((stage, len(found), found[0]) for stage, found in why.items()), key=lambda row: (-row[1], row[0]))


def _observed(e: Experiment) -> list[float | None]:
    s = e.observed.summary if e.observed else None
    return [s.e2e_ms.mean, s.ttft_ms.mean, s.itl_ms.mean] if s else [None] * 3


def _means(score: Any) -> dict[str, float | None]:
    worst3 = score.worst3 if score.worst3 == score.worst3 else None
    return {"e2e": score.e2e, "ttft": score.ttft, "itl": score.itl, "worst3": worst3}
