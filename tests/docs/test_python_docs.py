"""The examples of the Python page and the notebook run, and show what they compute today."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import nbformat
import pytest
import python_docs
from paths import ROOT

import evolve

RENEW = "run tools/python_docs.py"
MOST_BYTES = 150_000  # of a notebook with one picture
OF_A_MACHINE = re.compile(r"/(tmp|home|root|usr|work|var)/|site-packages|\.venv")


@cache
def notebook() -> nbformat.NotebookNode:
    return nbformat.read(python_docs.NOTEBOOK, 4)


def test_the_examples_of_the_page_show_what_they_print(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = python_docs.PAGE.read_text("utf-8")
    assert python_docs.refreshed(text) == text, RENEW


def test_the_searches_of_the_page_are_calls_of_the_interface() -> None:
    """They take minutes, so they are only read."""
    [block] = re.findall(r"^```python\n(.*?)^```$", python_docs.PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    calls = [node.func for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)]
    assert {call.attr for call in calls if isinstance(call, ast.Attribute)} <= set(evolve.__all__)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # of the libraries of notebooks
def test_the_notebook_runs_and_stores_what_it_computes(tmp_path: Path) -> None:
    fresh = python_docs.executed(notebook(), tmp_path)
    assert python_docs.texts(fresh) == python_docs.texts(notebook())  # otherwise, `make docs`
    assert ["a picture"] in python_docs.texts(fresh)
    assert not list(tmp_path.iterdir())  # nothing is left where the notebook is


def test_the_notebook_is_small_and_names_no_machine() -> None:
    text = python_docs.NOTEBOOK.read_text("utf-8")
    assert len(text) < MOST_BYTES and not OF_A_MACHINE.search(text)
    shown = " ".join(part for cell in python_docs.texts(notebook()) for part in cell)
    assert "Program('champion')" in shown and "(30, " in shown
