"""Programs of the Python interface: text, size, constants, and times of single steps."""

from __future__ import annotations

import html
import importlib
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from operator import index
from pathlib import Path
from typing import Any

import pandas as pd

from evolve.api import arguments
from evolve.export.latex import to_latex
from evolve.inspect.show import CONSTANTS, Description, constant_rows, describe
from evolve.output.frames import frame
from evolve.run.program import Source, load
from simulator.clock.bind import Bound, bind
from simulator.clock.fields import Active, raw_row
from simulator.common.errors import InputError, shown
from simulator.common.text import visible
from simulator.language.infer import check_units
from simulator.language.key import key
from simulator.language.measure import features, operations
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.language.unparse import unparse
from simulator.serving.experiment import Experiment
from simulator.serving.known import named_deployment
from simulator.serving.limits import MOST_GPUS, MOST_TOKENS

Request = tuple[int, int]  # its new tokens in a step, and its tokens of context before the step
Batch = Iterable[Request] | Mapping[Request, int]  # requests, or how many there are of each kind
Deployment = Experiment | tuple[str, str, int]  # that of an experiment; or model, GPU and TP degree
LONGEST = 100  # characters of a wrong argument in a message
TEXT = re.compile(r"\bdef\s+\w+\s*\(")  # what a program's text has, and no name


