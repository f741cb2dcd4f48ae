"""Facts of models and GPUs that the host lacks, by name: the tables of a backend for every deployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.common.errors import Section
from simulator.model.architecture import Sampling
from simulator.model.quantization import quantized
from simulator.model.terms import activation, flat_config
from translate_go.naming import digits, quoted

# GPUs of the host's own hardware table, by which its command looks up their figures. It has a GPU twice.
HOST_GPUS = ("H100", "H200", "A100-SXM", "A100-80")


def host_name(names: Sequence[str]) -> str:
    """The name of these that the host's hardware table has; the first if it has none."""
    return next((name for name in HOST_GPUS if name in names), names[0])


@dataclass(frozen=True, slots=True)
class KnownGpu:
    """A GPU under all its names.

    issue_us: time that a host needs to issue a captured step. blackwell: True for that generation in data centres.
    kernels: its tables of measured kernels, "" if it has none.
    """

    names: tuple[str, ...]
    link_gb_per_s: float  # in one direction
    issue_us: float
    blackwell: bool = False
    kernels: str = ""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model under all its names, with what the host does not know of it.

    sampling: what its generation_config asks for. window, window_layers: tokens of its sliding window, and the layers
    that have one. told: False if its kernels depend on more that the host does not know.
    """

    names: tuple[str, ...]
    sampling: Sampling
    window: int = 0
    window_layers: int = 0
    told: bool = True


@dataclass(frozen=True, slots=True)
class Host:
    """The GPUs and models that the emitted Go knows by name. All others work too, with the options' defaults."""

    gpus: tuple[KnownGpu, ...]
    models: tuple[KnownModel, ...]

    @property
    def measured(self) -> tuple[KnownGpu, ...]:
        return tuple(gpu for gpu in self.gpus if gpu.kernels)


@dataclass(frozen=True)
class HostConfig:
    """The host's ModelHardwareConfig for a model on its GPUs, with numbers by the host's names."""

    model: str
    gpu: str
    tp: int
    sizes: Mapping[str, float]  # fields of ModelConfig
    activation: str
    peaks: Mapping[str, float]  # fields of HardwareCalib

    def literal(self) -> str:
        """The value in Go, on one line."""
        sizes = ", ".join(f"{name}: {digits(value)}" for name, value in self.sizes.items())
        peaks = ", ".join(f"{name}: {digits(value)}" for name, value in self.peaks.items())
        return (
            f"sim.ModelHardwareConfig{{Model: {quoted(self.model)}, GPU: {quoted(self.gpu)}, TP: {self.tp}, "
            f"ModelConfig: sim.ModelConfig{{{sizes}, HiddenAct: {quoted(self.activation)}}}, "
            f"HWConfig: sim.HardwareCalib{{{peaks}}}}}"
        )


# field of the host's ModelConfig -> keys of config.json, of which the first that is not 0 counts
_SIZES = {
    "NumLayers": ("num_hidden_layers",),
    "HiddenDim": ("hidden_size",),
    "NumHeads": ("num_attention_heads",),
    "NumKVHeads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "num_attention_heads"),
    "HeadDim": ("head_dim",),
    "VocabSize": ("vocab_size",),
    "IntermediateDim": ("intermediate_size", "ffn_hidden_size"),
    "NumLocalExperts": ("num_local_experts", "num_routed_experts", "n_routed_experts", "num_experts"),
    "NumExpertsPerTok": ("num_experts_per_tok",),
    "MoEExpertFFNDim": ("moe_intermediate_size",),
    "SharedExpertFFNDim": ("shared_expert_intermediate_size",),
    "InterleaveMoELayerStep": ("interleave_moe_layer_step",),
    "DenseIntermediateDim": ("intermediate_size_mlp",),
    "KVLoraRank": ("kv_lora_rank",),
    "QKRopeHeadDim": ("qk_rope_head_dim",),
    "FirstKDenseReplace": ("first_k_dense_replace",),
}
_PEAKS = {"TFlopsPeak": "bf16_tflops", "TFlopsFP8": "fp8_tflops", "BwPeakTBs": "memory_tb_per_s"}


def host_config(config: Mapping[str, Any], hardware: Mapping[str, Any], model: str, gpu: str, tp: int) -> HostConfig:
    """The host's reading of a model's config.json, and our figures of the GPU under its names."""
    flat = flat_config(config)
    sizes = {name: next((flat[key] for key in keys if flat.get(key)), 0) for name, keys in _SIZES.items()}
    if not sizes["SharedExpertFFNDim"] and flat.get("n_shared_experts"):
        sizes["SharedExpertFFNDim"] = flat["n_shared_experts"] * (sizes["MoEExpertFFNDim"] or sizes["IntermediateDim"])
    bits = int(quantized(Section(model, "model_config", flat)).bits)
    sizes |= {"BytesPerParam": 2, "WeightBytesPerParam": bits / 8 if bits < 16 else 0}
    peaks = {name: float(hardware.get(key) or 0.0) for name, key in _PEAKS.items()}
    given = {name: float(value) for name, value in sizes.items() if value}
    return HostConfig(model, gpu, tp, given, activation(Section(model, "model_config", flat)), peaks)
