"""A run or a program written for other tools: sympy, LaTeX, JSON, OpenEvolve.

Start at `formula.py`, a program as expressions, and `openevolve.py`, a run as a checkpoint folder.
"""
