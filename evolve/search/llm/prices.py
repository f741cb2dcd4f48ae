"""What a model's tokens cost. A price that the user gives comes first, then our table, then litellm's list.

Of the models in none of them, one on a server of the user's own is free, and any other is not called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from simulator.common.documents import parse_yaml
from simulator.common.errors import InputError


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens."""

    input_usd: float
    output_usd: float

    def usd(self, tokens_in: int, tokens_out: int) -> float:
        """The price of a call in USD."""
        return (tokens_in * self.input_usd + tokens_out * self.output_usd) / 1e6


def table() -> dict[str, list[float]]:
    """Our table: provider/model -> [input, output] in USD per million tokens. The file names its sources."""
    prices: dict[str, list[float]] = parse_yaml(
        resources.files("configs").joinpath("llm_prices.yaml").read_bytes(), "configs/llm_prices.yaml", "list prices"
    )
    return prices


FREE = (0.0, 0.0)


class Unpriced(InputError):
    """A model without a known price."""


def prices_of(
    models: Iterable[str],
    given: Mapping[str, Sequence[float]],
    listed: Callable[[str], tuple[float, float] | None],
    own: Collection[str] = (),
) -> dict[str, Price]:
    """The price of every model: `given` by the user, from our table, or `listed` by litellm, in this order.

    Models in `own`, which a server of the user's own serves, are free if none of these has a price. Raises Unpriced
    for any other model without a price.
    """
    ours, prices = table(), dict[str, Price]()
    for model in models:
        price = given.get(model) or ours.get(model) or listed(model) or (FREE if model in own else None)
        if price is None:
            raise Unpriced(
                f"{model}: its price is unknown: give it as --price {model}=IN,OUT in USD per million tokens "
                "(0,0 for a model of your own)"
            )
        prices[model] = Price(*price)
    return prices
