"""The exponential of a linear form in the logarithms of the batch's and the deployment's sizes.

A product of powers: FLOPs and bytes over the peaks, tokens, requests, context, parameters and tensor parallelism.
`epsilon` keeps the logarithm of nothing finite.
Source: our form of the original exercise's LACM; its own is lacm_as_written.
"""

def step_time(
    b, s, *,
    base: one[-20, 20] = 8.5,
    flops: one[-3, 3] = 0.0,
    bytes: one[-3, 3] = 0.1,
    tokens: one[-3, 3] = 0.0,
    requests: one[-3, 3] = 0.0,
    context: one[-3, 3] = 0.0,
    parameters: one[-3, 3] = 0.0,
    ranks: one[-3, 3] = 0.0,
    epsilon: one[1, 1] = 1.0,
    unit: us[1, 1] = 1.0,
    token: token[1, 1] = 1.0,
    request: request[1, 1] = 1.0,
):
    work = flops * log(epsilon + b.total_flops / s.flops_per_us / unit)
    traffic = bytes * log(epsilon + b.total_bytes / s.bytes_per_us / unit)
    batch = tokens * log(epsilon + b.tokens / token) + requests * log(epsilon + b.batch_size / request)
    model = context * log(epsilon + b.kv_sum / token) + parameters * log(s.model_params_b) + ranks * log(s.tp)
    return unit * exp(base + work + traffic + batch + model)
