"""INTEGRATION.md, followed literally: its command has the deployment's limits, its program builds and runs."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from commands import evolve
from host_library import add_library

from evolve.host.deployments import host_deployments, known_host, of_experiment, of_names
from simulator.language.complete import complete
from simulator.language.parse import parse
from simulator.serving.bundled import bundled_experiments, load_specs
from translate_go import BackendName, emit, find_go
from translate_go.guide import limits_of
from translate_go.target import MODULE
from translate_go.toolchain import go, gofmt, write_module
from translate_go.vectors import overhead_ticks, step_ticks

needs_go = pytest.mark.skipif(find_go() is None, reason="no Go toolchain")

RUN = of_experiment(next(e for e in bundled_experiments() if e.id == "llama-2-70b-tp4-general"))
QUEUE = "def queueing_time(r, s, *, q: us = 150.0, k: us/token = 0.25): return q + k * r.input_len"
PROGRAM = complete(parse(f"def step_time(b, s, *, k: us/token = 0.5): return s.weights_us + k * b.tokens\n{QUEUE}"))
SEATED = complete(parse("def step_time(b, s, *, k: us = 3.0): return s.weights_us + k * s.max_num_seqs"))
FREE = complete(parse("def step_time(b, s, *, k: us/token = 0.5): return k * b.prefill_tokens"))
CASES = {
    "baked": (PROGRAM, [RUN]),
    "open": (PROGRAM, []),
    "seated": (SEATED, [RUN]),
    "free": (FREE, []),
    "two": (PROGRAM, [RUN, replace(RUN, name="other")]),
    "two-seated": (SEATED, [RUN, replace(RUN, name="other")]),
    "many": (PROGRAM, [replace(RUN, name=f"run {i}") for i in range(9)]),
}
TEXTS = {
    (target, what): emit(program, target=target, deployments=deployments, name=BackendName("my-fit"))["INTEGRATION.md"]
    for target in ("blis-4", "blis-5")
    for what, (program, deployments) in CASES.items()
}
every = pytest.mark.parametrize(("target", "what"), TEXTS)


def command(text: str) -> dict[str, str]:
    """The flags of the command, each with its value."""
    found = re.search(r"\./blis \w+ ((?:.*\\\n)*.*)\n", text)
    assert found
    words = found[1].replace("\\", " ").split()
    assert all(word.startswith("--") for word in words[::2])
    return dict(zip(words[::2], words[1::2], strict=True))


@every
def test_each_deployment_has_its_flags(target: str, what: str) -> None:
    """The command is for the first; what differs for the others is beside it, where they are few."""
    deployments, text = CASES[what][1], TEXTS[target, what]
    lines = text.partition("With the others give these instead:\n\n")[2].partition("\n\n")[0].splitlines()
    assert len(lines) == (len(deployments) - 1 if 1 < len(deployments) < 9 else 0)
    first, flag = command(text), "--latency-model" if target == "blis-4" else "--latency-backend"
    for line in lines:
        words = line.split()
        other = dict(zip(words[::2], words[1::2], strict=True))
        assert set(other) < set(first) and "--total-kv-blocks" in other
        assert other.pop(flag).endswith("-other")
        assert other == {name: first[name] for name in other}  # it is the same deployment
    assert ("evolve emit --host-facts" in text) == (len(deployments) == 9)


def test_the_command_has_the_limits_of_the_deployment() -> None:
    """They are those of configs/experiments_h100.yaml."""
    words = """--model meta-llama/llama-2-70b-hf --hardware H100 --tp 4 --latency-model my-fit --trace-header header.yaml
        --trace-data trace.csv --results-path results.json --total-kv-blocks 31356 --block-size-in-tokens 16
        --max-num-seqs 128 --max-num-batched-tokens 2048 --max-model-len 4096 --long-prefill-token-threshold 0
        --horizon 86400000000 --cache-signal-delay 0 --snapshot-refresh-interval 0"""
    assert [word for pair in command(TEXTS["blis-4", "baked"]).items() for word in pair] == shlex.split(words)
    frozen = command(TEXTS["blis-5", "baked"])
    assert (frozen["--latency-backend"], frozen["--total-kv-blocks"]) == ("my-fit", "31356")
    assert (frozen["--max-num-running-reqs"], frozen["--max-num-scheduled-tokens"]) == ("128", "2048")


def test_a_backend_for_every_model_is_described_by_the_hosts_names() -> None:
    gpus = ("A100-SXM-80GB",)
    recorded = host_deployments(gpus)[:2]
    page = emit(PROGRAM, target="blis-4", deployments=recorded, host=known_host(gpus))["INTEGRATION.md"]
    flags = command(page)
    assert [flags[name] for name in ("--model", "--hardware", "--tp")] == ["meta-llama/llama-2-7b-hf", "A100-SXM", "1"]
    assert not re.search(r"(H100|A100|H200)\S*-\d+GB", page)


@pytest.mark.parametrize(
    "words",
    [
        "floor --name my-fit --id llama-2-7b-tp1-general --max-constants 20",
        "floor --model llama-2-7b --hardware 'A100 80GB' --tp 2",
        "roofline --host-facts",
        "{mine} --experiments {runs} --id own",
    ],
)
def test_the_line_with_into_repeats_the_options(words: str, tmp_path: Path) -> None:
    """It is a command that emits the same Go."""
    (tmp_path / "my own.py").write_text(
        "def step_time(b, s, *, k: us/token = 0.5): return s.weights_us + k * b.tokens\n"
    )
    [run] = [spec for spec in load_specs("experiments_h100.yaml") if spec.id == "llama-2-7b-tp1-general"]
    (tmp_path / "runs.yaml").write_text(json.dumps({"version": 1, "experiments": [replace(run, id="own").to_entry()]}))
    files = {"{mine}": str(tmp_path / "my own.py"), "{runs}": str(tmp_path / "runs.yaml")}
    assert evolve("emit", *(files.get(word, word) for word in shlex.split(words)), "--out", tmp_path / "go") == 0
    page = (tmp_path / "go/INTEGRATION.md").read_text()
    (line,) = re.findall(r"^    (evolve emit .*) --into CHECKOUT$", page, re.MULTILINE)
    assert evolve(*shlex.split(line)[1:], "--out", tmp_path / "again") == 0
    for path in (tmp_path / "go").iterdir():
        assert (tmp_path / "again" / path.name).read_text() == path.read_text()


def test_into_is_not_offered_where_it_would_be_refused() -> None:
    """Nothing says which of two deployments the factory makes, or of which it takes the facts."""
    offered = {what for (target, what), text in TEXTS.items() if target == "blis-4" and "--into CHECKOUT" in text}
    assert offered == {"baked", "seated", "free", "many"}
    assert not any("--into" in text for (target, _), text in TEXTS.items() if target == "blis-5")


def test_a_name_is_one_word_of_the_shell() -> None:
    text = emit(PROGRAM, target="blis-4", deployments=[replace(RUN, model="My model; `x`")])["INTEGRATION.md"]
    (line,) = re.findall(r"\./blis replay (.*) \\\n", text)
    assert shlex.split(line)[:3] == ["--model", "my model; `x`", "--hardware"]


def test_the_threshold_of_the_engine_is_given() -> None:
    run = replace(RUN, long_prefill_token_threshold=512)
    text = emit(PROGRAM, target="blis-4", deployments=[run])["INTEGRATION.md"]
    assert command(text)["--long-prefill-token-threshold"] == "512"
    assert "LongPrefillTokenThreshold: 512," in text
    assert limits_of(of_names("llama-3.1-70b", "H100", 4)).kv_blocks == 30_756  # as in docs/plan.md


def test_several_deployments_are_a_backend_each() -> None:
    """Under names of their own, made by the constructors that the Go has; and why --into is missing there."""
    for target, flag in (("blis-4", "--latency-model"), ("blis-5", "--latency-backend")):
        files = emit(PROGRAM, target=target, deployments=CASES["two"][1], name=BackendName("my-fit"))
        text, go_text = files["INTEGRATION.md"], files["myfit.go"]
        made = re.findall(r"return (NewMyFit\w*)\(", text)
        assert made == ["NewMyFitForLlama_2_70bTp4General", "NewMyFitForOther"]
        assert all(f"func {name}(" in go_text for name in made) and "NewMyFitBackend" not in go_text + text
        assert command(text)[flag] == "my-fit-llama-2-70b-tp4-general"
        assert "are not compared with" in " ".join(text.split())
        assert ("refuses these 2 deployments" in text) == (target == "blis-4")
    text = TEXTS["blis-4", "two"]
    names = "my-fit-llama-2-70b-tp4-general", "my-fit-other"
    assert all(f'       case "{name}":\n' in text and f'       "{name}": true,\n' in text for name in names)
    assert f'expected := []string{{"{names[0]}", "{names[1]}", "roofline", "trained-physics"}}' in text


def program_of(text: str) -> str:
    (program,) = re.findall(r"```go\n(.*?)```", text, re.DOTALL)
    return str(program)


@every
def test_the_functions_of_the_hosts_package_that_the_code_calls_are_listed(target: str, what: str) -> None:
    """They are what the stand-in's package has; a host without them does not compile the files."""
    program, deployments = CASES[what]
    code = emit(program, target=target, deployments=deployments, name=BackendName("my-fit"))["myfit.go"]
    called = {f for f in ("clampToInt64", "applyAdapterOverhead") if f"{f}(" in code}
    text = " ".join(TEXTS[target, what].split())
    listed = re.search(r"does not compile in a version of the host without them:([^.]*)\.", text)
    assert called == (set(re.findall(r"`(\w+)`", listed[1])) if listed else set())
    assert bool(called) == (target == "blis-4")


