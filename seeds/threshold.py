"""One law for steps with much prefill, another for the rest. Source: original proposal, seed 5."""

def step_time(
    b, s, *,
    split: token = 100.0,
    c1: us/token = 10.0,
    c2: us/token = 1.0,
    c3: us/request = 30.0,
    c4: us/token = 1.0,
    c5: us = 8000.0,
):
    if b.prefill_tokens > split:
        return c1 * b.prefill_tokens + c2 * b.kv_max
    return c3 * b.decode_reqs + c4 * b.kv_mean + c5
