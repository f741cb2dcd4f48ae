"""A program in Go: a latency model that the BLIS simulator compiles in, with its tests and the steps to register it.

Imports `simulator` and the standard library only. Start at `emit.py`. `toolchain.py` builds, tests and times the
result, `agreement.py` compares it with the interpreter.
"""

from translate_go.agreement import compare_deployments
from translate_go.deployment import Deployment
from translate_go.emit import emit, write
from translate_go.naming import BackendName
from translate_go.target import TARGETS
from translate_go.toolchain import benchmark, build_and_test, find_go

__all__ = [
    "TARGETS",
    "BackendName",
    "Deployment",
    "benchmark",
    "build_and_test",
    "compare_deployments",
    "emit",
    "find_go",
    "write",
]
