"""The examples in the docstrings of the archive and of the simulator's language run."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil

import pytest

import archive
import simulator.language
from simulator.language.parse import parse
from simulator.language.reader import Scope, expression
from simulator.language.unparse import spell, unparse

PACKAGES = (archive, simulator.language)
MODULES = [f"{package.__name__}.{m.name}" for package in PACKAGES for m in pkgutil.iter_modules(package.__path__)]
NAMES = {"parse": parse, "spell": spell, "unparse": unparse}
NAMES["expr"] = lambda text: expression(ast.parse(text, mode="eval").body, Scope(("b", "s"), {}, "example"))


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    found = doctest.testmod(module, extraglobs=NAMES | vars(module), optionflags=doctest.ELLIPSIS)
    assert not found.failed
