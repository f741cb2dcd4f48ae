"""Folders of experiments: their source files, and facts in their names and in the manifest next to them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from evolve.ingest.read.values import Finding, FolderFindings, Values, plain, read_json
from simulator.common.errors import InputError
from simulator.common.text import listed
from simulator.serving.traces.formats import TRACES

ROOT = ("exp-config.yaml", "profile.yaml", "vllm.log", "traces.json", "kv_events.jsonl")
RESULTS = ("results", "inference-perf-data")
SUMMARY = "summary_lifecycle_metrics.json"
PER_REQUEST = "per_request_lifecycle_metrics.json"
IN_RESULTS = ("config.yaml", PER_REQUEST, SUMMARY)
MANIFEST = "experiments.json"

_STAGE = re.compile(r"stage_([0-9]{1,6})_lifecycle_metrics\.json")
# Two schemes: <YYYYMMDD>-<HHMMSS>-<model>-tp<N>-<workload> and <id>-<model>-tp<N>-<workload>-<variant>. Model names
# contain hyphens and may contain -tp2-, so the last -tp<N>- counts.
_NAME = re.compile(
    r"(?:(?P<stamp>[0-9]{8}-[0-9]{6})-|(?P<number>[0-9]{1,18})-)?"
    r"(?P<model>.+)-tp(?P<tensor_parallel>[0-9]{1,4})-(?P<workload>.+)",
    re.DOTALL,
)
_HARDWARE = re.compile(r"[\w .+-]{1,60}")


@dataclass(frozen=True, slots=True)
class SourceName:
    """The parts of a folder's name; all None if it follows neither of the two naming schemes.

    `stamp` is the date and time of the first scheme, `number` the id of the second. `model` is the slug as written;
    `group` drops a trailing `-hf`, which names the same model.
    """

    stamp: str | None = None
    number: str | None = None
    model: str | None = None
    tensor_parallel: int | None = None
    workload: str | None = None

    @property
    def group(self) -> str | None:
        return self.model.removesuffix("-hf") if self.model else None


def parse_name(name: str) -> SourceName:
    """The parts of a folder's name; a numbered one loses the variant, digits at the end of its workload."""
    match = _NAME.fullmatch(name)
    if match is None:
        return SourceName()
    stamp, number, model, tensor_parallel, workload = match.groups()
    if number:
        workload = re.sub(r"(?<!^)(-[0-9]+)+\Z", "", workload)
    return SourceName(stamp, number, model, int(tensor_parallel), workload)


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


def manifest_entry(folder: Path, number: str | None, findings: FolderFindings) -> Listed:
    """The manifest's entry for a folder, looked up by the number its name begins with or by the whole name."""
    path = folder.parent / MANIFEST
    if not path.exists():
        return Listed()
    try:
        raw = read_json(path, MANIFEST)
    except InputError as e:
        findings.warn(MANIFEST, f"ignored: {e}")
        return Listed()
    if not isinstance(raw, list):
        findings.warn(MANIFEST, "is not a list of experiments: ignored")
        return Listed()
    entries = [e for e in raw if isinstance(e, Mapping) and _id(e.get("id")) in {folder.name, number} - {None}]
    if not entries:
        findings.note(MANIFEST, "does not list this experiment")
        return Listed()
    values = Values(MANIFEST, entries[0], findings)
    if len(entries) > 1:
        findings.warn(MANIFEST, "lists this experiment more than once: using the first entry", len(entries))
    hardware = values.text("hw")
    if hardware and not _HARDWARE.fullmatch(hardware):
        values.wrong("hw", "the name of a GPU", hardware)
        hardware = None
    if values.text("safe") not in (None, "safe"):
        findings.warn(MANIFEST, "does not mark this experiment as safe")
    return Listed(
        model=values.model("model"),
        hardware=hardware,
        precision=values.text("precision"),
        cpu_offload=values.flag("cpu_offload"),
        gpu_mem=values.number("gpu_mem", above=0, most=1),
        data_parallel=values.whole("dp", least=1),
    )


def _id(value: object) -> str | None:
    """An id as text; None for other values, such as numbers too large to print."""
    if isinstance(value, int) and abs(value) < 10**18:
        return f"{value:d}"
    return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Folder:
    """One experiment's folder: its source files by their names, and the reports of stages as (k, file) in ascending k.

    `results` is the name of the folder with the load generator's files, for findings about them.
    """

    path: Path
    name: str
    parts: SourceName
    listed: Listed
    files: Mapping[str, Path]
    stages: tuple[tuple[int, Path], ...]
    results: str
    findings: tuple[Finding, ...]


def look(path: Path) -> Folder:
    """The sources of one folder. Raises InputError if it is not a folder, cannot be read or has no source."""
    names = _names(path)
    try:
        path = path.resolve()
    except (OSError, RuntimeError):
        raise InputError(f"{shown_path(path)}: its symbolic links form a circle: name the folder itself") from None
    findings = FolderFindings()
    # Sources are looked up by exact name, so that case-insensitive file systems find the same ones as others.
    places = {name: name for name in ROOT if name in names}
    results, inside = _results(path, names, findings)
    places |= {name: f"{results}/{name}" for name in IN_RESULTS if name in inside}
    files = {name: path / place for name, place in places.items() if _readable(path / place, place, findings)}
    stages = _stages(path, results, inside, findings)
    if not stages and not files:
        raise InputError(f"{shown_path(path)}: {_no_source(path, names, results, findings)}")
    name = plain(path.name)
    parts = parse_name(name)
    if parts.model is None:
        findings.note("folder", "its name is not <time or id>-<model>-tp<N>-<workload>: nothing is taken from the name")
    entry = manifest_entry(path, parts.number, findings)
    return Folder(path, name, parts, entry, files, stages, results, tuple(findings))


