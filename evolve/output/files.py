"""Results in files that users name: whether they can be written is checked before the work, and none is lost after it.

And the digest of files, by which one knows them again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from evolve.output.terminal import say
from simulator.common.errors import InputError, unwritable
from simulator.common.files import draft_of, write_text

REMEDY = "restore it from a copy"  # for a damaged file that nothing but a command writes
_DRAFT = re.compile(r"\.[0-9]+\.new$")  # what the name of a draft ends with


def without_draft(name: str) -> str:
    """The name of the file that a draft is for; any other name as it is. A process that is killed leaves its drafts."""
    return _DRAFT.sub("", name)


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
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder: {option} names a file")
        if suffixes and path.suffix.lower() not in ("", *suffixes) and path.is_file() and path.stat().st_size:
            named = f"exists, and {option} replaces only files that end in {' or '.join(suffixes)}"
            raise InputError(f"{path}: {named}: choose another {option}")
        existed = path.exists()
        if existed and not path.is_file():
            return  # opening a pipe would wait for its reader
        target = Path(os.path.realpath(path))
        with target.open("ab"):
            pass
        if not existed:
            target.unlink()
    except OSError as e:
        raise unwritable(path, e, f"choose another {option}") from None


def save(path: Path, option: str, write: Callable[[Path], object], text: str = "") -> None:
    """Have `write` write the file that `option` names, whole or not at all. Raises InputError like `keep`."""

    def whole(file: Path) -> None:
        with draft_of(file) as draft:
            write(draft)

    keep(path, option, whole, text)


def keep(path: Path, option: str, write: Callable[[Path], object], text: str = "") -> None:
    """Have `write` write a result to the file that `option` names, and files beside it.

    If that fails, it writes to a temporary folder, which the InputError names. If that fails too, `text` is printed.
    """
    try:
        write(path)
    except OSError as e:
        raise unwritable(path, e, f"{_rescued(path.suffix, write, text)}choose another {option}") from None


def _rescued(suffix: str, write: Callable[[Path], object], text: str) -> str:
    folder = Path(tempfile.mkdtemp(prefix="evolve-"))
    try:
        write(folder / f"result{suffix}")
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        say(text, end="")
        return ""
    return f"take the result from {folder}, or "
