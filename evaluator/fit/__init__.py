"""Constants from measurements: a program's constants fitted to the latencies observed in each load stage.

Start at `fit.py`. `problem.py` says what is minimised, `meanfield.py` predicts a load stage, `methods.py` and
`solvers.py` minimise, `corrections.py` repeats the fit against full replays.
"""