@needs_go
@every
def test_the_program_builds_and_runs(target: str, what: str, tmp_path: Path) -> None:
    program, deployments = CASES[what]
    files = emit(program, target=target, deployments=deployments, name=BackendName("my-fit"))
    write_module(files, tmp_path, target)
    add_library(tmp_path, MODULE, main=target == "blis-4")
    folder = tmp_path / "cmd" / "myfit"
    folder.mkdir(parents=True)
    (folder / "main.go").write_text(program_of(files["INTEGRATION.md"]), "utf-8")
    assert "cmd/" not in gofmt(tmp_path).stdout
    ran = go(tmp_path, "run", "./cmd/myfit")
    if what == "open":  # the facts are to be filled in
        assert ran.returncode and "my-fit: MyFitDeployment." in ran.stderr
        return
    assert not ran.returncode, ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) == 11 and lines[-1] == "10 of 10 completed, 0 preemptions"
    facts = RUN.facts if deployments else {}
    prompt = ((1, 500, 0, 500),)
    ttft_us = overhead_ticks(program, "queueing_time", facts, 500) + step_ticks(program, prompt, facts)
    assert lines[3].startswith(f"request_3: TTFT {ttft_us} us, E2E ")


_HOST = """
package latency

import "github.com/inference-sim/inference-sim/sim"

type latencyOptions struct {{
	adapterCost sim.AdapterCost
	{field}
}}

type Option func(*latencyOptions)

{option}

func newLatencyModel(coeffs sim.LatencyCoeffs, hw sim.ModelHardwareConfig, o latencyOptions) (sim.LatencyModel, error) {{
	switch backend {{
	{case}
	}}
	return nil, nil
}}

var backend = "my-fit"
var _ = newLatencyModel
"""


