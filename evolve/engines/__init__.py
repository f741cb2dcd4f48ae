"""Other engines on our evaluator: OpenEvolve's controller, and GEPA.

Start at `evaluator.py`, what both ask. Nothing else imports this package; each engine is an extra to install. It
computes as the command line does, so it is prepared in the same way before numpy is imported.
"""

from evolve import processes

processes.check_memory()
processes.settle()
