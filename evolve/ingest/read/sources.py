"""Folders of experiments: which source files a folder has, and what its name and the manifest next to it tell."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from evolve.ingest.read.manifest import Listed, listed
from evolve.ingest.read.values import Finding, FolderFindings, plain
from simulator.common.errors import InputError
from simulator.serving.traces.formats import TRACES

ROOT = ("exp-config.yaml", "profile.yaml", "vllm.log", "traces.json", "kv_events.jsonl")
RESULTS = ("results", "inference-perf-data")
SUMMARY = "summary_lifecycle_metrics.json"
PER_REQUEST = "per_request_lifecycle_metrics.json"

_STAGE = re.compile(r"stage_([0-9]{1,6})_lifecycle_metrics\.json")
_PARTS = re.compile(r"(?P<model>.+)-tp(?P<tp>[0-9]{1,4})-(?P<workload>.+)", re.DOTALL)
_STAMP = re.compile(r"([0-9]{8}-[0-9]{6})-(.+)", re.DOTALL)
_NUMBER = re.compile(r"([0-9]{1,18})-(.+)", re.DOTALL)
_VARIANT = re.compile(r"(.+?)((?:-[0-9]+)*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SourceName:
    """The parts of a folder's name; all None if it follows neither of the two naming schemes.

    `stamp` is the date and time of the first scheme, `number` the id of the second, `variant` its trailing digits
    (`2-1`). `model` is the slug as written; `group` drops a trailing `-hf`, which names the same model.
    """

    stamp: str | None = None
    number: str | None = None
    model: str | None = None
    tensor_parallel: int | None = None
    workload: str | None = None
    variant: str | None = None

    @property
    def group(self) -> str | None:
        return self.model.removesuffix("-hf") if self.model else None


def parse_name(name: str) -> SourceName:
    """The parts of a folder's name.

    Two schemes: `<YYYYMMDD>-<HHMMSS>-<model>-tp<N>-<workload>` and `<id>-<model>-tp<N>-<workload>-<variant>`. Model
    names contain hyphens and may contain `-tp2-`, so the last `-tp<N>-` counts.
    """
    parts = _PARTS.fullmatch(name)
    if not parts:
        return SourceName()
    model, workload = parts["model"], parts["workload"]
    tensor_parallel = int(parts["tp"])
    if stamp := _STAMP.fullmatch(model):
        return SourceName(stamp=stamp[1], model=stamp[2], tensor_parallel=tensor_parallel, workload=workload)
    if number := _NUMBER.fullmatch(model):
        bare = _VARIANT.fullmatch(workload)
        assert bare, "any text is a workload with or without trailing digits"
        variant = bare[2].removeprefix("-") or None
        return SourceName(None, number[1], number[2], tensor_parallel, bare[1], variant)
    return SourceName(model=model, tensor_parallel=tensor_parallel, workload=workload)


@dataclass(frozen=True, slots=True)
class Folder:
    """One experiment's folder. A missing source is None; `stages` are (k, file) in ascending k.

    `results` is the name of the folder with the load generator's files, for findings about them.
    """

    path: Path
    name: str
    parts: SourceName
    listed: Listed
    exp_config: Path | None
    profile: Path | None
    log: Path | None
    traces: Path | None
    kv_events: Path | None
    config: Path | None
    per_request: Path | None
    summary: Path | None
    stages: tuple[tuple[int, Path], ...]
    results: str
    findings: tuple[Finding, ...]


def _or_trace(path: Path, names: Iterable[str]) -> str:
    """How to give a folder's traces instead, of the host or of a load generator, if it may have some."""
    header = next((name for name in sorted(names) if name.endswith(".yaml")), None)
    data = next((name for name in sorted(names) if name.endswith(".csv")), None)
    if header is None or data is None:
        ending = trace_ending(names)
        return f", or recorded requests with --trace {shown_path(path / f'*{ending}')}" if ending else ""
    return f", or a trace of the host with --tracev2 {shown_path(path / header)} {shown_path(path / data)}"


def trace_ending(names: Iterable[str]) -> str:
    """The ending of the files of these names that may be traces, the first of TRACES; "" if none may be."""
    endings = {Path(name).suffix.lower() for name in names}
    return next((ending for ending in TRACES if ending in endings), "")


