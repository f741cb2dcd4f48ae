"""What the name of an experiment's folder says: model, tensor parallelism, workload, variant.

Two schemes: `<YYYYMMDD>-<HHMMSS>-<model>-tp<N>-<workload>` and `<id>-<model>-tp<N>-<workload>-<variant>`. Model names
hold hyphens, and may hold `-tp2-` too, so the last `-tp<N>-` counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PARTS = re.compile(r"(?P<model>.+)-tp(?P<tp>[0-9]{1,4})-(?P<workload>.+)", re.DOTALL)
_STAMP = re.compile(r"([0-9]{8}-[0-9]{6})-(.+)", re.DOTALL)
_NUMBER = re.compile(r"([0-9]{1,18})-(.+)", re.DOTALL)
_VARIANT = re.compile(r"(.+?)((?:-[0-9]+)*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Name:
    """The parts of a folder's name; all None where it follows neither scheme.

    `stamp` is the date and time of the first scheme, `number` the id of the second, `variant` its trailing digits
    (`2-1`). `model` is the slug as written; `group` is it without a trailing `-hf`, which names the same model.
    """

    stamp: str | None = None
    number: str | None = None
    model: str | None = None
    tensor_parallel: int | None = None
    workload: str | None = None
    variant: str | None = None

    @property
    def group(self) -> str | None:
        return self.model.removesuffix("-hf") if self.model else None


def parse_name(name: str) -> Name:
    """The parts of a folder's name."""
    parts = _PARTS.fullmatch(name)
    if not parts:
        return Name()
    model, workload = parts["model"], parts["workload"]
    tensor_parallel = int(parts["tp"])
    if stamp := _STAMP.fullmatch(model):
        return Name(stamp=stamp[1], model=stamp[2], tensor_parallel=tensor_parallel, workload=workload)
    if number := _NUMBER.fullmatch(model):
        bare = _VARIANT.fullmatch(workload)
        assert bare, "any text is a workload with no or some trailing digits"
        variant = bare[2].removeprefix("-") or None
        return Name(None, number[1], number[2], tensor_parallel, bare[1], variant)
    return Name(model=model, tensor_parallel=tensor_parallel, workload=workload)
