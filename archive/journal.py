"""The append-only journal of a run: one JSON object per line, synced to disk; a torn last line is tolerated."""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Iterable
from pathlib import Path

from simulator.json import JsonObject

MOST_BYTES = 1 << 30  # of a journal; a proposal takes about a kilobyte


def read_journal(path: Path) -> list[JsonObject]:
    """Every complete line of a journal, in order; the file may be compressed (.xz) or missing.

    A last line without a newline was torn by a crash and is skipped. Raises ValueError for damage anywhere else.

    >>> read_journal(Path("no-such-journal.jsonl"))
    []
    """
    raw = _content(path) if path.exists() else b""
    *lines, _torn = raw.split(b"\n")  # after the last newline comes nothing, or a torn line
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            entries.append(json.loads(line))
        except (ValueError, RecursionError):
            raise ValueError(f"{path}:{number}: not JSON: the journal is damaged before its end") from None
    return entries


def _content(path: Path) -> bytes:
    """The bytes of a journal, unpacked. Raises ValueError for more than MOST_BYTES: a small .xz can hold terabytes."""
    try:
        with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except (lzma.LZMAError, EOFError) as e:
        raise ValueError(f"{path}: not an xz file ({e})") from None
    if len(raw) > MOST_BYTES:
        raise ValueError(f"{path}: more than {MOST_BYTES >> 20:,} MiB of journal")
    return raw


class Journal:
    """A journal opened for appending. A torn last line is cut off first.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     journal = Journal(Path(folder) / "journal.jsonl")
    ...     journal.append([{"id": 0}, {"id": 1}])
    ...     journal.close()
    ...     read_journal(Path(folder) / "journal.jsonl")
    [{'id': 0}, {'id': 1}]
    """

    def __init__(self, path: Path) -> None:
        if path.exists():
            data = path.read_bytes()
            whole = data.rfind(b"\n") + 1
            if whole < len(data):
                os.truncate(path, whole)
        self._file = path.open("ab")

    def append(self, entries: Iterable[JsonObject]) -> None:
        """Write the entries and wait until they are on disk."""
        for entry in entries:
            self._file.write(json.dumps(entry, separators=(",", ":"), allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
