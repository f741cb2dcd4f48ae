"""Four numbers: a step is a constant and a cost a request, a request waits a constant and a cost a prompt token.

Their values are closed forms of a model's mean TTFT, E2E and decodes.
Source: the direct calibration per model of the original exercise's fourth round.
"""

def step_time(b, s, *, beta0: us = 8000.0, beta1: us/request = 30.0):
    return beta0 + beta1 * b.decode_reqs


def queueing_time(r, s, *, alpha0: us = 10000.0, alpha1: us/token = 0.0):
    return alpha0 + alpha1 * r.input_len


def output_token_time(s):
    return 0


def completion_time(s):
    return 0
