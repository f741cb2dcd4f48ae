"""The facts of a deployment in Go, computed from what the host knows of model and GPU.

The formulas are those of simulator.experiment.deployment. Only what the program reads is computed. Every operation is float64 in Python's order, and products that are added are
whole numbers below 2^53, so that the facts are equal to the last bit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.errors import InputError
from translate_go.host import Host
from translate_go.hostkernels import curve_method
from translate_go.hosttables import variable
from translate_go.naming import Name
from translate_go.spelling import MARK, columns, curve_name, digits, fact, quoted
from translate_go.target import MODULE

# Local variables in Go, operands first. `m` is the model.
_LOCALS = {
    "layers": "float64(m.layers)",
    "moeLayers": "float64(m.moeLayers)",
    "hidden": "float64(m.hidden)",
    "heads": "float64(m.heads)",
    "kvHeads": "float64(m.kvHeads)",
    "headDim": "float64(m.headDim)",
    "ffn": "float64(m.ffn)",
    "moeFfn": "float64(m.moeFfn)",
    "sharedFfn": "float64(m.sharedFfn)",
    "vocab": "float64(m.vocab)",
    "experts": "float64(m.experts)",
    "activeExperts": "float64(m.active)",
    "matrices": "float64(m.mlpMatrices)",
    "tp": "float64(m.tp)",
    "weightBytes": "float64(m.weightBits) / 8",
    "attention": "hidden*heads*headDim*2 + 2*hidden*kvHeads*headDim",
    "shared": "moeLayers * matrices * hidden * sharedFfn",
    "unrouted": "layers*attention + (layers-moeLayers)*matrices*hidden*ffn + shared",
    "expert": "moeLayers * matrices * hidden * moeFfn // one expert, over all layers",
    "routed": "moeLayers * experts * matrices * hidden * moeFfn",
    "active": "unrouted + expert*activeExperts",
    "kvHeadsPerGpu": "max(kvHeads/tp, 1)",
    "kvBytesPerToken": "2 * layers * kvHeadsPerGpu * headDim * 2",
    "sharedWeightsUs": "(unrouted*weightBytes/tp + vocab*hidden*2/tp) / m.bytesPerUs",
    "embeddings": "2 - <name>Flag(m.tied) // tables of embeddings",
    "expertsUs": "routed * weightBytes / tp / m.bytesPerUs",
}
_FACTS = {
    "layers": "layers",
    "dense_layers": "layers - moeLayers",
    "moe_layers": "moeLayers",
    "hidden": "hidden",
    "heads": "heads",
    "kv_heads": "kvHeads",
    "kv_heads_per_gpu": "kvHeadsPerGpu",
    "head_dim": "headDim",
    "ffn": "ffn",
    "moe_ffn": "moeFfn",
    "vocab": "vocab",
    "experts": "experts",
    "active_experts": "activeExperts",
    "tp": "tp",
    "tp_log2": "math.Log2(tp)",
    "is_moe": "<name>Flag(m.moeLayers > 0)",
    "is_fp8": "<name>Flag(m.isFp8)",
    "sampling_sort": "<name>Flag(m.sampling.Sorts)",
    "repetition_penalty": "<name>Flag(m.sampling.Penalises)",
    "model_params_b": "(unrouted + routed + vocab*hidden*embeddings) / 1e9",
    "active_params_b": "(active + vocab*hidden*embeddings) / 1e9",
    "flops_per_us": "m.flopsPerUs",
    "bytes_per_us": "m.bytesPerUs",
    "link_bytes_per_us": "m.linkBytesPerUs",
    "kv_bytes_per_token": "kvBytesPerToken",
    "shared_weights_us": "sharedWeightsUs",
    "experts_us": "expertsUs",
    "weights_us": "sharedWeightsUs + expertsUs",
    "kv_us_per_token": "kvBytesPerToken / m.bytesPerUs",
    "gemm_us_per_token": "2 * active / tp / m.flopsPerUs",
    "attention_us_per_pair": "4 * heads / tp * headDim * layers / m.flopsPerUs",
    "logits_us_per_row": "2*hidden*vocab/tp/m.flopsPerUs + vocab*4*2/m.bytesPerUs",
    "allreduce_us_per_token": "allreduceUsPerToken",
    "kv_cpu_offload": "<name>Flag(m.kvCPUOffload)",
}
_ALLREDUCE = """\
	allreduceUsPerToken := 0.0
	if m.tp > 1 {
		allreduceUsPerToken = 2 * layers * hidden * 2 * 2 * (tp - 1) / tp / m.linkBytesPerUs
	}
