"""The user's files as plain text, each part with its place: pages of PDFs, notes, entries of BibTeX files.

Their text is data. Nothing in a file is executed or fetched, no link is followed, and size, pages, time and memory are
limited. What cannot be read is left out with the reason.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evolve.search.llm.client import not_installed
from simulator.common.documents import read_bytes
from simulator.common.errors import InputError, reason
from simulator.common.json import JsonObject
from simulator.common.secrets import redact, without_secrets
from simulator.common.text import plain

NOTES = (".md", ".txt")
MOST_FILES = 1000  # of a folder
MOST_BYTES = {".pdf": 64 << 20, ".bib": 4 << 20} | dict.fromkeys(NOTES, 4 << 20)  # of a file, by the end of its name
MOST_PAGES = 500  # of a PDF
MOST_ENTRIES = 10_000  # of a BibTeX file
LONGEST_PAGE = 20_000  # characters; a page set in small type has 8,000
PDF_CPU_S, PDF_MEMORY = 60, 1 << 30  # of the process that reads a PDF: seconds, bytes of address space
LONGEST_NAME = 100  # characters of a file's name, of a key
FIELDS = ("title", "author", "year", "abstract", "note", "annotation")  # of BibTeX that are quoted
HYPHEN = re.compile(r"(?<=[a-z])-\n(?=[a-z])")  # at the end of a line of a page
LIGATURES = {0xFB00: "ff", 0xFB01: "fi", 0xFB02: "fl", 0xFB03: "ffi", 0xFB04: "ffl"}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the user's, in bytes, and when it was changed last, in nanoseconds."""

    path: Path
    name: str  # from the user's folder, with slashes
    size: int
    changed_ns: int


@dataclass(frozen=True, slots=True)
class Part:
    """A page, a note or an entry. The place of a note says the file alone: `by_line` asks for its lines too."""

    place: str
    title: str
    text: str
    by_line: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """What was read of a file, and why not all of it, "" if all was."""

    name: str
    parts: tuple[Part, ...]
    left_out: str = ""


