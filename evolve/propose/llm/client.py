"""The only module that knows litellm: one request, and what came back or went wrong. No retries, no waiting."""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from evolve.propose.llm.secrets import redact
from simulator.errors import InputError

INSTALL = "litellm and openevolve are not installed: make llm, or pip install 'evolve-latency[llm]'"
# of models behind `api_base`; other providers have addresses of their own
SELF_HOSTED = ("openai/", "hosted_vllm/", "ollama/", "ollama_chat/", "lm_studio/", "llamafile/", "litellm_proxy/")
LONGEST = 300  # characters of an error message that are kept
NO_KEY = "none"  # what an OpenAI-compatible server without keys is sent


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: its text, the version of the model as the server names it, tokens, why it ended, seconds it took."""

    text: str
    version: str
    tokens_in: int
    tokens_out: int
    finish: str
    seconds: float


class Fault(Exception):
    """A request that brought no answer. `kind`: a word for tables; `retry_after_s`: what the server asked for;
    `again`: whether trying again may help; `unpaid`: certainly nothing was generated; `setup`: nothing will work until
    the user mends a key, a name or an address."""

    def __init__(self, kind: str, why: str, *, again: bool, unpaid: bool, setup: bool = False,
                 retry_after_s: float | None = None) -> None:  # fmt: skip
        super().__init__(f"{kind}: {why}")
        self.kind, self.why, self.again, self.unpaid, self.setup = kind, why, again, unpaid, setup
        self.retry_after_s = retry_after_s


def litellm() -> Any:
    """The library, made quiet and kept from fetching its price list and from reading keys out of a .env file."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("LITELLM_MODE", "PRODUCTION")
    for name in [name for name, value in os.environ.items() if name.endswith("_API_KEY") and not value.strip()]:
        del os.environ[name]  # an empty key is none, and is missed before anything is sent
    import litellm as library

    library.suppress_debug_info = True
    library.telemetry = False
    logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)
    return library


def check_installed() -> None:
    """Raises InputError if a package that language models need is not installed."""
    if any(importlib.util.find_spec(name) is None for name in ("litellm", "openevolve")):
        raise InputError(INSTALL)


def check_keys(models: Sequence[str], api_base: str) -> None:
    """Raises InputError naming the environment variables of all keys that are missing, or a model that cannot be."""
    library, wanted = litellm(), dict[str, str]()
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
            # Google's has two names, one of which is enough
            wanted[model] = (" or " if "GEMINI_API_KEY" in missing else " and ").join(missing)
    if wanted:
        told = ", ".join(f"{names} for {model}" for model, names in wanted.items())
        raise InputError(f"no key for a model: set {told} in the environment")
    if api_base and not any(_base_of(model, api_base) for model in models):
        raise InputError(f"--api-base {api_base}: is of no model here: name one as openai/NAME")


def listed_price(model: str) -> tuple[float, float] | None:
    """USD per million tokens as litellm has them, None if it has none."""
    try:
        found = litellm().get_model_info(model)
    except Exception:
        return None
    prices = found.get("input_cost_per_token"), found.get("output_cost_per_token")
    return None if None in prices else (prices[0] * 1e6, prices[1] * 1e6)


def request(
    model: str, messages: Sequence[tuple[str, str]], api_base: str, answer_tokens: int, timeout_s: float
) -> Reply:
    """One request of (role, text) messages. Raises Fault."""
    library = litellm()
    begun = time.monotonic()
    try:
        found = library.completion(
            model=model,
            messages=[{"role": role, "content": text} for role, text in messages],
            timeout=timeout_s,
            num_retries=0,
            max_retries=0,
            **_more(library, model, api_base, answer_tokens),
        )
        return _reply(found, model, begun)
    except Fault:
        raise
    except Exception as e:
        raise _fault(e, library.exceptions) from None


def _reply(found: Any, model: str, begun: float) -> Reply:
    if found is None:  # what litellm returns where a request was refused that it had sent again in another form
        raise Fault("bad request", "refused in every form", again=False, unpaid=True)
    choice = found.choices[0] if found.choices else None
    usage = getattr(found, "usage", None)
    return Reply(
        text=redact((choice.message.content if choice else None) or ""),
        version=_line(found.model or model),
        tokens_in=int(getattr(usage, "prompt_tokens", 0) or 0),
        tokens_out=int(getattr(usage, "completion_tokens", 0) or 0),
        finish=_line(choice.finish_reason if choice else "no choice"),
        seconds=time.monotonic() - begun,
    )


def _more(library: Any, model: str, api_base: str, answer_tokens: int) -> dict[str, Any]:
    """Where a request goes, and what only some models and servers take. What a model lacks is left out here, since
    litellm's own way (drop_params) sends a request a second time that a server refused."""
    base = _base_of(model, api_base)
    more: dict[str, Any] = {"api_base": base} if base else {}
    if base and library.validate_environment(model)["missing_keys"]:
        more["api_key"] = NO_KEY
    taken = library.get_supported_openai_params(model)
    return more if taken and "max_tokens" not in taken else more | {"max_tokens": answer_tokens}


def _base_of(model: str, api_base: str) -> str:
    return api_base if model.startswith(SELF_HOSTED) else ""


def _fault(error: Exception, kinds: Any) -> Fault:
    """What litellm raised, in our words (its own may quote the key). Its classes follow the text of an error as much as
    its status, and a broken answer is a 500 of its own making: the headers tell whether a server sent the status."""
    why = _line(error)
    headers = getattr(error, "litellm_response_headers", None)
    status = getattr(error, "status_code", 0) if headers is not None else _status(error, kinds)
    if status == 429:
        return Fault("rate limit", why, again=True, unpaid=True, retry_after_s=_seconds(headers))
    if status in (401, 402, 403):
        return Fault("key refused", why, again=False, unpaid=True, setup=True)
    if status == 404:
        return Fault("no such model", why, again=False, unpaid=True, setup=True)
    if status in (408, 504, 524):
        return Fault("timeout", why, again=True, unpaid=False)
    if status >= 500:
        return Fault("server error", why, again=True, unpaid=True, retry_after_s=_seconds(headers))
    if status >= 400:
        return Fault("bad request", why, again=False, unpaid=True)
    if any(type(e).__name__ == "ConnectError" for e in _chain(error)):
        return Fault("no connection", why, again=True, unpaid=True)
    if "Connection error" in why:
        return Fault("connection lost", why, again=True, unpaid=False)
    return Fault("broken answer", why, again=True, unpaid=False)


def _status(error: Exception, kinds: Any) -> int:
    """The status of an error that came without headers, as far as its class is to be believed; 0 if not."""
    if isinstance(error, kinds.Timeout):
        return 408
    certain = (kinds.RateLimitError, kinds.AuthenticationError, kinds.PermissionDeniedError, kinds.NotFoundError,
               kinds.BadRequestError, kinds.UnprocessableEntityError, kinds.ServiceUnavailableError)  # fmt: skip
    return int(getattr(error, "status_code", 0)) if isinstance(error, certain) else 0


def _line(said: object) -> str:
    """What a server said, without keys, in one line of at most LONGEST printable characters."""
    text = redact(str(said))
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:LONGEST]


def _seconds(headers: Any) -> float | None:
    """What retry-after asks for, where it is a number of seconds."""
    try:
        seconds = float(headers["retry-after"])
    except (KeyError, TypeError, ValueError):
        return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
