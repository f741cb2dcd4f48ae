"""Which model is asked instead of another: by price alone, and the same again if the log knows it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from evolve.search.llm.calls import Answered, CallLog, GivenUp, LlmCall, Price, Sent, numbered, pack, proposes
from evolve.search.llm.question import fallback, next_model

USD = {"p/dearer": 31, "p/dear": 30, "p/mid": 10, "p/near": 9, "p/low": 4, "p/mini": 1, "p/own": 0}
PRICES = {name: Price(float(usd), float(usd)) for name, usd in USD.items()}
QUESTION = (("user", "better, please"),)


def everyone(_: str) -> bool:
    return True


def order(first: str, down: Collection[str] = ()) -> list[str]:
    """The models that are asked in turn if none answers."""
    tried = [first]
    while (model := fallback(first, tried, PRICES, lambda name: name not in down)) is not None:
        tried.append(model)
    return tried[1:]


@pytest.mark.parametrize(
    ("first", "asked"),
    [
        # its class is 10/3 to 30, the nearest first; then the cheaper ones; 31 is never asked
        ("p/mid", ["p/near", "p/low", "p/dear", "p/mini", "p/own"]),
        ("p/dear", ["p/dearer", "p/mid", "p/near", "p/low", "p/mini", "p/own"]),
        ("p/low", ["p/near", "p/mid", "p/mini", "p/own"]),
        ("p/mini", ["p/own"]),
        ("p/own", []),  # only what is free is in the class of what is free
    ],
)
def test_the_order_by_price(first: str, asked: list[str]) -> None:
    assert order(first) == asked
    assert order(first, down=("p/near", "p/mini")) == [name for name in asked if name not in ("p/near", "p/mini")]


def test_equal_prices_are_taken_by_name_and_none_without_prices() -> None:
    same = dict.fromkeys(["p/c", "p/b", "p/a"], Price(0.0, 0.0))
    assert fallback("p/c", ["p/c"], same, everyone) == "p/a"
    assert fallback("p/c", ["p/c", "p/a"], same, everyone) == "p/b"
    assert fallback("p/mid", ["p/mid"], {}, everyone) is None  # as in a replay
    purposes = ["propose", "propose-2", "round-2", "judge", "notes"]
    assert [proposes(purpose) for purpose in purposes] == [True, True, True, False, False]


def call(model: str, rank: int = 1) -> LlmCall:
    return LlmCall(3, numbered("propose", rank), 24, model, QUESTION)


def given_up(rank: int, model: str, limit: bool = False) -> GivenUp:
    return GivenUp(call(model, rank).name, model, "server error", limit=limit)


def asked_next(
    *lines: GivenUp | Sent | Answered, first: str = "p/mid", rank: int = 1, prices: Any = PRICES
) -> str | None:
    log = CallLog()
    log.take(lines)
    return next_model(log, call(first, rank), rank + 1, prices, everyone)


def test_a_question_goes_from_model_to_model_after_a_fault() -> None:
    lost = given_up(1, "p/mid")
    assert asked_next(lost) == "p/near"
    # p/near itself would go to p/mid, the class is that of the first model
    assert asked_next(lost, given_up(2, "p/near"), first="p/near", rank=2) == "p/low"
    answer = Answered("3/propose/24", 1, "p/mid", "v", "", 0, 1, 1, 0.0, 0.1, "stop", pack("x"))
    for lines in ([], [answer], [answer, lost], [given_up(1, "p/mid", limit=True)]):
        assert asked_next(*lines) is None
    for end in (Sent("3/propose-2/24", 1, "p/mini", "", 0, 9, 0.0), given_up(2, "p/mini")):
        for prices in (PRICES, {}):  # a choice in the log is repeated whatever the prices are
            assert asked_next(lost, end, prices=prices) == "p/mini"
