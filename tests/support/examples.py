"""What is tested daily of many like cases, and what by `make test-all` only."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import settings


def daily(examples: int, otherwise: int = 0) -> int:
    """How many examples hypothesis draws: `examples` by the daily profile, else `otherwise`, or the profile's number.

    For properties that cost tens of milliseconds an example.
    """
    if settings.get_current_profile_name() == "daily":
        return examples
    return otherwise or settings().max_examples


def last_daily(cases: Iterable[str]) -> list[object]:
    """The cases to parametrize a test with: all but the last one are slow."""
    *others, last = cases
    return [*(pytest.param(case, marks=pytest.mark.slow) for case in others), last]
