"""`evolve fit --score-steps`: a program's step time against measured scheduler steps.

Start at `score.py`. `table.py` reads step tables, `sources.py` finds the experiment of each. `targets.py` pairs
measured times with batches, `estimate.py` estimates a batch from its summary, and `figures.py` compares.
"""
