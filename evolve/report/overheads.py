"""Overheads: the measurements behind a program, what its fit and its steps cost, and how large it is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib import resources

from evolve.host.deployments import of_experiment
from evolve.host.emit import program_for
from evolve.output.columns import figures, integers, words, wrapped
from evolve.output.terminal import command
from evolve.report.dimension import CARE, GOOD, UNTESTED, Dimension, Exhibit
from evolve.report.ease import go_files
from evolve.report.evidence import Evidence
from evolve.report.retraining import MOST_S
from evolve.report.subject import Subject
from simulator.clock.bind import bind
from simulator.clock.replay import replay_bound
from simulator.common.text import counted
from simulator.kernels.tables import names
from simulator.language.opcodes import assemble
from simulator.serving.experiment import Experiment
from simulator.serving.gpu import hardware_table
from simulator.serving.load import load_of
from simulator.serving.workload import duration_s, offered_requests
from translate_go import TARGETS, emit
from translate_go.target import reads_kernels

NAME = "overheads"
REPEATS = 3
FIGURES = [wrapped("what"), figures(",.4g", "figure")]
FASTER = 1000.0  # than the served load
RULE = (
    f"good: a refit takes at most {MOST_S:g} CPU seconds, and a replay is at least {FASTER:,.0f} times faster than "
    "its load; with care: otherwise; untested: there is no clean run to replay"
)


@dataclass(frozen=True, slots=True)
class Speed:
    """Replays of the clean runs, the fastest of REPEATS: us of the replays and of the loads, and how many steps."""

    replay_us: float
    load_us: float
    steps: int
    requests: int

    @property
    def ns_a_step(self) -> float:
        return self.replay_us / self.steps * 1e3

    @property
    def faster(self) -> float:
        return self.load_us / self.replay_us


def overheads(evidence: Evidence) -> Dimension:
    subject = evidence.subject
    if not subject.clean:
        text = "There is no clean run, so neither a refit nor a replay can be timed."
        return Dimension.of(NAME, "Overheads", (UNTESTED, text), RULE, [_bytes(subject)])
    evidence.pool.line.show("replays are timed ...")
    cpu_s, hours = evidence.refit.cpu_s, sum(map(gpu_hours, subject.fitted))
    speed = speed_of(subject)
    runs = counted(len(subject.fitted), "run")
    data = "no record says which runs are behind the fit"
    if subject.fitted:
        data = f"{runs} and {hours:.1f} GPU hours are behind the fit"
    sentence = (
        f"A compiled replay takes {speed.ns_a_step:,.0f} ns a step, {speed.faster:,.0f} times faster than the load; "
        f"a refit takes {cpu_s:.1f} CPU seconds; {data}."
    )
    level = GOOD if cpu_s <= MOST_S and speed.faster >= FASTER else CARE
    exhibits = [_data(subject), _search(evidence), _speed(subject, speed), _bytes(subject)]
    caveats = ("Times are of this machine, and other work on it makes them longer.",)
    return Dimension.of(NAME, "Overheads", (level, sentence), RULE, exhibits, caveats)


def gpu_hours(e: Experiment) -> float:
    return e.gpus * duration_s(e.workload) / 3600.0


def requests_of(e: Experiment) -> float:
    """The requests of a run: as many as were counted, else as its rates offer."""
    summary = e.observed.summary if e.observed else None
    if summary and summary.completed is not None:
        return summary.completed + (summary.failed or 0)
    return offered_requests(e.workload)


def speed_of(subject: Subject) -> Speed:
    """How fast the clean runs are replayed, one after the other in this process."""
    program, loads = subject.source.complete, [load_of(e, subject.seeds[0]) for e in subject.clean]
    code = assemble(program)
    bound = [bind(code, program.theta, e.facts) for e in subject.clean]
    times, steps = [], 0
    for _ in range(REPEATS + 1):
        begun = time.perf_counter()
        steps = sum(replay_bound(load, b).steps for load, b in zip(loads, bound, strict=True))
        times.append(time.perf_counter() - begun)
    served = sum(duration_s(e.workload) for e in subject.clean)
    requests = sum(len(load.requests) for load in loads)
    return Speed(1e6 * min(times[1:]), 1e6 * served, steps, requests)


def _data(subject: Subject) -> Exhibit:
    others = [e for e in subject.others if e.observed]
    rows = [
        (kind, len(runs), sum(map(requests_of, runs)), sum(map(gpu_hours, runs)), len({e.model for e in runs}))
        for kind, runs in (("fitted", subject.fitted), ("measured, not fitted", others))
    ]
    columns = [words("runs that were"), integers("runs"), figures(",.0f", "requests"), figures(",.1f", "GPU hours")]
    columns.append(integers("models"))
    note = "GPU hours: duration of the load times GPUs. Requests: as many as were counted, else as the rates offer."
    return Exhibit.of("Measurements", columns, rows, subject.again(NAME), note=note)


def _search(evidence: Evidence) -> Exhibit:
    subject, report, outcomes = evidence.subject, evidence.subject.report, evidence.outcomes
    cpu_s = report.cpu_s if report else None
    rows: list[tuple[str, object]] = [
        ("proposals", len(outcomes)),
        ("candidates that could be scored", sum(o.elite is not None for o in outcomes)),
        ("CPU hours of the search", sum(cpu_s.values()) / 3600.0 if cpu_s else None),
    ]
    note = "" if cpu_s else "A shipped or unfinished run has no account of CPU time; searching again makes one."
    again = command("archive", subject.path or "RUN"), *subject.searching
    return Exhibit.of("The search that found it", FIGURES, rows if subject.run else [], *again, note=note)


def _speed(subject: Subject, speed: Speed) -> Exhibit:
    rows = [
        ("ns a step", speed.ns_a_step),
        ("ns a request", 1e3 * speed.replay_us / speed.requests),
        ("times faster than the load", speed.faster),
        ("steps", speed.steps),
        ("requests", speed.requests),
    ]
    title = "A replay of the clean runs, compiled, on one core"
    again = subject.again(NAME), command("emit", subject.source.name, "--out", "go", "--check")
    note = (
        "ns a step: the whole replay over the steps that it counts; `ns` of python -m research leaderboard is the time "
        "of one step's formula. emit --check times the emitted Go, where a Go toolchain is installed."
    )
    return Exhibit.of(title, FIGURES, rows, *again, note=note)


def _bytes(subject: Subject) -> Exhibit:
    source = subject.source
    rows: list[list[object]] = [["text of the program", len(source.text.encode())]]
    what = "all emitted files (Go, its test, INTEGRATION.md), deployments not baked in"
    rows.append([what, _size(go_files(source))])
    if subject.clean:
        one = emit(program_for(source), target=next(iter(TARGETS)), deployments=[of_experiment(subject.clean[0])])
        rows.append(["all emitted files, with one deployment", _size(one)])
    if reads_kernels(source.complete):
        gpus = {e.hardware for e in subject.experiments}
        tables = {str(entry.get("kernels")) for entry in hardware_table().values() if entry["name"] in gpus}
        folder = resources.files("configs") / "kernels"
        for table in sorted(tables & set(names())):
            rows.append([f"timed kernels, {table}", len((folder / f"{table}.parquet").read_bytes())])
    return Exhibit.of("Sizes", [wrapped("what"), integers("bytes")], rows, command("emit", source.name, "--out", "go"))


def _size(files: dict[str, str]) -> int:
    return sum(len(text.encode()) for text in files.values())
