"""`evolve fit`: the constants of a form that exists, from other measurements.

`calibrate.py` fits, `result.py` says what came out and writes it where `files.py` says, `view.py` prints it.
"""
