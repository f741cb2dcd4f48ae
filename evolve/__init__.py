"""The engine: what a run is, who proposes programs, one search and many, what is done with a program, the command line.

May import every other package. Start at `search/search.py`; `cli/` is the door. `import evolve` is also the Python
interface, in the room `interface`, which is imported when one of its names is first used.
"""

import importlib

__version__ = "0.4.0"

# Name of the Python interface -> the module it is from. `__init__.pyi` tells them to type checkers.
_INTERFACE = {
    "Fit": "evolve.api.calls",
    "InputError": "simulator.common.errors",
    "Plan": "evolve.api.calls",
    "Program": "evolve.api.program",
    "Progress": "evolve.api.search",
    "Run": "evolve.api.run",
    "Spec": "simulator.serving.spec",
    "deployments": "evolve.api.calls",
    "fit": "evolve.api.calls",
    "load_experiments": "evolve.api.calls",
    "load_run": "evolve.api.run",
    "predict": "evolve.api.calls",
    "resume": "evolve.api.search",
    "sweep": "evolve.api.calls",
}
__all__ = [*_INTERFACE, "search"]  # noqa: PLE0604 (strings all the same)


def __getattr__(name: str) -> object:
    """A name of the Python interface. `search` is the package of that name, which can be called."""
    if name == "search":
        return importlib.import_module("evolve.search")
    if name not in _INTERFACE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_INTERFACE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
