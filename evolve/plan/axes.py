"""The axes of a sweep: load (a rate, or clients at once), GPU, parallelism, two limits of the engine, weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from itertools import product
from numbers import Real

from simulator.common.errors import OWN_GPU, InputError, nearest, nearest_listed, shown
from simulator.serving import limits
from simulator.serving.engine import LARGEST, STANDARD, WEIGHTS, Engine
from simulator.serving.experiment import Experiment
from simulator.serving.gpu import hardware_table
from simulator.serving.pools import DECODE, PREFILL, Pools
from simulator.serving.workload import mean_rate

# A swept setting of the engine: its key here, and its name in an experiments file.
SAME = ("data_parallel", "expert_parallel", "max_num_seqs", "max_num_batched_tokens")
ENGINE = {"tp": "tensor_parallel", **{name: name for name in SAME}}
LOADS = ("rate", "concurrency")  # of which a sweep varies one
POOLS = (PREFILL, DECODE)  # instances of separate pools
SPLITS = "gpus"  # of which separate pools get all that they can, in every split
KEYS = (*LOADS, "hardware", *ENGINE, "weights", *POOLS, SPLITS)  # weights: `quantization` of the engine
MOST = {
    "rate": limits.MOST_RATE,
    "concurrency": limits.MOST_USERS,
    **{key: LARGEST[name] for key, name in ENGINE.items()},
    **dict.fromkeys((*POOLS, SPLITS), limits.MOST_GPUS),
}
MOST_VALUES = 1000  # of a key
MOST_COMBINATIONS = 10_000  # of an experiment


@dataclass(frozen=True, slots=True)
class Setting:
    """One combination. `rate`: requests/s, `concurrency`: clients of a closed load; None for the experiment's own load.

    `hardware`: the name of the GPU. `weights`: the type that the engine makes of the checkpoint's; None: its own.
    `prefill`, `decode`: instances of separate pools, one of the first with `prefill_gpus`; None: no pools.
    """

    rate: float | None
    concurrency: int | None
    hardware: str
    tp: int
    data_parallel: int
    expert_parallel: int
    max_num_seqs: int
    max_num_batched_tokens: int
    weights: str | None = None
    stages: int = 1  # of a pipeline
    prefill: int | None = None
    decode: int | None = None
    prefill_gpus: int = 0
    replicas: int = 1  # of the experiment, which take turns

    @property
    def gpus(self) -> int:
        instances = self.replicas if self.decode is None else self.decode
        return self.tp * self.data_parallel * self.stages * instances + self.prefill_gpus * (self.prefill or 0)

    @property
    def level(self) -> float | None:
        """The load: its rate or its clients."""
        return self.rate if self.concurrency is None else self.concurrency

    @property
    def deployed(self) -> dict[str, str | int | None]:
        """The GPU and the settings of the engine by key, and the instances of separate pools."""
        pools = () if self.decode is None else POOLS
        return {key: getattr(self, key) for key in ("hardware", *ENGINE, "weights", *pools)}

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
    """The values of every key in ascending order, of `rate` in requests/s, GPUs and types of weights as given; none of
    a key that is not varied."""

    rate: tuple[float, ...] = ()
    concurrency: tuple[int, ...] = ()
    hardware: tuple[str, ...] = ()
    tp: tuple[int, ...] = ()
    data_parallel: tuple[int, ...] = ()
    expert_parallel: tuple[int, ...] = ()
    max_num_seqs: tuple[int, ...] = ()
    max_num_batched_tokens: tuple[int, ...] = ()
    weights: tuple[str, ...] = ()
    prefill: tuple[int, ...] = ()
    decode: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()

    @property
    def values(self) -> Mapping[str, tuple[float, ...] | tuple[str, ...]]:
        """The values by key, without the keys that are not varied."""
        return {key: getattr(self, key) for key in KEYS if getattr(self, key)}

    @property
    def others(self) -> tuple[str, ...]:
        """The varied keys besides the load; of GPUs that are split, those of the pools."""
        varied = [key for key in self.values if key not in (*LOADS, SPLITS)]
        return (*varied, *POOLS) if self.gpus else tuple(varied)

    @property
    def load(self) -> str:
        """The key of LOADS that is varied; of no load, the rate."""
        return "concurrency" if self.concurrency else "rate"

    @property
    def levels(self) -> tuple[float, ...]:
        """The loads, ascending."""
        return self.concurrency or self.rate

    def at(self, setting: Setting, level: float | None) -> Setting:
        """The setting under a load of the varied key; the same one for None."""
        if level is None:
            return setting
        return replace(setting, concurrency=int(level)) if self.concurrency else replace(setting, rate=level)

    def settings(self, hardware: str, engine: Engine, pools: Pools | None = None) -> Iterator[Setting]:
        """Every combination of the other keys; keys that are not varied have the values of a deployment, its GPU and
        its engine, whose experts go on over all GPUs, or its pools."""
        every = (getattr(self, key) or (getattr(engine, name),) for key, name in ENGINE.items())
        weights = self.weights or (engine.quantization,)
        for values in product(self.hardware or (hardware,), *every, weights):
            setting = replace(Setting(None, None, *values), stages=engine.pipeline_parallel)
            if engine.expert_parallel > 1 and not self.expert_parallel:
                setting = replace(setting, expert_parallel=setting.tp * setting.data_parallel)
            yield from (in_pools(setting, pools.of(*split)) for split in self._splits(pools)) if pools else (setting,)

    def _splits(self, pools: Pools) -> Iterator[tuple[int, int]]:
        """The instances of prefill and decode. Of GPUs none are left over that would make another instance."""
        prefill, decode = pools.instances
        if not self.gpus:
            yield from product(self.prefill or (prefill,), self.decode or (decode,))
            return
        each, other = (pool.engine.gpus if pool else 0 for pool in (pools.prefill, pools.decode))
        for count in self.gpus:
            for x in range(1, (count - other) // each + 1 if each and other else 1):
                y, left = divmod(count - x * each, other)
                if left < each:
                    yield x, y


def setting_of(experiment: Experiment) -> Setting:
    """An experiment's own setting, with the mean rate of its load, or the most clients of a stage."""
    workload = experiment.workload
    engine = (getattr(experiment.engine, name) for name in (*ENGINE.values(), "quantization"))
    users = max(stage.users or 0 for stage in workload.stages) or None
    stages = experiment.engine.pipeline_parallel
    setting = Setting(mean_rate(workload), users, experiment.hardware, *engine)
    setting = replace(setting, stages=stages, replicas=experiment.replicas)
    return in_pools(setting, experiment.pools) if experiment.pools else setting


