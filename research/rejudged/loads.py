"""The experiments on load stages: trainings of the bench, and fits that it does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import scipy

from evaluator.fit.fit import BLACKBOX, fit, fit_set
from evaluator.judge.physics import KERNEL_STEP
from evolve.run.data import but_last
from evolve.validate.held_out import held_out_errors
from research.methods.catalog import METHODS
from research.methods.closed_form import Means, direct, true_means
from research.methods.entries import OURS, OWN
from research.methods.result import IN_SAMPLE
from research.methods.train import form_of
from research.rejudged.finding import Figure, Finding, alike, difference, mean_error, of_estimate
from research.rejudged.verdict import apart, mean_of, resampled
from research.rejudged.world import CAP_PCT, Errors, World, capped, held_out, model_names, predicted, program
from simulator.language.ir import Program
from simulator.serving.experiment import Experiment
from simulator.serving.splits import TEST

WORKLOADS = "workloads"
KINDS = (IN_SAMPLE, "models", WORKLOADS)  # of the bench's comparisons that are shown
# Overheads of a step in us that the second round took as the floor of each model.
FLOORS_US = {
    "meta-llama/Llama-2-7b-hf": 3897.0,
    "codellama/CodeLlama-34b-Instruct-hf": 6673.0,
    "meta-llama/Llama-2-70b-hf": 8029.0,
    "mistralai/Mixtral-8x7B-v0.1": 9125.0,
}
ODD_MODEL, SMALL_MODEL = "codellama/CodeLlama-34b-Instruct-hf", "meta-llama/Llama-2-7b-hf"
DELAY_US = 400.0  # the largest delay that the second round derived for scheduling
_QUEUEING = "\ndef queueing_time(r, s, *, base: us = 5000.0, each: us/token = 0.0): return base + each * r.input_len"
_OUTPUT = "\ndef output_token_time(s, *, each: us = 100.0): return each"
_COMPLETION = "\ndef completion_time(s, *, each: us = 100.0): return each"
_NO = {
    _QUEUEING: "\ndef queueing_time(r, s): return 0",
    _OUTPUT: "\ndef output_token_time(s): return 0",
    _COMPLETION: "\ndef completion_time(s): return 0",
}


def of_bench(world: World, worse: str, better: str, protocol: str = OWN, kind: str = WORKLOADS) -> Finding:
    """The bench's two methods, compared by `protocol` without each workload; all other comparisons as figures."""
    figures = []
    for p in (OWN, OURS):
        for k in KINDS:
            theirs, ours = alike(world.errors(worse, p, k), world.errors(better, p, k))
            if theirs:
                held = k if k == IN_SAMPLE else f"without each {k.removesuffix('s')}"
                protocol_name = "own protocol" if p == OWN else "our protocol"
                pair = ((better, ours), (worse, theirs))
                figures += [mean_error(f"{method}, {protocol_name}, {held}", errors) for method, errors in pair]
                figures.append(of_estimate(f"difference, {protocol_name}, {held}", difference(world, theirs, ours)))
    chosen = difference(world, world.errors(worse, protocol, kind), world.errors(better, protocol, kind))
    return Finding(chosen, tuple(figures))


def counts_for_all(world: World) -> Finding:
    """One set of constants of the host's linear form against one set per model, without each workload."""
    shared, own = alike(_counts(world), _counts(world, _model))
    return Finding(
        difference(world, shared, own),
        (mean_error("linear in counts, a set for each model", own), mean_error("linear in counts, one set", shared)),
    )


def sizes_for_all(world: World) -> Finding:
    """The same comparison for forms that read the model's size, and the kernel sum with nothing fitted."""
    found = of_bench(world, "components-9", "components-9-per-model", OURS)
    form = _form("jams")
    own, shared = alike(held_out(world, form, _workload, _model), world.errors("jams", OURS, WORKLOADS))
    sums = predicted(world, _kernels())
    itl_us = [m.itl_ms * 1e3 for m in true_means(world.experiments)]
    more = (
        mean_error("jams, our protocol, a set for each model, without each workload", own),
        mean_error("jams, our protocol, one set, without each workload", shared),
        of_estimate("difference, jams", difference(world, shared, own)),
        mean_error("sum of measured kernels, nothing fitted on any model", sums),
        Figure("longest over shortest mean ITL of a load stage, all models", max(itl_us) / min(itl_us), "times"),
    )
    return replace(found, figures=found.figures + more)