"""

_MODEL = """\
// <name>Model is a model on its GPUs as the formulas of the facts count it, each width that of one expert or layer.
type <name>Model struct {
	layers, moeLayers                       int64 // all, and those with routed experts
	hidden, heads, kvHeads, headDim, vocab  int64
	ffn, moeFfn, sharedFfn, experts, active int64
	mlpMatrices                             int64 // gate, up and down; 2 without a gate
	weightBits, attentionBits, tp           int64
	isFp8                                   bool
<fields>}

// <name>ModelOf reads model and GPU from the host's configuration. It returns an error for a model whose work the
// formulas do not count, naming it and the reason.
func <name>ModelOf(hw sim.ModelHardwareConfig, options <Name>Options) (<name>Model, error) {
	c := hw.ModelConfig
	refuse := func(why string) (<name>Model, error) {
		return <name>Model{}, fmt.Errorf("<registered>: model %q on GPU %q: %s", hw.Model, hw.GPU, why)
	}
	m := <name>Model{
		layers: int64(c.NumLayers), hidden: int64(c.HiddenDim), heads: int64(c.NumHeads), kvHeads: int64(c.NumKVHeads),
		headDim: int64(c.HeadDim), vocab: int64(c.VocabSize), ffn: int64(c.IntermediateDim), mlpMatrices: 3,
		weightBits: 16, attentionBits: 16, tp: int64(hw.TP),
	}
	switch {
	case m.layers < 1 || m.hidden < 1 || m.heads < 1 || m.vocab < 1:
		return refuse("its layers, hidden size, heads or vocabulary are missing: the host has not read its config.json")
	case m.tp < 1:
		return refuse("the tensor parallelism must be at least 1: give --tp")
	case hw.DP > 1:
		return refuse("data parallelism inside an instance is not modelled: leave out --dp")
	case hw.EnableExpertParallel && c.NumLocalExperts > 1:
		return refuse("expert parallelism is not modelled: leave out --enable-expert-parallel")
	case c.KVLoraRank > 0:
		return refuse("latent attention (MLA, kv_lora_rank) is not modelled here: its projections are other matrices")
	}
	// Not every version of the host has these two fields.
	if n := <name>Setting(c, "KVBearingLayers"); n > 0 && n < float64(c.NumLayers) {
		return refuse("it is a hybrid: its layers without a KV cache, of linear attention, are not modelled")
	}
	if bytes := <name>Setting(c, "KVBytesPerParam"); bytes > 0 && bytes != 2 {
		return refuse("the KV cache is counted in 16 bits: leave out --kv-cache-dtype")
	}
	if m.kvHeads == 0 {
		m.kvHeads = m.heads
	}
	if m.headDim == 0 {
		if m.hidden%m.heads != 0 {
			return refuse("its heads do not divide its hidden size, and it has no head_dim")
		}
		m.headDim = m.hidden / m.heads
	}
	if m.heads%m.tp != 0 || m.kvHeads%m.tp != 0 && m.tp%m.kvHeads != 0 {
		return refuse(fmt.Sprintf("%d GPUs do not split its %d heads and %d KV heads evenly", m.tp, m.heads, m.kvHeads))
	}
	if c.HiddenAct == "relu2" || c.HiddenAct == "xielu" {
		m.mlpMatrices = 2 // no gate
	}
	if bytes := c.WeightBytesPerParam; bytes > 0 && bytes != 2 {
		m.weightBits = int64(bytes * 8)
		if bytes > 1 || float64(m.weightBits) != bytes*8 || m.weightBits < 2 {
			return refuse(fmt.Sprintf("weights of %g bytes are not modelled: 16, 8, 4, 3 and 2 bits are", bytes))
		}
		m.attentionBits = m.weightBits
		m.isFp8 = m.weightBits == 8<integer>
	}
	if c.NumLocalExperts > 1 {
		m.experts, m.active, m.moeLayers = int64(c.NumLocalExperts), int64(c.NumExpertsPerTok), m.layers
		m.moeFfn, m.sharedFfn = int64(c.MoEExpertFFNDim), int64(c.SharedExpertFFNDim)
		if m.moeFfn == 0 {
			m.moeFfn = m.ffn
		}
		if m.moeFfn < 1 || m.active < 1 {
			return refuse("the width of its experts, or how many a token uses, is missing")
		}
		switch step := int64(c.InterleaveMoELayerStep); {
		case c.FirstKDenseReplace > 0:
			m.moeLayers -= min(int64(c.FirstKDenseReplace), m.layers)
		case step > 0: // Llama 4: every step-th layer, so that 1 means all, and one shared expert
			m.moeLayers = m.layers / step
			m.sharedFfn = m.moeFfn
			if c.DenseIntermediateDim > 0 {
				m.ffn = int64(c.DenseIntermediateDim)
			}
			if m.isFp8 {
				m.attentionBits = 16 // its fp8 checkpoints leave attention alone
			}
		}
	}
	if m.moeLayers < m.layers && m.ffn < 1 {
		return refuse("the width of its dense layers, intermediate_size, is missing")
	}
"""
_PEAKS = """\
	peaks := []float64{hw.HWConfig.TFlopsPeak, hw.HWConfig.BwPeakTBs}
	if fp8 := hw.HWConfig.TFlopsFP8; fp8 != 0 {
		peaks = append(peaks, fp8)
	}
	for _, peak := range peaks {
		if !(peak > 0) || math.IsInf(peak, 0) {
			return refuse("TFlopsPeak, BwPeakTBs or TFlopsFP8 of the host's hardware table is missing or impossible")
		}
	}
	m.bf16FlopsPerUs, m.fp8FlopsPerUs = hw.HWConfig.TFlopsPeak*1e6, hw.HWConfig.TFlopsFP8*1e6
	m.flopsPerUs, m.bytesPerUs = m.bf16FlopsPerUs, hw.HWConfig.BwPeakTBs*1e6
	if m.isFp8 && m.fp8FlopsPerUs > 0 {
		m.flopsPerUs = m.fp8FlopsPerUs
	}
"""
_LINK = """\
	link := options.LinkGBPerS
	if link == 0 {
		link = gpu.linkGBPerS
	}
	if !(link >= 0) || math.IsInf(link, 0) || <needed> {
		return refuse("the bandwidth of its link is not known: set <Name>Options.LinkGBPerS, GB/s in one direction")
	}
	m.linkBytesPerUs = link * 1e3
"""
_SAMPLING = """\
	for _, known := range <name>KnownModels {
		if strings.EqualFold(known.name, hw.Model) {
			m.sampling = known.sampling
		}
	}
	if options.Sampling != nil {
		m.sampling = *options.Sampling
	}
"""
_KERNELS = """\
	if m.tables = gpu.tables; m.tables == nil {
		return refuse("there are no measured kernels of this GPU, only of <gpus>")
	}
"""
_FLAG = """\
func <name>Flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
"""
_SETTING = """\
// <name>Setting is a number of the model's configuration, 0 where this version of the host has none of that name.
func <name>Setting(config sim.ModelConfig, name string) float64 {
	switch field := reflect.ValueOf(config).FieldByName(name); field.Kind() {
	case reflect.Int, reflect.Int64:
		return float64(field.Int())
	case reflect.Float64:
		return field.Float()
	}
	return 0
}
"""
_SAMPLING_TYPE = """\
// <Name>Sampling is what a model's generation_config asks of the sampler by default.
type <Name>Sampling struct {
	Sorts     bool // top_p < 1 or top_k > 0: every request's vocabulary is sorted
	Penalises bool // a repetition penalty
}
"""


@dataclass(frozen=True)
class HostUse:
    """What a program needs of the host beyond the model's sizes."""

    peaks: bool  # of the GPU: FLOPs and bandwidth
    link: bool
    link_alone: bool  # also on a single GPU
    fp8: bool  # whether weights of 8 bits are fp8
    sampling: bool
    tied: bool  # whether input and output share a table of embeddings
    offload: bool
    curves: tuple[str, ...]


def host_use(facts: Sequence[str], curves: Sequence[str]) -> HostUse:
    """What the facts and curves need. Raises InputError for a fact that no host gives."""
    for name in facts:
        if name not in _FACTS:
            raise InputError(f"--host-facts: the host has nothing from which {name} follows: emit it for a deployment")
    text = " ".join([*_locals(facts).values(), *(_FACTS[name] for name in facts)])
    return HostUse(
        peaks=bool(curves) or "PerUs" in text.replace("linkBytesPerUs", ""),
        link="linkBytesPerUs" in text or "allreduce" in curves or "allreduce_us_per_token" in facts,
        link_alone="link_bytes_per_us" in facts,
        fp8=bool(curves) or any(mark in text for mark in ("isFp8", "flopsPerUs")),
        sampling="m.sampling" in text or "sampler" in curves,
        tied="embeddings" in text,
        offload="kv_cpu_offload" in facts,
        curves=tuple(curves),
    )


def host_options(use: HostUse, name: Name) -> list[tuple[str, str, str]]:
    """The fields of the options for what the host does not know: name, type and comment with the default."""
    by_name = f"as in {name.facts_file}"
    rows = [
        (use.link, "LinkGBPerS", "float64", f"the GPUs' link in one direction, GB/s; 0: by the GPU's name, {by_name}"),
        (use.sampling, "Sampling", f"*{name.exported}Sampling", f"nil: by the model's name, {by_name}; else none"),
        (use.fp8, "IntegerWeights", "bool", "8-bit weights are integers; false: fp8"),
        (use.tied, "TiedEmbeddings", "bool", "input and output share a table of embeddings; false: one each"),
        (use.offload, "KvCPUOffload", "bool", "the engine offloads KV cache to CPU memory"),
    ]
    return [(field, kind, f"// {text}") for needed, field, kind, text in rows if needed]


def facts_file(name: Name, facts: Sequence[str], use: HostUse, host: Host) -> str:
    """The text of the file: the model read from the host's configuration, and the deployment made of it."""
    parts = [_model(use, host)]
    parts.append(_deployment(facts, use))
    parts += [_known_gpus(use, host)] if use.link or use.curves else []
    parts += [_SAMPLING_TYPE, _known_models(host)] if use.sampling else []
    parts.append(_SETTING)
    body = "\n".join(parts)
    body += f"\n{_FLAG}" if "<name>Flag(" in body else ""
    standard = [f'\t"{package}"' for package in ("fmt", "math", "reflect", "strings") if f"{package}." in body]
    imports = "\n".join([*standard, "", f'\t"{MODULE}/sim"'])
    return name.fill(f"// {MARK}\n\npackage latency\n\nimport (\n{imports}\n)\n\n{body}")


def _model(use: HostUse, host: Host) -> str:
    """The type of the model and the function that reads it."""
    rows = [
        (use.peaks, "bf16FlopsPerUs, fp8FlopsPerUs float64 // fp8: 0 where the GPU has none"),
        (use.peaks, "flopsPerUs, bytesPerUs float64"),
        (use.link, "linkBytesPerUs float64"),
        (use.sampling, "sampling <Name>Sampling"),
        (use.tied, "tied bool"),
        (use.offload, "kvCPUOffload bool"),
        (bool(use.curves), "tables *<name>Tables"),
    ]
    fields = "".join(f"\n\t{text}\n" for needed, text in rows if needed)
    parts = [
        _MODEL.replace("<fields>", fields).replace("<integer>", " && !options.IntegerWeights" * use.fp8),
        _PEAKS * use.peaks,
        "\tgpu := <name>GPUOf(hw.GPU)\n" * (use.link or bool(use.curves)),
        _LINK.replace("<needed>", "link == 0" + " && m.tp > 1" * (not use.link_alone)) * use.link,
        _SAMPLING * use.sampling,
        "\tm.tied = options.TiedEmbeddings\n" * use.tied,
        "\tm.kvCPUOffload = options.KvCPUOffload\n" * use.offload,
        _KERNELS.replace("<gpus>", ", ".join(gpu.names[0] for gpu in host.measured)) * bool(use.curves),
        "\treturn m, nil\n}\n",
    ]
    return "".join(parts)


def _locals(facts: Sequence[str]) -> dict[str, str]:
    """The local variables that the facts need, operands first."""
    texts = [_FACTS[name] for name in facts]
    texts += [_ALLREDUCE] * ("allreduce_us_per_token" in facts)
    needed: dict[str, str] = {}
    for local, text in reversed(_LOCALS.items()):
        if any(re.search(rf"(?<![.\w]){local}\b", other) for other in (*texts, *needed.values())):
            needed[local] = text
    return dict(reversed(needed.items()))


def _deployment(facts: Sequence[str], use: HostUse) -> str:
    """The method that fills the deployment."""
    rows = [(f"{fact(name)}:", f"{_FACTS[name]},") for name in facts]
    rows += [(f"{curve_name(name)}:", f"m.{curve_method(name)}(),") for name in use.curves]
    lines = [
        "// deployment is the facts of the model on its GPUs.",
        "func (m *<name>Model) deployment() <Name>Deployment {",
        *(f"\t{local} := {text}" for local, text in _locals(facts).items()),
        *(_ALLREDUCE.rstrip().split("\n") if "allreduce_us_per_token" in facts else []),
        "\treturn <Name>Deployment{", *columns(rows, "\t\t"), "\t}", "}", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _known_gpus(use: HostUse, host: Host) -> str:
    """The table of GPUs by name, and the function that looks one up."""
    gpus = host.gpus if use.link else host.measured
    rows = []
    for gpu in gpus:
        cells = [f"[]string{{{', '.join(map(quoted, gpu.names))}}}"]
        cells += [digits(gpu.link_gb_per_s)] if use.link else []
        cells += [f"&{variable(gpu.kernels)}" if gpu.kernels else "nil"] if use.curves else []
        rows.append(f"\t{{{', '.join(cells)}}},")
    fields = ["\tnames []string"]
    fields += ["\n\tlinkGBPerS float64 // in one direction"] if use.link else []
    fields += ["\n\ttables *<name>Tables // measured kernels"] if use.curves else []
    return "\n".join([
        "// <name>GPU is what the host does not know of a GPU.",
        "type <name>GPU struct {", *fields, "}", "",
        "var <name>KnownGPUs = []<name>GPU{", *rows, "}", "",
        "// <name>GPUOf is the GPU of a name, in upper or lower case; nothing is known of any other.",
        "func <name>GPUOf(name string) <name>GPU {",
        "\tfor _, gpu := range <name>KnownGPUs {",
        "\t\tfor _, known := range gpu.names {",
        "\t\t\tif strings.EqualFold(known, name) {",
        "\t\t\t\treturn gpu", "\t\t\t}", "\t\t}", "\t}",
        "\treturn <name>GPU{}", "}", "",
    ])  # fmt: skip


def _bool(value: bool) -> str:
    return str(value).lower()


def _known_models(host: Host) -> str:
    """The table of models with a sampling of their own."""
    rows = [
        f"\t{{{quoted(alias)}, <Name>Sampling{{{_bool(m.sampling.sorts)}, {_bool(m.sampling.penalises)}}}}},"
        for m in host.models
        for alias in m.names
        if m.sampling.sorts or m.sampling.penalises
    ]
    return "\n".join([
        "// <name>KnownModels are models whose generation_config asks for something; all others ask for nothing.",
        "var <name>KnownModels = []struct {", "\tname     string", "\tsampling <Name>Sampling", "}{", *rows, "}", "",
    ])  # fmt: skip
