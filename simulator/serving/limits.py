"""The largest figures of an experiment: far above any real one, and small enough to keep all arithmetic exact.

Lengths are held in int32. A step's sums, such as `kv_var`, are exact in int64 if requests in a batch times tokens of a
request is at most MOST_CONTEXT. Times in microseconds are exact in float64 up to 2**53.
"""

from __future__ import annotations

MOST_TOKENS = 10_000_000  # of a prompt, an answer or a step: the longest contexts of any model
MOST_REQUESTS = 20_000_000  # of an experiment
MOST_LOAD_TOKENS = 100_000_000_000  # of all prompts and answers of an experiment
MOST_PROMPTS = 10_000_000  # distinct ones
MOST_TURNS = 10_000  # of a conversation
MOST_PIECES = 50_000_000  # of all prompts of a trace
MOST_STAGES = 10_000
MOST_RATE = 1_000_000.0  # requests/s
MOST_USERS = 1_000_000  # requests in flight of a closed load
MOST_SECONDS = 1e9  # of a load, and until a client gives up: 30 years
MOST_MS = 1e12  # of an observed latency: 30 years
MOST_DRAFTS = 100  # tokens drafted for a decode in a step
MOST_SEQS = 1_000_000  # requests in a batch
MOST_CONTEXT = 3_000_000_000  # tokens in a batch's KV cache; its square is below 2**63
MOST_BLOCK = 1_000_000  # tokens in a KV block
MOST_BLOCKS = 100_000_000  # KV blocks
MOST_GPUS = 10_000
MOST_RANKS = 1_000  # of a deployment
MOST_GIB = 1e9  # of a model's extra weights, and of host memory
MOST_US = 1_000_000_000  # of a transfer's latency

# Least and most of the figures of a GPU: far from any that there is, so that GB/s in place of TB/s, say, is an error.
GPU = {
    "bf16_tflops": (1.0, 100_000.0),
    "fp8_tflops": (1.0, 100_000.0),
    "fp4_tflops": (1.0, 100_000.0),
    "memory_tb_per_s": (0.01, 100.0),
    "link_gb_per_s": (0.1, 100_000.0),
    "usable_gib": (0.5, 10_000.0),
}

HOST_ENGINE = {
    "total_kv_blocks": 1_000_000,
    "block_size": 16,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "long_prefill_token_threshold": 0,
    "max_model_len": 0,
}
"""The settings of an engine in the host's main branch if neither its command line nor the model says otherwise; 0 is no
limit."""
