"""Faults: requests to language models without an answer, and what a user can do about each kind of them."""

from __future__ import annotations

import re

from simulator.common.text import plain

LONGEST_WORDS = 80  # characters of a server's words in a message of one line
# What a user can do about each kind of fault.
REMEDIES = {
    "rate limit": "wait, or ask for a higher limit",
    "key refused": "fix the key",
    "no such model": "fix the name of the model or --api-base",
    "timeout": "see whether its server is overloaded, then try again",
    "server error": "see what its server logs, or try again later",
    "bad request": "see what its server takes: the length of the question or the answer may be too much for it",
    "no connection": "start its server, or fix --api-base",
    "connection lost": "see what its server logs, then try again",
    "broken answer": "see that --api-base is the address of an OpenAI-compatible server, usually one that ends in /v1",
}
# What goes on with a run that ends because of such a fault; `resume` keeps the names of its models.
GOES_ON = {
    "key refused": "fix the key and resume the run, or start one with another model or --api-base",
    "no such model": "start a run with the right name or --api-base, or serve the model by this name and resume",
}
# What litellm puts around a server's words.
RECEIVED = re.compile(r"Received: '(.*?)(?:'\. Check the|$)")
NAMES = re.compile(r"^(?:[\w.]+: )*\w+Exception - ")


class CallFault(Exception):
    """A request without an answer.

    `kind` is a short name for tables. `again`: another attempt may succeed. `unpaid`: certainly nothing was generated.
    `setup`: nothing will work until the user corrects a key, a name or an address. `retry_after_s` is the wait that the
    server asked for.
    """

    def __init__(self, kind: str, why: str, *, again: bool, unpaid: bool, setup: bool = False,
                 retry_after_s: float | None = None) -> None:  # fmt: skip
        super().__init__(f"{kind}: {why}")
        self.kind, self.why, self.again, self.unpaid, self.setup = kind, why, again, unpaid, setup
        self.retry_after_s = retry_after_s

    @property
    def words(self) -> str:
        """The beginning of what the server sent, without the names of exceptions around it."""
        received = RECEIVED.search(self.why)
        return plain(received[1] if received else NAMES.sub("", self.why), LONGEST_WORDS)
