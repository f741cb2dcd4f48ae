"""`evolve fit`: calibrate the constants of a program on experiments, and on measured steps first if there are any.

Start at `calibrate.py`. `first_stage.py` fits single steps, `result.py` holds and writes the outcome, and `view.py`
prints it.
"""
