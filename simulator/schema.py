"""The fields that a program may read, each declared once. A field that is not here does not exist.

`b` is the batch as the host's StepTime sees it. For each request, I is the input length, PI the progress before the
step, and NN > 0 the number of new tokens. A request is in prefill while PI < I; later it decodes with NN = 1, or with
the 1 + s.draft_tokens positions that speculative decoding verifies, however many of them are accepted. `s` is
the deployment: model, hardware and engine, per rank where each rank holds a share. `r` is the request. An empty batch
gives 0.

DECLARATIONS has two or more lines for each field: `SCOPE.NAME (UNIT): MEANING`, and its attributes, separated by `; `.
Four spaces continue a line. The attributes with a value:

    = FORMULA            value of a batch field in the language of programs, float64 in the written order
    curve NAME at X      value of a batch field: a curve of the deployment (simulator.kernels.curves) at the formula X
    opcode FIELD ...     value of a batch field by integer arithmetic, an operation in every back end, with its operands
    from SOURCE, ...     what shows it in a real server: attributes of traces (evolve.ingest.read), a file or an option
    knots N              number of knots of its curve, if not 113
    times FIELD          the field that makes a time of this one, which is a kernel's time per token or token pair
    peak FIELD           the field that makes a datasheet time of this one, which is a number of FLOPs or bytes
    per_second NAME      its name in the original proposal, which counts it per second
    scale N              proposals multiply costs by it; N is its place in the order that random draws go by
    example X, least X   sample value, and the smallest one that is accepted (default: any above 0)

The others are marks; MARKS says what each means. A field whose name begins with `kernel_` is one of measured kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MARKS = {
    "raw": "an integer sum over the requests that the clock keeps; kv_var alone is a float64 computed from integers",
    "ensemble": "the value of a program's own ensemble of trees; searches, whose candidates are texts, do not offer it",
    "host": "part of the host's trained-physics form, which is one fixed program; searches do not offer it",
    "datasheet": "a time of bytes or FLOPs over a datasheet peak; no kernel beats it, so a factor is at least 1",
    "context": "grows with the contexts of the requests, while they decode",
    "phase": "an analytic component: matrix products, attention or bytes of one phase (field set `phases`)",
    "paper18": "among the 18 names of the original proposal (field set `paper18`)",
    "threshold": "proposals compare it with a limit",
    "presence": "that limit is 0: is there any?",
    "count": "proposals multiply terms by it",
    "correction": "proposals correct measured kernels by it, beside sizes and switches",
    "size": "a scale that corrects measured kernels, at most one in a term",
    "switch": "a scale that is 0 or 1 and corrects measured kernels",
    "queueing": "offered to queueing_time where kernels are measured",
    "step_only": "a scale that queueing_time is not offered",
    "no_cost": "of a limit or setting of the engine, left out by proposals: constant or confounded in the shipped runs",
    "norm": "proposals divide other fields of its unit by it",
    "component": "a part of a step that a diagnosis shows",
    "shape": "tells the deployments of a diagnosis apart",
    "plain": "its name says it all to a language model",
    "setting": "a flag of the host, which does not tell its backends",
}

DECLARATIONS = """\
b.prefill_reqs (request): requests still in their prompt
  raw; from batch.num_prefill_reqs; paper18; threshold; presence; count; correction; plain
b.decode_reqs (request): requests past their prompt
  raw; from batch.num_decode_reqs; paper18; threshold; plain
b.batch_size (request): requests in the step
  = b.prefill_reqs + b.decode_reqs; paper18; threshold; count; correction; plain
b.decode_tokens (request): new tokens of decodes: decode_reqs, unless drafts are verified
  from batch.decode_tokens; = (1 + s.draft_tokens) * b.decode_reqs; paper18
b.prefill_tokens (token): new prompt tokens
  raw; from batch.prefill_tokens; paper18; threshold; presence; correction; plain
b.tokens (token): all new tokens
  from batch.scheduled_tokens; = b.prefill_tokens + b.decode_tokens; threshold; count; plain
