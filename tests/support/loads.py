"""Workloads of tests, with what a load generator calls them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from simulator.serving.distribution import constant
from simulator.serving.workload import Arrival, Profile, Stage, Workload

POISSON = Profile(Arrival("poisson"), 0, 0, 0, constant(20), None, constant(9))


def workload(base: Workload | None = None, **changes: Any) -> Workload:
    """`base`, by default a small load of single prompts, with changes of its own fields or of its profile's; lengths
    and arrivals may be a number and a name."""
    base = base or Workload("test", (Stage(5.0, 4.0), Stage(20.0, 3.0)), POISSON, True, None)
    assert isinstance(base.source, Profile)
    lengths = {"question_len", "output_len"}
    changes = {k: constant(v) if k in lengths and isinstance(v, int) else v for k, v in changes.items()}
    changes = {k: Arrival(v) if k == "arrival" and isinstance(v, str) else v for k, v in changes.items()}
    of_profile = {k: v for k, v in changes.items() if k in {f.name for f in fields(Profile)}}
    rest = {k: v for k, v in changes.items() if k not in of_profile}
    return replace(base, source=replace(base.source, **of_profile), **rest)
