"""Rival engines: other ways to propose programs, for a comparison under one budget and one evaluator.

Every engine is a proposer (see evolve.propose.proposer). `engines.py` has the table of them; `plain.py` random search
and hill climbing, `gp.py` genetic programming (its typed trees in `primitives.py` and `trees.py`), `openevolve.py`
OpenEvolve's database.
"""
