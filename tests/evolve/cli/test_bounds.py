"""Files that a stranger wrote to exhaust time or memory: each is one line, from every command that reads such a file.

Nothing here is timed: the limits are counts, and without them these tests would not come to an end.
"""

from __future__ import annotations

import copy
import json
import lzma
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import Capsys
from reference import LEAST

from archive import journal
from evolve.cli import entry
from evolve.cli.entry import run_command
from evolve.summary.result import LONGER
from simulator.common import documents
from simulator.common.documents import LONGEST_NUMBER, LONGEST_TEXT, parse_json, parse_yaml
from simulator.common.errors import LONGEST_MESSAGE, InputError, shown
from simulator.serving import limits

# 10**12 values: each of twelve lists has the one before it ten times.
ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)
MERGES = "a0: &a0 {k0: x}\n" + "".join(
    f"a{i}: &a{i} {{k{i}: x, <<: [{', '.join([f'*a{i - 1}'] * 10)}]}}\n" for i in range(1, 12)
)
DEEP = "[" * 20_000 + "]" * 20_000
DIGITS = "9" * 1_000_000
MANY = f"has more than {documents.MOST_VALUES:,} values"
NESTED = f"is nested too deeply, at most {documents.DEEPEST} levels are read"
LONG = f"has a number of more than {LONGEST_NUMBER} characters"


def written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def refusal(capsys: Capsys, *args: str) -> str:
    """The one line on stderr of a command that the user's input makes end with status 2."""
    capsys.readouterr()
    status = run_command(list(args))
    out, err = capsys.readouterr()
    assert (status, out) == (2, "") and err.count("\n") == 1 and len(err) <= LONGEST_MESSAGE + 100, err[:500]
    return err