b.all_tokens (token): new tokens of all data-parallel ranks together, without padding, which meet at the experts: in a
    batch that is seen alone, as many of each rank; in a replay of a mixture of experts, the true ones
  = s.dp * b.tokens; no_cost
b.max_prefill_chunk (token): largest prompt chunk
  raw; from request.scheduled_tokens_this_step; plain
b.prefill_pairs (token**2): token pairs attended in prefill: sum NN*PI + NN*(NN+1)/2
  raw; from request.scheduled_tokens_this_step, request.num_computed_tokens
b.kv_sum (token): sum of PI over the batch
  raw; from request.num_computed_tokens; context; paper18; threshold
b.kv_mean (token): mean PI over the batch
  = b.kv_sum / b.batch_size; paper18; threshold; plain
b.kv_max (token): largest PI in the batch
  raw; from request.num_computed_tokens; context; paper18; plain
b.kv_var (token**2): population variance of PI over the batch
  raw; from request.num_computed_tokens; context; paper18
b.kv_decode_sum (token): sum of PI over decodes
  raw; from request.num_computed_tokens; context; correction; plain
b.kv_decode_mean (token): mean PI over decodes
  = b.kv_decode_sum / b.decode_reqs; paper18; plain
b.kv_decode_max (token): largest PI over decodes
  raw; from request.num_computed_tokens; context; paper18; plain
b.experts_fraction (one): expected share of distinct experts that the tokens of all ranks touch:
    1 - (1 - active_experts/experts)**all_tokens; 0 for dense models
  opcode s.active_experts s.experts b.all_tokens; correction
b.mixed (one): 1 if the step has prompts, else 0
  = min(b.prefill_reqs, 1)
b.graph_batch (request): decode batch padded to the engine's captured CUDA graph sizes (1, 2, 4, multiples of 8); the
    true size without a graph, or with prefill present
  opcode b.prefill_reqs b.decode_reqs b.uncaptured
b.weight_read_us (us): weights read once, routed experts by the share touched, over bandwidth
  = s.shared_weights_us + b.expert_read_us; datasheet; component
b.expert_read_us (us): weights of the experts touched over bandwidth
  = s.experts_us * b.experts_fraction; datasheet
b.kv_read_us (us): KV cache of the whole batch over bandwidth
  = s.kv_us_per_token * b.kv_sum; datasheet; component
b.decode_kv_read_us (us): KV cache of the decodes over bandwidth
  = s.kv_us_per_token * b.kv_decode_sum; datasheet
b.kv_write_us (us): KV entries of the new tokens over bandwidth
  = s.kv_us_per_token * b.tokens; datasheet
b.prefill_gemm_us (us): matrix products of prefill over peak
  = s.gemm_us_per_token * b.prefill_tokens; datasheet; phase; component
b.decode_gemm_us (us): matrix products of decode over peak
  = s.gemm_us_per_token * b.decode_tokens; datasheet; phase; component
b.prefill_attention_us (us): attention of prefill over peak
  = s.attention_us_per_pair * b.prefill_pairs; datasheet; phase; component
b.decode_attention_us (us): attention of decode over peak
  = s.attention_us_per_pair * ((1 + s.draft_tokens) * b.kv_decode_sum + (2 + s.draft_tokens) / 2 * b.decode_tokens)
  datasheet; phase; component
# The i-th of a decode's tokens attends to its context and i tokens.
# A new token writes its KV entries, and reads and writes the residual stream twice a layer in 16 bits.
b.prefill_bytes_us (us): bytes of prefill over bandwidth: all weights read, KV cache of the prompts, activations; 0
    without prefill
  = min(b.prefill_reqs, 1) * (b.weight_read_us + (b.kv_read_us - b.decode_kv_read_us)
    + (s.kv_us_per_token + (2 + 2) * 2 * s.layers * s.hidden / s.bytes_per_us) * b.prefill_tokens)
  datasheet; phase
b.decode_bytes_us (us): bytes of decode over bandwidth: all weights read, KV cache of the decodes, activations; 0
    without decodes
  = min(b.decode_reqs, 1) * (b.weight_read_us + b.decode_kv_read_us
    + (s.kv_us_per_token + (2 + 2) * 2 * s.layers * s.hidden / s.bytes_per_us) * b.decode_tokens)
  datasheet; phase
