"""Small files of a folder as plain values: JSON and YAML, capped in size, so that no file can hang or exhaust us.

Messages name the file as it is called inside its folder. InputError, one line, is all that comes of a bad file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from evaluator.experiments import parse_yaml
from simulator.errors import InputError

MOST_YAML_BYTES = 256 * 1024  # the largest of the published ones has 1.3 kB
MOST_JSON_BYTES = 16 * 1024 * 1024  # reports have 5 kB; a manifest grows with the experiments
MOST_VALUES = 100_000  # of a YAML file; settings have a hundred
DEEPEST = 50  # levels of nesting; reports and settings have five


def read_capped(path: Path, source: str, most: int) -> bytes:
    """The file's bytes. Raises InputError where it cannot be read, is no file, is empty or has more than `most`."""
    if not path.is_file():
        raise InputError(f"{source}: is not a file: put the file itself there")
    try:
        with path.open("rb") as f:
            data = f.read(most + 1)
    except OSError as e:
        raise InputError(
            f"{source}: cannot be read ({e.strerror or type(e).__name__}): check its permissions"
        ) from None
    if len(data) > most:
        raise InputError(f"{source}: has more than {most:,} bytes: this is not the file it should be")
    if not data.strip():
        raise InputError(f"{source}: is empty: copy it again")
    return data


def read_json(path: Path, source: str) -> Any:
    """Any JSON value; NaN and Infinity come as floats, to be judged where they stand."""
    data = read_capped(path, source, MOST_JSON_BYTES)
    try:
        return json.loads(data)
    except RecursionError:
        problem = "it is nested too deeply"
    except UnicodeDecodeError:
        problem = "it is not UTF-8 text"
    except ValueError as e:  # also integers of thousands of digits
        problem = str(e)
    raise InputError(" ".join(f"{source}: not valid JSON, {problem}: copy it again".split()))


def read_yaml(path: Path, source: str) -> Any:
    """Plain values of safe YAML. Aliases count as what they stand for, so that a small file cannot mean a huge one."""
    data = read_capped(path, source, MOST_YAML_BYTES)
    _check_shape(data, source)
    return parse_yaml(data, source, "copy it again")


def _check_shape(data: bytes, source: str) -> None:
    """Raises InputError for values nested too deeply, or too many once aliases are written out."""
    sizes: dict[str, int] = {}  # values under each anchor, aliases written out
    open_: list[tuple[str | None, int]] = []  # anchor of every collection around us, and the total before it
    total = 0
    try:
        for event in yaml.parse(data, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if isinstance(event, yaml.CollectionStartEvent):
                open_.append((event.anchor, total))
                total += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, before = open_.pop()
                if anchor:
                    sizes[anchor] = total - before
            elif isinstance(event, yaml.AliasEvent):
                total += sizes.get(event.anchor or "", MOST_VALUES + 1)  # not closed yet: it would hold itself
            elif isinstance(event, yaml.ScalarEvent):
                total += 1
                if event.anchor:
                    sizes[event.anchor] = 1
            if len(open_) > DEEPEST or total > MOST_VALUES:
                why = f"more than {DEEPEST} levels" if len(open_) > DEEPEST else f"more than {MOST_VALUES:,} values"
                raise InputError(f"{source}: holds {why}: this is not the file it should be")
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        return  # parse_yaml says it, with the line
