"""The examples in the docstrings of the archive run."""

from __future__ import annotations

import doctest
import importlib
from types import ModuleType

import pytest
from paths import ROOT

MODULES = [importlib.import_module(f"archive.{path.stem}") for path in sorted((ROOT / "archive").glob("[a-z]*.py"))]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_examples_run(module: ModuleType) -> None:
    assert not doctest.testmod(module).failed
