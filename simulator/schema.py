"""The fields that a program may read, defined once. A field that is not here does not exist.

`b` is the batch, exactly what the host's StepTime sees: for each request in it I = input length, PI = progress before
the step, NN > 0 new tokens; a request is in prefill while PI < I, else in decode with NN = 1. `s` is the deployment
(model, hardware and engine; per rank where each rank holds a share), `r` the request. Batch fields are *raw* (int64
sums over requests that the clock keeps), or have a *formula* over other fields in the language of programs, evaluated
in float64 in the written order. An empty batch gives 0. A field with a *curve* reads that curve of the deployment
(simulator.kernels.curves) at the value of the formula `at`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """A field. `learned_from` names what shows it in a real server: attributes of its traces (evolve.ingest.read), or
    a file or option; "" for what has a formula or a curve, or is computed from other fields.

    A batch field whose name begins with `kernel_` is one of measured kernels: it belongs to KERNELS, not to PHYSICAL.
    """

    scope: str
    name: str
    unit: str
    meaning: str
    formula: str | None = None
    learned_from: str = ""
    go: str = ""
    curve: str = ""
    at: str = ""


# The sums that the clock keeps, in the order of their slots. `kv_var` is a float64 computed from integers:
# (n*S2 - S1*S1)/(n*n).
RAW = (
    "prefill_reqs", "decode_reqs", "prefill_tokens", "max_prefill_chunk", "prefill_pairs",
    "kv_sum", "kv_max", "kv_var", "kv_decode_sum", "kv_decode_max", "prompt_pairs",
)  # fmt: skip
# The position of each in a row; the compiled kernels use them as constants.
RAW_FIELDS = len(RAW)
(
    PREFILL_REQS, DECODE_REQS, PREFILL_TOKENS, MAX_PREFILL_CHUNK, PREFILL_PAIRS,
    KV_SUM, KV_MAX, KV_VAR, KV_DECODE_SUM, KV_DECODE_MAX, PROMPT_PAIRS,
) = range(RAW_FIELDS)  # fmt: skip
# Those that step tables have as columns. Tables do not record whole prompt lengths, so the last one is unknown there.
RECORDED = RAW[:PROMPT_PAIRS]

# Formulas that need integer arithmetic: each is an operation in every back end.
SPECIAL = ("experts_fraction", "graph_batch", "graph_tokens")

# The curves of a deployment and the numbers of their knots (simulator.kernels): eight to an octave, over 14 octaves of
# tokens or requests in a step or 17 of a prompt's length.
CURVES = {
    "gemm": 113, "elementwise": 113, "moe": 113, "moe_quantized": 113, "router": 113,
    "allreduce": 113, "lm_head": 113, "sampler": 113, "decode_launch": 113,
    "decode_per_token": 113, "prefill_per_pair": 137,
}  # fmt: skip

GRAPH_LIMIT = 512  # requests; the largest decode batch for which the engine captures a CUDA graph


def _go(name: str) -> str:
    """The Go spelling of a field: `kv_read_us` -> `KvReadUs`."""
    return "".join(part.capitalize() for part in name.split("_"))


def _b(name: str, unit: str, meaning: str, formula: str | None = None, learned_from: str = "") -> FieldSpec:
    return FieldSpec("b", name, unit, meaning, formula, learned_from, "b." + _go(name))


def _curve(name: str, unit: str, curve: str, at: str, meaning: str) -> FieldSpec:
    """A field that reads the deployment's `curve` at the value of the formula `at`."""
    return FieldSpec("b", name, unit, meaning, None, "", "b." + _go(name), curve, at)


def _s(name: str, unit: str, meaning: str, learned_from: str = "") -> FieldSpec:
    return FieldSpec("s", name, unit, meaning, None, learned_from, "d." + _go(name))


# What shows a field in a real server, where several have the same.
_PROGRESS, _NEW = "request.num_computed_tokens", "request.scheduled_tokens_this_step"
_MODEL, _SAMPLING, _GPU = "config.json", "generation_config.json", "--hardware"

_PAIRS = "b.prefill_pairs + (b.kv_decode_sum + b.decode_reqs)"

