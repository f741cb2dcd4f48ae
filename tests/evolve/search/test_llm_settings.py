"""Settings and options of language models, and how often each is asked."""

from __future__ import annotations

from dataclasses import asdict, replace
from random import Random
from typing import Any

import pytest
import yaml

from archive.proposal import MODEL
from evolve.cli.llm_options import OPTIONS, llm_config
from evolve.inspect.attribution import Contribution, ProposerCost, costs_of
from evolve.run.config import Config
from evolve.run.config_file import config_from, to_mapping
from evolve.run.llm_settings import LlmSettings, weighted
from evolve.search.llm.ledger import LedgerRow
from evolve.search.llm.setup import names
from evolve.search.proposer import DOUBT, FLOOR, Bandit, arms
from simulator.common.errors import InputError


def with_llm(**llm: Any) -> Config:
    return config_from({"search": {"proposer": "llm"}, "llm": {"models": ["openai/m"], **llm}}, "f")


# the key that the error names, and values that it cannot have
WRONG = """
key: [sk]
repair: [1]
max_usd: [-1, .inf]
judge_below: [40]
max_calls: [1.5]
programs: [0]
rounds: [0]
share: [1.0]
timeout_s: [.inf, .nan]
prices: [{openai/m: [1]}, {openai/m: [1, 2, 3]}, {openai/m: ["1", 2]}, {openai/m: [-1, 2]}, {openai/m: [.nan, 2]},
  {openai/m: [1, .inf]}, {openai/m: 3}, {openai/m: null}]
api_base: ["http://u:sk-secret@h/v1", "u:sk-secret@h", "http://h/v1?key=sk-secret", "http://h/v1#sk-secret", "h:80",
  "ftp://h", "http://", "http://[::1", "http://h:x", "http://h:99999", "http://:80", "//h"]
models: [openai/m, [gpt]]
judges: [["a/b=0"]]
summariser: [x]
"""


@pytest.mark.parametrize(("key", "values"), yaml.safe_load(WRONG).items())
def test_settings_that_cannot_be(key: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InputError) as e:
            with_llm(**{key: value})
        named = f"llm.{key}" in str(e.value) or "is not a model" in str(e.value)
        assert named and "sk-secret" not in str(e.value)


def test_models_with_weights() -> None:
    for text in (
        "x",
        "/x",
        "openai/",
        "openai/a b",
        *(f"a/b={weight}" for weight in ("0", "-1", "nan", "inf", "x", "1=2")),
    ):
        with pytest.raises(InputError, match="is not a model: give provider/model or provider/model=WEIGHT"):
            weighted(text, "here")
    assert weighted("openai/ft:gpt-4o:me::x/y", "here") == ("openai/ft:gpt-4o:me::x/y", 1.0)
    assert weighted("a/b=2.5", "here") == ("a/b", 2.5)
    config = with_llm(models=["a/b=3", "c/d"], judges=["a/b", "e/f=2"], summariser="g/h=9")
    assert config.llm.ensemble() == {"a/b": 0.75, "c/d": 0.25}
    assert names(config) == ["a/b", "c/d", "e/f", "g/h"]


def test_options_become_settings() -> None:
    prices, models = ("a/b=0.5,1e1", "c/d=0,0"), ("a/b=2", "c/d")
    options = {"models": models, "prices": prices, "max_usd": 0.0, "judges": ("e/f",), "max_calls": 3}
    config = llm_config(Config(), {"proposer": "auto", **options})
    assert config.search.proposer == "auto" and config.llm.models == models and config.llm.judges == ("e/f",)
    assert config.llm.prices == {"a/b": [0.5, 10.0], "c/d": [0.0, 0.0]} and config.llm.max_usd == 0.0
    assert llm_config(config, {"prices": ("a/b=1,1",)}).llm.prices == {"a/b": [1.0, 1.0], "c/d": [0.0, 0.0]}
    assert llm_config(config, {}) is config
    assert set(OPTIONS) - {"proposer"} <= set(asdict(LlmSettings()))


WITHOUT_PROPOSER = [{"models": ("a/b",)}, {"max_usd": 1.0}, {"proposer": "offline", "cache": "x"}]
PRICES = ("a/b", "a/b=1", "a/b=1,2,3", "a/b=x,1", "=1,2", "a/b=", "1,2", "a/b=-1,2", "a/b=nan,1", "a/b=1,inf")


