"""name_facts.go: the facts of any deployment, computed from what the host knows of model and GPU.

The formulas are those of simulator.serving.deployment. Every operation is float64 in Python's order, and products
that are added are whole numbers below 2^53, so that the facts are equal to the last bit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.serving.defaults import ISSUE_US, SCHEDULE_US
from translate_go.generic.kernels import curve_method, variable
from translate_go.generic.known import Host, host_name
from translate_go.naming import (
    MARK,
    BackendName,
    camel,
    columns,
    curve_name,
    digits,
    fact,
    import_block,
    indented,
    quoted,
)
from translate_go.target import MODULE, FittedRange
from translate_go.templates import sections

_TEXT = sections("facts")

_SIZES = "layers moeLayers hidden heads kvHeads headDim ffn moeFfn sharedFfn vocab experts"
# Local variables in Go, operands first. `m` is the model.
_LOCALS = {size: f"float64(m.{size})" for size in _SIZES.split()} | {
    "activeExperts": "float64(m.active)",
    "matrices": "float64(m.mlpMatrices)",
    "tp": "float64(m.tp)",
    "weightBytes": "float64(m.weightBits) / 8",
    "attentionBytes": "float64(m.attentionBits) / 8",
    "attention": "layers * (hidden*heads*headDim*2 + 2*hidden*kvHeads*headDim)",
    "dense": "(layers - moeLayers) * matrices * hidden * ffn",
    "shared": "moeLayers * matrices * hidden * sharedFfn",
    "unrouted": "attention + dense + shared",
    "unroutedBytes": "attention*attentionBytes + dense*weightBytes + shared*weightBytes",
    "expert": "moeLayers * matrices * hidden * moeFfn // one expert, over all layers",
    "routed": "moeLayers * experts * matrices * hidden * moeFfn",
    "active": "unrouted + expert*activeExperts",
    "kvHeadsPerGpu": "max(kvHeads/tp, 1)",
    "kvBytesPerToken": "2 * layers * kvHeadsPerGpu * headDim * 2",
    "sharedWeightsUs": "(unroutedBytes/tp + vocab*hidden*2/tp) / m.bytesPerUs",
    "embeddings": "2 - <name>Flag(m.tied) // tables of embeddings",
    "expertsUs": "routed * weightBytes / tp / m.bytesPerUs",
}
_SAME = """
layers moe_layers hidden heads kv_heads kv_heads_per_gpu head_dim ffn moe_ffn vocab experts active_experts tp
kv_bytes_per_token shared_weights_us experts_us allreduce_us_per_token
"""
# fact -> its expression; a fact of _SAME is a local variable
FACTS = {name: camel(name) for name in _SAME.split()} | {
    "dense_layers": "layers - moeLayers",
    "tp_log2": "<name>Log2(m.tp)",
    "is_moe": "<name>Flag(m.moeLayers > 0)",
    "is_fp8": "<name>Flag(m.isFp8)",
    "is_4bit": "<name>Flag(m.weightBits < 8)",
    "is_widened": "<name>Flag(m.weightBits < 8)",
    "is_blackwell": "<name>Flag(m.isBlackwell)",
    "sampling_sort": "<name>Flag(m.sampling.Sorts)",
    "repetition_penalty": "<name>Flag(m.sampling.Penalises)",
    "window": "float64(m.window)",
    "model_params_b": "(unrouted + routed + vocab*hidden*embeddings) / 1e9",
    "active_params_b": "(active + vocab*hidden*embeddings) / 1e9",
    "flops_per_us": "m.flopsPerUs",
    "bytes_per_us": "m.bytesPerUs",
    "link_bytes_per_us": "m.linkBytesPerUs",
    "weights_us": "sharedWeightsUs + expertsUs",
    "kv_us_per_token": "kvBytesPerToken / m.bytesPerUs",
    "gemm_us_per_token": "2 * active / tp / m.flopsPerUs",
    "attention_us_per_pair": "4 * heads / tp * headDim * layers / m.flopsPerUs",
    "logits_us_per_row": "2*hidden*vocab/tp/m.flopsPerUs + vocab*4*2/m.bytesPerUs",
    "kv_cpu_offload": "<name>Flag(m.kvCpuOffload)",
    "graph_decode": "<name>Flag(!m.noGraphs)",
    "graph_mixed": "<name>Flag(!m.noGraphs && !m.decodeGraphsOnly)",
    "graph_piecewise": "<name>Flag(m.piecewiseGraphs)",
    "async_scheduling": "<name>Flag(!m.noAsyncScheduling)",
    "schedule_us": f"{digits(SCHEDULE_US)} * <name>Flag(m.noAsyncScheduling)",
    "issue_us": "m.issueUs",
    "stream_interval": "max(m.streamInterval, 1)",
    "allreduce_rms_fusion": "<name>Flag(m.allreduceRmsFusion && m.tp > 1)",
}
# Its library has one rank of one stage, and does not tell a backend of drafts.
FACTS |= {"dp": "1", "ep": "1", "is_spread": "0", "pp": "1", "gpus": "tp", "draft_tokens": "0"}
WIDER = 1.05  # so far beyond the fitted sizes a model is as good as among them
# What the host does not know of the engine: option, its type, and its meaning if it is not left out.
ENGINE = (
    ("KvCpuOffload", "bool", "the engine offloads KV cache to CPU memory"),
    ("NoGraphs", "bool", "the engine captures no CUDA graphs"),
    ("DecodeGraphsOnly", "bool", "the engine captures steps of decodes alone"),
    ("PiecewiseGraphs", "bool", "the captured graphs leave out attention"),
    ("NoAsyncScheduling", "bool", "the engine schedules a step after the one before"),
    ("StreamInterval", "float64", "tokens of an answer that are sent together; 0: 1"),
    ("AllreduceRmsFusion", "bool", "all-reduce and norm are one kernel"),
)


@dataclass(frozen=True)
class HostUse:
    """A program's needs of the host beyond the model's sizes.

    peaks: the GPU's FLOPs and bandwidth. link: its link; link_alone: also on a single GPU. fp8: True if it matters that
    weights of 8 bits are fp8. tied: True if it matters that input and output share a table of embeddings. engine: rows
    of ENGINE.
    """

    peaks: bool
    link: bool
    link_alone: bool
    fp8: bool
    sampling: bool
    windows: bool
    issue: bool
    blackwell: bool
    tied: bool
    engine: tuple[tuple[str, str, str], ...]
    curves: tuple[str, ...]


def _local(option: str) -> str:
    """The field of the model that holds an option of ENGINE."""
    return option[0].lower() + option[1:]


def host_use(facts: Sequence[str], curves: Sequence[str]) -> HostUse:
    """Find what the facts and curves need."""
    text = " ".join([*_locals_of(facts).values(), *(FACTS[name] for name in facts)])
    return HostUse(
        peaks=bool(curves) or "PerUs" in text.replace("linkBytesPerUs", ""),
        link="linkBytesPerUs" in text or "allreduce" in curves or "allreduce_us_per_token" in facts,
        link_alone="link_bytes_per_us" in facts,
        fp8=bool(curves) or any(mark in text for mark in ("isFp8", "flopsPerUs")),
        sampling="m.sampling" in text or "sampler" in curves,
        windows=bool({"decode_per_token", "window_per_token", "prefill_per_pair"} & {*curves}) or "window" in facts,
        issue="issue_us" in facts,
        blackwell="is_blackwell" in facts,
        tied="embeddings" in text,
        engine=tuple(row for row in ENGINE if f"m.{_local(row[0])}" in text),
        curves=tuple(curves),
    )


def host_options(use: HostUse, name: BackendName) -> list[tuple[str, str, str]]:
    """The fields of the options for what the host does not know: name, type and comment with the default."""
    by_name = f"as in {name.file('facts')}"
    rows = [
        (use.link, "LinkGBPerS", "float64", f"the GPUs' link in one direction, GB/s; 0: by the GPU's name, {by_name}"),
        (use.sampling, "Sampling", f"*{name.exported}Sampling", f"nil: by the model's name, {by_name}; else none"),
        (use.fp8, "IntegerWeights", "bool", "8-bit weights are integers; false: fp8"),
        (use.tied, "TiedEmbeddings", "bool", "input and output share a table of embeddings; false: one each"),
        *((True, *row) for row in use.engine),
    ]
    return [(field, kind, f"// {text}") for needed, field, kind, text in rows if needed]


def _locals_of(facts: Sequence[str]) -> dict[str, str]:
    texts = [FACTS[name] for name in facts]
    if "allreduce_us_per_token" in facts:
        texts.append(_TEXT["allreduce"])
    return _needed(texts)


def _needed(texts: Sequence[str]) -> dict[str, str]:
    """The local variables that these expressions read, operands first."""
    needed: dict[str, str] = {}
    for local, text in reversed(_LOCALS.items()):
        if any(re.search(rf"(?<![.\w]){local}\b", other) for other in (*texts, *needed.values())):
            needed[local] = text
    return dict(reversed(needed.items()))


def facts_file(
    name: BackendName, facts: Sequence[str], use: HostUse, host: Host, fitted: FittedRange | None = None
) -> str:
    """The text of the file: the model read from the host's configuration, and the deployment made of it.

    With the `fitted` runs, it also says in which respects a model is outside them.
    """
    parts = [_model(use, host)]
    if use.link or use.curves or use.issue or use.blackwell:
        parts.append(_known_gpus(use, host))
    if use.sampling:
        parts += [_TEXT["sampling_type"], _known_models(host)]
    if use.windows:
        parts.append(_known_windows(host))
    parts += [_untold(host), _TEXT["setting"], _deployment(facts, use)]
    parts += [_outside(fitted)] if fitted else []
    read = "".join(parts)
    if "<name>Log2(" in read:
        logs = (f"{n}: {math.log2(n)!r}" for n in range(3, 16) if n.bit_count() > 1)
        parts.append(_TEXT["log2"].replace("<known>", ", ".join(logs)))
    parts += [_TEXT["flag"]] if "<name>Flag(" in read else []
    body = "\n\n".join(parts)
    imports = import_block(body, ("fmt", "math", "reflect", "slices", "strings"), f"{MODULE}/sim")
    return name.fill(f"// {MARK}\n\npackage latency\n\n{imports}\n\n{body}\n")


def _outside(fitted: FittedRange) -> str:
    """The method that names the respects in which a model is outside the fitted runs. Tied embeddings count twice."""
    total, active = (FACTS[name].replace("embeddings", "2") for name in ("model_params_b", "active_params_b"))
    before = "".join(f"\t{local} := {text}\n" for local, text in _needed([total, active]).items())
    moe = "false" if len(set(fitted.moe)) == 2 else "m.moeLayers == 0" if fitted.moe[0] else "m.moeLayers > 0"
    text = _TEXT["outside"].replace("<locals>", before).replace("<gpus>", ", ".join(map(quoted, fitted.gpus)))
    text = text.replace("<tp>", ", ".join(map(str, fitted.tp))).replace("<moe>", moe)
    sizes = {"<total>": total, "<active>": active}
    for mark, expression in sizes.items():
        text = text.replace(mark, expression)
    spans = zip(("totalB", "activeB"), (fitted.params_b, fitted.active_b), strict=True)
    limits = [f"{size} < {digits(low / WIDER)} || {size} > {digits(high * WIDER)}" for size, (low, high) in spans]
    return text.replace("<beyond>", " || ".join(limits))


def _deployment(facts: Sequence[str], use: HostUse) -> str:
    rows = [(f"{fact(name)}:", f"{FACTS[name]},") for name in facts]
    rows += [(f"{curve_name(name)}:", f"m.{curve_method(name)}(),") for name in use.curves]
    before = [f"\t{local} := {text}\n" for local, text in _locals_of(facts).items()]
    if "allreduce_us_per_token" in facts:
        before.append(_TEXT["allreduce"] + "\n")
    return _TEXT["deployment"].replace("<locals>", "".join(before)).replace("<rows>", columns(rows, "\t\t"))


def _model(use: HostUse, host: Host) -> str:
    rows = [
        (use.peaks, "bf16FlopsPerUs, fp8FlopsPerUs float64 // fp8: 0 where the GPU has none"),
        (use.peaks, "flopsPerUs, bytesPerUs float64"),
        (use.link, "linkBytesPerUs float64"),
        (use.sampling, "sampling <Name>Sampling"),
        (use.issue, "issueUs float64"),
        (use.blackwell, "isBlackwell bool"),
        (use.tied, "tied bool"),
        *((True, f"{_local(option)} {kind}") for option, kind, _ in use.engine),
        (bool(use.curves), "tables *<name>Tables"),
    ]
    fields = "".join(f"\n\t{text}\n" for needed, text in rows if needed)
    integer = " && !options.IntegerWeights" if use.fp8 else ""
    unknown = "link == 0" if use.link_alone else "link == 0 && m.tp > 1"
    measured = ", ".join(host_name(gpu.names) for gpu in host.measured)
    parts = [
        (True, _TEXT["model"].replace("<fields>", fields).replace("<integer>", integer)),
        (use.peaks, _TEXT["peaks"]),
        (use.link or use.issue or use.blackwell or bool(use.curves), "\tgpu := <name>GPUOf(hw.GPU)"),
        (use.issue, _TEXT["issue"].replace("<default>", digits(ISSUE_US))),
        (use.blackwell, "\tm.isBlackwell = gpu.isBlackwell"),
        (use.link, _TEXT["link"].replace("<needed>", unknown)),
        (use.sampling, _TEXT["sampling"]),
        (use.windows, _TEXT["windows"]),
        (use.tied, "\tm.tied = options.TiedEmbeddings"),
        *((True, f"\tm.{_local(option)} = options.{option}") for option, _, _ in use.engine),
        (bool(use.curves), _TEXT["kernels"].replace("<gpus>", measured)),
        (True, "\treturn m, nil\n}"),
    ]
    return "\n".join(text for needed, text in parts if needed)


def _known_gpus(use: HostUse, host: Host) -> str:
    rows = []
    for gpu in host.gpus if use.link or use.issue or use.blackwell else host.measured:
        cells = [f"[]string{{{', '.join(map(quoted, gpu.names))}}}"]
        cells += [digits(gpu.link_gb_per_s)] if use.link else []
        cells += [digits(gpu.issue_us)] if use.issue else []
        cells += [str(gpu.blackwell).lower()] if use.blackwell else []
        cells += [f"&{variable(gpu.kernels)}" if gpu.kernels else "nil"] if use.curves else []
        rows.append(f"{{{', '.join(cells)}}},")
    fields = ["\tnames []string"]
    fields += ["\n\tlinkGBPerS float64 // in one direction"] if use.link else []
    fields += ["\n\tissueUs float64 // time that a host needs to issue a captured step"] if use.issue else []
    fields += ["\n\tisBlackwell bool // that generation, in data centres"] if use.blackwell else []
    fields += ["\n\ttables *<name>Tables // measured kernels"] if use.curves else []
    return _TEXT["known_gpus"].replace("<fields>", "\n".join(fields)).replace("<rows>", indented(rows))


def _known_models(host: Host) -> str:
    known = [(alias, model.sampling) for model in host.models for alias in model.names]
    rows = [
        f"{{{quoted(alias)}, <Name>Sampling{{{str(s.sorts).lower()}, {str(s.penalises).lower()}}}}},"
        for alias, s in known
        if s.sorts or s.penalises
    ]
    return _TEXT["known_models"].replace("<rows>", indented(rows))


def _known_windows(host: Host) -> str:
    known = [(alias, model) for model in host.models for alias in model.names if model.window and model.told]
    rows = [f"{{{quoted(alias)}, {model.window}, {model.window_layers}}}," for alias, model in known]
    text = _TEXT["known_windows"]
    return text.replace("<rows>", indented(rows)) if rows else text.replace("\n<rows>\n", "")


def _untold(host: Host) -> str:
    names = ", ".join(quoted(alias) for model in host.models for alias in model.names if not model.told)
    return _TEXT["untold"].replace("<names>", names)
