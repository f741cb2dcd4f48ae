"""RUN/cpu.csv: the CPU seconds of every assessment. It differs from run to run, so it is kept outside the journal."""

from __future__ import annotations

import os
from pathlib import Path

from simulator.common.documents import read_bytes
from simulator.common.files import plain_file

FILE = "cpu.csv"
LONGEST = 1 << 30  # bytes: tens of millions of proposals
_HEAD = "proposal,cpu_s\n"


class Spent:
    """A run's cpu.csv, opened for appending.

    Lines are not synced to disk: after a crash some may be missing, and nothing depends on them.
    """

    def __init__(self, run_path: Path) -> None:
        self._path = run_path / FILE
        self._file = open(self._path, "a+b", buffering=0, opener=plain_file)  # noqa: SIM115
        try:
            self._begin()
        except OSError:
            self._file.close()
            raise

    def add(self, proposal: int, cpu_s: float) -> None:
        """Append the CPU time of an assessment. Raises OSError, naming the file, if it cannot be written."""
        self._write(f"{proposal},{cpu_s:.4g}\n")

    def close(self) -> None:
        self._file.close()

    def _begin(self) -> None:
        if self._path.stat().st_size == 0:
            self._write(_HEAD)
            return
        self._file.seek(-1, os.SEEK_END)
        if self._file.read() != b"\n":  # a crash has torn the last line
            self._write("\n")

    def _write(self, text: str) -> None:
        try:
            self._file.write(text.encode())
        except OSError as e:
            raise OSError(e.errno, e.strerror, str(self._path)) from None


def read_spent(run_path: Path) -> dict[int, float]:
    """CPU seconds by proposal; those that are not known are missing, as all are in runs of older releases.

    A proposal that was assessed again after a crash counts once, as it was assessed last.
    """
    try:
        text = read_bytes(run_path / FILE, LONGEST, kept=True).decode("ascii", "replace")
    except FileNotFoundError:
        return {}
    spent: dict[int, float] = {}
    for line in text.splitlines():
        proposal, _, cpu_s = line.partition(",")
        try:
            spent[int(proposal)] = float(cpu_s)
        except ValueError:  # the head, or a line that a crash has torn
            continue
    return spent
