"""The models that the environment configures: the line of an offline run, and what `--proposer auto` asks."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from llm_replies import Reply, Request, said
from llm_runs import DATA, Recorder, entries, evolve
from llm_scripts import program, whole
from llm_server import Server
from pytest import approx

from evolve.run.config import Config
from evolve.run.config_file import config_from
from evolve.run.folder import open_run
from evolve.run.llm_settings import API_BASES, DEFAULT_MODELS, LlmSettings
from evolve.search.llm.configured import offer, with_models
from evolve.search.llm.setup import price_table
from simulator.common.errors import InputError


def programs(request: Request) -> Reply:
    """Four programs that parse, other ones in every answer."""
    return said(whole(*(program(Random(4 * request.number + i)) for i in range(4))))


def gained(lines: list[dict[str, Any]], name: str) -> float:
    """The sum of the percent, 5 at most each, by which a proposer's elites lower the mean error of their parent."""
    elites, total = {line["id"]: line["elite"] for line in lines if "elite" in line}, 0.0
    for line in lines:
        if "elite" in line and line["parents"] and name in (line["operator"], *line["operator"].split("+")):
            fall = 100.0 * (1.0 - line["elite"]["mean_error"] / elites[line["parents"][0]]["mean_error"])
            total += min(max(fall, 0.0), 5.0)
    return total


AUTO = config_from({"search": {"proposer": "auto"}}, "f")
TINY = """
budget: 1000
score: {physics: false, champion: mean_error}
search: {prune_above: 0, generations: 4, islands: 1, finalists: 0, trim: false}
llm: {rounds: 1, notes_every: 0, share: 0.9}
"""
LOCAL = "http://127.0.0.1:8000/v1"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*DEFAULT_MODELS, *API_BASES):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data.yaml").write_text(DATA)
    (tmp_path / "tiny.yaml").write_text(TINY)
    return tmp_path


def test_every_default_model_has_a_price_and_is_of_its_provider() -> None:
    assert set(DEFAULT_MODELS.values()) <= set(price_table())
    assert all(model.startswith(key.partition("_")[0].lower() + "/") for key, model in DEFAULT_MODELS.items())


def test_without_a_model_nothing_is_said() -> None:
    assert offer(Config(), 1) == "" and offer(AUTO, 1) == ""


def test_the_offer_says_model_option_and_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    line = offer(replace(Config(), budget=1000), 1)
    assert "--proposer auto" in line and "openai/gpt-5.4-mini (OPENAI_API_KEY is set)" in line
    # a quarter of 1000 candidates, 4 of a question of 3 answers; each 6000 tokens at 0.75 and 2000 at 4.5 USD a million
    usd = 1000 * 0.25 / 4 * 3 * (6000 * 0.75 + 2000 * 4.5) / 1e6
    assert line.endswith(f": about {usd:.2f} USD, at most 5 USD (--max-usd)")
    assert "sk-secret" not in line and "\n" not in line
    assert offer(replace(Config(), budget=1000), 2).endswith(": at most 5 USD (--max-usd)")  # two would take 5.06
    monkeypatch.setenv("ANTHROPIC_API_KEY", " ")  # an empty key is none
    assert "anthropic" not in offer(Config(), 1)
    monkeypatch.setenv("OPENAI_BASE_URL", LOCAL)  # the key is that server's
    line = offer(Config(), 1)
    assert line.endswith(f"asks the server at {LOCAL}: free, on a server of your own") and "gpt" not in line


def test_a_server_of_others_is_not_free() -> None:
    there = replace(Config(), llm=LlmSettings(api_base="https://gpus.example.com/v1"))
    assert offer(there, 1).endswith(": at most 5 USD (--max-usd)")


def test_auto_asks_all_that_have_a_key_or_operators_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    assert with_models(AUTO, said.append) == replace(AUTO, search=Config().search)
    assert len(said) == 1 and "operators propose alone" in said[0]
    named = replace(AUTO, llm=LlmSettings(models=("a/b",)))
    for name in ("OPENAI_API_KEY", "MISTRAL_API_KEY"):
        monkeypatch.setenv(name, "sk-secret")
    assert with_models(named, said.append) == named and with_models(Config(), said.append) == Config()
    found = with_models(AUTO, said.append)
    assert found.llm.models == ("openai/gpt-5.4-mini", "mistral/mistral-large-latest") and len(said) == 1


@pytest.mark.parametrize("name", API_BASES)
def test_an_address_that_cannot_be_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "http://u:sk-secret@h/v1")
    assert offer(Config(), 1) == ""  # an offline run goes on
    with pytest.raises(InputError, match=f"^{name}: ") as e:
        with_models(AUTO, print)
    assert "sk-secret" not in str(e.value)


def test_the_address_of_openai_is_no_server_of_one_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://api.openai.com/v1")
    assert offer(Config(), 1) == ""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    assert with_models(AUTO, print).llm == replace(AUTO.llm, models=("openai/gpt-5.4-mini",))


def test_a_server_without_models_is_an_error() -> None:
    with Server(Recorder()) as server, pytest.raises(InputError, match="it lists no model"):
        with_models(replace(AUTO, llm=LlmSettings(api_base=server.url)), print)


def test_a_model_s_name_of_a_server_is_checked() -> None:
    with Server(Recorder()) as server, pytest.raises(InputError, match="is not a model"):
        server.listed = ("m\x1b[2J b",)
        with_models(replace(AUTO, llm=LlmSettings(api_base=server.url)), print)


def test_auto_asks_the_first_model_of_the_server(folder: Path) -> None:
    """The whole way: from the address alone to a report of shares and gains."""
    with Server(programs) as server:
        server.listed = ("a", "b")
        own = "--config", "tiny.yaml", "--experiments", "data.yaml", "--workers", 1, "--api-base", server.url
        ran = evolve(folder, "run", *own, "--proposer", "auto", "--out", "r", key=None)
        assert ran.status == 0, ran.err
        assert {q.model for q in server.seen} == {"a"}
    config = open_run(folder / "r").config
    assert config.llm.models == ("openai/a",) and config.llm.api_base == server.url
    assert "openai/a: free, on a server of your own" in ran.err  # as of every run with models
    fitted = [e for e in entries(folder / "r") if e.get("key") and e["island"] is not None]
    models = sum(e["operator"].startswith("llm:") for e in fitted)
    assert models and f"openai/a {models / len(fitted):.0%}, " in " ".join(ran.out.split())
    shown = evolve(folder, "archive", "r", "--by", "proposer", "--json", key=None).out
    proposers, lines = json.loads(shown)["proposers"], entries(folder / "r")
    gains = {name: gained(lines, name) for name in proposers}
    assert {name: (row["gain_pct_per_fitted"] or 0.0) * row["fitted"] for name, row in proposers.items()} == approx(
        gains
    )
    assert any(gains.values())
    every = sum(bool(e.get("key")) for e in lines)  # with the starting programs
    assert proposers["llm:openai/a"]["share"] == models / every
    assert proposers["llm:openai/a"]["gain_pct_per_usd"] is None  # it is free


def test_an_offline_run_offers_models_on_stderr_alone(folder: Path) -> None:
    own = "run", "--config", "tiny.yaml", "--experiments", "data.yaml", "--workers", 1, "--budget", 9, "--json"
    before = "litellm" in sys.modules
    loud, quiet = (evolve(folder, *own, "--out", name, *more) for name, more in (("l", ()), ("q", ("--quiet",))))
    assert "--proposer auto asks openai/gpt-5.4-mini" in loud.err and "--proposer auto" not in loud.out + quiet.err
    assert ("litellm" in sys.modules) == before
