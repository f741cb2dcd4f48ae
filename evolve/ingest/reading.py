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
    """Plain values of safe YAML. Aliases are refused: settings have none, and they multiply without bound."""
    data = read_capped(path, source, MOST_YAML_BYTES)
    _check_shape(data, source)
    return parse_yaml(data, source, "copy it again")


def _check_shape(data: bytes, source: str) -> None:
    depth = 0
    try:
        for event in yaml.parse(data, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if isinstance(event, yaml.AliasEvent):
                mark = event.start_mark
                place = f"line {mark.line + 1}: " if mark else ""
                raise InputError(f"{source}: {place}a YAML alias: write the value out")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise InputError(f"{source}: nested more than {DEEPEST} levels deep: this is not the file it should be")
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        return  # parse_yaml says it, with the line
