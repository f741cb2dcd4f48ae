"""The identity of a run, kept in run.json."""

from __future__ import annotations

from evolve.run.ranges import Ranges
from simulator.common.records import from_json, record_class, stored


@record_class
class About:
    """The identity of a run."""

    engine: str  # version of the engine that started the run
    data: str  # hash of the fitted experiments
    fitted: tuple[str, ...]  # ids of the fitted experiments
    ranges: Ranges  # ranges of the fitted experiments
    started: str  # time in UTC, ISO 8601
    # path of the recording that the run replays, if it is a replay
    replayed: str = stored(default="", brief=True)
    simulated: tuple[str, ...] = stored(default=(), brief=True)  # ids of fitted experiments with simulated times
    # path, from the run's folder, of the run whose recorded forms it assesses
    forms_of: str = stored(default="", brief=True)


def read_about(value: object, where: str) -> About:
    """The identity in the JSON value of the file `where`. Raises DamagedRecord."""
    return from_json(About, value, where)
