"""Replies of a provider of chat completions in OpenAI's form: whole answers, errors, and everything broken."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from llm_scripts import EXAMPLE

DRIP_S = 0.05  # between two spaces of a dripping answer


@dataclass(frozen=True)
class Request:
    """A client's request: its number from 0, the model, the messages, the whole body, the Authorization header."""

    number: int
    model: str
    messages: list[dict[str, Any]]
    body: dict[str, Any]
    authorization: str


Content = dict[str, Any] | str | bytes  # an object is sent as JSON, all else as it is


@dataclass(frozen=True)
class Reply:
    """The content to send, and how: `whole`; by `drip`, which is its leading spaces one every DRIP_S; half of it and then `die`;
    `hang` is nothing for `seconds`.

    The content is made in a thread of the request's own, so it may wait for what the test does.
    """

    content: Callable[[Request], Content]
    code: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    manner: Literal["whole", "drip", "die", "hang"] = "whole"
    seconds: float = 0.0


def completion(
    request: Request,
    text: str | None,
    finish: str = "stop",
    usage: tuple[int, int] | None = None,
    model: str | None = None,
) -> dict[str, Any]:
    """The body of a whole answer. usage: tokens of prompt and answer, if None a quarter of their characters."""
    prompt = sum(len(str(message.get("content") or "")) for message in request.messages)
    tokens_in, tokens_out = usage or (prompt // 4, len(text or "") // 4)
    total = tokens_in + tokens_out
    return {
        "id": f"chatcmpl-{request.number}",
        "object": "chat.completion",
        "created": 1767225600,
        "model": model or f"{request.model}-2026-01-01",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}],
        "usage": {"prompt_tokens": tokens_in, "completion_tokens": tokens_out, "total_tokens": total},
    }


# what OpenAI calls an error, by status: type and code; clients look for these words
ERRORS: Mapping[int, tuple[str, str | None]] = {
    401: ("invalid_request_error", "invalid_api_key"),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
}


def error(message: str, code: int) -> dict[str, Any]:
    """The body of an error."""
    usual = ("server_error" if code >= 500 else "invalid_request_error", None)
    kind, name = ERRORS.get(code, usual)
    return {"error": {"message": message, "type": kind, "param": None, "code": name}}


def said(text: str, *, finish: str = "stop", usage: tuple[int, int] | None = None, model: str | None = None) -> Reply:
    """A whole answer. model: what the body calls the model, if None a dated version of the one asked."""
    return Reply(partial(completion, text=text, finish=finish, usage=usage, model=model))


def null(usage: tuple[int, int] | None = None) -> Reply:
    """A whole answer whose content is null."""
    return Reply(partial(completion, text=None, usage=usage))


def no_choices() -> Reply:
    """A whole answer with an empty list of choices."""
    return Reply(lambda request: completion(request, None) | {"choices": []})


def parts(text: str) -> Reply:
    """A whole answer whose content is a list of parts."""

    def answer(request: Request) -> dict[str, Any]:
        body = completion(request, text)
        body["choices"][0]["message"]["content"] = [{"type": "text", "text": text}]
        return body

    return Reply(answer)


def no_message() -> Reply:
    """A whole answer whose only choice is empty."""
    return Reply(lambda request: completion(request, None) | {"choices": [{"index": 0, "finish_reason": "stop"}]})


def no_usage(text: str) -> Reply:
    """A whole answer that does not say what it cost."""
    return Reply(lambda request: {k: v for k, v in completion(request, text).items() if k != "usage"})


def huge(size: int) -> Reply:
    """A whole answer of `size` characters: prose, with one program in a fenced block in the middle."""
    block = f"\n\n```python\n{EXAMPLE}```\n\n"
    before = (size - len(block)) // 2
    prose = "The step waits for memory. " * (size // 27)
    return said(prose[:before] + block + prose[: size - len(block) - before])


def status(code: int, message: str = "the server says no", retry_after: float | None = None) -> Reply:
    """An error of that status; retry_after, in seconds, becomes a header."""
    headers = {} if retry_after is None else {"Retry-After": f"{retry_after:g}"}
    return Reply(lambda _: error(message, code), code, headers)


def echo_key(code: int) -> Reply:
    """An error whose message repeats the Authorization header."""
    return Reply(lambda request: error(f"Incorrect API key provided: {request.authorization}", code), code)


def endless(size: int) -> Reply:
    """Status 200 and so many spaces."""
    return Reply(lambda _: " " * size)


def bomb(size: int) -> Reply:
    """A whole answer after so many spaces, in a thousandth of the bytes."""
    return Reply(
        lambda request: gzip.compress(b" " * size + json.dumps(completion(request, "x")).encode()),
        headers={"Content-Encoding": "gzip"},
    )


def redirect(url: str) -> Reply:
    """Another address, to which the same request is to be sent."""
    return Reply(lambda _: "", 307, {"Location": url})


def truncated() -> Reply:
    """Status 200 and JSON that ends in the middle, in the promised length."""

    def half(request: Request) -> str:
        text = json.dumps(completion(request, EXAMPLE))
        return text[: len(text) // 2]

    return Reply(half)


def html() -> Reply:
    """Status 200 and a web page."""
    page = "<!doctype html>\n<html><body><h1>Sign in to continue</h1></body></html>\n"
    return Reply(lambda _: page, headers={"Content-Type": "text/html"})


def hang(seconds: float) -> Reply:
    """Nothing for that long, then the connection is closed."""
    return Reply(lambda _: "", manner="hang", seconds=seconds)


def drip(seconds: float) -> Reply:
    """Status 200 and a space every DRIP_S for that long."""
    return Reply(lambda _: " " * max(1, round(seconds / DRIP_S)), manner="drip")


def die() -> Reply:
    """Status 200 and half of the promised body, then the connection is closed."""
    return Reply(partial(completion, text=EXAMPLE), manner="die")
