"""The append-only journal of a run: one JSON object per line, synced to disk, each chained to the line before it.

A line ends with `"check"`, a digest of the line and of the check before it, so that a line that was changed, removed,
repeated or moved is noticed and named. A torn last line, which a crash leaves behind, is tolerated.
"""

from __future__ import annotations

import errno
import json
import lzma
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count, islice, takewhile
from pathlib import Path

from simulator.common.documents import no_constant
from simulator.common.files import plain_file
from simulator.common.json import JsonObject

MOVED = "not the line that was written here: it was changed, or lines before it were removed, added or moved"
_CHECK, _END = b',"check":"', b'"}'
_DIGITS = 12  # of a check: 48 bits
# Of an unpacked .xz, because a small one can hold terabytes, and of any line: nothing longer is ever in memory. A
# proposal takes two or three kilobytes, and 60 bytes for each experiment beyond twenty.
MOST_BYTES = 1 << 30
_AT_ONCE = 1 << 24  # bytes that a Tail reads, or one line if that is longer: the values take several times as much
_SUFFIX = len(_CHECK) + _DIGITS + len(_END)


class Damaged(ValueError):
    """A journal that is damaged before its end; `good` is the number of lines before the damage.

    >>> str(Damaged(Path("journal.jsonl"), 6, "not a JSON object"))
    'journal.jsonl:7: not a JSON object'
    """

    def __init__(self, path: Path, good: int, what: str) -> None:
        super().__init__(f"{path}:{good + 1}: {what}")
        self.path, self.good, self.what = path, good, what

    def __reduce__(self) -> tuple[type[Damaged], tuple[Path, int, str]]:
        return Damaged, (self.path, self.good, self.what)


@dataclass(frozen=True, slots=True)
class _Line:
    body: bytes  # without its check
    check: bytes  # of this line, computed
    checked: bool  # whether the line has a check; those of older releases have none
    end: int  # offset of the next line in the file


_DECODER = json.JSONDecoder(parse_constant=no_constant)
_START = _Line(b"", b"", False, 0)  # what comes before the first line


def read_journal(path: Path) -> list[JsonObject]:
    """Every complete line of a journal, in order; the file may be compressed (.xz) or missing.

    A last line without a newline was torn by a crash and is skipped. Raises Damaged for anything else that no journal
    has, at the first line that is not as it was written.
    """
    return list(entries(path))


def entries(path: Path) -> Iterator[JsonObject]:
    """The lines of `read_journal`, one at a time, so that a long journal is never in memory as a whole."""
    return (_entry(path, number, line) for number, line in enumerate(_lines(path)))


def unchecked(path: Path) -> int:
    """The number of lines at the journal's beginning that have no check, because an older release wrote them."""
    return sum(1 for _ in takewhile(lambda line: not line.checked, _lines(path)))  # no digest after the first check


def cut(path: Path, good: int) -> Path | None:
    """Shorten a journal to its first `good` lines; the rest is kept in the file that is returned, None without a rest.

    Raises Damaged if the journal is damaged within those lines, and ValueError if it has fewer.
    """
    # the line after them may be the damaged one, and is not looked at
    ends = [line.end for line in islice(_lines(path), good)]
    if len(ends) < good:
        raise ValueError(f"{path}: has {len(ends)} lines only")
    end = ends[-1] if ends else 0
    if path.stat().st_size == end:
        return None
    names = (path.with_name(f"{path.stem}.after-{good}{f'.{n}' if n > 1 else ''}{path.suffix}") for n in count(1))
    kept = next(name for name in names if not os.path.lexists(name))
    try:
        with open(path, "r+b", opener=plain_file) as whole, open(kept, "xb", opener=plain_file) as file:
            whole.seek(end)
            shutil.copyfileobj(whole, file)
            file.flush()
            os.fsync(file.fileno())
            whole.truncate(end)
    except OSError as e:
        raise OSError(e.errno, e.strerror, e.filename or str(kept)) from None
    return kept


def _lines(path: Path) -> Iterator[_Line]:
    return _chained(path, _complete(path), _START, 0)


def _chained(path: Path, lines: Iterable[bytes], last: _Line, before: int) -> Iterator[_Line]:
    """The lines, which follow the line `last`; there are `before` lines in front of them."""
    check, checked, end = last.check, last.checked, last.end
    for number, line in enumerate(lines, before):
        end += len(line) + 1
        body, stored = _parted(line)
        check = _digest(check, body)
        if stored is None and checked:
            raise Damaged(path, number, "the line has lost its check: it was changed or added")
        if stored is not None and stored != check:
            raise Damaged(path, number, MOVED)
        checked = stored is not None
        yield _Line(body, check, checked, end)


