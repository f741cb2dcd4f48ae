"""Constants from measurements: a program's constants fitted to the latencies observed in each load stage.

Start at `fit.py`. `problem.py` says what is minimised, `meanfield.py` predicts a load stage (`slopes.py`: with slopes).
`gauss_newton.py` minimises in compiled code, with steps by `boxed.py`; `methods.py` and `solvers.py` choose its starts
and search what is not smooth; `corrections.py` repeats the fit against full replays.
`steps.py` fits to single steps; `bayes.py` calibrates by full replays alone, to compare with.
"""
