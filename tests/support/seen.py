"""A run as a page sees it: its document, the candidates by id, and what an export holds."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

from evolve.draw.view.document import run_json
from evolve.draw.view.followed import Followed

DATA = re.compile(r'<script type="application/octet-stream;base64" id="data">([A-Za-z0-9+/=]*)</script>')


def seen(run: Path) -> dict[str, Any]:
    """The run in a document, as JSON has it."""
    shown: dict[str, Any] = json.loads(json.dumps(run_json(Followed(run)), allow_nan=False))
    return shown


def by_id(run: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The candidates of a run in a document, as rows; operators and stages by name."""
    columns = run["candidates"]
    assert len({len(column) for column in columns.values()}) == 1
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for row in rows:
        row["operator"], row["stage"] = run["operators"][row["operator"]], run["stages"][row["stage"]]
    return {row["id"]: row for row in rows}


def exported(file: Path) -> dict[str, Any]:
    """The document in an export."""
    packed = DATA.findall(file.read_text("utf-8"))
    assert len(packed) == 1
    document: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed[0])))
    return document
