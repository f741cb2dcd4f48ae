"""How journal and archive grow: synthetic runs of up to a million candidates, read, rebuilt and replayed.

    python tools/scale.py --candidates 1000000 --experiments 20

A run's journal is made of the shipped run's outcomes, each with a new number, a new key and slightly changed errors, in
about the order in which that search found them. A candidate is what was fitted; duplicates and other rejections come on
top, as many for each candidate as in the shipped run. One row for each power of ten from 10,000 to --candidates; each is
measured in a process of its own, whose peak of memory it shows. MB are 10^6 bytes.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

from paths import ROOT

from archive.elite import OLD_KEYS
from archive.journal import Journal
from archive.population import Population
from evolve.run.config import Config
from evolve.run.folder import RunFolder, create, empty_archive, first_population, open_run
from evolve.search.assessor import Remembering
from evolve.search.proposer import Operators
from evolve.search.search import Search
from simulator.common.json import JsonObject, renamed

SHIPPED = ROOT / "seeds" / "champion"
SMALLEST = 10_000
BATCH = 1_000  # lines written at a time
LAST = 2_000  # elites or outcomes at the end whose time is taken on its own
CHANGE = 0.003  # relative standard deviation of an error's change; the front then grows as in the shipped run


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run of this size takes. Seconds, bytes, and peaks of resident memory up to the end of a step."""

    candidates: int
    experiments: int
    lines: int
    mb: float  # of the journal
    write_s: float
    unchecked_s: float  # what `resume` looks at first
    read_s: float
    read_peak_mb: float
    archive_s: float
    archive_us_end: float  # of one elite at the end
    front: int
    reopen_s: float  # of the journal, for appending
    replay_s: float
    replay_us_end: float  # of one outcome at the end
    peak_mb: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=1_000_000, help="of the largest run")
    parser.add_argument("--experiments", type=int, default=20, help="that each candidate is scored on")
    parser.add_argument("--only", action="store_true", help="the largest run alone")
    parser.add_argument("--no-replay", action="store_true", help="read only: no archive, no search")
    args = parser.parse_args()
    sizes = [SMALLEST * 10**i for i in range(12) if SMALLEST * 10**i < args.candidates and not args.only]
    print("  ".join(f.name for f in fields(Measured)))
    for size in [*sizes, args.candidates]:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, spawn) as alone, tempfile.TemporaryDirectory() as home:
            path = Path(home) / "run"
            begun = time.perf_counter()
            lines = write(path, size, args.experiments)
            write_s = time.perf_counter() - begun
            measured = alone.submit(measure, path, not args.no_replay).result()
            measured = replace(measured, candidates=size, experiments=args.experiments, lines=lines, write_s=write_s)
        print(
            "  ".join(
                f"{v:{len(f.name)}.5g}" if isinstance(v, float) else f"{v:{len(f.name)}}"
                for f, v in zip(fields(Measured), astuple(measured), strict=True)
            ),
            flush=True,
        )
    return 0


def write(path: Path, candidates: int, experiments: int) -> int:
    """Write a run with so many candidates. Returns the lines of its journal."""
    shipped = open_run(SHIPPED)
    config = replace(
        shipped.config,
        budget=candidates,
        search=replace(shipped.config.search, patience=shipped.config.search.generations),
    )
    run = create(path, config, shipped.about)
    journal, batch, lines = Journal(run.journal), list[JsonObject](), 0
    for line in made(shipped.lines(), config, candidates, experiments):
        batch.append(line)
        lines += 1
        if len(batch) == BATCH:
            journal.append(batch)
            batch.clear()
    journal.append(batch)
    journal.close()
    return lines


