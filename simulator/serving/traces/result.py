"""The result of a load generator as one value: how requests were sent, each of them or their means, and what to note.

Every reader of a result file makes a `Result`; what an experiment is made of follows from it alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from simulator.common.errors import InputError, Section, is_number, shown
from simulator.common.json import JsonObject
from simulator.serving.observations import Observation, Statistic
from simulator.serving.traces.rows import Rows

AGREES = 0.01  # by which a mean that a file states may differ from that of its requests
NO_RATE = (None, math.inf, "inf", "Infinity")  # of a request rate: the next request waits for an answer, or for nothing
SAVED_AGAIN = "save the result again"
NOT_STATED = Observation(Statistic(), Statistic(), Statistic())


@dataclass(frozen=True)
class Pacing:
    """How a client sent its requests: `concurrency` at a time, at a `rate` per second, or all at once if both are None.

    `max_in_flight`: requests in flight at which a rate waits; None for no such cap. `arrival`: that of a rate, as an
    experiments file has it.
    """

    concurrency: int | None = None
    rate: float | None = None
    max_in_flight: int | None = None
    arrival: str | JsonObject = "poisson"

    @property
    def burst(self) -> bool:
        """Whether all requests are sent at once."""
        return self.concurrency is None and self.rate is None

    @property
    def label(self) -> str:
        """A short name, for results of one file."""
        return "burst" if self.burst else f"c{self.concurrency}" if self.concurrency else f"r{self.rate:g}"


def paced(rate: object, cap: int | None, requests: int | None, arrival: str | JsonObject = "poisson") -> Pacing:
    """The pacing of a client with a rate (one of NO_RATE for none), and with a cap on requests in flight, if any.

    A cap that `requests` do not reach, where their number is known, changes nothing.

    >>> paced("inf", 8, 100).concurrency, paced("inf", 100, 100).burst, paced(2.5, 8, 100).max_in_flight
    (8, True, 8)
    """
    binding = cap if cap and not (requests and cap >= requests) else None
    if rate in NO_RATE:
        return Pacing(concurrency=binding)
    assert is_number(rate), "it was checked"
    return Pacing(rate=float(rate), max_in_flight=binding, arrival=arrival)


@dataclass(frozen=True)
class Result:
    """One run of a load generator, or a recorded trace.

    `pacing`: None where the file does not say it. `rows`: each request, None where the file has means only. They lack
    `arrival_s` where it does not say when requests were sent. `stated`: the file's own means and percentiles in ms;
    `lengths`: its mean prompt and answer in tokens. `requests`: how many were sent. `about`: what a reader of results
    must know.
    """

    tool: str = ""
    pacing: Pacing | None = None
    rows: Rows | None = None
    stated: Observation = NOT_STATED
    lengths: tuple[float | None, float | None] = (None, None)
    requests: int | None = None
    model: str = ""
    about: tuple[str, ...] = field(default=())

    @property
    def timed(self) -> bool:
        """Whether it is known when each request was sent."""
        return self.rows is not None and "arrival_s" in self.rows.columns

    def load_entry(self, where: object) -> JsonObject:
        """The load as keys of `workload`: those that go with a trace of the requests, or a load of their means.

        Raises InputError, which begins with `where`, if the file does not say enough.
        """
        p = self.pacing
        if self.rows is not None:
            caps = {"concurrency": p.concurrency, "max_in_flight": p.max_in_flight} if p else {}
            return {key: value for key, value in caps.items() if value is not None}
        known: dict[str, object] = {"how requests were sent": p, "their number": self.requests}
        prompt, answer = self.lengths
        known |= {"prompt lengths": prompt, "answer lengths": answer}
        if lacking := [what for what, value in known.items() if not value]:
            problem = f"does not say {', '.join(lacking)}"
            raise InputError(f"{where}: {problem}: write the experiment by hand (docs/ingest.md, Experiments files)")
        assert p and self.requests and prompt and answer, "none is lacking"
        lengths = {"prompt_len": max(1, round(prompt)), "output_len": max(1, round(answer))}
        if p.concurrency:
            return {"concurrency": p.concurrency, "requests": self.requests, **lengths}
        if p.rate is None:
            burst = {"burst": {"size": self.requests}}
            return {"arrival": burst, "stages": [{"rate": self.requests, "duration_s": 1}], **lengths}
        stage = {"rate": p.rate, "duration_s": round(self.requests / p.rate, 3)}
        cap = {"max_in_flight": p.max_in_flight} if p.max_in_flight else {}
        return {"arrival": p.arrival, "stages": [stage], **cap, **lengths}

    def observed_entry(self) -> JsonObject:
        """The stated figures as `observed`, in ms; empty if there are none."""
        o = self.stated
        figures = {"e2e_ms": asdict(o.e2e_ms), "ttft_ms": asdict(o.ttft_ms)}
        given = {key: {name: round(x, 3) for name, x in each.items() if x is not None} for key, each in figures.items()}
        summary: JsonObject = {key: each for key, each in given.items() if each}
        if o.itl_ms.mean is not None:
            summary["itl_mean_ms"] = round(o.itl_ms.mean, 4)
        if not summary:
            return {}
        counts = {"completed": o.completed, "failed": o.failed}
        return {"summary": summary | {key: n for key, n in counts.items() if n is not None}}


def compared(result: Result, name: str) -> Result:
    """The result with a note on every mean that the file `name` states and that its requests do not have."""
    if result.rows is None:
        return result
    notes = [
        f"{name} states a mean {what} of {said:,.4g}{unit}, its requests have {computed:,.4g}{unit}: check the file"
        for what, unit, said, computed in _means(result, result.rows)
        if said and abs(computed - said) > AGREES * said
    ]
    about = (*result.rows.about, *notes)
    return replace(result, rows=replace(result.rows, about=about))


def _means(result: Result, rows: Rows) -> list[tuple[str, str, float | None, float]]:
    """(what, unit, as stated, of the requests) of each mean that the requests have."""
    columns, nothing = rows.columns, np.full(len(rows), np.nan)
    outputs = columns["output_len"]
    counted = (outputs > 0) & (columns["stage"] != -1 if "stage" in columns else True)
    e2e, ttft = (np.where(counted, columns.get(name, nothing), np.nan) for name in ("e2e_ms", "ttft_ms"))
    itl = itl_ms_of(outputs, e2e, ttft)
    lengths = [np.where(counted, columns[name], np.nan) for name in ("input_len", "output_len")]
    o = result.stated
    stated = (
        *(
            ("E2E", " ms", o.e2e_ms.mean, e2e),
            ("TTFT", " ms", o.ttft_ms.mean, ttft),
            ("TPOT", " ms", o.itl_ms.mean, itl),
        ),
        *(("prompt", " tokens", result.lengths[0], lengths[0]), ("answer", " tokens", result.lengths[1], lengths[1])),
    )
    return [(what, unit, said, float(np.nanmean(x))) for what, unit, said, x in stated if not np.isnan(x).all()]


def itl_ms_of(outputs: np.ndarray, e2e_ms: np.ndarray, ttft_ms: np.ndarray) -> np.ndarray:
    """float64[requests]: (E2E - TTFT)/(output tokens - 1), NaN where one is unknown or there is one token."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(outputs > 1, (e2e_ms - ttft_ms) / (outputs - 1), np.nan)


