"""Every command prints what files contain as it is: markup stays text, and control characters become visible.

The ids, workloads, paths and records of this world look like markup of the library that draws tables. Its folder's name
has an escape sequence in it, as any folder's may; names inside an experiments file must not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import step_tables
import tiny_world
import trace_files
import yaml
from commands import evolve, research_command
from rich.cells import cell_len
from trace_engine import simulate

from evolve.cli.entry import COMMANDS, MOVED
from evolve.output.terms import TERMS
from simulator.common.text import hidden
from simulator.serving.traces.tracev2 import COLUMNS

CHAT, CODE, SPARSE, OVERLOADED = "q[/x]", "[bold]x[/bold]|y", "[tp1] chat", "[link=file:///x]y"
IDS = {"dense-chat": CHAT, "dense-code": CODE, "sparse-chat": SPARSE, "dense-overloaded": OVERLOADED}
LOAD = "[red]chat"
FOLDER, SHOWN = "[bold]w\x1b[31m[x] y", r"[bold]w\x1b[31m[x] y"
TRACES = "20260102-000000-tiny-llama-tp1-[bold]x[i]"
CONSTANT = """
def step_time(b, s, *, base: us = 5000.0, each: us/request = 100.0):
    return base + each * b.decode_reqs
"""
HEADER = "trace_version: 2\ntime_unit: us\nmode: real\n'[x]': 1\n"
TEXTS = ("client_id", "tenant_id", "slo_class", "session_id", "prefix_group", "model", "error_message", "finish_reason")
CONFIG = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
          "intermediate_size": 512, "vocab_size": 32000, "max_position_embeddings": 1024}  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that the commands read."""
    home = tmp_path_factory.mktemp("foreign") / FOLDER
    home.mkdir()
    data = yaml.safe_load(tiny_world.DATA)
    for experiment in data["experiments"]:
        experiment["id"] = IDS[experiment["id"]]
        if experiment["workload"]["name"] == "chat":
            experiment["workload"]["name"] = LOAD
    (home / "[e].yaml").write_text(yaml.safe_dump(data))
    settings = {"data": {"files": [str(home / "[e].yaml")], "predict_files": []}, "search": {"finalists": 0}}
    (home / "[c].yaml").write_text(yaml.safe_dump(settings))
    (home / "[p].py").write_text(CONSTANT)
    (home / "[h].yaml").write_text(HEADER)
    values = {
        "request_id": 0,
        "round_index": 0,
        "streaming": "true",
        "status": "ok",
        "input_tokens": 9,
        "output_tokens": 9,
    }
    row = ",".join(str(values.get(name, "" if name in TEXTS else 0)) for name in COLUMNS)
    (home / "[d].csv").write_text(f"{','.join(COLUMNS)}\n{row}\n")
    (home / "config.json").write_text(json.dumps(CONFIG | {"num_attention_heads": 8, "hidden_size": 1024}))
    trace_files.write(simulate(1), home / TRACES)
    step_tables.write(home / "steps.parquet", step_tables.ingested_rows([3, 4, 5, 6], True, ident=CHAT))
    run = tiny_world.run(home / "[c].yaml", home / "runs" / "[r]", "--budget", 12)
    assert evolve("fit", "floor", "--experiments", home / "[e].yaml", "--out", home / "[f].py") == 0
    record = json.loads((home / "[f].json").read_text())
    record["errors_pct"]["a\x1b]0;b\u202e"] = {"e2e": 1.0}
    (home / "[f].json").write_text(json.dumps(record))
    assert run.is_dir()
    return home


@dataclass(frozen=True)
class Case:
    """A command line in a world, and texts that its output must contain. `status`: how it ends."""

    args: Callable[[Path], list[object]]
    texts: tuple[str, ...]
    status: int = 0


def run_of(home: Path) -> Path:
    return home / "runs" / "[r]"


def one_worker(home: Path, name: str) -> list[object]:
    return ["--config", home / "[c].yaml", "--out", home / name, "--workers", 1, "--budget", 9]


