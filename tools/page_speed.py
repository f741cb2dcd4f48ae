"""Print how fast the exported page of a large run opens, and how long each view takes: python tools/page_speed.py.

The runs are the shipped one with its candidates repeated, under new numbers and with slightly changed errors.
"""

from __future__ import annotations

import copy
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from browser import Tab, started
from paths import ROOT

from evolve.draw.view.document import document, run_json
from evolve.draw.view.followed import Followed
from evolve.draw.view.html import pack, page

SIZES = (5_000, 50_000)
REPEATS = 3
ERRORS = ("mean_error", "group_out", "selection_score", "e2e", "ttft", "itl", "worst3")
# Milliseconds of a script until the browser has painted what it did.
PAINTED = """async () => {
    const start = performance.now();
    ACT;
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
    return performance.now() - start;
}"""


def grown(run: dict[str, Any], size: int) -> dict[str, Any]:
    """The run with so many outcomes."""
    rng, columns = random.Random(0), run["candidates"]
    order = [i % len(columns["id"]) for i in range(size)]
    made = {name: [column[i] for i in order] for name, column in columns.items()}
    made["id"] = list(range(size))
    for name in ERRORS:
        made[name] = [None if x is None else x * rng.uniform(1.0, 1.05) for x in made[name]]
    totals = run["totals"] | {"proposals": size}
    return copy.copy(run) | {"candidates": made, "totals": totals}


def main() -> int:
    """Print a line for each size and view."""
    run = run_json(Followed(ROOT / "seeds" / "champion"))
    with tempfile.TemporaryDirectory() as folder, started() as browser:
        for size in SIZES:
            file = Path(folder) / f"{size}.html"
            file.write_text(page().export(pack(document([grown(run, size)], live=False))))
            opened, views = [], dict[str, list[float]]()
            for _ in range(REPEATS):
                tab = Tab(browser)
                start = time.perf_counter()
                tab.open(file)
                opened.append(1000 * (time.perf_counter() - start))
                for key in tab.views():
                    views.setdefault(key, []).append(timed(tab, f"go({{ view: '{key}' }})"))
                views.setdefault("front again", []).append(timed(tab, "go({ view: 'front' })"))
                views.setdefault("select a program", []).append(timed(tab, "select(99)"))
                tab.close()
            print(f"{size:,} outcomes, {file.stat().st_size / 1e6:.1f} MB, medians of {REPEATS}")
            print(f"  open until interactive  {median(opened):6.0f} ms")
            for name, times in views.items():
                print(f"  {name:22}  {median(times):6.0f} ms")
    return 0


def timed(tab: Tab, act: str) -> float:
    """Milliseconds of an action until its effect is painted."""
    took: float = tab.page.evaluate(PAINTED.replace("ACT", act))
    return took


if __name__ == "__main__":
    sys.exit(main())
