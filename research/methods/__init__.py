"""The leaderboard: everything that predicts latencies, trained and judged by one protocol.

Start at `catalog.py`, which lists the methods of the original exercise, and `entries.py`, which has who else is on the
board. `protocol.py` reads what was fixed before. `samples.py` has the times that the authors' own protocols train on,
`recipe.py` the training, `closed_form.py` what needs none, and `train.py` trains any entry. `judge.py` is one training
in a worker, `bench.py` all of them, `result.py` what is kept. `features.py` and `hypotheses.py` are h1 to h3,
`board.py` makes rows of results, and `view.py` the tables.
"""
