"""Compare two journals of the same search, of which one may be of an older release: same proposals, same figures.

    python tools/same_journal.py OLD NEW

OLD and NEW are journals or run folders. Keys, stages and words of older releases count as today's; digests of lines do
not count.
Prints what was mapped. Exit status 1 at the first line that differs.
"""

from __future__ import annotations

import sys
from collections import Counter
from itertools import zip_longest
from pathlib import Path
from typing import Any

from archive.elite import OLD_KEYS
from archive.journal import entries
from archive.proposal import OLD_STAGES
from simulator.common.json import JsonObject, renamed


def today(line: JsonObject, mapped: Counter[str]) -> JsonObject:
    """The line under today's names; `mapped` counts the names that changed."""
    line = {name: value for name, value in line.items() if name != "check"}
    if isinstance(elite := line.get("elite"), dict):
        mapped.update(f"elite.{old} -> {new}" for old, new in OLD_KEYS.items() if old in elite)
        line["elite"] = renamed(elite, OLD_KEYS)
    if (stage := line.get("stage")) in OLD_STAGES:
        mapped[f"stage {stage} -> {OLD_STAGES[stage]}"] += 1
        line["stage"] = OLD_STAGES[stage]
    if "joint error" in (why := line.get("why") or ""):
        mapped["joint error -> mean error"] += 1
        line["why"] = why.replace("joint error", "mean error")
    return line


def differences(old: Any, new: Any, place: str = "") -> list[str]:
    """Where two JSON values differ, a line each."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = [*old, *(name for name in new if name not in old)]
        return [d for name in names for d in differences(old.get(name), new.get(name), f"{place}.{name}")]
    return [] if old == new else [f"{place.removeprefix('.')}: {old!r} is {new!r}"]


def main(old: Path, new: Path) -> int:
    """Compare the journals; the exit status."""
    mapped: Counter[str] = Counter()
    files = [path / "journal.jsonl" if path.is_dir() else path for path in (old, new)]
    count = 0
    for count, lines in enumerate(zip_longest(*map(entries, files)), 1):
        first, second = (None if line is None else today(line, mapped) for line in lines)
        if found := differences(first, second):
            print(f"line {count} differs", *found, sep="\n  ")
            return 1
    for name, times in mapped.items():
        print(f"{name}: {times} lines")
    print(f"{count} lines: the same proposals and figures")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    raise SystemExit(main(*map(Path, sys.argv[1:])))
