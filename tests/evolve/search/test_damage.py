"""A run whose journal was damaged or lost: the line is named, and the search goes on from the last good one."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path

import pytest
import tiny_world
import yaml
from commands import Capsys, evolve, printed, refused
from tiny_world import ONE

from archive.journal import Journal
from simulator.common.json import JsonObject


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damage")
    return tiny_world.run(tiny_world.write(folder, ONE), folder / "run", "--budget", 20)


def resume(run: Path, *more: object) -> list[object]:
    return ["resume", run, "--workers", 1, "--quiet", *more]


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run that a test may damage."""
    return tiny_world.copy(finished, tmp_path)


def test_a_damaged_run_goes_on_from_its_last_good_line(run: Path, capsys: Capsys) -> None:
    journal, kept = run / "journal.jsonl", run / "journal.after-9.jsonl"
    whole = journal.read_bytes()
    lines = whole.splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:9], *lines[10:]]))
    for command in (["archive", run], ["resume", run], ["show", f"{run}:1"], ["llm", "prompt", run, 1]):
        error = refused(capsys, *command)
        assert f"{journal}:10: " in error and f"`evolve resume {run} --to 9`" in error
    assert evolve(*resume(run, "--to", 10)) == 2 and "journal.jsonl:10: " in capsys.readouterr().err
    assert evolve(*resume(run, "--to", 9)) == 0
    assert f"lines after 9 are in {kept}" in capsys.readouterr().err
    assert journal.read_bytes() == whole  # the search repeats what was cut off
    assert kept.read_bytes() == b"".join(lines[10:])
    assert evolve(*resume(run, "--to", len(lines) + 1)) == 2
    assert f"has {len(lines)} lines only: name an earlier line" in capsys.readouterr().err
    journal.unlink()
    for command in (["archive", run], ["resume", run], ["resume", run, "--to", "0"]):
        assert f"{journal}: is missing: restore it from a copy" in refused(capsys, *command)


def test_a_journal_whose_lines_end_like_those_of_windows_is_checked(run: Path, capsys: Capsys) -> None:
    journal = run / "journal.jsonl"
    whole = journal.read_bytes()
    windows = whole.replace(b"\n", b"\r\n")
    journal.write_bytes(windows)
    printed(capsys, "archive", run)  # and no warning
    journal.write_bytes(windows.replace(b'"id":7', b'"id":8', 1))
    assert "not the line that was written here" in refused(capsys, "archive", run)
    journal.write_bytes(b"".join(windows.splitlines(keepends=True)[:9]))
    assert evolve(*resume(run)) == 0  # and goes on as if it had never been converted
    assert journal.read_bytes().replace(b"\r\n", b"\n") == whole


def bare(run: Path) -> list[JsonObject]:
    """The lines of a journal without their checks."""
    return [{name: value for name, value in line.items() if name != "check"} for line in tiny_world.lines(run)]


# key of a scored line ~ wrong value (YAML); the line's number must be that of no other, and its parents of earlier ones
CONTENT = """
id ~ 0 ; id ~ -1 ; id ~ "x" ; island ~ 99 ; island ~ -1 ; operator ~ null ; parents ~ [500] ; parents ~ [8] ; parents ~ 3
verdict ~ [] ; verdict ~ perhaps ; elite ~ null ; elite ~ [] ; key ~ {} ; reviews ~ [1] ; dropped ~ [1]
elite.text ~ 3 ; elite.operations ~ 9007199254740993 ; elite.mean_error ~ -1.0 ; elite.mean_error ~ "1" ; elite.rows ~ [[]]
elite.worst3 ~ 1.0e+308 ; elite.group_out ~ true ; elite.consistent ~ 1 ; elite.rows ~ {} ; elite.parents ~ [0.5]
"""