# The bytes that a new token writes: its KV entries, and the residual stream, read and written twice a layer in 16 bits.
_TOKEN_US = "(s.kv_us_per_token + (2 + 2) * 2 * s.layers * s.hidden / s.bytes_per_us)"

_BATCH = (
    _b("prefill_reqs", "request", "requests still in their prompt", None, "batch.num_prefill_reqs"),
    _b("decode_reqs", "request", "requests past their prompt", None, "batch.num_decode_reqs"),
    _b("batch_size", "request", "requests in the step", "b.prefill_reqs + b.decode_reqs"),
    _b("decode_tokens", "request", "decode_reqs under its original name", "b.decode_reqs",
       "batch.decode_tokens"),
    _b("prefill_tokens", "token", "new prompt tokens", None, "batch.prefill_tokens"),
    _b("tokens", "token", "all new tokens", "b.prefill_tokens + b.decode_reqs", "batch.scheduled_tokens"),
    _b("max_prefill_chunk", "token", "largest prompt chunk", None, _NEW),
    _b("prefill_pairs", "token**2", "token pairs attended in prefill: sum NN*PI + NN*(NN+1)/2", None,
       f"{_NEW}, {_PROGRESS}"),
    _b("kv_sum", "token", "sum of PI over the batch", None, _PROGRESS),
    _b("kv_mean", "token", "mean PI over the batch", "b.kv_sum / b.batch_size"),
    _b("kv_max", "token", "largest PI in the batch", None, _PROGRESS),
    _b("kv_var", "token**2", "population variance of PI over the batch", None, _PROGRESS),
    _b("kv_decode_sum", "token", "sum of PI over decodes", None, _PROGRESS),
    _b("kv_decode_mean", "token", "mean PI over decodes", "b.kv_decode_sum / b.decode_reqs"),
    _b("kv_decode_max", "token", "largest PI over decodes", None, _PROGRESS),
    _b("experts_fraction", "one", "expected share of distinct experts that the step's tokens touch: "
       "1 - (1 - active_experts/experts)**tokens; 0 for dense models"),
    _b("graph_batch", "request", "decode batch padded to the engine's captured CUDA graph sizes "
       "(1, 2, 4, multiples of 8 to 512); the true size above, or with prefill present"),
    _b("weight_read_us", "us", "weights read once, routed experts by the share touched, over bandwidth",
       "s.shared_weights_us + b.expert_read_us"),
    _b("expert_read_us", "us", "weights of the experts touched over bandwidth",
       "s.experts_us * b.experts_fraction"),
    _b("kv_read_us", "us", "KV cache of the whole batch over bandwidth", "s.kv_us_per_token * b.kv_sum"),
    _b("decode_kv_read_us", "us", "KV cache of the decodes over bandwidth",
       "s.kv_us_per_token * b.kv_decode_sum"),
    _b("kv_write_us", "us", "KV entries of the new tokens over bandwidth", "s.kv_us_per_token * b.tokens"),
    _b("prefill_gemm_us", "us", "matrix products of prefill over peak",
       "s.gemm_us_per_token * b.prefill_tokens"),
    _b("decode_gemm_us", "us", "matrix products of decode over peak", "s.gemm_us_per_token * b.decode_reqs"),
    _b("prefill_attention_us", "us", "attention of prefill over peak",
       "s.attention_us_per_pair * b.prefill_pairs"),
    _b("decode_attention_us", "us", "attention of decode over peak",
       "s.attention_us_per_pair * (b.kv_decode_sum + b.decode_reqs)"),
    _b("prefill_bytes_us", "us", "bytes of prefill over bandwidth: all weights read, KV cache of the prompts, "
       "activations; 0 without prefill", "min(b.prefill_reqs, 1) * (b.weight_read_us"
       f" + (b.kv_read_us - b.decode_kv_read_us) + {_TOKEN_US} * b.prefill_tokens)"),
    _b("decode_bytes_us", "us", "bytes of decode over bandwidth: all weights read, KV cache of the decodes, "
       "activations; 0 without decodes", "min(b.decode_reqs, 1) * (b.weight_read_us + b.decode_kv_read_us"
       f" + {_TOKEN_US} * b.decode_reqs)"),
    _b("logits_us", "us", "output projection and float32 logits", "s.logits_us_per_row * b.batch_size"),
    _b("allreduce_us", "us", "two ring all-reduces a layer over the link",
       "s.allreduce_us_per_token * b.tokens"),
    _b("attention_flops", "flop", "attention, this rank",
       f"s.attention_us_per_pair * s.flops_per_us * ({_PAIRS})"),
    _b("total_flops", "flop", "matrix products, attention and output projection, this rank",
       "s.gemm_us_per_token * s.flops_per_us * b.tokens + b.attention_flops"
       " + 2 * s.hidden * s.vocab / s.tp * b.batch_size"),
    # the last term: float32 logits, written and read, as in s.logits_us_per_row
    _b("total_bytes", "byte", "weights, KV read and written, logits, this rank",
       "(b.weight_read_us + b.kv_read_us + b.kv_write_us) * s.bytes_per_us"
       " + (2 + 2) * 2 * s.vocab * b.batch_size"),
    _b("sorted_logits", "request", "logits that the sampler sorts: the vocabulary of every request where the model's "
       "generation_config sets top_p < 1 or top_k > 0", "s.sampling_sort * s.vocab * b.batch_size"),
    _b("penalised_logits", "request", "logits under a repetition penalty: the vocabulary of every request where the "
       "model's generation_config sets one", "s.repetition_penalty * s.vocab * b.batch_size"),
    _b("graph_tokens", "token", "new tokens padded to the engine's captured CUDA graph sizes, up to twice "
       "max_num_seqs and at most 512; the true number above"),
    _b("uncaptured", "one", "1 if the step has more new tokens than the largest captured CUDA graph, so that its "
       "kernels are launched one by one; else 0", f"min(max(b.tokens - min(2 * s.max_num_seqs, {GRAPH_LIMIT}), 0), 1)"),
    _curve("kernel_gemm_us", "us", "gemm", "b.graph_tokens",
           "measured matrix products of all layers (without routed experts), padded tokens"),
    _curve("kernel_elementwise_us", "us", "elementwise", "b.graph_tokens",
           "norms, rotary embeddings, cache writes and activations of all layers: datasheet, a launch each"),
    _curve("kernel_moe_us", "us", "moe", "b.tokens", "measured routed experts of all layers in 16 bits, else 0. At "
           "the true tokens: padding is all alike and touches no experts of its own"),
    _curve("kernel_moe_quantized_us", "us", "moe_quantized", "b.tokens",
           "measured routed experts of all layers with quantized weights, which are other kernels; else 0"),
    _curve("kernel_router_us", "us", "router", "b.graph_tokens", "measured routers of all layers"),
    _curve("kernel_allreduce_us", "us", "allreduce", "b.graph_tokens",
           "measured all-reduces, two a layer; 0 at tp 1"),
    _curve("kernel_lm_head_us", "us", "lm_head", "b.batch_size", "measured output projection"),
    _curve("kernel_sampler_us", "us", "sampler", "b.batch_size", "drawing a token a request, with the sort and the "
           "penalties that generation_config asks for: bytes and launches counted, the sort's speed as published"),
    _curve("kernel_decode_launch_us", "us", "decode_launch", "b.decode_reqs",
           "measured attention of all layers at no context: the launches that every step makes"),
    _curve("kernel_decode_us_per_token", "us/token", "decode_per_token", "b.decode_reqs",
           "measured decode attention of all layers for a token of context"),
    _b("kernel_decode_attention_us", "us", "measured decode attention of all layers: a line in the contexts",
       "b.kernel_decode_launch_us + b.kernel_decode_us_per_token * b.kv_decode_sum"),
    _curve("kernel_prefill_us_per_pair", "us/token**2", "prefill_per_pair",
           "2 * b.prefill_pairs / b.prefill_tokens - 1",
           "measured prefill attention of all layers for a token pair, at the prompts' mean length"),
    _b("kernel_prefill_attention_us", "us", "measured prefill attention of all layers",
       "b.kernel_prefill_us_per_pair * b.prefill_pairs"),
    _b("kernel_us", "us", "all measured kernels of the step",
       "b.kernel_gemm_us + b.kernel_elementwise_us + b.kernel_moe_us + b.kernel_moe_quantized_us"
       " + b.kernel_router_us + b.kernel_allreduce_us + b.kernel_lm_head_us + b.kernel_sampler_us"
       " + b.kernel_decode_attention_us + b.kernel_prefill_attention_us"),
)  # fmt: skip

