"""What the JSON of every command looks like: docs/json.md, written from what the commands print in a tiny world.

`python tools/json_shapes.py` writes the page again.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import step_tables
import tiny_world
import trace_files
from commands import research_command
from llm_replies import said
from llm_scripts import EXAMPLE, UNITS, whole
from llm_server import Server
from paths import ROOT
from trace_engine import simulate

from evolve.cli import run_command
from evolve.cli.entry import MOVED
from simulator.serving.own_models import VARIABLE

PAGE = ROOT / "docs" / "json.md"
# Objects whose keys are names of data, by the end of their path; the key is shown in place of the names.
NAMED = {
    "experiments[].fields": "FIELD", "experiments[].observed_ms": "", "totals.rejected": "STAGE",
    "cpu_s_by_stage": "STAGE",
    "products": "METHOD", "certainty": "METHOD.NAME", "record.constants": "METHOD.NAME", "record.values": "METHOD.NAME", "record.errors_pct": "ID",
    "record.measured": "ID", "known": "NAME", "published": "NAME", "quality": "ID", "observed_ms": "ID",
    "verdicts": "STAGE", "cpu_s": "STAGE", "proposers": "PROPOSER", "models": "NAME", "hardware": "NAME",
    "engines": "ENGINE", "ENGINE.rejected": "STAGE", "shared_fields": "FIELD", "FOLDS.fields": "FIELD", "fields": "FOLDS",
    "finish_status": "STATUS", "excluded": "REASON", "stamps": "KIND", "protocol": "SETTING", "ranges": "RANGE",
    "by_phase": "KIND", "by_load": "KIND", "by_split": "KIND", "by_batch": "KIND", "by_evidence": "KIND",
    "dropped": "REASON", "mended": "REASON", "skipped": "KIND", "breakdown": "KIND", "summary": "KIND",
    "fold_fields": "KIND", "missing": "SOURCE", "assumed": "KEY", "client_errors": "ERROR", "journey_statuses": "STATUS",
    "admissions_by_evidence": "EVIDENCE", "steps_by_evidence": "EVIDENCE", "replay_ms": "KIND", "steps_of": "KIND",
    "ratio_to_compiled": "KIND", "fast": "KIND", "machine": "PART", "outcomes": "OUTCOME", "config": "KEY", "generation_config": "KEY",
    "intervals": "CLASS", "CLASS": "FIGURE", "selection": "KIND", "correlations": "FOLD",
    "correlated": "METHOD.NAME", "provenance.sources": "TABLE", "programs": "PROPOSAL", "values": "NAME", "formulas": "METHOD",
    "step_tables": "ID", "results[].errors": "ID", "results[].cycles": "SPLIT", "texts": "MODEL",
    "by_kind_pct": "KIND", "measured.mean_abs_error_pct": "KIND", "full.mean_abs_error_pct": "KIND",
    "left_out": "ID", "refits[].constants": "METHOD.NAME",
    "results[].features": "ID", "rows[].loads": "KIND", "h3.holds": "KIND",
    "sweep": "KEY", "slo_ms": "LIMIT", "rows[].holds": "LIMIT",
    "measure_first": "GPU", "figures_ms": "FIGURE", "change_pct": "FIGURE", "elasticity": "FIGURE", "also": "SETTING",
}  # fmt: skip
# Objects that occur in several places, by keys that identify them; they are described once.
SHARED = {
    "elite": {"id", "key", "text", "worst3", "rows"},
    "spread": {"median", "low", "high", "values"},
    "statistic": {"mean", "p50", "p90", "p99"},
    "step figures": {"mape_pct", "pearson_r"},
}
TYPES = {bool: "true or false", int: "number", float: "number", str: "text", type(None): "null"}


def shape(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(path, type) of everything in a JSON value; lists end in [], names of data are in capitals."""
    shared = next((name for name, keys in SHARED.items() if isinstance(value, dict) and keys <= set(value)), None)
    if shared and path != shared:
        yield path, shared
        yield from shape(value, shared)
    elif isinstance(value, dict):
        name = next((name for end, name in NAMED.items() if path == end or path.endswith(f".{end}")), None)
        yield path, f"object by {name}" if name else "object"
        for key, inner in value.items():
            yield from shape(inner, f"{path}.{name or key}".lstrip("."))
    elif isinstance(value, list) and value and not any(isinstance(inner, dict | list) for inner in value):
        yield path, f"list of {' or '.join(sorted({TYPES[type(inner)] for inner in value}))}"
    elif isinstance(value, list):
        yield path, "list"
        for inner in value:
            yield from shape(inner, f"{path}[]")
    else:
        yield path, TYPES[type(value)]