def each_run_alone(world: World) -> Finding:
    """A fit of each run alone against one set for all, on the last load stage that neither saw."""
    several = [e for e in world.experiments if len(e.workload.stages) > 1]
    early = {e.id: but_last(e) for e in world.experiments}
    counts = program(BLACKBOX)
    alone, of_model = dict[str, Program](), dict[str, Program]()
    for e in several:
        alone[e.id] = _fitted(counts, [early[e.id]], False)
        of_model[e.id] = _fitted(counts, [early[o.id] for o in world.experiments if o.model == e.model], False)
    shared = _fitted(_form("jams"), early.values(), True)
    last = {
        "linear in counts, each run alone": _on_last(several, alone),
        "linear in counts, a set for each model": _on_last(several, of_model),
        "jams, one set": _on_last(several, dict.fromkeys(alone, shared)),
        "sum of measured kernels, nothing fitted": _on_last(several, dict.fromkeys(alone, _kernels())),
    }
    rows = tuple(mean_error(name, errors) for name, errors in last.items())
    own, one = (last[name] for name in ("linear in counts, each run alone", "jams, one set"))
    return Finding(difference(world, one, own), rows)


def decomposition(world: World) -> Finding:
    """Analytic components with the contexts of decodes against counts: one set of constants, without each workload."""
    counts = _counts(world)
    components = world.errors("components-9", OURS, WORKLOADS)
    rows = (mean_error("linear in counts", counts), mean_error("components-9", components))
    return Finding(difference(world, components, counts), rows)


def step_floors(world: World) -> Finding:
    """The time of a step at no load, by the line of ITL over concurrent requests, over the floor of that model."""
    means = {model: [m for m in true_means(world.experiments) if m.model == model] for model in FLOORS_US}
    form = _form("direct")

    def ratio(stages: Mapping[str, list[Means]]) -> float:
        return float(np.mean([_level_us(form, stages[m]) / us for m, us in FLOORS_US.items()]))

    def again(rng: np.random.Generator) -> float:
        return ratio({m: [rows[i] for i in rng.integers(0, len(rows), len(rows))] for m, rows in means.items()})

    figures = []
    for model, us in FLOORS_US.items():
        name = model.split("/")[1]
        level_ms = _level_us(form, means[model]) / 1e3
        figures.append(Figure(f"{name}: a step at no load; the floor was {us / 1e3:.1f} ms", level_ms, "ms"))
        shortest = [s.observed_us for s in world.cycles if world.model_of(s.experiment) == model]
        if shortest:
            percentile_ms = float(np.quantile(np.concatenate(shortest), 0.01)) / 1e3
            figures.append(Figure(f"{name}: 1 % of its cycles are shorter than", percentile_ms, "ms"))
    of = f"{sum(map(len, means.values()))} load stages of {len(means)} models"
    return Finding(resampled(ratio(means), again, "times the floor", of), tuple(figures))


def delays(world: World, figure: str) -> Finding:
    """Fitted queueing, token and completion times against none, on models left out, around the sum of kernels."""
    none = predicted(world, _kernels())
    rows = {"none of them": none}
    names = {_QUEUEING: "queueing_time", _OUTPUT: "output_token_time", _COMPLETION: "completion_time"}
    rows |= {f"{name} alone": _with_delays(world, (part,)) for part, name in names.items()}
    rows["all three"] = _with_delays(world, tuple(names))
    figures = tuple(mean_error(f"{figure.upper()}, {name}", errors, figure) for name, errors in rows.items())
    return Finding(difference(world, none, rows["all three"], figure), figures)


