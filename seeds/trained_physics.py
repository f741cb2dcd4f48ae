"""The host's trained-physics form with its published coefficients: a sum of datasheet times and of overheads.

Dense models and mixtures of experts, without data parallelism; the fields count a deployment as the host does. No
coefficient may be negative: the host refuses it.
Source: github.com/inference-sim/inference-sim, sim/latency (trained-physics); coefficients of its defaults.yaml.
"""


def step_time(
    b,
    s,
    *,
    b1a: one = 0.152128,
    b2a: one = 0.0,
    b3: one = 1.36252915,
    b4: one = 0.752037,
    b5: us = 32.09546717,
    b6: us / request = 4.41684444,
    b7: us = 126.024825,
    b8: us = 481.8613888,
    b1b: one = 0.0,
    b2b: one = 1.94710771,
):
    prefill = b1a * b.host_prefill_compute_us + b1b * b.host_prefill_kv_us
    decode = b2a * b.host_decode_compute_us + b2b * b.host_decode_kv_us
    shared = b3 * s.host_weights_us + b4 * b.host_allreduce_us
    overheads = b5 * s.layers + b6 * b.batch_size + b7 + b8 * s.host_interleaved_moe_layers
    return prefill + decode + shared + overheads


def queueing_time(r, s, *, alpha0: us = 15563.199579):
    return alpha0


def completion_time(s, *, alpha1: us = 777.3455):
    return alpha1


def output_token_time(s, *, alpha2: us = 45.907545):
    return alpha2
