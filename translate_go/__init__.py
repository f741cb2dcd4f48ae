"""A program in Go: a latency model that the BLIS simulator compiles in, with its tests and the steps to register it.

Imports `simulator` and the standard library only. Start at `emit.py`; `verify.py` builds and compares the result.
"""

from translate_go.deployment import Deployment
from translate_go.emit import emit
from translate_go.target import TARGETS
from translate_go.verify import build_and_test, compare, find_go

__all__ = ["TARGETS", "Deployment", "build_and_test", "compare", "emit", "find_go"]