RUN = f"/{SHOWN}/runs/[r]"
CASES: dict[str, list[Case]] = {
    "run": [
        Case(lambda w: ["run", *one_worker(w, "[run]")], (CHAT, CODE, SPARSE, OVERLOADED, f"/{SHOWN}/[run]")),
        Case(lambda w: ["run", *one_worker(w, "[two]"), "--repeats", 2], (f"/{SHOWN}/[two]",)),
        Case(lambda w: ["run", *one_worker(w, "[no]"), "--exclude", "[x]"], (CHAT, CODE, SPARSE, OVERLOADED), 2),
        Case(lambda w: ["run", *one_worker(w, "[no]"), "--workloads", "[x]"], (LOAD,), 2),
    ],
    "pilot": [
        Case(lambda w: ["pilot", "--model", "llama-2-7b", "--repeats", 2, *one_worker(w, "[pilot]")],
             (f"/{SHOWN}/[pilot]",)),
        Case(lambda w: ["pilot", "--model", "[b]m", *one_worker(w, "[no]")], ("model [b]m: is not among the experiments",), 2),
    ],
    "resume": [
        Case(lambda w: ["resume", run_of(w), "--workers", 1, "--all"], (CHAT, CODE, SPARSE, OVERLOADED, RUN)),
        Case(lambda w: ["resume", w / "[/x]"], (f"/{SHOWN}/[/x]: is not a run",), 2),
    ],
    "baselines": [
        Case(lambda w: ["baselines", *one_worker(w, "[b]"), "--seeds", 1, "--only", "evolution,random"],
             (f"/{SHOWN}/[b] (engine", f"/{SHOWN}/[b]/curves.csv")),
    ],
    "archive": [
        Case(lambda w: ["archive", run_of(w)], (RUN,)),
        Case(lambda w: ["archive", run_of(w), "--grid"], (RUN,)),
        Case(lambda w: ["archive", run_of(w), "--by", "proposer"], (RUN,)),
        Case(lambda w: ["archive", run_of(w), "--csv", w / "[no]" / "a.csv"], (f"/{SHOWN}/[no]/a.csv: cannot",), 2),
    ],
    "validate": [
        Case(lambda w: ["validate", run_of(w), "--hindsight", "--folds", "workloads,stages", "--workers", 1,
                        "--csv", w / "[v].csv"], (CHAT, CODE, SPARSE, RUN, LOAD)),
    ],
    "view": [
        Case(lambda w: ["view", run_of(w), "--export", w / "[v].html"], (f"/{SHOWN}/[v].html: ",)),
        Case(lambda w: ["view", w / "[/x]"], (f"/{SHOWN}/[/x]: is not a run",), 2),
    ],
    "show": [
        Case(lambda w: ["show", w / "[f].py"], (CHAT, CODE, SPARSE, f"/{SHOWN}/[f].py", r"a\x1b]0;b\u202e")),
        Case(lambda w: ["show", f"{run_of(w)}:0"], (CHAT, CODE, SPARSE, f"{RUN}:0")),
    ],
    "check": [Case(lambda w: ["check", w / "[p].py"], (f"/{SHOWN}/[p].py: ",))],
    "blend": [
        Case(lambda w: ["blend", run_of(w), "--top", 2, "--out", w / "[m].py"], (RUN, f"/{SHOWN}/[m].py")),
        Case(lambda w: ["blend", run_of(w), "--top", 99], (RUN,), 2),
    ],
    "fit": [
        Case(lambda w: ["fit", w / "[p].py", "--experiments", w / "[e].yaml", "--out", w / "[q].py"],
             (CHAT, CODE, SPARSE, OVERLOADED, f"/{SHOWN}/[q].py", f"/{SHOWN}/[e].yaml' --id '{CHAT}'")),
        Case(lambda w: ["fit", "floor", "--experiments", w / "[e].yaml", "--id", "[x]"], (CHAT, CODE, SPARSE), 2),
        Case(lambda w: ["fit", w / "[p].py", "--experiments", w / "[e].yaml", "--learning-curve"],
             ("Absolute errors of /", f"/{SHOWN}/[p].py in percent")),
        Case(lambda w: ["fit", "floor", "--experiments", w / "[e].yaml", "--id", CHAT, "--learning-curve"],
             (f"--learning-curve: {CHAT} is the only run",), 2),
    ],
    "predict": [
        Case(lambda w: ["predict", w / "[f].py", "--experiments", w / "[e].yaml"],
             (CHAT, CODE, SPARSE, OVERLOADED, f"/{SHOWN}/[f].py")),
        Case(lambda w: ["predict", w / "[no].py"], (f"/{SHOWN}/[no].py: cannot be read",), 2),
    ],
    "ablate": [
        Case(lambda w: ["ablate", w / "[f].py", "--experiments", w / "[e].yaml"], (f"/{SHOWN}/[f].py",)),
        Case(lambda w: ["ablate", w / "[no].py"], (f"/{SHOWN}/[no].py: cannot be read",), 2),
    ],
    "drift": [
        Case(lambda w: ["drift", w / "[f].py", "--experiments", w / "[e].yaml"], (CHAT, OVERLOADED, f"/{SHOWN}/[f].py"), 1),
        Case(lambda w: ["drift", "champion", "--experiments", w / "[no].yaml"], (f"/{SHOWN}/[no].yaml: cannot be read",), 2),
    ],
    "sensitivity": [
        Case(lambda w: ["sensitivity", w / "[f].py", "--experiments", w / "[e].yaml", "--id", CHAT], (CHAT, f"/{SHOWN}/[f].py")),
        Case(lambda w: ["sensitivity", "champion", "--id", "q[/x]"], ("--id q[/x]: no such experiment",), 2),
    ],
    "explain": [
        Case(lambda w: ["explain", w / "[f].py", "--experiments", w / "[e].yaml"], (CHAT, CODE, SPARSE, f"/{SHOWN}/[f].py")),
        Case(lambda w: ["explain", "champion", "--id", "q[/x]"], ("--id q[/x]: no such experiment",), 2),
    ],
    "diagnose": [
        Case(lambda w: ["diagnose", w / "[f].py", "--experiments", w / "[e].yaml"], (CHAT, CODE, SPARSE, f"/{SHOWN}/[f].py")),
        Case(lambda w: ["diagnose", "champion", "--id", "q[/x]"], ("--id q[/x]: no such experiment",), 2),
    ],
    "plot": [
        Case(lambda w: ["plot", run_of(w), "--kind", "front", "--out", w / "[p].svg"], (RUN, f"/{SHOWN}/[p].svg")),
        Case(lambda w: ["plot", run_of(w), "--kind", "history", "--out", w / "[p].svg"], (RUN, f"/{SHOWN}/[p].svg")),
        Case(lambda w: ["plot", run_of(w), "--kind", "grid", "--out", w / "[p].svg"], (RUN, f"/{SHOWN}/[p].svg")),
        Case(lambda w: ["plot", w / "[f].py", "--kind", "fit", "--experiments", w / "[e].yaml", "--out", w / "[p].svg"],
             (f"/{SHOWN}/[f].py",)),
        Case(lambda w: ["plot", run_of(w), "--kind", "terms", "--id", "[x]", "--out", w / "[p].svg"],
             (CHAT, CODE, SPARSE, OVERLOADED), 2),
    ],
    "probe": [
        Case(lambda w: ["probe", w / "[f].py", "--experiments", w / "[e].yaml"], (f"/{SHOWN}/[f].py: has no intervals",), 2),
        Case(lambda w: ["probe", "champion", "--experiments", w / "[e].yaml", "--id", f"{CHAT},{SPARSE}", "--tp", 2,
                        "--budget-runs", 1, "--out", w / "[n].yaml"], (CHAT, SPARSE, f"/{SHOWN}/[n].yaml")),
    ],
    "ingest": [
        Case(lambda w: ["ingest", w / TRACES, "--out", w / "[i]", "--hardware", "H100", "--model-config",
                        f"example-org/tiny-llama-sim={w / 'config.json'}"], (TRACES, f"/{SHOWN}/[i]")),
        Case(lambda w: ["ingest", "--tracev2", w / "[h].yaml", w / "[d].csv", "--out", w / "[t]"], ("[d]",)),
        Case(lambda w: ["ingest", "--tracev2", w / "[d].csv", w / "[d].csv", "--out", w / "[t]"],
             (f"/{SHOWN}/[d].csv",), 2),
    ],
    "score-steps": [
        Case(lambda w: ["score-steps", w / "[p].py", "--steps", w / "steps.parquet", "--experiments", w / "[e].yaml"],
             (CHAT, f"/{SHOWN}/[p].py")),
    ],
    "report": [
        Case(lambda w: ["report", w / "[f].py", "--experiments", w / "[e].yaml", "--only", "accuracy,workloads", "--workers", 1],
             (OVERLOADED, f"/{SHOWN}/[f].py")),
        Case(lambda w: ["report", "champion", "--only", "q[/x]"], ("--only q[/x]: is no dimension",), 2),
    ],
    "leaderboard": [
        Case(lambda w: ["leaderboard", "direct", "--experiments", w / "[e].yaml", "--out", w / "[board]", "--workers", 1,
                        "--csv", w / "[l].csv"], (f"/{SHOWN}/[l].csv", f"/{SHOWN}/[board]")),
        Case(lambda w: ["leaderboard", "q[/x]"], ("'q[/x]': no such method",), 2),
    ],
    "model": [
        Case(lambda w: ["model", "add", w / "config.json", "--id", "q[/x]"], ("--id q[/x]: ",), 2),
        Case(lambda w: ["model", "show", "a\x1bb[/x]"], (r"a\x1bb[/x]",), 2),
        Case(lambda w: ["model", "remove", "[bold]x"], ("[bold]x: ",), 2),
    ],
    "kernels": [Case(lambda w: ["kernels", w / "config.json", "--hardware", "H100"], (f"/{SHOWN}/config.json",))],
    "prompt": [
        Case(lambda w: ["prompt", run_of(w), 0], ("# Program A",)),
        Case(lambda w: ["prompt", run_of(w), 999], (RUN,), 2),
    ],
    "llm-check": [
        Case(lambda w: ["llm-check", "openai/q[/x]", "--api-base", "http://127.0.0.1:1/v1"], ("openai/q[/x]: no connection",), 1),
        Case(lambda w: ["llm-check", "q[/x]"], ("'q[/x]' is not a model",), 2),
    ],
    "simulate": [
        Case(lambda w: ["simulate", "--id", CHAT, "--experiments", w / "[e].yaml", "--out", w / "[s].csv"], ()),
        Case(lambda w: ["simulate", "--id", CHAT, "--experiments", w / "[e].yaml", "--out", w],
             (f"/{SHOWN}: is a folder",), 2),
        Case(lambda w: ["simulate", "--id", CHAT, "--experiments", w / "[e].yaml", "--export", "tracev2", "--out", w / "[v]"],
             (f"/{SHOWN}/[v]: header.yaml",)),
        Case(lambda w: ["simulate", "--tracev2", w / "[h].yaml", w / "[d].csv", "--program", w / "[p].py"], ("'[x]'",)),
    ],
    "emit": [
        Case(lambda w: ["emit", w / "[f].py", "--experiments", w / "[e].yaml", "--id", CODE, "--out", w / "[go]"],
             (f"/{SHOWN}/[go]: INTEGRATION.md",)),
        Case(lambda w: ["emit", w / "[f].py", "--experiments", w / "[e].yaml", "--id", CODE, "--into", w],
             (f"/{SHOWN}: is no clone of the host",), 2),
        Case(lambda w: ["emit", w / "[f].py", "--out", w / "[go]", "--name", "[bold]x\x1b"],
             (r"--name [bold]x\x1b: is not a backend's name",), 2),
    ],
    "export": [
        Case(lambda w: ["export", run_of(w), "--to", "openevolve", "--out", w / "[o]"], (f"/{SHOWN}/[o]/checkpoint_",)),
        Case(lambda w: ["export", run_of(w), "--to", "openevolve", "--out", w / "[o]"], (f"/{SHOWN}/[o]/checkpoint_",), 2),
        Case(lambda w: ["export", run_of(w), "--to", "latex"], (r"{[}bold{]}w\textbackslash{}x1b".replace("{[}", "[").replace("{]}", "]"),)),
        Case(lambda w: ["export", run_of(w), "--to", "sympy"], ("[bold]w.[31m[x] y/runs/[r]",)),
        Case(lambda w: ["export", w / "[f].py", "--to", "json"], ("[f].py",)),
    ],
    "bench": [Case(lambda w: ["bench", "[bold]x\x1b[/bold]"], (r"extra argument ([bold]x\x1b[/bold])",), 2)],
    "list": [Case(lambda w: ["list", "--runs", w / "runs"], (RUN, "unlike data cannot be compared"))],
}  # fmt: skip


