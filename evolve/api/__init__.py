"""The Python interface, `import evolve`: runs, programs, searches, fits and predictions, as objects and data frames.

`run.py` has runs, `program.py` programs, `search.py` searches, and `calls.py` fits and predictions. It computes as the
command line does, so it is prepared in the same way before numpy is imported, if it is not imported yet.
"""

from evolve import processes

processes.check_memory()
processes.settle()