def printed(*args: object) -> Any:
    """The JSON that a command prints."""
    out = StringIO()
    with redirect_stdout(out):
        words = [str(arg) for arg in args]
        status = research_command(words) if words[0] in MOVED else run_command(words)
    assert status in (0, 1), (args, out.getvalue())
    return json.loads(out.getvalue())


def _trace(requests: int) -> str:
    """A CSV file of requests of two kinds, measured one by one."""
    rows = [f"{i / 4},{300 + 40 * (i % 2)},{20 + i % 3},{250 + i % 7},{40 + i % 5}" for i in range(requests)]
    return "\n".join(["arrival_s,input_len,output_len,e2e_ms,ttft_ms", *rows]) + "\n"


def samples(home: Path, quick: bool = False) -> dict[str, list[Any]]:
    """What each command prints in a tiny world below `home`; if `quick`, without commands that take seconds even there."""
    config = tiny_world.write(home)
    data, run, program = home / "data.yaml", home / "run", home / "mine.py"
    search = ["--config", config, "--workers", 1, "--budget", 9, "--quiet", "--json"]
    found = {"run": [printed("run", *search, "--out", run)]}
    if not quick:
        pilot = "pilot", "--model", "llama-2-7b", "--repeats", 2
        found["run --repeats"] = [printed(*pilot, *search, "--out", home / "p")]
        found["baselines"] = [
            printed("baselines", *search, "--out", home / "b", "--seeds", 1, "--only", "evolution,random")
        ]
        refused = _asked(found, home, config)
    found["archive"] = [printed("archive", run, "--json")]
    found["archive --by proposer"] = [printed("archive", run, "--by", "proposer", "--json")]
    found["view"] = [printed("view", run, "--json")]
    if not quick:
        found["validate"] = [printed("validate", run, "--hindsight", "--workers", 1, "--quiet", "--json")]
    found["fit"] = [printed("fit", "floor", "--experiments", data, "--out", program, "--json")]
    printed("fit", program, "--experiments", data, "--out", home / "again.py", "--json")
    found["fit"].append(printed("fit", home / "again.py", "--experiments", data, "--json"))
    found["fit --learning-curve"] = [
        printed("fit", name, "--experiments", data, "--learning-curve", "--json") for name in ("floor", program)
    ]
    found["show"] = [printed("show", name, "--json") for name in (program, f"{run}:0", "champion", "threshold")]
    if not quick:
        found["show, of a refused idea"] = [printed("show", refused, "--json")]
        found["blend"] = [
            printed("blend", ROOT / "seeds" / "champion", "--json"),
            printed("blend", ROOT / "seeds" / "champion", "--top", 2, "--out", home / "blend.py", "--json"),
        ]
    found["check"] = [printed("check", name, "--physics", "--json") for name in (program, "threshold")]
    found["check --fields"] = [printed("check", "--fields", "--json")]
    found["predict"] = [
        printed("predict", program, "--experiments", data, "--json"),
        printed("predict", "floor", "--id", "llama-2-7b-tp1-codegen,llama-2-7b-tp1-reasoning", "--json"),
        printed("predict", "champion", "--id", "llama-2-7b-tp1-codegen", "--json"),
    ]
    compared = printed("predict", program, "--experiments", data, "--against", "champion", "--json")
    one_run = printed("predict", program, "--experiments", data, "--id", "dense-code", "--against", "floor", "--json")
    # the rest is what `evolve predict` prints of the first program; `against` is the same of the other
    found["predict --against"] = [{"differences": one["differences"]} for one in (compared, one_run)]
    one = "predict", program, "--experiments", data, "--id", "dense-chat", "--json", "--sweep"
    found["predict --sweep"] = [
        printed(*one, "rate=5"),
        printed(*one, "rate=300", "--sweep", "tp=1,3", "--slo", "ttft_p99=1s"),
        printed(*one, "max_num_seqs=64"),
        printed("predict", "champion", "--experiments", data, "--id", "dense-chat", "--json", "--load", "50"),
        printed("predict", "floor", "--experiments", data, "--id", "dense-code", "--json", "--load", "50"),
        printed(
            "predict",
            "floor",
            "--experiments",
            data,
            "--id",
            "dense-chat",
            "--json",
            "--load",
            "50",
            "--slo",
            "ttft_p99=1us",
        ),
    ]
    found["ablate"] = [printed("ablate", "components", "--experiments", data, "--json")]
    found["drift"] = [
        printed("drift", program, "--experiments", data, "--json"),
        printed("drift", "champion", "--experiments", data, "--id", "dense-chat", "--json"),
    ]
    found["sensitivity"] = [
        printed("sensitivity", program, "--experiments", data, "--id", "dense-chat", "--seeds", 2, "--json"),
    ]
    found["explain"] = [
        printed("explain", program, "--experiments", data, "--json"),
        printed("explain", "champion", "--experiments", data, "--id", "dense-chat", "--json"),
        printed("explain", f"{run}:0", "--experiments", data, "--id", "dense-chat", "--json"),
    ]
    found["diagnose"] = [
        printed("diagnose", name, "--experiments", data, "--json") for name in (program, "champion", "threshold")
    ]
    found["probe"] = [printed("probe", "--experiments", data, "--id", "dense-chat", "--tp", "1", "--json")]
    (home / "config.json").write_text(json.dumps(CONFIG))
    trace_files.write(simulate(1), home / "20260102-000000-tiny-llama-tp1-general")
    own = f"example-org/tiny-llama-sim={home / 'config.json'}"
    found["ingest"] = [printed("ingest", home / "20260102-000000-tiny-llama-tp1-general", "--out", home / "ingested",
                               "--hardware", "H100", "--model-config", own, "--quiet", "--json")]  # fmt: skip
    (home / "requests.csv").write_text(_trace(1200))
    where = "--hardware", "H100", "--model", "llama-2-7b"
    found["ingest --trace"] = [
        printed("ingest", "--trace", home / "requests.csv", "--out", home / "traces", *also, "--json")
        for also in ((), where)
    ]
    traces = home / "traces" / "traces.yaml"
    found["fit"].append(printed("fit", "floor", "--experiments", traces, "--split", "--json"))
    found["predict"].append(printed("predict", "floor", "--experiments", traces, "--part", "test", "--json"))
    rows = step_tables.ingested_rows([3, 4, 5, 6], True, ident="dense-chat")
    steps = step_tables.write(home / "steps.parquet", rows)
    found["score-steps"] = [printed("score-steps", "--steps", steps, "--experiments", data, "--json")]
    many = step_tables.write(
        home / "many.parquet", step_tables.ingested_rows([3, 9, 5, 6] * 12, True, ident="dense-chat")
    )
    measured = "fit", "floor", "--experiments", data, "--steps", many, "--json", "--loss"
    found["fit"] += [printed(*measured, loss) for loss in ("ridge", "log", "quantile")]
    if not quick:
        board = "leaderboard", "components-9", "components-9-per-model", "--experiments", data, "--steps", many
        slow = home / "slow.py"  # what is skipped, because it misses every step by more than 30 %
        slow.write_text("def step_time(b, s, *, least: us[20000, 30000] = 25000.0): return least")
        found["leaderboard"] = [
            printed(*board, "--add", slow, "--out", home / "board", "--workers", 1, "--quiet", "--json")
        ]
        judged = "report", program, "--experiments", data, "--only", "accuracy,hardware"
        found["report"] = [printed(*judged, "--workers", 1, "--quiet", "--json")]
    found["kernels"] = [printed("kernels", "llama-3.1-8b", "--hardware", "H100", "--json")]
    with patch.dict(os.environ, {VARIABLE: str(home / "models")}):
        with redirect_stdout(StringIO()):
            assert run_command(["model", "add", str(home / "config.json"), "--id", "mine"]) == 0
        found["model list"] = [printed("model", "list", "--json")]
        found["model show"] = [printed("model", "show", name, "--json") for name in ("mine", "llama-3.1-8b")]
    found["prompt"] = [printed("prompt", run, 0, "--json")]
    with Server(lambda _: said(whole(EXAMPLE))) as server:
        found["llm-check"] = [
            printed("llm-check", name, "--api-base", server.url, "--json")
            for name in ("openai/mine", "openai/gpt-4o-mini")
        ]
    found["simulate"] = [printed("simulate", "--id", "dense-chat", "--experiments", data, "--quiet", "--json")]
    found["export"] = [printed("export", run, "--to", "openevolve", "--out", home / "peer", "--json")]
    found["export --to json"] = [
        printed("export", run, "--to", "json"),
        printed("export", "champion", "--to", "json"),
    ]
    found["list"] = [printed("list", "--runs", home, "--json")]
    return found


