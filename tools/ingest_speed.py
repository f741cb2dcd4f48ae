"""How fast `evolve ingest` is, and in how much memory: a synthetic run with 300 MB of traces, made and ingested.

    python tools/ingest_speed.py --megabytes 300 --out build/traces

Three ways: traces.json alone (with exp-config.yaml), all but the client's rows, and the whole folder. Exit status 1 if either fails or takes 1 GiB.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

NAME = "20260101-000000-tiny-llama-tp1-general"
MOST = 2**30  # bytes of memory
READ = ("traces.json", "kv_events.jsonl", "results/per_request_lifecycle_metrics.json")
ALONE = ("traces.json", "exp-config.yaml")
SERVER = (*ALONE, "kv_events.jsonl", "vllm.log", "profile.yaml", "results/config.yaml")


@dataclass(frozen=True)
class Measured:
    """One call of `evolve ingest`: bytes it read, its seconds and the peak of its resident memory in bytes."""

    read: int
    seconds: float
    peak: int
    tables: dict[str, int]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=300, help="size of traces.json, roughly")
    parser.add_argument("--out", type=Path, default=Path("build/traces"), help="where the synthetic run is kept")
    args = parser.parse_args()
    folder = args.out.resolve() / f"{args.megabytes:g}-mb" / NAME
    if not (folder / "vllm.log").exists():  # written last
        write(folder, args.megabytes)
    failed = False
    print(f"{'read':24} {'MB':>7} {'s':>7} {'MB/s':>7} {'peak MB':>8}  rows of tables")
    with tempfile.TemporaryDirectory() as home:
        ways = {
            "traces.json alone": part(folder, ALONE, Path(home) / "alone"),
            "without client rows": part(folder, SERVER, Path(home) / "server"),
            "the whole folder": folder,
        }
        for what, source in ways.items():
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:  # its only child is measured
                m = alone.submit(measure, source, Path(home) / what.replace(" ", "-")).result()
            tables = ", ".join(f"{name} {rows:,}" for name, rows in m.tables.items())
            mb = m.read / 1e6
            print(
                f"{what:24} {mb:7.0f} {m.seconds:7.1f} {mb / m.seconds:7.1f} {m.peak / 1e6:8.0f}  {tables}", flush=True
            )
            failed |= m.peak >= MOST
    if failed:
        print(f"more than {MOST / 1e6:.0f} MB of memory")
    return 1 if failed else 0


def part(folder: Path, names: tuple[str, ...], home: Path) -> Path:
    """A folder of the same name with some of the sources."""
    for name in names:
        path = home / NAME / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(folder / name)
    return home / NAME


def write(folder: Path, megabytes: float) -> None:
    """In a process of its own, so that its memory is not counted."""
    engine = Path(__file__).with_name("trace_engine.py")
    subprocess.run([sys.executable, str(engine), "--megabytes", str(megabytes), "--out", str(folder)], check=True)


def measure(folder: Path, out: Path) -> Measured:
    """Raises CalledProcessError where the call fails."""
    command = [sys.executable, "-m", "evolve", "ingest", str(folder), "--out", str(out)]
    options = ["--hardware", "H100-SXM-80GB", "--workers", "1", "--quiet", "--json"]
    begun = time.monotonic()
    told = json.loads(subprocess.run([*command, *options], check=True, stdout=subprocess.PIPE).stdout)
    seconds = time.monotonic() - begun
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
    read = sum(os.path.getsize(folder / name) for name in READ if (folder / name).exists())
    return Measured(read, seconds, peak, told["runs"][0]["tables"])


if __name__ == "__main__":
    sys.exit(main())