_STATIC = (
    _s("layers", "one", "transformer layers", _MODEL),
    _s("dense_layers", "one", "layers with a dense feed-forward block", _MODEL),
    _s("moe_layers", "one", "layers with routed experts", _MODEL),
    _s("hidden", "one", "model width", _MODEL),
    _s("heads", "one", "attention heads", _MODEL),
    _s("kv_heads", "one", "key/value heads", _MODEL),
    _s("kv_heads_per_gpu", "one", "key/value heads a rank holds"),
    _s("head_dim", "one", "width of a head", _MODEL),
    _s("ffn", "one", "width of the dense feed-forward block", _MODEL),
    _s("moe_ffn", "one", "width of one expert", _MODEL),
    _s("vocab", "one", "vocabulary size", _MODEL),
    _s("experts", "one", "routed experts a layer", _MODEL),
    _s("active_experts", "one", "routed experts a token uses", _MODEL),
    _s("tp", "one", "tensor parallelism", "exp-config.yaml tensor_parallelism"),
    _s("tp_log2", "one", "log2(tp)"),
    _s("is_moe", "one", "1 with routed experts", _MODEL),
    _s("is_fp8", "one", "1 with FP8 weights", _MODEL),
    _s("sampling_sort", "one", "1 if the model's generation_config sets top_p < 1 or top_k > 0: "
       "the engine then sorts batch x vocabulary", _SAMPLING),
    _s("repetition_penalty", "one", "1 if the model's generation_config sets a repetition penalty", _SAMPLING),
    _s("kv_blocks", "one", "KV cache capacity in blocks", "kv.blocks_total_gpu"),
    _s("kv_cpu_offload", "one", "1 with KV offload to CPU memory", "vllm.log"),
    _s("reference_step_us", "us", "this program's own step_time on 24 decodes with PI = 0; "
       "queueing_time only"),
    _s("model_params_b", "one", "parameters of the whole model, billions", _MODEL),
    _s("active_params_b", "one", "parameters that a token uses, billions", _MODEL),
    _s("max_num_seqs", "request", "request limit of a batch", "exp-config.yaml max_num_seqs"),
    _s("max_num_batched_tokens", "token", "token budget of a step", "exp-config.yaml max_num_batched_tokens"),
    _s("max_model_len", "token", "longest sequence", "exp-config.yaml max_model_len"),
    _s("block_size", "token", "tokens in a KV block", "--engine block_size"),
    _s("flops_per_us", "flop/us", "dense peak for the weights' type, per GPU", _GPU),
    _s("bytes_per_us", "byte/us", "memory bandwidth, per GPU", _GPU),
    _s("link_bytes_per_us", "byte/us", "interconnect bandwidth per direction, per GPU", _GPU),
    _s("kv_bytes_per_token", "byte/token", "KV cache of one token, this rank"),
    _s("shared_weights_us", "us", "weights that every step reads, over bandwidth"),
    _s("experts_us", "us", "all routed experts' weights over bandwidth"),
    _s("weights_us", "us", "shared_weights_us + experts_us"),
    _s("kv_us_per_token", "us/token", "kv_bytes_per_token over bandwidth"),
    _s("gemm_us_per_token", "us/token", "2 x active parameters (without output projection) over peak"),
    _s("attention_us_per_pair", "us/token**2", "attention of one token pair over peak"),
    _s("logits_us_per_row", "us/request", "output projection over peak, float32 logits over bandwidth"),
    _s("allreduce_us_per_token", "us/token", "two ring all-reduces a layer over the link; 0 at tp 1"),
)  # fmt: skip