@pytest.mark.parametrize("case", re.split(" ; |\n", CONTENT.strip()))
def test_a_line_of_wrong_content_is_named_whatever_its_check(case: str, run: Path, capsys: Capsys) -> None:
    key, value = case.split(" ~ ")
    entries, journal = bare(run), run / "journal.jsonl"
    number = next(i for i, entry in enumerate(entries) if i > 1 and entry["verdict"] == "scored")
    *outer, name = key.split(".")
    (entries[number]["elite"] if outer else entries[number])[name] = yaml.safe_load(value)
    journal.unlink()
    with closing(Journal(journal)) as again:
        again.append(entries)
    for command in (["archive", run], ["view", run, "--json"]):
        error = refused(capsys, *command)
        assert error.startswith(f"evolve: cannot read {journal}:{number + 1}, {key}"), error


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1" * 5000, "[" * 10_000, "1e999"])
def test_numbers_that_json_has_not_are_damage(value: str, run: Path, capsys: Capsys) -> None:
    texts = [json.dumps(entry) for entry in bare(run)]
    texts[0] = re.sub(r'"e2e": [^,]+', f'"e2e": {value}', texts[0], count=1)
    (run / "journal.jsonl").write_text("".join(f"{text}\n" for text in texts))
    assert evolve("archive", run) == 2
    *_, error = capsys.readouterr().err.splitlines()
    assert "journal.jsonl:1" in error
    about = run / "run.json"
    about.write_text(re.sub('"engine": [^,]+', f'"engine": {value}', about.read_text()))
    assert "run.json" in refused(capsys, "archive", run)


@pytest.mark.parametrize("line", ['{"call": 1}', '{"call": [], "protocol": {}, "mean_abs_error_pct": {}}', "[]"])
def test_a_damaged_log_of_validations_is_named(line: str, run: Path, capsys: Capsys) -> None:
    (run / "validate.jsonl").write_text(f"{line}\n")
    assert "validate.jsonl:1" in refused(capsys, "archive", run)


def test_a_journal_without_checks_has_a_warning(run: Path, capsys: Capsys) -> None:
    (run / "journal.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in bare(run)))
    program = f"{run}:{next(line['id'] for line in bare(run) if line['verdict'] == 'scored')}"
    for command in (["archive", run], ["archive", run, "--by", "proposer"], ["show", program, "--json"], resume(run)):
        assert evolve(*command) == 0
        assert capsys.readouterr().err.count("without a check") == 1
    assert evolve("view", run, "--json") == 0
    out = capsys.readouterr()
    assert out.err.count("without a check") == out.out.count("without a check") == 1


def test_a_journal_of_an_older_release_is_said_to_be_unchecked(run: Path, capsys: Capsys) -> None:
    entries = [{**entry, "check": ""} for entry in tiny_world.lines(run)]
    older = [{name: value for name, value in entry.items() if name != "check"} for entry in entries[:12]]
    (run / "journal.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in older))
    assert evolve(*resume(run)) == 0
    assert "12 lines without a check" in capsys.readouterr().err
    assert [{**entry, "check": ""} for entry in tiny_world.lines(run)] == entries


def test_a_line_of_a_study_is_one_of_its_searches(tmp_path: Path, capsys: Capsys) -> None:
    config = tiny_world.write(tmp_path, ONE)
    out = tiny_world.run(config, tmp_path / "several", "--budget", 8, "--repeats", 2)
    said = refused(capsys, *resume(out, "--to", 3))
    assert "a journal for each of its searches: name the folder of one with --to" in said


@pytest.mark.parametrize("damage", ["list", "torn", "row"])
def test_damaged_baselines_are_refused_and_those_of_another_release_computed_again(
    damage: str, run: Path, capsys: Capsys
) -> None:
    kept = run / "baseline_errors.json"
    whole = kept.read_text()
    values = json.loads(whole)
    values["answers"]["blackbox"][0].pop()
    kept.write_text({"list": "[1]", "torn": whole[:99], "row": json.dumps(values)}[damage])
    assert f"{kept}" in (error := refused(capsys, *resume(run))) and "emove it" in error
    kept.write_text(whole.replace('"blackbox"', '"x"', 1))
    assert evolve(*resume(run)) == 0
    assert kept.read_text() == whole
