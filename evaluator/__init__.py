"""How good a program is: what was measured, how a program is fitted to it, and the errors that remain.

Start at `assess.py`, the pipeline of one candidate.
"""
