"""`evolve view` as a user types it: what it accepts, prints and writes, and how it ends."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest
import tiny_world
from commands import as_json, evolve, printed, refused
from console import EVOLVE, TIMEOUT_S
from seen import by_id, exported, seen

from evolve.draw.view import export as exporting
from evolve.draw.view import html
from evolve.draw.view.html import page
from evolve.draw.view.server import Shown
from simulator.common.errors import InputError


@pytest.fixture
def plan_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The JSON of a plan of a program that is quick and has no intervals."""
    options = "--model llama-3.1-8b --hardware H100 --tp 1,2 --seeds 1 --rate 30 --prompt-len 100 --output-len 20"
    text = printed(capsys, "plan", "floor", *options.split(), "--slo", "ttft_p99=500ms", "--json")
    (tmp_path / "plan.json").write_text(text)
    return tmp_path / "plan.json"


def test_an_export_is_one_file_with_the_document_and_details(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "MOST_DETAILS", 3)
    file = tmp_path / "run.html"
    assert evolve("view", tiny_run, "--export", file) == 0
    assert capsys.readouterr().out == f"{file}: {file.stat().st_size / 1e6:.1f} MB\n"
    document, shown = exported(file), seen(tiny_run)
    assert file.read_text() == page().export(html.pack(document))
    assert document["live"] is False and document["engine"]
    (run,) = document["runs"]
    details = run.pop("details")
    shown.pop("details")
    assert run == shown
    front = run["front"]  # its first, its middle and its last program
    assert set(details) == {str(run["champion"]), *map(str, (front[0], front[(len(front) - 1) // 2], front[-1]))}
    assert all(detail["problem"] is None and detail["predictions"] for detail in details.values())
    assert list(tmp_path.iterdir()) == [file]


def test_an_earlier_export_is_replaced_and_nothing_else_is(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "details_of", lambda followed, most, show: {})
    file = tmp_path / "run.html"
    assert evolve("view", tiny_run, "--export", file, "--quiet") == 0
    file.write_text(file.read_text() + "<!-- an earlier one -->")
    assert evolve("view", tiny_run, "--export", file, "--quiet") == 0
    assert "an earlier one" not in file.read_text()
    file.write_text("my notes")
    assert f"cannot write {file}: it is no export of evolve view" in refused(capsys, "view", tiny_run, "--export", file)
    assert file.read_text() == "my notes"
    assert "is a folder" in refused(capsys, "view", tiny_run, "--export", tmp_path)
    assert "cannot be written" in refused(capsys, "view", tiny_run, "--export", tmp_path / "no" / "run.html")


def test_a_run_without_a_champion_is_exported(tiny_run: Path, tmp_path: Path) -> None:
    run = tiny_world.copy(tiny_run, tmp_path)
    (run / "journal.jsonl").write_bytes(b"")
    (run / "report.json").unlink()
    assert evolve("view", run, "--export", tmp_path / "run.html") == 0
    (shown,) = exported(tmp_path / "run.html")["runs"]
    assert shown["champion"] is None and shown["details"] == {} and shown["best"] == [] and not by_id(shown)


def test_a_folder_of_runs_is_shown_as_its_runs(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("seed-10", "seed-2"):
        shutil.copytree(tiny_run, tmp_path / "repeats" / name)
    (tmp_path / "repeats" / "repeats.json").write_text("{}")
    assert evolve("view", tmp_path / "repeats", tiny_run, tmp_path / "repeats" / "seed-2", "--json") == 0
    document, repeats = json.loads(capsys.readouterr().out), tmp_path / "repeats"
    assert [run["name"] for run in document["runs"]] == [f"{repeats}/seed-2", f"{repeats}/seed-10", str(tiny_run)]
    assert document["live"] is False and by_id(document["runs"][0]) == by_id(document["runs"][2])


def test_what_is_no_run_is_refused(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path, tmp_path / "no"):
        assert refused(capsys, "view", path).startswith(f"evolve: {path}: is not a run, a folder of runs or a plan")
    for i in range(17):
        (tmp_path / f"{i}").mkdir()
        (tmp_path / f"{i}" / "run.json").write_text("{}")
    assert "17 runs are too many for one page: name at most 16" in refused(capsys, "view", tmp_path)
    assert f"{tmp_path}/3: is not a run (no run.json, config.yaml)" in refused(capsys, "view", tmp_path / "3")
    assert "exclude each other" in refused(capsys, "view", tiny_run, "--port", "0", "--json")
    assert "Missing argument 'PLAN.json|RUN...'" in refused(capsys, "view")


def test_a_plan_is_shown_beside_runs_or_alone(
    plan_file: Path, tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = json.loads(plan_file.read_text())
    alone = as_json(capsys, "view", plan_file)
    assert alone["runs"] == [] and alone["plan"]["pictures"] == planned["pictures"]
    assert [alone["plan"][key] for key in ("serve", "probe", "cautions")] == [
        planned[key] for key in ("serve", "probe", "cautions")
    ]
    for row, of_plan in zip(alone["plan"]["rows"], planned["rows"], strict=True):
        assert row == {key: of_plan[key] for key in row}
    assert json.loads(gzip.decompress(Shown([], alone["plan"]).document()))["plan"] == alone["plan"]
    monkeypatch.setattr(exporting, "details_of", lambda followed, most, show: {})
    for runs in ([], [tiny_run]):
        assert evolve("view", plan_file, *runs, "--export", tmp_path / "plan.html", "--quiet") == 0
        document = exported(tmp_path / "plan.html")
        assert document["plan"] == alone["plan"] and [run["name"] for run in document["runs"]] == [*map(str, runs)]
    assert as_json(capsys, "view", tiny_run)["plan"] is None


def test_a_file_that_is_no_plan_and_a_second_plan_are_refused_in_one_line(
    plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = json.loads(plan_file.read_text())
    planned["rows"][0]["gpus"] = "four"
    for text, problem in (
        ("", "not valid JSON"),
        ("[]", "has no plan"),
        (json.dumps(planned | {"rows": [], "pictures": None}), "has no plan with a deployment that holds"),
        (json.dumps(planned), "rows[0].gpus"),
    ):
        (tmp_path / "file").write_text(text)
        said = refused(capsys, "view", tmp_path / "file")
        assert str(tmp_path / "file") in said and problem in said and said.count("\n") == 1
    assert "2 plans are too many for one page" in refused(capsys, "view", plan_file, tmp_path / "file")


def test_without_the_extra_one_line_says_what_to_install(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> str:
        raise InputError(html.MISSING)

    page.cache_clear()
    monkeypatch.setattr(html, "_plotly", missing)
    for args in ((), ("--export", tmp_path / "run.html")):
        assert "pip install 'evolve-latency[view]'" in refused(capsys, "view", tiny_run, *args)
    assert evolve("view", tiny_run, "--json") == 0  # needs no page
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_server_names_its_address_and_ends_quietly(tiny_run: Path, number: signal.Signals) -> None:
    command, env = [*EVOLVE, "view", str(tiny_run), "--port", "0"], os.environ | {"PYTHONUNBUFFERED": ""}
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    try:
        assert process.stdout
        line = process.stdout.readline()
        address, _, rest = line.partition(" ")
        assert rest == "- Ctrl-C ends it\n" and address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{address}version", timeout=TIMEOUT_S) as answer:
            assert json.load(answer) == {"runs": [{"outcomes": len(by_id(seen(tiny_run))), "state": "finished"}]}
        process.send_signal(number)  # while the champion's detail is made
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, "", "")
