"""Workloads: errors by kind of load and by load stage, kinds of loads that no fit has seen, and overload."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from evaluator.metrics import mean_abs
from evaluator.score import MEANS
from evaluator.statistics import bias
from evolve.output.columns import figures, integers, words, wrapped
from evolve.output.table import PASS_PCT
from evolve.output.terminal import command
from evolve.plan.forecast import ObservedErrors
from evolve.report.dimension import CARE, GOOD, MEAN_ERRORS, POOR, UNTESTED, Dimension, Exhibit, percent
from evolve.report.evidence import Evidence
from evolve.report.held_out import by_fold, figures_of, means_of, over_the_limits
from evolve.run.ranges import Ranges
from evolve.run.use import saw
from simulator.common.text import counted
from simulator.serving.experiment import Experiment
from simulator.serving.observations import OVERLOADED
from simulator.serving.trace import Chains, Requests, Trace
from simulator.serving.workload import ARRIVALS, Profile, output_lengths, prompt_lengths

NAME = "workloads"
RULE = (
    "good: the mean errors without each workload and of overloaded runs are within 10 % (E2E) and 15 % (TTFT, ITL); "
    "with care: one of the two; poor: a workload is beyond in E2E; untested: no workload was left out"
)

# A trace's windows are not at a constant rate if the requests of one are so many standard deviations of a Poisson
# count, and such a share, away from what the mean rate gives.
CHANCE, STEADY = 4.0, 0.1


def _profile(e: Experiment) -> Profile | None:
    return e.workload.source if isinstance(e.workload.source, Profile) else None


def _arrives(kind: str, e: Experiment) -> bool:
    profile = _profile(e)
    return profile is not None and profile.arrival.kind == kind


def _repeats(e: Experiment) -> bool:
    match e.workload.source:
        case Profile() as profile:
            return bool(profile.groups and profile.prompts_per_group)
        case Trace(requests=Requests(chains=Chains() as chains)):
            # The number of a prompt's last piece stands for the whole prompt.
            whole = chains.number[chains.first[1:] - 1]
            return len(np.unique(whole)) < len(whole)
        case Trace(requests=requests):
            return bool((requests.prompt >= 0).any())


def _changes(e: Experiment) -> bool:
    """Whether the rate of the load changes; of a trace, by more than arrivals at a constant rate do by chance."""
    rates = np.array([stage.level for stage in e.workload.stages])
    if _profile(e) is not None or e.workload.closed:
        return bool((rates != rates[0]).any())
    lengths_s = np.array([stage.duration_s for stage in e.workload.stages])
    expected = lengths_s * (rates * lengths_s).sum() / lengths_s.sum()
    off = np.abs(rates * lengths_s - expected)
    return bool(((off > CHANCE * np.sqrt(expected)) & (off > STEADY * expected)).any())


# Kinds of loads that an experiments file can describe, and whether a run is of the kind.
LOADS: dict[str, Callable[[Experiment], bool]] = {
    **{f"arrivals: {kind}": partial(_arrives, kind) for kind in ARRIVALS},
    "recorded trace": lambda e: _profile(e) is None,
    "conversations of several turns": lambda e: bool((p := _profile(e)) and p.session),
    "prompts with a shared prefix": lambda e: bool((p := _profile(e)) and p.groups and p.system_prompt_len),
    "prompts that never repeat": lambda e: not _repeats(e),
    "prompts of different lengths": lambda e: len(set(prompt_lengths(e.workload).tolist())) > 1,
    "answers of different lengths": lambda e: len(set(output_lengths(e.workload).tolist())) > 1,
    "rates that change during the run": _changes,
    "clients that give up": lambda e: e.workload.timeout_s is not None,
    "overload": lambda e: e.quality == OVERLOADED,
}


def workloads(evidence: Evidence) -> Dimension:
    makers = _by_workload, _held_out, _by_stage, _overloaded, _kinds, _ranges
    missing = [kind for kind, holds in LOADS.items() if not any(map(holds, evidence.subject.fitted))]
    caveats = [f"No fitted run has: {', '.join(missing)}."] if missing else []
    return replace(brief(evidence), exhibits=tuple(make(evidence) for make in makers), caveats=tuple(caveats))


def brief(evidence: Evidence) -> Dimension:
    """The dimension without its tables."""
    return Dimension.of(NAME, "Workloads", _verdict(evidence), RULE)


def _verdict(evidence: Evidence) -> tuple[str, str]:
    by_name = defaultdict(list)
    for r in evidence.held_out:
        if r.kind == "workloads":
            by_name[r.fold].append(r)
    if not by_name:
        unknown = "No search of its validation left a workload out."
        return UNTESTED, f"{unknown} {_overload_text(evidence)}"
    means = {name: means_of(rows) for name, rows in by_name.items()}
    failed = {name: over_the_limits(of_name) for name, of_name in means.items() if over_the_limits(of_name)}
    over = over_the_limits(_overload_means(evidence))
    worst = max(means, key=lambda name: means[name]["e2e"] or 0.0)
    sentence = (
        f"Without {worst}, the hardest of {len(means)} workloads to predict, the mean E2E error is "
        f"{percent(means[worst]['e2e'])}. {_overload_text(evidence)}"
    )
    if any("e2e" in names for names in failed.values()):
        return POOR, sentence
    return CARE if failed or over else GOOD, sentence


def _overload_means(evidence: Evidence) -> dict[str, float | None]:
    return {name: mean_abs(evidence.errors_of(_overloaded_runs(evidence), name)) for name in MEANS}


def _overloaded_runs(evidence: Evidence) -> list[Experiment]:
    """The overloaded runs of which a latency was measured."""
    overloaded = [e for e in evidence.subject.experiments if e.quality == OVERLOADED]
    return [e for e in overloaded if any(evidence.errors_of([e], name) != [None] for name in MEANS)]


def _overload_text(evidence: Evidence) -> str:
    runs = _overloaded_runs(evidence)
    return overload_text(evidence.errors_of(runs, "e2e")) if runs else "There is no overloaded run to predict."


def overload_text(errors_pct: Sequence[float | None]) -> str:
    """A sentence with the signed errors of those overloaded runs whose mean E2E is predicted beyond the limit.

    >>> overload_text([-6.5, 2.8, -61.2, -47.3])
    'Of 4 overloaded runs, 2 have their mean E2E predicted more than 10 % off: by -47 and -61 %.'
    """
    off = sorted((e for e in errors_pct if e is not None and abs(e) > PASS_PCT["e2e"]), key=abs)
    *first, last = [f"{e:+.0f}" for e in off] or [""]
    by = f": by {', '.join(first)}{' and ' if first else ''}{last} %" if off else ""
    have = "has its" if len(off) == 1 else "have their"
    return (
        f"Of {counted(len(errors_pct), 'overloaded run')}, {len(off) or 'none'} {have} mean E2E predicted more than "
        f"{PASS_PCT['e2e']:g} % off{by}."
    )


def _by_workload(evidence: Evidence) -> Exhibit:
    groups: dict[tuple[str, str], list[Experiment]] = defaultdict(list)
    use = {True: "in sample", False: "not fitted on", None: "no record"}
    for e in evidence.subject.clean:
        groups[e.workload.name, use[saw(evidence.subject.source.record, e)]].append(e)
    rows = []
    for (name, sample), runs in sorted(groups.items()):
        e2e = figures_of(list(zip(runs, evidence.errors_of(runs, "e2e"), strict=True)))
        ttft, itl = (mean_abs(evidence.errors_of(runs, x)) for x in ("ttft", "itl"))
        rows.append([name, sample, len(runs), e2e.mean, ttft, itl, e2e.worst, e2e.worst_in])
    columns = [words("workload", "runs are"), integers("runs"), MEAN_ERRORS]
    columns += [figures("+.1f", "worst E2E"), words("worst run")]
    again = evidence.subject.by("predict", "--json", dimension=NAME)
    return Exhibit.of("Errors by workload, in percent", columns, rows, again)


def _held_out(evidence: Evidence) -> Exhibit:
    title = "Held out: the search repeated without the workload, errors there in percent"
    return by_fold(evidence.held_out, NAME, title, evidence.subject.validating(NAME, NAME))


def _by_stage(evidence: Evidence) -> Exhibit:
    """Errors of load stages by how many requests are in flight, which Little's law gives from what was observed."""
    groups: dict[int, list[ObservedErrors]] = defaultdict(list)
    for e in evidence.subject.clean:
        for stage, c in zip(e.workload.stages, evidence.forecasts[e.id].stages, strict=True):
            if c.observed and c.observed.e2e_ms.mean:
                in_flight = stage.in_flight(c.observed.e2e_ms.mean)
                groups[max(0, math.floor(math.log2(max(in_flight, 1.0))))].append(c)
    rows = []
    for octave, stages in sorted(groups.items()):
        errors = [[(s.error_pct or {})[f"{x}_ms"]["mean"] for s in stages] for x in MEANS]
        means = *map(mean_abs, errors), bias(errors[0])
        rows.append([f"{2**octave} to {2 ** (octave + 1)}", len(stages), *means])
    columns = [words("requests in flight"), integers("stages"), MEAN_ERRORS, figures("+.2f", "E2E, signed")]
    title = "Errors by load, in percent, of the load stages of clean runs"
    note = "In sample where the program was fitted on the run. Requests in flight: rate times observed mean E2E."
    return Exhibit.of(title, columns, rows, evidence.subject.by("predict", "--json", dimension=NAME), note=note)


