"""The manifest `experiments.json` next to a set of folders: the GPU, share of its memory and precision of each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from evolve.ingest.read.files import read_json
from evolve.ingest.read.values import FolderFindings, Values
from simulator.common.errors import InputError

FILE = "experiments.json"
_HARDWARE = re.compile(r"[\w .+-]{1,60}")


@dataclass(frozen=True, slots=True)
class Listed:
    """The manifest's entry for one experiment; None where it says nothing.

    `gpu_mem` is the fraction of the GPU's memory that the engine may use, `data_parallel` the number of replicas.
    """

    model: str | None = None
    hardware: str | None = None
    precision: str | None = None
    cpu_offload: bool | None = None
    gpu_mem: float | None = None
    data_parallel: int | None = None


def listed(folder: Path, number: str | None, findings: FolderFindings) -> Listed:
    """The manifest's entry for a folder, looked up by the number its name begins with or by the whole name."""
    path = folder.parent / FILE
    if not path.exists():
        return Listed()
    try:
        raw = read_json(path, FILE)
    except InputError as e:
        findings.warn(FILE, f"left out: {e}")
        return Listed()
    if not isinstance(raw, list):
        findings.warn(FILE, "is not a list of experiments: left out")
        return Listed()
    ids = {folder.name, number} - {None}
    entries = [e for e in raw if isinstance(e, Mapping) and isinstance(e.get("id"), str | int) and _id(e["id"]) in ids]
    if not entries:
        findings.note(FILE, "does not list this experiment")
        return Listed()
    values = Values(FILE, entries[0], findings)
    if len(entries) > 1:
        findings.warn(FILE, "lists this experiment more than once: the first entry is used", len(entries))
    gpu_mem = values.number("gpu_mem", above=0)
    if gpu_mem is not None and gpu_mem > 1:
        values.wrong("gpu_mem", "a fraction", gpu_mem)
        gpu_mem = None
    hardware = values.text("hw")
    if hardware and not _HARDWARE.fullmatch(hardware):
        values.wrong("hw", "the name of a GPU", hardware)
        hardware = None
    if values.text("safe") not in (None, "safe"):
        findings.warn(FILE, "does not mark this experiment as safe")
    return Listed(
        model=values.model("model"),
        hardware=hardware,
        precision=values.text("precision"),
        cpu_offload=values.flag("cpu_offload"),
        gpu_mem=gpu_mem,
        data_parallel=values.whole("dp", least=1),
    )


def _id(value: str | int) -> str:
    return value if isinstance(value, str) else f"{value:d}" if abs(value) < 10**18 else ""
