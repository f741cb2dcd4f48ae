"""The examples of the pages, the notebook and the reference pages are what the code computes today."""

from __future__ import annotations

import copy
import doctest
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import notebook
import pytest
import reference
from paths import ROOT

from simulator.common.errors import InputError
from simulator.serving.bundled import bundled_experiments
from simulator.serving.experiment import Experiment
from simulator.serving.known import facts_of


def test_the_python_session_of_the_quickstart_prints_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs" / "quickstart.md").read_text("utf-8")
    [session] = re.findall(r"^```pycon\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(session, {}, "quickstart.md", "quickstart.md", 0)
    assert doctest.DocTestRunner().run(test).failed == 0 and len(test.examples) > 5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # of the libraries of notebooks
def test_the_notebook_runs_and_stores_what_it_computes(tmp_path: Path) -> None:
    stored = nbformat.read(notebook.FILE, 4)
    shown = notebook.texts(notebook.executed(stored, tmp_path))
    assert shown == notebook.texts(stored)  # otherwise, `make docs`
    assert ["a picture"] in shown and not list(tmp_path.iterdir())


@pytest.mark.parametrize("page", reference.PAGES)
def test_a_reference_page_can_be_made(page: str) -> None:
    """No key lacks its meaning, and no meaning its key."""
    assert reference.PAGES[page]().count("\n") > 50
    assert sorted(reference.exit_statuses()) == [0, 1, 2, 130, 141]


def test_a_key_without_a_meaning_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(reference.MEANINGS["configuration"], "search.batch")
    with pytest.raises(LookupError, match=r"configuration: no meaning of \['search\.batch'\]"):
        reference.configuration_page()


def without(experiment: Any, keys: list[str]) -> Any:
    """A copy of nested mappings without the key that this path leads to; `name[]` enters the first entry of a list."""
    changed = copy.deepcopy(experiment)
    inner = changed
    for key in keys[:-1]:
        inner = inner[key.removesuffix("[]")]
        inner = inner[0] if key.endswith("[]") else inner
    del inner[keys[-1]]
    return changed


@pytest.mark.parametrize("key", reference.required_keys())
def test_a_key_shown_as_required_is_required(key: str) -> None:
    least = copy.deepcopy(reference.LEAST)
    if "shared_prefix" in key:
        del least["workload"]["prompt_len"]
        prefix = {"groups": 1, "prompts_per_group": 1, "system_prompt_len": 10, "question_len": 10}
        least["workload"]["shared_prefix"] = prefix
    if "session" in key:
        least["workload"]["session"] = {"turns": 3, "think_time_s": 10.0}
    reference.least_experiment(least)
    with pytest.raises(InputError, match="is missing"):
        reference.least_experiment(without(least, key.split(".")))


def test_counts_of_kv_blocks() -> None:
    """Ours, and the host's over the observed ones. Of 8 models one is left out: the host's count of it has changed."""
    rows = re.findall(r"^\| (\S+/\S+) \|(.*)\|$", (ROOT / "docs" / "plan.md").read_text("utf-8"), re.MULTILINE)
    runs: dict[str, Experiment] = {
        e.model: e for e in reversed(bundled_experiments())
    }  # any run of a model: one TP each
    assert len(rows) == 7
    for model, cells in rows:
        tp, observed, ours, host, ratio, _ = cells.replace(",", "").replace(" ", "").split("|")
        e = runs[model]
        assert (float(tp), observed) == (e.facts["tp"], str(e.engine.total_kv_blocks or "-"))
        assert int(ours) == facts_of(e.model, e.hardware, replace(e.engine, total_kv_blocks=None))["kv_blocks"]
        assert float(ratio) == pytest.approx(int(host) / int(ours if observed == "-" else observed), abs=0.005)
