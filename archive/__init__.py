"""What to keep: the grid of elites, the Pareto front, and the journal from which both can be rebuilt.

Knows numbers and text, not programs. Start at `elite.py`, then `archive.py`.
"""
