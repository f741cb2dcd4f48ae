"""One request to a language model, and its reply or fault. This is the only module that knows litellm.

It neither retries nor waits. Keys are in the environment and nowhere else: every text of a server is redacted.
"""

from __future__ import annotations

import http.client
import json
import logging
import math
import os
import re
import time
import urllib.request
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any

from evolve.processes import LOCAL_PRICES
from evolve.run.llm_settings import LlmSettings, is_private
from simulator.common.errors import InputError
from simulator.common.json import JsonObject
from simulator.common.secrets import redact
from simulator.common.text import plain

# Prefixes of models that are served at `api_base`; other providers have fixed addresses.
SELF_HOSTED = ("openai/", "hosted_vllm/", "ollama/", "ollama_chat/", "lm_studio/", "llamafile/", "litellm_proxy/")
PROXY = "litellm_proxy/"  # may call models that others bill
LONGEST = 300  # characters of an error message that are kept
LONGEST_WORDS = 80  # characters of a server's words in a message of one line
MOST_BYTES = 2**23  # of an answer that are read: a thousand times as many as most have
LONGEST_LISTING = 10**7  # bytes of a server's list of models that are read
LISTING_S = 5.0  # how long a server may take to list its models
NO_KEY = "none"  # the key that is sent to an OpenAI-compatible server without keys
# litellm's words around those of a server.
RECEIVED = re.compile(r"Received: '(.*?)(?:'\. Check the|$)")
EXCEPTION_NAMES = re.compile(r"^(?:[\w.]+: )*\w+Exception - ")
# Exceptions of litellm whose status can be trusted even without the server's headers.
TRUSTED = {
    *("RateLimitError", "AuthenticationError", "PermissionDeniedError", "NotFoundError", "BadRequestError"),
    *("UnprocessableEntityError", "ServiceUnavailableError"),
}
# Each kind of fault with the user's remedy.
REMEDIES = {
    "rate limit": "Wait, or ask for a higher limit.",
    "key refused": "Correct the key.",
    "no such model": "Correct the model's name or --api-base, or serve that model.",
    "timeout": "Check the load of the server, then try again.",
    "server error": "Read the log of the server, or try again later.",
    "bad request": "Check the limits of the server on the lengths of question and answer.",
    "no connection": "Start the server, or correct --api-base.",
    "connection lost": "Read the log of the server, then try again.",
    "broken answer": "Give --api-base of an OpenAI-compatible server; most end in /v1.",
    "redirect": "If you trust that server, give its address as --api-base.",
}
# Every request fails until the user corrects a key, a name or an address.
SETUP = ("key refused", "no such model", "redirect")
FINAL = (*SETUP, "bad request")  # another attempt cannot succeed
MAYBE_PAID = ("timeout", "connection lost", "broken answer")  # the server may have generated an answer
# The kind of fault of a status; of others from 500 on a server error, from 400 on a bad request.
STATUSES = {404: "no such model", 429: "rate limit"}
STATUSES |= dict.fromkeys((401, 402, 403), "key refused") | dict.fromkeys((408, 504, 524), "timeout")


