"""Files are written whole or not at all, and whether they can be is known before the work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evolve.output.files import check_writable, draft_of, write_json, write_text
from simulator.common.errors import InputError


def test_a_file_is_replaced_whole_and_drafts_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": [1, None]})
    assert path.read_text() == '{\n "a": [\n  1,\n  null\n ]\n}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, float("nan"))
    with pytest.raises(RuntimeError), draft_of(path) as draft:
        draft.write_text("half")
        raise RuntimeError
    assert path.read_text().startswith("{") and os.listdir(tmp_path) == ["a.json"]


def test_links_are_followed_and_pipes_are_written_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    write_text(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "text"
    os.mkfifo(tmp_path / "pipe")
    with draft_of(tmp_path / "pipe") as draft:
        assert draft == tmp_path / "pipe"
    check_writable(tmp_path / "pipe", "--out")
    assert (tmp_path / "pipe").is_fifo()


def test_what_cannot_be_written_is_one_line_naming_the_option(tmp_path: Path) -> None:
    check_writable(tmp_path / "new.csv", "--csv")
    (tmp_path / "dangling").symlink_to("nowhere")
    check_writable(tmp_path / "dangling", "--csv")
    (tmp_path / "old.csv").write_text("kept")
    check_writable(tmp_path / "old.csv", "--csv")
    assert sorted(os.listdir(tmp_path)) == ["dangling", "old.csv"] and (tmp_path / "old.csv").read_text() == "kept"
    for path, message in (
        (tmp_path, "is a folder: --csv names a file"),
        (tmp_path / "no" / "a.csv", "cannot be written (No such file or directory): choose another --csv"),
        (tmp_path / "old.csv" / "a", "cannot be written (Not a directory): choose another --csv"),
    ):
        with pytest.raises(InputError) as error:
            check_writable(path, "--csv")
        assert str(error.value) == f"{path}: {message}"


def test_an_output_replaces_only_files_of_its_kind(tmp_path: Path) -> None:
    for name in ("data.yaml", "mine.py", "old.csv", "OLD.CSV", "old"):
        (tmp_path / name).write_text("kept")
    (tmp_path / "empty.yaml").touch()
    for name in ("old.csv", "OLD.CSV", "old", "new.yaml", "empty.yaml"):
        check_writable(tmp_path / name, "--csv", ".csv", ".tsv")
    for name in ("data.yaml", "mine.py"):
        with pytest.raises(InputError) as error:
            check_writable(tmp_path / name, "--csv", ".csv", ".tsv")
        why = "exists, and --csv replaces only files that end in .csv or .tsv: choose another --csv"
        assert str(error.value) == f"{tmp_path / name}: {why}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write read-only files")
def test_a_read_only_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("kept")
    (tmp_path / "a").chmod(0o400)
    with pytest.raises(InputError, match="Permission denied"):
        check_writable(tmp_path / "a", "--out")