def _asked(found: dict[str, list[Any]], home: Path, config: Path) -> str:
    """Add what runs with a language model print; the result names an idea that was refused there."""
    given = "--config", config, "--workers", 1, "--budget", 12, "--quiet", "--json", "--proposer", "llm"
    with Server(lambda _: said(whole(EXAMPLE) + UNITS)) as server:
        asks = *given, "--llm", "openai/mine", "--api-base", server.url, "--max-calls", 4, "--rpm", 0
        found["run"].append(printed("run", *asks, "--out", home / "asked"))
        found["run --repeats"].append(printed("run", *asks, "--repeats", 2, "--out", home / "twice"))
    return next(f"{home / 'asked'}:{line['id']}" for line in tiny_world.lines(home / "asked")
                if line.get("verdict") == "rejected" and line.get("call"))  # fmt: skip


CONFIG = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
          "intermediate_size": 512, "vocab_size": 32000, "max_position_embeddings": 1024}  # fmt: skip


def shapes(values: list[Any]) -> dict[str, str]:
    """The types of every path in these values, sorted by first appearance."""
    types: dict[str, dict[str, None]] = {}
    for value in values:
        for path, kind in shape(value):
            types.setdefault(path, {})[kind] = None
    return {path: ", ".join(_merged(set(kinds))) for path, kinds in types.items() if path}