def test_every_command_has_a_case() -> None:
    assert set(CASES) == {*COMMANDS, *MOVED}


def squeezed(text: str) -> str:
    """The text without white space: lines and cells are broken to fit the terminal."""
    return "".join(text.split())


# Texts of programs and suggested command lines are never broken, so that they can be copied.
WHOLE = re.compile(
    r'^"""(?s:.*?)"""\n|^def .*\n(?:(?:[ )].*|def .*|)\n)*|^ +(?:evolve|blis) .*\n|^/.*: [\d.]+ MB\n', re.MULTILINE
)


# The coined words that tables and sentences use, by what they look like there.
WORDS = {
    "joint error": r"\bjoint\b", "worst 3": r"\bworst\s+3\b", "transfer error": r"\btransfer\b", "merit": r"\bmerit\b",
    "limits": r"\blimits\b", "MAPE": r"\bMAPE\b", "bias": r"\bbias\b", "identified": r"\bidentified\b",
    "decided": r"\bdecided\b",
    "standard error": r"\bstandard\s+error\b", "front": r"\b[Ff]ront\b",
}  # fmt: skip


def unexplained(out: str) -> list[str]:
    """The words of WORDS that are used before their meaning is given."""
    words = []
    for term, pattern in WORDS.items():
        first = re.search(pattern, out)
        explained = first and squeezed(out[first.start() :]).startswith(squeezed(f"{term}:{TERMS[term]}"))
        if first and not explained:
            words.append(f"{term} at {out[max(first.start() - 40, 0) : first.start() + 40]!r}")
    return words


