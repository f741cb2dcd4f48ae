"""Ease of use: the input of a first prediction, its time, and the files that are emitted for the host."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import yaml

from evolve.host.emit import accuracy, program_for, provenance
from evolve.output.columns import figures, integers, words, wrapped
from evolve.output.terminal import command
from evolve.report.constants import kernel_fields
from evolve.report.dimension import CARE, GOOD, POOR, Dimension, Exhibit
from evolve.report.evidence import Evidence
from evolve.run.program import Source
from simulator.common.errors import InputError
from simulator.common.files import write_text
from simulator.common.json import JsonObject
from simulator.common.secrets import without_secrets
from simulator.language.ir import Field, nodes
from simulator.schema import KERNELS
from simulator.serving.bundled import experiments_from_mapping
from simulator.serving.gpu import hardware_table
from simulator.serving.known import GPU
from simulator.serving.spec import Spec
from translate_go import TARGETS, emit

NAME = "ease"
MOST_FIELDS, MOST_S = 10, 60.0
RULE = (
    f"good: a first prediction takes one command, one file of at most {MOST_FIELDS} values and {MOST_S:g} seconds, "
    "and no measurement; with care: it also needs kernels that were timed on the GPU; poor: it takes more"
)
# A plan, nothing of which can be left out.
PLAN: JsonObject = yaml.safe_load(f"""
version: 1
experiments:
- id: plan
  model: llama-3.1-8b
  hardware: {GPU}
  workload: {{name: chat, stages: [{{rate: 4.0, duration_s: 60.0}}], prompt_len: 500, output_len: 200}}
""")


def ease(evidence: Evidence) -> Dimension:
    source, needed = evidence.subject.source, required(PLAN)
    seconds = first_prediction_s(source)
    kernels = kernel_fields(source.complete)
    few = len(needed) <= MOST_FIELDS and seconds is not None and seconds <= MOST_S
    level = POOR if not few else CARE if kernels else GOOD
    took = "fails" if seconds is None else f"takes {seconds:.0f} s, process start and replay included"
    sentence = (
        f"A first prediction needs one command and {took}. A steady load takes {len(_options())} options, any other "
        f"one file of {len(needed)} values."
    )
    if kernels:
        sentence += f" It reads {len(kernels)} fields of measured kernels, for which {_with_tables()} GPUs have tables."
    exhibits = (_plan(needed, source, seconds), _fields(evidence), _go(source))
    return Dimension.of(NAME, "Ease of use", (level, sentence), RULE, exhibits)


def required(plan: JsonObject) -> list[str]:
    """The keys of an experiments file that cannot be left out of `plan`, dotted, in its order.

    `[]` is an item of a list.
    """
    needed = [path for path in _leaves(plan) if not _reads(_without(plan, path))]
    return ["".join("[]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".") for path in needed]


def _leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    inner = [leaf for key, child in children for leaf in _leaves(child, (*path, key))]
    yield from inner or [path]


def _without(plan: JsonObject, path: tuple[str | int, ...]) -> JsonObject:
    changed = copy.deepcopy(plan)
    at: Any = changed
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]
    return changed


def _reads(plan: Mapping[str, Any]) -> bool:
    try:
        experiments_from_mapping(plan, "plan.yaml")
    except InputError:
        return False
    return True


def first_prediction_s(source: Source) -> float | None:
    """Seconds of `evolve predict` on PLAN in a process of its own; None if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.yaml"
        write_text(plan, yaml.safe_dump(PLAN, sort_keys=False))
        words = [sys.executable, "-m", "evolve", "predict", source.name, "--experiments", str(plan), "--json"]
        begun = time.perf_counter()
        env = without_secrets()
        done = subprocess.run(words, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        return time.perf_counter() - begun if done.returncode == 0 else None


def _with_tables() -> int:
    return len({str(e["name"]) for e in hardware_table().values() if e.get("kernels")})


def _options() -> list[str]:
    """The options of `predict` that a plan without a file cannot leave out."""
    parameters = signature(Spec.of).parameters.values()
    needed = (p for p in parameters if p.default is Parameter.empty and p.kind is not Parameter.VAR_KEYWORD)
    names = [p.name for p in needed]
    return [f"--{name.replace('_', '-')}" for name in names]


def _plan(needed: list[str], source: Source, seconds: float | None) -> Exhibit:
    line = command("predict", source.name, "--experiments", "plan.yaml")
    rows = [
        ("options that describe a steady load", len(_options()), ", ".join(_options())),
        ("files to write for any other load", 1, "an experiments file, as below"),
        ("values that cannot be left out", len(needed), ", ".join(needed)),
        ("commands", 1, line),
        ("measurements", 0, None),
        ("seconds of the first prediction", seconds, "process start and replay included"),
    ]
    note = f"plan.yaml: {yaml.safe_dump(PLAN, default_flow_style=True, sort_keys=False, width=10_000).strip()}"
    columns = [wrapped("what"), figures(".3g", "figure"), wrapped("which")]
    return Exhibit.of("A first prediction", columns, rows, line, note=note)


def _fields(evidence: Evidence) -> Exhibit:
    program = evidence.subject.source.complete
    read = {(n.scope, n.name) for f in program.functions for n in nodes(f) if isinstance(n, Field)}
    kinds = {
        "measured kernels of the GPU": sorted(f"b.{name}" for scope, name in read if scope == "b" and name in KERNELS),
        "the batch": sorted(f"b.{name}" for scope, name in read if scope == "b" and name not in KERNELS),
        "config.json, datasheet and engine settings": sorted(f"s.{name}" for scope, name in read if scope == "s"),
        "the request": sorted(f"r.{name}" for scope, name in read if scope == "r"),
    }
    rows = [(where, len(names), ", ".join(names) or None) for where, names in kinds.items()]
    columns = [wrapped("from"), integers("fields"), wrapped("names")]
    title = "Fields that the program reads, by where they come from"
    return Exhibit.of(title, columns, rows, command("show", evidence.subject.source.name, "--json"))


def go_files(source: Source) -> dict[str, str]:
    """The Go that `evolve emit` writes for the first target, without deployments: file name -> text.

    Raises InputError if the program cannot be emitted.
    """
    target = next(iter(TARGETS))
    return emit(program_for(source), target=target, provenance=provenance(source), accuracy=accuracy(source))


def imported(text: str) -> list[str]:
    """The packages that a Go file imports.

    >>> imported('package latency\\n\\nimport (\\n\\t"math"\\n\\n\\t"example.com/sim"\\n)\\n')
    ['math', 'example.com/sim']
    >>> imported('package latency\\n\\nimport "math"\\n')
    ['math']
    """
    block = re.search(r"^import (?:\((.*?)^\)|(\"[^\"]+\"))", text, re.MULTILINE | re.DOTALL)
    return re.findall(r'"([^"]+)"', block[0]) if block else []


def _go(source: Source) -> Exhibit:
    rows = []
    for name, text in go_files(source).items():
        imports = ", ".join(imported(text)) if name.endswith(".go") else None
        rows.append((name, len(text.splitlines()), len(text.encode()), imports))
    columns = [words("file"), integers("lines", "bytes"), wrapped("imports")]
    title, note = (
        "Files for the host, before deployments are baked in",
        "INTEGRATION.md says what to register in the host.",
    )
    return Exhibit.of(title, columns, rows, command("emit", source.name, "--out", "go"), note=note)
