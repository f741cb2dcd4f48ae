"""Whether calls have passed a limit of the run. None is sent that could, but a server may count more than can be."""

from __future__ import annotations

from evolve.output.table import counted
from evolve.run.llm_settings import LlmSettings
from evolve.search.llm.call_log import CallLog

ROUNDING = 1e-9  # of max_usd, since what is spent is a sum of many small amounts


def passed(log: CallLog, settings: LlmSettings) -> str:
    """Which limit is passed, by how much and why, with its name first; "" if none is.

    Either a server counted more tokens than its requests can take, or the limit was lowered later.

    >>> passed(CallLog(), LlmSettings())
    ''
    """
    spent, over = log.spent, log.overcounted()
    usd, tokens = spent.usd + spent.possibly_usd, spent.tokens + spent.possibly_tokens
    requests = counted(over.requests, "request")
    why = f", since servers counted {over.tokens:,} tokens more than {requests} can take"
    most = settings.max_usd * (1.0 + ROUNDING)
    if usd > most:
        by = f" by {usd - settings.max_usd:.4f} USD{why}"
        if usd - over.usd > most:
            by = f": {usd:.4f} USD are spent already"
        return f"max_usd {settings.max_usd:g} is passed{by}"
    if settings.max_calls and spent.requests > settings.max_calls:
        return f"max_calls {settings.max_calls} is passed: {counted(spent.requests, 'request')} were sent already"
    if settings.max_tokens and tokens > settings.max_tokens:
        by = f" by {tokens - settings.max_tokens:,}{why}"
        if tokens - over.tokens > settings.max_tokens:
            by = f": {tokens:,} tokens are used already"
        return f"max_tokens {settings.max_tokens} is passed{by}"
    return ""