@needs_go
@pytest.mark.parametrize("what", ["baked", "open", "seated", "free", "two", "two-seated", "many"])
def test_what_is_to_be_added_to_the_host_compiles(what: str, tmp_path: Path) -> None:
    program, deployments = CASES[what]
    files = emit(program, target="blis-4", deployments=deployments, name=BackendName("my-fit"))
    text = TEXTS["blis-4", what]
    cases = re.findall(r'^       case "my-fit.*":\n(?: {11}.*\n)+', text, re.MULTILINE)
    assert len(cases) == (2 if what.startswith("two") else 1)
    case = "".join(cases)
    field = re.findall(r"the field `(.*)` in `latencyOptions`", text)
    option = re.findall(r"^    // WithMyFitOptions.*?^    }$", text, re.MULTILINE | re.DOTALL)
    assert len(field) == len(option) == ("seated" in what)
    write_module(files, tmp_path, "blis-4")
    factory = re.findall(r"^    func NewMyFitBackend.*?^    }$", text, re.MULTILINE | re.DOTALL)
    assert len(factory) == (what == "open")
    host = _HOST.format(field="".join(field), option="".join(option + factory), case=case)
    (tmp_path / "sim" / "latency" / "host.go").write_text(host, "utf-8")
    built = go(tmp_path, "vet", "./sim/latency")
    assert not built.returncode, built.stderr
