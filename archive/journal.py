"""The append-only journal of a run: one JSON object a line, synced to disk, tolerant of a torn last line."""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Every whole line, in order, of a journal or of one compressed with xz; a last line that a crash tore is left out.
    Raises ValueError for damage elsewhere."""
    raw = path.read_bytes() if path.exists() else b""
    if path.suffix == ".xz":
        try:
            raw = lzma.decompress(raw)
        except lzma.LZMAError as e:
            raise ValueError(f"{path}: not an xz file ({e})") from None
    lines = raw.split(b"\n")
    out = []
    for number, line in enumerate(lines, 1):
        if number == len(lines):  # after the last newline: nothing, or a torn line
            break
        try:
            out.append(json.loads(line))
        except ValueError:
            raise ValueError(f"{path}:{number}: not JSON: the journal is damaged before its end") from None
    return out


class Journal:
    """Opened for appending; a torn last line is cut off first."""

    def __init__(self, path: Path) -> None:
        if path.exists():
            data = path.read_bytes()
            whole = data.rfind(b"\n") + 1
            if whole < len(data):
                os.truncate(path, whole)
        self._file = path.open("ab")

    def append(self, entries: Iterable[dict[str, Any]]) -> None:
        """Write the entries and wait until they are on disk."""
        for entry in entries:
            self._file.write(json.dumps(entry, separators=(",", ":"), allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
