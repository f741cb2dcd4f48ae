"""How often `evolve drift` finds a drift that is there, or one that is not, and what it calls it: on known truths.

A case is a load test of the champion's own deployments: three load stages of two minutes on each of several models. What
is observed is a replay of the truth under arrivals of its own, off by the errors of held-out runs of the champion, a run
by each; these runs are then taken out of what `drift` knows of the champion's errors. The truth is the champion itself,
or one with another delay before the queue (alpha), with slower memory (beta), or with a term that the form lacks.

`python tools/drift_power.py [CASES]` (`make drift`) prints the tables of docs/results.md:
200 cases of four models and 200 of one, a quarter of each kind, in ten minutes of one core; before them the verdicts on
the measured runs of each model left out of the fit, and the false alarms of the tests alone.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from evaluator.fit.fit import fit_set
from evaluator.group_out import fitted_without
from evaluator.intervals import Residual, scales
from evaluator.score import MEANS, predictions, score_set
from evolve.calibrate.drift import ALPHA, BETA, BOTH, FORM, NONE, drift
from evolve.calibrate.drift_tests import StageResidual, channel_tests
from evolve.output.columns import figures, words
from evolve.output.files import write_json
from evolve.output.printing import markdown
from evolve.output.progress import Line
from evolve.output.table import Table
from evolve.run.data import fittable
from evolve.run.program import CHAMPION, load, write_program
from evolve.run.trust import INSIDE, trust_file, trust_of
from simulator.common.streams import stream
from simulator.language.parse import parse
from simulator.language.unparse import unparse
from simulator.serving.bundled import bundled_experiments
from simulator.serving.experiment import Experiment
from simulator.serving.observations import Observation, Observed, Statistic

SEED = 2024
RATES, DURATION_S = (4.0, 8.0, 12.0), 120.0
ARRIVALS = 50_000  # arrival seeds of what is observed: neither those of scores nor those of fits
KINDS = ("none", "alpha", "beta", "form")
RIGHT = {"none": NONE, "alpha": ALPHA, "beta": BETA, "form": FORM}
# kind -> the sizes of its drifts, in turn; what they mean is in `truth`
SIZES: Mapping[str, Sequence[float]] = {
    "none": (0.0,),
    "alpha": (0.3, 0.6, 1.0),
    "beta": (0.1, 0.15, 0.2),
    "form": (0.5, 1.0, 2.0),
}
UNITS = {
    "none": "no drift",
    "alpha": "base delay +{:.0f} %",
    "beta": "memory {:.0f} % slower",
    "form": "+{:g} us per decode pair",
}
MEMORY_BOUND = (
    "b.kernel_gemm_us",
    "b.kernel_router_us",
    "b.kernel_elementwise_us",
    "b.kernel_moe_us",
    "b.kernel_moe_quantized_us",
    "b.kernel_decode_attention_us",
    "b.kernel_lm_head_us",
)


@dataclass(frozen=True)
class Case:
    """A synthetic case of this number."""

    number: int
    kind: str
    size: float
    models: int


def truth(kind: str, size: float) -> str:
    """The champion's text with a drift. alpha: the base delay grows by this share. beta: times of kernels that memory
    limits grow by it. form: so many us for each pair of decodes in a batch (decode_reqs squared)."""
    text = load(CHAMPION).text
    if kind == "alpha":
        constants = load(CHAMPION).program.function("queueing_time").constants  # type: ignore[union-attr]
        (base,) = (c for c in constants if c.name.startswith("base"))
        declared = f"{base.name}: us = {{:g}}"
        assert declared.format(base.value) in text
        return text.replace(declared.format(base.value), declared.format(base.value * (1.0 + size)))
    head, formula = text.split("    return max(\n")
    if kind == "beta":
        head = head.replace("b, s, *,", f"b, s, *,\n    slow: one = {1.0 + size:g},")
        for kernel in MEMORY_BOUND:
            assert kernel in formula, kernel
            formula = formula.replace(kernel, f"slow * {kernel}")
    if kind == "form":
        head = head.replace("b, s, *,", f"b, s, *,\n    pairs: us/request**2 = {size:g},")
        issue = ",\n        s.issue_us,\n"
        assert issue in formula
        formula = formula.replace(issue, f"\n        + pairs * b.decode_reqs * b.decode_reqs{issue}")
    return f"{head}    return max(\n{formula}"


def load_tests() -> list[Experiment]:
    """The load test of each of the models that have a run of code generation."""
    tests = []
    for e in bundled_experiments():
        if e.workload.name == "codegen":
            stages = tuple(replace(e.workload.stages[0], rate=rate, duration_s=DURATION_S) for rate in RATES)
            tests.append(replace(e, workload=replace(e.workload, stages=stages), observed=None))
    return tests


def observed(program: str, e: Experiment, seed: int, error: Mapping[str, float | None]) -> Experiment:
    """The experiment as the truth and one draw of arrivals have it, off by a run's error: log ratios of TTFT and
    ITL."""
    (p,) = predictions(parse(program), score_set([e], [seed]))
    ttft, itl = (math.exp(error[name] or 0.0) for name in ("ttft", "itl"))

    def off(o: Observation) -> Observation:
        e2e_ms, ttft_ms, itl_ms = (getattr(o, f"{name}_ms").mean for name in MEANS)
        whole = ttft * ttft_ms + itl * (e2e_ms - ttft_ms)
        return replace(o, e2e_ms=Statistic(whole), ttft_ms=Statistic(ttft * ttft_ms), itl_ms=Statistic(itl * itl_ms))

    assert p.predicted.summary
    return replace(e, observed=Observed(off(p.predicted.summary), tuple(map(off, p.predicted.stages))))


def donors(residuals: Sequence[Residual], runs: int, rng: np.random.Generator) -> list[Residual]:
    """The held-out errors of so many different runs."""
    names = sorted({r.experiment for r in residuals})
    chosen = rng.choice(len(names), runs, replace=False)
    of_runs = [[r for r in residuals if r.experiment == names[i]] for i in chosen]
    return [rows[rng.integers(len(rows))] for rows in of_runs]


def carried_out(case: Case) -> str:
    """The verdict on a case."""
    source = load(CHAMPION)
    trust = trust_of(source)
    assert trust
    rng = stream(SEED, case.number)
    errors = donors(trust.residuals(INSIDE, closed=False), case.models, rng)
    hidden = {r.experiment for r in errors}
    tests = load_tests()
    program = truth(case.kind, case.size)
    chosen = rng.choice(len(tests), case.models, replace=False)
    runs = [
        observed(program, tests[i], ARRIVALS + 10 * case.number + j, error.log_ratio)
        for j, (i, error) in enumerate(zip(chosen, errors, strict=True))
    ]
    return judged(source.text, runs, hidden)


def judged(text: str, runs: Sequence[Experiment], hidden: Set[str]) -> str:
    """The verdict on these runs of the champion with other constants, its held-out errors without those of `hidden`."""
    source = load(CHAMPION)
    trust = trust_of(source)
    assert trust and source.record
    inside, outside = (
        tuple(r for r in residuals if r.experiment not in hidden) for residuals in (trust.inside, trust.outside)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "champion.py"
        write_program(path, text, None, source.record)
        write_json(trust_file(path), replace(trust, inside=inside, outside=outside).to_json())
        return drift(load(str(path)), runs).verdict


def cases(count: int, models: int) -> list[Case]:
    """So many cases, a quarter of each kind, its sizes in turn."""
    return [
        Case(n, kind, SIZES[kind][n // len(KINDS) % len(SIZES[kind])], models)
        for n in range(count)
        for kind in [KINDS[n % len(KINDS)]]
    ]


def table(done: Sequence[tuple[Case, str]], models: int) -> Table:
    """A row for each kind and size: how many of the cases got each verdict."""
    verdicts = (NONE, ALPHA, BETA, BOTH, FORM)
    rows = []
    for kind in KINDS:
        for size in SIZES[kind]:
            found = Counter(v for case, v in done if (case.kind, case.size) == (kind, size))
            total = sum(found.values())
            what = UNITS[kind].format(size if kind == "form" else 100.0 * size)
            rows.append([what, total, *(found[v] or "" for v in verdicts)])
    heads = [words("truth"), figures("d", "cases", *verdicts)]
    return Table.of(f"{models} model{'' if models == 1 else 's'}", heads, rows)


def false_alarms(draws: int, models: int) -> float:
    """The share of false alarms of the tests alone, without replays and refits: each model is off by the error of a
    held-out run, and judged by those of all other runs."""
    trust = trust_of(load(CHAMPION))
    assert trust
    alarms = 0
    for number in range(draws):
        errors = donors(trust.residuals(INSIDE, closed=False), models, stream(SEED, 1, number))
        hidden = {r.experiment for r in errors}
        others = [r for r in trust.residuals(INSIDE, closed=False) if r.experiment not in hidden]
        known = scales(others)
        residuals = [
            StageResidual(
                r.experiment,
                str(i),
                stage,
                1.0,
                r.log_ratio,
                {name: known[name].deviation(r.spread[name] or 0.0) for name in MEANS},
            )
            for i, r in enumerate(errors)
            for stage in range(len(RATES))
        ]
        alarms += any(t.rejects for t in channel_tests(residuals, len({r.experiment for r in others}) - 1))
    return alarms / draws


def left_out_models() -> Iterator[tuple[str, str]]:
    """The verdict on each model's own measured runs, by the champion's form fitted to those of all other models."""
    source, experiments = load(CHAMPION), fittable(bundled_experiments())
    for model in dict.fromkeys(e.model for e in experiments):
        others = fit_set([e for e in experiments if e.model != model])
        runs = [e for e in experiments if e.model == model]
        yield model, judged(unparse(fitted_without(source.complete, others)), runs, {e.id for e in runs})


def main() -> None:
    for model, verdict in left_out_models():
        print(f"{model}, left out of the fit: {verdict}")
    for models in (4, 1):
        print(f"false alarms of the tests alone, {models} models: {100.0 * false_alarms(4000, models):.2f} %")
    count, line = int(sys.argv[1]) if len(sys.argv) > 1 else 200, Line()
    for model, verdict in left_out_models():
        print(f"{model}, left out of the fit: {verdict}")
    for models in (4, 1):
        print(f"false alarms of the tests alone, {models} models: {100.0 * false_alarms(4000, models):.2f} %")
    count, line = int(sys.argv[1]) if len(sys.argv) > 1 else 200, Line()
    for models in (4, 1):
        done = list[tuple[Case, str]]()
        for case in cases(count, models):
            done.append((case, carried_out(case)))
            line.update(lambda done=done: f"{len(done)}/{count} cases")
        line.close()
        found = table(done, models)
        print(f"{found.title}\n\n{markdown(found)}\n")


if __name__ == "__main__":
    main()
