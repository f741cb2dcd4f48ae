"""The board in docs/leaderboard.md, as `python -m research leaderboard --md` prints it.

`python tools/board_page.py FOLDER` trains what is not in the folder yet and writes the page again.
"""

from __future__ import annotations

import re
import sys
from contextlib import redirect_stdout
from io import StringIO

from paths import ROOT

from evolve.cli import run_command
from research.__main__ import research

PAGE = ROOT / "docs" / "leaderboard.md"
BOARD = re.compile(r"(?<=<!-- board -->\n)(.*?)(?=<!-- end of the board -->)", re.DOTALL)


def write(folder: str) -> None:
    """Write the page with the board of this folder. Ends the process if there is none."""
    out = StringIO()
    with redirect_stdout(out):
        status = run_command(["leaderboard", "--md", "--out", folder], research)
    if status:
        sys.exit(status)
    text = PAGE.read_text("utf-8")
    PAGE.write_text(BOARD.sub(lambda _: f"\n{out.getvalue().strip()}\n\n", text), "utf-8")


if __name__ == "__main__":
    write(*sys.argv[1:])
