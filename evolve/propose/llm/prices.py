"""What a model's tokens cost: the user's word, then our table, then litellm's; nobody's, and it is not called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

import yaml

from simulator.errors import InputError


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens."""

    input_usd: float
    output_usd: float

    def usd(self, tokens_in: int, tokens_out: int) -> float:
        """Of a call."""
        return (tokens_in * self.input_usd + tokens_out * self.output_usd) / 1e6


def table() -> dict[str, list[float]]:
    """Our own: provider/model -> [input, output] in USD per million tokens; sources in the file."""
    found: dict[str, list[float]] = yaml.safe_load(resources.files("configs").joinpath("llm_prices.yaml").read_bytes())
    return found


def prices_of(
    models: Iterable[str], given: Mapping[str, Sequence[float]], ask: Callable[[str], tuple[float, float] | None]
) -> dict[str, Price]:
    """The price of every model; `given` goes before our table, `ask` (litellm's) comes last.

    Raises InputError for a model whose price nobody knows.
    """
    ours, out = table(), {}
    for model in models:
        found = given.get(model) or ours.get(model) or ask(model)
        if found is None:
            raise InputError(
                f"{model}: its price is not known: give it as --price {model}=IN,OUT in USD per million tokens "
                "(0,0 for a model of your own)"
            )
        out[model] = Price(*found)
    return out