b.logits_us (us): output projection and float32 logits
  = s.logits_us_per_row * (b.prefill_reqs + b.decode_tokens); datasheet; component
b.allreduce_us (us): two ring all-reduces a layer over the link
  = s.allreduce_us_per_token * b.tokens; component
b.attention_flops (flop): attention, this rank
  = s.attention_us_per_pair * s.flops_per_us * (b.prefill_pairs
    + ((1 + s.draft_tokens) * b.kv_decode_sum + (2 + s.draft_tokens) / 2 * b.decode_tokens))
  peak s.flops_per_us; paper18
b.total_flops (flop): matrix products, attention and output projection, this rank
  = s.gemm_us_per_token * s.flops_per_us * b.tokens + b.attention_flops
    + 2 * s.hidden * s.vocab / s.tp * (b.prefill_reqs + b.decode_tokens)
  peak s.flops_per_us; paper18
# Float32 logits are written and read, as in s.logits_us_per_row.
b.total_bytes (byte): weights, KV read and written, logits, this rank
  = (b.weight_read_us + b.kv_read_us + b.kv_write_us) * s.bytes_per_us + (2 + 2) * 2 * s.vocab
    * (b.prefill_reqs + b.decode_tokens)
  peak s.bytes_per_us; paper18
b.sorted_logits (request): logits that the sampler sorts: the vocabulary for every token drawn where the model's
    generation_config sets top_p < 1 or top_k > 0
  = s.sampling_sort * s.vocab * (b.prefill_reqs + b.decode_tokens)
b.penalised_logits (request): logits under a repetition penalty: the vocabulary for every token drawn where the model's
    generation_config sets one
  = s.repetition_penalty * s.vocab * (b.prefill_reqs + b.decode_tokens)
b.graph_tokens (token): new tokens padded to the engine's captured CUDA graph sizes (1, 2, 4, multiples of 8 to 256, of
    16 above); the true number without a graph
  opcode b.tokens s.cudagraph_capture_max b.uncaptured
b.uncaptured (one): 1 if the step has no captured CUDA graph, so that its kernels are launched one by one: more new
    tokens than the largest, or a kind of step that is not captured; else 0
  = min(max(b.tokens - s.cudagraph_capture_max
    * (s.graph_decode + (s.graph_mixed - s.graph_decode) * min(b.prefill_reqs, 1)), 0), 1); correction
b.kernel_gemm_us (us): measured matrix products of all layers (without routed experts), padded tokens
  curve gemm at b.graph_tokens
b.kernel_elementwise_us (us): norms, rotary embeddings, cache writes and activations of all layers: datasheet, a
    launch each
  curve elementwise at b.graph_tokens
b.kernel_small_us (us): launches around routed experts, quantization of activations, norms of queries and keys of all
    layers: counted
  curve small at b.graph_tokens
b.kernel_moe_us (us): measured routed experts of all layers in 16 bits, else 0. At the true tokens: padding is all
    alike and touches no experts of its own
  curve moe at b.all_tokens
b.kernel_moe_quantized_us (us): measured routed experts of all layers with quantized weights, which are other kernels;
    else 0
  curve moe_quantized at b.all_tokens
b.kernel_router_us (us): measured routers of all layers
  curve router at b.graph_tokens; plain
b.kernel_allreduce_us (us): measured all-reduces, two a layer; 0 at tp 1
  curve allreduce at b.graph_tokens
b.kernel_lm_head_us (us): measured output projection
  curve lm_head at b.prefill_reqs + b.decode_tokens; plain
b.kernel_sampler_us (us): drawing a token a request, with the sort and the penalties that generation_config asks for:
    bytes and launches counted, the sort's speed as published
  curve sampler at b.prefill_reqs + b.decode_tokens
b.kernel_decode_launch_us (us): measured attention of all layers at no context: the launches that every step makes, and
    the passes of a draft after its first, which takes part in the other kernels
  curve decode_launch at b.decode_reqs
