"""Batch counts, linear. Source: the host's blackbox form (original proposal, seed 1)."""

def step_time(b, s, *, b0: us = 8000.0, b1: us/token = 10.0, b2: us/request = 30.0):
    return b0 + b1 * b.prefill_tokens + b2 * b.decode_reqs
