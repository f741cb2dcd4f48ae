"""A server of one's own: when it is free, and whether a run's questions fit into what it says it takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from threading import Thread
from typing import Any

import pytest
import tiny_world
from llm_runs import by_content, evolve
from llm_server import Server

from evolve.run.config import Config
from evolve.run.llm_settings import LlmSettings, is_private
from evolve.search.llm import client, servers, templates
from evolve.search.llm.prices import Price, prices_of
from simulator.common.errors import InputError

PORT = "http://127.0.0.1:8000/v1"


@pytest.mark.parametrize(
    ("address", "private"),
    [
        (PORT, True),
        ("http://localhost:8000/v1", True),
        ("http://[::1]:8000/v1", True),
        ("http://10.1.2.3/v1", True),
        ("https://172.16.0.9/v1", True),
        ("http://192.168.1.4:11434", True),
        ("http://gpu.local:8000/v1", True),
        ("http://host.docker.internal:8000/v1", True),
        ("http://172.32.0.1/v1", False),  # just above 172.16.0.0/12 of RFC 1918
        ("http://8.8.8.8/v1", False),
        ("https://api.openai.com/v1", False),
        ("https://localhost.example.com/v1", False),
        ("https://notlocal/v1", False),
        ("", False),
    ],
)
def test_addresses_on_this_machine_and_in_private_networks(address: str, private: bool) -> None:
    assert is_private(address) == private


def test_models_that_nobody_bills() -> None:
    models = ["openai/mine", "hosted_vllm/mine", "litellm_proxy/mine", "anthropic/theirs"]
    assert client.own_models(models, PORT) == models[:2]  # a proxy may call what others bill
    assert client.own_models(models, "https://gpus.example.com/v1") == []


def test_a_server_of_ones_own_is_free_unless_a_price_is_known() -> None:
    listed = {"openai/listed": (1.0, 2.0)}
    models = ["openai/mine", "openai/listed", "openai/given"]
    assert prices_of(models, {"openai/given": [3, 4]}, listed.get, models) == {
        "openai/mine": Price(0.0, 0.0),
        "openai/listed": Price(1.0, 2.0),
        "openai/given": Price(3, 4),
    }
    with pytest.raises(InputError, match="openai/mine: its price is unknown"):
        prices_of(models, {}, listed.get, ["openai/other"])


class _Listing(BaseHTTPRequestHandler):
    """Answers a request for the models with what the server is to say; `/moved` and below is somewhere else."""

    server: Any

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers["Authorization"]))
        moved = self.path.startswith("/moved")
        body = self.server.listing.encode()
        self.send_response(307 if moved else 200)
        if moved:
            self.send_header("Location", "/v1/models")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def listing() -> Iterator[Any]:
    with ThreadingTCPServer(("127.0.0.1", 0), _Listing) as server:
        server.seen, server.listing = [], ""  # type: ignore[attr-defined]
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def base(server: Any, path: str = "v1") -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/{path}"


def vllm(**lengths: object) -> str:
    return json.dumps({"object": "list", "data": [{"id": name, "max_model_len": n} for name, n in lengths.items()]})


def test_what_a_server_says_of_its_context(listing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine-0123456789")
    listing.listing = vllm(mine=32768, other=None)
    assert client.context_tokens(["openai/mine"], base(listing)) == {"mine": 32768}
    assert client.context_tokens(["hosted_vllm/mine"], base(listing)) == {"mine": 32768}
    assert [key for _, key in listing.seen] == ["Bearer sk-mine-0123456789", f"Bearer {client.NO_KEY}"]
    assert {path for path, _ in listing.seen} == {"/v1/models"}


@pytest.mark.parametrize(
    "said", ["", "<html>", "[]", "{}", '{"data": 1}', '{"data": ["m"]}', '{"data": [{"max_model_len": 9}]}']
)
def test_a_server_that_says_nothing_of_its_context(said: str, listing: Any) -> None:
    listing.listing = said
    assert client.context_tokens(["openai/mine"], base(listing)) == {}


def test_a_server_that_is_not_there_says_nothing() -> None:
    assert client.context_tokens(["openai/mine"], "http://127.0.0.1:1/v1") == {}


def test_a_key_is_not_carried_on_to_another_address(listing: Any) -> None:
    listing.listing = vllm(mine=32768)
    assert client.context_tokens(["openai/mine"], base(listing, "moved")) == {}
    assert [path for path, _ in listing.seen] == ["/moved/models"]


def config(api_base: str, answer_tokens: int = 8192, **prices: list[float]) -> Config:
    settings = LlmSettings(
        models=("openai/mine=2",), judges=("openai/judge",), api_base=api_base, answer_tokens=answer_tokens,
        prices={f"openai/{name}": price for name, price in prices.items()},
    )  # fmt: skip
    return replace(Config(), llm=settings)


FREE = {"openai/mine": Price(0.0, 0.0), "openai/judge": Price(0.5, 1.5)}


def test_the_plan_says_what_is_free_and_what_fits(listing: Any) -> None:
    listing.listing = vllm(mine=32768, judge=100)
    least = client.count_tokens(servers.smallest_question(config(""), templates.bundled()))
    takes = f"a question takes {least} tokens or more, an answer up to 8192"
    free = "free, on a server of your own (--price openai/mine=IN,OUT if it is not)"
    judge = "openai/judge: 0.5 USD per million tokens in, 1.5 out"
    assert servers.plan(config(base(listing)), FREE, templates.bundled()) == [
        f"openai/mine: {free}; {takes}, of 32768 that fit", judge,
    ]  # fmt: skip
    listing.listing = ""
    assert servers.plan(config(base(listing)), FREE, templates.bundled()) == [f"openai/mine: {free}; {takes}", judge]
    said = servers.plan(config(base(listing), mine=[0.0, 0.0]), FREE, templates.bundled())
    assert said[0].startswith("openai/mine: 0 USD per million tokens in, 0 out; ")


def test_questions_that_cannot_fit_are_refused_to_the_token(listing: Any) -> None:
    least = client.count_tokens(servers.smallest_question(config(""), templates.bundled()))
    listing.listing = vllm(mine=least + 1000)
    assert servers.plan(config(base(listing), 1000), FREE, templates.bundled())
    with pytest.raises(InputError, match=f"--llm openai/mine: a question takes {least} tokens or more, an answer up to 1001, "
                       f"but its server takes {least + 1000} in all: serve it with a longer context"):  # fmt: skip
        servers.plan(config(base(listing), 1001), FREE, templates.bundled())


def run(folder: Path, api_base: str, *more: object) -> tuple[int, str]:
    """The exit status of a run of one generation, and what it said on stderr. No price is given."""
    search = "{generations: 1, islands: 1, finalists: 0, start: [roofline], only_start: true}"
    small = tiny_world.write(folder, search=search, **tiny_world.BRIEF)
    ran = evolve(folder, "run", "--config", small, "--proposer", "llm", "--llm", "openai/a", "--api-base", api_base,
                 "--workers", 1, "--rpm", 0, "--out", folder / "run", *more, key=None)  # fmt: skip
    return ran.status, ran.err


def test_a_run_begins_with_the_plan_and_needs_no_price_for_a_server_of_ones_own(tmp_path: Path) -> None:
    with Server(by_content) as server:
        status, err = run(tmp_path, server.url)
    assert status == 0 and err.startswith(
        "openai/a: free, on a server of your own (--price openai/a=IN,OUT if it is not); a question "
    )
    report = json.loads((tmp_path / "run" / "report.json").read_text())["llm"]
    assert report["answers"] > 0 and report["usd"] == 0.0


def test_a_quiet_run_says_nothing(tmp_path: Path) -> None:
    with Server(by_content) as server:
        assert run(tmp_path, server.url, "--quiet") == (0, "")


def test_a_run_whose_questions_cannot_fit_is_refused_before_it_has_a_folder(listing: Any, tmp_path: Path) -> None:
    listing.listing = vllm(a=4096)
    status, err = run(tmp_path, base(listing))
    assert (
        status == 2
        and err.count("\n") == 1
        and "but its server takes 4096 in all: serve it with a longer context" in err
    )
    assert not (tmp_path / "run").exists() and [path for path, _ in listing.seen] == ["/v1/models"]
