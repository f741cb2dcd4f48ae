"""One request to a language model, and its reply or fault. This is the only module that knows litellm.

It neither retries nor waits. Keys are in the environment and nowhere else: everything that a server says is redacted.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import logging
import math
import os
import re
import time
import urllib.request
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from evolve.processes import LOCAL_PRICES
from evolve.run.llm_settings import is_private
from evolve.search.llm import tools
from evolve.search.llm.fault import CallFault
from simulator.common.errors import InputError

INSTALL = "litellm is not installed: make llm, or pip install 'evolve-latency[llm]'"
# Prefixes of models that are served at `api_base`; other providers have fixed addresses.
SELF_HOSTED = ("openai/", "hosted_vllm/", "ollama/", "ollama_chat/", "lm_studio/", "llamafile/", "litellm_proxy/")
LONGEST = 300  # characters of an error message that are kept
PROXY = "litellm_proxy/"  # may call models that others bill
LONGEST_LISTING = 10**7  # bytes of a server's list of models that are read
LISTING_S = 5.0  # a server is waited for this long when it is asked for its models
NO_KEY = "none"  # the key that is sent to an OpenAI-compatible server without keys
KEY_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)  # of environment variables
SHORTEST_KEY = 8  # characters; redacting anything shorter would also hide ordinary words
REDACTED = "[key]"
UNREADABLE = "Invalid response object Traceback"  # how litellm begins on an answer that it cannot read


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
    """The library, silenced, and kept from downloading its price list and from reading keys from a .env file."""
    os.environ.update(LOCAL_PRICES)  # again, for programs that use this module without the command line
    os.environ.setdefault("LITELLM_MODE", "PRODUCTION")
    for name in [name for name, value in os.environ.items() if name.endswith("_API_KEY") and not value.strip()]:
        del os.environ[name]  # so that an empty key is reported as missing before anything is sent
    import litellm as library

    library.suppress_debug_info = True
    library.telemetry = False
    logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)
    # of answers in another form, which are faults
    warnings.filterwarnings("ignore", "Pydantic serializer warnings", UserWarning)
    return library


def check_installed() -> None:
    """Raises InputError if the package that language models need is not installed."""
    if importlib.util.find_spec("litellm") is None:
        raise InputError(INSTALL)


def check_keys(models: Sequence[str], api_base: str) -> None:
    """Raises InputError for an unknown provider, or naming the environment variables of all missing keys."""
    library, needed = litellm(), dict[str, str]()
    for model in models:
        try:
            library.get_llm_provider(model)
        except Exception:
            raise InputError(f"{model}: litellm knows no such provider: write provider/model, for a server of "
                             "your own openai/NAME with --api-base") from None  # fmt: skip
        if _base_of(model, api_base):
            continue
        missing = library.validate_environment(model)["missing_keys"]
        if missing:
            # Google's key has two names, one of which is enough
            needed[model] = (" or " if "GEMINI_API_KEY" in missing else " and ").join(missing)
    if needed:
        variables = ", ".join(f"{names} for {model}" for model, names in needed.items())
        raise InputError(f"no key for a model: set {variables} in the environment")
    if api_base and not any(_base_of(model, api_base) for model in models):
        raise InputError(f"--api-base {api_base}: applies to none of the models: name one as openai/NAME")


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
    """Whether litellm lists a model as able to call tools; None if it does not list the model. Nothing is sent."""
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


def context_tokens(models: Sequence[str], api_base: str) -> dict[str, int]:
    """The tokens that fit into one request of each model, prompt and answer, where a server says so as vLLM does.

    Empty if the server does not answer, or not in that form. It is sent OpenAI's key only if a request to one of
    `models` would send it too.
    """
    key = os.environ.get("OPENAI_API_KEY", "").strip() if any(m.startswith("openai/") for m in models) else ""
    headers = {"Authorization": f"Bearer {key or NO_KEY}"}
    asked = urllib.request.Request(f"{api_base.rstrip('/')}/models", headers=headers)
    try:
        with urllib.request.build_opener(_NoRedirect).open(asked, timeout=LISTING_S) as answer:
            listed = json.loads(answer.read(LONGEST_LISTING))["data"]
            return {str(m["id"]): m["max_model_len"] for m in listed if isinstance(m.get("max_model_len"), int)}
    except (OSError, ValueError, http.client.HTTPException, KeyError, TypeError, AttributeError):
        return {}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which could carry the key to another server."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def request(
    model: str,
    messages: Sequence[tuple[str, str]],
    api_base: str,
    answer_tokens: int,
    timeout_s: float,
    with_tool: bool = False,
) -> Reply:
    """The reply to one request of (role, text) messages. Raises Fault.

    `with_tool`: the model may propose programs by a call of the tool (see tools).
    """
    library = litellm()
    sent_at = time.monotonic()
    try:
        response = library.completion(
            model=model,
            messages=[{"role": role, "content": text} for role, text in messages],
            timeout=timeout_s,
            num_retries=0,
            max_retries=0,
            **_options(library, model, api_base, answer_tokens),
            # Without the switch litellm imports its handler of MCP, which the package alone does not bring along.
            **({"tools": [tools.TOOL], "_skip_mcp_handler": True} if with_tool else {}),
        )
        return _reply(response, model, sent_at)
    except CallFault:
        raise
    except Exception as e:
        raise _fault(e, library.exceptions) from None


def redact(text: str) -> str:
    """`text` without bearer tokens, and without the value of any environment variable that is named like a key."""
    values = {value.strip() for name, value in os.environ.items() if KEY_NAMES.search(name)}
    # the longest first, since one key may be part of another
    for value in sorted((v for v in values if len(v) >= SHORTEST_KEY), key=len, reverse=True):
        text = text.replace(value, REDACTED)
    return re.sub(r"(?i)\b(bearer\s+)[\w.~+/=-]{8,}", rf"\1{REDACTED}", text)


def _reply(response: Any, model: str, sent_at: float) -> Reply:
    if response is None:  # litellm's result if it sent a refused request again in another form, which was refused too
        raise CallFault("bad request", "refused in every form", again=False, unpaid=True)
    if not response.choices:
        raise CallFault("broken answer", "the answer has no choices", again=True, unpaid=False)
    choice, usage = response.choices[0], getattr(response, "usage", None)
    text = choice.message.content or ""
    called = tools.as_text(call.function.arguments or "" for call in choice.message.tool_calls or ())
    return Reply(
        text=redact("\n\n".join(part for part in (text, called) if part)),
        version=_one_line(response.model or model),
        tokens_in=int(getattr(usage, "prompt_tokens", 0) or 0),
        tokens_out=int(getattr(usage, "completion_tokens", 0) or 0),
        finish=_one_line(choice.finish_reason),
        seconds=time.monotonic() - sent_at,
    )


def _options(library: Any, model: str, api_base: str, answer_tokens: int) -> dict[str, Any]:
    """The options of a request that depend on the model: its address, key and limit of tokens.

    An option that a model does not support is left out here, because litellm's own way (drop_params) sends a refused
    request a second time.
    """
    base = _base_of(model, api_base)
    options: dict[str, Any] = {"api_base": base} if base else {}
    if base and library.validate_environment(model)["missing_keys"]:
        options["api_key"] = NO_KEY
    supported = library.get_supported_openai_params(model)
    return options if supported and "max_tokens" not in supported else options | {"max_tokens": answer_tokens}


def _base_of(model: str, api_base: str) -> str:
    return api_base if model.startswith(SELF_HOSTED) else ""


def _fault(error: Exception, kinds: Any) -> CallFault:
    """The Fault for an exception of litellm, whose own message may quote the key.

    litellm chooses the class of an exception by the text of the error as much as by its status, and reports a broken
    answer as a 500. Only an exception with the server's headers has a status that the server sent.
    """
    why = _one_line(_reason(error))
    headers = getattr(error, "litellm_response_headers", None)
    status = getattr(error, "status_code", 0) if headers is not None else _status(error, kinds)
    if status == 429:
        return CallFault("rate limit", why, again=True, unpaid=True, retry_after_s=_retry_after(headers))
    if status in (401, 402, 403):
        return CallFault("key refused", why, again=False, unpaid=True, setup=True)
    if status == 404:
        return CallFault("no such model", why, again=False, unpaid=True, setup=True)
    if status in (408, 504, 524):
        return CallFault("timeout", why, again=True, unpaid=False)
    if status >= 500:
        return CallFault("server error", why, again=True, unpaid=True, retry_after_s=_retry_after(headers))
    if status >= 400:
        return CallFault("bad request", why, again=False, unpaid=True)
    if any(type(e).__name__ == "ConnectError" for e in _causes(error)):
        return CallFault("no connection", why, again=True, unpaid=True)
    if "Connection error" in why:
        return CallFault("connection lost", why, again=True, unpaid=False)
    return CallFault("broken answer", why, again=True, unpaid=False)


def _reason(error: Exception) -> str:
    """The error's text; of an answer that litellm cannot read, what is wrong with it instead of a traceback."""
    text = str(error)
    if UNREADABLE not in text:
        return text
    if "validation error for Message\ncontent\n" in text:
        return "the answer's content is not text"
    return "the answer has not the form of a chat completion"


def _status(error: Exception, kinds: Any) -> int:
    """The status of an error without headers, if its class can be trusted; 0 otherwise."""
    if isinstance(error, kinds.Timeout):
        return 408
    trusted = (kinds.RateLimitError, kinds.AuthenticationError, kinds.PermissionDeniedError, kinds.NotFoundError,
               kinds.BadRequestError, kinds.UnprocessableEntityError, kinds.ServiceUnavailableError)  # fmt: skip
    return int(getattr(error, "status_code", 0)) if isinstance(error, trusted) else 0


def _one_line(value: object) -> str:
    """A server's text without keys, as one line of at most LONGEST printable characters."""
    text = redact(str(value))
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:LONGEST]


def _retry_after(headers: Any) -> float | None:
    """The seconds that retry-after asks for; None if it is not a number."""
    try:
        seconds = float(headers["retry-after"])
    except (KeyError, TypeError, ValueError):
        return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception, then its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
