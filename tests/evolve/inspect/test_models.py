"""Models of the user's own: kept from a raw config.json, known wherever a deployment is named, and nowhere else."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from commands import Capsys, as_json, evolve, printed, refused
from paths import ROOT

from simulator.serving import model as models
from simulator.serving.bundled import load_experiments
from simulator.serving.digests import data_hash
from simulator.serving.engine import Engine
from simulator.serving.known import datasheet_deployments, facts_of, measured_deployments
from simulator.serving.model import model_table
from translate_go import find_go

# A config.json as published on Hugging Face, with keys that only other programs read.
RAW: dict[str, Any] = json.loads("""{
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
  "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 28, "num_key_value_heads": 8, "pretraining_tp": 1,
  "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 128256}""")
FP8 = json.loads("""{"format": "float-quantized", "ignore": ["lm_head"], "quant_method": "compressed-tensors",
  "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}}}""")
PLAN = """
version: 1
experiments:
- {id: a, model: my-model, hardware: H100, engine: {max_num_seqs: 128, max_num_batched_tokens: 2048},
   workload: {name: chat, stages: [{rate: 2.0, duration_s: 20}], prompt_len: 300, output_len: 20}}
- {id: b, model: my-model, hardware: H100, engine: {tensor_parallel: 2},
   workload: {name: chat, stages: [{rate: 2.0, duration_s: 20}], prompt_len: 300, output_len: 20}}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVOLVE_MODELS", str(tmp_path / "kept"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "kept"


def write(name: str = "my-model", generation: dict[str, Any] | None = None, **changes: Any) -> str:
    Path(name).mkdir(exist_ok=True)
    (Path(name) / "config.json").write_text(json.dumps(RAW | changes))
    if generation is not None:
        (Path(name) / "generation_config.json").write_text(json.dumps(generation))
    return name


def test_a_model_is_kept_listed_shown_and_removed(home: Path, capsys: Capsys) -> None:
    assert "no models of your own" in printed(capsys, "model", "list")
    out = printed(capsys, "model", "add", write(generation={"top_p": 0.9, "temperature": 0.6}))
    assert "28 layers of 4096, 32 heads and 8 KV heads of 128" in out and "sampling top_p 0.9, temperature 0.6" in out
    assert str(home / "my-model.json") in out.replace("\n", "")
    assert out == printed(capsys, "model", "show", "my-model") + "  named by its folder\n"
    assert printed(capsys, "model", "list") == f"my-model  {home / 'my-model.json'}\n"
    assert as_json(capsys, "model", "list") == {"models": {"my-model": str(home / "my-model.json")}}
    shown = as_json(capsys, "model", "show", "my-model")
    assert shown["config"] == RAW and shown["generation_config"] == {"top_p": 0.9, "temperature": 0.6}
    assert "Models of your own\n  my-model" in printed(capsys, "list")
    assert as_json(capsys, "list")["own_models"] == ["my-model"]
    assert "shipped" in printed(capsys, "model", "show", "llama-3.1-8b")
    assert printed(capsys, "model", "remove", "my-model") == f"removed {home / 'my-model.json'}\n"
    assert "30 layers" in printed(capsys, "model", "add", write(num_hidden_layers=30), "--replace")
    assert "30 layers" in printed(capsys, "model", "show", "my-model")
    printed(capsys, "model", "remove", "my-model")
    assert not list(home.iterdir()) and "own_models" in printed(capsys, "list", "--json")


def test_what_json_does_not_know_is_kept_as_text(capsys: Capsys) -> None:
    printed(capsys, "model", "add", write(time_step_limit=[0.0, float("inf")]))
    assert as_json(capsys, "model", "show", "my-model")["config"]["time_step_limit"] == [0.0, "inf"]


def test_the_name_is_that_of_the_option_the_folder_or_the_file(home: Path, capsys: Capsys) -> None:
    folder = write("some-folder")
    printed(capsys, "model", "add", f"{folder}/config.json")
    (Path(folder) / "config.json").rename("alone.json")
    printed(capsys, "model", "add", "alone.json")
    printed(capsys, "model", "add", "alone.json", "--id", "me/My-Model.v2")
    assert sorted(models.own_models()) == ["alone", "me/My-Model.v2", "some-folder"]
    assert {path.name for path in home.iterdir()} == {"alone.json", "some-folder.json", "me%2FMy-Model.v2.json"}


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ("my-model", "is kept already in "),
        ("my-model --id llama-2-7b", "--id llama-2-7b: is a shipped model"),
        ("my-model --id meta-llama/Llama-2-7b-hf", "is a shipped model"),
        ("my-model --id Llama-2-7B", "is llama-2-7b in other letters"),
        ("my-model --id My-Model", "is my-model in other letters"),
        ("my-model --id a,b", "--id a,b: is not a name of letters, digits"),
        ("my-model --id ../../etc", "is not a name of letters, digits"),
        ("my-model --id " + 101 * "x", "is not a name of letters, digits"),
        ("nowhere", "nowhere: cannot be read (No such file or directory)"),
        ("my-model --id x --generation-config no.json", "no.json: cannot be read"),
        ("empty", "empty: the folder has no config.json"),
        ("bad --id x", "bad/config.json: model_config.vocab_size must be >= 1, got 0"),
        ("sampled --id x", "sampled/config.json: model_config.generation_config.top_p must be a number, got 'x'"),
    ],
)
def test_what_cannot_be_kept(args: str, problem: str, home: Path, capsys: Capsys) -> None:
    printed(capsys, "model", "add", write())
    Path("empty").mkdir()
    write("bad", vocab_size=0)
    write("sampled", generation={"top_p": "x"})
    assert problem in refused(capsys, "model", "add", *args.split())
    assert [path.name for path in home.iterdir()] == ["my-model.json"]


def test_a_damaged_file_is_named_and_can_be_replaced(home: Path, capsys: Capsys) -> None:
    printed(capsys, "model", "add", write())
    for text in ("{", "[]", "{}", '{"id": "other", "config": {}}', '{"id": "my-model", "config": {}, "x": 1}'):
        (home / "my-model.json").write_text(text)
        models.reread()
        err = refused(capsys, "model", "list")
        assert str(home / "my-model.json") in err
    printed(capsys, "model", "add", "my-model", "--replace")
    printed(capsys, "model", "list")
    (home / "my-model.json").write_text("{")
    models.reread()
    printed(capsys, "model", "remove", "my-model")
    assert "is not a model of your own" in refused(capsys, "model", "remove", "my-model")
    assert "only your own can be removed" in refused(capsys, "model", "remove", "llama-2-7b")
    assert "nowhere: is not a known model" in refused(capsys, "model", "show", "nowhere")


@pytest.mark.parametrize("changes", [{}, {"quantization_config": FP8}, {"_name_or_path": "/data/my-model-fp8"}])
def test_an_experiment_means_the_same_by_name_and_by_config(
    changes: dict[str, Any], tmp_path: Path, capsys: Capsys
) -> None:
    printed(capsys, "model", "add", write(generation={"top_k": 20}, **changes))
    Path("name.yaml").write_text(PLAN)
    terms = json.dumps(RAW | changes | {"generation_config": {"top_k": 20}})
    Path("config.yaml").write_text(PLAN.replace("model: my-model", f"model: my-model, model_config: {terms}"))
    by_name, by_config = load_experiments(Path("name.yaml")), load_experiments(Path("config.yaml"))
    assert by_name == by_config and data_hash(by_name) == data_hash(by_config)
    assert [e.facts for e in by_name] == [facts_of("my-model", "H100", Engine(tensor_parallel=tp)) for tp in (1, 2)]
    assert by_name[0].facts["is_fp8"] == ("quantization_config" in changes)  # a name decides nothing
    assert any("the name says fp8" in note for note in by_name[0].notes) == ("_name_or_path" in changes)


@pytest.mark.parametrize(
    ("published", "expected"),
    [("my-org/My-8B", "my-org/My-8B"), ("/home/me/x", "my-model"), ("meta-llama/Llama-3.1-8B-Instruct", "my-model")],
)
def test_a_model_has_the_name_of_its_config_unless_that_is_a_path_or_another_model(
    published: str, expected: str, capsys: Capsys
) -> None:
    out = printed(capsys, "model", "add", write(_name_or_path=published))
    assert out.startswith(f"{expected}: ")
    assert f"named by {'its folder' if expected == 'my-model' else '_name_or_path'}" in out


@pytest.mark.parametrize("named", ["my-model", "my-model/config.json"])
def test_the_quantization_of_a_file_beside_config_json_is_read(named: str, capsys: Capsys) -> None:
    """NVIDIA's checkpoints have it in hf_quant_config.json."""
    algorithm = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head", "*self_attn*"]}
    beside = Path(write()) / "hf_quant_config.json"
    beside.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": algorithm}))
    out = printed(capsys, "model", "add", named, "--id", "mine")
    assert "weights of 8 bits, fp8; attention bf16 of 16; KV cache of 8 bits" in out
    beside.write_text("{}")
    assert str(beside) in refused(capsys, "model", "add", named, "--id", "other")
    write(quantization_config=FP8)  # its own quantization_config comes first, as in vLLM
    assert "weights of 8 bits, fp8\n" in printed(capsys, "model", "add", named, "--id", "other")


