"""The examples in the docstrings of the Python interface and of its frames run."""

from __future__ import annotations

import doctest
import importlib
import inspect
from functools import cached_property
from pathlib import Path
from types import ModuleType

import pytest
import tiny_world
import yaml
from paths import ROOT

import evolve

INTERFACE = [importlib.import_module(f"evolve.api.{name}") for name in ("program", "run", "search", "calls")]
OTHERS = [importlib.import_module("simulator.serving.spec")]  # of which the interface has a name
FRAMES = [importlib.import_module(f"evolve.output.{name}") for name in ("columns", "writing")]


@pytest.fixture(scope="module")
def names(tiny: Path, tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The names in the examples: the interface, a finished run, its configuration and data, and a folder."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "data.yaml").write_text(tiny_world.DATA)
    config = yaml.safe_load(tiny.read_text())
    return {"evolve": evolve, "path": tiny_run, "config": config, "experiments": folder / "data.yaml", "folder": folder}


def examples(module: ModuleType, names: dict[str, object] | None = None) -> list[doctest.DocTest]:
    """Every docstring of a module; doctest itself passes over those of cached properties."""
    finder = doctest.DocTestFinder(exclude_empty=False)
    tests = finder.find(module, extraglobs=names)
    for kind in vars(module).values():
        if inspect.isclass(kind) and kind.__module__ == module.__name__:
            for name, value in vars(kind).items():
                if isinstance(value, cached_property):
                    full = f"{module.__name__}.{kind.__name__}.{name}"
                    tests += finder.find(value.func, full, module, extraglobs=names)
    return tests


@pytest.mark.parametrize("module", INTERFACE + OTHERS + FRAMES, ids=lambda module: module.__name__)
def test_examples_run(module: ModuleType, names: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    runner, reports = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS), list[str]()
    for test in examples(module, names):
        runner.run(test, out=reports.append)
    results = runner.summarize(verbose=False)
    assert results.attempted and not results.failed, "".join(reports)
