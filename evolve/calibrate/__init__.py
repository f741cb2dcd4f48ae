"""Fitting a program to measurements: its constants, scheduler steps, drift, and the runs to measure next.

Start at `fit.py`. `first_stage.py` fits single steps, `result.py` holds and writes the outcome, `view.py` prints it.
"""