def plan(changes: dict[str, Any]) -> str:
    """The least experiments file with values changed at dotted keys."""
    experiment = copy.deepcopy(LEAST)
    for path, value in changes.items():
        *parents, key = path.split(".")
        place = experiment
        for parent in parents:
            place = place.setdefault(parent, {})
        place[key] = value
    return yaml.dump({"version": 1, "experiments": [experiment]}, Dumper=yaml.CSafeDumper)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (ALIASES, MANY),
        (MERGES, MANY),
        ("a: &a [*a]", "the alias *a is inside of what it stands for"),
        (DEEP, NESTED),
        ("- " * 20_000 + "x", NESTED),
        (f"budget: {DIGITS}", LONG),
        (f'budget: !!int "0x{"f" * 1000}"', LONG),
        (f"name: {'x' * (LONGEST_TEXT + 1)}", f"has a text of more than {LONGEST_TEXT:,} characters"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        ("predict", "--experiments"),
        ("fit", "--experiments"),
        ("run", "--experiments"),
        ("run", "--config"),
        ("simulate", "--id", "x", "--experiments"),
        ("emit", "--out", "go", "--id", "x", "--experiments"),
    ],
)
def test_yaml_that_cannot_be_meant(
    command: tuple[str, ...], text: str, problem: str, tmp_path: Path, capsys: Capsys
) -> None:
    path = written(tmp_path, "mine.yaml", text)
    assert problem in refusal(capsys, *command, path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (DEEP, NESTED),
        ('{"a":' * 20_000 + "1" + "}" * 20_000, NESTED),
        (f'{{"a": {DIGITS}}}', LONG),
        ("[" + "0," * documents.MOST_VALUES + "0]", MANY),
        (f'{{"a": "{"x" * (LONGEST_TEXT + 1)}"}}', f"has a text of more than {LONGEST_TEXT:,} characters"),
        ('{"a": 1, "a": 2}', "the key 'a' twice"),
    ],
)
@pytest.mark.parametrize("where", ["config", "case", "record", "run.json", "report.json"])
def test_json_that_cannot_be_meant(
    where: str, text: str, problem: str, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, "mine.json", text)
    run = tmp_path / "run"
    run.mkdir()
    args = {
        "config": ["kernels", path, "--hardware", "H100"],
        "case": ["simulate", "--trace", path, "--case", path],
        "record": ["show", written(tmp_path, "mine.py", "def step_time(b, s, *, k: us = 9.0): return k")],
        "run.json": ["archive", str(run)],
        "report.json": ["list", "--runs", str(tmp_path)],
    }[where]
    written(run, "run.json", text if where == "run.json" else "{}")
    if where == "report.json":
        written(run, where, text)
        monkeypatch.setattr(documents, "MOST_VALUES", documents.MOST_VALUES // LONGER)
    assert problem in refusal(capsys, *args)


# CHANGES => PROBLEM: dotted keys of an experiment, as YAML, and what is said of them.
WRONG_FIGURES = r"""
workload.stages: [{rate: 1e+300, duration_s: 1e-290}] => workload.stages[0].rate must be <= 1e+06
workload.stages: [{rate: 1e-9, duration_s: 1e+10}] => workload.stages[0].duration_s must be <= 1e+09
workload.stages: [{rate: 1e-8, duration_s: 9e+8}, {rate: 1e-8, duration_s: 9e+8}] => workload.stages last 1.8e+09 s
workload.stages: [{rate: 1e+6, duration_s: 21}] => workload.stages offer 2.1e+07 requests
workload.prompt_len: 1000000000000 => workload.prompt_len must be <= MOST_TOKENS
workload.output_len: 1000000000000 => workload.output_len must be <= MOST_TOKENS
workload.stages: [{rate: 1e+4, duration_s: 100}], workload.output_len: 200000 => workload.output_len of 200000 and the \
prompts make 2e+11 tokens, at most 1e+11 are replayed
workload.timeout_s: 1e+18 => workload.timeout_s must be <= 1e+09
engine.max_num_seqs: 1000000000 => engine.max_num_seqs must be <= MOST_SEQS
engine.max_num_batched_tokens: 1000000000 => engine.max_num_batched_tokens must be <=
engine.max_num_seqs: 1000000, engine.max_model_len: 2000000, workload.prompt_len: 1000000, workload.output_len: 1, \
workload.stages: [{rate: 100, duration_s: 40}] => engine.max_num_seqs of 4000 requests of 1000001 tokens makes 4e+09 \
tokens in a batch
model: m, model_config: {num_hidden_layers: 1000000000000, hidden_size: 64, num_attention_heads: 8, vocab_size: 100, \
intermediate_size: 64} => model_config.num_hidden_layers must be <= 1000
hardware: {bf16_tflops: 1e+300, memory_tb_per_s: 1, memory_gb: 80} => bf16_tflops must be <= 100000
hardware: {bf16_tflops: 989, memory_tb_per_s: 3350, memory_gb: 80} => memory_tb_per_s must be <= 100,
hardware: {bf16_tflops: 989, memory_tb_per_s: 3.35, memory_gb: 80000} => usable_gib must be <= 10000,
hardware: {bf16_tflops: 1e-300, memory_tb_per_s: 1, memory_gb: 80} => bf16_tflops must be >= 1
observed.summary: {e2e_ms: {mean: 1e+299}} => observed.summary.e2e_ms.mean must be <= 1e+12
"""
WRONG_FIGURES = WRONG_FIGURES.replace("\\\n", "").replace("MOST_TOKENS", str(limits.MOST_TOKENS))
FIGURES = [
    (yaml.safe_load(f"{{{changes}}}"), problem.strip())
    for changes, problem in (
        line.split("=>") for line in WRONG_FIGURES.replace("MOST_SEQS", str(limits.MOST_SEQS)).strip().splitlines()
    )
]
LONG_VALUES: list[tuple[dict[str, Any], str]] = [
    (
        {"workload.stages": [{"rate": 1, "duration_s": 1}] * 10_001},
        f"workload.stages has 10,001 entries, at most {limits.MOST_STAGES:,} are read",
    ),
    (
        {"model": "m", "model_config": {f"num_hidden_layerz{i}": 1 for i in range(10_000)}},
        "model_config has 10,001 keys, at most 1,000 are read",
    ),
    ({"id": "x" * 100_000}, "id has 100,000 characters, at most 4,096 are read"),
    ({"id": [["x" * 10_000] * 100] * 10}, "id must be text, got [['xxx"),
    ({"model": ["x"] * 50_000}, "model must be text, got ['x', 'x',"),
    ({"x_note": ["x" * 10_000] * 10}, "x_note has more than 20,000 characters"),
]


@pytest.mark.parametrize(("changes", "problem"), [*FIGURES, *LONG_VALUES], ids=lambda value: str(value)[:40])
def test_figures_that_cannot_be_meant(changes: dict[str, Any], problem: str, tmp_path: Path, capsys: Capsys) -> None:
    err = refusal(capsys, "predict", "--experiments", written(tmp_path, "mine.yaml", plan(changes)))
    assert problem in err and len(err) < 1000


BODY = "def step_time(b, s):\n    return "


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (BODY + "(" * 20_000 + "1" + ")" * 20_000, "bytes, at most 20000 are read"),
        (BODY + "(" * 9_000 + "1" + ")" * 9_000, "too many nested parentheses"),
        (BODY + "(" * 150 + "-" * 150 + "1" + ")" * 150, "nested too deeply, at most 100 levels are read"),
        (BODY + "-" * 19_000 + "1", "nested too deeply, at most 100 levels are read"),
        (BODY + "b" + ".a" * 9_000, "nested too deeply, at most 100 levels are read"),
        (BODY + "not " * 4_000 + "b.tokens", "nested too deeply, at most 100 levels are read"),
        (BODY + "1" + "0" * 18_000, "a number too large for float64"),
        (BODY + "1" + "0" * 4_000, "a number too large for float64"),
        (BODY + "1e" + "9" * 18_000, "a number too large for float64"),
    ],
)
@pytest.mark.parametrize("command", [("show", "--check"), ("show",), ("predict",), ("emit", "--out", "go")])
def test_program_texts_that_cannot_be_meant(
    command: tuple[str, ...], text: str, problem: str, tmp_path: Path, capsys: Capsys
) -> None:
    err = refusal(capsys, *command, written(tmp_path, "mine.py", text))
    assert problem in err and len(err) < 500