def in_pools(setting: Setting, pools: Pools) -> Setting:
    """The setting with these pools; its engine is that of the one that decodes, or of the one there is."""
    main = pools.decode or pools.prefill
    assert main, "one is given"
    engine = {key: getattr(main.engine, name) for key, name in ENGINE.items()}
    prefill, decode = pools.instances
    setting = replace(setting, **engine, stages=main.engine.pipeline_parallel, prefill=prefill, decode=decode)
    return replace(setting, prefill_gpus=pools.prefill.engine.gpus if pools.prefill else 0)


def figure(value: float) -> str:
    """A value as a user writes it: 2 for 2.0."""
    return f"{value:.15g}"


def rate_figure(rps: float) -> str:
    """A rate as a user writes it, to six digits: a share of a load may have any number of them."""
    return figure(float(f"{rps:.6g}"))


def parse_axes(texts: Sequence[str]) -> Axes:
    """The axes of `--sweep KEY=VALUES` options, one for each key. Raises InputError for anything else.

    >>> parse_axes(["rate=0.5:2:0.5", "tp=4,1"]).values
    {'rate': (0.5, 1.0, 1.5, 2.0), 'tp': (1, 4)}
    """
    given: dict[str, str] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals:
            raise InputError(f"--sweep {text}: has no values: write KEY=FIRST:LAST:STEP or KEY=A,B,C")
        if key in given:
            raise InputError(f"--sweep {text}: {key} is varied twice: give all its values in one --sweep")
        given[key] = values
    return axes_of(given, "--sweep ")


