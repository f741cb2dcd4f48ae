"""Linear, and the longest context times the decodes. Source: original proposal, seed 2."""

def step_time(b, s, *, b0: us = 8000.0, b1: us/token = 10.0, b2: us/request = 30.0, c: us/token/request = 0.01):
    return b0 + b1 * b.prefill_tokens + b2 * b.decode_reqs + c * b.kv_max * b.decode_reqs
