"""The quality of a program: measurements, the fit to them, and the errors that remain.

Start at `assess.py`, the pipeline of one candidate.
"""
