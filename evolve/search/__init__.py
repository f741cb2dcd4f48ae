"""One search: ask a proposer for programs, have them assessed, keep the good ones, report.

Start at `search.py`. `assessor.py` turns proposals into outcomes, `workers.py` runs the computation, and `run.py`
carries out a whole search in a run folder.

The package is also a function of the Python interface, which `help(evolve.api.search.search)` explains:

    evolve.search(config="default", start=(), *, budget=None, seed=None, workers=None, out=None, on_progress=None)

Importing the package sets the attribute `search` of `evolve`, so whatever has that name must be both.
"""

import importlib
import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A package that can be called."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return importlib.import_module("evolve.api.search").search(*args, **options)


sys.modules[__name__].__class__ = _Callable
