"""Prices of GPUs: `--price H100=2.5,H200=3.5`, or a YAML file of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from evolve.plan.axes import Setting
from simulator.common.documents import parse_yaml, read_bytes
from simulator.common.errors import InputError, shown, unreadable
from simulator.serving.gpu import known_gpu

FORM = "write GPU=DOLLARS an hour, as H100=2.5, or name a YAML file with such a mapping"
MOST_USD = 1e6  # of a GPU hour


def replica_cost(setting: Setting, prices: Mapping[str, float]) -> float:
    """The cost of one replica: dollars per hour, or GPUs without prices."""
    return setting.gpus * prices.get(setting.hardware, 1.0)


def read_prices(words: Sequence[str], where: str = "--price") -> dict[str, float]:
    """Dollars per GPU hour by the name of the GPU. Raises InputError, which begins with `where`.

    >>> read_prices(["H100=2.5"])
    {'H100-SXM-80GB': 2.5}
    """
    prices: dict[str, float] = {}
    for word in words:
        name, equals, value = word.partition("=")
        pairs: Mapping[str, object] = {name: value} if equals else _file(word, where)
        for gpu, usd in pairs.items():
            known = known_gpu(str(gpu), f"{where} {gpu}").name
            if known in prices:
                raise InputError(f"{where} {word}: {gpu} has two prices: give one")
            prices[known] = _usd(usd, f"{where} {word}")
    return prices


def _file(name: str, where: str) -> Mapping[str, object]:
    try:
        data = read_bytes(Path(name))
    except OSError as error:
        raise unreadable(Path(name), error, FORM) from None
    raw = parse_yaml(data, name, FORM)
    if not isinstance(raw, Mapping):
        raise InputError(f"{where} {name}: has no prices: {FORM}")
    return {str(gpu): usd for gpu, usd in raw.items()}


def _usd(value: object, place: str) -> float:
    try:
        usd = float(str(value))
    except ValueError:
        usd = math.nan
    if isinstance(value, bool) or not 0.0 < usd <= MOST_USD:
        raise InputError(f"{place}: {shown(value)} is no price: {FORM}")
    return usd
