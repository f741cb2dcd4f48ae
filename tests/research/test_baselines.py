"""The comparison with other engines: one budget, one evaluator, journals that can be gone on with, honest verdicts."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import research_command
from deap import gp
from tiny_world import BRIEF, ONE, lines, write

from archive.elite import Elite
from archive.population import Offered
from archive.proposal import Outcome, Proposal, Rejected
from evaluator.assess import read
from evolve.output.progress import Line
from evolve.run.config import Config
from evolve.run.config_file import load_config
from evolve.run.data import chosen
from evolve.run.folder import COMPARISON as FILE
from evolve.run.folder import JOURNAL, first_population
from evolve.run.program import seed_texts
from evolve.search import assessor
from evolve.search.pool.local import Here
from evolve.search.proposer import Proposer
from evolve.search.vocabulary import vocabulary
from evolve.search.workers import Prepared, data_of, workers_inside
from evolve.validate.statistics import spread
from research.baselines import Searching, Task, _work, reopen
from research.comparison import CURVE, DONE, verdict
from research.engines import bench
from research.engines.bench import Bench, GlobalRandom
from research.engines.engines import ENGINES, engine_names
from research.engines.gp import text_of
from research.engines.primitives import language
from research.engines.trees import expression, tree_of
from simulator.language.complete import complete
from simulator.language.ir import Function, Program
from simulator.language.key import key
from simulator.language.measure import Caps
from simulator.language.parse import parse

BUDGET = 12
NAMES = engine_names(())
COMPARED = [name for name in NAMES if not name.startswith("no-")]  # without parts of ours, which run as ours does
SEEDS = len(seed_texts())


def outcomes(folder: Path) -> list[Outcome]:
    """The outcomes in a search's journal."""
    return [Outcome.from_json(line) for line in lines(folder)]


def curve(folder: Path, cpu: bool = False) -> list[dict[str, Any]]:
    """A search's learning curve, without what the machine decides."""
    points = [json.loads(line) for line in (folder / CURVE).read_text().splitlines()]
    return points if cpu else [{k: v for k, v in point.items() if k not in ("cpu_s", "check")} for point in points]


def compare(config: Path, out: Path, *more: object) -> Path:
    """A comparison to its end, by one process unless `more` says otherwise."""
    workers = [] if "--workers" in more else ["--workers", 1]
    args = ["baselines", "--config", config, *workers, "--quiet", "--out", out, *more]
    assert research_command([str(arg) for arg in args]) == 0
    return out


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration of one experiment of the tiny world."""
    return write(tmp_path_factory.mktemp("one"), ONE)


@pytest.fixture(scope="module")
def config(one: Path) -> Config:
    return load_config(str(one))


@pytest.fixture(scope="module")
def prepared(config: Config) -> Prepared:
    """What a process prepares for a search on the one experiment."""
    prepare, args = pickle.loads(data_of(chosen(config.data)[0], config).content)
    made: Prepared = prepare(*args)
    return made


def bench_of(config: Config, prepared: Prepared) -> Bench:
    return Bench(config, prepared.words, prepared.probe, workers_inside(prepared))


def search(config: Config, task: Task, folder: Path) -> None:
    """Carry out one search in this process."""
    _work([Searching(folder, task)], data_of(chosen(config.data)[0], config), Here(Line(quiet=True)))


@pytest.fixture(scope="module")
def made(one: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished comparison under two seeds."""
    only = "--only", ",".join(COMPARED)
    return compare(one, tmp_path_factory.mktemp("baselines") / "all", "--budget", BUDGET, "--seeds", 2, *only)


@pytest.mark.parametrize("engine", COMPARED)
def test_every_engine_counts_the_budget_alike_and_begins_with_the_seeds(made: Path, engine: str) -> None:
    seeds = [key(complete(parse(text, name))) for name, text in seed_texts()]
    for seed in (0, 1):
        folder = made / f"{engine}-{seed}"
        settled, points = outcomes(folder), curve(folder, cpu=True)
        candidates = [outcome for outcome in settled if outcome.key]
        assert [point["candidate"] for point in points] == list(range(1, BUDGET + 1))
        assert len({outcome.key for outcome in candidates}) == len(candidates) == BUDGET
        assert [outcome.key for outcome in settled[:SEEDS]] == seeds
        assert [outcome.proposal.id for outcome in settled] == list(range(len(settled)))
        scored = [outcome.elite.mean_error for outcome in settled if outcome.elite]
        assert points[-1]["mean_error"] == min(scored)
        cpu = [point["cpu_s"] for point in points]
        assert cpu == sorted(cpu) and cpu[0] > 0
        done = json.loads((folder / DONE).read_text())
        assert done["candidates"] == BUDGET
        late = sum(outcome.rejection is not None for outcome in candidates)  # rejected after they were counted
        assert done["proposals"] == len(settled) == BUDGET - late + sum(done["rejected"].values())


