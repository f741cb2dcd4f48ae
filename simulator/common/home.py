"""The home folder of the user."""

from __future__ import annotations

from pathlib import Path


def home() -> Path:
    """The user's home folder; the root folder, as in containers, for a user who has none."""
    try:
        return Path.home()
    except RuntimeError:  # no HOME, and a user id that no file lists
        return Path("/")