def silent_delays(world: World) -> Finding:
    """Scheduling and preemption times of DELAY_US against 0: the change of the predicted E2E error, in points."""
    text = KERNEL_STEP + f"\ndef scheduling_time(s, *, t: us = {DELAY_US}): return t"
    text += f"\ndef preemption_time(s, *, t: us = {DELAY_US}): return t"
    with_them, without = predicted(world, program(text)), predicted(world, program(KERNEL_STEP))
    rows = [(with_them[run], without[run]) for run in without]
    changes = {f: max(abs((a[f] or 0.0) - (b[f] or 0.0)) for a, b in rows) for f in ("e2e", "ttft", "itl")}
    figures = tuple(Figure(f"largest change of a run's {f.upper()} error", x, "points") for f, x in changes.items())
    note = (
        "In the host, whose rules the replay keeps, both only move events that do nothing, so the verdict is about "
        "those rules. What the engine spends on scheduling is inside its cycles."
    )
    return Finding(difference(world, with_them, without), figures, (note,))


def ttft(world: World) -> Finding:
    """The TTFT error of replays that know a run's specification only, on models left out, not capped."""
    fitted = _with_delays(world, (_QUEUEING,))
    values = [_whole(row["ttft"]) for row in fitted.values()]
    uncached = [replace(e, engine=replace(e.engine, prefix_caching=False)) for e in world.experiments]
    without_cache = [_whole(held_out_errors(_kernels(True), [e], False)[0].errors["ttft"]) for e in uncached]
    runaway = [_whole(row["ttft"]) for row in world.errors("regimes-2-us", OWN, IN_SAMPLE).values()]
    figures = (
        _mean("kernel sum with a fitted queueing time", values),
        _mean("kernel sum, prefix cache off in the replay", without_cache),
        _mean("regimes-2-us, own protocol, in sample", runaway),
        Figure("its runs beyond 1,000 %", float(sum(v > 1000.0 for v in runaway)), f"of {len(runaway)} runs"),
    )
    models = model_names(world, fitted)
    return Finding(mean_of(values, models, "%", f"{len(values)} runs of {len(set(models))} models"), figures)


def odd_model(world: World) -> Finding:
    """The E2E error of the kernel sum on CodeLlama-34B less that on all others, nothing fitted."""
    sums = predicted(world, _kernels(queueing=True))
    jams = world.errors("jams", OURS, "models")
    rows = {"sum of kernels, nothing fitted": sums, "jams, our protocol, without each model": jams}
    figures = []
    for name, errors in rows.items():
        figures += [mean_error(f"{name}: {who}", part) for who, part in _parted(world, errors, ODD_MODEL).items()]
    parted = _parted(world, sums, ODD_MODEL).values()
    mine, others = ([[capped(row["e2e"])] for row in part.values()] for part in parted)
    of = f"{len(mine)} runs against {len(others)}"
    note = "Its fourth run is overloaded: TTFT is two minutes at a load just above capacity. It is never fitted."
    return Finding(apart(mine, others, "points", of), tuple(figures), (note,))


def small_model(world: World) -> Finding:
    """The in-sample E2E error of the closed form per model on Llama-2-7B, with true output lengths."""
    true, published = (
        _parted(world, world.errors(name, OWN, IN_SAMPLE), SMALL_MODEL)["this model"]
        for name in ("direct", "direct-published")
    )
    values = [capped(row["e2e"]) for row in true.values()]
    figures = (
        mean_error("closed form, with true lengths and ITL", true),
        mean_error("closed form, with the lengths and ITL that the load generator reports", published),
        *(Figure(run, value, "%") for run, value in zip(true, values, strict=True)),
    )
    return Finding(mean_of(values, list(true), "%", f"{len(values)} runs"), figures)


def both_at_once(world: World) -> Finding:
    """The ITL error of one program, on models left out, whose E2E error is shown beside it."""
    errors = _with_delays(world, (_QUEUEING,))
    values, models = [capped(row["itl"]) for row in errors.values()], model_names(world, errors)
    both = sum(capped(row["e2e"]) < 10.0 and capped(row["itl"]) < 20.0 for row in errors.values())
    figures = (
        mean_error("E2E of the kernel sum with a fitted queueing time", errors),
        mean_error("ITL of the same program", errors, "itl"),
        Figure("runs within 10 % E2E and 20 % ITL at once", float(both), f"of {len(errors)} runs"),
    )
    return Finding(mean_of(values, models, "%", f"{len(values)} runs of {len(set(models))} models"), figures)


