"""The Go and Markdown that the emitter writes, with marks such as `<Name>` that `BackendName.fill` replaces.

Each file has sections, in Go's txtar format: the line `-- name --` begins one.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path


@cache
def sections(file: str) -> dict[str, str]:
    """Name -> text of each section of a file in this folder, without line breaks around it."""
    text = (Path(__file__).parent / f"{file}.txtar").read_text("utf-8")
    _, *parts = re.split(r"^-- (\w+) --$", text, flags=re.MULTILINE)
    return {name: part.strip("\n") for name, part in zip(parts[::2], parts[1::2], strict=True)}
