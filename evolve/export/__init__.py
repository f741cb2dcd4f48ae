"""A run or a program written for other tools: sympy, LaTeX, JSON, OpenEvolve.

Start at `formula.py`, a program as expressions, and `checkpoint.py`, a run as a folder of OpenEvolve.
"""
