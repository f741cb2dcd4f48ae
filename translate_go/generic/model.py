"""The model and its GPUs in Go: read from the host's configuration, and by name what that does not hold."""

from __future__ import annotations

from translate_go.generic.facts import HostUse
from translate_go.generic.known import Host, host_name
from translate_go.generic.tables import variable
from translate_go.spelling import digits, quoted

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
		return refuse("data parallelism inside an instance is not modelled: set DP to 1")
	case hw.EnableExpertParallel && c.NumLocalExperts > 1:
		return refuse("expert parallelism is not modelled: switch it off")
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


def model_parts(use: HostUse, host: Host) -> list[str]:
    """The Go type of the model, the function that reads it, and what that calls."""
    parts = [_model(use, host)]
    parts += [_known_gpus(use, host)] if use.link or use.curves else []
    parts += [_SAMPLING_TYPE, _known_models(host)] if use.sampling else []
    return [*parts, _SETTING]


def _model(use: HostUse, host: Host) -> str:
    """The type of the model and the function that reads it."""
    rows = [
        (use.peaks, "bf16FlopsPerUs, fp8FlopsPerUs float64 // fp8: 0 where the GPU has none"),
        (use.peaks, "flopsPerUs, bytesPerUs float64"),
        (use.link, "linkBytesPerUs float64"),
        (use.sampling, "sampling <Name>Sampling"),
        (use.tied, "tied bool"),
        (use.offload, "kvCpuOffload bool"),
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
        "\tm.kvCpuOffload = options.KvCpuOffload\n" * use.offload,
        _KERNELS.replace("<gpus>", ", ".join(host_name(gpu.names) for gpu in host.measured)) * bool(use.curves),
        "\treturn m, nil\n}\n",
    ]
    return "".join(parts)


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