class Program:
    """A program: its text, or whatever the command line takes for PROGRAM.

    That is a file, `RUN:ID`, or a shipped name such as `champion`. Raises InputError, one line, for anything else. Two
    programs are equal if they have the same form, which `key` identifies: the constants' values may differ.

    >>> evolve.Program("champion").name
    'champion'
    >>> one = evolve.Program("def step_time(b, s, *, each: us/request = 100.0): return each * b.decode_reqs")
    >>> one.operations, one.features
    (1, ('b.decode_reqs',))
    >>> one == evolve.Program("def step_time(b, s, *, c: us/request = 7.0): return c * b.decode_reqs")
    True
    """

    def __init__(self, program: str | Path) -> None:
        named = arguments.path("program", program, "a shipped name, a file, RUN:ID, a text, or a run's champion")
        self.source = _of_text(program) if isinstance(program, str) and TEXT.search(program) else load(str(named))

    @classmethod
    def of(cls, source: Source) -> Program:
        """The program that was loaded before."""
        program = cls.__new__(cls)
        program.source = source
        return program

    @property
    def name(self) -> str:
        """The name that it was given by; `text` for a text.

        >>> evolve.Program("floor").name
        'floor'
        """
        return self.source.name

    @property
    def text(self) -> str:
        """The program as the language writes it.

        >>> print(evolve.Program("def step_time(b, s): return s.weights_us+b.kv_read_us").text)
        def step_time(b, s):
            return s.weights_us + b.kv_read_us
        <BLANKLINE>
        """
        return unparse(self.source.program)

    @cached_property
    def key(self) -> str:
        """The hash of its form, which is the program without the values of its constants.

        >>> len(evolve.Program("champion").key)
        16
        """
        return key(self.source.complete)

    @property
    def operations(self) -> int:
        """The number of its operations.

        >>> evolve.Program("linear").operations
        4
        """
        return operations(self.source.program)

    @property
    def features(self) -> tuple[str, ...]:
        """The fields that it reads.

        >>> evolve.Program("linear").features
        ('b.decode_reqs', 'b.prefill_tokens')
        """
        return features(self.source.program)

    @cached_property
    def description(self) -> Description:
        """The figures and texts that `evolve show` prints."""
        return describe(self.source)

    @cached_property
    def constants(self) -> pd.DataFrame:
        """A row for each constant: value, unit, bounds, and how well the fit determined it, if it is known.

        >>> evolve.Program("champion").constants[["method", "name", "unit"]].head(2)
              method          name unit
        0  step_time          gemm  one
        1  step_time  kernel_small  one
        """
        return frame(CONSTANTS, constant_rows(self.description))

    def step_us(self, batch: Batch, deployment: Deployment) -> float:
        """The time in us of a scheduler step with this batch, before it is rounded down.

        batch: for each request (new tokens, tokens of context before the step), or a mapping of these pairs to how many
        there are. One new token after some context is a decode; everything else is a part of a prefill. deployment:
        that of an experiment, or (model, GPU, TP degree) with the engine's defaults. Raises InputError for names that
        are not known, and for tokens that no request can have.

        >>> program = evolve.Program("champion")
        >>> batches = [(1, 500)], {(1, 500): 64}, [(2048, 0)]  # a decode, 64 decodes, a prefill
        >>> [round(program.step_us(batch, ("llama-2-7b", "H100", 1)) / 1000) for batch in batches]  # ms
        [6, 12, 39]
        """
        return self._bound(deployment).step_us(raw_row(_requests(batch)))

    def queueing_us(self, prompt_tokens: int, deployment: Deployment) -> float:
        """The time in us from a request's arrival to the queue; `deployment` as for `step_us`.

        Raises InputError for tokens that no request can have.

        >>> round(evolve.Program("champion").queueing_us(500, ("llama-2-7b", "H100", 1)) / 1000)  # ms
        8
        """
        tokens = arguments.whole("prompt_tokens", prompt_tokens, 1, MOST_TOKENS)
        return self._bound(deployment).queueing_us(tokens)

    def latex(self) -> str:
        r"""The formulas as LaTeX, to be set between `\[` and `\]`.

        >>> print(evolve.Program("def step_time(b, s, *, c=2.0): return c * b.tokens").latex())
        \begin{aligned}
        \mathrm{step\_time} ={}& \mathit{c} \cdot \mathrm{b.tokens}
        \end{aligned}
        """
        return to_latex(self.source.program)

    def sympy(self) -> dict[str, Any]:
        """The sympy expression of each method. Raises InputError if sympy is not installed.

        >>> evolve.Program("def step_time(b, s, *, c=2.0): return c * b.tokens").sympy()["step_time"]
        b.tokens*c
        """
        formula = importlib.import_module("evolve.export.formula")  # imports sympy, which need not be installed
        expressions: dict[str, Any] = formula.to_sympy(self.source.program)
        return expressions

    def _bound(self, deployment: Deployment) -> Bound:
        if isinstance(deployment, Experiment):
            facts = deployment.facts
        elif isinstance(deployment, tuple) and len(deployment) == 3:
            model, hardware, tp = deployment
            degree = arguments.whole("deployment: TP degree", tp, 1, MOST_GPUS)
            facts = named_deployment(str(model), str(hardware), degree, "deployment").facts
        else:
            raise InputError(f"deployment: {str(deployment)[:LONGEST]}: give an experiment, or (model, GPU, TP degree)")
        program = self.source.complete
        return bind(assemble(program), program.theta, facts)

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, Program) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Program({self.name!r})"

    def _repr_html_(self) -> str:
        """The text and its size, as a notebook shows it; nothing in it is markup."""
        text = html.escape(visible(self.text, "\n"))
        return f"<pre>{text}</pre><p>{html.escape(visible(f'{self.name}: {self.description.counts}'))}</p>"

    def _repr_latex_(self) -> str:
        return f"$${self.latex()}$$"


def _of_text(text: str) -> Source:
    program = parse(text, "text")
    check_units(program, "text")
    return Source("text", text, program)


def _requests(batch: Batch) -> list[Active]:
    """The requests of a batch. Raises InputError for a pair or a count that no batch has."""
    if not isinstance(batch, Iterable):
        raise InputError(f"batch: {shown(batch)}: is no batch: give a list of (new tokens, tokens of context)")
    counted = batch.items() if isinstance(batch, Mapping) else ((pair, 1) for pair in batch)
    requests = []
    for pair, given in counted:
        try:
            new, context, count = (index(value) for value in (*pair, given))  # numpy's whole numbers too
        except (TypeError, ValueError):
            new = context = count = -1
        if not 1 <= new <= MOST_TOKENS or not 0 <= context <= MOST_TOKENS or count < 0:
            remedy = f"give (new tokens >= 1, tokens of context >= 0), both up to {MOST_TOKENS:,}, and a count >= 0"
            raise InputError(f"batch: {pair} * {given}: are no requests: {remedy}, all whole numbers")
        decodes = new == 1 and context > 0
        requests += [Active(context if decodes else context + new, context, new)] * count
    return requests
