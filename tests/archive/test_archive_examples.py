"""The examples in the docstrings of the archive run, and every public name has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
from types import ModuleType

import pytest
from paths import ROOT

MODULES = [importlib.import_module(f"archive.{path.stem}") for path in sorted((ROOT / "archive").glob("[a-z]*.py"))]
# What changes files or is only meaningful together with another method, whose example shows it.
SHOWN_ELSEWHERE = {"Journal.append", "Journal.close", "Island.select", "Population.tell"}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_examples_run(module: ModuleType) -> None:
    results = doctest.testmod(module)
    assert results.attempted and not results.failed


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_public_name_has_an_example(module: ModuleType) -> None:
    with_example = {test.name for test in doctest.DocTestFinder().find(module) if test.examples}
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", "") != module.__name__:
            continue
        members = vars(value).items() if inspect.isclass(value) else ()
        public = [name, *(f"{name}.{member}" for member, method in members if is_public(member, method))]
        for qualified in set(public) - SHOWN_ELSEWHERE:
            assert f"{module.__name__}.{qualified}" in with_example, qualified


def is_public(name: str, member: object) -> bool:
    """Whether a member of a class is a public method or property."""
    return not name.startswith("_") and (inspect.isroutine(member) or isinstance(member, classmethod | property))
