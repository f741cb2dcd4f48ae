"""The experiments that a configuration fits or only predicts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from evolve.output.terminal import command
from evolve.run.config import DataSettings
from simulator.common.errors import InputError, closest
from simulator.serving.bundled import BUNDLED, FILES, bundled_file, load_experiments
from simulator.serving.experiment import Experiment
from simulator.serving.model import model_table
from simulator.serving.observations import CLEAN, Observed, measured, together
from simulator.serving.spec import Spec
from simulator.serving.splits import TRAIN
from simulator.serving.trace import Trace
from simulator.serving.workload import first_stages, part_of, rows_of_part

FEW = 10  # ids that a message can list
Named = TypeVar("Named", Experiment, Spec)


def experiments_of(files: Sequence[str]) -> list[Experiment]:
    """The experiments of bundled files (by name) and of the user's files (by path).

    Raises InputError if two files have an experiment of the same id.
    """
    experiments: dict[str, Experiment] = {}
    for name in files:
        for e in bundled_file(name) if _is_bundled(name) else load_experiments(Path(name)):
            if e.id in experiments:
                raise InputError(f"{name}: experiment {e.id!r} is in another file too: rename one")
            experiments[e.id] = e
    return list(experiments.values())


def _is_bundled(name: str) -> bool:
    return name in FILES and not Path(name).exists()


def fittable(experiments: Sequence[Experiment]) -> list[Experiment]:
    """The clean experiments that have an observed mean for one of their load stages.

    Raises InputError for an experiment with several stages that was only observed as a whole.
    """
    usable = []
    for e in experiments:
        if e.quality != CLEAN or e.observed is None:
            continue
        if e.pools:
            text = "prefill and decode have pools of their own, which is for predictions only"
            raise InputError(f"experiment {e.id!r}: cannot be fitted: {text}. Leave it out, or its `observed`")
        if e.observed.summary is not None and not e.observed_stages:
            text = "which the fit of a run of several stages needs: give one entry per stage"
            raise InputError(f"experiment {e.id!r}: observed.stages is missing, {text}")
        if any(s.mean is not None for o in e.observed_stages for s in (o.e2e_ms, o.ttft_ms, o.itl_ms)):
            usable.append(e)
    return usable


def why_not_fitted(e: Experiment) -> str:
    """The reason why `fittable` leaves an experiment out, in a few words."""
    if e.observed is None:
        return "nothing observed"
    return "no observed mean" if e.quality == CLEAN else e.quality


def but_last(e: Experiment) -> Experiment:
    """`e` without the last of several load stages, as a search may see it when that stage is held out.

    An experiment with one stage, or without observed stages, is returned unchanged. The new summary is that of the
    remaining stage; of several, their means weighted by the requests offered, without percentiles. So nothing about the
    last stage can be computed from the result.
    """
    if len(e.workload.stages) < 2 or e.observed is None or not e.observed.stages:
        return e
    stages = e.observed.stages[:-1]
    workload = first_stages(e.workload, len(stages))
    summary = stages[0] if len(stages) == 1 else together(stages, workload)
    return replace(e, workload=workload, observed=Observed(summary, stages))


def part(e: Experiment, name: str) -> Experiment:
    """A part of a trace by time, of SPLITS, with what was measured of its requests.

    Raises InputError for an experiment whose requests are drawn, or of which none in that part was measured.
    """
    source = e.workload.source
    if not isinstance(source, Trace) or source.recorded is None:
        what = "has no latencies of its requests" if isinstance(source, Trace) else "draws its requests"
        text = "only a trace with e2e_ms and ttft_ms can be split by time"
        raise InputError(f"experiment {e.id!r} {what}, and {text}: choose others with --id")
    first, last = rows_of_part(name, len(source.requests))
    if np.isnan(source.recorded.e2e_ms[first:last]).all() and np.isnan(source.recorded.ttft_ms[first:last]).all():
        where = f"its requests {first + 1:,} to {last:,}" if last > first else "it is empty"
        text = f"no latencies in part {name!r}, {where}: give a trace that was measured throughout"
        raise InputError(f"experiment {e.id!r} has {text}")
    workload = part_of(e.workload, name)
    assert isinstance(workload.source, Trace), "it was one"
    return replace(e, workload=workload, observed=measured(workload.source, len(workload.stages)), components=None)


def training_part(e: Experiment) -> Experiment | None:
    """The part of a trace that is for training; None for an experiment without such a part that was measured."""
    source = e.workload.source
    if not isinstance(source, Trace) or source.recorded is None:
        return None
    first, last = rows_of_part(TRAIN, len(source.requests))
    counted = source.requests.stage[first:last] >= 0
    known = ~np.isnan(source.recorded.e2e_ms[first:last]) | ~np.isnan(source.recorded.ttft_ms[first:last])
    return part(e, TRAIN) if (counted & known).any() else None


def nothing_to_fit(experiments: Sequence[Experiment]) -> str:
    """The reason why none of these experiments can be fitted, and the remedy."""
    if not any(e.observed for e in experiments):
        return "nothing to fit: no experiment has `observed` figures: add measurements, or use `evolve predict`"
    if not any(e.quality == CLEAN for e in experiments):
        return "nothing to fit: no experiment has `quality: clean`: measure at a lower load, or use `evolve predict`"
    return "nothing to fit: no clean experiment with observed means is left: loosen the filters or add measurements"


def located(data: DataSettings) -> DataSettings:
    """The settings with the user's files by their whole paths, so that they are found from another folder too."""

    def whole(name: str) -> str:
        return name if _is_bundled(name) else str(Path(name).resolve())

    return replace(data, files=tuple(map(whole, data.files)), predict_files=tuple(map(whole, data.predict_files)))


