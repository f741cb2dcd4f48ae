"""Keys are in the environment and nowhere else: whatever a server says passes through here first."""

from __future__ import annotations

import os
import re

NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
SHORTEST = 8  # characters: what is shorter would blot out ordinary words
BLOT = "[key]"


def redact(text: str) -> str:
    """`text` without any value of an environment variable that is named like a key, and without bearer tokens."""
    values = {value.strip() for name, value in os.environ.items() if NAMES.search(name)}
    for value in sorted((v for v in values if len(v) >= SHORTEST), key=len, reverse=True):
        text = text.replace(value, BLOT)
    return re.sub(r"(?i)\b(bearer\s+)[\w.~+/=-]{8,}", rf"\1{BLOT}", text)