@pytest.mark.parametrize(
    "options", [*WITHOUT_PROPOSER, *({"proposer": "llm", "models": ("a/b",), "prices": (price,)} for price in PRICES)]
)
def test_options_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(InputError) as e:
        llm_config(Config(), options)
    [price] = options.get("prices", ("",))
    expected = (f"--price {price}: give MODEL=IN,OUT", "llm.prices.a/b must be") if price else ("is for --proposer",)
    assert any(text in str(e.value) for text in (*expected, "is for"))


# who is asked how often


def played(seed: int, prior: dict[str, float], plays: int) -> Bandit:
    bandit, rng = Bandit(prior), Random(seed)
    for _ in range(plays):
        bandit.learn(rng.choice(list(prior)), rng.random() < 0.2)
    return bandit


@pytest.mark.parametrize("cost", [2.0, 10.0, 1e6])
def test_what_costs_more_is_chosen_less(cost: float) -> None:
    """A dear arm with the gains of a cheap one has its odds times (trials + DOUBT) / (trials + cost + DOUBT)."""
    bandit = played(1, {"add": 0.5, "llm:a/b": 0.3, "llm:c/d": 0.2}, 100)
    before, trials = bandit.chances(), bandit.trials["llm:a/b"]
    rate = (sum(bandit.gains.values()) + 1.0) / (sum(bandit.trials.values()) + 2.0)
    bandit.charge("llm:a/b", cost)
    after, gained = bandit.chances(), bandit.gains
    later = (sum(gained.values()) + 1.0) / (sum(bandit.trials.values()) + 2.0)
    odds = [(chances["llm:a/b"] - FLOOR) / (chances["add"] - FLOOR) for chances in (before, after)]
    # everybody's rate falls with the cost, too
    theirs = [gained["llm:a/b"] + DOUBT * r for r in (rate, later)]
    ours = [gained["add"] + DOUBT * r for r in (rate, later)]
    times = (trials + DOUBT) / (trials + cost + DOUBT) * (theirs[1] / ours[1]) / (theirs[0] / ours[0])
    assert odds[1] == pytest.approx(odds[0] * times, abs=1e-12) and odds[1] < odds[0]
    assert sum(after.values()) == pytest.approx(1.0) and min(after.values()) >= FLOOR


def test_models_start_with_their_share() -> None:
    auto = {"search": {"proposer": "mixed"}, "llm": {"models": ["a/b=3", "c/d"], "share": 0.4}}  # as it was called
    weights = arms(config_from(auto, "f"))
    assert weights[MODEL + "a/b"] == pytest.approx(3 * weights[MODEL + "c/d"])
    models = sum(weight for name, weight in weights.items() if name.startswith(MODEL))
    assert models / sum(weights.values()) == pytest.approx(0.4)
    offline = with_llm(prices={"openai/m": [0, 1.5]}, judges=["a/b=2"], max_usd=7.5, api_base="http://127.0.0.1:80/v1")
    assert not any(name.startswith(MODEL) for name in arms(offline))  # asked by their weights, not by the bandit
    assert config_from(to_mapping(offline), "f") == offline


def test_costs_by_proposer() -> None:
    answered = LedgerRow("1/propose/4", 1, "a/b", tokens_in=3, tokens_out=4, usd=0.5, outcome="answered")
    timeout = LedgerRow("2/notes/0", 1, "a/b", outcome="timeout", possibly_usd=0.25)
    others = [replace(answered, call=call) for call in ("1/round-3/4", "9/judge/101")]
    cached = replace(answered, call="3/propose/9", usd=0.0, outcome="cached")
    costs = costs_of([answered, *others, timeout, cached])
    assert costs == {
        "llm:a/b": ProposerCost(14, 1.0),
        "judge:a/b": ProposerCost(7, 0.5),
        "notes:a/b": ProposerCost(0, 0.0, 0.25),
    }
    model = Contribution(fitted=4, gain_pct=3.0, cost=replace(costs["llm:a/b"], usd=1.5))
    assert (model.gain_pct_per_fitted, model.gain_pct_per_usd) == (0.75, 2.0)
    assert Contribution(cost=costs["notes:a/b"]).gain_pct_per_usd is None  # it cost nothing
    operator = Contribution(fitted=4).to_json()
    assert {operator[name] for name in ("tokens", "usd", "possibly_usd", "gain_pct_per_usd")} == {None}
