"""Compute-bound prefill against memory-bound decode, and an overhead. Source: original proposal, seed 3."""

def step_time(b, s, *, a: us/token = 20.0, c: us/request = 30.0, d: us/token/request = 0.03, o: us = 8000.0):
    return max(b.prefill_tokens * a, b.decode_reqs * (c + b.kv_mean * d)) + o
