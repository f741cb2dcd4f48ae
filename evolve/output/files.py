"""Writing files: each is replaced whole or left as it was, and whether that is possible is checked before the work.

And the digest of files, by which one knows them again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from simulator.common.errors import InputError, unwritable

REMEDY = "restore it from a copy"  # for a damaged file that nothing but a command writes
_DRAFT = re.compile(r"\.[0-9]+\.new$")  # what the name of a draft ends with


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """A file to write instead of `path`: it takes that name when the block ends, and is removed if the block fails.

    A link is followed. A pipe or a device cannot be replaced, so it is written to directly. An OSError that names no
    file, as on a full disk, is raised again with the name `path`.
    """
    target = path.resolve()
    replaceable = path.is_file() or not path.exists()
    # the process id keeps two processes that write the same file from sharing a draft
    draft = target.with_name(f"{target.name}.{os.getpid()}.new") if replaceable else path
    try:
        yield draft
        if replaceable:
            os.replace(draft, target)
    except OSError as e:
        if e.filename in (None, str(draft)):
            raise OSError(e.errno, e.strerror or str(e), str(path)) from None
        raise
    finally:
        if replaceable:
            draft.unlink(missing_ok=True)


def without_draft(name: str) -> str:
    """The name of the file that a draft is for; any other name as it is. A process that is killed leaves its drafts."""
    return _DRAFT.sub("", name)


def write_text(path: Path, text: str) -> None:
    """Replace the file in one go: a crash leaves the old text or the new one. Raises OSError."""
    with draft_of(path) as draft:
        draft.write_text(text, "utf-8")


def write_json(path: Path, value: Any) -> None:
    """`write_text` of a JSON value. Raises ValueError for a number that is not finite."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def digest_of(*paths: Path, also: str = "") -> str:
    """16 hex digits that identify a text and the contents of these files, in this order. Raises OSError."""
    digest = sha256(also.encode())
    for path in paths:
        with path.open("rb") as file:
            digest.update(file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def check_writable(path: Path, option: str, *suffixes: str) -> None:
    """Raises InputError naming `option`, before any work, if the file could not be written. Leaves no file behind.

    suffixes: of the files that may be replaced, any if none is given. So a slip costs no measurements and no program.
    """
    if path.is_dir():
        raise InputError(f"{path}: is a folder: {option} names a file")
    if suffixes and path.suffix.lower() not in ("", *suffixes) and path.is_file() and path.stat().st_size:
        named = f"exists, and {option} replaces only files that end in {' or '.join(suffixes)}"
        raise InputError(f"{path}: {named}: choose another {option}")
    existed = path.exists()
    if existed and not path.is_file():
        return  # opening a pipe would wait for its reader
    target = path.resolve()
    try:
        with target.open("ab"):
            pass
    except OSError as e:
        raise unwritable(path, e, f"choose another {option}") from None
    finally:
        if not existed and target.is_file():
            target.unlink()