def made(real: Sequence[JsonObject], config: Config, candidates: int, experiments: int) -> Iterator[JsonObject]:
    """The journal's lines: the real run's seeds, then its other outcomes, changed, until there are enough candidates."""
    rng, search = random.Random(0), config.search
    seeds = [line for line in real if line["operator"].startswith("seed:")]
    others = [line for line in real[len(seeds) :] if line["operator"] != "polish"]
    number = fitted = 0
    while fitted < candidates or (number - len(seeds)) % (search.batch * search.islands):
        if number < len(seeds):
            line, island = seeds[number], None
        else:
            at = fitted / candidates + rng.uniform(-0.05, 0.05)  # candidates of the real run at about this stage
            line = others[min(max(int(at * len(others)), 0), len(others) - 1)]
            if fitted == candidates and "key" in line:  # the last generation is filled up with rejections
                continue
            island = (number - len(seeds)) // search.batch % search.islands
        line = line | {"id": number, "island": island}
        if "key" in line:
            fitted += 1
            line["key"] = f"{rng.getrandbits(64):016x}"
        if "elite" in line:
            line["elite"] = changed(line["elite"], experiments, rng) | {"id": number, "key": line["key"]}
        yield line
        number += 1


def changed(elite: JsonObject, experiments: int, rng: random.Random) -> JsonObject:
    """The elite with slightly other errors, on so many experiments."""

    def other(x: float | None) -> float | None:
        return None if x is None else float(f"{x * math.exp(rng.gauss(0.0, CHANGE)):.6g}")

    elite = renamed(elite, OLD_KEYS)  # the shipped run is of an older release
    rows = elite["rows"]
    rows = [rows[i % len(rows)] for i in range(experiments)]
    return elite | {
        **{name: other(elite[name]) for name in ("worst3", "mean_error", "group_out")},
        "rows": [
            [name if i < len(elite["rows"]) else f"{name}-{i}", *map(other, errors)]
            for i, (name, *errors) in enumerate(rows)
        ],
    }


def measure(path: Path, replayed: bool) -> Measured:
    """What `evolve resume` does with the run before it assesses anything new, but for its workers, step by step."""
    run = open_run(path)
    clock = Clock()
    run.doubts  # noqa: B018
    unchecked_s = clock.lap()
    past = run.outcomes()
    read_s, read_peak_mb = clock.lap(), peak_mb()
    archive_s = archive_us = reopen_s = replay_s = replay_us = 0.0
    front = 0
    if replayed:
        archive, elites = empty_archive(run.config), [o.elite for o in past if o.elite]
        clock.lap()
        for elite in elites[:-LAST]:
            archive.add(elite)
        archive_s = clock.lap()
        for elite in elites[-LAST:]:
            archive.add(elite)
        last_s = clock.lap()
        archive_s, archive_us, front = archive_s + last_s, 1e6 * last_s / len(elites[-LAST:]), len(archive.front)
        del archive, elites
        clock.lap()
        remembered = {outcome.proposal.id: outcome for outcome in past}
        journal = Journal(run.journal)
        reopen_s = clock.lap()
        replay_s, replay_us = replay(run, remembered, len(past), journal)
        journal.close()
    return Measured(
        0,
        0,
        0,
        (path / "journal.jsonl").stat().st_size / 1e6,
        0.0,
        unchecked_s,
        read_s,
        read_peak_mb,
        archive_s,
        archive_us,
        front,
        reopen_s,
        replay_s,
        replay_us,
        peak_mb(),
    )


def replay(run: RunFolder, remembered: dict, lines: int, journal: Journal) -> tuple[float, float]:
    """Seconds to repeat the search from its journal, and microseconds of each outcome at the end."""
    clock, times = Clock(), list[float]()

    def watch(population: Population) -> None:
        if population.proposals == lines - LAST:
            times.append(clock.lap())

    operators = Operators(run.config, None, remembered)  # type: ignore[arg-type]  # never asked
    search = Search(run.config, first_population(run.config), operators, Remembering(remembered, None), journal, watch)  # type: ignore[arg-type]
    search.run([("seed", "")] * sum(o.proposal.island is None for o in remembered.values()))
    last_s = clock.lap()
    assert search.population.proposals == lines
    return sum(times) + last_s, 1e6 * last_s / LAST


class Clock:
    """Seconds since the last lap."""

    def __init__(self) -> None:
        self.last = time.perf_counter()

    def lap(self) -> float:
        before, self.last = self.last, time.perf_counter()
        return self.last - before


def peak_mb() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


if __name__ == "__main__":
    sys.exit(main())