def figure(s: Section | None, key: str) -> float | None:
    """A number that is not negative; None without it, and for NaN, which Python writes for a mean of nothing."""
    if s is None or not s.has(key) or s.raw[key] != s.raw[key]:
        return None
    return s.number(key, SAVED_AGAIN, least=0)


def count(s: Section | None, key: str) -> int | None:
    """A whole number that is not negative, None without it. AIPerf writes counts as 10.0."""
    value = figure(s, key)
    if value is None:
        return None
    if value != round(value):
        assert s is not None
        raise s.error(key, f"must be a whole number, got {shown(s.raw[key])}", SAVED_AGAIN)
    return round(value)


def under(s: Section | None, *keys: str) -> Section | None:
    """The mapping below these keys, None without it."""
    for key in keys:
        if s is None or not s.has(key):
            return None
        s = s.section(key, SAVED_AGAIN)
    return s


def text(s: Section | None, *keys: str) -> str:
    """The first of these keys that is a text; "" if none is."""
    values = [s.raw.get(key) for key in keys] if s is not None else []
    return next((value for value in values if isinstance(value, str)), "")


def figures(s: Section | None, names: Mapping[str, str], ms: float = 1.0) -> Statistic:
    """A statistic in ms from the keys `names` (ours: theirs), which are in units of `ms`."""
    found = {ours: figure(s, theirs) for ours, theirs in names.items()}
    return Statistic(**{ours: None if x is None else x * ms for ours, x in found.items()})


def column(items: Sequence[Mapping[str, Any]], key: str, place: Callable[[int], str]) -> np.ndarray:
    """float64 per item: the number at `key`, NaN for null and without it. Raises InputError at another value."""
    values = [item.get(key) for item in items]
    for i, value in enumerate(values):
        if value is not None and not is_number(value):
            raise InputError(f"{place(i)}: {key} must be a finite number, got {shown(value)}: {SAVED_AGAIN}")
    return np.array(values, dtype=float)


def beside(path: Path, name: str) -> Path | None:
    """The file of that name in the folder of `path`, None if there is none."""
    other = path.with_name(name)
    return other if other.is_file() else None
