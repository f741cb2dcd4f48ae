"""RUN/cpu.csv: the CPU seconds that assessing each proposal took, written while a search runs."""

from __future__ import annotations

import csv
import math
from pathlib import Path

FILE = "cpu.csv"


def cpu_seconds(run: Path) -> dict[int, float]:
    """CPU seconds by proposal. Older runs have none; lines that were torn by a crash are left out."""
    try:
        text = (run / FILE).read_text("utf-8", "replace")
    except OSError:
        return {}
    seconds: dict[int, float] = {}
    for line in csv.reader(text[: text.rfind("\n") + 1].splitlines()):  # a last line without its end is torn
        try:
            number, value = int(line[0]), float(line[1])
        except (ValueError, IndexError):
            continue  # the head, or a torn line that was written on
        if math.isfinite(value):
            seconds[number] = value
    return seconds
