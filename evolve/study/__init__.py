"""Studies of several searches: one under many seeds, one repeated in every fold of a validation, rival engines.

`study.py` carries out the runs of a folder. `seeds.py` repeats a search under several seeds. `validate.py` repeats it
in the folds of `folds.py`, `held_out.py` measures their errors, and `statistics.py` sums them up. `baselines.py` runs
the engines of `engines/`, and `comparison.py` compares them. `views.py` and `held_out_views.py` print the results.
"""