def _no_source(path: Path, names: set[str], results: str, findings: FolderFindings) -> str:
    """The reason why a folder is no experiment's, and the remedy."""
    if SUMMARY in names or PER_REQUEST in names:
        return "is a results folder: name the experiment's folder above it"
    why = f"contains none of {', '.join(ROOT)}, {results}/"
    if findings:
        why = f"has no readable source ({'; '.join(f'{f.source} {f.text}' for f in findings)})"
    return f"{why}: name the folder of an experiment{_or_trace(path, names)}"


def _or_trace(path: Path, names: Iterable[str]) -> str:
    """The option for a folder's traces, of the host or of a load generator, if it may have some."""
    header = min((name for name in names if name.endswith(".yaml")), default=None)
    data = min((name for name in names if name.endswith(".csv")), default=None)
    if header and data:
        return f", or a trace of the host with --tracev2 {shown_path(path / header)} {shown_path(path / data)}"
    ending = trace_ending(names)
    return f", or recorded requests with --trace {shown_path(path / f'*{ending}')}" if ending else ""


def trace_ending(names: Iterable[str]) -> str:
    """The ending of the files of these names that may be traces, the first of TRACES; "" if none may be."""
    endings = {Path(name).suffix.lower() for name in names}
    return next((ending for ending in TRACES if ending in endings), "")


def find(paths: Iterable[Path]) -> tuple[list[Folder], FolderFindings]:
    """All experiment folders among `paths`, in order, and findings about the choice.

    A folder that only contains experiment folders is expanded to them, sorted by name. A repeated folder counts once.
    Raises InputError for a path that is neither, for two folders of the same name, and for no path at all.
    """
    folders: dict[str, Folder] = {}
    findings = FolderFindings()
    for given in paths:
        for folder in map(look, _expand(given, findings)):
            other = folders.setdefault(folder.name, folder)
            if other is folder:
                continue
            if other.path != folder.path:
                mine, theirs = shown_path(folder.path), shown_path(other.path)
                raise InputError(f"{mine}: has the same name as {theirs}, and outputs go by name: rename one")
            findings.note(folder.name, "is given more than once: read once")
    if not folders:
        raise InputError("no folder is given: name one or more folders of experiments")
    return list(folders.values()), findings


def shown_path(path: Path) -> str:
    """A path given by the user, as one line of a message."""
    return plain(str(path)) or "."


def _expand(given: Path, findings: FolderFindings) -> list[Path]:
    names = _names(given)
    if _is_experiment(names) or SUMMARY in names or PER_REQUEST in names:
        return [given]
    inside = [given / name for name in sorted(names) if _is_experiment(_listing(given / name))]
    if not inside:
        return [given]
    others = [n for n in sorted(names) if (given / n).is_dir() and given / n not in inside]
    text = f"stands for the experiment folders in it ({len(inside)})"
    if others:
        text += f"; ignoring {listed([plain(name) for name in others], 4)}, which are no experiments"
    findings.note(plain(given.name) or "folder", text, len(inside))
    return inside


def _is_experiment(names: set[str]) -> bool:
    return not names.isdisjoint((*ROOT, *RESULTS))


def _listing(path: Path) -> set[str]:
    try:
        return set(os.listdir(path))
    except OSError:
        return set()


def _names(path: Path) -> set[str]:
    try:
        return set(os.listdir(path))
    except NotADirectoryError:
        problem = "is a file: name the folder of the run that contains it (--trace FILE is for a benchmark's trace)"
    except FileNotFoundError:
        problem = "there is no such folder: name the folder of an experiment"
    except (OSError, ValueError) as e:
        why = getattr(e, "strerror", None) or type(e).__name__
        problem = f"cannot be read ({why}): name a folder that can be read"
    raise InputError(f"{shown_path(path)}: {problem}")


def _readable(path: Path, source: str, findings: FolderFindings) -> bool:
    """True for a file that may be read; else there is a finding."""
    if not path.is_file():
        findings.warn(source, "is not a file: ignored")
    elif not os.access(path, os.R_OK):
        findings.warn(source, "is not readable (permissions): ignored")
    else:
        return True
    return False


def _results(path: Path, names: set[str], findings: FolderFindings) -> tuple[str, set[str]]:
    """The name of the results folder and the names in it; of two folders the first that is not empty."""
    listings = {name: _listing(path / name) for name in RESULTS if name in names}
    filled = [name for name, inside in listings.items() if inside]
    for name in listings:
        if name not in filled:
            findings.warn(f"{name}/", "is empty, not a folder or not readable: ignored")
    for name in filled[1:]:
        findings.warn(f"{name}/", f"ignored: {filled[0]}/ exists as well")
    return (filled[0], listings[filled[0]]) if filled else (RESULTS[0], set())


def _stages(path: Path, results: str, inside: set[str], findings: FolderFindings) -> tuple[tuple[int, Path], ...]:
    stages: dict[int, Path] = {}
    for name in sorted(inside):
        match, source = _STAGE.fullmatch(name), f"{results}/{name}"
        if match and _readable(path / source, source, findings):
            number = int(match[1])
            if number in stages:
                findings.warn(source, f"is a second report of stage {number}: ignored")
            stages.setdefault(number, path / source)
    missing = [str(k) for k in range(max(stages, default=-1)) if k not in stages]
    findings.warn(f"{results}/", f"no report of stage {listed(missing, 8)}", len(missing))
    return tuple(sorted(stages.items()))
