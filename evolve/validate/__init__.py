"""Studies of several searches: one under many seeds, and one repeated in every fold of a validation.

`study.py` carries out the runs of a folder. `seeds.py` repeats a search under several seeds, `validate.py` in the folds
of `folds.py`. `held_out.py` measures their errors, and `statistics.py` summarises them.
"""
