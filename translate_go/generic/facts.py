"""The facts of a deployment as Go expressions of what the host knows, and what a program needs of the host for them.

The formulas are those of simulator.serving.deployment. Every operation is float64 in Python's order, and products
that are added are whole numbers below 2^53, so that the facts are equal to the last bit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from translate_go.naming import BackendName

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
# fact -> its expression
FACTS = {
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
    "tp_log2": "<name>Log2(m.tp)",
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
    "kv_cpu_offload": "<name>Flag(m.kvCpuOffload)",
}
ALLREDUCE = """\
	allreduceUsPerToken := 0.0
	if m.tp > 1 {
		allreduceUsPerToken = 2 * layers * hidden * 2 * 2 * (tp - 1) / tp / m.linkBytesPerUs
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
    """What the facts and curves need."""
    text = " ".join([*locals_of(facts).values(), *(FACTS[name] for name in facts)])
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


def host_options(use: HostUse, name: BackendName) -> list[tuple[str, str, str]]:
    """The fields of the options for what the host does not know: name, type and comment with the default."""
    by_name = f"as in {name.facts_file}"
    rows = [
        (use.link, "LinkGBPerS", "float64", f"the GPUs' link in one direction, GB/s; 0: by the GPU's name, {by_name}"),
        (use.sampling, "Sampling", f"*{name.exported}Sampling", f"nil: by the model's name, {by_name}; else none"),
        (use.fp8, "IntegerWeights", "bool", "8-bit weights are integers; false: fp8"),
        (use.tied, "TiedEmbeddings", "bool", "input and output share a table of embeddings; false: one each"),
        (use.offload, "KvCpuOffload", "bool", "the engine offloads KV cache to CPU memory"),
    ]
    return [(field, kind, f"// {text}") for needed, field, kind, text in rows if needed]


def locals_of(facts: Sequence[str]) -> dict[str, str]:
    """The local variables that the facts need, operands first."""
    texts = [FACTS[name] for name in facts]
    texts += [ALLREDUCE] * ("allreduce_us_per_token" in facts)
    needed: dict[str, str] = {}
    for local, text in reversed(_LOCALS.items()):
        if any(re.search(rf"(?<![.\w]){local}\b", other) for other in (*texts, *needed.values())):
            needed[local] = text
    return dict(reversed(needed.items()))
