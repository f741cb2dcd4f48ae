"""A program in Go: a latency model that the BLIS simulator compiles in, with its tests and the steps to register it.

Imports `simulator` and the standard library only. Start at `emit.py`; `verify.py` builds, tests and times the result,
`agreement.py` holds it against the interpreter.
"""

from translate_go.agreement import compare, compare_deployments
from translate_go.deployment import Deployment
from translate_go.emit import emit
from translate_go.mark import write
from translate_go.target import TARGETS
from translate_go.toolchain import find_go
from translate_go.verify import benchmark, build_and_test

__all__ = [
    "TARGETS",
    "Deployment",
    "benchmark",
    "build_and_test",
    "compare",
    "compare_deployments",
    "emit",
    "find_go",
    "write",
]
