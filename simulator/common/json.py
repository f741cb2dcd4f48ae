"""The type of JSON objects where they cross the border: read but not yet checked, or about to be written."""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]
