"""PROGRAM arguments that name no program: one line says what is there instead, and what to give."""

from __future__ import annotations

from pathlib import Path

import pytest

from evolve.cli import run_command
from evolve.run.program import load, write_program
from simulator.errors import InputError


def refused(spec: object) -> str:
    with pytest.raises(InputError) as caught:
        load(str(spec))
    return str(caught.value)


def test_a_folder_without_a_run_is_named_as_such_with_its_programs_if_it_has_any(tmp_path: Path) -> None:
    bare = f"{tmp_path}: is no run and no program: give a file, or RUN:ID of a run that `evolve list` names"
    assert refused(tmp_path) == refused(f"{tmp_path}:3") == bare
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "jams-ours.py").touch()
    assert refused(tmp_path) == f"{tmp_path}: is a folder without a run: name one of the programs in {tmp_path}/programs"


@pytest.mark.parametrize("end", ["9999", "0009:3", "mine:3"])
def test_a_run_that_is_missing_is_no_list_of_seeds(end: str, tmp_path: Path) -> None:
    run = tmp_path / end.split(":")[0]
    assert refused(tmp_path / end) == f"{run}: there is no such run: `evolve list` names the runs"


def test_a_file_that_is_missing_is_still_one(tmp_path: Path) -> None:
    assert "cannot be read (No such file or directory): give a file, RUN:ID" in refused(tmp_path / "mine.py")


def test_a_shipped_run_is_not_validated_again_and_its_errors_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["validate", "seeds/champion", "--folds", "hardware"]) == 2
    assert capsys.readouterr().err == (
        "evolve: seeds/champion: is a shipped run, which was validated already (docs/validation.md): "
        "`evolve report champion --only accuracy` shows its held-out errors\n"
    )


def test_the_record_of_another_program_is_ignored_and_said(tmp_path: Path) -> None:
    shipped = load("champion")
    path = tmp_path / "mine.py"
    assert shipped.record is not None
    write_program(path, shipped.text, None, shipped.record)
    assert load(str(path)).record == shipped.record
    path.write_text(shipped.text.replace("gemm: one = 0.962367", "gemm: one = 0.97"), "utf-8")
    assert load(str(path)).record == shipped.record, "the same form with another constant"
    path.write_text("def step_time(b, s, *, each: us/request = 100.0): return each * b.decode_reqs\n", "utf-8")
    edited = load(str(path))
    assert edited.record is None
    assert edited.cautions[0] == (
        f"{tmp_path / 'mine.json'} is the record of another program, so nothing in it counts: fit this one"
    )
