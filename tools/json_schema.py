"""The JSON of every command as a JSON Schema, inferred from what the commands print in a tiny world.

`python tools/json_schema.py` writes docs/reference/schema.json. `$defs` has an entry for each command, such as
`evolve predict`, and one for each object that occurs in several places, such as `elite`.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Sequence
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

from evolve import __version__
from evolve.cli import run_command
from evolve.cli.entry import RESEARCH
from simulator.serving.model import VARIABLE

FILE = ROOT / "docs" / "reference" / "schema.json"
# Objects whose keys are names of data: the end of their path, and what the names are of.
NAMES = """
experiments[].fields=FIELD experiments[].observed_ms=NAME totals.rejected=STAGE cpu_s_by_stage=STAGE products=METHOD
certainty=METHOD.NAME record.constants=METHOD.NAME record.values=METHOD.NAME record.errors_pct=ID record.measured=ID
baselines=NAME published=NAME quality=ID observed_ms=ID verdicts=STAGE cpu_s=STAGE proposers=PROPOSER models=NAME
hardware=NAME engines=ENGINE ENGINE.rejected=STAGE shared_fields=FIELD FOLDS.fields=FIELD fields=FOLDS
finish_status=STATUS excluded=REASON stamps=KIND protocol=SETTING ranges=RANGE by_phase=KIND by_load=KIND
by_split=KIND by_batch=KIND by_evidence=KIND dropped=REASON mended=REASON skipped=KIND breakdown=KIND summary=KIND
fold_fields=KIND missing=SOURCE assumed=KEY client_errors=ERROR journey_statuses=STATUS
admissions_by_evidence=EVIDENCE steps_by_evidence=EVIDENCE replay_ms=KIND steps_of=KIND ratio_to_compiled=KIND
fast=KIND machine=PART outcomes=OUTCOME config=KEY generation_config=KEY intervals=CLASS CLASS=FIGURE selection=KIND
correlations=FOLD correlated=METHOD.NAME provenance.sources=TABLE programs=PROPOSAL values=NAME formulas=METHOD
step_tables=ID results[].errors=ID results[].cycles=SPLIT texts=MODEL by_kind_pct=KIND
measured.mean_abs_error_pct=KIND full.mean_abs_error_pct=KIND left_out=ID refits[].constants=METHOD.NAME
results[].features=ID rows[].loads=KIND h3.holds=KIND sweep=KEY slo_ms=LIMIT rows[].holds=LIMIT measure_first=GPU
figures_ms=FIGURE change_pct=FIGURE elasticity=FIGURE also=SETTING usd_per_gpu_hour=GPU intervals_ms=FIGURE
intervals_ms.FIGURE=LEVEL
"""
NAMED = dict(re.findall(r"(\S+)=(\S+)", NAMES))
# Objects that occur in several places, by keys that identify them.
SHARED = {
    "elite": {"id", "key", "text", "worst3", "rows"},
    "spread": {"median", "low", "high", "values"},
    "statistic": {"mean", "p50", "p90", "p99"},
    "step figures": {"mape_pct", "pearson_r"},
}
TYPES = {
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    type(None): "null",
    list: "array",
    dict: "object",
}
Schema = dict[str, Any]


def schema(found: dict[str, list[Any]]) -> Schema:
    """The schema of what commands print: command -> what it printed."""
    shared: dict[str, list[Any]] = {name: [] for name in SHARED}
    programs = {name: "python -m research" if name in RESEARCH else "evolve" for name in found}
    commands = {f"{programs[name]} {name}": _inferred(values, "", shared) for name, values in found.items()}
    objects = {name: _object(shared[name], name, shared) for name in SHARED}  # adds what is nested in them, once
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"JSON of evolve {__version__}",
        "description": "Errors are signed and in percent, times have their unit in the key. A figure that was not "
        "observed, measured or fitted may be null.",
        "$defs": {name: {"title": name, **inner} for name, inner in {**objects, **commands}.items()},
    }


def _inferred(values: Sequence[Any], path: str, shared: dict[str, list[Any]]) -> Schema:
    """The schema of all values that were seen at a path."""
    objects = [value for value in values if isinstance(value, dict)]
    name = next((name for name, keys in SHARED.items() if any(keys <= set(value) for value in objects)), None)
    if name:
        shared[name] += objects
        ref = {"$ref": f"#/$defs/{name.replace(' ', '%20')}"}
        return ref if len(objects) == len(values) else {"anyOf": [ref, {"type": "null"}]}
    types = sorted({TYPES[type(value)] for value in values})
    made: Schema = {"type": types[0] if len(types) == 1 else types} if types else {}
    if objects:
        made |= _object(objects, path, shared) | {"type": made["type"]}
    items = [item for value in values if isinstance(value, list) for item in value]
    if items:
        made["items"] = _inferred(items, f"{path}[]", shared)
    return made


def _object(objects: Sequence[dict[str, Any]], path: str, shared: dict[str, list[Any]]) -> Schema:
    """The schema of objects that were seen at a path."""
    name = next((name for end, name in NAMED.items() if f".{path}".endswith(f".{end}")), None)
    if name:
        inner = [value for one in objects for value in one.values()]
        return {
            "type": "object",
            "description": f"by {name}",
            "additionalProperties": _inferred(inner, f"{path}.{name}", shared),
        }
    keys = dict.fromkeys(key for one in objects for key in one)
    seen = {key: [one[key] for one in objects if key in one] for key in keys}
    properties = {key: _inferred(values, f"{path}.{key}".lstrip("."), shared) for key, values in seen.items()}
    return {"type": "object", "properties": properties}


def printed(*args: object) -> Any:
    """The JSON that a command prints."""
    out = StringIO()
    with redirect_stdout(out):
        words = [str(arg) for arg in args]
        status = research_command(words) if words[0] in RESEARCH else run_command(words)
    assert status in (0, 1), (args, out.getvalue())
    return json.loads(out.getvalue())


def _trace(requests: int) -> str:
    """A CSV file of requests of two kinds, measured one by one."""
    rows = [f"{i / 4},{300 + 40 * (i % 2)},{20 + i % 3},{250 + i % 7},{40 + i % 5}" for i in range(requests)]
    return "\n".join(["arrival_s,input_len,output_len,e2e_ms,ttft_ms", *rows]) + "\n"


def samples(home: Path, quick: bool = False, budget: int = 14, seed: int = 3) -> dict[str, list[Any]]:
    """What each command prints in a tiny world below `home`; if `quick`, without commands that take seconds even there."""
    home.mkdir(exist_ok=True)
    config = tiny_world.write(home)
    data, run, program = home / "data.yaml", home / "run", home / "mine.py"
    search = ["--config", config, "--workers", 1, "--budget", budget, "--quiet", "--json"]
    found = {"run": [printed("run", *search, "--seed", seed, "--out", run)]}
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
        found["show of a refused idea"] = [printed("show", refused, "--json")]
        found["fit --blend"] = [
            printed("fit", "--blend", ROOT / "seeds" / "champion", "--top", 3, "--max-operations", 200, "--json"),
            printed("fit", "--blend", ROOT / "seeds" / "champion", "--top", 2, "--out", home / "blend.py", "--json"),
        ]
    found["show --check"] = [
        printed("show", "--check", name, "--physics", "--json") for name in (program, "threshold", "champion")
    ]
    found["show --assess"] = [
        printed("show", program, "--assess", run, "--against", f"{run}:0", "--json"),
        printed("show", program, "--assess", run, "--json"),
    ]
    found["show --fields"] = [printed("show", "--fields", "--json")]
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
    ]
    plans = "plan", "--experiments", data, "--json", "--id"
    found["plan"] = [
        printed(*plans, "dense-chat", "--tp", 1, "--slo", "ttft_p99=1s", "--price", "H100=2.5"),
        printed("plan", "floor", *plans[1:], "dense-code", "--tp", 1),
        printed("plan", "floor", *plans[1:], "dense-chat", "--tp", 3, "--slo", "ttft_p99=1us"),
        printed("plan", "floor", *plans[1:], "dense-chat", "--tp", 1, "--slo", "ttft_p99=1us"),
    ]
    found["show --ablate"] = [printed("show", "--ablate", "components", "--experiments", data, "--json")]
    found["drift"] = [
        printed("drift", program, "--experiments", data, "--json"),
        printed("drift", "champion", "--experiments", data, "--id", "dense-chat", "--json"),
    ]
    found["sensitivity"] = [
        printed("sensitivity", program, "--experiments", data, "--id", "dense-chat", "--seeds", 2, "--json"),
    ]
    found["show --explain"] = [
        printed("show", "--explain", program, "--experiments", data, "--json"),
        printed("show", "--explain", "champion", "--experiments", data, "--id", "dense-chat", "--json"),
        printed("show", "--explain", f"{run}:0", "--experiments", data, "--id", "dense-chat", "--json"),
    ]
    found["show --diagnose"] = [
        printed("show", "--diagnose", name, "--experiments", data, "--json")
        for name in (program, "champion", "threshold")
    ]
    found["probe"] = [printed("probe", "--experiments", data, "--id", "dense-chat", "--tp", "1", "--json")]
    (home / "config.json").write_text(json.dumps(CONFIG))
    trace_files.write(simulate(1), home / "20260102-000000-tiny-llama-tp1-general")
    own = f"example-org/tiny-llama-sim={home / 'config.json'}"
    found["ingest"] = [
        printed(
            "ingest",
            home / "20260102-000000-tiny-llama-tp1-general",
            "--out",
            home / "ingested",
            "--hardware",
            "H100",
            "--model-config",
            own,
            "--quiet",
            "--json",
        )
    ]
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
    found["fit --score-steps"] = [printed("fit", "--score-steps", "--steps", steps, "--experiments", data, "--json")]
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
    judged = "report", program, "--experiments", data, "--quiet", "--json"
    found["report"] = [printed(*judged), printed(*judged, "--only", "hardware", "--workers", 1)]
    found["score"] = [
        printed("score", name, "--experiments", data, "--json") for name in (program, "champion", "threshold")
    ]
    found["kernels"] = [printed("kernels", "llama-3.1-8b", "--hardware", "H100", "--json")]
    with patch.dict(os.environ, {VARIABLE: str(home / "models")}):
        with redirect_stdout(StringIO()):
            assert run_command(["model", "add", str(home / "config.json"), "--id", "mine"]) == 0
        found["model list"] = [printed("model", "list", "--json")]
        found["model show"] = [printed("model", "show", name, "--json") for name in ("mine", "llama-3.1-8b")]
    found["llm prompt"] = [printed("llm", "prompt", run, 0, "--json")]
    with Server(lambda _: said(whole(EXAMPLE))) as server:
        found["llm check"] = [
            printed("llm", "check", name, "--api-base", server.url, "--json")
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
    return next(
        f"{home / 'asked'}:{line['id']}"
        for line in tiny_world.lines(home / "asked")
        if line.get("verdict") == "rejected" and line.get("call")
    )


CONFIG = {
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 32000,
    "max_position_embeddings": 1024,
}


def write() -> None:
    """Write the schema."""
    with tempfile.TemporaryDirectory() as folder:
        text = json.dumps(schema(samples(Path(folder))), indent=1)
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    write()
