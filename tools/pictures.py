"""The pictures of docs/, drawn from the shipped run and its champion. `make pictures` draws them again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from paths import ROOT

from evolve.cli import run_command

FOLDER = ROOT / "docs" / "pictures"
# By file, the command line without --out. The deployments of `terms.svg` are a dense model, a mixture of experts with
# 16-bit weights, and one with quantized weights.
PICTURES = {
    "fit.svg": ("champion", "--kind", "fit"),
    "terms.svg": (
        "champion",
        "--kind",
        "terms",
        "--id",
        "llama-2-70b-tp4-general,mixtral-8x7b-tp2-general,20-llama-4-scout-17b-16e-tp2-codegen-2",
    ),
    "front.svg": ("seeds/champion", "--kind", "front"),
    "history.svg": ("seeds/champion", "--kind", "history"),
    "grid.svg": ("seeds/champion", "--kind", "grid"),
}


def draw(name: str, out: Path) -> None:
    """Draw one of PICTURES. The current folder must be the project's."""
    if run_command(["plot", *PICTURES[name], "--out", str(out)]):
        sys.exit(f"{name} could not be drawn")


if __name__ == "__main__":
    os.chdir(ROOT)
    FOLDER.mkdir(exist_ok=True)
    for each in PICTURES:
        draw(each, FOLDER / each)