b.kernel_decode_us_per_token (us/token): measured decode attention of all layers for a token of context
  curve decode_per_token at b.decode_reqs; times b.kv_decode_sum
b.kv_window_sum (token): context that layers with a sliding window read: kv_decode_sum, at most s.window a decode
  = min(b.kv_decode_sum, s.window * b.decode_reqs); context; no_cost
b.kernel_window_us_per_token (us/token): measured decode attention of layers with a sliding window, for a token of
    context in it
  curve window_per_token at b.decode_reqs; times b.kv_window_sum
b.kernel_decode_attention_us (us): measured decode attention of all layers: a line in the contexts, up to the windows
  = b.kernel_decode_launch_us + b.kernel_decode_us_per_token * b.kv_decode_sum
    + b.kernel_window_us_per_token * b.kv_window_sum
b.kernel_prefill_us_per_pair (us/token**2): measured prefill attention of all layers for a token pair, at the prompts'
    mean length
  curve prefill_per_pair at 2 * b.prefill_pairs / b.prefill_tokens - 1; knots 137; times b.prefill_pairs
b.kernel_prefill_attention_us (us): measured prefill attention of all layers
  = b.kernel_prefill_us_per_pair * b.prefill_pairs
b.kernel_us (us): all measured kernels of the step
  = b.kernel_gemm_us + b.kernel_elementwise_us + b.kernel_small_us + b.kernel_moe_us + b.kernel_moe_quantized_us
    + b.kernel_router_us + b.kernel_allreduce_us + b.kernel_lm_head_us + b.kernel_sampler_us
    + b.kernel_decode_attention_us + b.kernel_prefill_attention_us
b.trees (one): the value of the program's own ensemble of trees: exp of the sum of its leaves, which is never 0;
    without an ensemble it cannot be read
  ensemble
# The sums of the host's trained-physics form (simulator.serving.deployment), counted as the host counts them.
b.prompt_pairs (token**2): sum NN*(2*I + NN) over prefills, with I the whole prompt: twice the token pairs that the
    host's trained-physics form counts
  raw; from request.scheduled_tokens_this_step, prefill.total_tokens; host
b.host_prefill_compute_us (us): trained-physics form: FLOPs of prefill over peak
  = s.host_gemm_us_per_token * b.prefill_tokens + s.host_attention_us_per_pair * (b.prompt_pairs / 2); host
b.host_decode_compute_us (us): trained-physics form: FLOPs of decode over peak
  = s.host_gemm_us_per_token * b.decode_tokens + s.host_attention_us_per_pair * ((1 + s.draft_tokens) * b.kv_decode_sum)
  host
b.host_prefill_kv_us (us): trained-physics form: KV entries of the new prompt tokens over bandwidth
  = s.host_kv_us_per_token * b.prefill_tokens; host
b.host_decode_kv_us (us): trained-physics form: KV cache of the decodes, read and written, over bandwidth; the host
    counts it for every token that is verified
  = s.host_kv_us_per_token * ((1 + s.draft_tokens) * (b.kv_decode_sum + b.decode_reqs)); host
b.host_allreduce_us (us): trained-physics form: all-reduces over memory bandwidth
  = s.host_allreduce_us_per_token * (b.prefill_tokens + b.decode_reqs); host

s.layers (one): transformer layers
  from config.json; example 32; least 1; count; scale 1; size; shape; plain
s.dense_layers (one): layers with a dense feed-forward block
  from config.json; example 0; least 0; scale 3; plain
s.moe_layers (one): layers with routed experts
  from config.json; example 32; least 0; scale 2; size; plain
s.hidden (one): model width
  from config.json; example 4096; least 1; scale 5; shape; plain
s.heads (one): attention heads
  from config.json; example 32; least 1; scale 6; step_only; plain
s.kv_heads (one): key/value heads
  from config.json; example 8; least 1; plain
s.kv_heads_per_gpu (one): key/value heads a rank holds
  example 4; least 1; scale 7; plain
s.head_dim (one): width of a head
  from config.json; example 128; least 1; plain
s.ffn (one): width of the dense feed-forward block
  from config.json; example 14336; least 0; plain
