"""The examples in docstrings of the language run."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
from types import ModuleType

import pytest

import simulator.language
from simulator.language.ir import Expr
from simulator.language.parse import parse
from simulator.language.reader import Scope, expression
from simulator.language.unparse import spell, unparse

MODULES = sorted(m.name for m in pkgutil.iter_modules(simulator.language.__path__))


def expr(text: str) -> Expr:
    """An expression over the fields of b and s."""
    return expression(ast.parse(text, mode="eval").body, Scope(("b", "s"), {}, "example"))


def examples(module: ModuleType) -> list[doctest.DocTest]:
    names = {"expr": expr, "parse": parse, "spell": spell, "unparse": unparse}
    return doctest.DocTestFinder(exclude_empty=False).find(module, extraglobs=names | vars(module))


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_run(name: str) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    reports: list[str] = []
    for test in examples(importlib.import_module(f"simulator.language.{name}")):
        runner.run(test, out=reports.append)
    assert not runner.summarize(verbose=False).failed, "".join(reports)
