"""Programs as people write them: every construct of the language, and the dialect."""

from __future__ import annotations


def dialect(expression: str, table: str = "{'a': 1}") -> str:
    return f"CONSTANTS = {table}\ndef predict_step_time(b): return {expression}"


# texts that read back as they are
PROGRAMS = [
    # the example of the architecture: doc, units, lets, both methods
    '''"""Weights and KV over bandwidth, launches per layer, a floor. Source: roofline model (2009)."""

def step_time(b, s, *, weights: one = 1.0, kv: one = 1.0, layer: us = 70.0, floor: us = 4000.0):
    memory = weights * b.weight_read_us + kv * b.kv_read_us
    return max(floor, memory + layer * s.layers)

def queueing_time(r, s, *, base: us = 9000.0, cycles: one = 1.5):
    return base + cycles * s.weights_us
''',
    # every function, nested, n-ary
    """def step_time(b, s, *, a=1.5, c=-2.25):
    x = sqrt(b.kv_sum) + log(b.tokens) - log1p(b.kv_var) * exp(-b.kv_mean / s.max_model_len) * softplus(b.kv_mean - a)
    return max(min(x, pow(b.batch_size, a), pow(b.kv_max, -c), 0.5), 2 / x, -1) + pow(b.graph_batch, 2)
""",
    # guards, elif, conditionals inside conditionals
    """def step_time(b, s, *, a=300.0, c=7.0):
    if b.prefill_reqs > 0:
        return a + c * b.max_prefill_chunk
    elif b.decode_reqs <= 2:
        return a
    t = c * b.decode_reqs
    if t >= a:
        return t if b.kv_max != b.kv_mean else (a if b.kv_var == 0 else t / b.kv_var)
    else:
        return a - t
""",
    # every comparison
    """def step_time(b, s):
    return (1 if b.tokens < 2 else 0) + (1 if b.tokens <= 2 else 0) * (1 if b.tokens == 2 else 0.5) - (
        1 if b.tokens != 1 else 2) / (1 if b.tokens > 0 else b.tokens) + (0 if b.tokens >= 1 else s.layers)
""",
    # signs and grouping
    """def step_time(b, s, *, a=5.5):
    return -(-a) - (b.tokens - (a - b.kv_max)) - -b.kv_sum / (a / (b.tokens / 2)) * -(a * -(b.kv_mean + 1))
""",
    # all six methods, reference step
    """def step_time(b, s, *, w: one[0.8, 3] = 1.25):
    return w * b.weight_read_us + b.allreduce_us
def queueing_time(r, s, *, a: us/token = 0.5, n: (us/token)[-1, 5] = 1.0):
    return (a + n) * r.input_len + 2 * s.reference_step_us
def output_token_time(s, *, t: us = 12.5):
    return t * s.tp_log2
def completion_time(s, *, t: us[0, 100.5] = 3.0):
    return t if s.is_moe > 0 else 0
def scheduling_time(s):
    return s.block_size
def preemption_time(s):
    return 0
""",
    # derived fields, all of them in one way or another; numbers that become constants
    """def step_time(b, s):
    x = b.total_flops / s.flops_per_us + b.total_bytes / s.bytes_per_us + 3 * b.attention_flops / 7e5
    y = max(b.expert_read_us, b.decode_kv_read_us, b.kv_write_us, b.prefill_gemm_us, b.decode_gemm_us, 1e-3)
    return x + y + max(
        b.prefill_attention_us, b.decode_attention_us, b.logits_us, 100000)
""",
    # no field at all
    "def step_time(b, s, *, a: us = 1234.5): return a",
    # only static
    "def step_time(b, s, *, a: one = 1e-300): return s.weights_us * a / (s.layers - s.layers)",
    # division by zero, overflow, inf - inf, log of zero
    """def step_time(b, s, *, big=1e308):
    huge = big * b.tokens
    more = log(b.prefill_tokens) + exp(huge) + 1 / b.prefill_reqs + pow(huge, 2)
    return huge - big * b.batch_size * 2 + more
""",
    # the dialect
    """CONSTANTS = {'c1': 10.5, 'c2': -3}
def predict_step_time(b):
    '''One sum.'''
    return CONSTANTS['c1'] * b['prefill_tokens'] + CONSTANTS['c2'] * b['tp'] + b['kv_max'] * 17
def predict_queueing_time(r):
    return CONSTANTS['c1'] * r['input_len']
""",
]
# few lines with many constructs, to be damaged
VALID = [
    '''"""Doc."""

def step_time(b, s, *, a: us/token[0, 5] = 1.5, c=-2):
    x = max(a * b.tokens, 3, s.tp) - -c
    if x > 2:
        return sqrt(x)
    return pow(x, c) if b.kv_max == 0 else x / 0.5

def queueing_time(r, s): return r.input_len * s.reference_step_us
''',
    dialect("CONSTANTS['a'] * b['tokens'] + b['tp'] if b['kv_max'] > 10 else 1"),
]
