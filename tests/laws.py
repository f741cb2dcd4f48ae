"""Programs whose overheads are nothing: laws to simulate runs with, and to find again."""

from __future__ import annotations

from simulator.language.ir import Program
from simulator.language.parse import parse

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
