"""One request, its faults, keys that appear nowhere, tool calls, prices, and what a server says of its context."""

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
from llm_replies import Reply, Request, bomb, completion, endless, huge, redirect, said, status
from llm_runs import by_content, evolve
from llm_scripts import EXAMPLE
from llm_server import Server

from evolve.run.config import Config
from evolve.run.llm_settings import LlmSettings, is_private
from evolve.search.llm import client, prompt, setup
from evolve.search.llm.answer import ideas
from evolve.search.llm.calls import Messages, Price
from evolve.search.llm.client import CallFault, check_keys
from evolve.search.llm.setup import price_table, priced
from simulator.common.errors import InputError
from simulator.common.secrets import redact

KEY = "sk-test-0123456789abcdef"
LOCAL = "http://127.0.0.1:8000/v1"
PROGRAM = "def step_time(b, s, *, weights: one = 1.2):\n    return weights * b.weight_read_us\n"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_ORGANIZATION", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def ask(url: str, with_tool: bool = False) -> client.Reply:
    settings = LlmSettings(api_base=url, answer_tokens=9, timeout_s=60.0)
    return client.request("openai/m", [("user", "x")], settings, with_tool)


def fault_of(reply: Reply) -> CallFault:
    with Server(lambda _: reply) as server, pytest.raises(CallFault) as e:
        ask(server.url)
    return e.value


# faults and keys; every kind of fault is in test_llm_calls