# What the host's trained-physics form adds up (simulator.serving.host_form), counted as the host counts it.
_HOST_BATCH = (
    _b("prompt_pairs", "token**2", "sum NN*(2*I + NN) over prefills, with I the whole prompt: twice the token pairs "
       "that the host's trained-physics form counts", None, f"{_NEW}, prefill.total_tokens"),
    _b("host_prefill_compute_us", "us", "trained-physics form: FLOPs of prefill over peak",
       "s.host_gemm_us_per_token * b.prefill_tokens + s.host_attention_us_per_pair * (b.prompt_pairs / 2)"),
    _b("host_decode_compute_us", "us", "trained-physics form: FLOPs of decode over peak",
       "s.host_gemm_us_per_token * b.decode_reqs + s.host_attention_us_per_pair * b.kv_decode_sum"),
    _b("host_prefill_kv_us", "us", "trained-physics form: KV entries of the new prompt tokens over bandwidth",
       "s.host_kv_us_per_token * b.prefill_tokens"),
    _b("host_decode_kv_us", "us", "trained-physics form: KV cache of the decodes, read and written, over bandwidth",
       "s.host_kv_us_per_token * (b.kv_decode_sum + b.decode_reqs)"),
    _b("host_allreduce_us", "us", "trained-physics form: all-reduces over memory bandwidth",
       "s.host_allreduce_us_per_token * b.tokens"),
)  # fmt: skip
_HOST_STATIC = (
    _s("host_gemm_us_per_token", "us/token", "trained-physics form: projections and feed-forward blocks of a token "
       "over peak", _MODEL),
    _s("host_attention_us_per_pair", "us/token**2", "trained-physics form: attention of one token pair over peak",
       _MODEL),
    _s("host_kv_us_per_token", "us/token", "trained-physics form: KV entries of one token, in 16 bits, over bandwidth",
       _MODEL),
    _s("host_weights_us", "us", "trained-physics form: weights of all layers, every expert, over bandwidth", _MODEL),
    _s("host_allreduce_us_per_token", "us/token", "trained-physics form: two ring all-reduces a layer over memory "
       "bandwidth; 0 at tp 1", _MODEL),
    _s("host_interleaved_moe_layers", "one", "layers with routed experts as the host counts them in models that name "
       "an interleave step; else 0", _MODEL),
)  # fmt: skip

