"""Rival engines: other ways to propose programs, for a comparison under one budget and one evaluator.

Every engine is a proposer (see evolve.search.proposer), and `engines.py` lists them. `plain.py` has random search and
hill climbing, `gp.py` genetic programming (on the typed trees of `primitives.py` and `trees.py`), and `openevolve.py`
the database of OpenEvolve.
"""
