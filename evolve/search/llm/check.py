"""One question to one model before a run: what its answer costs, and how much of it can be used."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from archive.elite import Elite
from evolve.output.printing import prose, show
from evolve.output.table import Table
from evolve.run.config import Config
from evolve.search.llm import client, prompt
from evolve.search.llm.answer import ideas
from evolve.search.llm.calls import Answered, LlmCall, Messages, answered_line, unpack
from evolve.search.llm.fault import LONGEST_WORDS
from evolve.search.llm.prices import Price
from evolve.search.llm.question import Taken, checked
from simulator.common.errors import InputError
from simulator.common.json import JsonObject
from simulator.common.text import plain


@dataclass(frozen=True, slots=True)
class Read:
    """A proposal in the answer. `complaint` is why it cannot be fitted, "" if it can; it may parse all the same."""

    title: str
    text: str
    parses: bool
    complaint: str


@dataclass(frozen=True, slots=True)
class Check:
    """What became of the question. `usd_at_most`: what it could have cost. `tools`: see client.calls_tools.

    `nothing`: why there is no proposal in the answer, "" if there is one. `asked`: how many were asked for.
    """

    answered: Answered
    price: Price
    usd_at_most: float
    tools: bool | None
    asked: int
    proposals: tuple[Read, ...]
    nothing: str

    @property
    def parsed(self) -> int:
        """How many proposals are programs of the language."""
        return sum(read.parses for read in self.proposals)

    @property
    def usable(self) -> int:
        """How many of them a search would fit."""
        return sum(not read.complaint for read in self.proposals)

    def to_json(self) -> JsonObject:
        shown = ("model", "version", "tokens_in", "tokens_out", "uncounted", "usd", "seconds", "finish")
        return {name: getattr(self.answered, name) for name in shown} | {
            "usd_at_most": self.usd_at_most,
            "price_usd_per_million_tokens": [self.price.input_usd, self.price.output_usd],
            "tools": self.tools,
            "asked": self.asked,
            "read": len(self.proposals),
            "parsed": self.parsed,
            "usable": self.usable,
            "nothing": self.nothing,
            "proposals": [asdict(read) for read in self.proposals],
        }


def ask(config: Config, messages: Messages, base: Elite, taken: Taken, price: Price) -> Check:
    """Send a question about `base` to the configuration's only model, once. `taken`: the forms that exist.

    Raises InputError before anything is sent if that may cost more than `max_usd`, and Fault without an answer.
    """
    llm = config.llm
    model = next(iter(llm.ensemble()))
    call = LlmCall(0, "propose", 0, model, messages)
    most = call.most(llm.answer_tokens)
    at_most = price.usd(*most)
    if at_most > llm.max_usd:
        raise InputError(f"--max-usd {llm.max_usd:g}: the question may cost {at_most:.4f} USD: allow more, or name "
                         "a cheaper model")  # fmt: skip
    reply = client.request(model, messages, llm.api_base, llm.answer_tokens, llm.timeout_s)
    answered = answered_line(call, 1, reply, price, most)
    answers = ideas(unpack(answered.answer), prompt.bare(base.text), llm.programs, answered.finish)
    taken = dict(taken)
    proposals = tuple(
        Read(idea.title, idea.text, not idea.complaint, checked(idea, call.name, config, taken).idea.complaint)
        for idea in answers
        if idea.title or idea.text
    )
    nothing = "" if proposals else answers[0].complaint
    return Check(answered, price, at_most, client.calls_tools(model), llm.programs, proposals, nothing)


TOOLS = {True: "can call tools, says litellm", False: "cannot call tools, says litellm",
         None: "litellm does not list it, so whether it can call tools is not known"}  # fmt: skip


def print_check(check: Check) -> None:
    """Print what came back, what it cost, and what can be used of it."""
    answered, price = check.answered, check.price
    prose(f"{answered.model} answered as {answered.version} in {answered.seconds:.1f} s; {TOOLS[check.tools]}.")
    counted = " (it gave no credible count: the most that the request can have taken)" if answered.uncounted else ""
    prose(
        f"{answered.tokens_in} tokens in, {answered.tokens_out} out{counted}: {answered.usd:.4f} USD, at "
        f"{price.input_usd:g} USD per million tokens in and {price.output_usd:g} out."
    )
    if check.nothing:
        text = plain(unpack(answered.answer), LONGEST_WORDS)
        begins = f', which begins "{text}"' if text else ""
        prose(f"None of {check.asked} proposals: {check.nothing}{begins}: name a model that answers in the form that "
              "is asked for, or see what its server makes of the question.")  # fmt: skip
        return
    prose(
        f"{len(check.proposals)} of {check.asked} proposals read: {check.parsed} parse, and a search would fit "
        f"{check.usable}.\n"
    )
    rows = [(str(i), read.title, "yes" if read.parses else "no", read.complaint or "nothing")
            for i, read in enumerate(check.proposals, 1)]  # fmt: skip
    show(Table.of("", ">|~proposal|parses|~what is wrong", rows))