def _overloaded(evidence: Evidence) -> Exhibit:
    rows = []
    for e in _overloaded_runs(evidence):
        f = evidence.forecasts[e.id]
        failed = [o.failed if o else None for o in (f.summary.predicted, f.summary.observed)]
        rows.append([e.id, f.fitted, *evidence.errors[e.id].figures, *failed])
    columns = [words("run", "fitted"), figures("+.1f", "E2E", "TTFT", "ITL")]
    columns.append(integers("failed, predicted", "failed, observed"))
    title = "Overloaded runs: errors in percent, and requests that failed"
    return Exhibit.of(title, columns, rows, evidence.subject.by("predict", "--json", dimension=NAME))


def _kinds(evidence: Evidence) -> Exhibit:
    subject = evidence.subject
    others = [e for e in subject.others if e.observed]
    rows = [(kind, sum(map(holds, subject.fitted)), sum(map(holds, others))) for kind, holds in LOADS.items()]
    columns = [wrapped("kind of load"), integers("fitted runs", "measured, not fitted")]
    title = "Kinds of loads that an experiments file can describe, and how many runs are of each kind"
    note = "Without fitted runs of a kind, the replay is exact, and the worth of the constants there is not known."
    return Exhibit.of(title, columns, rows, subject.again(NAME), note=note)


def _ranges(evidence: Evidence) -> Exhibit:
    record = evidence.subject.source.record
    r = (record and record.ranges) or Ranges()
    spans = {
        "requests in flight in a stage": r.requests_in_flight,
        "tokens of a prompt": r.prompt_tokens,
        "max_num_batched_tokens": r.max_num_batched_tokens,
    }
    rows: list[list[object]] = [[name, span[0], span[1]] for name, span in spans.items() if span]
    if r.uncached_step_tokens is not None:
        rows.append(["uncached prompt tokens of a request in a step", None, r.uncached_step_tokens])
    columns = [wrapped("of the load"), figures(",.0f", "from", "to")]
    title = "Range of the fitted runs; a prediction outside of it has a warning"
    return Exhibit.of(title, columns, rows, command("show", evidence.subject.source.name, "--json"))
