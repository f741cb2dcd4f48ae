"""Run docs/notebook.ipynb in an empty folder, and store its outputs of today without times. `make docs` runs it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient
from paths import ROOT

FILE = ROOT / "docs" / "notebook.ipynb"
SECONDS = 300  # that a cell may take on a slow machine


def executed(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of today, computed in this folder by a kernel of this interpreter."""
    fresh, before = nbformat.from_dict(notebook), dict(os.environ)
    os.environ["PYTHONPATH"] = str(ROOT)
    os.environ.pop("MPLBACKEND", None)  # which `evolve plot` has set in this process, if a test called it
    where = {"metadata": {"path": str(folder)}}
    try:
        NotebookClient(fresh, timeout=SECONDS, kernel_name="python3", coalesce_streams=True, resources=where).execute()
    finally:
        os.environ.clear()
        os.environ.update(before)
    fresh.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for cell in fresh.cells:
        cell.metadata = {}
    return fresh


def texts(notebook: nbformat.NotebookNode) -> list[list[str]]:
    """The text of the outputs of each cell, without complaints of libraries; of a picture, only that there is one."""
    return [[_text(o) for o in c.get("outputs", ()) if o.get("name") != "stderr"] for c in notebook.cells]


def _text(output: Mapping[str, Any]) -> str:
    data = output.get("data", {})
    return "a picture" if "image/png" in data else str(output.get("text") or data.get("text/plain"))


if __name__ == "__main__":
    with TemporaryDirectory() as empty:
        nbformat.write(executed(nbformat.read(FILE, 4), Path(empty)), FILE)
