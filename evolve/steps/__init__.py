"""Sampled scheduler steps beside a program's step time: what `evolve score-steps` and `evolve fit --steps` rest on.

`table.py` reads step tables, `sources.py` finds each run's experiment, `estimate.py` makes a batch of a summary,
`targets.py` pairs batches with measured times, `score.py` and `figures.py` judge, `view.py` prints.
"""
