"""Files written whole or not at all, and files of folders that commands keep, such as runs.

Whoever hands over such a folder may have put links and pipes into it, so nothing below it is followed or waited for.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from simulator.common.errors import InputError

_LONGEST_STEM = 200  # bytes of a name that its draft keeps: file systems allow 255 in all


def plain_file(path: str | Path, flags: int) -> int:
    """An opener for `open`, of a file in a folder that a command keeps. Its parent may be a link, see `plain_folder`.

    Raises InputError for a link and for anything that is no regular file. Nothing is truncated before that is known.
    """
    safe = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        number = os.open(path, flags & ~os.O_TRUNC | safe, 0o666)
    except OSError as e:
        if e.errno in (errno.ELOOP, errno.ENXIO):  # a link; a pipe that nobody reads, or a socket
            raise _not_plain(path) from None
        raise
    try:
        mode = os.fstat(number).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise _not_plain(path)
        if flags & os.O_TRUNC:
            os.ftruncate(number, 0)
    except BaseException:
        os.close(number)
        raise
    return number


def plain_folder(path: Path, make: bool = False) -> Path:
    """A folder in one that a command keeps; it may be missing, unless it is to be made.

    Raises InputError for a link or a file, and OSError.
    """
    if make:
        with suppress(FileExistsError):
            path.mkdir()
    with suppress(FileNotFoundError):
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise _not_plain(path)
    return path


def _not_plain(path: str | Path) -> InputError:
    return InputError(f"cannot use {path}: it is a link, a pipe or a device. Put a plain file or folder in its place.")


@contextmanager
def draft_of(path: Path, *, kept: bool = False) -> Iterator[Path]:
    """A file to write instead of `path`: it takes that name when the block ends, and is removed if the block fails.

    kept: `path` is in a folder that a command keeps, so it may not be a link, a pipe or a device (InputError). Else a
    link is followed, and a pipe or a device is written to directly. So is a file whose folder takes no draft.
    An OSError that names no file, as on a full disk, is raised again with the name `path`.
    """
    if kept and os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
        raise _not_plain(path)
    target = path if kept else Path(os.path.realpath(path))
    draft = _new_draft(target) if path.is_file() or not path.exists() else None
    try:
        yield draft or path
        if draft:
            _replace(draft, target)
    except OSError as e:
        if e.filename in (None, str(draft)):
            raise OSError(e.errno, e.strerror or str(e), str(path)) from None
        raise
    finally:
        if draft:
            draft.unlink(missing_ok=True)


def _new_draft(target: Path) -> Path | None:
    """An empty file beside the target; None if there can be none, but the target is there. Raises OSError."""
    stem = os.fsdecode(os.fsencode(target.name)[:_LONGEST_STEM])
    # the process id keeps two processes that write the same file from sharing a draft
    draft = target.with_name(f"{stem}.{os.getpid()}.new")
    try:
        draft.unlink(missing_ok=True)
        draft.touch(exist_ok=False)
    except OSError as e:
        if target.exists():
            return None
        raise OSError(e.errno, e.strerror, str(target)) from None
    return draft


def _replace(draft: Path, target: Path) -> None:
    try:
        os.replace(draft, target)
    except OSError as e:
        if e.errno != errno.EBUSY:
            raise
        shutil.copyfile(draft, target)  # a mount, as of one file into a container


def write_text(path: Path, text: str) -> None:
    """Replace a file of a folder that a command keeps: a crash leaves the old text or the new one. Raises OSError, and
    InputError for a link, a pipe or a device."""
    with draft_of(path, kept=True) as draft:
        draft.write_text(text, "utf-8", newline="")