def _entry(path: Path, number: int, line: _Line) -> JsonObject:
    """The JSON object of a line. Raises Damaged if it is none."""
    try:
        entry = _DECODER.decode(line.body.decode())
    except (ValueError, RecursionError):  # not UTF-8, or NaN, too
        entry = None
    if not isinstance(entry, dict):
        raise Damaged(path, number, "not a JSON object: the journal is damaged before its end")
    return entry


def _parted(line: bytes) -> tuple[bytes, bytes | None]:
    """A line without its check, and the check, None if it has none.

    A carriage return after a check does not count: an editor or a tool for texts may have put it there.
    """
    written = line.removesuffix(b"\r")
    suffix = written[-_SUFFIX:]
    if suffix.startswith(_CHECK) and suffix.endswith(_END):
        return written[:-_SUFFIX] + b"}", suffix[len(_CHECK) : -len(_END)]
    return line, None


def _digest(before: bytes, body: bytes) -> bytes:
    return blake2b(before + body, digest_size=_DIGITS // 2).hexdigest().encode()


def _complete(path: Path) -> Iterator[bytes]:
    """The complete lines of a journal, unpacked, without their newlines; none if there is no file.

    Raises ValueError for a file that is not an .xz by content, or for more than MOST_BYTES.
    """
    if not path.exists():
        return
    packed, read = path.suffix == ".xz", 0
    try:
        with open(path, "rb", opener=plain_file) as raw, lzma.open(raw) if packed else nullcontext(raw) as file:
            while line := file.readline(MOST_BYTES - read + 1):
                if len(line) > MOST_BYTES - read:
                    raise _too_long(path)
                if not line.endswith(b"\n"):
                    return  # a torn line
                if packed:
                    read += len(line)
                yield line[:-1]
    except (lzma.LZMAError, EOFError) as e:
        raise ValueError(f"{path}: not an xz file ({e})") from None


def _too_long(path: Path) -> ValueError:
    what = "journal" if path.suffix == ".xz" else "a line of a journal"
    return ValueError(f"{path}: more than {MOST_BYTES >> 20:,} MiB of {what}")


class Replaced(ValueError):
    """A journal that is no longer the file that was read before, or is shorter than it was."""


class Tail:
    """A journal that another process appends to, read bit by bit and checked as `read_journal` does."""

    def __init__(self, path: Path) -> None:
        self._path, self._last, self._count = path, _START, 0
        self._file: tuple[int, int] | None = None  # device and inode

    def read(self) -> list[JsonObject]:
        """Complete lines that were appended since the last call, those that come first if they are many.

        There are none if nothing was appended; a torn last line is not there yet. Raises OSError if the file is gone,
        Replaced if it is another one or was cut, and Damaged like `read_journal`; then the next call begins at the same
        line again.
        """
        with open(self._path, "rb", opener=plain_file) as file:
            about = os.fstat(file.fileno())
            if self._file not in (None, (about.st_dev, about.st_ino)) or about.st_size < self._last.end:
                raise Replaced(f"{self._path}: was replaced or cut")
            file.seek(self._last.end)
            raw = file.read(_AT_ONCE)
            if b"\n" not in raw:
                raw += file.read(MOST_BYTES + 1 - len(raw))
                if len(raw) > MOST_BYTES and raw.find(b"\n", 0, MOST_BYTES) < 0:
                    raise _too_long(self._path)
        *complete, _torn = raw.split(b"\n")  # after the last newline comes nothing, or a torn line
        lines = list(_chained(self._path, complete, self._last, self._count))
        entries = [_entry(self._path, number, line) for number, line in enumerate(lines, self._count)]
        self._file = (about.st_dev, about.st_ino)
        self._last, self._count = lines[-1] if lines else self._last, self._count + len(lines)
        return entries


class Journal:
    """A journal opened for appending. A torn last line is cut off first. Raises Damaged."""

    def __init__(self, path: Path) -> None:
        self._path, self._check, end = path, b"", 0
        for line in _lines(path):
            self._check, end = line.check, line.end
        if path.exists() and end < path.stat().st_size:
            os.truncate(path, end)
        self._file = open(path, "ab", buffering=0, opener=plain_file)  # noqa: SIM115

    def append(self, entries: Iterable[JsonObject]) -> None:
        """Write the entries and wait until they are on disk.

        Raises OSError naming the file if it cannot be written, or is no longer where it was: what is written to a
        deleted file is lost.
        """
        check, lines = self._check, b""
        for entry in entries:
            body = json.dumps(entry, separators=(",", ":"), allow_nan=False).encode()
            check = _digest(check, body)
            lines += body[:-1] + _CHECK + check + _END + b"\n"
        try:
            if not os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno())):
                raise OSError(errno.ENOENT, "was replaced by another file")
            while lines:  # a full disk may take a part
                lines = lines[self._file.write(lines) :]
            os.fsync(self._file.fileno())
        except OSError as e:
            raise OSError(e.errno, e.strerror, str(self._path)) from None
        self._check = check

    def close(self) -> None:
        self._file.close()
