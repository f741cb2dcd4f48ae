"""The Python interface as type checkers see it. At run time `evolve/__init__.py` imports it on first use.

`search` is the function, although there is a package of that name: see `evolve/search/__init__.py`.
"""

from evolve.api.calls import Fit as Fit
from evolve.api.calls import Plan as Plan
from evolve.api.calls import deployments as deployments
from evolve.api.calls import fit as fit
from evolve.api.calls import load_experiments as load_experiments
from evolve.api.calls import predict as predict
from evolve.api.calls import sweep as sweep
from evolve.api.program import Program as Program
from evolve.api.run import Run as Run
from evolve.api.run import load_run as load_run
from evolve.api.search import Progress as Progress
from evolve.api.search import resume as resume
from evolve.api.search import search as search
from simulator.common.errors import InputError as InputError
from simulator.serving.spec import Spec as Spec

__version__: str