def steps_and_loads(world: World) -> Finding:
    """Spearman's correlation, over trainings of the bench, of the error on single steps and the E2E error of the runs
    that the steps are of."""
    recorded = {s.experiment for s in world.cycles}
    pairs = []
    for r in world.results:
        step = r.cycles.get(TEST)
        if r.task.kind == IN_SAMPLE and step and step.mape_pct is not None:
            e2e = [capped(row["e2e"]) for run, row in r.errors.items() if run in recorded]
            pairs.append((step.mape_pct, float(np.mean(e2e))))
    rows = np.array(pairs)

    def correlation(chosen: np.ndarray) -> float:
        varied = np.ptp(chosen, axis=0).min() > 0.0
        return float(scipy.stats.spearmanr(chosen[:, 0], chosen[:, 1]).statistic) if varied else 0.0

    estimate = resampled(
        correlation(rows),
        lambda rng: correlation(rows[rng.integers(0, len(rows), len(rows))]),
        "",
        f"{len(rows)} trainings",
        2000,
    )
    best, worst = rows[np.argsort(rows[:, 0])][[0, -1]]
    figures = (
        Figure(f"E2E of the training with the best steps ({best[0]:.1f} % on steps)", float(best[1]), "%"),
        Figure(f"E2E of the training with the worst steps ({worst[0]:.1f} % on steps)", float(worst[1]), "%"),
    )
    note = "Trainings by our protocol saw the mean latencies of these runs, which helps E2E and not steps."
    return Finding(estimate, figures, (note,))


def _workload(e: Experiment) -> str:
    return e.workload.name


def _model(e: Experiment) -> str:
    return e.model


def _counts(world: World, alone: Callable[[Experiment], str] = lambda e: "") -> Errors:
    """The host's linear form without each workload. A single run leaves some of its constants open: they stay at the
    start, as in the baselines."""
    return held_out(world, program(BLACKBOX), _workload, alone, reset_to_prior=False)


@cache
def _form(method: str) -> Program:
    return form_of(next(m for m in METHODS if m.name == method))


def _kernels(queueing: bool = False) -> Program:
    """The sum of measured kernels with no delays, or with a queueing time of 5 ms."""
    parts = [part if part == _QUEUEING and queueing else nothing for part, nothing in _NO.items()]
    return program(KERNEL_STEP + "".join(parts))


def _with_delays(world: World, parts: tuple[str, ...]) -> Errors:
    """The errors of the kernel sum with these delays fitted without each model, and the other delays 0."""
    text = "".join(part if part in parts else nothing for part, nothing in _NO.items())
    return held_out(world, program(KERNEL_STEP + text), _model)


def _fitted(form: Program, experiments: Iterable[Experiment], reset_to_prior: bool) -> Program:
    return fit(form, fit_set(list(experiments)), allow_hostile=True, reset_to_prior=reset_to_prior).program


def _on_last(experiments: Iterable[Experiment], programs: Mapping[str, Program]) -> Errors:
    return {e.id: held_out_errors(programs[e.id], [e], True)[0].errors for e in experiments}


def _level_us(form: Program, stages: list[Means]) -> float:
    """The first constant of the closed form: a step without requests, in us."""
    (fitted,) = direct(form, stages).values()
    return float(fitted.theta[0])


def _whole(error_pct: float | None) -> float:
    """The absolute error in percent, not capped; CAP_PCT for a run of which nothing completes."""
    return CAP_PCT if error_pct is None else abs(error_pct)


def _mean(name: str, values: list[float]) -> Figure:
    return Figure(name, float(np.mean(values)), "%", median=float(np.median(values)))


def _parted(world: World, errors: Errors, model: str) -> dict[str, Errors]:
    mine = {run: row for run, row in errors.items() if world.model_of(run) == model}
    return {"this model": mine, "all others": {run: row for run, row in errors.items() if run not in mine}}
