"""The larger of an overhead floor and the time that weights and KV cache take to read.

Source: roofline model (Williams, Waterman and Patterson, CACM 2009) with a floor for launches and scheduling;
the wait for the step under way and the one already scheduled is a multiple of the weight-read time.
"""

def step_time(b, s, *, floor: us = 4000.0, weights: one = 1.0, kv: one = 1.0, base: us = 2000.0):
    compute = weights * b.weight_read_us + kv * b.kv_read_us + base
    return max(floor, compute)


def queueing_time(r, s, *, alpha0: us = 7000.0, cycles: one = 1.5):
    return alpha0 + cycles * s.weights_us
