"""Which experiments a configuration fits and which it only predicts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evaluator.experiments import BUNDLED, bundled_file, load_experiments, model_table
from evolve.run.config import DataSettings
from evolve.run.stages import but_last
from simulator.errors import InputError
from simulator.experiment.experiment import Experiment


def experiments_of(files: Sequence[str]) -> list[Experiment]:
    """The experiments of bundled files (by name) and of the user's (by path), each id once."""
    out: dict[str, Experiment] = {}
    for name in files:
        found = bundled_file(name) if name in BUNDLED and not Path(name).exists() else load_experiments(Path(name))
        for e in found:
            if e.id in out:
                raise InputError(f"{name}: experiment {e.id!r} stands in another file too: rename one")
            out[e.id] = e
    return list(out.values())


def fittable(experiments: Sequence[Experiment]) -> list[Experiment]:
    """The clean ones with an observed mean for their load stages.

    Raises InputError for a run of several stages that was observed as a whole only.
    """
    found = []
    for e in experiments:
        if e.quality != "clean" or e.observed is None:
            continue
        stages = e.observed.stages
        if not stages and e.observed.summary is not None:
            if len(e.workload.stages) > 1:
                raise InputError(
                    f"experiment {e.id!r}: observed.stages is missing: give one entry per stage, or quality"
                )
            stages = (e.observed.summary,)
        if any(s.mean is not None for o in stages for s in (o.e2e_ms, o.ttft_ms, o.itl_ms)):
            found.append(e)
    return found


def nothing_to_fit(experiments: Sequence[Experiment]) -> str:
    """Why none of these is fitted, and the remedy."""
    if not any(e.observed for e in experiments):
        return "nothing to fit: no experiment has `observed` figures: add measurements, or use `evolve predict`"
    if not any(e.quality == "clean" for e in experiments):
        return "nothing to fit: no experiment's quality is clean: leave overloaded runs to `evolve predict`"
    return "nothing to fit: no clean experiment with observed means is left: loosen the filters or add measurements"


def chosen(data: DataSettings) -> tuple[list[Experiment], list[Experiment]]:
    """(fitted, predicted only). Fitted: clean runs of `files` with observations that the filters let through.

    Raises InputError when a filter names nothing, or when nothing is left to fit.
    """
    offered = experiments_of(data.files)
    if data.stages == "but_last":
        offered = [but_last(e) for e in offered]
    ids = {e.id for e in offered}
    further = [e for e in experiments_of(data.predict_files) if e.id not in ids]
    wanted = {_model(name, offered) for name in data.models}
    for name in data.workloads:
        if name not in {e.workload.name for e in offered}:
            raise InputError(
                f"--workloads {name}: no such workload: there are {_list(e.workload.name for e in offered)}"
            )
    for name in data.exclude:
        if name not in ids:
            raise InputError(f"--exclude {name}: no such experiment: there are {_list(ids)}")
    fitted = [
        e for e in fittable(offered)
        if e.id not in data.exclude
        and (not wanted or e.model in wanted) and (not data.workloads or e.workload.name in data.workloads)
    ]  # fmt: skip
    if not fitted:
        raise InputError(nothing_to_fit(offered))
    kept = {e.id for e in fitted}
    return fitted, [e for e in (*offered, *further) if e.id not in kept]


def _model(name: str, offered: Sequence[Experiment]) -> str:
    entry = model_table().get(name)
    model = str(entry["id"]) if entry else name
    if model not in {e.model for e in offered}:
        raise InputError(
            f"--models {name}: no such model among the experiments: there are {_list(e.model for e in offered)}"
        )
    return model


def _list(names: object) -> str:
    return ", ".join(sorted(set(names)))  # type: ignore[call-overload]


def parse_list(text: str | None) -> tuple[str, ...]:
    """`a,b` -> (a, b); None -> (). Raises InputError for a list that names nothing."""
    names = tuple(part.strip() for part in (text or "").split(",") if part.strip())
    if text is not None and not names:
        raise InputError("a list of names is empty: leave its option out, or name some")
    return names
