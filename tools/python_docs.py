"""What the Python page and the notebook show, computed again. Run it to write both with the outputs of today.

The examples of docs/python.md run from the root of the repository, the notebook in an empty folder.
"""

from __future__ import annotations

import doctest
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient
from paths import ROOT

PAGE = ROOT / "docs" / "python.md"
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
SESSION = re.compile(r"(?<=^```pycon\n).*?(?=^```$)", re.DOTALL | re.MULTILINE)
SECONDS = 300  # that a cell may take on a slow machine


def refreshed(text: str) -> str:
    """A page with the outputs of its sessions as they are now; the sessions share their names."""
    names: dict[str, object] = {}
    return SESSION.sub(lambda m: _session(m[0], names), text)


def _session(text: str, names: dict[str, object]) -> str:
    test = doctest.DocTestParser().get_doctest(text, names, PAGE.name, str(PAGE), 0)
    got: list[str] = []
    runner = _Recorder(got)
    runner.run(test, out=lambda line: None, clear_globs=False)
    names |= test.globs
    shown = []
    for example, output in zip(test.examples, got, strict=True):
        first, *rest = example.source.splitlines()
        shown += [f">>> {first}", *(f"... {line}" for line in rest), *output.splitlines()]
    return "\n".join(shown) + "\n"


class _Recorder(doctest.DocTestRunner):
    """Keeps what every example prints. Raises what an example raises."""

    def __init__(self, got: list[str]) -> None:
        super().__init__()
        self._got = got

    def report_success(self, out: Any, test: Any, example: Any, got: str) -> None:
        self._got.append(got)

    def report_failure(self, out: Any, test: Any, example: Any, got: str) -> None:
        self._got.append(got)

    def report_unexpected_exception(self, out: Any, test: Any, example: Any, exc_info: Any) -> None:
        raise exc_info[1]


def executed(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of today, computed in this folder by a kernel of this interpreter."""
    fresh = nbformat.from_dict(notebook)
    before = dict(os.environ)
    os.environ["PYTHONPATH"] = str(ROOT)
    os.environ.pop("MPLBACKEND", None)  # which `evolve plot` has set in this process, if a test called it
    try:
        NotebookClient(
            fresh,
            timeout=SECONDS,
            kernel_name="python3",
            coalesce_streams=True,
            resources={"metadata": {"path": str(folder)}},
        ).execute()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return without_traces(fresh)


def without_traces(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook without times and without the version of Python."""
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for cell in notebook.cells:
        cell.metadata = {}
    return notebook


def texts(notebook: nbformat.NotebookNode) -> list[list[str]]:
    """The text of the outputs of each cell; of pictures, only that there is one. Complaints of libraries do not count."""
    return [
        [_text(output) for output in cell.get("outputs", ()) if output.get("name") != "stderr"]
        for cell in notebook.cells
    ]


def _text(output: Mapping[str, Any]) -> str:
    data = output.get("data", {})
    return "a picture" if "image/png" in data else str(output.get("text") or data.get("text/plain"))


if __name__ == "__main__":
    os.chdir(ROOT)
    PAGE.write_text(refreshed(PAGE.read_text("utf-8")), "utf-8")
    with TemporaryDirectory() as empty:
        written = executed(nbformat.read(NOTEBOOK, 4), Path(empty))
    nbformat.write(written, NOTEBOOK)
    sys.stdout.write(f"{PAGE.name} and {NOTEBOOK.name} written\n")
