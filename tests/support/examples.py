"""How many examples hypothesis draws daily, of properties that cost tens of milliseconds each."""

from __future__ import annotations

from hypothesis import settings


def daily(examples: int, otherwise: int = 0) -> int:
    """`examples` by the daily profile; by any other one `otherwise`, or as many as that profile takes."""
    if settings.get_current_profile_name() == "daily":
        return examples
    return otherwise or settings().max_examples