class CallFault(Exception):
    """A request without an answer. `kind`: a key of REMEDIES. `retry_after_s`: the wait that the server asked for."""

    def __init__(self, kind: str, why: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{kind}: {why}")
        self.kind, self.why, self.retry_after_s = kind, why, retry_after_s
        self.again, self.unpaid, self.setup = kind not in FINAL, kind not in MAYBE_PAID, kind in SETUP

    @property
    def advice(self) -> str:
        """The fault with the beginning of the server's text, the cost, and the remedy."""
        received = RECEIVED.search(self.why)
        words = plain(received[1] if received else EXCEPTION_NAMES.sub("", self.why), LONGEST_WORDS)
        cost = "nothing was charged" if self.unpaid else "it may have been charged all the same"
        return f'{self.kind}, "{words}"; {cost}. {REMEDIES[self.kind]}'


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: its text, the server's name for the model's version, tokens, why it ended, and seconds it took."""

    text: str
    version: str
    tokens_in: int
    tokens_out: int
    finish: str
    seconds: float


def litellm() -> Any:
    """The library, silenced, guarded, and kept from downloads and from .env files. Raises InputError without it."""
    os.environ.update(LOCAL_PRICES)  # again, for programs that use this module without the command line
    os.environ.setdefault("LITELLM_MODE", "PRODUCTION")
    for name in [name for name, value in os.environ.items() if name.endswith("_API_KEY") and not value.strip()]:
        del os.environ[name]  # so that an empty key is reported as missing before anything is sent
    try:
        import litellm as library
    except ModuleNotFoundError as e:
        raise not_installed(e) from None
    library.suppress_debug_info = True
    library.telemetry = False
    logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)
    # of answers in another form, which are faults
    warnings.filterwarnings("ignore", "Pydantic serializer warnings", UserWarning)
    _guard()
    return library


def not_installed(error: ModuleNotFoundError) -> InputError:
    """The error about a missing library of the extra `llm`, to be raised."""
    return InputError(f"cannot import {error.name}: run make setup-llm, or pip install 'evolve-latency[llm]'")


@cache
def _guard() -> None:
    """Have litellm read no more of an answer than MOST_BYTES, and send nothing on to another server."""
    # An optional library, and the one that it sends requests with.
    import httpx
    import litellm as library

    inner = library.module_level_client.client  # with the user's proxies and certificates

    class Guarded(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            request.headers["Accept-Encoding"] = "identity"  # what is compressed may become any number of bytes
            with closing(inner.send(request, stream=True, follow_redirects=False)) as answer:
                here, there, body = request.url, answer.next_request and answer.next_request.url, bytearray()
                if there and (there.scheme, there.host, there.port) != (here.scheme, here.host, here.port):
                    address = _one_line(f"{there.scheme}://{there.netloc.decode()}")
                    raise CallFault("redirect", f"the server refers to {address}")
                if answer.headers.get("Content-Encoding", "identity") != "identity":
                    raise CallFault("broken answer", "the answer is compressed, though none such was asked for")
                for chunk in answer.iter_raw():
                    body += chunk
                    if len(body) > MOST_BYTES:
                        raise CallFault("broken answer", f"the answer has more than {MOST_BYTES >> 20} MiB")
                return httpx.Response(answer.status_code, headers=answer.headers, content=bytes(body))

    library.sync_transport = Guarded()
    library.client_session = httpx.Client(transport=Guarded(), follow_redirects=True)  # that of OpenAI's library


def check_keys(models: Sequence[str], api_base: str) -> None:
    """Raises InputError for an unknown provider, or naming the environment variables of all missing keys."""
    library, needed = litellm(), dict[str, str]()
    for model in models:
        try:
            library.get_llm_provider(model)
        except Exception:
            raise InputError(
                f"cannot ask {model}: litellm knows no such provider. "
                "Write provider/model; for your own server write openai/NAME and give --api-base."
            ) from None
        missing = [] if _base_of(model, api_base) else library.validate_environment(model)["missing_keys"]
        if missing:
            # Google's key has two names, one of which is enough
            needed[model] = (" or " if "GEMINI_API_KEY" in missing else " and ").join(missing)
    if needed:
        variables = ", ".join(f"{names} for {model}" for model, names in needed.items())
        raise InputError(f"cannot ask a model without its key. Set {variables} in the environment.")
    if api_base and not any(_base_of(model, api_base) for model in models):
        raise InputError(f"cannot use --api-base {api_base}: no model of this run is served there. Name openai/NAME.")


def listed_price(model: str) -> tuple[float, float] | None:
    """litellm's (input, output) prices in USD per million tokens; None if it has none."""
    try:
        info = litellm().get_model_info(model)
    except Exception:
        return None
    prices = info.get("input_cost_per_token"), info.get("output_cost_per_token")
    return None if None in prices else (prices[0] * 1e6, prices[1] * 1e6)


def own_models(models: Sequence[str], api_base: str) -> list[str]:
    """The models that nobody bills: those served at `api_base` on this machine or in a private network."""
    private = is_private(api_base)
    return [model for model in models if private and _base_of(model, api_base) and not model.startswith(PROXY)]


@cache
def calls_tools(model: str) -> bool | None:
    """True if litellm lists the model as able to call tools, None if it does not list it. Nothing is sent."""
    library = litellm()
    try:
        library.get_model_info(model)
    except Exception:
        return None
    return bool(library.supports_function_calling(model))


def count_tokens(messages: Sequence[tuple[str, str]]) -> int:
    """The tokens of (role, text) messages by the tokenizer of OpenAI's models; others differ by some percent."""
    counted = [{"role": role, "content": text} for role, text in messages]
    return int(litellm().token_counter(model="", messages=counted))  # without a name, no tokenizer is downloaded


def served(models: Sequence[str], api_base: str) -> dict[str, int | None]:
    """The models that the server lists, and the tokens that fit into one request, None if it does not say as vLLM does.

    Empty if it lists none. OpenAI's key is sent only if a request to one of `models` would send it too.
    """
    key = os.environ.get("OPENAI_API_KEY", "").strip() if any(m.startswith("openai/") for m in models) else ""
    headers = {"Authorization": f"Bearer {key or NO_KEY}"}
    asked = urllib.request.Request(f"{api_base.rstrip('/')}/models", headers=headers)
    try:
        with urllib.request.build_opener(_NoRedirect).open(asked, timeout=LISTING_S) as answer:
            listed = json.loads(answer.read(LONGEST_LISTING))["data"]
            lengths = {str(m["id"]): m.get("max_model_len") for m in listed}
            return {name: length if isinstance(length, int) else None for name, length in lengths.items()}
    except (OSError, ValueError, http.client.HTTPException, KeyError, TypeError, AttributeError):
        return {}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which could carry the key to another server."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


# The tool by which a model may propose.
TOOL: JsonObject = json.loads("""
{"type": "function", "function": {"name": "propose",
 "description": "Have programs fitted and scored. Each is a whole program, or changes of program A.",
 "parameters": {"type": "object", "properties": {"proposals": {"type": "array", "items": {
  "type": "object", "properties": {
   "title": {"type": "string", "description": "the idea and the mechanism in one sentence"},
   "motivation": {"type": "string",
    "description": "why it should help; lines of related work, and of answers to issues"},
   "program": {"type": "string", "description": "the whole program"},
   "changes": {"type": "array", "description": "instead of a program: lines of program A, and lines in their place",
    "items": {"type": "object", "properties": {"search": {"type": "string"}, "replace": {"type": "string"}},
     "required": ["search", "replace"]}}},
  "required": ["title"]}}}, "required": ["proposals"]}}}
""")
TOOL_BYTES = len(json.dumps(TOOL))  # that it adds to a request


def as_text(arguments: Iterable[str]) -> str:
    """The proposals in the arguments of tool calls, in the form of a plain answer. Other arguments stay as they are."""
    sections: list[str] = []
    for raw in arguments:
        try:
            proposals = json.loads(raw)["proposals"]
            sections += [_section(len(sections) + 1 + i, proposal) for i, proposal in enumerate(proposals)]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            sections.append(raw)
    return "\n".join(sections)


def _section(number: int, proposal: JsonObject) -> str:
    text = {name: str(proposal.get(name) or "").strip("\n") for name in ("motivation", "program")}
    heading = f"### Proposal {number}: {' '.join(str(proposal.get('title', '')).split())}"
    if text["motivation"]:
        heading += f"\n\n{text['motivation']}"
    if not proposal.get("changes"):
        return f"{heading}\n\n```python\n{text['program']}\n```\n"
    pairs = [(change["search"].strip("\n"), change["replace"].strip("\n")) for change in proposal["changes"]]
    blocks = [f"<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE" for search, replace in pairs]
    return "\n".join([heading, "", "```", *blocks, "```", ""])


def request(model: str, messages: Sequence[tuple[str, str]], settings: LlmSettings, with_tool: bool = False) -> Reply:
    """The reply to one request of (role, text) messages, `with_tool` perhaps by a call of TOOL. Raises CallFault."""
    library, sent_at = litellm(), time.monotonic()
    options = _options(library, model, settings)
    if with_tool:
        # Without the switch litellm imports its handler of MCP, which the package alone does not bring along.
        options |= {"tools": [TOOL], "_skip_mcp_handler": True}
    contents = [{"role": role, "content": text} for role, text in messages]
    try:
        response = library.completion(model=model, messages=contents, num_retries=0, max_retries=0, **options)
        return _reply(response, model, sent_at)
    except CallFault:
        raise
    except Exception as e:
        raise _fault(e) from None


def _options(library: Any, model: str, settings: LlmSettings) -> dict[str, Any]:
    """The options of a request that depend on the model: its address, key and limit of tokens."""
    options: dict[str, Any] = {"timeout": settings.timeout_s}
    if base := _base_of(model, settings.api_base):
        options["api_base"] = base
        if library.validate_environment(model)["missing_keys"]:
            options["api_key"] = NO_KEY
    # litellm's own way to leave out what a model does not support (drop_params) sends a refused request a second time
    supported = library.get_supported_openai_params(model)
    return options if supported and "max_tokens" not in supported else options | {"max_tokens": settings.answer_tokens}


def _base_of(model: str, api_base: str) -> str:
    return api_base if model.startswith(SELF_HOSTED) else ""


def _reply(response: Any, model: str, sent_at: float) -> Reply:
    if response is None:  # litellm's result if it sent a refused request again in another form, which was refused too
        raise CallFault("bad request", "refused in every form")
    if not response.choices:
        raise CallFault("broken answer", "the answer has no choices")
    choice, usage = response.choices[0], getattr(response, "usage", None)
    text = choice.message.content or ""
    called = as_text(call.function.arguments or "" for call in choice.message.tool_calls or ())
    return Reply(
        text=redact("\n\n".join(part for part in (text, called) if part)),
        version=_one_line(response.model or model),
        tokens_in=int(getattr(usage, "prompt_tokens", 0) or 0),
        tokens_out=int(getattr(usage, "completion_tokens", 0) or 0),
        finish=_one_line(choice.finish_reason),
        seconds=time.monotonic() - sent_at,
    )


def _one_line(value: object) -> str:
    return plain(redact(str(value)), LONGEST)


def _fault(error: Exception) -> CallFault:
    """The fault for an exception of litellm. Its own message may quote the key.

    litellm chooses the class of an exception by the text of the error as much as by its status, and reports a broken
    answer as a 500. Only an exception with the server's headers has a status that the server sent.
    """
    if own := next((e for e in _causes(error) if isinstance(e, CallFault)), None):
        return own
    text, headers = str(error), getattr(error, "litellm_response_headers", None)
    if "Invalid response object Traceback" in text:
        not_text = "validation error for Message\ncontent\n" in text
        text = (
            "the answer's content is not text" if not_text else "the answer does not have the form of a chat completion"
        )
    why, classes = _one_line(text), {c.__name__ for c in type(error).__mro__}
    status = int(getattr(error, "status_code", 0)) if headers is not None or classes & TRUSTED else 0
    if headers is None and "Timeout" in classes:
        status = 408
    if status >= 400:
        kind = STATUSES.get(status, "server error" if status >= 500 else "bad request")
    elif any(type(e).__name__ == "ConnectError" for e in _causes(error)):
        kind = "no connection"
    else:
        kind = "connection lost" if "Connection error" in why else "broken answer"
    return CallFault(kind, why, _retry_after(headers) if kind in ("rate limit", "server error") else None)


def _retry_after(headers: Any) -> float | None:
    """The seconds that retry-after asks for; None if it is not a number."""
    try:
        seconds = float(headers["retry-after"])
    except (KeyError, TypeError, ValueError):
        return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
