"""The pictures by kind: of runs, and of programs."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from evolve.draw.plot import curve, fit, front, grid, history, plan, terms
from evolve.inspect.step_shares import step_shares
from evolve.plan.curve import curves_of
from evolve.plan.pictures import Pictures
from evolve.plan.predict import predict
from evolve.run.program import Source
from evolve.summary.searched import Searched
from simulator.serving.experiment import Experiment

SEEDS = range(1, 4)  # arrival seeds, those of `evolve predict`


def of_runs(kind: str, runs: Sequence[Searched]) -> Figure:
    """The picture `kind` of these runs: history of any number, front and grid of one."""
    if kind == "history":
        return history.draw(runs)
    [run] = runs
    return {"front": front.draw, "grid": grid.draw}[kind](run)


def of_program(kind: str, source: Source, experiments: Sequence[Experiment]) -> Figure:
    """The picture `kind` of a program: fit on these experiments, curve of their loads, or terms on their
    deployments."""
    if kind == "fit":
        return fit.draw(predict(source, experiments, SEEDS))
    if kind == "curve":
        return curve.draw(source.name, curves_of(source, experiments, SEEDS))
    return terms.draw(source.name, step_shares(source.complete, experiments))


def of_plan(kind: str, curves: Pictures) -> Figure:
    """The picture `kind` of a plan."""
    return {"latency": plan.draw_latency, "speed": plan.draw_speed, "cost": plan.draw_cost}[kind](curves)


def title(kind: str, names: Sequence[str]) -> str:
    """The content of a picture, in one line."""
    seen = {
        "front": "mean error against complexity, with the Pareto front and the champion",
        "history": "the champion's errors over the fitted candidates",
        "grid": "the lowest mean error by operations and features",
        "fit": "predicted against observed E2E, TTFT and ITL",
        "curve": "throughput against speed along the load",
        "latency": "limited latencies against the load, with the limits",
        "speed": "throughput of a GPU against speed of a client",
        "cost": "cost against the load, within the limits",
        "terms": "time of a decode step by term over its requests",
    }[kind]
    return f"{', '.join(names)}: {seen}"
