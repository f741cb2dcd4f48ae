"""The JSON Schema describes the JSON of commands, also of runs that it was not inferred from."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import tiny_world
from commands import commands
from json_schema import samples, schema
from jsonschema import Draft202012Validator

# resume prints what the command that it continues prints, pilot what `run --repeats` prints; bench takes minutes.
ELSEWHERE = {"resume", "pilot", "bench"}
SLOW = {"validate"}  # among the samples of `make docs` alone


def complaints(made: dict[str, Any], name: str, value: Any) -> list[str]:
    """Where a command's JSON differs from the schema, keys included that the schema does not have."""
    closed = deepcopy(made["$defs"])
    parts = list(closed.values())
    while parts:
        part = parts.pop()
        if "properties" in part:
            part["additionalProperties"] = False
        parts += [*part.get("properties", {}).values(), *part.get("anyOf", ())]
        parts += [part[key] for key in ("items", "additionalProperties") if isinstance(part.get(key), dict)]
    validator = Draft202012Validator({"$ref": f"#/$defs/{quote(name)}", "$defs": closed})
    return [f"{name} {list(error.absolute_path)}: {error.message[-200:]}" for error in validator.iter_errors(value)]


@pytest.mark.slow  # every command with --json, twice
def test_the_schema_describes_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another load, seed and budget."""
    made = schema(samples(tmp_path / "one", quick=True))
    Draft202012Validator.check_schema(made)
    monkeypatch.setattr(tiny_world, "DATA", tiny_world.DATA.replace("prompt_len: 300", "prompt_len: 420"))
    other = samples(tmp_path / "other", quick=True, budget=9, seed=0)
    wrong = [line for name, values in other.items() for v in values for line in complaints(made, f"evolve {name}", v)]
    assert not wrong
    with_json = {name.split()[0] for name, c in commands() if any("--json" in option.opts for option in c.params)}
    assert with_json - ELSEWHERE - SLOW <= {name.split(" ")[1] for name in made["$defs"] if " " in name}


def test_a_schema_knows_types_null_names_of_data_and_shared_objects() -> None:
    spread = {"median": 1, "low": 0, "high": 2, "values": []}
    made = schema({"x": [{"a": [1, None], "s": spread, "baselines": {"n": 1.5}}, {"a": [], "s": None}]})
    assert made["$defs"]["evolve x"]["properties"] == {
        "a": {"type": "array", "items": {"type": ["null", "number"]}},
        "s": {"anyOf": [{"$ref": "#/$defs/spread"}, {"type": "null"}]},
        "baselines": {"type": "object", "description": "by NAME", "additionalProperties": {"type": "number"}},
    }
    good = {"a": [2.5], "s": spread, "baselines": {"any name": 2}}
    assert not complaints(made, "evolve x", good)
    for bad in ({"a": ["text"]}, {"b": 1}, {"s": spread | {"low": "0"}}, {"baselines": {"n": None}}):
        assert complaints(made, "evolve x", good | bad), bad
