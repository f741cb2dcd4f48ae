"""What a search keeps: elites in a grid, on a Pareto front and on islands, and the journal to rebuild them from.

Knows numbers and text, not programs. Start at `elite.py` and `proposal.py`, then `population.py`.
"""
