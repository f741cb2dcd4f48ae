"""Many searches: the same one under several seeds, inside the folds of a validation, and rival engines side by side.

`study.py` carries out the runs of a folder; `seeds.py` repeats a search, `validate.py` holds out what `folds.py` says
and `held_out.py` measures it, `baselines.py` compares the engines of `engines/`; `views.py` prints all of it.
"""
