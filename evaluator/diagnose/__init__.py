"""The errors of a fitted program and their causes, for a person or a model that proposes a better form.

Start at `diagnose.py`: errors by load stage, correlated with fields. `describe.py` prints what a model sees, a few runs
one by one, many as the tables of `tables.py`. `examine.py` has errors left out and doubts, `trial.py` a program just
proposed. `stage_steps.py` reconstructs the steps of a stage, `explain.py` ranks terms to add and constants to drop.
"""
