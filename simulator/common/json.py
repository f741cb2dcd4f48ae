"""The type of JSON objects where they cross the border: read but not yet checked, or about to be written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JsonObject = dict[str, Any]


def renamed(raw: Mapping[str, Any], names: Mapping[str, str]) -> JsonObject:
    """The object with the keys of an older release under today's names, `names` (old: new)."""
    return {names.get(key, key): value for key, value in raw.items()}
