"""The results of a search: elites in a grid, on a Pareto front and on islands, and the journal that rebuilds them.

Start at `elite.py` and `proposal.py`, then read `population.py`.
"""