s.moe_ffn (one): width of one expert
  from config.json; example 14336; least 0; plain
s.vocab (one): vocabulary size
  from config.json; example 32000; least 1; scale 8; step_only; shape; plain
s.experts (one): routed experts a layer
  from config.json; example 8; least 0; shape; plain
s.active_experts (one): routed experts a token uses
  from config.json; example 2; least 0; scale 13; shape; plain
s.window (token): sliding window of the layers that have one; 0 without
  from config.json; example 0; least 0; no_cost
s.tp (one): tensor parallelism
  from exp-config.yaml tensor_parallelism; example 2; least 1; paper18; scale 14; plain
s.tp_log2 (one): log2(tp)
  example 1; least 0; count; scale 4; size; queueing; plain
s.dp (one): data parallelism: ranks, each with a scheduler, a KV cache and `tp` GPUs of its own
  from --engine data_parallel; example 1; least 1; no_cost; plain
s.ep (one): expert parallelism: GPUs over which whole experts are spread; 1: each expert is split over all GPUs
  from --engine expert_parallel; example 1; least 1; no_cost; plain
s.is_spread (one): 1 where whole experts are spread over GPUs
  from --engine expert_parallel; example 0; least 0; scale 17; switch; plain
s.pp (one): pipeline parallelism: stages of layers
  from --engine pipeline_parallel; example 1; least 1; no_cost; plain
s.draft_tokens (one): tokens that speculative decoding drafts for a decode in a step
  from --engine num_speculative_tokens; example 0; least 0; no_cost; plain
s.gpus (one): GPUs of the deployment: tp * dp * pp
  from --engine data_parallel; example 2; least 1; no_cost; plain
s.is_moe (one): 1 with routed experts
  from config.json; example 1; least 0; paper18; scale 9; switch; plain
s.is_fp8 (one): 1 with FP8 weights
  from config.json; example 0; least 0; scale 10; switch; shape; plain
s.is_4bit (one): 1 with weights in 4 bits, floating-point or integers
  from config.json; example 0; least 0; scale 15; switch; shape; plain
s.is_widened (one): 1 where kernels widen weights of 4 bits to 16: integers, and all types on GPUs without fp4 cores
  from config.json; example 0; least 0; scale 20; switch; plain
s.is_blackwell (one): 1 on data-centre GPUs of NVIDIA's Blackwell generation
  from --hardware; example 0; least 0; scale 16; switch; plain
s.sampling_sort (one): 1 if the model's generation_config sets top_p < 1 or top_k > 0: the engine then sorts batch x
    vocabulary
  from generation_config.json; example 0; least 0; scale 11; switch; shape
s.repetition_penalty (one): 1 if the model's generation_config sets a repetition penalty
  from generation_config.json; example 0; least 0; scale 12; switch; shape; plain
s.kv_blocks (one): KV cache capacity in blocks
  from kv.blocks_total_gpu; example 20000; least 1; no_cost; setting; plain
s.kv_cpu_offload (one): 1 with KV offload to CPU memory
  from vllm.log; example 1; least 0; no_cost; plain
s.reference_step_us (us): this program's own step_time on 24 decodes with PI = 0; queueing_time only
  queueing
s.model_params_b (one): parameters of the whole model, billions
  from config.json; example 46.7; paper18; plain
s.active_params_b (one): parameters that a token uses, billions
  from config.json; example 12.88; paper18; plain
s.max_num_seqs (request): request limit of a batch
  from exp-config.yaml max_num_seqs; example 128; least 1; no_cost; setting; norm; plain
s.max_num_batched_tokens (token): token budget of a step
  from exp-config.yaml max_num_batched_tokens; example 2048; least 1; no_cost; setting; norm; plain
s.max_model_len (token): longest sequence
  from exp-config.yaml max_model_len; example 32768; least 1; no_cost; setting; plain
s.block_size (token): tokens in a KV block
  from --engine block_size; example 16; least 1; no_cost; setting; plain
s.cudagraph_capture_max (token): largest captured CUDA graph
  from --engine cudagraph_capture_max; example 256; least 1; no_cost; setting