@pytest.mark.parametrize(
    ("command", "number"), [(command, i) for command, cases in CASES.items() for i in range(len(cases))]
)
def test_what_is_printed_is_the_text_fits_and_is_explained(
    command: str, number: int, world: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    case = CASES[command][number]
    args = case.args(world)
    assert args[0] == command
    capsys.readouterr()
    status = research_command([*map(str, args)]) if command in MOVED else evolve(*args)
    out, err = capsys.readouterr()
    assert status == case.status, (out, err)
    for text in case.texts:
        assert squeezed(text) in squeezed(out + err), (text, out, err)
    assert not [c for c in out + err if hidden(c) and c not in "\n\t"]
    if command not in ("prompt", "export"):  # these print texts for others to read
        assert [line for line in WHOLE.sub("", out).splitlines() if cell_len(line) > 80] == []
    if command not in ("prompt", "ingest", "export"):  # these show texts of others, or for them
        assert not unexplained(out), out


def test_files_for_people_have_the_text_too(world: Path) -> None:
    """The summary of a run, the Go and how it is registered; a bar in an id does not end a cell."""
    summary = (run_of(world) / "summary.md").read_text()
    assert (
        all(ident in summary for ident in (CHAT, SPARSE, OVERLOADED)) and "| [bold]x[/bold]\\|y | fitted |" in summary
    )
    assert SHOWN in summary
    assert evolve("emit", world / "[f].py", "--experiments", world / "[e].yaml", "--id", CODE, "--id", CHAT,
                  "--out", world / "[go2]") == 0  # fmt: skip
    source, page = ((world / "[go2]" / name).read_text() for name in ("fitted.go", "INTEGRATION.md"))
    assert CODE in source and CODE in page and r"a\x1b]0;b\u202e" in source
    for text in (summary, source, page):
        assert not [c for c in text if hidden(c) and c not in "\n\t"]


def mapping(**changes: Any) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(tiny_world.DATA)
    for path, value in changes.items():
        node, *keys = data["experiments"][1], *path.split("__")
        for key in keys[:-1]:
            node = node.setdefault(key, {})
        node[keys[-1]] = value
    return data


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("id", "a,b", "experiment 'a,b': id must not contain a comma, got 'a,b': rename it: `--id A,B` names two ids"),
        ("id", "a\nb", r"experiment 'a\nb': id must be one line without control characters, got 'a\nb': rename it"),
        ("id", "a\x1b[31m", r"id must be one line without control characters, got 'a\x1b[31m': rename it"),
        ("id", "a\x9b1m", r"id must be one line without control characters, got 'a\x9b1m': rename it"),
        ("id", "a\u202eb", r"id must be one line without control characters, got 'a\u202eb': rename it"),
        ("model", "a\x07", r"model must be one line without control characters, got 'a\x07': rename it"),
        ("hardware", "a\x07", r"hardware must be one line without control characters, got 'a\x07': rename it"),
        ("hardware", {"name": "a\r"}, r"hardware.name must be one line without control characters, got 'a\r': "),
        ("quality", "clean\u2066", r"quality must be one line without control characters, got 'clean\u2066': "),
        ("workload__name", "a\tb", r"workload.name must be one line without control characters, got 'a\tb': "),
        ("engine__version", "1\n2", r"engine.version must be one line without control characters, got '1\n2': "),
    ],
)
def test_names_that_cannot_be_printed_in_a_line_are_refused(
    key: str, value: object, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(mapping(**{key: value})))
    assert evolve("predict", "floor", "--experiments", tmp_path / "e.yaml") == 2
    err = capsys.readouterr().err
    assert err.startswith(f"evolve: {tmp_path}/e.yaml: experiment ") and line in err and err.count("\n") == 1


def test_a_folder_whose_name_cannot_be_an_id_is_refused(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (world / "1-a-tp1-b,c").mkdir()
    (world / "1-a-tp1-b,c" / "traces.json").write_text("")
    assert evolve("ingest", world / "1-a-tp1-b,c", "--out", world / "[j]", "--hardware", "H100", "--quiet") == 2
    assert "1-a-tp1-b,c: its name cannot be used for an output: rename it" in capsys.readouterr().err
