"""What a sweep varies: rate, GPU, TP degree and two limits of the engine, read from `--sweep KEY=VALUES`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import product
from typing import Any

from simulator.common.errors import OWN_GPU, InputError, nearest, nearest_listed, shown
from simulator.serving import limits
from simulator.serving.bundled import hardware_table
from simulator.serving.experiment import Engine, Experiment
from simulator.serving.workload import mean_rate

# A swept setting of the engine: its key here, and its name in an experiments file.
ENGINE = {
    "tp": "tensor_parallel",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
}
KEYS = ("rate", "hardware", *ENGINE)
FORMS = "write KEY=FIRST:LAST:STEP or KEY=A,B,C"
MOST_VALUES = 1000  # of a key
MOST_COMBINATIONS = 10_000  # of an experiment


@dataclass(frozen=True, slots=True)
class Setting:
    """One combination. `rate` is in requests/s; None for the experiment's own load. `hardware`: the name of the GPU."""

    rate: float | None
    hardware: str
    tp: int
    max_num_seqs: int
    max_num_batched_tokens: int

    @property
    def deployed(self) -> dict[str, str | int]:
        """The GPU and the settings of the engine by key."""
        return {key: getattr(self, key) for key in ("hardware", *ENGINE)}

    def label(self, experiment: str, keys: Sequence[str]) -> str:
        """The experiment with the values of these keys, as in `chat, H200-SXM-141GB, tp 2`."""
        values = (self.shown(key) if key == "hardware" else f"{key} {self.shown(key)}" for key in keys)
        return ", ".join([experiment, *values])

    def shown(self, key: str) -> str:
        """The value of a key as a user writes it."""
        value: str | float = getattr(self, key)
        return value if isinstance(value, str) else rate_figure(value) if key == "rate" else figure(value)


@dataclass(frozen=True, slots=True)
class Axes:
    """The values of every key in ascending order, of `rate` in requests/s, GPUs as given; none of a key that is not
    varied."""

    rate: tuple[float, ...] = ()
    hardware: tuple[str, ...] = ()
    tp: tuple[int, ...] = ()
    max_num_seqs: tuple[int, ...] = ()
    max_num_batched_tokens: tuple[int, ...] = ()

    @property
    def values(self) -> Mapping[str, tuple[float, ...] | tuple[str, ...]]:
        """The values by key, without the keys that are not varied."""
        return {key: getattr(self, key) for key in KEYS if getattr(self, key)}

    @property
    def others(self) -> tuple[str, ...]:
        """The varied keys besides the rate."""
        return tuple(key for key in self.values if key != "rate")

    def settings(self, hardware: str, engine: Engine) -> Iterator[Setting]:
        """Every combination of the other keys; keys that are not varied have the values of a deployment, its GPU and
        its engine."""
        every = (getattr(self, key) or (getattr(engine, name),) for key, name in ENGINE.items())
        return (Setting(None, *combination) for combination in product(self.hardware or (hardware,), *every))


def setting_of(experiment: Experiment) -> Setting:
    """An experiment's own setting, with the mean rate of its load."""
    workload = experiment.workload
    engine = (getattr(experiment.engine, name) for name in ENGINE.values())
    return Setting(mean_rate(workload), experiment.hardware, *engine)


def figure(value: float) -> str:
    """A value as a user writes it: 2 for 2.0."""
    return f"{value:.15g}"


def rate_figure(rps: float) -> str:
    """A rate as a user writes it, to six digits: a share of a load may have any number of them."""
    return figure(float(f"{rps:.6g}"))


def parse_axes(texts: Sequence[str], named: str = "--sweep", forms: str = FORMS) -> Axes:
    """What the values of `--sweep` name, one text for each key.

    Raises InputError for anything else, in which `named` is what the user gave and `forms` how to write it.

    >>> parse_axes(["rate=0.5:2:0.5", "tp=4,1"]).values
    {'rate': (0.5, 1.0, 1.5, 2.0), 'tp': (1, 4)}
    """
    given: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        option = f"{named} {text}"
        key, equals, values = text.partition("=")
        if not equals:
            raise InputError(f"{option}: has no values: {forms}")
        if key not in KEYS:
            raise InputError(f"{option}: {shown(key)} cannot be varied: {nearest(key, KEYS)}")
        if key in given:
            raise InputError(f"{option}: {key} is varied twice: give all its values in one --sweep")
        given[key] = _gpus(values, option) if key == "hardware" else _values(key, values, option, forms)
    tp, seqs, tokens = (tuple(map(int, given.get(key, ()))) for key in ENGINE)
    axes = Axes(given.get("rate", ()), given.get("hardware", ()), tp, seqs, tokens)
    combinations = max(len(axes.rate), 1) * sum(1 for _ in axes.settings("", Engine()))
    if combinations > MOST_COMBINATIONS:
        many = f"{combinations:,} combinations, at most {MOST_COMBINATIONS:,}"
        raise InputError(f"{named.removesuffix(':')}: {many}: give fewer values")
    return axes


def _gpus(text: str, option: str) -> tuple[str, ...]:
    """The distinct GPUs of `A,B,C` by their names in configs/hardware.yaml, in the order given."""
    table = hardware_table()
    found = []
    for name in (part.strip() for part in text.split(",")):
        if name not in table:
            near = nearest_listed(name, tuple(table), OWN_GPU)
            raise InputError(f"{option}: {shown(name)} is not in the hardware table: {near}")
        found.append(str(table[name]["name"]))
    return tuple(dict.fromkeys(found))


def _values(key: str, text: str, option: str, forms: str) -> tuple[float, ...]:
    """The distinct values of `FIRST:LAST:STEP` or `A,B,C`, ascending."""
    bounds = text.split(":")
    if len(bounds) == 1:
        values = [_number(key, part, option, forms) for part in text.split(",")]
    elif len(bounds) == 3:
        first, last, step = (_number(key, part, option, forms) for part in bounds)
        if last < first:
            raise InputError(f"{option}: ends below where it begins: {forms}")
        count = int((last - first) / step) + 1
        if count > MOST_VALUES:
            raise InputError(f"{option}: {count:,} values, at most {MOST_VALUES:,}: give a larger step")
        values = [first + i * step for i in range(count)]  # decimal, so that 0.1:0.5:0.1 has 0.3 as a file would
    else:
        raise InputError(f"{option}: has {len(bounds)} parts: {forms}")
    if len(values) > MOST_VALUES:
        raise InputError(f"{option}: {len(values):,} values, at most {MOST_VALUES:,}: give fewer")
    return tuple(map(float, sorted(set(values))))


def _number(key: str, text: str, option: str, forms: str) -> Decimal:
    """A value of a key, or a step."""
    most = limits.ENGINE[ENGINE[key]] if key in ENGINE else limits.MOST_RATE
    try:
        value = Decimal(text.strip())
        good = value.is_finite() and 0.0 < float(value) <= most and (key not in ENGINE or value == int(value))
    except InvalidOperation:
        good = False
    if not good:
        kind = f"whole numbers from 1 to {most:,.0f}" if key in ENGINE else f"requests/s above 0 and up to {most:,.0f}"
        raise InputError(f"{option}: must be {kind}, got {shown(text)}: {forms}")
    return value
