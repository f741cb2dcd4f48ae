"""Every command prints what files contain as it is: markup stays text, and control characters become visible.

The ids, workloads, paths and records of this world look like markup of the library that draws tables. Its folder's name
has an escape sequence in it, as any folder's may; names inside an experiments file must not.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import step_tables
import tiny_world
import trace_files
import yaml
from commands import Capsys, evolve, research_command
from rich.cells import cell_len
from trace_engine import simulate

from evolve.cli.entry import COMMANDS, RESEARCH
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
CONFIG = {
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 32000,
    "max_position_embeddings": 1024,
}


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


# STATUS COMMAND => TEXTS: a command line in the world, how it ends, and texts that its output contains, between `;;`.
# Words: `~x` is the file x of the world, RUN its run, EXP `--experiments [e].yaml`, NEW=x a short search into x, ALL the
# four ids, FIT the three that are fitted.
CASES = r"""
0 run NEW=[run] -v --explain => ALL ;; ~[run]
0 run NEW=[two] --repeats 2 => ~[two]
2 run NEW=[no] --exclude [x] => ALL
2 run NEW=[no] --workloads [x] => [red]chat
0 pilot --model llama-2-7b --repeats 2 NEW=[pilot] => ~[pilot]
2 pilot --model [b]m NEW=[no] => model [b]m: is not among the experiments
0 resume RUN --workers 1 --all => ALL ;; RUN
2 resume ~[/x] => ~[/x]: is not a run
0 baselines NEW=[b] --seeds 1 --only evolution,random => ~[b] (engine ;; ~[b]/curves.csv
0 archive RUN => RUN
0 archive RUN --grid => RUN
0 archive RUN --by proposer => RUN
2 archive RUN --csv ~[no]/a.csv => ~[no]/a.csv: cannot
0 validate RUN -v --hindsight --folds workloads,stages --workers 1 --csv ~[v].csv => FIT ;; RUN ;; [red]chat
0 view RUN --export ~[v].html => ~[v].html:
2 view ~[/x] => ~[/x]: is not a run
0 show ~[f].py => ~[f].py
0 show RUN:0 -v --explain => FIT ;; RUN:0
0 show --check ~[p].py => ~[p].py:
0 show --ablate ~[f].py EXP => ~[f].py
2 show --ablate ~[no].py => ~[no].py: cannot be read
0 show -v --explain ~[f].py EXP => FIT ;; ~[f].py ;; a\x1b]0;b\u202e
2 show --explain champion --id q[/x] => --id q[/x]: no such experiment
0 show -v --diagnose ~[f].py EXP => FIT ;; ~[f].py
0 fit ~[p].py EXP -v --explain --out ~[q].py => ALL ;; ~[q].py ;; ~[e].yaml'
2 fit floor EXP --id [x] => FIT
0 fit ~[p].py EXP --learning-curve => ~[p].py in percent
2 fit floor EXP --id q[/x] --learning-curve => --learning-curve: q[/x] is the only run
0 fit --score-steps ~[p].py --steps ~steps.parquet EXP => q[/x] ;; ~[p].py
0 fit --blend RUN --top 2 --out ~[m].py => RUN ;; ~[m].py
2 fit --blend RUN --top 99 => RUN
0 predict ~[f].py EXP => ALL ;; ~[f].py
2 predict ~[no].py => ~[no].py: cannot be read
1 drift ~[f].py EXP => q[/x] ;; ~[f].py
2 drift champion --experiments ~[no].yaml => ~[no].yaml: cannot be read
0 sensitivity ~[f].py EXP --id q[/x] => q[/x] ;; ~[f].py
2 sensitivity champion --id q[/x] => --id q[/x]: no such experiment
0 plot RUN --kind front --out ~[p].svg => RUN ;; ~[p].svg
0 plot RUN --kind history --out ~[p].svg => RUN ;; ~[p].svg
0 plot RUN --kind grid --out ~[p].svg => RUN ;; ~[p].svg
0 plot ~[f].py --kind fit EXP --out ~[p].svg => ~[f].py
2 plot RUN --kind terms --id [x] --out ~[p].svg => ALL
0 plan floor EXP --id 'q[/x]' --slo ttft_p99=9s => llama-2-7b
2 probe ~[f].py EXP => ~[f].py: has no intervals
0 probe champion EXP --id 'q[/x],[tp1] chat' --tp 2 --budget-runs 1 --out ~[n].yaml => q[/x] ;; [tp1] chat ;; ~[n].yaml
0 ingest ~TRACES --out ~[i] --hardware H100 --model-config example-org/tiny-llama-sim=~config.json => TRACES ;; ~[i]
0 ingest --tracev2 ~[h].yaml ~[d].csv --out ~[t] => [d]
2 ingest --tracev2 ~[d].csv ~[d].csv --out ~[t] => ~[d].csv
0 report ~[f].py EXP --only accuracy,workloads --workers 1 => [link=file:///x]y ;; ~[f].py
2 report champion --only q[/x] => --only q[/x]: is no dimension
0 leaderboard direct EXP --out ~[board] --workers 1 --csv ~[l].csv => ~[l].csv ;; ~[board]
2 leaderboard q[/x] => 'q[/x]': no such method
2 model add ~config.json --id q[/x] => --id q[/x]:
2 model show a\x1bb[/x] => a\x1bb[/x]
2 model remove [bold]x => [bold]x:
0 kernels ~config.json --hardware H100 => ~config.json
0 llm prompt RUN 0 => # Program A
2 llm prompt RUN 999 => RUN
1 llm check openai/q[/x] --api-base http://127.0.0.1:1/v1 => openai/q[/x]: no connection
2 llm check q[/x] => 'q[/x]' is not a model
0 simulate --id q[/x] EXP --out ~[s].csv =>
2 simulate --id q[/x] EXP --out ~. => is a folder
0 simulate --id q[/x] EXP --export tracev2 --out ~[v] => ~[v]: header.yaml
0 simulate --tracev2 ~[h].yaml ~[d].csv --program ~[p].py => '[x]'
0 emit ~[f].py EXP --id [bold]x[/bold]|y --out ~[go] => ~[go]: INTEGRATION.md
2 emit ~[f].py EXP --id [bold]x[/bold]|y --into ~. => no clone of the host, go.mod is missing
2 emit ~[f].py --out ~[go] --name [bold]x\x1b => --name [bold]x\x1b: not a name for a backend
0 export RUN --to openevolve --out ~[o] => ~[o]/checkpoint_
0 export RUN --to latex => [bold]w\textbackslash{}x1b
0 export RUN --to sympy => [bold]w.[31m[x] y/runs/[r]
0 export ~[f].py --to json => [f].py
0 score ~[p].py EXP => 3 measured runs
2 bench [bold]x\x1b[/bold] => extra argument ([bold]x\x1b[/bold])
0 list --runs ~runs --explain => RUN ;; unlike data cannot be compared
""".strip().splitlines()


def words_of(line: str, home: Path) -> list[str]:
    """The words of a case's command line."""
    words = []
    for word in shlex.split(line.replace("\\x1b", "\x1b")):
        name, _, value = word.partition("=")
        if name == "NEW":
            words += ["--config", f"{home}/[c].yaml", "--out", f"{home}/{value}", "--workers", "1", "--budget", "9"]
        elif word == "EXP":
            words += ["--experiments", f"{home}/[e].yaml"]
        else:
            words.append(word.replace("RUN", "~runs/[r]").replace("TRACES", TRACES).replace("~", f"{home}/"))
    return words


def texts_of(line: str) -> list[str]:
    """The texts that a case expects."""
    ids = {"ALL": [CHAT, CODE, SPARSE, OVERLOADED], "FIT": [CHAT, CODE, SPARSE], "TRACES": [TRACES]}
    texts = [text for part in line.split(";;") for text in ids.get(part.strip(), [part.strip()])]
    return [text.replace("RUN", "~runs/[r]").replace("~", f"/{SHOWN}/") for text in texts]


def test_every_command_has_a_case() -> None:
    assert {line.split()[1] for line in CASES} == {*COMMANDS, *RESEARCH}


def squeezed(text: str) -> str:
    """The text without white space: lines and cells are broken to fit the terminal."""
    return "".join(text.split())


# Texts of programs and suggested command lines are never broken, so that they can be copied.
WHOLE = re.compile(
    r'^"""(?s:.*?)"""\n|^def .*\n(?:(?:[ )].*|def .*|)\n)*|^ +(?:evolve|blis|vllm) .*\n|^/.*: [\d.]+ MB\n', re.MULTILINE
)


@pytest.mark.parametrize("case", CASES)
def test_foreign_text_is_printed_as_it_is_and_fits(
    case: str, world: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    given, _, expected = case.partition(" =>")
    status, name, *_ = given.split()
    args = words_of(given.removeprefix(status), world)
    capsys.readouterr()
    ended = research_command(args) if name in RESEARCH else evolve(*args)
    out, err = capsys.readouterr()
    assert ended == int(status), (out, err)
    for text in texts_of(expected):
        assert squeezed(text) in squeezed(out + err), (text, out, err)
    assert not [c for c in out + err if hidden(c) and c not in "\n\t"]
    if name not in ("llm", "export"):  # these print texts for others to read
        assert [line for line in WHOLE.sub("", out).splitlines() if cell_len(line) > 80] == []


def test_files_for_people_have_the_text_too(world: Path) -> None:
    """The summary of a run, the Go and how it is registered; a bar in an id does not end a cell."""
    summary = (world / "runs" / "[r]" / "summary.md").read_text()
    assert (
        all(ident in summary for ident in (CHAT, SPARSE, OVERLOADED)) and "| [bold]x[/bold]\\|y | fitted |" in summary
    )
    assert SHOWN in summary
    given = ("emit", world / "[f].py", "--experiments")
    assert evolve(*given, world / "[e].yaml", "--id", CODE, "--id", CHAT, "--out", world / "[go2]") == 0
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
    key: str, value: object, line: str, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(mapping(**{key: value})))
    assert evolve("predict", "floor", "--experiments", tmp_path / "e.yaml") == 2
    err = capsys.readouterr().err
    assert err.startswith(f"evolve: {tmp_path}/e.yaml: experiment ") and line in err and err.count("\n") == 1


def test_a_folder_whose_name_cannot_be_an_id_is_refused(world: Path, capsys: Capsys) -> None:
    (world / "1-a-tp1-b,c").mkdir()
    (world / "1-a-tp1-b,c" / "traces.json").write_text("")
    assert evolve("ingest", world / "1-a-tp1-b,c", "--out", world / "[j]", "--hardware", "H100", "--quiet") == 2
    assert "1-a-tp1-b,c: its name cannot be used for an output: rename it" in capsys.readouterr().err