def chosen(data: DataSettings) -> tuple[list[Experiment], list[Experiment]]:
    """The experiments that are fitted, and those that are only predicted.

    Fitted are the fittable experiments of `data.files` that pass the filters. Raises InputError if a filter names
    something that does not exist, or if nothing is left to fit.
    """
    offered = experiments_of(data.files)
    if data.stages == "but_last":
        offered = [but_last(e) for e in offered]
    elif data.stages == "train":
        offered = [part(e, TRAIN) for e in offered]
    ids = {e.id for e in offered}
    further = [e for e in experiments_of(data.predict_files) if e.id not in ids]
    wanted = {_model(name, offered) for name in data.models}
    for name in data.workloads:
        if name not in {e.workload.name for e in offered}:
            raise InputError(f"workloads {name}: no such workload: there are {_list(e.workload.name for e in offered)}")
    for name in data.exclude:
        known_experiment("exclude", name, [e.id for e in offered], data.files)
    fitted = [e for e in fittable(offered) if e.id not in data.exclude and (not wanted or e.model in wanted)]
    fitted = [e for e in fitted if not data.workloads or e.workload.name in data.workloads]
    if not fitted:
        raise InputError(nothing_to_fit(offered))
    kept = {e.id for e in fitted}
    return fitted, [e for e in (*offered, *further) if e.id not in kept]


def _model(name: str, offered: Sequence[Experiment]) -> str:
    entry = model_table().get(name)
    model = str(entry["id"]) if entry else name
    if model not in {e.model for e in offered}:
        raise InputError(f"model {name}: is not among the experiments: there are {_list(e.model for e in offered)}")
    return model


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names)))


def known_experiment(
    option: str, name: str, offered: Collection[str], files: Collection[str] = BUNDLED, instead: str = ""
) -> None:
    """Raises InputError unless the experiment that an option names is among those offered, which are from these files.

    The error lists a few experiments, or the nearest ones and the commands that list all. `instead`: another remedy.
    """
    if name in offered:
        return
    there = f"there are {', '.join(offered)}"
    if len(offered) > FEW:
        there = f"the closest of {len(offered)} are {closest(name, offered)}: {_listed_by(files)}"
    raise InputError(f"{option} {name}: no such experiment: {there}{instead and f'; {instead}'}")


def only_named(
    experiments: Iterable[Named], ids: Sequence[str], exclude: Sequence[str], files: Collection[str], instead: str = ""
) -> list[Named]:
    """The experiments, from these files, whose ids are in `ids`, all without any, but those in `exclude`.

    Raises InputError for an unknown id, with what can be given `instead`, and if --exclude leaves nothing.
    """
    offered = {e.id: e for e in experiments}
    for option, names in (("--id", ids), ("--exclude", exclude)):
        for name in names:
            known_experiment(option, name, offered, files, instead)
    chosen = [e for e in offered.values() if (not ids or e.id in ids) and e.id not in exclude]
    if exclude and not chosen:
        raise InputError(f"--exclude {','.join(exclude)}: leaves no experiment: exclude fewer")
    return chosen


def _listed_by(files: Collection[str]) -> str:
    """The commands that list all experiments of these files; for shipped ones alone, also the option for others."""
    own = [f"`{command('predict', 'champion', '--experiments', name)}`" for name in files if name not in FILES]
    if not own:
        return "`evolve list` shows all that ship, --experiments FILE reads others"
    shipped = ["`evolve list`"] if len(own) < len(files) else []
    named = [*shipped, *own]
    return f"{' and '.join(named)} {'shows' if len(named) == 1 else 'show'} all"
