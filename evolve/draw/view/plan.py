"""A plan as the page shows it: of the JSON of `evolve plan`, what is shown, checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from evolve.plan.pictures import REMEDY, Pictures, read_plan
from simulator.common.json import JsonObject
from simulator.common.records import from_json, record_class, stored, to_json


@record_class
class PlanInterval:
    """The 80 % interval of a figure, in ms, and whether held-out runs measured the figure."""

    at_80: tuple[float, float] = stored(key="80")
    calibrated: bool


@record_class
class PlanDeployment:
    """A row of the table. Latencies are in ms by quantity (mean, p50), intervals by figure (itl, itl_p50)."""

    deployment: str
    replicas: int
    gpus: int
    gpus_80: int | None
    gpus_95: int | None
    usd_per_hour: float | None
    usd_per_million_output_tokens: float | None
    headroom_pct: float | None
    e2e_ms: Mapping[str, float | None] | None
    ttft_ms: Mapping[str, float | None] | None
    itl_ms: Mapping[str, float | None] | None
    intervals_ms: Mapping[str, PlanInterval]


@record_class
class ShownPlan:
    """The plan of a page; the names are those of its JSON."""

    rows: tuple[PlanDeployment, ...]
    cautions: tuple[str, ...]
    warnings: tuple[str, ...]
    serve: str | None
    probe: str | None
    pictures: Pictures


def plan_json(path: Path) -> JsonObject:
    """The plan in a file, as the page shows it. Raises InputError for another file."""
    shown: JsonObject = to_json(from_json(ShownPlan, read_plan(path), path, REMEDY))
    return shown
