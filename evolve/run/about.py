"""What identifies a run, and run.json, which keeps it."""

from __future__ import annotations

from dataclasses import dataclass

from evolve.output.files import REMEDY
from evolve.run.ranges import Ranges, read_ranges
from simulator.common.errors import InputError, Section, shown
from simulator.common.json import JsonObject


@dataclass(frozen=True, slots=True)
class About:
    """What identifies a run, as run.json keeps it."""

    engine: str  # version of the engine that started the run
    data: str  # hash of the fitted experiments
    fitted: tuple[str, ...]  # ids of the fitted experiments
    ranges: Ranges  # what the fitted experiments span
    started: str  # time in UTC, ISO 8601
    replayed: str = ""  # path of the recording that the run replays, if it is a replay
    simulated: tuple[str, ...] = ()  # ids of fitted experiments whose times are themselves a simulation's
    forms_of: str = ""  # path, from the run's folder, of the run whose recorded forms it assesses, if it proposes none

    def to_json(self) -> JsonObject:
        """The identity as run.json has it."""
        about = {
            "engine": self.engine,
            "data": self.data,
            "fitted": list(self.fitted),
            "ranges": self.ranges.to_json(),
            "started": self.started,
        }
        sources = {"replayed": self.replayed, "forms_of": self.forms_of}
        simulated = {"simulated": list(self.simulated)} if self.simulated else {}
        return about | simulated | {name: path for name, path in sources.items() if path}


def read_about(value: object, where: str) -> About:
    """The identity in the JSON value of the file `where`. Raises InputError, naming the key, if it is damaged."""
    if not isinstance(value, dict):
        raise InputError(f"{where}: must be a mapping, got {shown(value)}: {REMEDY}")
    top = Section(where, "", value)
    return About(
        engine=top.text("engine", REMEDY),
        data=top.text("data", REMEDY),
        fitted=top.names("fitted", REMEDY),
        ranges=read_ranges(top.section("ranges", REMEDY)),
        started=top.text("started", REMEDY),
        replayed=top.text("replayed", REMEDY) if top.has("replayed") else "",
        simulated=top.names("simulated", REMEDY) if top.has("simulated") else (),
        forms_of=top.text("forms_of", REMEDY) if top.has("forms_of") else "",
    )
