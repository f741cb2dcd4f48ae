"""Mutations of the files that commands read: a wrong value, key, number, line, check or byte at a random place.

`damaged_files` are those of a folder, each with a command that reads it. A journal's checks may be removed, or computed
again, so that the content is wrong and the checks are right.
"""

from __future__ import annotations

import copy
import json
import lzma
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import tiny_world
import yaml

from archive.journal import _CHECK, _END, _digest
from evolve.cli import run_command
from evolve.summary.result import read_report
from simulator.serving.known import known_models
from simulator.serving.model import reread

HUGE = 10**400
CONTROL = "a\x1b[31mb\u202ec\x07"
WRONG: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        1,
        7,
        HUGE,
        -HUGE,
        2**53,
        2**64,
        1e308,
        -1e308,
        0.5,
        float("nan"),
        float("inf"),
        -float("inf"),
    ),
    *("", "x", CONTROL, [], {}, [[]], [None], [1, 2], {"x": 1}, "scored", "rejected", "1/propose/8", "x" * 100_000),
)
KINDS = ("drop", "wrong", "wrong", "wrong", "foreign", "doubled", "swapped", "cut", "bytes", "empty", "deep", "control")


# Commands that read the file of this name, in a folder that is written {}. BEST is the champion of run; REPORT
# takes half a minute.
READERS = """
run/journal.jsonl: archive {}/run ; archive {}/run --json ; archive {}/run --by proposer ; show {}/run:BEST --explain
  view {}/run --json ; export {}/run --to latex ; export {}/run --to json ; predict {}/run:BEST --experiments {}/data.yaml
  fit --blend {}/run --top 2 ; plot {}/run --kind history --out {}/p.svg ; resume {}/run --workers 1 --quiet
run/report.json: list --runs {} ; archive {}/run ; view {}/run --json ; export {}/run --to latex ; REPORT {}/run
  plot {}/run --kind fit --out {}/p.svg ; plot {}/run --kind front --out {}/p.svg
run/run.json: list --runs {} ; show {}/run:BEST ; view {}/run --json ; predict {}/run:BEST --experiments {}/data.yaml
  resume {}/run --workers 1 --quiet
run/config.yaml: archive {}/run ; view {}/run --json ; fit --blend {}/run --top 2 ; show {}/run:BEST
run/baseline_errors.json: resume {}/run --workers 1 --quiet
run/trust.json: predict {}/run:BEST --experiments {}/data.yaml ; view {}/run --json
run/validate.jsonl: archive {}/run ; view {}/run --json ; REPORT {}/run
run/validate.json: view {}/run --json ; REPORT {}/run
run/cpu.csv: view {}/run --json
repeats/repeats.json: resume {}/repeats --workers 1 --quiet ; view {}/repeats --json
repeats/seed-1/report.json: resume {}/repeats --workers 1 --quiet ; view {}/repeats --json
recorded/journal.jsonl: archive {}/recorded --by proposer ; view {}/recorded --json ; llm prompt {}/recorded 9 --sent
  llm prompt {}/recorded 9 --answer ; show {}/recorded:9 ; plot {}/recorded --kind history --out {}/p.svg
mine.json: show {}/mine.py --explain ; predict {}/mine.py --experiments {}/data.yaml
data.yaml: predict champion --experiments {}/data.yaml ; predict {}/mine.py --experiments {}/data.yaml --json
tiny.yaml: run --config {}/tiny.yaml --budget 1 --workers 1 --quiet --out {}/new
models/mine.json: list ; model show mine ; predict champion --model mine --hardware H100
"""
REPORT = "report --only accuracy,models --json"
SELDOM = 20  # mutations of a file for one REPORT


def damaged_files(home: Path, rng: random.Random, count: int) -> Iterator[tuple[str, list[str]]]:
    """What was done to a file, and the words of a command that reads it, so many times."""
    sources, folder = home / "sources", home / "mutated"
    if not sources.exists():
        _make(sources)
    os.environ["EVOLVE_MODELS"] = str(folder / "models")
    text = READERS.strip().replace("\n  ", " ; ").replace("BEST", _best(sources / "run"))
    readers = {name: rest.split(" ; ") for name, rest in (line.split(": ", 1) for line in text.splitlines())}
    others = [(sources / name).read_bytes() for name in readers]
    for _ in range(count):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(sources, folder)
        name = rng.choice(list(readers))
        what = mutate(folder / name, others, rng)
        command = rng.choice(
            [c for c in readers[name] if "REPORT" not in c or rng.random() < 1 / SELDOM] or readers[name]
        )
        reread()  # the models in the folder
        yield f"{name} {what}: {command}", command.replace("REPORT", REPORT).replace("{}", str(folder)).split()