def look(path: Path) -> Folder:
    """The sources of one folder. Raises InputError if it is not a folder, cannot be read or has no source."""
    names = _names(path)
    path = _resolved(path)
    findings = FolderFindings()
    # Sources are looked up by exact name, so that case-insensitive file systems find the same ones as others.
    files = {name: _file(path / name, name, findings) for name in ROOT if name in names}
    results, inside = _results(path, names, findings)
    within = {name: path / results / name for name in inside}
    for name in ("config.yaml", PER_REQUEST, SUMMARY):
        files[name] = _file(within[name], f"{results}/{name}", findings) if name in within else None
    stages = _stages(within, results, findings)
    if not stages and not any(files.values()):
        if SUMMARY in names or PER_REQUEST in names:
            raise InputError(f"{shown_path(path)}: is a results folder: name the experiment's folder above it")
        why = "; ".join(f"{f.source} {f.text}" for f in findings)
        held = f"has no source that can be read ({why})" if why else f"contains none of {', '.join(ROOT)}, {results}/"
        raise InputError(f"{shown_path(path)}: {held}: name the folder of an experiment{_or_trace(path, names)}")
    name = plain(path.name)
    parts = parse_name(name)
    if parts.model is None:
        findings.note("folder", "its name is not <time or id>-<model>-tp<N>-<workload>: nothing is taken from the name")
    return Folder(
        path=path,
        name=name,
        parts=parts,
        listed=listed(path, parts.number, findings),
        exp_config=files.get("exp-config.yaml"),
        profile=files.get("profile.yaml"),
        log=files.get("vllm.log"),
        traces=files.get("traces.json"),
        kv_events=files.get("kv_events.jsonl"),
        config=files.get("config.yaml"),
        per_request=files.get(PER_REQUEST),
        summary=files.get(SUMMARY),
        stages=stages,
        results=results,
        findings=tuple(findings),
    )


def find(paths: Iterable[Path]) -> tuple[list[Folder], FolderFindings]:
    """All experiment folders among `paths`, in order, and findings about the choice.

    A folder that only contains experiment folders is expanded to them, sorted by name. A folder given twice counts
    once.
    Raises InputError for a path that is neither, for two folders of the same name, and for no path at all.
    """
    folders: dict[Path, Folder] = {}
    findings = FolderFindings()
    for given in paths:
        for path in _expand(given, findings):
            folder = look(path)
            if folder.path in folders:
                findings.note(folder.name, "is given more than once: read once")
            folders.setdefault(folder.path, folder)
    if not folders:
        raise InputError("no folder is given: name one or more folders of experiments")
    by_name: dict[str, Path] = {}
    for path, folder in folders.items():
        if folder.name in by_name:
            other = shown_path(by_name[folder.name])
            raise InputError(f"{shown_path(path)}: has the same name as {other}, and outputs go by name: rename one")
        by_name[folder.name] = path
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
    others = sorted(n for n in names if (given / n).is_dir() and given / n not in inside)
    few = ", ".join(map(plain, others[:4])) + (", ..." if len(others) > 4 else "")
    besides = f"; not experiments, and left out: {few}" if others else ""
    several = f"{len(inside)} folders of experiments, which are"
    what = several if len(inside) > 1 else "a folder of an experiment, which is"
    text = f"contains {what} read{besides}"
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
        problem = "is a file: name the folder that contains it, or give a trace as --trace FILE"
    except FileNotFoundError:
        problem = "there is no such folder: name the folder of an experiment"
    except (OSError, ValueError) as e:
        why = getattr(e, "strerror", None) or type(e).__name__
        problem = f"cannot be read ({why}): name a folder that can be read"
    raise InputError(f"{shown_path(path)}: {problem}")


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        raise InputError(f"{shown_path(path)}: its symbolic links form a circle: name the folder itself") from None


def _file(path: Path, source: str, findings: FolderFindings) -> Path | None:
    """The path if it is a readable file."""
    if not path.is_file():
        findings.warn(source, "is not a file: left out")
        return None
    if not os.access(path, os.R_OK):
        findings.warn(source, "is not readable (permissions): left out")
        return None
    return path


def _results(path: Path, names: set[str], findings: FolderFindings) -> tuple[str, set[str]]:
    """The name of the results folder and the names in it; of two folders the first that is not empty."""
    listings = {name: _listing(path / name) for name in RESULTS if name in names}
    for name, inside in listings.items():
        if not inside:
            findings.warn(f"{name}/", "is empty, not a folder or not readable: left out")
    filled = [name for name, inside in listings.items() if inside]
    if len(filled) > 1:
        findings.warn(f"{filled[1]}/", f"left out: {filled[0]}/ exists as well")
    return (filled[0], listings[filled[0]]) if filled else (RESULTS[0], set())


def _stages(within: dict[str, Path], results: str, findings: FolderFindings) -> tuple[tuple[int, Path], ...]:
    stages: dict[int, Path] = {}
    for name in sorted(within):
        if (match := _STAGE.fullmatch(name)) and (file := _file(within[name], f"{results}/{name}", findings)):
            if int(match[1]) in stages:
                findings.warn(f"{results}/{name}", f"is a second report of stage {int(match[1])}: left out")
            stages.setdefault(int(match[1]), file)
    missing = sorted(set(range(max(stages, default=-1) + 1)) - set(stages))
    if missing:
        few = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        findings.warn(f"{results}/", f"no report of stage {few}", len(missing))
    return tuple(sorted(stages.items()))