@pytest.mark.parametrize(
    ("wait", "seconds"),
    [("2.5", 2.5), ("-3", 0.0), ("nan", None), ("inf", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("", None)],
)
def test_the_wait_that_retry_after_asks_for(wait: str, seconds: float | None) -> None:
    assert fault_of(replace(status(429), headers={"Retry-After": wait})).retry_after_s == seconds


def test_a_server_s_text_is_one_line_of_printable_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = fault_of(status(400, "no\x1b[31m\n\r\x00\u202e\u2028 " + "long " * 200))
    assert str(fault).isprintable() and len(fault.why) <= 300 and "no [31m long" in fault.why
    with Server(lambda _: said("x", model="\x1b[2J" + "v" * 9999)) as server:
        assert ask(server.url).version == "[2J" + "v" * 294 + "..."
        url = server.url
    with pytest.raises(CallFault) as e:  # without a server
        ask(url)
    assert (e.value.kind, e.value.again, e.value.unpaid, e.value.setup) == ("no connection", True, True, False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY + "\n")  # is not in the complaint
    fault = fault_of(said("x"))
    assert KEY not in str(fault) and "\n" not in str(fault)


def test_redaction(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"SOME_API_KEY": "abcdefgh", "OTHER_SECRET": "abcdefghij", "MY_PASSWORD": " spaced-out\n"}
    for name, value in (keys | {"SHORT_TOKEN": "word", "HARMLESS": "a longer value"}).items():
        monkeypatch.setenv(name, value)
    text = "abcdefghijk abcdefgh, word, a longer value, (spaced-out)"
    assert redact(text) == "[key]k [key], word, a longer value, ([key])"  # the longest first
    assert redact("Bearer eyJhbGciOi.J9-_~+/= and bearer short") == "Bearer [key] and bearer short"


def test_an_answer_is_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_BYTES", 2**20)
    with Server(lambda _: huge(2**19)) as server:
        assert len(ask(server.url).text) == 2**19
    for reply, why in ((endless(2**20 + 1), "more than 1 MiB"), (bomb(10**8), "compressed")):
        fault = fault_of(reply)
        assert (fault.kind, fault.again, fault.unpaid) == ("broken answer", True, False) and why in fault.why
    fault = fault_of(replace(endless(2**20 + 1), code=500))  # of an error, too
    assert "more than 1 MiB" in fault.why


def test_a_question_goes_to_no_other_server() -> None:
    with Server(lambda _: said("never")) as other:
        fault = fault_of(redirect(f"{other.url}/chat/completions?key={KEY}"))
        assert fault.kind == "redirect" and fault.setup and fault.unpaid and not other.seen
        assert other.url.removesuffix("/v1") in fault.why and KEY not in str(fault)
    here = redirect("/v1/chat/completions?again")
    with Server(lambda asked: said("here") if asked.number else here) as server:
        assert ask(server.url).text == "here"  # the same server may send a request elsewhere within itself


def test_keys_and_names_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    check_keys(["openai/m"], "")
    monkeypatch.delenv("OPENAI_API_KEY")
    check_keys(["openai/mine"], LOCAL)  # a server of one's own needs no key
    missing = {
        ("openai/m", ""): "OPENAI_API_KEY for openai/m",
        ("anthropic/m", ""): "ANTHROPIC_API_KEY for anthropic/m",
    }
    missing |= {("nobody/m", ""): "cannot ask nobody/m", ("anthropic/m", LOCAL): "ANTHROPIC_API_KEY"}
    for (model, base), why in missing.items():
        with pytest.raises(InputError, match=why):
            check_keys([model], base)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    check_keys(["anthropic/m", "openai/m"], LOCAL)
    with pytest.raises(InputError, match=r"cannot use --api-base \S+: no model"):
        check_keys(["anthropic/m"], LOCAL)


# proposals by a tool call


def called(*proposals: dict[str, Any]) -> str:
    return client.as_text([json.dumps({"proposals": proposals})])


def test_a_whole_program_and_changes_are_read_as_any_answer() -> None:
    text = called(
        {"title": "bytes\nalone", "motivation": "Why.\nIssue 1: so.", "program": f"\n{PROGRAM}\n"},
        {"title": "half", "changes": [{"search": "return weights", "replace": "return 0.5 * weights"}]},
    )
    first, second = ideas(text, PROGRAM, 4)
    assert (first.title, first.complaint, first.motivation) == ("bytes alone", "", "Why.\nIssue 1: so.")
    assert (second.title, second.complaint, second.motivation) == ("half", "", "")
    assert "weights * b.weight_read_us" in first.text and "0.5 * weights" in second.text
    one = json.dumps({"proposals": [{"title": "a", "program": PROGRAM}]})
    heads = [line for line in client.as_text([one, one]).split("\n") if line.startswith("###")]
    assert heads == ["### Proposal 1: a", "### Proposal 2: a"]  # several calls are numbered on
    # other arguments are kept as they are
    proposals = ('{"proposals": 3}', '{"proposals": [3]}', '{"other": []}', '{"proposals": [{"changes": [1]}]}')
    for raw in ("", "{", "[]", "3", *proposals):
        assert client.as_text([raw]) == raw


def test_a_call_of_the_tool_is_the_text_of_the_reply() -> None:
    arguments = json.dumps({"proposals": [{"title": "t", "program": EXAMPLE}]})
    function = {"name": "propose", "arguments": arguments}

    def calling(request: Request) -> dict[str, Any]:
        body = completion(request, None, "tool_calls" if "tools" in request.body else "stop", (3, 4))
        if "tools" in request.body:
            body["choices"][0]["message"]["tool_calls"] = [{"id": "c", "type": "function", "function": function}]
        return body

    with Server(lambda request: Reply(calling)) as server:
        assert ask(server.url).text == "" and "tools" not in server.seen[-1].body
        reply = ask(server.url, with_tool=True)
        assert server.seen[-1].body["tools"] == [client.TOOL]
    [idea] = ideas(reply.text, PROGRAM, 4)
    assert (idea.title, idea.complaint) == ("t", "")
    # by litellm's list: a model that calls functions, one that does not, and one that it does not know
    assert client.calls_tools("openai/gpt-4o") is True
    assert client.calls_tools("openai/gpt-3.5-turbo-instruct") is not True
    assert client.calls_tools("openai/mine") is None


# prices, and models of a server of one's own


def config(base: str, answer_tokens: int = 8192, models: tuple[str, ...] = ("openai/mine=2",), **prices: Any) -> Config:
    named = {f"openai/{name}": price for name, price in prices.items()}
    options: dict[str, Any] = {"judges": ("openai/judge",), "api_base": base, "answer_tokens": answer_tokens}
    return replace(Config(), llm=LlmSettings(models=models, prices=named, **options))


def test_prices_by_the_user_then_ours_then_litellm_s(monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.listed_price("openai/nobody-has-heard-of-it") is None
    price = client.listed_price("openai/gpt-4o-mini")
    assert price == pytest.approx(price_table()["openai/gpt-4o-mini"])  # ours is a copy
    listed = {"openai/gpt-5.4-mini": (9.0, 9.0), "openai/listed": (1.0, 2.0)}
    monkeypatch.setattr(client, "listed_price", listed.get)
    models = ("openai/gpt-5.4-mini", "openai/listed", "openai/mine")
    remote = "https://gpus.example.com/v1"
    assert priced(config(remote, models=models, mine=[0, 0], judge=[3, 4])) == {
        "openai/gpt-5.4-mini": Price(*price_table()["openai/gpt-5.4-mini"]),
        "openai/listed": Price(1.0, 2.0),
        "openai/mine": Price(0, 0),
        "openai/judge": Price(3, 4),
    }
    with pytest.raises(InputError, match=r"cannot ask openai/mine: its price is unknown\. Give --price"):
        priced(config(remote, models=models, judge=[3, 4]))
    # on this machine it is free, unless a price is known
    assert priced(config(LOCAL, models=models[1:], judge=[3, 4])) == {
        "openai/listed": Price(1.0, 2.0),
        "openai/mine": Price(0.0, 0.0),
        "openai/judge": Price(3, 4),
    }
    assert Price(0.75, 4.5).usd(1_000_000, 100_000) == pytest.approx(0.75 + 0.45)
    assert all(len(price) == 2 and 0 < price[0] < price[1] for price in price_table().values())


def test_addresses_on_this_machine_and_in_private_networks() -> None:
    private = "localhost:8000 [::1]:8000 10.1.2.3 172.16.0.9 192.168.1.4:11434 gpu.local:8000 host.docker.internal:8000"
    # 172.32.0.1 is just above 172.16.0.0/12 of RFC 1918
    public = "172.32.0.1 8.8.8.8 api.openai.com localhost.example.com notlocal"
    assert is_private(LOCAL) and not is_private("")
    assert all(is_private(f"http://{host}/v1") for host in private.split())
    assert not any(is_private(f"https://{host}/v1") for host in public.split())
    models = ["openai/mine", "hosted_vllm/mine", "litellm_proxy/mine", "anthropic/theirs"]
    assert client.own_models(models, LOCAL) == models[:2]  # a proxy may call what others bill
    assert client.own_models(models, "https://gpus.example.com/v1") == []


# the context of a server


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


def test_the_context_that_a_server_tells(listing: Any) -> None:
    listing.listing = vllm(mine=32768, other=None)
    told = {"mine": 32768, "other": None}
    assert client.served(["openai/mine"], base(listing)) == client.served(["hosted_vllm/mine"], base(listing)) == told
    assert listing.seen == [("/v1/models", f"Bearer {KEY}"), ("/v1/models", f"Bearer {client.NO_KEY}")]
    # a key is not carried on to another address
    assert client.served(["openai/mine"], base(listing, "moved")) == {}
    assert [path for path, _ in listing.seen[2:]] == ["/moved/models"]
    assert client.served(["openai/mine"], "http://127.0.0.1:1/v1") == {}  # nobody is there
    for text in ("", "<html>", "[]", "{}", '{"data": 1}', '{"data": ["m"]}', '{"data": [{"max_model_len": 9}]}'):
        listing.listing = text
        assert client.served(["openai/mine"], base(listing)) == {}


FREE = {"openai/mine": Price(0.0, 0.0), "openai/judge": Price(0.5, 1.5)}


def smallest() -> Messages:
    return setup.smallest_question(config(""), prompt.bundled())


def least() -> int:
    return client.count_tokens(smallest())


def test_the_plan_says_what_is_free_and_what_fits(listing: Any) -> None:
    listing.listing = vllm(mine=32768, judge=100)
    takes = f"a question takes {least()} tokens or more, an answer up to 8192"
    mine, judge = setup.plan(config(base(listing)), FREE, smallest())
    assert mine.startswith("openai/mine: free") and mine.endswith(f"; {takes}, of 32768 that fit")
    assert judge == "openai/judge: 0.5 USD per million tokens in, 1.5 out"
    listing.listing = ""
    assert setup.plan(config(base(listing)), FREE, smallest())[0].endswith(f"; {takes}")
    priced_by_user = setup.plan(config(base(listing), mine=[0.0, 0.0]), FREE, smallest())
    assert priced_by_user[0].startswith("openai/mine: 0 USD per million tokens in, 0 out; ")


def test_questions_that_cannot_fit_are_refused_to_the_token(listing: Any) -> None:
    listing.listing = vllm(mine=least() + 1000)
    assert setup.plan(config(base(listing), 1000), FREE, smallest())
    with pytest.raises(InputError) as e:
        setup.plan(config(base(listing), 1001), FREE, smallest())
    assert all(f"{part}" in str(e.value) for part in ("openai/mine", least(), 1001, least() + 1000))


def run(folder: Path, api_base: str, *more: object) -> tuple[int, str]:
    """The exit status of a run of one generation, and its words on stderr. No price is given."""
    search = "{generations: 1, islands: 1, finalists: 0, start: [roofline], only_start: true}"
    small = tiny_world.write(folder, search=search, **tiny_world.BRIEF)
    args = ["--proposer", "llm", "--llm", "openai/a", "--workers", 1, "--rpm", 0, "--out", folder / "run", *more]
    ran = evolve(folder, "run", "--config", small, "--api-base", api_base, *args, key=None)
    return ran.status, ran.err


def test_a_run_begins_with_the_plan_unless_it_is_quiet(tmp_path: Path) -> None:
    with Server(by_content) as server:
        status, err = run(tmp_path, server.url)
        (tmp_path / "quiet").mkdir()
        assert run(tmp_path / "quiet", server.url, "--quiet") == (0, "")
    assert status == 0 and err.startswith("openai/a: free, ")
    report = json.loads((tmp_path / "run" / "report.json").read_text())["llm"]
    assert report["answers"] > 0 and report["usd"] == 0.0


def test_a_run_whose_questions_cannot_fit_is_refused_before_it_has_a_folder(listing: Any, tmp_path: Path) -> None:
    listing.listing = vllm(a=4096)
    status, err = run(tmp_path, base(listing))
    assert status == 2 and err.count("\n") == 1 and "its server takes 4096 in all" in err
    assert not (tmp_path / "run").exists() and [path for path, _ in listing.seen] == ["/v1/models"]