s.graph_decode (one): 1 if steps of decodes alone are captured as CUDA graphs
  from --engine cudagraph_mode; example 1; least 0; no_cost
s.graph_mixed (one): 1 if steps with prompts are captured as CUDA graphs
  from --engine cudagraph_mode; example 1; least 0; no_cost
s.graph_piecewise (one): 1 if the captured graphs leave out attention, which is launched a layer at a time
  from --engine cudagraph_mode; example 0; least 0; no_cost
s.async_scheduling (one): 1 if the engine schedules a step while the one before runs
  from --engine async_scheduling; example 1; least 0; scale 18; switch
s.schedule_us (us): time in a step that the GPU waits for the scheduler: a prior, 0 with asynchronous scheduling
  from --engine async_scheduling; example 0; least 0; no_cost
s.issue_us (us): time that the host needs to issue a captured step, which is never faster: a prior by GPU
  from --hardware; example 2500; no_cost
s.stream_interval (token): tokens of an answer that are sent together, after the first
  from --engine stream_interval; example 1; least 1; no_cost
s.allreduce_rms_fusion (one): 1 if all-reduce and norm are one kernel
  from --engine allreduce_rms_fusion; example 0; least 0; scale 19; switch
s.flops_per_us (flop/us): dense peak for the weights' type, per GPU
  from --hardware; per_second peak_throughput; example 989.5e6
s.bytes_per_us (byte/us): memory bandwidth, per GPU
  from --hardware; per_second peak_bandwidth; example 3.35e6; plain
s.link_bytes_per_us (byte/us): interconnect bandwidth per direction, per GPU
  from --hardware; example 450e3
s.kv_bytes_per_token (byte/token): KV cache of one token, this rank
  peak s.bytes_per_us; example 65536; plain
s.shared_weights_us (us): weights that every step reads, over bandwidth
  example 439.9; datasheet
s.experts_us (us): all routed experts' weights over bandwidth
  example 13461.8; least 0; datasheet
s.weights_us (us): shared_weights_us + experts_us
  example 13901.7; datasheet; norm; plain
s.kv_us_per_token (us/token): kv_bytes_per_token over bandwidth
  example 0.01956; datasheet; plain
s.gemm_us_per_token (us/token): 2 x active parameters (without output projection) over peak
  example 12.75; datasheet
s.attention_us_per_pair (us/token**2): attention of one token pair over peak
  example 0.000265; datasheet
s.logits_us_per_row (us/request): output projection over peak, float32 logits over bandwidth
  example 0.2089; datasheet
s.allreduce_us_per_token (us/token): two ring all-reduces a layer over the link; 0 at tp 1
  example 1.165; least 0
s.host_gemm_us_per_token (us/token): trained-physics form: projections and feed-forward blocks of a token over peak
  from config.json; example 12.75; host
s.host_attention_us_per_pair (us/token**2): trained-physics form: attention of one token pair over peak
  from config.json; example 0.000265; host
s.host_kv_us_per_token (us/token): trained-physics form: KV entries of one token, in 16 bits, over bandwidth
  from config.json; example 0.01956; host
s.host_weights_us (us): trained-physics form: weights of all layers, every expert, over bandwidth
  from config.json; example 13862.6; host
s.host_allreduce_us_per_token (us/token): trained-physics form: two ring all-reduces a layer over memory bandwidth; 0
    at tp 1
  from config.json; example 0.1565; least 0; host
s.host_interleaved_moe_layers (one): layers with routed experts as the host counts them in models that name an
    interleave step; else 0
  from config.json; example 0; least 0; host

r.input_len (token): prompt length
  from prefill.total_tokens; queueing; plain