def _merged(kinds: set[str]) -> list[str]:
    """The kinds in order. An empty list says nothing about its items, nor an empty object about its keys."""
    for general in ("list", "object"):
        if any(kind.startswith(f"{general} ") for kind in kinds):
            kinds = kinds - {general}
    return sorted(kinds)


def sections(found: dict[str, list[Any]]) -> dict[str, dict[str, str]]:
    """The types of every path by the section of the page: one for each command, and one for the shared objects."""
    shared = shapes([value for values in found.values() for value in values])
    first = {path: kinds for path, kinds in shared.items() if _root(path) in SHARED}
    tables = {"In several places": first}
    for command, values in found.items():
        rows = shapes(values).items()
        tables[f"evolve {command}"] = {path: kinds for path, kinds in rows if _root(path) not in SHARED}
    return tables


def _root(path: str) -> str:
    return path.split(".")[0]


def page(found: dict[str, list[Any]]) -> str:
    """The tables of the page."""
    parts = []
    for title, rows in sections(found).items():
        lines = "".join(f"| `{path}` | {kinds} |\n" for path, kinds in rows.items())
        parts.append(f"## {title}\n\n| key | type |\n| --- | --- |\n{lines}")
    return "\n".join(parts)


def documented(text: str) -> dict[str, dict[str, str]]:
    """The tables that the page has, by section."""
    return {
        part.splitlines()[0]: dict(re.findall(r"^\| `(.+?)` \| (.+?) \|$", part, flags=re.MULTILINE))
        for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    }


def write() -> None:
    """Write the page again; its introduction stays."""
    head = PAGE.read_text().split("\n## ")[0].rstrip() + "\n\n"
    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(head + page(samples(Path(folder))))


if __name__ == "__main__":
    write()