def test_an_interrupted_comparison_goes_on_to_the_same_end(made: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    for i, engine in enumerate(COMPARED):
        folder = copy / f"{engine}-1"
        (folder / DONE).unlink()
        raw = (folder / JOURNAL).read_bytes().splitlines(keepends=True)
        cut = (3 * i + 1) % len(raw)  # among the seeds and after them
        (folder / JOURNAL).write_bytes(b"".join(raw[:cut]) + raw[cut][:20])  # torn in the middle of a line
        points = (folder / CURVE).read_bytes().splitlines(keepends=True)
        drawn = sum(b'"key"' in line for line in raw[:cut]) - i % 2  # every other one died before its last point
        (folder / CURVE).write_bytes(b"".join(points[:drawn]) + points[drawn][:20])
    shutil.rmtree(copy / "random-0")
    assert research_command(["resume", str(copy), "--workers", "1", "--quiet"]) == 0
    for folder in sorted(made.glob("*-[01]")):
        assert (copy / folder.name / JOURNAL).read_bytes() == (folder / JOURNAL).read_bytes()
        assert curve(copy / folder.name) == curve(folder)
        assert (copy / folder.name / DONE).read_text() == (folder / DONE).read_text()
    assert (copy / "curves.csv").read_text().count("\n") == 1 + 2 * len(COMPARED) * BUDGET


def test_a_comparison_can_be_on_ones_own_experiments(one: Path, tmp_path: Path) -> None:
    data = tmp_path / "own.yaml"
    data.write_bytes((one.parent / "data.yaml").read_bytes())
    compare(one, tmp_path / "own", "--experiments", data, "--budget", 3, "--seeds", 1, "--only", "random")
    assert json.loads((tmp_path / "own" / FILE).read_text())["config"]["data"]["files"] == [str(data)]


@pytest.mark.slow
def test_workers_change_nothing(tmp_path: Path) -> None:
    """Each in a process of its own, with another hash seed: sets of names and of types must not show in the result."""
    engines = ["gp"]
    one = write(tmp_path, ONE, **BRIEF)
    for workers in (1, 2):
        more = ("--budget", 24, "--seeds", 1, "--only", ",".join(engines), "--workers", workers)
        compare(one, tmp_path / str(workers), *more)
    for engine in engines:
        first, second = (tmp_path / workers / f"{engine}-0" for workers in ("1", "2"))
        assert (first / JOURNAL).read_bytes() == (second / JOURNAL).read_bytes()
        assert curve(first) == curve(second)


def test_the_report_has_a_row_and_a_verdict_for_every_engine(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert research_command(["resume", str(made), "--workers", "1", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "In sample" in out
    assert research_command(["resume", str(made), "--workers", "1", "--quiet", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {"engine", "data", "seeds"} <= set(report) and report["seeds"] == [0, 1]
    assert list(report["engines"]) == COMPARED
    for row in report["verdicts"]:
        assert row["text"] in out
    assert [row["against"] for row in report["verdicts"][::2]] == COMPARED[1:]  # by mean error and selection score
    last = [curve(made / f"gp-{seed}")[-1]["mean_error"] for seed in (0, 1)]
    assert report["engines"]["gp"]["mean_error"]["100"]["values"] == last


def proposals(proposer: Proposer, config: Config, past: Sequence[Outcome]) -> list[list[Proposal]]:
    """What a proposer proposes after the seeds, and what after all of that but the first was rejected."""
    population = first_population(config)
    population.numbered = len(past)
    told = list(past)
    asked = []
    for generation in (1, 2):
        proposer.tell([Offered(outcome, population.tell(outcome), 0.0) for outcome in told])
        population.end_generation()
        asked.append(list(proposer.ask(population, generation)))
        elite = next(o.elite for o in past if o.elite)
        first = replace(elite, id=population.numbered, score=replace(elite.score, mean_error=0.5))
        verdicts = [first, *[Rejected("units", "no")] * (len(asked[-1]) - 1)]
        told = [Outcome(p, v, "form" * isinstance(v, Elite)) for p, v in zip(asked[-1], verdicts, strict=True)]
    return asked


@pytest.mark.parametrize("engine", NAMES)
def test_every_engine_is_a_proposer_that_proposes_the_same_again_under_the_same_seed(
    made: Path, config: Config, prepared: Prepared, engine: str
) -> None:
    past = outcomes(made / "random-0")[:SEEDS]  # all engines start from the same programs
    before = random.getstate()
    asked, search = [], replace(config.search, batch=2)
    for seed in (3, 3, 4):
        settings = ENGINES[engine].config(replace(config, seed=seed, search=search))
        asked.append(proposals(ENGINES[engine].proposer(bench_of(settings, prepared)), settings, past))
        random.seed(seed)  # what others draw from the global stream is nothing to an engine
        random.random()
    assert asked[0] == asked[1] != asked[2]
    (first, second), islands = asked[0], ENGINES[engine].config(config).search.islands
    assert first and second and {p.island for p in first} == set(range(islands))
    assert [p.id for p in (*first, *second)] == list(range(SEEDS, SEEDS + len(first) + len(second)))
    assert all(parse(p.text) and p.operator for p in (*first, *second))
    random.setstate(before)


def test_random_search_never_takes_a_result_as_a_parent(
    config: Config, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = {complete(parse(text, name)).functions for name, text in seed_texts()}
    real, children, chains = bench.propose, [], []

    def watched(first: Program, second: Program, *rest: Any) -> tuple[Program, str]:
        begins = first.functions in seeds
        assert begins or first is children[-1]  # a seed, or the seed under change
        assert second.functions in seeds
        chains.append(begins)
        child, name = real(first, second, *rest)
        children.append(child)
        return child, name

    monkeypatch.setattr(bench, "propose", watched)
    search(config, Task("random", replace(config, budget=SEEDS + 14)), tmp_path / "random")
    assert chains.count(True) >= 14 and chains.count(False) > 0


@pytest.mark.parametrize(("fields", "spelled"), [("all", 0), ("datasheet", 7), ("paper18", 4), ("components", 1)])
def test_trees_are_valid_programs_and_spell_the_seeds(config: Config, fields: str, spelled: int) -> None:
    """Beside measured kernels none is: neither the host's part of a step nor datasheet times are offered; without them all
    but `kernels` are. Of these seven, paper18 lacks the bytes in microseconds of `floor` and `components` and the constants in
    flop/us and byte/us of `roofline`; components, the configuration, has the fields of `floor` only."""
    known = language(vocabulary(chosen(config.data)[0], fields))
    with GlobalRandom(3):
        trees = [gp.genHalfAndHalf(known.pset, 1, 4) for _ in range(150)]
    for tree in trees:
        found = read(text_of(tree, known), Caps(99, 99, 99))
        # a tree may add a field to itself twice, which no search accepts
        assert not isinstance(found, Rejected) or found.stage == "numbers", found.why
    steps = [complete(parse(text, name)).function("step_time") for name, text in seed_texts()]
    again = [(step, tree_of(step, known)) for step in steps if step is not None]
    assert sum(tree is not None for _, tree in again) == spelled
    for step, tree in again:
        if tree is not None:
            expr, constants = expression(tree, known)
            made = Function("step_time", constants, (), expr)
            assert key(Program((made,))) == key(Program((step,)))
            assert sorted(c.value for c in constants) == sorted(c.value for c in step.constants)


def test_where_no_seed_can_be_scored_every_engine_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that start from elites at once, the others after as many proposals as the limit allows."""
    monkeypatch.setattr(assessor, "UNLIMITED", Caps(operations=3, conditionals=0, constants=1))  # of seeds
    monkeypatch.setattr(bench, "PROPOSALS", 30)  # which is no multiple of a generation of gp
    config = write(tmp_path, ONE, caps="{constants: 1, operations: 3}")
    args = ["baselines", "--config", str(config), "--budget", "1", "--seeds", "1", "--workers", "1"]
    args += ["--only", ",".join(COMPARED)]
    assert research_command([*args, "--quiet", "--out", str(tmp_path / "b")]) == 1
    assert "against random -: no verdict, since a search scored nothing" in capsys.readouterr().out
    for engine in COMPARED:
        folder = tmp_path / "b" / f"{engine}-0"
        assert curve(folder) == [] and {o.rejection.stage for o in outcomes(folder) if o.rejection} == {"caps"}
        blind = engine in ("random", "climb", "gp")
        assert len(outcomes(folder)) == (30 if blind else SEEDS)


@pytest.mark.parametrize(
    ("ours", "theirs", "outcome"),
    [
        ((1.0, 1.2, 1.4), (2.0, 2.1, 2.2), "better"),  # medians 0.9 apart, quartiles 0.2 at most
        ((2.0, 2.1, 2.2), (1.0, 1.2, 1.4), "worse"),
        ((1.0, 1.2, 1.4), (1.2, 1.4, 3.0), "not"),  # 0.2 apart, quartiles 0.9
        ((1.0,), (2.0,), "unknown"),
    ],
)
def test_a_verdict_needs_more_than_the_spread(ours: Sequence[float], theirs: Sequence[float], outcome: str) -> None:
    found = verdict(spread(ours), spread(theirs), "random")
    assert found.outcome == outcome
    assert found.text.startswith("mean error: evolution ") and "against random" in found.text


def test_a_comparison_older_than_a_setting_goes_on_with_its_default(made: Path, tmp_path: Path) -> None:
    about = json.loads((made / "baselines.json").read_text())
    assert about["config"]["search"].pop("fit") == "auto"
    (tmp_path / "baselines.json").write_text(json.dumps(about))
    assert reopen(tmp_path) == replace(reopen(made), path=tmp_path)


def test_bad_input_is_one_line(one: Path, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").write_text("")
    for args, fault in (
        (("--only", "genetic"), "--only genetic: no such engine"),
        (("--config", one, "--out", made, "--budget", 9), "was made with another config"),
        (("--experiments", tmp_path / "nowhere.yaml"), "nowhere.yaml: cannot be read"),
        (("--out", tmp_path), "holds something else"),
        (("--out", tmp_path / "other"), "holds something else"),
    ):
        assert research_command(["baselines", *map(str, args)]) == 2
        err = capsys.readouterr().err
        assert fault in err and err.count("\n") == 1