def test_sampling_that_is_unknown_is_a_note(capsys: Capsys) -> None:
    assert "sampling unknown" in printed(capsys, "model", "add", write())
    Path("mine.yaml").write_text(PLAN)
    note = load_experiments(Path("mine.yaml"))[0].notes[0]
    assert "generation_config is unknown" in note and "model add CONFIG --generation-config FILE --replace" in note
    Path("sampling.json").write_text('{"top_k": 20}')
    added = printed(capsys, "model", "add", "my-model", "--generation-config", "sampling.json", "--replace")
    assert "sampling top_k 20" in added and load_experiments(Path("mine.yaml"))[0].notes == ()


def test_an_experiment_may_give_a_known_model_another_sampling(capsys: Capsys) -> None:
    printed(capsys, "model", "add", write())
    given = "model: my-model, model_config: {generation_config: {top_k: 20}}"
    Path("mine.yaml").write_text(PLAN.replace("model: my-model", given, 1))
    sampled, plain = load_experiments(Path("mine.yaml"))
    assert sampled.facts["sampling_sort"] == 1 and plain.facts["sampling_sort"] == 0
    assert sampled.facts["layers"] == 28 and sampled.notes == ()


CHANGES: list[dict[str, Any]] = [{"num_hidden_layers": 29}, {"head_dim": 64}, {"tie_word_embeddings": True}]


