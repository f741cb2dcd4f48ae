"""PROGRAM arguments that name no program: one line says what is there instead, and what to give."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from paths import ROOT

from evolve.cli import run_command
from evolve.run.program import load, write_program
from evolve.run.trust import TRUST_FILE, trust_file, trust_of
from simulator.common.errors import InputError

SEEDS = ROOT / "seeds"


def refused(spec: object) -> str:
    with pytest.raises(InputError) as caught:
        load(str(spec))
    return str(caught.value)


def test_a_folder_without_a_run_is_named_as_such_with_its_programs_if_it_has_any(tmp_path: Path) -> None:
    bare = f"{tmp_path}: is no run and no program: give a file, or RUN:ID of a run that `evolve list` names"
    assert refused(tmp_path) == refused(f"{tmp_path}:3") == bare
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "jams-ours.py").touch()
    assert (
        refused(tmp_path) == f"{tmp_path}: is a folder without a run: name one of the programs in {tmp_path}/programs"
    )


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
    path.write_text("def step_time(b, s, *, each: us/request = 100.0): return each * b.decode_reqs\n", "utf-8")
    edited = load(str(path))
    assert edited.record is None
    assert edited.cautions[0] == (
        f"{tmp_path / 'mine.json'} is the record of another program, so nothing in it counts: fit this one"
    )


def test_the_record_of_constants_that_were_changed_by_hand_is_ignored_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The form is the same, and with it the key; errors and intervals are those of other constants."""
    text = (SEEDS / "champion.py").read_text()
    path = tmp_path / "mine.py"
    path.with_suffix(".json").write_bytes((SEEDS / "champion.json").read_bytes())
    trust_file(path).write_bytes((SEEDS / "champion" / TRUST_FILE).read_bytes())
    path.write_text(text)
    assert (mine := load(str(path))).record == load("champion").record and trust_of(mine)
    path.write_text(text.replace("gemm", "matrices").replace("kernel_matrices", "kernel_gemm"))
    assert load(str(path)).record == load("champion").record, "the same constants with other names"
    path.write_text(text.replace("    kernel_moe: one = 1.0083,\n", "").replace("kernel_moe * b.", "1.5 * b."))
    assert "changed by hand (step_time.kernel_moe, step_time.k1)" in load(str(path)).cautions[0], (
        "a number in its place"
    )
    path.write_text(text.replace("one = 0.962367", "one = 1.9").replace("us = 10993.8", "us = 10993.9"))
    edited = load(str(path))
    assert edited.record is None and trust_of(edited) is None
    said = (
        f"constants were changed by hand (step_time.gemm, queueing_time.base), so nothing in {tmp_path / 'mine.json'} "
        "counts: fit the program, or give them back their values"
    )
    assert edited.cautions == (said,)
    seven = ["--id", "llama-2-7b-tp1-general"]
    for args in (
        ["show"], ["predict", *seven], ["emit", *seven, "--out", str(tmp_path / "go")],
        ["fit", *seven, "--only", "gemm", "--out", str(tmp_path / "new.py")],
    ):  # fmt: skip
        assert run_command([args[0], str(path), *args[1:]]) == 0
        assert said in " ".join("".join(capsys.readouterr()).split()), args
    guide = (tmp_path / "go" / "INTEGRATION.md").read_text()
    assert "in sample" not in guide and "changed by hand" in guide
    assert load(str(tmp_path / "new.py")).record, "a fit of it has a record of its own"


def test_an_older_record_that_keeps_no_values_is_believed(tmp_path: Path) -> None:
    shipped = load("champion")
    assert shipped.record
    path = tmp_path / "mine.py"
    path.write_text(shipped.text.replace("gemm: one = 0.962367", "gemm: one = 0.97"))
    path.with_suffix(".json").write_text(json.dumps(replace(shipped.record, values=None).to_json()))
    assert load(str(path)).record == replace(shipped.record, values=None)
