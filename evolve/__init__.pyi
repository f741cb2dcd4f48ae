"""The Python interface as type checkers see it. At run time `evolve/__init__.py` imports it on first use.

`search` is the function, although there is a package of that name: see `evolve/search/__init__.py`.
"""

from evolve.interface.calls import Fit as Fit
from evolve.interface.calls import fit as fit
from evolve.interface.calls import load_experiments as load_experiments
from evolve.interface.calls import predict as predict
from evolve.interface.calls import sweep as sweep
from evolve.interface.program import Program as Program
from evolve.interface.run import Run as Run
from evolve.interface.run import load_run as load_run
from evolve.interface.search import Progress as Progress
from evolve.interface.search import resume as resume
from evolve.interface.search import search as search
from evolve.program.plan import Plan as Plan
from simulator.errors import InputError as InputError

__version__: str
