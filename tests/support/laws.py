"""Programs whose overheads are nothing: laws to simulate runs with, and to find again."""

from __future__ import annotations

from dataclasses import replace

from evaluator.metrics import observe_all
from simulator.clock.replay import replay
from simulator.language.ir import Program
from simulator.language.parse import parse
from simulator.serving.experiment import Experiment

NOTHING = """
def output_token_time(s):
    return 0

def completion_time(s):
    return 0
"""
QUEUEING = """
def queueing_time(r, s, *, base: us = 8000.0):
    return base
"""


def law(step_time: str, queueing_time: str = QUEUEING) -> Program:
    """These two methods, and no time per token or request."""
    return parse(step_time + queueing_time + NOTHING)


def shown(experiments: list[Experiment], program: Program) -> list[Experiment]:
    """The experiments as the program would have shown them, under other arrivals than a fit's."""
    return [replace(e, observed=observe_all(replay(e, program, 77))) for e in experiments]


# Measured kernels with factors of their own, and what no table has.
KERNELS_STEP = """
def step_time(b, s, *, gemm: one = 0.92, moe: one = 1.25, attention: one = 1.05, reduce: one = 1.0, layer: us = 30.0):
    return (gemm * b.kernel_gemm_us + moe * b.kernel_moe_us + attention * b.kernel_decode_attention_us
            + b.kernel_prefill_attention_us + reduce * b.kernel_allreduce_us + b.kernel_lm_head_us + layer * s.layers)
"""
KERNELS = law(KERNELS_STEP)


def constants(program: Program) -> dict[str, float]:
    """The constants of all methods by name."""
    return {c.name: c.value for f in program.functions for c in f.constants}