def test_a_key_of_a_megabyte_is_named_by_its_beginning(tmp_path: Path, capsys: Capsys) -> None:
    path = written(tmp_path, "mine.yaml", f"version: 1\n? {'x' * 900_000}\n: 1\n")
    assert len(refusal(capsys, "predict", "--experiments", path)) < 500


def test_a_file_that_does_not_end(capsys: Capsys) -> None:
    for args in (["predict", "--experiments"], ["run", "--config"], ["simulate", "--trace", "t.csv", "--case"]):
        assert f"is larger than {documents.MOST_BYTES:,} bytes" in refusal(capsys, *args, "/dev/zero")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("journal.jsonl.xz", lzma.compress(b" " * 100_000), "journal.jsonl.xz: more than"),
        (
            "journal.jsonl",
            f"{DEEP}\n".encode(),
            "journal.jsonl:1: not a JSON object: the journal is damaged before its",
        ),
    ],
)
def test_a_journal_that_cannot_be_meant(
    name: str,
    content: bytes,
    problem: str,
    tiny_run: Path,
    tmp_path: Path,
    capsys: Capsys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for kept in ("run.json", "config.yaml"):
        (tmp_path / kept).write_bytes((tiny_run / kept).read_bytes())
    (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(journal, "MOST_BYTES", 99_999)
    assert run_command(["archive", str(tmp_path)]) == 2
    assert problem in capsys.readouterr().err.splitlines()[-1]


def test_what_a_person_writes_is_read() -> None:
    assert parse_yaml(b"a: &a [1, {b: 2.5}]\nc: [*a, *a]\nd: 'text: [['", "f", "") == {
        "a": [1, {"b": 2.5}],
        "c": [[1, {"b": 2.5}]] * 2,
        "d": "text: [[",
    }
    text = '{"a": [1, -2.5e3, "b\\"[[[[", true, null], "c": {}}'
    value = {"a": [1, -2500.0, 'b"[[[[', True, None], "c": {}}
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        assert parse_json(text.encode(encoding), "f", "") == value
    brackets = json.dumps({"a": "[" * 100_000})  # inside a text, brackets are no nesting
    assert parse_json(brackets, "f", "") == {"a": "[" * 100_000}
    with pytest.raises(InputError, match=r"^f: line 2: not valid JSON, Expecting value: correct it$"):
        parse_json('{"a":\n ?}', "f", "correct it")


def test_only_the_beginning_of_a_value_is_looked_at() -> None:
    loop: list[Any] = ["begin"]
    loop.append(loop)
    assert shown(loop) == "['begin', ['begin', ['begin', ['begin', ['begin', ['begin..."
    assert shown([1, True, None, {"a": 2.5}, "b'"]) == repr([1, True, None, {"a": 2.5}, "b'"])
    assert shown(10**100_000) == "a whole number of 332,193 bits"
    assert (shown(None), shown(True), shown("x" * 100)) == ("null", "true", f"'{'x' * 56}...")


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (MemoryError(), 1, "out of memory: use fewer --workers, a shorter load or trace, or allow more memory"),
        (RecursionError(), 2, "something that was read is nested too deeply: flatten it"),
    ],
)
def test_what_no_limit_foresaw_is_one_line(
    error: Exception, status: int, message: str, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    def fails(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(entry.cli, "main", fails)
    assert run_command(["list"]) == status
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.count("\n") == 1
