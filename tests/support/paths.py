"""Where things are: the project, and the folder of shared measurements beside it, which a user's machine has not."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