def axes_of(given: Mapping[str, str | Sequence[object]], where: str) -> Axes:
    """The axes with these values of each key, a text of which is FIRST:LAST:STEP or A,B,C.

    Raises InputError, which begins with `where`, for a key that cannot be varied and for values that it cannot have.
    """
    gpus: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    numbers: dict[str, tuple[float, ...]] = {}
    for key, values in given.items():
        place = f"{where}{key}"
        if key not in KEYS:
            raise InputError(f"{place}: cannot be varied: {nearest(key, KEYS)}")
        every = _parsed(key, values, place) if isinstance(values, str) else values
        if not 0 < len(every) <= MOST_VALUES:
            raise InputError(f"{place}: {len(every):,} values: give 1 to {MOST_VALUES:,}")
        if key == "hardware":
            gpus = _gpus(every, place)
        elif key == "weights":
            weights = _weights(every, place)
        else:
            numbers[key] = _numbers(key, every, place)
    users, *engine = (tuple(map(int, numbers.get(key, ()))) for key in ("concurrency", *ENGINE, *POOLS, SPLITS))
    whole = dict(zip((*ENGINE, *POOLS, SPLITS), engine, strict=True))
    axes = Axes(numbers.get("rate", ()), users, gpus, weights=weights, **whole)
    if axes.gpus and (axes.prefill or axes.decode):
        raise InputError(f"{where}{SPLITS}: splits all GPUs, so prefill and decode follow: leave them out")
    if axes.rate and axes.concurrency:
        raise InputError(f"{where}rate and concurrency exclude each other: vary one of them")
    combinations = max(len(axes.levels), 1) * sum(1 for _ in axes.settings("", STANDARD))
    if combinations > MOST_COMBINATIONS:
        many = f"{combinations:,} combinations, at most {MOST_COMBINATIONS:,}"
        raise InputError(f"{where.rstrip(': ')}: {many}: give fewer values")
    return axes


def _parsed(key: str, text: str, place: str) -> Sequence[object]:
    """The values in `FIRST:LAST:STEP` or `A,B,C`."""
    if key in ("hardware", "weights"):
        return [part.strip() for part in text.split(",")]
    bounds = text.split(":")
    if len(bounds) == 1:
        return [_decimal(key, part, place) for part in text.split(",")]
    if len(bounds) != 3:
        raise InputError(f"{place}: {text} has {len(bounds)} parts: write FIRST:LAST:STEP")
    first, last, step = (_decimal(key, part, place) for part in bounds)
    _numbers(key, (first, last, step), place)
    if last < first:
        raise InputError(f"{place}: {text} ends below where it begins: write FIRST:LAST:STEP")
    count = int((last - first) / step) + 1
    if count > MOST_VALUES:
        raise InputError(f"{place}: {count:,} values, at most {MOST_VALUES:,}: give a larger step")
    return [first + i * step for i in range(count)]  # decimal, so that 0.1:0.5:0.1 has 0.3 as a file would


def _decimal(key: str, text: str, place: str) -> Decimal:
    with suppress(InvalidOperation):
        if (value := Decimal(text.strip())).is_finite():
            return value
    raise _refused(key, shown(text), place)


def _refused(key: str, got: object, place: str) -> InputError:
    """The error about a value that a number cannot have, to be raised."""
    most = MOST[key]
    kind = f"whole numbers from 1 to {most:,.0f}" if key != "rate" else f"requests/s above 0 and up to {most:,.0f}"
    return InputError(f"{place}: must be {kind}, got {got}: give other values")


def _gpus(names: Sequence[object], place: str) -> tuple[str, ...]:
    """The distinct GPUs by their names in configs/hardware.yaml, in the order given."""
    table = hardware_table()
    for name in names:
        if not isinstance(name, str) or name not in table:
            near = nearest_listed(str(name), tuple(table), OWN_GPU)
            raise InputError(f"{place}: {shown(name)} is not in the hardware table: {near}")
    return tuple(dict.fromkeys(str(table[str(name)]["name"]) for name in names))


def _weights(names: Sequence[object], place: str) -> tuple[str, ...]:
    """The distinct types of weights, in the order given."""
    for name in names:
        if str(name).lower() not in WEIGHTS:
            raise InputError(f"{place}: {shown(name)} is not a type of weights: {nearest(name, tuple(WEIGHTS))}")
    return tuple(dict.fromkeys(str(name).lower() for name in names))


def _numbers(key: str, values: Sequence[object], place: str) -> tuple[float, ...]:
    """The distinct values, ascending."""
    numbers: set[float] = set()
    for value in values:
        if isinstance(value, bool) or not isinstance(value, Real | Decimal):
            raise _refused(key, shown(value), place)
        number = float(value)
        if not 0.0 < number <= MOST[key] or (key != "rate" and not number.is_integer()):
            raise _refused(key, value, place)
        numbers.add(number)
    return tuple(sorted(numbers))
