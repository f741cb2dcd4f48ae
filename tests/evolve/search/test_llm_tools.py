"""Proposals by a tool call become the text of a plain answer, whatever a model puts into the call."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest
from llm_replies import Reply, Request, completion
from llm_scripts import EXAMPLE
from llm_server import Server

from evolve.search.llm import client, tools
from evolve.search.llm.answer import ideas

PROGRAM = "def step_time(b, s, *, weights: one = 1.2):\n    return weights * b.weight_read_us\n"


def called(*proposals: dict[str, Any]) -> str:
    return tools.as_text([json.dumps({"proposals": proposals})])


def test_a_whole_program_and_changes_are_read_as_any_answer() -> None:
    text = called(
        {"title": "bytes\nalone", "program": f"\n{PROGRAM}\n"},
        {"title": "half", "changes": [{"search": "return weights", "replace": "return 0.5 * weights"}]},
    )
    first, second = ideas(text, PROGRAM, 4)
    assert (first.title, first.complaint) == ("bytes alone", "") and "weights * b.weight_read_us" in first.text
    assert (second.title, second.complaint) == ("half", "") and "0.5 * weights" in second.text


def test_several_calls_are_numbered_on() -> None:
    one = json.dumps({"proposals": [{"title": "a", "program": PROGRAM}]})
    assert [line for line in tools.as_text([one, one]).split("\n") if line.startswith("###")] == [
        "### Proposal 1: a", "### Proposal 2: a"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "{",
        "[]",
        "3",
        '{"proposals": 3}',
        '{"proposals": [3]}',
        '{"other": []}',
        '{"proposals": [{"changes": [1]}]}',
    ],
)
def test_what_is_no_call_of_the_tool_is_kept_as_it_is(raw: str) -> None:
    assert tools.as_text([raw]) == raw


def test_the_schema_names_what_is_read() -> None:
    item = tools.TOOL["function"]["parameters"]["properties"]["proposals"]["items"]["properties"]
    assert list(item) == ["title", "motivation", "program", "changes"]
    assert len(json.dumps(tools.TOOL)) == tools.SIZE


def test_a_call_of_the_tool_is_the_text_of_the_reply() -> None:
    arguments = json.dumps({"proposals": [{"title": "t", "program": EXAMPLE}]})
    function = {"name": tools.NAME, "arguments": arguments}

    def calling(request: Request) -> dict[str, Any]:
        body = completion(request, None, "tool_calls" if "tools" in request.body else "stop", (3, 4))
        if "tools" in request.body:
            body["choices"][0]["message"]["tool_calls"] = [{"id": "c", "type": "function", "function": function}]
        return body

    key = {"OPENAI_API_KEY": "sk-of-the-tests-0123456789"}
    with Server(lambda request: Reply(calling)) as server, patch.dict("os.environ", key):
        without = client.request("openai/m", [("user", "?")], server.url, 9, 60.0)
        assert without.text == "" and "tools" not in server.seen[-1].body
        reply = client.request("openai/m", [("user", "?")], server.url, 9, 60.0, with_tool=True)
        assert server.seen[-1].body["tools"] == [tools.TOOL]
    [idea] = ideas(reply.text, PROGRAM, 4)
    assert (idea.title, idea.complaint) == ("t", "")


def test_who_has_the_tool() -> None:
    """By litellm's list: a model that calls functions, one that does not, and one that it does not know."""
    assert client.calls_tools("openai/gpt-4o") is True
    assert client.calls_tools("openai/gpt-3.5-turbo-instruct") is not True
    assert client.calls_tools("openai/mine") is None