def test_the_data_of_a_run_change_with_the_models_config(capsys: Capsys) -> None:
    Path("mine.yaml").write_text(PLAN)
    found = []
    for change in {}, {"quantization_config": FP8}, *CHANGES:
        printed(capsys, "model", "add", write(**change), "--replace")
        found.append(data_hash(load_experiments(Path("mine.yaml"))))
    assert len(set(found)) == len(found) == 5


def test_what_is_the_same_on_every_machine_knows_no_model_of_ones_own(capsys: Capsys) -> None:
    before = [d.name for d in measured_deployments()], list(datasheet_deployments()), list(model_table())
    printed(capsys, "model", "add", write())
    assert before == ([d.name for d in measured_deployments()], list(datasheet_deployments()), list(model_table()))


def test_a_program_is_checked_on_the_deployments_of_a_file(capsys: Capsys) -> None:
    """28 layers of 20 us are less than 590 us, so that a step would take no time."""
    printed(capsys, "model", "add", write())
    Path("mine.yaml").write_text(PLAN)
    Path("p.py").write_text("def step_time(b, s, *, k=20.0, c=590.0): return k * s.layers - c + b.kv_sum * 0")
    at = "show", "--check", "p.py", "--experiments", "mine.yaml"
    assert "my-model tp1" in printed(capsys, *at, status=1)
    assert "my-model tp2" in printed(capsys, *at, "--id", "b", status=1)
    assert "no such experiment: there are a, b" in refused(capsys, *at, "--id", "c")
    assert "leave out PROGRAM, --experiments" in refused(capsys, "show", "--fields", "--experiments", "mine.yaml")


def test_emitted_go_knows_a_model_by_its_hugging_face_name(tmp_path: Path, capsys: Capsys) -> None:
    """Where its config.json has one, which is no folder and no other model's; else `model add` says how to give it."""

    def added(name: str, *options: str, **changes: Any) -> tuple[str, str]:
        out = " ".join(printed(capsys, "model", "add", write(name, **changes), *options, "--replace").split())
        ident = options[-1] if options else name
        printed(capsys, "emit", "floor", "--out", "go", "--model", ident, "--hardware", "H100")
        return out, Path("go/fitted.go").read_text()

    out, go = added("mine", "--id", "mine", _name_or_path="my-org/My-Model-8B")
    assert "in emitted Go also my-org/My-Model-8B, as its config.json says" in out
    assert '{"my-org/my-model-8b", "mine"}' in go  # the host's names are compared in lower case
    for changes in {}, {"_name_or_path": "/home/me/mine"}, {"_name_or_path": "meta-llama/Llama-3.1-8B-Instruct"}:
        out, go = added("mine", **changes)
        assert "in emitted Go mine alone" in out and "--id ORGANISATION/mine" in out
        assert ', "mine"}' not in go
    out, go = added("mine", "--id", "my-org/mine")
    assert "in emitted Go" not in out and '"my-org/mine"' in go


@pytest.mark.slow
def test_every_command_of_the_recipe_for_a_model_of_ones_own(capsys: Capsys) -> None:
    """docs/calibrate.md, to the letter, on a machine without Go less --check."""
    page = (ROOT / "docs" / "calibrate.md").read_text("utf-8")
    recipe = page[page.index("## A model of your own, from its config.json to Go") :]
    plan, script = (re.findall(rf"^```{kind}\n(.*?)^```$", recipe, re.DOTALL | re.M)[0] for kind in ("yaml", "sh"))
    write(generation={"top_p": 0.9})
    Path("mine.yaml").write_text(plan)
    commands = [shlex.split(line, comments=True) for line in script.splitlines()]
    assert len(commands) == 9 and all(words[0] == "evolve" for words in commands)
    for words in commands:
        assert evolve(*(word for word in words[1:] if word != "--check" or find_go())) == 0, words
    assert Path("requests.csv").read_text().count("\n") > 200
    assert "my-model" in "".join(path.read_text() for path in Path("go-tp2").iterdir())