_REQUEST = (FieldSpec("r", "input_len", "token", "prompt length", None, "prefill.total_tokens", "inputLen"),)

FIELDS: dict[tuple[str, str], FieldSpec] = {(f.scope, f.name): f for f in (*_BATCH, *_STATIC, *_REQUEST)}

# The one field that a program reads from its own ensemble (language.forest). It is not among FIELDS, because a search,
# whose candidates are texts alone, offers it nowhere.
TREES = _b("trees", "one", "the value of the program's own ensemble of trees: exp of the sum of its leaves, which is "
           "never 0; without an ensemble it cannot be read")  # fmt: skip
# Nor are those of the host's trained-physics form, which is one fixed program.
HOST = frozenset((f.scope, f.name) for f in (*_HOST_BATCH, *_HOST_STATIC))
# All that a program may read.
READABLE = {(f.scope, f.name): f for f in (*_BATCH, TREES, *_HOST_BATCH, *_STATIC, *_HOST_STATIC, *_REQUEST)}

# Times of measured kernels: a constant that multiplies one is near 1, above or below.
KERNELS = tuple(f.name for f in _BATCH if f.name.startswith("kernel_"))

# `_us` fields that are bytes or FLOPs over a datasheet peak. No kernel beats the datasheet, so a constant that
# multiplies one is at least 1.
PHYSICAL = frozenset(
    f.name for f in _BATCH if f.unit == "us" and f.name != "allreduce_us" and f.name not in KERNELS
) | {"shared_weights_us", "experts_us", "weights_us", "kv_us_per_token", "gemm_us_per_token",
     "attention_us_per_pair", "logits_us_per_row"}  # fmt: skip

# The analytic components: matrix products, attention and bytes of each phase.
PHASES = frozenset(f"b.{phase}_{what}_us" for phase in ("prefill", "decode") for what in ("gemm", "attention", "bytes"))

# The 18 names of the original proposal (configs/paper18.yaml).
PAPER18 = frozenset((
    "b.prefill_tokens", "b.decode_tokens", "b.prefill_reqs", "b.decode_reqs", "b.batch_size", "b.kv_mean",
    "b.kv_max", "b.kv_sum", "b.kv_var", "b.kv_decode_mean", "b.kv_decode_max", "b.total_flops",
    "b.total_bytes", "b.attention_flops", "s.model_params_b", "s.active_params_b", "s.tp", "s.is_moe",
))  # fmt: skip