"""


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """A field and its attributes."""

    scope: str
    name: str
    unit: str
    meaning: str
    marks: frozenset[str] = frozenset()
    formula: str = ""
    curve: str = ""
    at: str = ""
    knots: int = 113  # eight to an octave, over 14 octaves of tokens or requests
    operands: tuple[str, ...] = ()
    learned_from: str = ""
    times: str = ""
    peak: str = ""
    per_second: str = ""
    scale: int = 0
    example: float = 0.0
    least: float = math.ulp(0.0)

    @property
    def key(self) -> str:
        """The field as programs write it: `b.kv_read_us`."""
        return f"{self.scope}.{self.name}"

    @property
    def go(self) -> str:
        """The field in Go: `b.KvReadUs`, `d.Layers`, `inputLen`."""
        first, *rest = map(str.capitalize, self.name.split("_"))
        prefix = {"b": "b.", "s": "d.", "r": ""}[self.scope]
        return "".join([prefix, first if prefix else first.lower(), *rest])


def declared(text: str) -> Iterator[FieldSpec]:
    """The fields of a text like DECLARATIONS. Raises ValueError for an attribute that does not exist."""
    field: dict[str, Any] = {}
    for line in text.replace("\n    ", " ").splitlines():
        if line.startswith("  "):
            for attribute in line[2:].split("; "):
                _add(attribute, field)
        elif line and not line.startswith("#"):
            if field:
                yield FieldSpec(**field)
            place, _, meaning = line.partition("): ")
            key, _, unit = place.partition(" (")
            scope, _, name = key.partition(".")
            field = {"scope": scope, "name": name, "unit": unit, "meaning": meaning, "marks": frozenset()}
    yield FieldSpec(**field)


def _add(attribute: str, field: dict[str, Any]) -> None:
    if attribute in MARKS:
        field["marks"] |= {attribute}
        return
    word, _, value = attribute.partition(" ")
    match word:
        case "=":
            field["formula"] = value
        case "curve":
            field["curve"], _, field["at"] = value.partition(" at ")
        case "opcode":
            field["operands"] = tuple(value.split())
        case "from":
            field["learned_from"] = value
        case "times" | "peak" | "per_second":
            field[word] = value
        case "knots" | "scale":
            field[word] = int(value)
        case "example" | "least":
            field[word] = float(value)
        case _:
            raise ValueError(f"field {field['scope']}.{field['name']}: unknown attribute {attribute!r}")


# All that a program may read.
READABLE = {(f.scope, f.name): f for f in declared(DECLARATIONS)}


def marked(mark: str) -> tuple[FieldSpec, ...]:
    """The fields with this mark, in the order of their declarations."""
    assert mark in MARKS, mark
    return tuple(f for f in READABLE.values() if mark in f.marks)


# The fields of the host's trained-physics form, and the one that a program reads from its ensemble.
HOST = frozenset((f.scope, f.name) for f in marked("host"))
(TREES,) = marked("ensemble")
# The fields that a search may offer.
FIELDS = {key: f for key, f in READABLE.items() if not f.marks & {"host", "ensemble"}}

# The sums that the clock keeps, in the order of their slots.
RAW = tuple(f.name for f in marked("raw"))
# The position of each in a row; the compiled kernels use them as constants.
RAW_FIELDS = len(RAW)
PREFILL_REQS, DECODE_REQS, PREFILL_TOKENS, MAX_PREFILL_CHUNK, PREFILL_PAIRS, *_LATER = range(RAW_FIELDS)
KV_SUM, KV_MAX, KV_VAR, KV_DECODE_SUM, KV_DECODE_MAX, PROMPT_PAIRS = _LATER
# Those that step tables have as columns. Tables do not record whole prompt lengths, so the last one is unknown there.
RECORDED = RAW[:PROMPT_PAIRS]
# The batch fields that are operations in every back end.
SPECIAL = tuple(f.name for f in READABLE.values() if f.operands)
# The curves of a deployment and the numbers of their knots.
CURVES = {f.curve: f.knots for f in READABLE.values() if f.curve}
# The fields of measured kernels: a constant that multiplies such a time is near 1, above or below.
KERNELS = tuple(f.name for f in READABLE.values() if f.name.startswith("kernel_"))
# The fields of the deployment that the original proposal counts per second, by its names.
PER_SECOND = {f.per_second: f.name for f in READABLE.values() if f.per_second}
PHYSICAL = frozenset(f.name for f in marked("datasheet"))
PHASES = frozenset(f.key for f in marked("phase"))
PAPER18 = frozenset(f.key for f in marked("paper18"))
