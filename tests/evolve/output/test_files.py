"""Files are written whole or not at all, and whether they can be is known before the work."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from evolve.output.files import check_writable, save, write_json
from simulator.common.errors import InputError
from simulator.common.files import draft_of, plain_file, plain_folder, write_text


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


def test_links_that_a_user_names_are_followed_and_pipes_are_written_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    write(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "text"
    os.mkfifo(tmp_path / "pipe")
    with draft_of(tmp_path / "pipe") as draft:
        assert draft == tmp_path / "pipe"
    check_writable(tmp_path / "pipe", "--out")
    assert (tmp_path / "pipe").is_fifo()


def write(path: Path, text: str) -> None:
    save(path, "--out", lambda draft: draft.write_text(text))


def test_nothing_is_followed_or_waited_for_in_a_folder_that_a_command_keeps(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("kept")
    (tmp_path / "link").symlink_to("outside")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "folder").symlink_to("..")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "dangling", "pipe"):
        for flags in (os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
            with pytest.raises(InputError, match=f"{tmp_path / name}: it is a link"):
                plain_file(tmp_path / name, flags)
        with pytest.raises(InputError):
            write_text(tmp_path / name, "text")
    for name in ("link", "dangling", "folder", "outside"):
        with pytest.raises(InputError, match=str(tmp_path / name)):
            plain_folder(tmp_path / name, make=True)
    draft = tmp_path / f"new.{os.getpid()}.new"
    draft.symlink_to("outside")
    write_text(tmp_path / "new", "text")
    assert (tmp_path / "new").read_text() == "text" and (tmp_path / "outside").read_text() == "kept"
    with open(tmp_path / "new", "w", opener=plain_file):
        assert (tmp_path / "new").read_text() == ""
    assert "nowhere" not in os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["a" * 251 + ".csv", "\u00e9" * 120 + ".csv"])
def test_the_longest_name_can_be_written(name: str, tmp_path: Path) -> None:
    check_writable(tmp_path / name, "--csv")
    write(tmp_path / name, "text")
    assert os.listdir(tmp_path) == [name] and (tmp_path / name).read_text() == "text"
    with pytest.raises(InputError, match="File name too long"):
        check_writable(tmp_path / f"{name}{name}", "--csv")


def test_a_file_that_is_mounted_or_takes_no_draft_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*paths: Path) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy", str(paths[0]), None, str(paths[1]))

    path = tmp_path / "a.csv"
    path.write_text("old and longer")
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", busy)
        write(path, "mounted")
    assert path.read_text() == "mounted"
    with monkeypatch.context() as patched:
        patched.setattr(Path, "touch", lambda *_, **__: os.rmdir(path))  # no draft can be made
        write(path, "in place")
    assert path.read_text() == "in place" and os.listdir(tmp_path) == ["a.csv"]


def test_a_result_whose_last_write_fails_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "a.csv").mkdir()  # after it was checked
    with pytest.raises(InputError, match=f"{tmp_path / 'a.csv'}: cannot be written") as error:
        write(tmp_path / "a.csv", "text")
    [kept] = tmp_path.glob("evolve-*")
    assert str(kept) in str(error.value) and (kept / "result.csv").read_text() == "text"

    def full(draft: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(InputError, match=f"{tmp_path / 'b.csv'}: cannot be written"):
        save(tmp_path / "b.csv", "--csv", full, "text\n")
    assert capsys.readouterr().out == "text\n" and len(os.listdir(tmp_path)) == 2


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