def _make(home: Path) -> None:
    """Files to damage: a validated run, repeats, a run of language models, a fitted program, a model of one's own."""
    home.mkdir()
    config = tiny_world.write(home, **tiny_world.BRIEF)
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        run = tiny_world.run(config, home / "run", "--budget", 12)
        tiny_world.run(config, home / "repeats", "--budget", 4, "--repeats", 2)
        for command in (
            f"validate {run} --budget 3 --workers 1 --quiet",
            f"fit {run}:{_best(run)} --experiments {home}/data.yaml --out {home}/mine.py",
        ):
            assert run_command(command.split()) == 0
    recorded = Path(shutil.copytree(Path("seeds/recorded"), home / "recorded"))
    packed = recorded / "journal.jsonl.xz"
    packed.with_suffix("").write_bytes(lzma.decompress(packed.read_bytes()))
    packed.unlink()
    (home / "models").mkdir()
    entry = {"id": "mine", "config": known_models()["llama-2-7b"]["config"]}
    (home / "models" / "mine.json").write_text(json.dumps(entry))


def _best(run: Path) -> str:
    """The number of a run's champion."""
    return str(read_report(run / "report.json").champion.id)


def mutate(path: Path, others: Sequence[bytes], rng: random.Random) -> str:
    """Change a file at random, and return what was done. `others`: the bytes of files whose content may take its
    place."""
    kind = rng.choice(KINDS)
    data = path.read_bytes()
    if kind in ("drop", "wrong", "control", "swapped", "doubled") or path.suffix == ".jsonl":
        return _values(path, data, kind, others, rng)
    path.write_bytes(_bytes(data, kind, others, rng))
    return kind


def _bytes(data: bytes, kind: str, others: Sequence[bytes], rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    changed: dict[str, Callable[[], bytes]] = {
        "foreign": lambda: rng.choice(others),
        "cut": lambda: data[:at],
        "bytes": lambda: data[:at] + rng.choice((b"\xff\xfe", b"\x00", b"\x1b[2J", b"\xc3")) + data[at:],
        "empty": lambda: b"",
        "deep": lambda: data[:at] + b"[" * 10_000 + data[at:],
    }
    return changed[kind]()


def _values(path: Path, data: bytes, kind: str, others: Sequence[bytes], rng: random.Random) -> str:
    """Change a value, of one line of a journal, and write the file again."""
    if path.suffix == ".jsonl":
        return _journal(path, data, kind, others, rng)
    if path.suffix == ".json":
        value = _changed(json.loads(data), kind, rng)
        path.write_text(json.dumps(value))
    else:
        value = _changed(yaml.safe_load(data), kind, rng)
        path.write_text(yaml.safe_dump(value, allow_unicode=False))
    return kind


def _journal(path: Path, data: bytes, kind: str, others: Sequence[bytes], rng: random.Random) -> str:
    """Change a line; then the checks stay, are removed, or are computed again."""
    lines = data.splitlines()
    at = rng.randrange(len(lines))
    checks = rng.choice(("kept", "removed", "right", "right"))
    bare = [{key: value for key, value in json.loads(line).items() if key != "check"} for line in lines]
    texts = [json.dumps(value, separators=(",", ":")).encode() for value in bare]
    match kind:
        case "doubled":
            texts.insert(at, texts[at])
        case "swapped":
            texts[at - 1], texts[at] = texts[at], texts[at - 1]
        case "drop" | "wrong" | "control":
            texts[at] = json.dumps(_changed(bare[at], kind, rng), separators=(",", ":")).encode()
        case _:
            texts[at] = _bytes(texts[at], kind, others, rng)
    if checks == "kept":
        path.write_bytes(b"\n".join([*lines[:at], *texts[at:]]) + b"\n")
    elif checks == "removed":
        path.write_bytes(b"\n".join(texts) + b"\n")
    else:
        _chain(path, texts)
    return f"{kind}, line {at + 1}, checks {checks}"


def _chain(path: Path, texts: Sequence[bytes]) -> None:
    """Write lines with right checks."""

    check, written = b"", b""
    for text in texts:
        check = _digest(check, text[:-1] + b"}")
        written += text[:-1] + _CHECK + check + _END + b"\n"
    path.write_bytes(written)


def _changed(value: Any, kind: str, rng: random.Random) -> Any:
    """A copy of plain values with one of them changed."""
    whole = copy.deepcopy(value)
    places = list(_places(whole))
    if not places:
        return rng.choice(WRONG)
    holder, key = rng.choice(places)
    match kind:
        case "drop":
            del holder[key]
        case "doubled" if isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        case "swapped":
            other, its = rng.choice(places)
            holder[key], other[its] = copy.deepcopy(other[its]), copy.deepcopy(holder[key])
        case "control" if isinstance(holder[key], str):
            holder[key] += CONTROL
        case "control" if isinstance(holder, dict):
            holder[CONTROL] = holder.pop(key)
        case _:
            holder[key] = rng.choice(WRONG)
    return whole


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place of a value in a list or mapping; of long lists, the ends."""
    found: list[tuple[Any, Any]] = []
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    for key in keys if len(keys) < 40 else [*keys[:10], *keys[-10:]]:
        found.append((value, key))
        found += _places(value[key])
    return found
