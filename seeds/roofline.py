"""The larger of FLOPs over a peak and bytes over a bandwidth, and an overhead.

Source: roofline model (Williams, Waterman and Patterson, CACM 2009); original proposal, seed 4.
"""

def step_time(b, s, *, peak: flop/us = 4e8, bandwidth: byte/us = 3e6, o: us = 4000.0):
    return max(b.total_flops / peak, b.total_bytes / bandwidth) + o