def source_files(path: Path) -> list[SourceFile]:
    """The file, or all readable kinds of files below the folder by name; hidden ones and other kinds are not listed.

    Raises OSError if there is nothing at `path` or it cannot be listed.
    """
    if not path.is_dir():
        return [_file(path, path.name, path.stat())]
    found = list[SourceFile]()
    for folder, folders, names in os.walk(path, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names + [name for name in folders if os.path.islink(os.path.join(folder, name))]:
            inside = Path(folder, name)
            if not name.startswith(".") and (inside.suffix.lower() in MOST_BYTES or inside.is_dir()):
                found.append(_file(inside, inside.relative_to(path).as_posix(), inside.lstat()))
    return sorted(found, key=lambda file: file.name)


def _raise(error: OSError) -> None:
    raise error


def _file(path: Path, name: str, status: os.stat_result) -> SourceFile:
    return SourceFile(path, plain(name, LONGEST_NAME), status.st_size, status.st_mtime_ns)


def read_source(file: SourceFile, given: bool = False) -> Source:
    """The text of a file. given: the user named the file itself, so it may be a link.

    Raises InputError if a library is missing; whatever else is wrong is said in the source.
    """
    suffix = file.path.suffix.lower()
    if given and suffix not in MOST_BYTES:
        suffix = NOTES[0]
    most = MOST_BYTES.get(suffix, 0)
    try:
        if not given and not stat.S_ISREG(file.path.lstat().st_mode):
            return Source(file.name, (), "it is a link, a pipe or a device")
        data = read_bytes(file.path, most, kept=not given)
    except OSError as e:
        return Source(file.name, (), reason(e))
    except InputError:
        return Source(file.name, (), f"it has more than {most:,} bytes")
    if suffix == ".pdf":
        return _pdf(file.name, data)
    try:
        text = clean(data.decode("utf-8-sig"))
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        return Source(file.name, (), f"line {line} is not UTF-8 text")
    if suffix == ".bib":
        return _bib(file.name, text)
    title = next((line.lstrip("# ") for line in text.splitlines() if line.strip()), "")
    return Source(file.name, (Part(file.name, title, text, by_line=True),) if title else (), "" if title else "no text")


def clean(text: str) -> str:
    """The printable characters of a text, line by line, without secrets of the environment."""
    return redact("\n".join("".join(c if c.isprintable() else " " for c in x).rstrip() for x in text.splitlines()))


# BibTeX


def _bib(name: str, text: str) -> Source:
    try:
        from bibtexparser import entrypoint  # optional
    except ModuleNotFoundError as e:
        raise not_installed(e) from None
    logging.getLogger("bibtexparser").setLevel(logging.CRITICAL)
    try:
        read = entrypoint.parse_string(text)
    except Exception as e:  # of any kind: the text is foreign
        return Source(name, (), f"it is no BibTeX ({type(e).__name__})")
    entries = [(entry.key, {f.key.lower(): f.value for f in entry.fields}) for entry in read.entries]
    if len(entries) > MOST_ENTRIES:
        return Source(name, (), f"it has more than {MOST_ENTRIES:,} entries")
    parts = tuple(_entry(key, fields) for key, fields in entries if fields.get("title"))
    every = len(entries) + len(read.failed_blocks)
    said = f"{every - len(parts):,} of its {every:,} entries"
    whole = parts and len(parts) == every
    return Source(name, parts, "" if whole else f"{said} cannot be read, or have a key twice or no title")


def _entry(key: str, fields: Mapping[str, object]) -> Part:
    values = {name: _unmarked(str(fields[name])) for name in FIELDS if fields.get(name)}
    rest = ". ".join(" ".join(values[name].split()) for name in FIELDS if values.get(name))
    return Part(f"[{plain(key, LONGEST_NAME)}]", " ".join(values["title"].split()), rest)


def _unmarked(text: str) -> str:
    return text.translate(dict.fromkeys(map(ord, "{}\\")))


# PDF, in a process of its own: a small file can ask a reader for any time and memory


def _pdf(name: str, data: bytes) -> Source:
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import write_pages; "
    code += f"write_pages({PDF_CPU_S}, {PDF_MEMORY})"
    try:
        written = subprocess.run(
            [sys.executable, "-c", code],
            input=data,
            capture_output=True,
            timeout=4 * PDF_CPU_S,
            env=without_secrets(),
            check=False,
        ).stdout
    except subprocess.TimeoutExpired as e:
        written = e.stdout or b""
    lines: list[JsonObject] = [json.loads(line) for line in written.split(b"\n")[:-1]]
    ending = lines.pop() if lines and "end" in lines[-1] else {"end": f"it takes more than {PDF_CPU_S} s to read"}
    if ending.get("missing"):
        raise not_installed(ModuleNotFoundError(name=ending["missing"]))
    title = next((line["title"] for line in lines if "title" in line), "")
    texts = [HYPHEN.sub("", clean(line["text"])) for line in lines if "text" in line]
    parts = tuple(
        Part(f"{name}, page {n}", title if n == 1 else "", text) for n, text in enumerate(texts, 1) if text.strip()
    )
    why = ending["end"]
    if not parts:
        why = why or "its pages have no text"
    elif why:
        why = f"what follows page {len(texts)}: {why}"
    return Source(name, parts, why)


def write_pages(cpu_s: int, memory: int) -> None:
    """Write a line of JSON for the PDF in standard input, one for the text of each page, and one on how it ended.

    Called in a process of its own, which it limits to so many seconds and bytes of address space.
    """
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    try:
        for line in _lines_of(sys.stdin.buffer.read()):
            print(json.dumps(line), flush=True)
        ending = {"end": ""}
    except ModuleNotFoundError as e:
        ending = {"end": "", "missing": str(e.name)}
    except _Refused as e:
        ending = {"end": str(e)}
    except MemoryError:
        ending = {"end": f"it takes more than {memory >> 20} MiB of memory to read"}
    except Exception as e:  # of any kind: the file is foreign
        ending = {"end": f"it is damaged ({type(e).__name__})"}
    print(json.dumps(ending), flush=True)


class _Refused(Exception):
    """Why a PDF is not read further."""


def _lines_of(data: bytes) -> Iterator[JsonObject]:
    import pypdf  # optional

    reader = pypdf.PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not _opens(reader):
        raise _Refused("it is encrypted")
    yield {"title": str((reader.metadata and reader.metadata.title) or "")}
    for number, page in enumerate(reader.pages):
        if number == MOST_PAGES:
            raise _Refused(f"it has more than {MOST_PAGES} pages")
        yield {"text": page.extract_text()[:LONGEST_PAGE].translate(LIGATURES)}


def _opens(reader: Any) -> bool:
    try:
        return bool(reader.decrypt(""))  # many papers are encrypted with an empty password
    except Exception:  # of any kind: a method of encryption that is not installed, or damage
        return False
